"""Locations: a store and a path in it. User input is converted here once; internal code uses `Place`.

Code that joins or splits names, or checks for existence, uses `Place`, so a URL is never treated as a local path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeGuard, cast
from urllib.parse import unquote, urlsplit

from penstock import abc
from penstock._limits import MOST_NAME_BYTES
from penstock._printable import recordable, remember_path
from penstock._secrets import redact, redacted_repr, with_auth
from penstock.errors import ConfigError, NotFound
from penstock.store._files import is_file, is_link, leads_somewhere
from penstock.store.base import Store, adapted
from penstock.store.local import LocalStore
from penstock.store.patterns import alternatives, from_working_directory, last_part, pattern_of

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
            url = text.replace(":/", "://", 1)
            hint = f"Write {url} (a Path drops a slash; pass a string). For a local folder with this name, use ./…"
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
    """Return a store for the dataset at `path`; a local one rejects links out of its folder, unless allowed."""
    return store if follow_links else store.within(path)


def is_url(path: str | os.PathLike[str]) -> bool:
    return _SCHEME.match(os.fspath(path)) is not None


def local_path(given: str | os.PathLike[str], what: str) -> str:
    """Return the path of a file or folder that must be on this machine; `file://` URLs are accepted.

    Args:
        given: path as given by the user.
        what: description for the error, such as `"the output of pack"`.

    Raises:
        ConfigError: it is in another store, which isn't accessed.
    """
    if is_url(given) and not os.fspath(given).lower().startswith("file://"):
        hint = "Use a local path and copy the data, or mount the store"
        raise ConfigError(f"{what} must be on this machine", path=given, hint=hint)
    return resolve(given)[1]


def absolute(path: str) -> str:
    """Return the absolute path of a local path, or a URL without trailing slashes."""
    return path.rstrip("/") if is_url(path) else os.path.abspath(path)


def as_given(path: str, arguments: Iterable[str]) -> str:
    """Return a path as the user typed it, else relative to the working directory if it is below, else unchanged."""
    typed = [value for one in arguments for value in (one, one.partition("=")[2]) if value]
    if not path.startswith("/") or any(path.startswith(one) for one in typed if one.startswith("/")):
        return path
    of_typed = next((one for one in typed if absolute(one) == path), None)
    return of_typed or path.removeprefix(absolute(".").rstrip("/") + "/")


def same_file(first: str, second: str) -> bool:
    """Return whether two paths are the same file, following links; the paths may not exist."""
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
    """Return the local path, without trailing slashes if a file has that name."""
    path = _possible(path)
    bare = path.rstrip("/")
    return bare if bare != path and is_file(bare) else path


def _possible(path: str) -> str:
    try:
        longest_bytes = max(len(name) for one in alternatives(path) for name in os.fsencode(one).split(b"/"))
    except UnicodeEncodeError:  # a lone surrogate
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


@redacted_repr
@dataclass(frozen=True, slots=True)
class Place:
    """Location of a file, a folder or a dataset, which may not exist yet.

    Attributes:
        store: its store.
        path: its path in the store, as named by the user: a local path, or the URL of a remote file.
    """

    store: Store
    path: str

    @property
    def is_local(self) -> bool:
        return self.store.is_local

    @property
    def name(self) -> str:
        return last_part(self.absolute)

    @property
    def absolute(self) -> str:
        """Path, absolute if it is local, without a trailing slash."""
        return absolute(self.path)

    @property
    def shown(self) -> str:
        r"""Absolute path for records: without secrets, and with bytes that aren't UTF-8 escaped as `\udce9`."""
        return redact(recordable(self.absolute))

    def folder(self) -> Place:
        """Return the parent folder; the root of a disk, a bucket or a server is its own parent."""
        path = self.absolute
        _, ends, name = path.partition("://") if is_url(path) else ("", "", path)
        return replace(self, path=path if ends and "/" not in name else os.path.dirname(path))

    def child(self, name: str) -> Place:
        """Return the place of `name` in this folder; the name may contain slashes, also at the start."""
        return replace(self, path=f"{self.path.rstrip('/')}/{name}" if self.path else name)

    def bare(self) -> Place:
        """Return the same place without trailing slashes."""
        return replace(self, path=self.path.rstrip("/") or self.path)

    def beside(self, suffix: str) -> Place:
        """Return the place with `suffix` added to its name."""
        return replace(self, path=self.bare().path + suffix)

    def exists(self) -> bool:
        return self.store.exists(self.path)

    def is_file(self) -> bool:
        """Return whether it is a file; a local one must be a regular file."""
        return is_file(self.path) if self.is_local else self.exists() and not self.is_folder()

    def is_folder(self) -> bool:
        return self.store.is_folder(self.path)

    def is_link(self) -> bool:
        """Return whether it is a symbolic link; object stores have none."""
        return self.is_local and is_link(self.path)

    def names(self) -> list[str]:
        """Return the sorted names of the files and folders in it, including hidden ones."""
        if self.is_local:
            return sorted(os.listdir(self.path)) if self.is_folder() else []
        start = len(self.path.rstrip("/")) + 1
        try:
            return sorted({path[start:].partition("/")[0] for path in self.store.list(self.path)})
        except NotFound:
            return []


