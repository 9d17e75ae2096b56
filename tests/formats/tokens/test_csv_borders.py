"""Documents by the table beside a file of tokens: OLMo's `.csv.gz`."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import Corrupt, FormatError, TooLarge
from penstock.formats.tokens.csv_borders import read_table
from penstock.store.memory import MemoryStore


def starts(table: bytes, num_tokens: int, *, plain: bool = False) -> list[int]:
    store = MemoryStore({"a.csv.gz": table if plain else gzip.compress(table)})
    return read_table(store, "a.csv.gz", num_tokens).tolist()


def test_golden(golden: Path) -> None:
    source: Any = ps.open(golden / "raw-tokens" / "olmo" / "part-0-00000.npy", format="raw-tokens", layout="uint16")
    assert [sample["tokens"].tolist() for sample in source] == [[1, 2, 50256], [3, 4, 5, 50256], [6, 7, 8, 50256]]
    assert source.gather_starts(np.array([0, 2]), 3).tolist() == [[True, False, False], [False, True, False]]
    assert source.eos_id is None


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 9), max_size=20), st.integers(0, 3), st.sampled_from(["", ',"an, id",x', ",7"]))
def test_documents_lie_back_to_back(lengths: list[int], rest: int, more: str) -> None:
    borders = [0, *np.cumsum(lengths).tolist()]
    table = "".join(f"{start},{stop}{more}\n" for start, stop in itertools.pairwise(borders))
    total = borders[-1] + rest
    assert starts(table.encode(), total) == [*borders, total][: len(borders) + bool(rest)]


@pytest.mark.parametrize(
    "table",
    [
        *(b"0,3\n4,6\n", b"0,3\n2,6\n", b"1,6\n", b"0,7\n", b"0,0\n0,6\n", b"0,-6\n", b"0\n", b"a,b\n", b"\n"),
        *(b"\xff,1\n", b"0," + b"9" * 30 + b"\n", b"start,end\n0,6\n"),
    ],
)
def test_what_can_not_be(table: bytes) -> None:
    with pytest.raises(Corrupt) as caught:
        starts(table, 6)
    assert caught.value.path == "a.csv.gz"
    assert caught.value.hint


def test_a_damaged_or_endless_table() -> None:
    whole = gzip.compress(b"0,3\n3,6\n")
    for damaged in (b"", b"no gzip", whole[:-6], whole[:15] + b"\xff" + whole[16:]):
        if damaged:
            with pytest.raises(FormatError):
                starts(damaged, 6, plain=True)
    with pytest.raises(TooLarge):
        starts(b"0" * (3 << 20), 6)
    with pytest.raises(Corrupt):
        starts(b"0,1\n" + b"1,1\n" * 100_000, 6)


def test_verify_finds_it(tmp_path: Path) -> None:
    np.arange(6, dtype="<u2").tofile(tmp_path / "a.npy")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"0,3\n4,6\n"))
    options = {"format": "raw-tokens", "layout": "uint16"}
    for depth in ("quick", "full"):
        (found,) = ps.verify(tmp_path / "a.npy", depth=depth, **options)
        assert (found.code, found.severity, found.path) == ("raw-tokens.table", "error", str(tmp_path / "a.csv.gz"))
    with pytest.raises(Corrupt):
        len(ps.open(tmp_path / "a.npy", **options))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"0,3\n3,6\n"))
    assert ps.verify(tmp_path / "a.npy", depth="full", **options) == []
    assert len(ps.open(tmp_path / "a.npy", **options)) == 2
