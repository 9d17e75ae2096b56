"""The first bytes of what may be no file, by which a format tells its own."""

from penstock.abc import Store
from penstock.errors import Denied, PenstockError, Unreachable


def beginning_of(store: Store, path: str, length_bytes: int) -> bytes | None:
    """Up to so many bytes; None where no file of this name is, or the store lets nobody see one.

    Raises:
        OSError: it is there and can't be read, or the store does not answer: nobody knows what it is.
    """
    try:
        return store.get(path, 0, length_bytes)
    except Denied:  # some stores say so of what is not there, too
        return None
    except Unreachable:
        raise
    except (PenstockError, IsADirectoryError, NotADirectoryError):
        return None
