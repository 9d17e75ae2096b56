"""What is hard to show is shown in its place as what it is; the page stays, and so does the server."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import struct
import tarfile
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.view.pages.conftest import TOKENIZER, Ask

import penstock as ps
from penstock.errors import NotFound, Unsupported
from penstock.formats.jsonl import text
from penstock.formats.shards import index_table
from penstock.formats.tokens.megatron.source import MegatronSource
from penstock.store import find, progress
from penstock.store.local import LocalStore
from penstock.store.place import place_of
from penstock.view import facts
from penstock.view.facts import bounds, opening, scan
from penstock.view.pages import datasets, targets
from penstock.view.pages.patience import Late, Patience

MOST_PAGE_BYTES = 4 << 20
HOLD_SECONDS = 300
"""Longer than a test waits for anything on a busy machine."""


def lines(path: Path, count: int = 40) -> Path:
    path.write_text("".join(json.dumps({"text": f"line {n}"}) + "\n" for n in range(count)))
    ps.index(path)
    return path


def tars(folder: Path, parts: dict[str, bytes]) -> Path:
    with ps.create(folder, format="webdataset") as writer:
        writer.write({"__key__": "one", **parts})
        writer.write({"__key__": "two", "txt": b"the other one"})
    return folder


def test_a_broken_sample_stands_in_its_place(tmp_path: Path, pages: Ask) -> None:
    path = lines(tmp_path / "a.jsonl")
    path.write_bytes(path.read_bytes().replace(b'{"text": "line 7"}', b'{"text": "line 7" '))
    page = pages(path).get("/d/a.jsonl/samples?n=20").text
    assert page.count("not valid JSON") == 1
    assert {f"line {n}" for n in range(20)} <= set(re.findall(r"line \d+", page))


RIGHT_TO_LEFT, ESCAPE = "\u202e", "\x1b"


@pytest.mark.parametrize("name", [b"b\xffad.jsonl", "\u202e\u2066a\x1b]0;b\x07.jsonl".encode(), b"a\nb.jsonl"])
def test_names_of_any_bytes(tmp_path: Path, pages: Ask, name: bytes) -> None:
    """Names that aren't UTF-8, or hold control characters, are escaped wherever a page has them, titles included."""
    other = lines(tmp_path / "plain.jsonl")
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    path.write_bytes(other.read_bytes())
    ps.index(path)
    client = pages(path, other)
    target = next(one.name for one in client.app.state.site.targets if one.name != "plain.jsonl")  # type: ignore[attr-defined]
    ways = ("", "samples", "samples?as=table", "sample/0", "tokens", "find?text=line", "health", "compare", "sample/99")
    ways = (*ways, "lengths.csv", "shards.csv", "part/0/no", "samples?split=no", "samples?at=nothing")
    for way in ("/", "/shelf", *(f"/d/{target}/{one}" for one in ways)):
        answered = client.get(way)
        assert answered.status_code < 500, way
        assert not set(answered.text) & {*map(chr, range(9)), ESCAPE, RIGHT_TO_LEFT, "\u2066", "\ufffd"}, way
    titles = re.findall("<title>(.*?)</title>", client.get(f"/d/{target}/").text)
    assert len(titles) == 1


@pytest.mark.parametrize("number", ["9" * 4301, "9" * 30, "٣", "x", "-1"])
@pytest.mark.parametrize("page", ["sample/{}", "part/{}/text", "small/{}/text", "tokens?index={}", "samples?start={}"])
def test_numbers_of_any_length(tmp_path: Path, pages: Ask, page: str, number: str) -> None:
    client = pages(lines(tmp_path / "a.jsonl"))
    assert client.get(f"/d/a.jsonl/{page.format(number)}").status_code in (400, 404)


def test_a_missing_shard(tmp_path: Path, pages: Ask) -> None:
    with ps.create(tmp_path / "mds", format="mds", columns={"n": "int", "text": "str"}, size_limit=2000) as writer:
        for number in range(200):
            writer.write({"n": number, "text": "x" * 40})
    shards = sorted((tmp_path / "mds").glob("shard*.mds"))
    assert len(shards) > 3
    client = pages(tmp_path / "mds")
    shards[1].unlink()
    page = client.get("/d/mds/samples?n=100").text
    assert "shard.00001" in page
    assert 'id="s99"' in page
    assert client.get("/d/mds/").status_code == 200


