"""`penstock pack` as a user meets it."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from tests.cli.called import called

run = functools.partial(called, "pack")


@pytest.fixture
def tokenizer(golden: Path) -> Path:
    return golden / "modalities" / "tokenizers" / "bpe2"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "first"}\n\n{"text": "third"}\n')
    return path


def test_a_bad_line_is_refused_by_name(path: Path, tmp_path: Path, tokenizer: Path) -> None:
    done = run(path, "-o", tmp_path / "o.pbin", "--tokenizer", tokenizer)
    assert done.returncode == 14
    assert done.stdout == ""
    assert done.stderr.startswith(f"penstock: {path}: line 2: a blank line at byte 18. ")
    assert "--on-error skip" in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["a.jsonl"]


def test_skipped_lines_are_listed(path: Path, tmp_path: Path, tokenizer: Path) -> None:
    done = run(path, "-o", tmp_path / "o.pbin", "--tokenizer", tokenizer, "--on-error", "skip")
    assert done.returncode == 0
    assert done.stderr == "skipped: a.jsonl line 2: a blank line\n"
    assert "2 documents" in done.stdout
    assert "1 invalid line skipped" in done.stdout


def test_one_json_document(path: Path, tmp_path: Path, tokenizer: Path) -> None:
    done = run(path, "-o", tmp_path / "o.pbin", "--tokenizer", tokenizer, "--on-error", "skip", "--json")
    found = json.loads(done.stdout)
    assert done.stderr == ""
    assert (found["documents"], found["num_dropped"], found["engine"]) == (2, 1, "gigatoken")
    assert found["dropped"] == [{"file": "a.jsonl", "line": 2, "reason": "a blank line"}]
    assert found["manifest"]["num_samples"] == 2
    assert {one.name for one in tmp_path.iterdir()} == {"a.jsonl", "o.pbin", "o.pbin.penstock"}


def test_an_output_that_exists(path: Path, tmp_path: Path, tokenizer: Path) -> None:
    options = [path, "-o", tmp_path / "o.pbin", "--tokenizer", tokenizer, "--on-error", "skip"]
    assert run(*options).returncode == 0
    again = run(*options)
    assert again.returncode == 10
    assert "the output exists" in again.stderr
    assert run(*options, "--overwrite", "--workers", 1, "--executor", "inline").returncode == 0


def test_a_fall_back_is_said(path: Path, tmp_path: Path, golden: Path, caplog: pytest.LogCaptureFixture) -> None:
    small = golden / "modalities" / "tokenizers" / "small1"
    done = run(path, "-o", tmp_path / "o.pbin", "--tokenizer", small, "--on-error", "skip", "--json")
    assert json.loads(done.stdout)["engine"] == "tokenizers"
    assert "gigatoken can't load it" in caplog.text
    refused = run(path, "-o", tmp_path / "p.pbin", "--tokenizer", small, "--engine", "gigatoken")
    assert refused.returncode == 10
    assert not (tmp_path / "p.pbin").exists()


def test_usage(tmp_path: Path) -> None:
    assert run("-o", tmp_path / "o.pbin", "--tokenizer", "t").returncode == 2
    assert run("a.jsonl", "--tokenizer", "t").returncode == 2
    assert run(tmp_path / "a.jsonl", "-o", tmp_path / "o.pbin", "--tokenizer", "t").returncode == 9
