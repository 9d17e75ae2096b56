"""Conversion keeps documents, and says so by a digest that the format does not change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.convert import document_runs, token_digest
from penstock.errors import ConfigError, Unsupported
from penstock.testing import MemoryTokens

GOLDEN = Path(__file__).parent / "golden" / "modalities"


@settings(deadline=None, max_examples=50)
@given(lengths=st.lists(st.integers(0, 9), max_size=30), run_tokens=st.integers(1, 40))
def test_runs_hold_whole_documents_in_order(lengths: list[int], run_tokens: int) -> None:
    documents = [np.full(length, number, np.uint16) for number, length in enumerate(lengths)]
    source = MemoryTokens(documents, dtype=np.uint16)
    runs = list(document_runs(source, run_tokens))
    assert [n for _, doc_lengths in runs for n in doc_lengths.tolist()] == lengths
    tokens = [token for run, _ in runs for token in run.tolist()]
    assert tokens == [token for document in documents for token in document.tolist()]
    assert all(len(doc_lengths) == 1 or len(run) <= run_tokens for run, doc_lengths in runs)


@pytest.mark.parametrize("name", sorted(path.name for path in (GOLDEN / "legacy").glob("*.*bin")))
def test_older_layouts_become_todays(name: str, tmp_path: Path) -> None:
    source = ps.open(GOLDEN / "legacy" / name, format="pbin")
    report = ps.convert(GOLDEN / "legacy" / name, tmp_path / "new.pbin", format="pbin")
    new = ps.open(tmp_path / "new.pbin")
    assert report.to == "pbin"
    assert [new[i]["tokens"].tolist() for i in range(len(new))] == [
        source[i]["tokens"].tolist() for i in range(len(source))
    ]
    assert token_digest(new) == report.digest == token_digest(source)
    assert ps.verify(tmp_path / "new.pbin", depth="full") == []


def test_an_output_that_exists_is_refused_and_kept(tmp_path: Path) -> None:
    target = tmp_path / "c.pbin"
    target.write_bytes(b"mine")
    with pytest.raises(ConfigError, match="exists"):
        ps.convert(GOLDEN / "pbin" / "docs.bpe2.pbin", target)
    assert target.read_bytes() == b"mine"
    ps.convert(GOLDEN / "pbin" / "docs.bpe2.pbin", target, overwrite=True)
    assert target.read_bytes() == (GOLDEN / "pbin" / "docs.bpe2.pbin").read_bytes()


def test_text_does_not_become_tokens_by_conversion(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(Unsupported, match="pack"):
        ps.convert(tmp_path / "a.jsonl", tmp_path / "a.pbin")
    assert not (tmp_path / "a.pbin").exists()


def test_a_target_without_a_known_suffix_needs_to(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--to"):
        ps.convert(GOLDEN / "pbin" / "docs.bpe2.pbin", tmp_path / "out")