def test_a_store_that_does_not_answer(tmp_path: Path, pages: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    client = pages(lines(tmp_path / "a.jsonl"), lines(tmp_path / "b.jsonl"))
    hangs, plain = threading.Event(), datasets.facts.sample_at

    def sample_at(opened: object, index: int, **how: object) -> object:
        if getattr(opened, "name", "").endswith("a.jsonl") and index == 3:
            hangs.wait(20)
        return plain(opened, index, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(datasets.facts, "sample_at", sample_at)
    monkeypatch.setattr(datasets, "WAIT_SECONDS", 0.5)
    try:
        page = client.get("/d/a.jsonl/samples?n=10").text
        assert page.count("loading timed out") >= 1
        assert "line 0" in page
        assert client.get("/d/a.jsonl/sample/3").status_code == 202
        assert "line 3" in client.get("/d/b.jsonl/sample/3").text
    finally:
        hangs.set()
    assert "line 3" in client.get("/d/a.jsonl/sample/3").text


def test_what_goes_on_is_not_begun_again() -> None:
    import asyncio

    begun: list[int] = []
    go = threading.Event()

    def work() -> str:
        begun.append(1)
        go.wait(20)
        return "done"

    async def ask() -> str:
        patience = Patience("test")
        for _ in range(3):
            with pytest.raises(Late):
                await patience.within(0.01, "key", work)
        go.set()
        return await patience.within(20, "key", work)

    assert asyncio.run(ask()) == "done"
    assert begun == [1]


def test_a_tokenizer_that_does_not_fit(tmp_path: Path, pages: Ask) -> None:
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=4, eos_id=0) as writer:
        writer.write({"tokens": np.array([5, 3_000_000, 0], "u4")})
    page = pages(tmp_path / "a.pbin", tokenizer=TOKENIZER).get("/d/a.pbin/tokens?index=0").text
    assert "no such id in this tokenizer" in page
    assert "3000000" in page
    missing = pages(tmp_path / "a.pbin", tokenizer=str(tmp_path / "none")).get("/d/a.pbin/tokens?index=0")
    assert missing.status_code in (200, 404)
    assert 'role="alert"' in missing.text


def test_a_file_that_changes(tmp_path: Path, pages: Ask) -> None:
    path = lines(tmp_path / "a.jsonl")
    client = pages(path)
    assert "line 39" in client.get("/d/a.jsonl/samples?start=30").text
    (tmp_path / "a.idx").unlink()
    lines(path, 60)
    assert "line 59" in client.get("/d/a.jsonl/samples?start=50").text
    path.write_bytes(path.read_bytes()[:100])
    for page in ("", "samples", "samples?start=50", "sample/59", "find?text=1", "tokens"):
        assert client.get(f"/d/a.jsonl/{page}").status_code in (200, 400), page
    path.unlink()
    assert client.get("/d/a.jsonl/").status_code == 404


def test_tokens_that_are_cut_short(tmp_path: Path, pages: Ask) -> None:
    with ps.create(tmp_path / "a.bin", format="megatron", token_bytes=2) as writer:
        for _ in range(50):
            writer.write({"tokens": np.arange(1, 2000, dtype="u2")})
    client = pages(tmp_path / "a.bin")
    assert client.get("/d/a.bin/tokens?index=49").status_code == 200
    with open(tmp_path / "a.bin", "r+b") as file:
        file.truncate(5000)
    for page in ("", "samples?start=40", "sample/49", "tokens?index=49"):
        assert client.get(f"/d/a.bin/{page}").status_code == 200


def test_very_many_parts_and_very_long_text(tmp_path: Path, pages: Ask) -> None:
    with (tmp_path / "a.jsonl").open("w") as file:
        file.write(json.dumps({f"f{n}": n for n in range(100_000)}) + "\n")
        file.write(json.dumps({"text": "word " * 1_000_000}) + "\n")
        file.write('{"text": "' + "x" * 20_000_000 + '"}\n')
        file.write('{"text": "the last"}\n')
    client = pages(tmp_path / "a.jsonl")
    page = client.get("/d/a.jsonl/samples").text
    assert len(page) < MOST_PAGE_BYTES
    assert "99,936 more parts" in page
    assert "the last" in page
    for index in range(3):
        assert len(client.get(f"/d/a.jsonl/sample/{index}").text) < MOST_PAGE_BYTES


def test_a_picture_of_a_billion_pixels_and_a_film_without_frames(tmp_path: Path, pages: Ask) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0))
    huge = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" * 10_000)) + chunk(b"IEND", b"")
    film = b"\0\0\0\x18ftypisom\0\0\2\0isomiso2" + b"\0\0\0\x08mdat"
    client = pages(tars(tmp_path / "tars", {"png": huge, "mp4": film, "jpg": b"\xff\xd8\xff\xe0 cut"}))
    for page in ("samples", "samples?as=grid", "sample/0"):
        text = client.get(f"/d/tars/{page}").text
        assert "40,000 × 40,000 pixels: too large for a preview" in text
        assert "small/0/png" not in text
    small = client.get("/d/tars/small/0/png")
    assert small.headers["content-type"] == "image/svg+xml"
    assert client.get("/d/tars/sample/1").text.count("the other one") == 1


