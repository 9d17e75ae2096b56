"""Small datasets for the tests of the verbs on whole datasets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import penstock as ps

DOCUMENTS = st.lists(st.lists(st.integers(0, 255), max_size=30), max_size=60)
LINES = st.lists(st.text(st.characters(codec="utf-8"), max_size=20), max_size=60)


def write_tokens(path: Path, documents: Sequence[Sequence[int]], token_bytes: int = 2, **options: Any) -> Path:
    """A packed file, or whatever the suffix says."""
    format = options.pop("format", "pbin")
    with ps.create(path, format=format, token_bytes=token_bytes, **options) as writer:
        for document in documents:
            writer.write({"tokens": np.array(document, f"u{token_bytes}")})
    return path


def write_lines(path: Path, texts: Sequence[str], *, last: bool = True) -> Path:
    """A JSONL file; `last` says whether the last line has its end."""
    data = "\n".join(json.dumps({"id": n, "text": text}) for n, text in enumerate(texts))
    path.write_bytes(data.encode() + (b"\n" if last and texts else b""))
    return path


def documents_in(path: str | Path) -> list[list[int]]:
    source = ps.open(path)
    return [source[i]["tokens"].tolist() for i in range(len(source))]


def lines_in(path: str | Path) -> list[bytes]:
    """Lines without their ends; every one must have its end."""
    data = Path(path).read_bytes()
    assert not data or data.endswith(b"\n")
    return data.split(b"\n")[:-1]


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def sound(path: Path) -> bool:
    """Whether every byte is as its format and its side file say; an empty dataset is."""
    return not [one for one in ps.verify(path, depth="full") if one.severity == "error"]
