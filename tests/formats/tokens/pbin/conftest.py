"""Packed files built by hand, in every layout, with `pickle` as the judge of the index."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

LAYOUT_TABLE = {
    "h12le": (12, "<", 0),
    "h12le-abs": (12, "<", 12),
    "h12be": (12, ">", 12),
    "h8": (8, ">", 8),
    "h8le": (8, "<", 0),
    "h4": (4, ">", 4),
}
DOCS = [[300, 2, 7], [7], [], [65_535, 0, 1, 7], [5, 7]]

Build = Callable[..., bytes]


def build(
    docs: Sequence[Sequence[int]] = DOCS,
    layout: str = "h12le",
    token_bytes: int = 2,
    pairs: list[tuple[int, int]] | None = None,
    base: int | None = None,
    length: int | None = None,
    protocol: int = 4,
) -> bytes:
    """A packed file; `pairs`, `base` and `length` replace what belongs there."""
    header_bytes, order, usual_base = LAYOUT_TABLE[layout]
    token_bytes = token_bytes if header_bytes == 12 else 4
    data = b"".join(np.array(doc, f"{order}u{token_bytes}").tobytes() for doc in docs)
    base = usual_base if base is None else base
    if pairs is None:
        sizes = [len(doc) * token_bytes for doc in docs]
        pairs = [(base + sum(sizes[:i]), size) for i, size in enumerate(sizes)]
    byte_order: Any = "little" if order == "<" else "big"
    header = (len(data) if length is None else length).to_bytes(min(8, header_bytes), byte_order)
    if header_bytes == 12:
        header += token_bytes.to_bytes(4, byte_order)
    return header + data + pickle.dumps(pairs, protocol)


@pytest.fixture(scope="session")
def packed() -> Build:
    """`build`, see there."""
    return build


@pytest.fixture
def put(tmp_path: Path) -> Callable[[bytes], str]:
    """Writes bytes as a file and gives its path."""

    def write(data: bytes, name: str = "a.pbin") -> str:
        (tmp_path / name).write_bytes(data)
        return str(tmp_path / name)

    return write


@pytest.fixture(scope="session")
def expected(golden: Path) -> dict[str, Any]:
    """What the original reads from the golden files."""
    return json.loads((golden / "modalities" / "packed.json").read_text())
