"""Reads whole small files, such as metadata, with a limit on their size."""

from __future__ import annotations

from penstock._limits import MOST_DOCUMENT_BYTES
from penstock.errors import TooLarge
from penstock.store.base import Store


def read_document(store: Store, path: str, most_bytes: int = MOST_DOCUMENT_BYTES) -> bytes:
    """All bytes of a file.

    Raises:
        NotFound: no such file.
        TooLarge: more than `most_bytes`; nothing was read.
    """
    size_bytes = store.size(path)
    if size_bytes > most_bytes:
        found, expected = f"{size_bytes:,} bytes", f"at most {most_bytes:,}"
        raise TooLarge("the metadata file is too large", path=path, found=found, expected=expected)
    return store.get(path)
