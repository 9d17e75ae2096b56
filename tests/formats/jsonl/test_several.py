"""Several JSONL files, and compressed ones, are one dataset: its lines are those of all files, in order."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError, Truncated, Unsupported
from penstock.formats import get_format
from penstock.formats.jsonl import several, text
from penstock.formats.jsonl.text import Text
from penstock.store import LocalStore, put
from penstock.testing import CountingStore
from penstock.testing.elsewhere import in_a_fork
from penstock.testing.faults import FaultStore
from penstock.types import OpenOptions


def lines(start: int, count: int) -> list[bytes]:
    return [json.dumps({"n": n, "t": "é" * (n % 40)}, ensure_ascii=False).encode() for n in range(start, start + count)]


def packed(name: str, data: bytes, members: int = 1) -> bytes:
    """`data`, compressed as the name says, in so many members or frames."""
    step = -(-len(data) // members) or 1
    pieces = [data[at : at + step] for at in range(0, len(data), step)] or [b""]
    if name.endswith(".gz"):
        return b"".join(gzip.compress(piece, 1) for piece in pieces)
    if name.endswith(".zst"):
        return b"".join(zstandard.ZstdCompressor(1).compress(piece) for piece in pieces)
    return data


def write(folder: Path, files: dict[str, int], members: int = 1) -> list[int]:
    """Files with so many lines each; returns the numbers of the lines in byte order of the names."""
    first, numbers = 0, dict[str, list[int]]()
    for name, count in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = b"\n".join(lines(first, count)) + (b"\n" if count and first % 2 else b"")
        path.write_bytes(packed(name, data, members))
        numbers[name] = list(range(first, first + count))
        first += count
    return [number for name in sorted(numbers, key=os.fsencode) for number in numbers[name]]


def numbers_of(source: Any) -> list[int]:
    return [int(n) for n in source.get_batch(range(len(source)))["n"]]


FILES = {"b.jsonl": 30, "a.jsonl.gz": 51, "sub/c.ndjson": 7, "sub/a.jsonl.zst": 40, "z.jsonl": 1, ".hidden.jsonl": 3}


def test_a_folder_a_pattern_and_a_list(tmp_path: Path) -> None:
    expected = [n for n in write(tmp_path, FILES) if n < 129]
    folder = ps.open(tmp_path)
    assert numbers_of(folder) == expected
    assert [folder[place]["n"] for place in range(len(folder))] == expected
    assert numbers_of(ps.open(f"{tmp_path}/**/*.jsonl*")) == [n for n in expected if not 81 <= n < 88]
    both = ps.open([tmp_path / "sub", tmp_path / "b.jsonl"])
    assert numbers_of(both) == [*range(30), *range(88, 128), *range(81, 88)]
    for source in (folder, both):
        again = pickle.loads(pickle.dumps(source))
        assert (again.fingerprint, again[0]) == (source.fingerprint, source[0])
        assert numbers_of(ps.open_recipe(source.recipe())) == numbers_of(source)
    (tmp_path / "sub" / "mix.yaml").write_text("path: [../b.jsonl, .]\n")
    assert numbers_of(ps.open_recipe(tmp_path / "sub" / "mix.yaml")) == numbers_of(both)
    (tmp_path / "sub" / "mix.yaml").unlink()
    in_a_fork(lambda: numbers_of(folder))
    kept = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert kept == sorted(FILES), "something was written beside the files"


def test_places_are_those_in_the_files(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    source = ps.open(tmp_path)
    for index in range(len(source)):
        place = source.place_of(index)
        if place.extents is not None:
            [extent] = place.extents
            with open(extent.path, "rb") as file:
                file.seek(extent.offset_bytes)
                assert json.loads(file.read(extent.length_bytes)) == source[index]
    assert sum(source.place_of(index).extents is None for index in range(len(source))) == 91


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    counts=st.lists(st.integers(0, 25), min_size=1, max_size=5),
    suffixes=st.lists(st.sampled_from(["", ".gz", ".zst"]), min_size=5, max_size=5),
    members=st.integers(1, 4),
    seed=st.integers(0, 1 << 30),
)
def test_any_files_are_as_their_lines(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], suffixes: list[str], members: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("raw")
    expected = write(folder, {f"f{i}.jsonl{suffixes[i]}": count for i, count in enumerate(counts)}, members)
    source = ps.open(folder)
    assert len(source) == len(expected)
    chosen = random.Random(seed).choices(range(len(expected)), k=20) if expected else []
    assert [source[index]["n"] for index in chosen] == [expected[index] for index in chosen]
    if chosen:
        assert [int(n) for n in source.get_batch(chosen)["n"]] == [expected[index] for index in chosen]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
@pytest.mark.parametrize("members", [1, 7])
def test_a_compressed_file_in_any_order(
    name: str, members: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "_BLOCK_BYTES", 1 << 12)
    monkeypatch.setattr(text, "_START_EVERY_BYTES", 1 << 13)
    monkeypatch.setattr(text, "_MOST_STARTS", 8)
    write(tmp_path, {name: 5000}, members)
    source = ps.open(tmp_path / name)
    assert numbers_of(source) == list(range(5000))
    chosen = np.random.default_rng(1).integers(0, 5000, 300).tolist()
    assert [source[index]["n"] for index in chosen] == chosen
    assert [sample["n"] for sample in (source[index] for index in range(4990, 5000))] == list(range(4990, 5000))
    assert source.preferred_mode == "blocks"


def test_read_in_order_it_is_decompressed_once(tmp_path: Path) -> None:
    """Bytes read grow as the file does: not with its square."""

    def read_bytes(count: int) -> int:
        write(tmp_path, {f"{count}.jsonl.zst": count})
        path = str(tmp_path / f"{count}.jsonl.zst")
        store = CountingStore(LocalStore())
        whole = Text(store, path, [path])
        found = whole.lines()
        for start, length in found.tolist():
            whole.get_ranges(path, [(start, start + length)])
        return store.read_bytes

    assert read_bytes(20_000) <= 12 * read_bytes(2_000)


def test_what_is_kept_does_not_grow_with_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One array for all of them, and no more files open than one."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))

    def kept(count: int) -> int:
        write(tmp_path / str(count), {f"{n}.jsonl": 2 for n in range(count)})
        before = len(os.listdir("/proc/self/fd"))
        source = ps.open(tmp_path / str(count))
        assert len(numbers_of(source)) == 2 * count
        assert len(os.listdir("/proc/self/fd")) <= before + 3
        return len(list((tmp_path / "cache").rglob("*.npy")))

    assert (kept(4), kept(40)) == (1, 2)


def test_verbs_take_them(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    expected = write(raw, {"a.jsonl": 30, "b.jsonl.gz": 30, "c.jsonl.zst": 30})
    kept = ps.filter(raw, tmp_path / "kept.jsonl", where="n < 70")
    assert kept is not None
    assert numbers_of(ps.open(tmp_path / "kept.jsonl")) == [n for n in expected if n < 70]
    ps.merge([raw, tmp_path / "kept.jsonl"], tmp_path / "all.jsonl")
    assert len(ps.open(tmp_path / "all.jsonl")) == 160
    ps.shuffle(raw, tmp_path / "shuffled.jsonl", seed=3)
    assert sorted(numbers_of(ps.open(tmp_path / "shuffled.jsonl"))) == expected
    ps.convert(raw, tmp_path / "mds", to="mds")
    assert numbers_of(ps.open(tmp_path / "mds")) == expected
    assert ps.verify(raw, depth="full") == []
    with pytest.raises(ConfigError, match="is inside an input"):
        ps.filter(raw, raw / "kept.jsonl", where="n < 70")


class TestRefused:
    def test_other_data_in_the_folder(self, tmp_path: Path) -> None:
        write(tmp_path, {"a.jsonl": 3})
        (tmp_path / "b.npy").write_bytes(b"")
        with pytest.raises(Unsupported, match=r"JSONL files and other data \(b.npy\)"):
            ps.open(tmp_path)
        assert len(ps.open(f"{tmp_path}/*.jsonl")) == 3

    def test_what_is_not_there(self, tmp_path: Path) -> None:
        for asked in (f"{tmp_path}/*.jsonl", [tmp_path / "a.jsonl"]):
            with pytest.raises(NotFound):
                ps.open(asked)
        with pytest.raises(ConfigError, match="no path"):
            ps.open([])

    def test_a_file_twice(self, tmp_path: Path) -> None:
        write(tmp_path, {"a.jsonl": 3})
        with pytest.raises(ConfigError, match="listed twice"):
            ps.open([tmp_path / "a.jsonl", tmp_path])

    def test_options_that_need_one_plain_file(self, tmp_path: Path) -> None:
        write(tmp_path, {"a.jsonl.gz": 3})
        for options in ({"flavor": "energon"}, {"read": "mmap"}):
            with pytest.raises(Unsupported):
                ps.open(tmp_path / "a.jsonl.gz", **options)  # pyright: ignore[reportArgumentType]
        with pytest.raises(ConfigError, match="without compression"):
            ps.create(tmp_path / "b.jsonl.gz", format="jsonl")

    @pytest.mark.parametrize("suffix", [".gz", ".zst"])
    def test_damage_names_the_file(self, suffix: str, tmp_path: Path) -> None:
        write(tmp_path, {"a.jsonl": 3, f"b.jsonl{suffix}": 4000})
        path = tmp_path / f"b.jsonl{suffix}"
        path.write_bytes(path.read_bytes()[:-9])
        for read in (lambda: len(ps.open(tmp_path)), lambda: len(ps.open(path))):
            with pytest.raises(Truncated, match=f"b.jsonl{suffix}"):
                read()
        (finding,) = ps.verify(path, depth="full")
        assert finding.path == str(path)

    def test_a_faulty_line_names_its_file_and_place(self, tmp_path: Path) -> None:
        write(tmp_path, {"a.jsonl": 3})
        good = b"\n".join(lines(0, 9)) + b"\n"
        (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(good + b"faulty\n"))
        with pytest.raises(Corrupt, match="line 10 ") as caught:
            len(ps.open(tmp_path))
        assert (caught.value.path, caught.value.offset_bytes) == (str(tmp_path / "b.jsonl.gz"), len(good))


def test_an_index_beside_counts(tmp_path: Path) -> None:
    write(tmp_path, {"a.jsonl": 9, "b.jsonl": 9})
    assert len(ps.open(tmp_path)) == 18
    pairs = ps.open(tmp_path / "b.jsonl").line_ranges()[:4].tolist()  # pyright: ignore[reportAttributeAccessIssue]
    (tmp_path / "b.idx").write_bytes(pickle.dumps([tuple(pair) for pair in pairs], 4))
    with pytest.raises(Corrupt, match=r"b\.idx"):  # it lacks the lines behind: which of the two is wrong?
        len(ps.open(tmp_path))


def test_an_absolute_path_and_one_that_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.jsonl"):
        Path(name).write_bytes(b"".join(one + b"\n" for one in lines(0, 3)))
    whole = ps.open(["a.jsonl", "b.jsonl"])
    assert ps.open([f"{tmp_path}/a.jsonl", "b.jsonl"]).fingerprint == whole.fingerprint
    ps.shuffle(["a.jsonl", f"{tmp_path}/b.jsonl"], "out.jsonl", seed=1)
    assert len(ps.open("out.jsonl")) == len(whole)


# --- many small files, each read once -------------------------------------------------------------------------------


def damaged(folder: Path) -> Path:
    """Twenty small files with indexes and side files, and what may be wrong with these."""
    write(folder, {f"{number:02d}.jsonl": 30 for number in range(20)})
    ps.index(folder)
    for number in range(8):
        get_format("jsonl").write_manifest(LocalStore(), str(folder / f"{number:02d}.jsonl"), OpenOptions())  # type: ignore[attr-defined]

    def index(number: int) -> Path:
        return folder / f"{number:02d}.idx"

    def side(number: int) -> Path:
        return folder / f"{number:02d}.jsonl.penstock"

    index(1).write_bytes(b"")
    index(2).write_bytes(index(2).read_bytes()[:40])
    index(3).write_bytes(b"MMIDIDX\0\0" + bytes(40))
    index(4).unlink()
    index(5).rename(folder / "05.idx.next")
    side(0).write_bytes(b"")
    side(2).write_bytes(b'{"penstock"')
    side(6).rename(folder / "06.jsonl.penstock.next")
    side(7).unlink()
    side(7).symlink_to(folder / "nowhere")
    index(8).unlink()
    index(8).symlink_to(folder / "nowhere")
    with (folder / "06.jsonl").open("ab") as file:
        file.write(b'{"n": 0}\n')
    (folder / "09.jsonl").write_bytes(b"")
    (folder / "10.jsonl").write_bytes(b"\xff{]\n" + (folder / "10.jsonl").read_bytes())
    index(11).write_bytes(index(12).read_bytes())
    return folder


@pytest.mark.parametrize("depth", ["quick", "sample", "full"])
def test_what_is_found_of_many_is_what_is_found_of_each(
    depth: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = damaged(tmp_path / "raw")
    (folder / "08.idx").unlink()  # of an index that leads nowhere there are no findings, but an error
    store, options = LocalStore().within(str(folder)), OpenOptions()
    found = several.FORMAT.check(store, str(folder), options, depth)
    monkeypatch.setattr(several, "read_small", lambda store, *_: store)
    monkeypatch.setattr(put, "_WORTH_A_LISTING", 1000)
    assert several.FORMAT.check(store, str(folder), options, depth) == found
    assert len({finding.code for finding in found}) >= 4


@pytest.mark.parametrize("number", range(20))
def test_what_opens_of_many_is_what_opens_of_each(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = damaged(tmp_path / "raw")
    for other in range(20):
        if other != number:
            for path in folder.glob(f"{other:02d}.*"):
                path.unlink()
            (folder / f"{other:02d}.jsonl").write_text('{"n": 1}\n')

    def opened() -> Any:
        try:
            return [sample["n"] for sample in map(ps.open(folder).__getitem__, range(len(ps.open(folder))))]
        except PenstockError as error:
            return type(error), str(error)

    found = opened()
    monkeypatch.setattr(text, "read_small", lambda store, *_: store)
    monkeypatch.setattr(text, "_WHOLE_BYTES", 0)
    monkeypatch.setattr(put, "_WORTH_A_LISTING", 1000)
    for path in folder.iterdir():  # what is kept is kept of files as they are
        if path.exists():
            os.utime(path, ns=(number + 1, number + 1))
    assert opened() == found


def test_lines_of_a_small_file_are_read_by_one_open(tmp_path: Path) -> None:
    files = {f"{number:03d}.jsonl": 5 for number in range(100)}
    numbers = write(tmp_path, files)
    store = FaultStore()
    source = several.FORMAT.open(store, str(tmp_path), OpenOptions())
    assert [source[index]["n"] for index in range(len(source))] == numbers
    assert store.faults.calls.count("open") == 200  # where lines are, and the lines
    order = random.Random(0).sample(range(500), 500)
    assert [source[index]["n"] for index in order] == [numbers[index] for index in order]
    assert len(source._store._wholes) == text._MOST_WHOLE  # type: ignore[attr-defined]


def test_a_file_that_shrinks_is_missed(tmp_path: Path) -> None:
    write(tmp_path, {f"{number:02d}.jsonl": 5 for number in range(20)})
    source = ps.open(tmp_path)
    assert len(source) == 100
    (tmp_path / "07.jsonl").write_bytes(b"")
    with pytest.raises(Truncated, match=r"07\.jsonl"):
        source[35]


def test_other_processes_read_too(tmp_path: Path) -> None:
    numbers = write(tmp_path, {f"{number:02d}.jsonl": 5 for number in range(20)})
    source = ps.open(tmp_path)
    assert source[0]["n"] == numbers[0]

    def check() -> None:
        assert source[1]["n"] == numbers[1]

    in_a_fork(check)
    assert numbers_of(pickle.loads(pickle.dumps(source))) == numbers
