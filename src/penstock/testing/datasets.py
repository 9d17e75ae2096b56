"""Helpers for tests of datasets on disk: their files, copies, damage, and what a fault may leave."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import NotFound, PenstockError
from penstock.store._files import is_staged_name
from penstock.testing.equality import same_samples
from penstock.types import Sample

SIDE_SUFFIX = ".penstock"


def files_in(folder: Path) -> dict[str, bytes]:
    """Every file under `folder`, staged ones too: relative path → content."""
    return {
        os.path.relpath(os.path.join(parent, name), folder): Path(parent, name).read_bytes()
        for parent, _, names in os.walk(folder)
        for name in names
    }


def staged_in(folder: Path) -> list[str]:
    """Names of staged files, and of files in staged folders, that were left behind."""
    return [name for name in files_in(folder) if any(map(is_staged_name, Path(name).parts))]


def data_files(folder: Path) -> list[Path]:
    """The files that make the dataset: all but side files."""
    return [folder / name for name in sorted(files_in(folder)) if not name.endswith(SIDE_SUFFIX)]


def copy_of(folder: Path, target: Path) -> Path:
    """A copy of `folder` at `target`, with other times."""
    shutil.copytree(folder, target, copy_function=shutil.copyfile)
    for name in files_in(target):
        os.utime(target / name, (1_000_000, 1_000_000))
    return target


def flip(path: Path, offset_bytes: int, mask: int = 0x10) -> None:
    """Change one bit."""
    data = bytearray(path.read_bytes())
    data[offset_bytes] ^= mask
    path.write_bytes(data)


def some_offsets(size_bytes: int, count: int) -> list[int]:
    """Both ends and evenly spread places in between: at most `count` in `[0, size)`."""
    edges = [0, 1, 8, 12, size_bytes - 1, size_bytes - 2]
    spread = [place * size_bytes // count for place in range(count)]
    return sorted({place for place in edges + spread if 0 <= place < size_bytes})


def read_all(open_source: Callable[[], Any]) -> list[Sample] | None:
    """All samples; None where nothing is there."""
    try:
        source = open_source()
        return [source[index] for index in range(len(source))]
    except NotFound:
        return None


def refusal(read: Callable[[], object]) -> PenstockError | None:
    """The typed error that `read` raises, None where it raises none; anything else is raised."""
    try:
        read()
    except PenstockError as error:
        return error
    return None


def check_old_new_or_nothing(
    found: Sequence[Sample] | None, old: Sequence[Sample] | None, new: Sequence[Sample], place: object
) -> None:
    """Check the law of durability after a fault at `place`: the old dataset is there, the whole new one, or nothing."""
    if found is None:
        assert old is None, f"{place}: the old dataset is missing"
        return
    assert same_samples(found, new) or (old is not None and same_samples(found, old)), f"{place}: neither old nor new"
