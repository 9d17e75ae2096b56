"""Check the files in an sdist (all tracked files) and in a wheel (only the package)."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path

PACKAGE = "src/penstock/"
_DIST_INFO = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")


def sdist_names(path: Path) -> list[str]:
    """Return the files of an sdist, as paths in its top folder."""
    with tarfile.open(path) as archive:
        return [one.name.partition("/")[2] for one in archive if not one.isdir()]


def wheel_names(path: Path) -> list[str]:
    """Return the files of a wheel."""
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def sdist_findings(names: Collection[str], tracked: Collection[str]) -> Iterator[str]:
    """Yield a message for each tracked file that an sdist lacks, and for each other file in it."""
    yield from _differences("the sdist", names, {*tracked, "PKG-INFO"})


def wheel_findings(names: Collection[str], tracked: Collection[str], version: str) -> Iterator[str]:
    """Yield a message for each file of the package that a wheel lacks, and for each other file in it."""
    package = {name.removeprefix("src/") for name in tracked if name.startswith(PACKAGE)}
    metadata = {f"penstock_data-{version}.dist-info/{name}" for name in _DIST_INFO}
    yield from _differences("the wheel", names, package | metadata)


def _differences(what: str, found: Collection[str], expected: Collection[str]) -> Iterator[str]:
    yield from (f"{what} lacks {name}" for name in sorted({*expected} - {*found}))
    yield from (f"{what} has an extra file: {name}" for name in sorted({*found} - {*expected}))