def test_ranges_of_a_part(tmp_path: Path, pages: Ask) -> None:
    sound = b"RIFF\x24\x10\0\0WAVEfmt " + bytes(range(256)) * 16
    client = pages(tars(tmp_path / "tars", {"wav": sound}))
    whole = client.get("/d/tars/part/0/wav")
    assert (whole.status_code, whole.content, whole.headers["accept-ranges"]) == (200, sound, "bytes")
    for asked, expected in {"bytes=0-9": sound[:10], "bytes=100-": sound[100:], "bytes=-5": sound[-5:]}.items():
        answer = client.get("/d/tars/part/0/wav", headers={"range": asked})
        assert (answer.status_code, answer.content) == (206, expected)
        assert answer.headers["content-range"].endswith(f"/{len(sound)}")
    assert client.get("/d/tars/part/0/wav", headers={"range": "bytes=99999-"}).status_code == 416
    assert client.head("/d/tars/part/0/wav").headers["content-length"] == str(len(sound))


def test_without_an_index_by_share(tmp_path: Path, pages: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"line {n:04}"}) + "\n" for n in range(1000)) + "{broken\n")
    monkeypatch.setattr(bounds, "MOST_SCANNED_BYTES", 100)
    client = pages(path)
    front = client.get("/").text
    assert "penstock index" in front
    page = client.get("/d/a.jsonl/samples?at=50%25").text
    assert "line 0500" in page or "line 0501" in page
    assert "line 0498" not in page
    found: list[str] = []
    link: str | None = "?byte=0"
    while link:
        page = client.get(f"/d/a.jsonl/samples{link}").text
        found += re.findall(r"line \d{4}", page)
        on = re.search(r'href="(\?byte=\d+)[^"]*" rel="next"', page)
        link = on[1] if on else None
    assert found == [f"line {n:04}" for n in range(1000)]
    assert "{broken" in page
    assert "End<" in page
    for page in ("sample/3", "tokens?index=3", "find?text=line", "find?index=3"):
        assert re.search("no index|index, which doesn't exist", client.get(f"/d/a.jsonl/{page}").text), page
    assert client.get("/").text == front, "nothing was looked through meanwhile"


def test_a_tar_of_very_many_parts(tmp_path: Path, pages: Ask) -> None:
    (tmp_path / "tars").mkdir()
    with tarfile.open(tmp_path / "tars" / "a.tar", "w") as tar:
        for number in range(3000):
            info = tarfile.TarInfo(f"one.p{number}.txt")
            info.size = 1
            tar.addfile(info, io.BytesIO(b"x"))
    ps.prepare(tmp_path / "tars", split_ratio=[1, 0, 0])
    page = pages(tmp_path / "tars").get("/d/tars/samples").text
    assert len(page) < MOST_PAGE_BYTES
    assert "more parts" in page


