"""Files that operating systems and archivers leave between samples."""

from __future__ import annotations

LEFTOVER_NAMES = (".DS_Store", "Thumbs.db", "desktop.ini")


def is_leftover(name: str) -> bool:
    """Return true if a file was left by an operating system or its archiver and isn't part of a sample.

    These are the folder `__MACOSX` and `._*` files of macOS, `.DS_Store`, and `Thumbs.db` and `desktop.ini` of Windows.
    """
    folders, _, base = name.rpartition("/")
    return base.startswith("._") or base in LEFTOVER_NAMES or "__MACOSX" in folders.split("/")
