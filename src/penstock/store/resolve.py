"""Resolves a URL to its store and the path inside it; paths given by users are parsed here alone.

`os.path` takes a URL for a relative path and makes a local folder `s3:` of it. So `local_path` stands before all work
that needs files of this machine, and `absolute` where names are made of paths that may be URLs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from penstock._limits import MOST_NAME_BYTES
from penstock._secrets import with_auth
from penstock.errors import ConfigError
from penstock.store._files import is_file, leads_somewhere
from penstock.store.base import Store
from penstock.store.local import LocalStore
from penstock.store.patterns import alternatives

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+)://")
_LOST_SLASH = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+:/(?!/)")


def resolve(url: str | os.PathLike[str]) -> tuple[Store, str]:
    """Return the store of a path or URL, and the path in it.

    Plain paths and `file://` are local; a slash at the end of a file's name is ignored. In a remote store, which caches
    copies in the cache folder, the path is the URL. No request is made.

    Args:
        url: path or URL.

    Raises:
        ConfigError: no store supports the scheme, or a local name is invalid.
        MissingExtra: a package that the scheme needs isn't installed.

    Examples:
        >>> from penstock.store import resolve
        >>> store, path = resolve("docs.jsonl")
        >>> type(store).__name__, store.size(path) > 0
        ('LocalStore', True)
    """
    text = os.fspath(url)
    found = _SCHEME.match(text)
    if found is None:
        if _LOST_SLASH.match(text):
            hint = "Pass URLs as strings, scheme://…, not as a Path. For a local folder with this name, use ./…"
            raise ConfigError("a URL with a missing slash", path=text, hint=hint)
        return LocalStore(), _named(os.path.expanduser(text))
    scheme = found[1].lower()
    if scheme == "file":
        return LocalStore(), _named(_path_of(text))
    try:
        text = with_auth(scheme + text[found.end(1) :])
    except ValueError as error:
        raise ConfigError("the user and password were removed from this URL", path=text, hint=str(error)) from None
    return _remote(scheme, text.rstrip("/"))


def within(store: Store, path: str, *, follow_links: bool = False) -> Store:
    """A store for the dataset at `path`: a local one then refuses links out of its folder, unless they are meant."""
    return store.within(path) if store.is_local and not follow_links else store


def real_path(store: Store, path: str) -> str:
    """The path of a file that is opened by its name; raises `UnsafeData` where a link leads out of the dataset."""
    return store.real_path(path) if store.is_local else path


def current_path(store: Store, path: str) -> str:
    """Return where a file of this machine is now: during a commit, in the staging directory."""
    return store.current_path(path) if store.is_local else path


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL, of whatever scheme."""
    return _SCHEME.match(os.fspath(path)) is not None


def local_path(given: str | os.PathLike[str], what: str) -> str:
    """The path of a file or a folder that must be on this machine, as `file://` is.

    Args:
        given: as the user gave it.
        what: it is, for the error: `"the output of pack"`.

    Raises:
        ConfigError: it is in another store; nothing is asked of that.
    """
    if is_url(given) and not os.fspath(given).lower().startswith("file://"):
        hint = "Use a local path and copy the data, or mount the store"
        raise ConfigError(f"{what} must be on this machine", path=given, hint=hint)
    return resolve(given)[1]


def absolute(path: str) -> str:
    """A path in its store: absolute where it is local; a URL as it is, but for slashes at its end."""
    return path.rstrip("/") if is_url(path) else os.path.abspath(path)


def as_given(path: str, arguments: Iterable[str]) -> str:
    """A path as it was typed, or from the working folder; as it is where it was typed so, or lies elsewhere."""
    typed = [value for one in arguments for value in (one, one.partition("=")[2]) if value]
    if not path.startswith("/") or any(path.startswith(one) for one in typed if one.startswith("/")):
        return path
    of_typed = next((one for one in typed if absolute(one) == path), None)
    return of_typed or path.removeprefix(absolute(".").rstrip("/") + "/")


def same_file(first: str, second: str) -> bool:
    """Whether two paths, of files that need not be there, lead to one file; links are followed."""
    if is_url(first) or is_url(second):
        return absolute(first) == absolute(second)
    if leads_somewhere(first) and leads_somewhere(second):
        return os.path.samefile(first, second)
    return os.path.realpath(first) == os.path.realpath(second)


def _path_of(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise ConfigError("a file URL can't have a host", path=url, expected="file:///folder/name")
    if "?" in url or "#" in url:
        raise ConfigError("a file URL can't have a query", path=url, hint="Write %3F for ? and %23 for #")
    return unquote(parts.path)


def _named(path: str) -> str:
    """The local path, without slashes at its end where a file has the name before them."""
    path = _possible(path)
    bare = path.rstrip("/")
    return bare if bare != path and is_file(bare) else path


def _possible(path: str) -> str:
    try:
        longest_bytes = max(len(name) for one in alternatives(path) for name in os.fsencode(one).split(b"/"))
    except UnicodeEncodeError:  # half a surrogate pair
        longest_bytes = MOST_NAME_BYTES + 1
    if "\0" in path or longest_bytes > MOST_NAME_BYTES:
        raise ConfigError(
            "not a valid file name",
            found=repr(path)[:80],
            expected=f"at most {MOST_NAME_BYTES} bytes between slashes, without NUL",
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
        hint = f"Use a local path, file://…, {known}, or an fsspec scheme"
        raise ConfigError(f"no store for the scheme {scheme!r}", path=url, hint=hint)
    return CachedStore(FsspecStore(scheme, url=url)), url
