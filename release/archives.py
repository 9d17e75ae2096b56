"""What an sdist and a wheel must hold: every tracked file, and the package alone."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path

PACKAGE = "src/penstock/"
_DIST_INFO = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")


def sdist_names(path: Path) -> list[str]:
    """Files of an sdist, as paths in its one folder."""
    with tarfile.open(path) as archive:
        return [one.name.partition("/")[2] for one in archive if not one.isdir()]


def wheel_names(path: Path) -> list[str]:
    """Files of a wheel."""
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def sdist_findings(names: Collection[str], tracked: Collection[str]) -> Iterator[str]:
    """What an sdist lacks of the tracked files, and what it holds besides."""
    yield from _differences("the sdist", names, {*tracked, "PKG-INFO"})


def wheel_findings(names: Collection[str], tracked: Collection[str], version: str) -> Iterator[str]:
    """What a wheel lacks of the package, and what it holds besides."""
    package = {name.removeprefix("src/") for name in tracked if name.startswith(PACKAGE)}
    metadata = {f"penstock_data-{version}.dist-info/{name}" for name in _DIST_INFO}
    yield from _differences("the wheel", names, package | metadata)


def _differences(what: str, found: Collection[str], expected: Collection[str]) -> Iterator[str]:
    yield from (f"{what} lacks {name}" for name in sorted({*expected} - {*found}))
    yield from (f"{what} holds {name}, which is no part of it" for name in sorted({*found} - {*expected}))
