"""A mapped file whose pages can be given back."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import NotFound
from penstock.store.mapped import MappedFile


def test_the_bytes_stay_the_same_after_release(tmp_path: Path) -> None:
    data = np.random.default_rng(0).bytes(100_000)
    (tmp_path / "a").write_bytes(data)
    mapped = MappedFile(str(tmp_path / "a"))
    assert mapped.data.tobytes() == data
    mapped.release()
    assert mapped.data.tobytes() == data
    with pytest.raises(ValueError, match="read-only"):
        mapped.data[0] = 1


def test_released_pages_are_no_memory(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(1 << 24))
    mapped = MappedFile(str(tmp_path / "a"))
    mapped.data.max()
    before = resident_bytes()
    mapped.release()
    assert resident_bytes() < before - (1 << 23)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_an_empty_file_and_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    mapped = MappedFile(str(tmp_path / "a"))
    assert len(mapped.data) == 0
    mapped.release()
    with pytest.raises(NotFound, match="no such file"):
        MappedFile(str(tmp_path / "b"))
