"""The row map: what is written is read, belongs to its data alone, and damage is said."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import ConfigError, Corrupt
from penstock.reshape.merge import merge
from penstock.store.local import LocalStore
from penstock.store.names import NEXT
from penstock.store.place import Place
from penstock.store.row_map import (
    RowMap,
    is_damaged,
    read_row_map,
    row_map_path,
    settle_row_map,
    write_row_map,
)
from penstock.types import Manifest

STORE = LocalStore()
MADE = Manifest("pbin", 3, 9, 5, inputs={"a": "da", "b": "db"}, options={"field": "text", "more": 1})
INPUTS, ROWS = [("a", "da"), ("b", "db")], {"a": 4, "b": 2}


def wrote(place: Place, *, name: str | None = None) -> RowMap | None:
    runs = [np.array([0, 3]), np.array([5])]
    path = name or row_map_path(place.path)
    write_row_map(STORE, path, runs, INPUTS, ROWS, {"options": {"field": "text"}}, 5)
    return read_row_map(place, MADE)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    found = wrote(Place(STORE, str(tmp_path / "x.pbin")))
    assert found is not None
    assert found.rows.tolist() == [0, 3, 5]
    assert [(one.name, row) for one, row in map(found.origin_of, range(3))] == [("a", 0), ("a", 3), ("b", 1)]
    assert found.samples_of(0, np.array([3, 1, 0, 9])).tolist() == [0, 1]
    assert found.samples_of(1, np.array([1])).tolist() == [2]
    assert (found.numbers_of("b"), found.numbers_of("da"), found.numbers_of("c")) == ([1], [0], [])
    assert not is_damaged(found, STORE)


@settings(max_examples=30)
@given(rows=st.lists(st.integers(0, 30), unique=True), sizes=st.lists(st.integers(0, 12), min_size=1, max_size=4))
def test_samples_and_origins_are_inverse(rows: list[int], sizes: list[int]) -> None:
    from penstock.store.row_map import MappedInput

    rows = [row for row in rows if row < sum(sizes)]
    inputs = tuple(MappedInput(f"f{number}", "", size) for number, size in enumerate(sizes))
    found = RowMap(inputs, np.array(rows, np.int64), "x")
    for sample in range(len(rows)):
        one, row = found.origin_of(sample)
        assert found.samples_of(inputs.index(one), np.array([row])).tolist() == [sample]


@pytest.mark.parametrize(
    "other",
    [
        replace(MADE, num_samples=4),
        replace(MADE, num_tokens=6),
        replace(MADE, inputs={"a": "da"}),
        replace(MADE, options={"field": "body"}),
        replace(MADE, tokenizer_digest="t"),
        None,
    ],
)
def test_a_map_of_other_data_is_refused_and_goes_with_them(tmp_path: Path, other: Manifest | None) -> None:
    place = Place(STORE, str(tmp_path / "x.pbin"))
    wrote(place)
    with pytest.raises(ConfigError, match="belongs to different data"):
        read_row_map(place, other)
    settle_row_map(place, other)
    assert read_row_map(place, other) is None
    assert list(tmp_path.iterdir()) == []


def test_one_that_waits_counts_with_its_data_and_gets_its_name(tmp_path: Path) -> None:
    place = Place(STORE, str(tmp_path / "x.pbin"))
    path = row_map_path(place.path)
    assert wrote(place, name=path + NEXT) is not None
    assert read_row_map(place, replace(MADE, num_samples=9)) is None
    settle_row_map(place, MADE)
    assert [one.name for one in tmp_path.iterdir()] == [Path(path).name]


def test_damage_is_said(tmp_path: Path) -> None:
    place = Place(STORE, str(tmp_path / "x.idx"))
    path = Path(row_map_path(place.path))
    assert path.name == "x.penstock.rows"
    wrote(place)
    data = path.read_bytes()
    for damaged in (data[:-1], b"", data[:30] + b"?" + data[31:], data[:-40] + b"?" * 8 + data[-32:]):
        path.write_bytes(damaged)
        with pytest.raises(Corrupt):
            read_row_map(place, MADE)
    path.write_bytes(b"\1" + data[1:])
    found = read_row_map(place, MADE)
    assert found is not None
    assert is_damaged(found, STORE)
    path.write_bytes(b"\xff" * 8 + data[8:])
    found = read_row_map(place, MADE)
    assert found is not None
    with pytest.raises(Corrupt, match="isn't in the input"):
        found.origin_of(0)


OTHERS: dict[str, Callable[[Path], object]] = {
    "file": lambda path: path.write_bytes(b"somebody's notes, long enough to hold what stands at the end of a map"),
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "link": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("end", ["", NEXT])
@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_map_stays_and_costs_no_output(tmp_path: Path, kind: str, end: str) -> None:
    with ps.create(tmp_path / "a.jsonl", format="jsonl") as writer:
        writer.write({"text": "x"})
    other = Path(row_map_path(str(tmp_path / "out.jsonl")) + end)
    OTHERS[kind](other)
    before = os.lstat(other)
    with pytest.raises(ConfigError, match="taken by something else"):
        merge([tmp_path / "a.jsonl"], tmp_path / "out.jsonl", keep_map=True)
    assert not (tmp_path / "out.jsonl").exists()
    merge([tmp_path / "a.jsonl"], tmp_path / "out.jsonl")
    assert len(ps.open(tmp_path / "out.jsonl")) == 1
    assert os.path.samestat(before, os.lstat(other))
