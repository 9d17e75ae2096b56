"""JSONL by Energon's rules: its index byte for byte, keys, parts, damage."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import ConfigError, Corrupt, NotFound
from penstock.formats import get_format
from penstock.formats.jsonl.energon import EnergonJsonlSource, encode_energon_index, scan_energon
from penstock.prepare.jsonl_index import build_index
from penstock.store.local import LocalStore
from penstock.store.memory import MemoryStore
from penstock.testing import FileServer
from penstock.testing.strategies import for_all
from penstock.types import OpenOptions

GOLDEN = Path(__file__).parents[2] / "golden" / "energon"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "jsonl.json").read_text(encoding="utf-8"))
GOOD = [name for name, one in EXPECTED.items() if "idx" in one]
LINES = b'{"a": 1}\n\n {"b": 2} \r\n{"c": [3]}'


def opened(path: Path, **options: Any) -> Any:
    return ps.open(path, flavor="energon", **options)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_index_is_the_original_s(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.jsonl"
    shutil.copyfile(GOLDEN / "jsonl" / path.name, path)
    if name not in GOOD:
        with pytest.raises(Corrupt):
            build_index(path, flavor="energon")
        assert [one.name for one in tmp_path.iterdir()] == [path.name]
        with pytest.raises(Corrupt):
            len(opened(path))
        return
    report = build_index(path, flavor="energon")
    assert report.index_path == f"{path}.idx"
    assert Path(report.index_path).read_bytes() == (GOLDEN / "jsonl" / f"{name}.jsonl.idx").read_bytes()
    assert report.num_lines == len(EXPECTED[name]["samples"])
    with pytest.raises(ConfigError):
        build_index(path, flavor="energon")


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("has_index", [True, False])
def test_samples_are_the_original_s(name: str, has_index: bool, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.jsonl"
    shutil.copyfile(GOLDEN / "jsonl" / path.name, path)
    if has_index:
        shutil.copyfile(GOLDEN / "jsonl" / f"{name}.jsonl.idx", f"{path}.idx")
    raw, source = opened(path, raw=True), opened(path)
    assert len(raw) == len(EXPECTED[name]["samples"])
    for index, (key, line, value) in enumerate(EXPECTED[name]["samples"]):
        sample = raw[index]
        assert list(sample) == ["__key__", "__restore_key__", "__sources__", "json", "__subflavors__"]
        assert sample["__key__"] == key == raw.key_of(index)
        assert sample["json"] == line.encode().strip()
        assert sample["__restore_key__"] == ("Webdataset", index)
        (told,) = sample["__sources__"]
        assert (told.shard_name, told.file_names, told.index) == (path.name, (f"{key}.json",), index)
        assert raw.get(f"{key}.json") == line.encode()
        assert raw.index_of(key) == index
        if value == "(invalid)" or name == "bad_json_but_braces":
            continue
        assert source[index]["json"] == value
    assert Path(f"{path}.idx").exists() == has_index
    assert raw.fingerprint == source.fingerprint == pickle.loads(pickle.dumps(raw)).fingerprint
    assert len(list(raw)) == len(raw)
    assert list(raw.get_batch([0])["json"]) == [raw[0]["json"]]


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{broken}\n')
    source = opened(path)
    assert source[0]["json"] == {"a": 1}
    assert opened(path, raw=True)[1]["json"] == b"{broken}"
    with pytest.raises(Corrupt, match="sample 1") as caught:
        source[1]
    assert caught.value.offset_bytes == 9
    assert caught.value.path == str(path)


@pytest.mark.parametrize("name", ["3", "3.json", "00.json", "-1.json", "0.txt", "0", "x.json", "", "²​.json"])
def test_names_that_are_not_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINES)
    source = opened(tmp_path / "a.jsonl")
    with pytest.raises(NotFound):
        source.get(name)
    with pytest.raises(NotFound):
        source.index_of("00")
    with pytest.raises(NotFound):
        source.get_media_metadata("0.json")


def by_hand(data: bytes) -> list[int] | None:
    """The rule, line by line."""
    starts, place = [], 0
    for line in data.split(b"\n"):
        text = line.strip()
        if text:
            if not (text.startswith(b"{") and text.endswith(b"}")):
                return None
            starts.append(place)
        place += len(line) + 1
    return [0, *starts[1:], len(data)] if starts else None


def test_the_scan_follows_the_rule() -> None:
    pieces = st.sampled_from(
        [b"{}", b"{", b"}", b" ", b"\r", b"\t{1}", b"\n", b"\n\n", b"{x}\r\n", b"\x0b", b"[", b'{"a": "\xe2\x80\xa8"}']
    )

    @for_all(st.lists(pieces, max_size=12), examples=300)
    def law(parts: list[bytes]) -> None:
        data = b"".join(parts)
        store = MemoryStore({"a": data})
        expected = by_hand(data)
        if expected is None:
            with pytest.raises(Corrupt):
                scan_energon(store, "a")
        else:
            assert scan_energon(store, "a").tolist() == expected


def test_many_lines_over_blocks() -> None:
    lines = [b'{"n": "%s"}' % (b"x" * (number * 37 % 4000)) + b"\n" * (1 + number % 3) for number in range(3000)]
    data = b"\n" + b"".join(lines)
    assert len(data) > 3 << 20
    assert scan_energon(MemoryStore({"a": data}), "a").tolist() == by_hand(data)


@pytest.mark.parametrize(
    "entries",
    [[], [0], [0, 8], [0, 30, 8, 33], [1, 11, 23, 33], [0, 11, 11, 33], [0, 11, 23, 34], [0, 1 << 63, 23, 33]],
)
def test_indexes_that_do_not_fit(tmp_path: Path, entries: list[int]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES)
    good = encode_energon_index(np.array(by_hand(LINES)))
    Path(f"{path}.idx").write_bytes(np.array(entries, np.uint64).tobytes())
    Path(f"{path}.idx.bak").write_bytes(b"of the user")
    with pytest.raises(Corrupt, match=r"a\.jsonl\.idx.*--flavor energon"):
        len(opened(path))
    one, store, options = get_format("jsonl"), LocalStore(), OpenOptions(flavor="energon")
    findings = list(one.check(store, str(path), options, "quick"))
    assert [finding.code for finding in findings] == ["jsonl.energon-index"]
    assert [action.done for action in one.repair(store, str(path), options, findings, write=True)] == [True]
    assert Path(f"{path}.idx").read_bytes() == good
    assert list(one.check(store, str(path), options, "full")) == []
    assert Path(f"{path}.idx.bak").read_bytes() == b"of the user"
    assert Path(f"{path}.idx.bak1").read_bytes() == np.array(entries, np.uint64).tobytes()


def test_check_finds_what_an_index_can_hide(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES)
    one, store, options = get_format("jsonl"), LocalStore(), OpenOptions(flavor="energon")
    assert [finding.code for finding in one.check(store, str(path), options, "full")] == ["jsonl.no-index"]
    build_index(path, flavor="energon")
    path.write_bytes(LINES.replace(b'{"b": 2} \r\n', b'{"b": 2}\n\n\n'))
    assert list(one.check(store, str(path), options, "quick")) == []
    path.write_bytes(LINES.replace(b"\n\n ", b"\n \n"))
    assert [finding.code for finding in one.check(store, str(path), options, "full")] == ["jsonl.energon-index"]
    path.write_bytes(LINES.replace(b'{"b"', b'{"b}'))
    assert [finding.code for finding in one.check(store, str(path), options, "sample")] == ["jsonl.invalid-line"]


def test_written_for_energon(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with ps.create(path, format="jsonl", flavor="energon") as writer:
        writer.write({"a": 1})
        writer.write({"__key__": "1", "json": {"b": "ü"}, "__sources__": ()})
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.jsonl", "a.jsonl.idx", "a.jsonl.penstock"]
    index = Path(f"{path}.idx").read_bytes()
    source = opened(path)
    assert isinstance(source, EnergonJsonlSource)
    assert [sample["json"] for sample in source] == [{"a": 1}, {"b": "ü"}]
    build_index(path, flavor="energon", overwrite=True)
    assert Path(f"{path}.idx").read_bytes() == index
    with pytest.raises(ConfigError), ps.create(tmp_path / "b.jsonl", format="jsonl", flavor="energon") as writer:
        writer.write({"__key__": "0", "json": [1]})
    assert ps.open(f"{path}.idx", flavor="energon")[1]["json"] == {"b": "ü"}


def test_a_folder_that_takes_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(LocalStore, "stage", refuse)
    assert [sample["__key__"] for sample in opened(path)] == ["0", "1", "2"]
    assert not Path(f"{path}.idx").exists()


def test_remote_ones_prefer_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    data = b'{"a": 1}\n{"a": 2}\n'
    (tmp_path / "a.jsonl").write_bytes(data)
    local: Any = ps.open(tmp_path / "a.jsonl", flavor="energon")
    with FileServer({"a.jsonl": data}) as server:
        remote: Any = ps.open(f"{server.url}/a.jsonl", flavor="energon")
        assert (local.preferred_mode, remote.preferred_mode) == ("global", "blocks")


@pytest.mark.parametrize("named", ["a.jsonl", "a.jsonl.idx"])
def test_an_index_that_is_there_is_checked_without_a_flavor(tmp_path: Path, named: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b": 2}\n{"c": 3}\n')
    build_index(path)
    build_index(path, flavor="energon")
    assert ps.verify(tmp_path / named) == []
    index = Path(f"{path}.idx")
    good = index.read_bytes()
    index.write_bytes(good[:16] + bytes([good[16] ^ 1]) + good[17:])
    [found] = ps.verify(tmp_path / named, depth="full")
    assert (found.code, found.severity, found.path) == ("jsonl.energon-index", "error", str(index))
    index.write_bytes(good[:-8])
    assert [action.done for action in ps.repair(tmp_path / named, write=True)] == [True]
    assert index.read_bytes() == good
