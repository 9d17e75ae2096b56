"""Members of foreign zip archives, listed without trusting their names."""

from __future__ import annotations

import struct
import zipfile
import zlib

ZIP_FAULTS = (
    zipfile.BadZipFile, zlib.error, struct.error, ValueError, OverflowError, RuntimeError, EOFError, IndexError,
)  # fmt: skip
"""Exceptions of `zipfile` for damaged archives."""


def files_in(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Return the members that aren't directories.

    Raises:
        zipfile.BadZipFile: a member has no name; `ZipInfo.is_dir` would raise `IndexError`.
    """
    entries = archive.infolist()
    if not all(entry.filename for entry in entries):
        raise zipfile.BadZipFile("a member without a name")
    return [entry for entry in entries if not entry.is_dir()]
