"""The verbs on whole datasets work with every token format that can be written, and from each to each."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.internals import chunk
from tests.reshape.datasets import documents_in, write_tokens

import penstock as ps
from penstock import filter, merge, shuffle, split
from penstock.formats import format_names, get_format

FORMATS = [name for name in format_names() if get_format(name).traits.tokens and get_format(name).traits.write]
DOCUMENTS = [[n + 1] * (n % 7 + 1) for n in range(60)]


@pytest.mark.parametrize("name", FORMATS)
def test_all_verbs(tmp_path: Path, name: str) -> None:
    source = write_tokens(tmp_path / "source", DOCUMENTS, 4, format=name)
    merge([source, source], tmp_path / "merged", format=name)
    assert documents_in(tmp_path / "merged") == DOCUMENTS * 2
    shuffle(source, tmp_path / "shuffled", seed=1)
    stream = ps.Shuffle(ps.open(source), seed=1)
    assert documents_in(tmp_path / "shuffled") == [stream[p]["tokens"].tolist() for p in range(60)]
    parts = split(source, tmp_path / "parts", ratio=(3, 1))
    assert sorted(documents_in(parts[0].path) + documents_in(parts[1].path)) == DOCUMENTS
    filter(source, tmp_path / "filtered", max_tokens=3)
    assert documents_in(tmp_path / "filtered") == [one for one in DOCUMENTS if len(one) <= 3]
    chunk(source, tmp_path / "chunk", chunk_id=1, num_chunks=3)
    assert documents_in(tmp_path / "chunk") == DOCUMENTS[20:40]


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("name", FORMATS)
def test_from_each_to_each(tmp_path: Path, name: str, target: str) -> None:
    source = write_tokens(tmp_path / "source", DOCUMENTS, 4, format=name)
    written = merge([source], tmp_path / "out", to=target).output
    assert (written.format, written.samples, written.tokens) == (target, 60, sum(map(len, DOCUMENTS)))
    assert documents_in(tmp_path / "out") == DOCUMENTS
