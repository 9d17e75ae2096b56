"""Indexes and lines, against what Modalities writes and reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.internals import EMPTY_LIST, IndexedLines, index_path_for, write_index
from tests.internals import JSONL_FORMAT as FORMAT

from penstock.errors import Corrupt
from penstock.store import LocalStore
from penstock.types import OpenOptions

STORE = LocalStore()
RAW = Path(__file__).parents[2] / "golden" / "modalities" / "raw"
FILES = sorted(path.relative_to(RAW).with_suffix("").as_posix() for path in RAW.rglob("*.jsonl"))
EDGES = sorted(path.stem for path in (RAW / "edge").glob("*.jsonl"))


def make(path: Path, *, skip: bool = False) -> Path:
    target = Path(index_path_for(str(path)))
    write_index(
        IndexedLines(STORE, str(path), path.stat().st_size, skip_faulty=skip), STORE, str(target), overwrite=True
    )
    return target


@pytest.mark.parametrize("name", FILES)
def test_index_is_byte_identical(name: str, tmp_path: Path) -> None:
    path = Path(shutil.copy(RAW / f"{name}.jsonl", tmp_path))
    expected = RAW / f"{name}.idx"
    if expected.exists():
        assert make(path).read_bytes() == expected.read_bytes()
    else:
        with pytest.raises(Corrupt):
            make(path)
        assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", EDGES)
def test_index_without_faulty_lines(name: str, tmp_path: Path) -> None:
    path = Path(shutil.copy(RAW / "edge" / f"{name}.jsonl", tmp_path))
    assert make(path, skip=True).read_bytes() == (RAW / "edge" / f"{name}.drop.idx").read_bytes()


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.parametrize("read", ["mmap", "pread"])
def test_lines_are_those_of_the_original(name: str, read: str, tmp_path: Path) -> None:
    path = Path(shutil.copy(RAW / "edge" / f"{name}.jsonl", tmp_path))
    shutil.copy(RAW / "edge" / f"{name}.drop.idx", path.with_suffix(".idx"))
    expected = json.loads((RAW / "reader.json").read_text())[name]
    source = FORMAT.open(STORE, str(path), OpenOptions(raw=True, read=read))
    lines = [source[index]["line"] for index in range(len(source))]
    assert lines == [line.encode("latin-1") for line in expected["bytes_as_latin1"] or []]
    cooked = FORMAT.open(STORE, str(path), OpenOptions(read=read))
    for index, line in enumerate(lines):
        value = json.loads(line)
        assert repr(cooked[index]) == repr(value if isinstance(value, dict) else {"value": value})


def test_there_are_files() -> None:
    assert len(EDGES) == 17
    assert len(FILES) == 21
    assert (RAW / "edge" / "empty.drop.idx").read_bytes() == EMPTY_LIST
