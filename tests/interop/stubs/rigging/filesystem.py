"""Local files by fsspec, as rigging opens them."""

import fsspec
from fsspec.core import url_to_fs

__all__ = ["atomic_rename", "open_url", "record_transfer", "url_to_fs"]
open_url = fsspec.open
atomic_rename = None


def record_transfer(*what: object) -> None:
    """Counts nothing."""
