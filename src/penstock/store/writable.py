"""Refuses to write where a store is only read: a web server, a zip file."""

from penstock.abc import Store
from penstock.store.local import LocalStore


def require_writable(store: Store, path: str) -> None:
    """Refuse to write into a store that is only read, before anything of it is.

    Raises:
        Unsupported: the store is only read.
    """
    if not isinstance(store, LocalStore):
        store.stage(path, overwrite=True).abort()
