"""URL → the store that holds it, and the path inside that store."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from penstock._limits import MOST_NAME_BYTES
from penstock.abc import Store
from penstock.errors import ConfigError
from penstock.store.local import LocalStore

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")


def resolve(url: str | os.PathLike[str]) -> tuple[Store, str]:
    """The store of `url` and the path in it.

    A plain path and `file://` are local. In a remote store, which keeps copies in the cache folder, the path is the
    URL; nothing is asked of it here.

    Raises:
        ConfigError: a scheme that no store serves, or a local name that no file can have.
        MissingExtra: a package that the scheme needs is not installed.
    """
    text = os.fspath(url)
    if not _SCHEME.match(text):
        return LocalStore(), _possible(os.path.expanduser(text))
    parts = urlsplit(text)
    if parts.scheme == "file":
        return LocalStore(), _possible(unquote(parts.path))
    return _remote(parts.scheme, text.rstrip("/"))


def _possible(path: str) -> str:
    try:
        longest_bytes = max(map(len, os.fsencode(path).split(b"/")))
    except UnicodeEncodeError:  # half a surrogate pair
        longest_bytes = MOST_NAME_BYTES + 1
    if "\0" in path or longest_bytes > MOST_NAME_BYTES:
        raise ConfigError(
            "no file can have this name",
            found=repr(path)[:80],
            expected=f"at most {MOST_NAME_BYTES} bytes between slashes, none of them zero",
        )
    return path


def _remote(scheme: str, url: str) -> tuple[Store, str]:
    from penstock.store.cache import CachedStore
    from penstock.store.remote import SCHEMES, RemoteStore, base_of

    if scheme in SCHEMES:
        return CachedStore(RemoteStore(base_of(url))), url
    from penstock.store.fsspec_store import FsspecStore, knows

    if not knows(scheme):
        known = ", ".join(f"{one}://" for one in SCHEMES)
        hint = f"Give a local path, file://…, {known}, or a scheme of fsspec"
        raise ConfigError(f"no store for the scheme {scheme!r}", path=url, hint=hint)
    return CachedStore(FsspecStore(scheme)), url
