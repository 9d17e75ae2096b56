"""The same command line twice: the second says which output exists, as it was given, and how to replace it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from tests.cli.called import called

import penstock as ps

LINES = (
    ("index corpus.jsonl", "corpus.idx"),
    ("index corpus.jsonl --index-path o.idx", "o.idx"),
    ("convert corpus.jsonl o --to mds", "o"),
    ("convert corpus.jsonl o.jsonl", "o.jsonl"),
    ("convert c.pbin o --to flat-tokens", "o"),
    ("convert c.pbin o --to megatron", "o"),
    ("filter corpus.jsonl -o o.jsonl --where 'id == \"k1\"'", "o.jsonl"),
    ("filter c.pbin -o ./o.pbin --indices which", "./o.pbin"),
    ("filter mds -o o --where 'id == \"k1\"' --to mds", "o"),
    ("filter mds -o o --where 'id == \"k1\"' --to mds --workers 2", "o"),
    ("shuffle corpus.jsonl -o o.jsonl --seed 1", "o.jsonl"),
    ("shuffle corpus.jsonl -o o.jsonl --seed 1 --workers 2", "o.jsonl"),
    ("shuffle c.pbin -o o.pbin --seed 1", "o.pbin"),
    ("split corpus.jsonl -o o --ratio 1,1", "o/corpus_train.jsonl"),
    ("split c.pbin -o o --ratio 1,1", "o/c_train.pbin"),
    ("merge corpus.jsonl corpus.jsonl -o o.jsonl", "o.jsonl"),
    ("merge c.pbin c.pbin -o o.pbin", "o.pbin"),
    ("merge mds/ -o o", "o"),
    ("split corpus.jsonl -o o.jsonl --parts 2 --only 0", "o.jsonl"),
    ("purge less.jsonl -o o.jsonl", "o.jsonl"),
    ("report corpus.jsonl -o o.html", "o.html"),
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [{"id": f"k{i}", "text": f"document {i}"} for i in range(9)]
    for name in ("corpus", "less"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "which").write_text("0\n")
    assert called("exclude", tmp_path / "less.jsonl", "--indices", tmp_path / "which", "--reason", "x").returncode == 0
    with ps.create(tmp_path / "mds", format="mds", columns={"id": "str", "text": "str"}) as writer:
        for row in rows:
            writer.write(row)
    with ps.create(tmp_path / "c.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
        for _ in range(2):
            writer.write({"tokens": np.array([1, 2, 0], np.uint16)})
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("line", "output"), LINES, ids=[line for line, _ in LINES])
def test_the_output_that_exists_is_named_as_it_was_given(home: Path, line: str, output: str) -> None:
    first, again = (called(*shlex.split(line)) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert again.returncode == 10, again.stdout + again.stderr
    assert again.stderr.startswith(f"penstock: {output}: the output exists"), again.stderr
    assert str(home) not in again.stderr
    assert "--overwrite" in again.stderr


def test_what_stands_at_the_place_of_an_index_is_named_too(home: Path) -> None:
    (home / "o.idx").write_text("of another")
    done = called("shuffle", "corpus.jsonl", "-o", "o.jsonl", "--seed", 1)
    assert done.stderr.startswith("penstock: o.jsonl: the output exists: found o.idx."), done.stderr


def test_a_path_that_was_typed_as_an_absolute_one_stays_so(home: Path) -> None:
    line = ("shuffle", home / "corpus.jsonl", "-o", home / "o.jsonl", "--seed", 1)
    called(*line)
    assert called(*line).stderr.startswith(f"penstock: {home}/o.jsonl: the output exists")
