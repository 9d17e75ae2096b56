"""A dataset that is replaced while it is read gives its own samples or an error, never those of the new one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

import penstock as ps
from penstock.errors import Corrupt

ROWS = 400


def rows(first: int) -> list[dict[str, Any]]:
    """Rows of the same sizes for every `first` of five digits."""
    return [{"text": str(first + number), "n": first + number} for number in range(ROWS)]


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
        try:
            assert source[number]["text"] == str(10_000 + number)
        except Corrupt as error:
            assert "changed while it was being read" in str(error)
            assert "index.json" in str(error)
    with pytest.raises(Corrupt, match="open it again"):
        source[ROWS - 1]
    with pytest.raises(Corrupt, match="open it again"):
        source.get_batch([ROWS // 2, ROWS - 1])
    assert [one["text"] for one in ps.open(folder)] == [row["text"] for row in rows(50_000)]
