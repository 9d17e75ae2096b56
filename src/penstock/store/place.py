"""A location: a store, and the path in it. A path that a user gives becomes one here, once, and is one below.

What joins names, takes the last one, or asks whether something is there asks a `Place`: so a URL is never a local path.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeGuard, cast

from penstock import abc
from penstock._paths_as_given import remember_path
from penstock._printable import recordable
from penstock._secrets import redact, redacted_repr
from penstock.errors import NotFound
from penstock.store._files import is_file, is_link
from penstock.store.base import Store, adapted
from penstock.store.patterns import from_working_directory, last_part, pattern_of
from penstock.store.resolve import absolute, is_url, local_path, resolve, within


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
        """Whether it is on this machine."""
        return self.store.is_local

    @property
    def name(self) -> str:
        """The last part of the path."""
        return last_part(self.absolute)

    @property
    def absolute(self) -> str:
        """The path, absolute where it is local; no slash at the end."""
        return absolute(self.path)

    @property
    def shown(self) -> str:
        r"""The absolute path as it may be recorded: without secrets; a byte that is no UTF-8 as `\udce9`."""
        return redact(recordable(self.absolute))

    def folder(self) -> Place:
        """The folder that it lies in; of the root of a disk, and of a bucket or server, itself."""
        path = self.absolute
        _, ends, name = path.partition("://") if is_url(path) else ("", "", path)
        return replace(self, path=path if ends and "/" not in name else os.path.dirname(path))

    def child(self, name: str) -> Place:
        """What lies in it under this name, which may be several joined by slashes; one that begins with a slash too."""
        return replace(self, path=f"{self.path.rstrip('/')}/{name}" if self.path else name)

    def bare(self) -> Place:
        """The same, without slashes at the end of its path."""
        return replace(self, path=self.path.rstrip("/") or self.path)

    def beside(self, suffix: str) -> Place:
        """What is called like it, with `suffix` behind."""
        return replace(self, path=self.bare().path + suffix)

    def exists(self) -> bool:
        """Whether something is there."""
        return self.store.exists(self.path)

    def is_file(self) -> bool:
        """Whether a file is there; on this machine a regular one."""
        return is_file(self.path) if self.is_local else self.exists() and not self.is_folder()

    def is_folder(self) -> bool:
        """Whether a folder is there."""
        return self.store.is_folder(self.path)

    def is_link(self) -> bool:
        """Whether a symbolic link is there; there are none in an object store."""
        return self.is_local and is_link(self.path)

    def names(self) -> list[str]:
        """What lies in it, which may be nothing: names of files and folders, in order; hidden ones too."""
        if self.is_local:
            return sorted(os.listdir(self.path)) if self.is_folder() else []
        start = len(self.path.rstrip("/")) + 1
        try:
            return sorted({path[start:].partition("/")[0] for path in self.store.list(self.path)})
        except NotFound:
            return []


def distinct_names(places: Sequence[Place]) -> list[str]:
    """Distinct names of places, without secrets: the last part of each path, or more where that is needed."""
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
    """Whether it is a path, or a list of paths."""
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
    """The places of many files; those of one bucket or server share a store, and with it what a listing tells."""
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
