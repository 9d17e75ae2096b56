"""Helpers for tests of datasets on disk: their files, copies, damage, and states after a fault."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import NotFound, PenstockError
from penstock.store.names import is_staged_name
from penstock.testing.equality import same_samples
from penstock.types import Sample

SIDE_SUFFIX = ".penstock"


def files_in(folder: Path) -> dict[str, bytes]:
    """Return every file under `folder`, including staged ones: relative path → content."""
    return {
        os.path.relpath(os.path.join(parent, name), folder): Path(parent, name).read_bytes()
        for parent, _, names in os.walk(folder)
        for name in names
    }


def staged_in(folder: Path) -> list[str]:
    """Return the names of leftover staged files, and of files in staged directories."""
    return [name for name in files_in(folder) if any(map(is_staged_name, Path(name).parts))]


def data_files(folder: Path) -> list[Path]:
    """Return the files of the dataset, without side files."""
    return [folder / name for name in sorted(files_in(folder)) if not name.endswith(SIDE_SUFFIX)]


def copy_of(folder: Path, target: Path) -> Path:
    """Return a copy of `folder` at `target`, with other modification times."""
    shutil.copytree(folder, target, copy_function=shutil.copyfile)
    for name in files_in(target):
        os.utime(target / name, (1_000_000, 1_000_000))
    return target


def flip(path: Path, offset_bytes: int, mask: int = 0x10) -> None:
    data = bytearray(path.read_bytes())
    data[offset_bytes] ^= mask
    path.write_bytes(data)


def some_offsets(size_bytes: int, count: int) -> list[int]:
    """Return both ends and evenly spread offsets in between: at most `count` in `[0, size)`."""
    edges = [0, 1, 8, 12, size_bytes - 1, size_bytes - 2]
    spread = [place * size_bytes // count for place in range(count)]
    return sorted({place for place in edges + spread if 0 <= place < size_bytes})


def read_all(open_source: Callable[[], Any]) -> list[Sample] | None:
    """Return all samples, or None without a dataset."""
    try:
        source = open_source()
        return [source[index] for index in range(len(source))]
    except NotFound:
        return None


def refusal(read: Callable[[], object]) -> PenstockError | None:
    """Return the typed error that `read` raises, or None; other errors are raised."""
    try:
        read()
    except PenstockError as error:
        return error
    return None


def check_old_new_or_nothing(
    found: Sequence[Sample] | None, old: Sequence[Sample] | None, new: Sequence[Sample], place: object
) -> None:
    """Check durability after a fault at `place`: the old dataset exists, or the whole new one, or nothing."""
    if found is None:
        assert old is None, f"{place}: the old dataset is missing"
        return
    assert same_samples(found, new) or (old is not None and same_samples(found, old)), f"{place}: neither old nor new"
