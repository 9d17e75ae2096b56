"""`chunk`: the pieces of a dataset, together all of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.internals import chunk, chunk_range
from tests.reshape.datasets import DOCUMENTS, documents_in, lines_in, write_lines, write_tokens

from penstock.errors import ConfigError


@settings(max_examples=10, deadline=None)
@given(DOCUMENTS, st.integers(1, 7))
def test_chunks_are_all_of_it(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], num_chunks: int
) -> None:
    folder = tmp_path_factory.mktemp("chunk")
    source = write_tokens(folder / "a.pbin", documents)
    found: list[list[int]] = []
    for k in range(num_chunks):
        written = chunk(source, folder / f"{k}.pbin", chunk_id=k, num_chunks=num_chunks)
        assert written.samples in (len(documents) // num_chunks, len(documents) // num_chunks + 1)
        found += documents_in(folder / f"{k}.pbin")
    assert found == documents


def test_ranges_are_those_of_modalities(golden: Path) -> None:
    expected = json.loads((golden / "modalities" / "commands" / "expected.json").read_text())["chunk_ranges"]
    for case in expected:
        ranges = [list(chunk_range(case["num_samples"], k, case["num_chunks"])) for k in range(case["num_chunks"])]
        assert ranges == case["ranges"]


def test_lines(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [str(n) for n in range(7)], last=False)
    for k in range(3):
        chunk(source, tmp_path / f"{k}.jsonl", chunk_id=k, num_chunks=3)
    found = [line for k in range(3) for line in lines_in(tmp_path / f"{k}.jsonl")]
    assert found == source.read_bytes().split(b"\n")


def test_widened(tmp_path: Path) -> None:
    source = write_tokens(tmp_path / "a.pbin", [[1], [2], [3]])
    chunk(source, tmp_path / "b.pbin", chunk_id=1, num_chunks=2, token_bytes=4)
    assert documents_in(tmp_path / "b.pbin") == [[3]]


@pytest.mark.parametrize(("chunk_id", "num_chunks"), [(0, 0), (-1, 2), (2, 2), (5, 2)])
def test_no_such_chunk(tmp_path: Path, chunk_id: int, num_chunks: int) -> None:
    source = write_tokens(tmp_path / "a.pbin", [[1], [2], [3]])
    with pytest.raises(ConfigError, match=r"chunk number is out of range|number of chunks must be positive"):
        chunk(source, tmp_path / "b.pbin", chunk_id=chunk_id, num_chunks=num_chunks)
