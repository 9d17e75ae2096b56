"""A folder laid out as the golden configurations of Modalities' commands say."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def workplace(golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: inputs, indexes, tokenizers, configurations, and packed parts."""
    origin = golden / "modalities"
    commands = origin / "commands"
    shutil.copytree(commands / "inputs", tmp_path / "inputs")
    shutil.copytree(commands / "configs", tmp_path / "configs")
    shutil.copytree(origin / "tokenizers", tmp_path / "tokenizers")
    shutil.copytree(commands / "parts", tmp_path / "parts")
    (tmp_path / "idx").mkdir()
    for name in ("docs", "docs_no_final_newline", "docs_with_empty", "docs_bad_types"):
        shutil.copy(origin / "raw" / f"{name}.jsonl", tmp_path / "inputs")
        shutil.copy(origin / "raw" / f"{name}.idx", tmp_path / "idx")
    monkeypatch.chdir(tmp_path)
    return tmp_path