def test_a_billion_documents(tmp_path: Path, pages: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """No page works out where each of them begins; the files are nearly all holes."""
    count, first = 10**9, struct.pack("<3i", 5, 7, 9)
    with (tmp_path / "a.idx").open("wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1) + first)
        lengths = 34
        pointers, borders = lengths + 4 * count, lengths + 12 * count
        file.truncate(borders + 8 * (count + 1))
        file.seek(pointers)
        file.write(struct.pack("<3q", 0, 10, 24))
        file.seek(borders)
        file.write(struct.pack("<4q", 0, 1, 2, 3))
        file.seek(borders + 8 * count)
        file.write(struct.pack("<q", count))
    (tmp_path / "a.bin").write_bytes(np.arange(1, 22, dtype="u2").tobytes())
    asked: list[object] = []
    monkeypatch.setattr(MegatronSource, "_find_starts", asked.append)
    client = pages(tmp_path / "a.bin")
    front = client.get("/")
    assert (front.status_code, "1,000,000,000" in front.text) == (200, True)
    assert "number of ids in the file" in front.text
    for page in ("samples", "samples?at=73%25", "sample/1", "sample/500000000", "tokens?index=1", "find?index=5"):
        assert client.get(f"/d/a.bin/{page}").status_code == 200, page
    assert asked == []


def shards(folder: Path, count: int = 12) -> Path:
    with ps.create(folder, format="mds", columns={"n": "int"}, size_limit=200) as writer:
        for number in range(count * 8):
            writer.write({"n": number})
    return folder


def until_there(client: TestClient, path: str) -> str:
    """The page, once it is no longer being read."""
    for _ in range(200):
        found = client.get(path)
        if found.status_code != 202:
            return found.text
        time.sleep(0.02)
    raise AssertionError("it is never there")


def test_a_large_index_is_read_while_pages_say_so(tmp_path: Path, pages: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for what this host sees for the first time: neither who starts the viewer, nor the first page."""
    go, plain = threading.Event(), index_table._put_table
    put = lambda *given: go.wait(60) and plain(*given)  # noqa: E731
    monkeypatch.setattr(index_table, "_put_table", put)
    monkeypatch.setattr(index_table, "_SMALL_BYTES", 100)
    try:
        client = pages(shards(tmp_path / "mds"))
        for page in ("", "d/mds/", "d/mds/samples", "d/mds/sample/3"):
            answer = client.get(f"/{page}")
            assert (answer.status_code, "Still loading" in answer.text) == (202, True), page
        assert client.get("/static/style.css").status_code == 200
    finally:
        go.set()
    assert "96" in until_there(client, "/")


@pytest.mark.parametrize("is_folder", [False, True])
def test_data_that_are_silent_at_first(
    is_folder: bool, tmp_path: Path, pages: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shards(tmp_path / "data") if is_folder else lines(tmp_path / "data")
    go, plain = threading.Event(), targets.open_target
    opened: list[object] = []

    def open_target(*given: object, **how: object) -> object:
        opened.append(given)
        go.wait(60)
        return plain(*given, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(targets, "open_target", open_target)
    monkeypatch.setattr(targets, "START_SECONDS", 0.05)
    try:
        client = pages(path)
        assert [client.get("/").status_code for _ in range(2)] == [202, 202]
    finally:
        go.set()
    assert "/data" in until_there(client, "/")
    assert len(opened) == 1, "it is opened once, whoever asks meanwhile"


def test_what_is_no_dataset_is_said_before_anything_is_served(tmp_path: Path, pages: Ask) -> None:
    (tmp_path / "notes.txt").write_text("nothing to see")
    with pytest.raises(Unsupported):
        pages(tmp_path / "notes.txt")
    with pytest.raises(NotFound):
        pages(tmp_path / "gone.jsonl")


@pytest.mark.parametrize("count", [30, 300])
def test_many_files_are_asked_for_their_sizes_once(
    count: int, tmp_path: Path, pages: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(count):
        (tmp_path / f"part-{number:04}.jsonl").write_text(f'{{"text": "line {number:04}"}}\n')
    monkeypatch.setattr(bounds, "MOST_SCANNED_BYTES", 10)
    client = pages(tmp_path)
    assert "penstock index" in client.get("/").text
    name = next(iter(client.app.state.site.targets)).name  # type: ignore[attr-defined]
    assert client.get(f"/d/{name}/samples").status_code == 200
    asked: list[str] = []
    for one in ("size", "exists"):
        plain = getattr(LocalStore, one)
        note = lambda store, path, plain=plain: (asked.append(path), plain(store, path))[1]  # noqa: E731
        monkeypatch.setattr(LocalStore, one, note)
    states = text._local_state
    monkeypatch.setattr(text, "_local_state", lambda path, *more: (asked.append(path), states(path, *more))[1])
    page = client.get(f"/d/{name}/samples?at=50%25").text
    assert f"line {count // 2:04}" in page
    assert len(asked) < 20, "as many as of ten times the files"


def test_a_folder_of_very_many_files_is_looked_at_while_it_is_listed(
    tmp_path: Path, pages: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages say how far that is, and show the first files; then all of them."""
    for number in range(60):
        (tmp_path / f"part-{number:04}.jsonl").write_text(f'{{"text": "line {number:04}"}}\n')
    monkeypatch.setattr(find, "_MANY_FILES", 20)
    monkeypatch.setattr(progress, "_EVERY", 10)
    monkeypatch.setattr(opening, "MOST_FILES", 30)
    monkeypatch.setattr(targets, "MOST_AT_ONCE", 10)
    monkeypatch.setattr(bounds, "MOST_SCANNED_BYTES", 10)
    monkeypatch.setattr(datasets, "WAIT_SECONDS", 2 * HOLD_SECONDS)  # a page that waited would be the final one
    monkeypatch.setattr(targets, "WAIT_SECONDS", 2 * HOLD_SECONDS)
    listed, go, local_states = threading.Event(), threading.Event(), text._local_states

    def states(paths: Sequence[str]) -> Iterator[tuple[int, str]]:
        if len(paths) == 60:
            listed.set()
            go.wait(HOLD_SECONDS)
        return local_states(paths)

    monkeypatch.setattr(text, "_local_states", states)
    try:
        client = pages(tmp_path)
        assert listed.wait(HOLD_SECONDS)
        name = next(iter(client.app.state.site.targets)).name  # type: ignore[attr-defined]
        first = client.get("/")
        assert (first.status_code, "60 files listed so far" in first.text) == (202, True)
        assert "Show the first files" in first.text
        shown = client.get(f"/d/{name}/samples?n=7").text
        assert "in the first 30 files" in shown
        assert len(set(re.findall(r"line \d{4}", shown))) == 7
        on = re.search(r'href="\?[^"]*byte=(\d+)[^"]*" rel="next"', shown)
        assert on is not None
        assert len(set(re.findall(r"line \d{4}", client.get(f"/d/{name}/samples?byte={on[1]}&n=50").text))) == 23
        assert "60 files listed so far" in client.get(f"/d/{name}/samples?part=far").text
    finally:
        go.set()
    assert "penstock index" in until_there(client, "/")
    shown = client.get(f"/d/{name}/samples?at=50%25&n=200").text
    assert sorted(set(re.findall(r"line \d{4}", shown))) == [f"line {n:04}" for n in range(30, 60)]
    assert client.get(f"/d/{name}/samples?part=far").headers["hx-refresh"] == "true"
    assert "60 files" in client.get("/").text


def test_links_out_of_a_folder_are_not_shown_while_it_is_listed(tmp_path: Path) -> None:
    (tmp_path / "secret.jsonl").write_text('{"text": "not theirs"}\n')
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text('{"text": "theirs"}\n')
    (tmp_path / "data" / "b.jsonl").symlink_to(tmp_path / "secret.jsonl")
    found = opening.first_files_of(place_of(tmp_path / "data"))
    assert found is not None
    assert found.text_files is not None
    assert [Path(one).name for one in found.text_files[1]] == ["a.jsonl"]


def test_by_share_lines_of_several_files_and_the_beginnings_of_compressed_ones(
    tmp_path: Path, pages: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [json.dumps({"text": f"line {n:04}"}) + "\n" for n in range(60)]
    (tmp_path / "a.jsonl").write_text("".join(rows[:20]))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress("".join(rows[20:50]).encode()))
    (tmp_path / "c.jsonl.gz").write_bytes(b"no gzip at all")
    (tmp_path / "d.jsonl").write_text("")
    (tmp_path / "e.jsonl").write_text("".join(rows[50:]))
    monkeypatch.setattr(bounds, "MOST_SCANNED_BYTES", 10)
    client = pages(tmp_path)
    page = client.get(f"/d/{tmp_path.name}/samples?at=0%25").text
    found = re.findall(r"line \d{4}", page)
    assert found == [f"line {n:04}" for n in (*range(20), *range(20, 28), *range(50, 60))]
    assert "compressed: first 8 lines" in page
    assert page.count('class="broken"') == 1
    assert "End<" in page
    size = (tmp_path / "a.jsonl").stat().st_size
    middle = client.get(f"/d/{tmp_path.name}/samples?byte={size + 30}").text
    assert re.findall(r"line \d{4}", middle)[0] == "line 0020"


@pytest.mark.parametrize("by", ["text=line", "where=__key__ != 'k'", "key=3"])
@pytest.mark.parametrize("format", ["jsonl", "webdataset"])
def test_find_does_not_read_what_is_too_large(
    by: str, format: str, tmp_path: Path, pages: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands in its place as not looked at, and the others are found."""
    if format == "jsonl":
        rows = [json.dumps({"text": "x" * 5000 if number in (1, 2, 5) else f"line {number}"}) for number in range(6)]
        (tmp_path / "data").write_text("\n".join(rows) + "\n")
    else:
        with ps.create(tmp_path / "data", format="webdataset") as writer:
            for number in range(6):
                text = "x" * 5000 if number in (1, 2, 5) else f"line {number}"
                writer.write({"__key__": f"k{number}", "txt": text.encode()})
    for name in ("MOST_SAMPLE_BYTES", "MOST_JSON_BYTES"):
        monkeypatch.setattr(bounds, name, 3000)
    read: list[tuple[int, int]] = []
    plain = scan.hits_in

    def hits_in(one: Any, wanted: Any, start: int, stop: int, limit: int | None) -> Any:
        read.append((start, stop))
        return plain(one, wanted, start, stop, limit)

    monkeypatch.setattr(scan, "hits_in", hits_in)
    client = pages(tmp_path / "data")
    page = client.get(f"/d/data/find?{by}").text
    if read:  # tars have an index of keys
        assert {index for start, stop in read for index in range(start, stop)} == {0, 3, 4}
        assert page.count("skipped: ") == 3
        assert "All 6 samples searched" not in page


def test_a_look_ends_after_so_many_that_are_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "x" * 50 if n % 3 else "hit"}) + "\n" for n in range(40)))
    monkeypatch.setattr(bounds, "MOST_JSON_BYTES", 40)
    for most in (1, 2, 3, 7, 100):
        monkeypatch.setattr(scan, "MOST_HITS", most)
        found, start = list[scan.FoundAt](), 0
        for _ in range(60):
            one = scan.scan(facts.open_target(path), scan.Wish("text", "hit"), start, 10)
            assert len(one.hits) <= most
            found, start = [*found, *one.hits], one.stop
            if one.is_over:
                break
        assert [each.index for each in found] == list(range(40)), most
        assert [each.unread_bytes is None for each in found] == [number % 3 == 0 for number in range(40)]


def test_a_damaged_picture_says_so_and_controls_are_seen(tmp_path: Path, pages: Ask) -> None:
    import PIL.Image

    out = io.BytesIO()
    PIL.Image.effect_noise((40, 30), 90).save(out, "JPEG")
    with ps.create(tmp_path / "tars", format="webdataset") as writer:
        writer.write(
            {
                "__key__": "a",
                "jpg": out.getvalue()[:-200],
                "txt": "NUL\0 and \u202eturned\u202c, and more words".encode(),
            }
        )
        writer.write({"__key__": "b", "jpg": out.getvalue(), "json": b'{"x": "\\u0000\\u202e"}'})
    client = pages(tmp_path / "tars")
    assert "damaged" in client.get("/d/tars/small/0/jpg").text
    assert client.get("/d/tars/small/1/jpg").headers["content-type"] == "image/jpeg"
    for way in ("samples", "sample/0", "samples?as=table", "samples?as=grid"):
        page = client.get(f"/d/tars/{way}").text
        assert "\0" not in page
        assert "\u202e" not in page
        assert "NUL\\x00 and \\u202eturned\\u202c" in page
    assert "\\x00\\u202e" in client.get("/d/tars/sample/1").text
    ps.report(tmp_path / "tars", tmp_path / "tars.html", examples=2)
    assert "an image is damaged" in (tmp_path / "tars.html").read_text()
