"""Datasets built by hand, byte by byte."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}
DOCS = [[300, 2, 7], [7], [], [5, 0, 1, 7]]

Build = Callable[..., tuple[bytes, bytes]]
Put = Callable[..., str]


def build(
    docs: Sequence[Sequence[Any]] = DOCS,
    dtype: str = "uint16",
    *,
    lengths: Sequence[int] | None = None,
    pointers: Sequence[int] | None = None,
    borders: Sequence[int] | None = None,
    modes: Sequence[int] | None = None,
    code: int | None = None,
    version: int = 1,
    counts: tuple[int, int] | None = None,
) -> tuple[bytes, bytes]:
    """`(.bin, .idx)`, one sequence a document; each argument replaces what belongs there."""
    width = np.dtype(dtype).itemsize
    data = b"".join(np.array(doc, np.dtype(dtype).newbyteorder("<")).tobytes() for doc in docs)
    lengths = [len(doc) for doc in docs] if lengths is None else lengths
    pointers = [width * sum(lengths[:i]) for i in range(len(lengths))] if pointers is None else pointers
    borders = list(range(len(lengths) + 1)) if borders is None else borders
    num_sequences, num_borders = (len(lengths), len(borders)) if counts is None else counts
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", version, code or CODES[dtype], num_sequences, num_borders)
    index += np.array(lengths, "<i4").tobytes() + np.array(pointers, "<i8").tobytes()
    index += np.array(borders, "<i8").tobytes() + (b"" if modes is None else np.array(modes, "i1").tobytes())
    return data, index


@pytest.fixture(scope="session")
def built() -> Build:
    """`build`, see there."""
    return build


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Builds a dataset, or writes given bytes, and gives its prefix."""

    def write(*docs: Any, data: bytes | None = None, index: bytes | None = None, name: str = "a", **more: Any) -> str:
        made = build(*docs, **more)
        (tmp_path / f"{name}.bin").write_bytes(made[0] if data is None else data)
        (tmp_path / f"{name}.idx").write_bytes(made[1] if index is None else index)
        return str(tmp_path / name)

    return write


@pytest.fixture(scope="session")
def expected(golden: Path) -> dict[str, Any]:
    """What the original reads from the golden files."""
    return json.loads((golden / "megatron" / "expected.json").read_text())
