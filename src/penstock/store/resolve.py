"""URL → the store that holds it, and the path inside that store."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from penstock.abc import Store
from penstock.errors import ConfigError
from penstock.store.local import LocalStore

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")


def resolve(url: str | os.PathLike[str]) -> tuple[Store, str]:
    """The store of `url` and the path in it. A plain path and `file://` are local.

    Raises:
        ConfigError: a scheme that no store serves.
    """
    text = os.fspath(url)
    if not _SCHEME.match(text):
        return LocalStore(), os.path.expanduser(text)
    parts = urlsplit(text)
    if parts.scheme == "file":
        return LocalStore(), unquote(parts.path)
    raise ConfigError(f"no store for the scheme {parts.scheme!r}", path=text, hint="Give a local path or file://…")
