"""Rows in another order: gathered from maps or through a scratch file, always the same."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reshape.datasets import write_tokens

from penstock.engine.rows import StoredRows
from penstock.errors import ConfigError, PrepareError
from penstock.reshape import reorder
from penstock.reshape.reorder import RowOrder, SeededOrder, TableOrder, grouped, reordered
from penstock.reshape.rows import open_rows
from penstock.store.place import place_of


def documents_of(lengths: list[int]) -> list[list[int]]:
    return [[n % 60_000] * length for n, length in enumerate(lengths)]


def in_order(rows: StoredRows, order: RowOrder, folder: Path, memory_bytes: int) -> list[list[int]]:
    found: list[list[int]] = []
    for data, lengths in reordered(rows, order, output=place_of(folder / "out"), memory_bytes=memory_bytes):
        assert len(data) * data.itemsize <= max(memory_bytes // 2, int(lengths.max()) * data.itemsize)
        found += [one.tolist() for one in np.split(data, np.cumsum(lengths)[:-1])]
    return found


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=200),
    seed=st.integers(0, 99),
    memory_bytes=st.sampled_from([2, 64, 500, 1 << 20]),
    gathers=st.booleans(),
)
def test_both_ways_give_the_order(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], seed: int, memory_bytes: int, gathers: bool
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    documents = documents_of(lengths)
    rows = open_rows(write_tokens(folder / "a.pbin", documents))
    table = np.random.default_rng(seed).permutation(len(documents))
    seeded = SeededOrder(len(documents), seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reorder, "_gathers", lambda *_: gathers)
        patch.setattr(reorder, "_BLOCK_ROWS", 7)
        patch.setattr(reorder, "_MOST_BUCKETS", 10**6)
        assert in_order(rows, TableOrder(table), folder, memory_bytes) == [documents[i] for i in table]
        expected = [documents[i] for i in seeded.rows_at(0, len(documents)).tolist()]
        assert in_order(rows, seeded, folder, memory_bytes) == expected


def test_buckets_are_few_for_large_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = open_rows(write_tokens(tmp_path / "a.pbin", [[1] * 10] * 1000))
    monkeypatch.setattr(reorder, "_gathers", lambda *_: False)
    monkeypatch.setattr(reorder, "_MOST_BUCKETS", 8)
    sizes = [len(data) for data, _ in reordered(rows, SeededOrder(1000, 1), output=place_of("out"), memory_bytes=100)]
    assert len(sizes) == 8


def test_the_scratch_file_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reorder, "_gathers", lambda *_: False)
    rows = open_rows(write_tokens(tmp_path / "a.pbin", documents_of([5] * 100)))
    before = sorted(os.listdir(tmp_path))
    for _ in reordered(rows, SeededOrder(100, 1), output=place_of(tmp_path / "out"), memory_bytes=100):
        assert sorted(os.listdir(tmp_path)) == before


def test_a_scratch_file_that_is_cut(tmp_path: Path) -> None:
    with (tmp_path / "a").open("w+b") as file, pytest.raises(PrepareError, match="ends early"):
        reorder._Scratch(file.fileno(), place_of("out")).read_at(0, np.empty(10, np.uint8))  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("call", ["open", "write"])
@pytest.mark.parametrize("url", [True, False])
def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: bool, call: str) -> None:
    def full(*_: object, **__: object) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    output = "s3://bucket/out.pbin" if url else str(tmp_path / "out.pbin")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(reorder, "_gathers", lambda *_: False)
    rows = open_rows(write_tokens(tmp_path / "a.pbin", documents_of([5] * 100)))
    monkeypatch.setattr(*{"open": (tempfile, "TemporaryFile"), "write": (os, "pwrite")}[call], full)
    with pytest.raises(ConfigError if url else OSError) as error:
        list(reordered(rows, SeededOrder(100, 1), output=place_of(output), memory_bytes=100))
    assert output in str(error.value)
    assert "No space left on device" in str(error.value)
    assert (str(tmp_path / "cache") if url else "bytes free there") in str(error.value)


def test_orders_know_their_buckets() -> None:
    borders = np.array([0, 3, 4, 100])
    for order in (SeededOrder(100, 5), TableOrder(SeededOrder(100, 5).rows_at(0, 100))):
        places = np.argsort(order.rows_at(0, 100))
        expected = [0 if place < 3 else 1 if place < 4 else 2 for place in places.tolist()]
        assert order.buckets_of(0, 100, borders).tolist() == expected
        assert order.buckets_of(10, 20, borders).tolist() == expected[10:20]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 3)), max_size=40))
def test_grouped(rows: list[tuple[int, int]]) -> None:
    lengths = np.array([length for length, _ in rows], np.int64)
    groups = np.array([group for _, group in rows], np.int64)
    documents = [np.full(length, n, "u2") for n, length in enumerate(lengths.tolist())]
    data = np.concatenate([np.empty(0, "u2"), *documents])
    found = {group: (some.tolist(), own.tolist()) for group, some, own in grouped(data, lengths, groups)}
    expected = {
        group: (
            [int(token) for n in np.flatnonzero(groups == group) for token in documents[n]],
            lengths[groups == group].tolist(),
        )
        for group in set(groups.tolist()) - {-1}
    }
    assert found == expected
