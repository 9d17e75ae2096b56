"""A dataset that is replaced while it is read gives its own samples or an error, never those of the new one."""

from __future__ import annotations

import contextlib
import gzip
import json
import pickle
from pathlib import Path
from typing import Any, Literal

import pyarrow
import pyarrow.parquet
import pytest

import penstock as ps
from penstock.errors import FormatError

ROWS = 400
CHANGED = "changed while it was being read"


def rows(first: int) -> list[dict[str, Any]]:
    """Rows of the same sizes for every `first` of five digits."""
    return [{"text": str(first + number), "n": first + number} for number in range(ROWS)]


def value_or_error(source: Any, number: int, name: str = "text") -> str:
    """The text of a row, or the message of the error."""
    try:
        return source[number][name]
    except FormatError as error:
        return str(error)


def write(folder: Path, made: str, first: int) -> None:
    options: dict[str, Any] = {"columns": {"text": "str", "n": "int"}, "size_limit": 1000}
    with ps.create(folder, format=made, overwrite=folder.exists(), **options) as writer:
        for row in rows(first):
            writer.write(row)


@pytest.mark.parametrize("read", ["mmap", "pread"])
@pytest.mark.parametrize("made", ["mds", "json-shards", "csv"])
def test_shards_replaced_while_they_are_read(tmp_path: Path, made: str, read: Literal["mmap", "pread"]) -> None:
    folder = tmp_path / "data"
    write(folder, made, 10_000)
    source = ps.open(folder, read=read)
    assert source[0]["text"] == "10000"
    write(folder, made, 50_000)
    for number in (0, 1, ROWS // 2, ROWS - 1):
        read_value = value_or_error(source, number)
        assert read_value == str(10_000 + number) or (CHANGED in read_value and "index.json" in read_value)
    with pytest.raises(FormatError, match="open it again"):
        source[ROWS - 1]
    with pytest.raises(FormatError, match="open it again"):
        source.get_batch([ROWS // 2, ROWS - 1])
    assert [one["text"] for one in ps.open(folder)] == [row["text"] for row in rows(50_000)]


def write_file(path: Path, part: list[dict[str, Any]]) -> None:
    """One file, put in the place of another as `mv` does it."""
    new = path.with_name(f".{path.name}")
    lines = "".join(json.dumps(row) + "\n" for row in part)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(part), new, compression="none", row_group_size=20)
    elif path.suffix == ".gz":
        new.write_bytes(gzip.compress(lines.encode(), 0, mtime=0))
    else:
        new.write_text(lines, "utf-8")
    new.rename(path)


@pytest.mark.parametrize("padding", [0, 2000])
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet"])
def test_files_replaced_while_they_are_read(tmp_path: Path, suffix: str, padding: int) -> None:
    def put(first: int) -> None:
        part = [row | {"padding": "x" * padding} for row in rows(first)]
        for number in range(4):
            write_file(tmp_path / f"{number}{suffix}", part[number * 100 : number * 100 + 100])

    put(10_000)
    source = ps.open(tmp_path)
    assert source[0]["text"] == "10000"
    assert [row["n"] for row in source] == list(range(10_000, 10_400))
    put(50_000)
    for number in range(0, ROWS, 7):
        read_value = value_or_error(source, number)
        assert read_value == str(10_000 + number) or CHANGED in read_value
    source = ps.open(tmp_path)
    assert [row["text"] for row in source] == [row["text"] for row in rows(50_000)]
    put(10_000)
    with contextlib.suppress(FormatError):
        assert all(row["text"].startswith("50") for row in source)


@pytest.mark.parametrize("read", ["mmap", "pread"])
def test_tars_replaced_while_they_are_read(tmp_path: Path, read: Literal["mmap", "pread"]) -> None:
    folder = tmp_path / "data"

    def write_tars(first: int) -> None:
        with ps.create(folder, format="webdataset", overwrite=folder.exists(), maxcount=20) as writer:
            for row in rows(first):
                writer.write({"__key__": f"{row['n'] - first:05}", "txt": row["text"]})

    write_tars(10_000)
    source: Any = ps.open(folder, read=read)
    copied: Any = pickle.loads(pickle.dumps(source))
    assert source[0]["txt"] == "10000"
    write_tars(50_000)
    for number in (0, 1, ROWS // 2, ROWS - 1):
        read_value = value_or_error(source, number, "txt")
        assert read_value == str(10_000 + number) or CHANGED in read_value
    for one in (source, copied):
        with pytest.raises(FormatError, match="open it again"):
            one[ROWS - 1]
        with pytest.raises(FormatError, match="open it again"):
            one.get_samples([ROWS - 1])
    assert [row["txt"] for row in ps.open(folder)] == [row["text"] for row in rows(50_000)]


def test_tars_that_are_prepared_again_are_read_on(tmp_path: Path) -> None:
    with ps.create(tmp_path / "data", format="webdataset", maxcount=20) as writer:
        for row in rows(10_000):
            writer.write({"__key__": row["text"], "txt": row["text"]})
    source: Any = ps.open(tmp_path / "data")
    assert source[0]["txt"] == "10000"
    ps.prepare(tmp_path / "data", overwrite=True)
    assert [row["txt"] for row in source] == [row["text"] for row in rows(10_000)]


TOKENS: dict[str, tuple[str, dict[str, Any]]] = {
    "pbin": ("data.pbin", {"token_bytes": 2}),
    "megatron": ("data", {"dtype": "uint16"}),
    "flat-tokens": ("data.zarr", {"chunk_tokens": 500}),
}


@pytest.mark.parametrize("is_read_before", [False, True])
@pytest.mark.parametrize("read", ["mmap", "pread"])
@pytest.mark.parametrize("made", TOKENS)
def test_tokens_replaced_while_they_are_read(
    tmp_path: Path, made: str, read: Literal["mmap", "pread"], is_read_before: bool
) -> None:
    name, options = TOKENS[made]

    def write_tokens(first: int) -> None:
        exists = any(tmp_path.iterdir())
        with ps.create(tmp_path / name, format=made, overwrite=exists, **options) as writer:
            for number in range(ROWS):
                writer.write({"tokens": [first + number] * 5})

    write_tokens(10_000)
    source: Any = ps.open(tmp_path / name, read=read)
    windows = ps.Chunk(5)(source)
    if is_read_before:
        assert source[0]["tokens"].tolist() == windows[0]["tokens"].tolist() == [10_000] * 5
    write_tokens(50_000)
    for number in range(0, ROWS, 7):
        for one in (source, windows):
            try:
                tokens = one[number]["tokens"].tolist()
            except FormatError:
                continue
            assert tokens == [10_000 + number] * 5
    with contextlib.suppress(FormatError):
        assert windows.get_batch([ROWS - 1])["tokens"].tolist() == [[10_000 + ROWS - 1] * 5]
    assert ps.open(tmp_path / name, read=read)[ROWS - 1]["tokens"].tolist() == [50_000 + ROWS - 1] * 5


def test_documents_replaced_after_their_tokens_were_mapped(tmp_path: Path) -> None:
    """The borders of the new documents don't cut the tokens of the old ones, also if both have the same sizes."""

    def write_documents(first: int, lengths: tuple[int, int]) -> None:
        exists = any(tmp_path.iterdir())
        with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, overwrite=exists) as writer:
            for number in range(ROWS):
                writer.write({"tokens": [first] * lengths[number % 2]})

    write_documents(10, (5, 7))
    source: Any = ps.open(tmp_path / "a.pbin")
    assert ps.Chunk(5)(source)[0]["tokens"].tolist() == [10] * 5
    write_documents(20, (7, 5))
    for number in range(0, ROWS, 9):
        with pytest.raises(FormatError, match=CHANGED):
            source[number]