def distinct_names(places: Sequence[Place]) -> list[str]:
    """Return distinct names without secrets: the last part of each path, or more if necessary."""
    names = [last_part(place.shown) for place in places]
    if len(set(names)) == len(names):
        return names
    # URLs also differ by their host or bucket.
    paths = ["/" + place.shown.replace("://", "/", 1).lstrip("/") for place in places]
    root = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [os.path.relpath(path, root) for path in paths]


Given: TypeAlias = str | os.PathLike[str] | Place
"""Accepted types for a location: a path, a URL, or a `Place`."""
Data: TypeAlias = Given | Sequence[str | os.PathLike[str]]
"""Accepted types for input data: a location, or several files, folders and patterns."""


def is_data(given: object) -> TypeGuard[str | os.PathLike[str] | Sequence[str | os.PathLike[str]]]:
    several: Sequence[object] = cast(Sequence[object], given) if isinstance(given, list | tuple) else [given]
    return bool(several) and all(isinstance(one, str | os.PathLike) for one in several)


def place_of(given: Data, store: abc.Store | None = None) -> Place:
    """Return the place of a path or URL; a place is returned unchanged.

    Args:
        given: path, URL or place; several paths of data are one pattern.
        store: its store; by default determined by the path.

    Raises:
        ConfigError: no store supports the scheme, or a local name is invalid.
    """
    if isinstance(given, Place):
        return given
    found, path = resolve(given if isinstance(given, str | os.PathLike) else pattern_of(given))
    return Place(found if store is None else adapted(store), path)


def places_of(paths: Iterable[str]) -> list[Place]:
    """Return the places of many files; files of one bucket or server share a store and its listing."""
    stores: dict[str, Store] = {}
    found: list[Place] = []
    for path in paths:
        place = place_of(path)
        host = path.split("/", 3)[:3] if is_url(path) else []
        found.append(replace(place, store=stores.setdefault("/".join(host), place.store)))
    return found


def local_place(given: Given, what: str, store: abc.Store | None = None) -> Place:
    """Return the place of a file or folder that must be on this machine; `file://` URLs are accepted.

    Args:
        given: see `place_of`.
        what: description for the error, such as `"the output of pack"`.
        store: see `place_of`.

    Raises:
        ConfigError: it is in another store, which isn't accessed.
    """
    return given if isinstance(given, Place) else place_of(local_path(given, what), store)


def fixed_place(given: Data, store: abc.Store | None = None) -> Place:
    """Return the place with an absolute path, so that later changes of the working directory don't affect it.

    Raises:
        ConfigError: see `place_of`.
        NotFound: the path is relative, and the working directory was removed.
    """
    if not isinstance(given, str | os.PathLike | Place):
        given = [fixed_place(one, store).path for one in given]
    place = place_of(given, store)
    if not place.is_local or place.path.startswith("/"):
        return place
    path = from_working_directory(place.path)
    remember_path(path, place.path)
    return replace(place, path=path)


def fixed_path(path: str | os.PathLike[str]) -> str:
    """Return the absolute path of a local path, or a URL unchanged; see `fixed_place`."""
    return os.fspath(path) if is_url(path) else fixed_place(path).path


def dataset_at(given: Data, store: abc.Store | None = None, *, follow_links: bool = False) -> Place:
    """Return the fixed place of a dataset to read; links out of it are only followed with `follow_links`."""
    place = fixed_place(given, store)
    return replace(place, store=within(place.store, place.path, follow_links=follow_links))
