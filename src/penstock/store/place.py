"""A location: a store, and the path in it. A path that a user gives becomes one here, once, and is one below.

What joins names, takes the last one, or asks whether something is there asks a `Place`: so a URL is never a local path.
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
    """Return a store for the dataset at `path`; a local one rejects links out of its folder, unless allowed."""
    return store if follow_links else store.within(path)


def is_url(path: str | os.PathLike[str]) -> bool:
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
    """Return a path as an absolute one, and a URL without slashes at its end."""
    return path.rstrip("/") if is_url(path) else os.path.abspath(path)


def as_given(path: str, arguments: Iterable[str]) -> str:
    """Return a path as it was typed, or relative to the working folder; unchanged if typed so, or elsewhere."""
    typed = [value for one in arguments for value in (one, one.partition("=")[2]) if value]
    if not path.startswith("/") or any(path.startswith(one) for one in typed if one.startswith("/")):
        return path
    of_typed = next((one for one in typed if absolute(one) == path), None)
    return of_typed or path.removeprefix(absolute(".").rstrip("/") + "/")


def same_file(first: str, second: str) -> bool:
    """Return whether two paths, which may not exist, lead to the same file; links are followed."""
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
    """Return the local path; without slashes at its end if a file has that name."""
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


@redacted_repr
@dataclass(frozen=True, slots=True)
class Place:
    """A file, a folder or a dataset, which may not be there yet.

    Attributes:
        store: where it is.
        path: in the store, as the user named it: a local path, or the URL of a remote one.
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
        """The path, absolute if it is local; no slash at the end."""
        return absolute(self.path)

    @property
    def shown(self) -> str:
        r"""The absolute path as it may be recorded: without secrets; a byte that isn't UTF-8 as `\udce9`."""
        return redact(recordable(self.absolute))

    def folder(self) -> Place:
        """Return the parent folder; of the root of a disk, and of a bucket or server, itself."""
        path = self.absolute
        _, ends, name = path.partition("://") if is_url(path) else ("", "", path)
        return replace(self, path=path if ends and "/" not in name else os.path.dirname(path))

    def child(self, name: str) -> Place:
        """Return the place of this name in it, which may have slashes; also one that begins with a slash."""
        return replace(self, path=f"{self.path.rstrip('/')}/{name}" if self.path else name)

    def bare(self) -> Place:
        """Return the same place without slashes at the end."""
        return replace(self, path=self.path.rstrip("/") or self.path)

    def beside(self, suffix: str) -> Place:
        """Return the place with `suffix` added to its name."""
        return replace(self, path=self.bare().path + suffix)

    def exists(self) -> bool:
        return self.store.exists(self.path)

    def is_file(self) -> bool:
        """Return whether it is a file; on this machine a regular one."""
        return is_file(self.path) if self.is_local else self.exists() and not self.is_folder()

    def is_folder(self) -> bool:
        return self.store.is_folder(self.path)

    def is_link(self) -> bool:
        """Return whether it is a symbolic link; object stores have none."""
        return self.is_local and is_link(self.path)

    def names(self) -> list[str]:
        """Return the names of files and folders in it, in order, including hidden ones."""
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
    # A URL is told apart by its host or bucket too.
    paths = ["/" + place.shown.replace("://", "/", 1).lstrip("/") for place in places]
    root = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [os.path.relpath(path, root) for path in paths]


Given: TypeAlias = str | os.PathLike[str] | Place
"""What a user may give for a place: a path, a URL, or a place."""
Data: TypeAlias = Given | Sequence[str | os.PathLike[str]]
"""The same for a dataset that is read, which several files, folders and patterns may be."""


def is_data(given: object) -> TypeGuard[str | os.PathLike[str] | Sequence[str | os.PathLike[str]]]:
    several: Sequence[object] = cast(Sequence[object], given) if isinstance(given, list | tuple) else [given]
    return bool(several) and all(isinstance(one, str | os.PathLike) for one in several)


def place_of(given: Data, store: abc.Store | None = None) -> Place:
    """The place that a path or URL names; a place stays as it is.

    Args:
        given: path, URL or place; several paths of data are one pattern.
        store: where it is; follows from the path where it is None.

    Raises:
        ConfigError: a scheme that no store serves, or a local name that no file can have.
    """
    if isinstance(given, Place):
        return given
    found, path = resolve(given if isinstance(given, str | os.PathLike) else pattern_of(given))
    return Place(found if store is None else adapted(store), path)


def places_of(paths: Iterable[str]) -> list[Place]:
    """Return the places of many files; those of one bucket or server share a store and its listing."""
    stores: dict[str, Store] = {}
    found: list[Place] = []
    for path in paths:
        place = place_of(path)
        host = path.split("/", 3)[:3] if is_url(path) else []
        found.append(replace(place, store=stores.setdefault("/".join(host), place.store)))
    return found


def local_place(given: Given, what: str, store: abc.Store | None = None) -> Place:
    """The same of what must be on this machine, as `file://` is.

    Args:
        given: as of `place_of`.
        what: it is, for the error: `"the output of pack"`.
        store: as of `place_of`.

    Raises:
        ConfigError: it is in another store; nothing is asked of that.
    """
    return given if isinstance(given, Place) else place_of(local_path(given, what), store)


def fixed_place(given: Data, store: abc.Store | None = None) -> Place:
    """Return the place that a path names now, so that later changes of the working directory don't move it.

    Raises:
        ConfigError: as `place_of`.
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
    """Return a local path as an absolute one, and a URL as it is; see `fixed_place`."""
    return os.fspath(path) if is_url(path) else fixed_place(path).path


def dataset_at(given: Data, store: abc.Store | None = None, *, follow_links: bool = False) -> Place:
    """Return the fixed place of a dataset to read; links out of it are only read with `follow_links`."""
    place = fixed_place(given, store)
    return replace(place, store=within(place.store, place.path, follow_links=follow_links))
