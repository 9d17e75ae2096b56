"""info: counts, lengths and the EOS rule of every token format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.internals import length_summary

import penstock as ps
from penstock.check import summarise
from penstock.errors import Corrupt

DOCS = [[1, 2, 0], [0], [], [5, 300, 1, 0]]


@pytest.mark.parametrize(("name", "format"), [("a.pbin", "pbin"), ("a.zarr", "flat-tokens"), ("a", "megatron")])
def test_every_token_format(tmp_path: Path, name: str, format: str) -> None:
    with ps.create(tmp_path / name, format=format, token_bytes=2) as writer:
        for doc in DOCS:
            writer.write({"tokens": doc})
    found = summarise(tmp_path / name)
    assert (found["format"], found["samples"], found["tokens"], found["max_token_id"]) == (format, 4, 8, 300)
    assert found["token_bytes"] == (4 if format == "flat-tokens" else 2)
    assert found["eos_rule"] == "not recorded; all 3 checked documents end with id 0"
    assert found["lengths"]["quantiles"]["1"] == 4
    assert found["lengths"]["histogram"] == [(0, 0, 1), (1, 1, 1), (2, 3, 1), (4, 7, 1)]
    files = [path for path in tmp_path.rglob("*") if path.is_file() and not path.name.endswith(".penstock")]
    assert found["size_bytes"] == sum(path.stat().st_size for path in files)


def test_eos_rule(tmp_path: Path) -> None:
    def rule(docs: list[list[int]], opened: dict[str, Any], **options: Any) -> str:
        with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, overwrite=True, **options) as writer:
            for doc in docs:
                writer.write({"tokens": doc})
        return summarise(tmp_path / "a.pbin", **opened)["eos_rule"]

    assert rule([[1, 0], [2, 0]], {}, eos_id=0) == "documents end with id 0, as recorded in the side file"
    assert rule([[1, 0], [2, 0]], {"eos_id": 0}) == "documents end with id 0, as given"
    assert "different ids" in rule([[1, 0], [2, 1]], {})
    assert rule([[1, 0]], {}) == "not recorded"  # one document proves nothing
    assert rule([[], []], {}) == "no documents to inspect"
    assert rule([], {}) == "no documents to inspect"


def test_documents_that_are_not_marked(golden: Path) -> None:
    path = golden / "raw-tokens" / "llmc" / "gpt2_train.bin"
    found = summarise(path)
    assert (found["samples"], found["lengths"], found["tokens"]) == (None, None, 11)
    assert summarise(path, eos_id=50_256)["samples"] == 3


def test_a_damaged_index_is_an_error(golden: Path) -> None:
    with pytest.raises(Corrupt, match="merge_packed_data"):
        summarise(golden / "modalities" / "pbin" / "merged.pbin")


@settings(deadline=None, max_examples=60)
@given(lengths=st.lists(st.one_of(st.integers(0, 9), st.integers(0, 1 << 40)), min_size=1, max_size=30))
def test_lengths(lengths: list[int]) -> None:
    found = length_summary(np.array(lengths, np.int64))
    assert found["mean"] == pytest.approx(sum(lengths) / len(lengths))
    ordered = sorted(lengths)
    assert (found["quantiles"]["0"], found["quantiles"]["1"]) == (ordered[0], ordered[-1])
    assert found["quantiles"]["0.5"] == ordered[(len(ordered) - 1) // 2]
    assert sum(count for _, _, count in found["histogram"]) == len(lengths)
    for low, high, count in found["histogram"]:
        assert count == sum(low <= length <= high for length in lengths)


def test_no_lengths() -> None:
    assert length_summary(np.empty(0, np.int64)) == {}
