"""What tests of packing share: golden tokenizers, documents, and a reference that knows nothing of tasks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from penstock.formats import open_source
from penstock.prepare import PackReport, pack

EOS = "<|eod|>"
TEXTS = [
    f"document {n}: " + " ".join(["the quick", "brown\nfox", "jümps", "日本", "😀"][n % 5 :] * (n % 7))
    for n in range(150)
]


@pytest.fixture(scope="session")
def bpe2(golden: Path) -> Path:
    """A Hugging Face folder: byte-level BPE, two bytes a token, EOS `<|eod|>` = 0."""
    return golden / "modalities" / "tokenizers" / "bpe2"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """150 documents."""
    return write_lines(tmp_path / "corpus.jsonl", ({"id": n, "text": text} for n, text in enumerate(TEXTS)))


@pytest.fixture
def made(tmp_path: Path, bpe2: Path) -> Callable[..., PackReport]:
    """`pack`, without processes unless workers are asked for, into `out.pbin`."""

    def run(inputs: Any, output: Path | None = None, **options: Any) -> PackReport:
        executor = "processes" if "workers" in options else "inline"
        options = {"tokenizer": bpe2, "executor": executor, "oracle_bytes": 2000} | options
        return pack(inputs, output or tmp_path / "out.pbin", **options)

    return run


def write_lines(path: Path, documents: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in documents), encoding="utf-8")
    return path


def expected_tokens(folder: Path, texts: Iterable[str], eos_id: int | None = 0, **how: Any) -> list[list[int]]:
    """What the `tokenizers` package and the rule for EOS give; None appends none."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    found = [tokenizer.encode(text, **how).ids for text in texts]
    return [ids if eos_id is None or ids[-1] == eos_id else [*ids, eos_id] for ids in found]


def stored_tokens(path: Path) -> list[list[int]]:
    source = open_source(path)
    return [source[i]["tokens"].astype(np.int64).tolist() for i in range(len(source))]


def names_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def with_changes(folder: Path, target: Path, config: dict[str, Any] | None = None, **model: Any) -> Path:
    """A copy of a tokenizer's folder, with other values in its JSON files."""
    shutil.copytree(folder, target)
    target.chmod(0o755)
    for name, changes in (("tokenizer.json", model), ("tokenizer_config.json", config or {})):
        path = target / name
        path.chmod(0o644)
        path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), encoding="utf-8")
    return target
