"""The files of a folder of token files: what each one is on disk, and the ones that are open."""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol, cast

from penstock.abc import TokenSource
from penstock.errors import Corrupt
from penstock.formats import get_format, owned_by
from penstock.formats.tokens.folder.index import (
    INDEX_NAME,
    MOST_INDEX_BYTES,
    SUFFIXES,
    TOKEN_FILE_NAME,
    TokenFileIndex,
    decode_index,
)
from penstock.store._files import is_link
from penstock.store.base import Store
from penstock.store.side_file import NEXT
from penstock.types import IntArray, Manifest, OpenOptions

SIDE_NAME = ".penstock"
WORK = ".work"
"""The folder of unfinished work in one of token files."""
_IN_FILES = ("pbin", "megatron")
_PLANES = (f"{INDEX_NAME}.planes", f"{INDEX_NAME}.plane.")
_MOST_IN_GROUP = 1000
MOST_OPEN = 128
"""Token files that one source holds open; a Megatron pair counts as one."""

COPY_AGAIN = "Copy it again; `penstock verify` finds all files that differ"
_DIFFERENT = "Its files come from different runs; `penstock verify` lists those that differ"


_IN_GROUP = re.compile(r"(?:\w+/)?(?:(?:c/)?\d+|zarr\.json|\.z(?:array|attrs|group|metadata))", re.A)
"""What the files of a zarr group with one split, or none, are called in it."""


def folder_of(path: str) -> str:
    """The folder that a path names: itself, or that of the `index.json`."""
    root = path.rstrip("/") or path
    return (os.path.dirname(root) or ".") if os.path.basename(root) == INDEX_NAME else root


def stem_of(name: str) -> str:
    """The name of a token file without its suffix."""
    return name.rpartition(".")[0]


def is_unfinished_name(name: str) -> bool:
    """Whether a name in a folder is one that unfinished work gives: to its own folder, or to what it makes."""
    return name in (WORK, SIDE_NAME, SIDE_NAME + NEXT) or is_token_file_name(name) or name.startswith(_PLANES)


def is_token_file_name(name: str) -> bool:
    """Whether a name is that of a token file of ours, of its index or of its side file."""
    found = TOKEN_FILE_NAME.fullmatch(name.removesuffix(SIDE_NAME))
    return found is not None and found["suffix"] in (*SUFFIXES.values(), "idx")


def side_name(format: str, name: str) -> str:
    """The side file of a token file, by its name in the folder."""
    return f"{stem_of(name)}.idx.penstock" if format == "megatron" else f"{name}.penstock"


def data_names(format: str, name: str) -> tuple[str, ...]:
    """The files of a token file, or its folder, by their names in the folder."""
    return (name, f"{stem_of(name)}.idx") if format == "megatron" else (name,)


def read_index(store: Store, root: str) -> TokenFileIndex:
    """The index of a folder; raises as `read_index_bytes`, or what `decode_index` raises."""
    return decode_index(read_index_bytes(store, root), f"{root}/{INDEX_NAME}")


def read_index_bytes(store: Store, root: str) -> bytes:
    """The bytes of the index of a folder, no more than one can have and one; raises `NotFound` and `Corrupt`."""
    path = f"{root}/{INDEX_NAME}"
    try:
        return store.get(path, 0, MOST_INDEX_BYTES + 1)
    except IsADirectoryError:
        raise Corrupt("the index is a folder", path=path) from None


def own_files(store: Store, folder: str) -> list[str]:
    """The files that the index of a folder lists, by their names there, with their side files; the index last.

    What `--overwrite` replaces, and nothing else. Raises as `read_index`.
    """
    return listed_files(store, folder, read_index(store, folder))


def listed_files(store: Store, folder: str, index: TokenFileIndex) -> list[str]:
    """What an index lists, as `own_files` does."""
    sides = (side_name(index.format, one.path) for one in index.files)
    return [*data_files(store, folder, index), *sides, SIDE_NAME, INDEX_NAME]


def size_of_files(store: Store, folder: str, index: TokenFileIndex) -> int:
    """Bytes of all token files; of groups, of the files that are there."""
    paths = [f"{folder}/{name}" for name in dict.fromkeys(data_files(store, folder, index))]
    in_groups = owned_by(index.format, store) is not None
    return sum(store.size(path) for path in paths if not in_groups or store.exists(path))


def data_files(store: Store, folder: str, index: TokenFileIndex) -> list[str]:
    """The files of all token files, by their names in the folder; of groups also such as may be there."""
    names = (name for one in index.files for name in data_names(index.format, one.path))
    return [file for name in names for file in _files_of(store, folder, index.format, name)]


def _files_of(store: Store, folder: str, format: str, name: str) -> list[str]:
    own = owned_by(format, store)
    return [name] if own is None else [f"{name}/{inner}" for inner in own(f"{folder}/{name}") or ()]


def unlisted_names(store: Store, folder: str, name: str) -> list[str]:
    """The files of a token file that no index lists, by their names in the folder: it may not be whole."""
    path = f"{folder}/{name}"
    if not store.is_folder(path) or (store.is_local and is_link(path)):
        return [name]
    return [f"{name}/{one}" for file in store.list(path) if _IN_GROUP.fullmatch(one := file[len(path) + 1 :])]


def manifest_of(source: object) -> Manifest | None:
    """What the side file of an opened token file says; None where there is none that fits."""
    manifest = getattr(source, "manifest", None)
    return manifest if isinstance(manifest, Manifest) else None


class FileList(Protocol):
    """The files of a source of token files, in order, and what each of them holds."""

    @property
    def format(self) -> str:
        """Of all of them."""
        ...

    @property
    def manifest(self) -> Manifest | None:
        """What is said of all of them together."""
        ...

    def __len__(self) -> int: ...

    def path(self, number: int, /) -> str:
        """Where file `number` is."""
        ...

    @property
    def tokens(self) -> IntArray:
        """int64[n_files]: tokens of each."""
        ...

    @property
    def documents(self) -> IntArray:
        """int64[n_files]: documents of each."""
        ...

    @property
    def max_token_id(self) -> int | None:
        """The largest id; None where that is not known, or there is no token."""
        ...

    @property
    def size_bytes(self) -> int | None:
        """Bytes of all; None where that is not known."""
        ...

    @property
    def fingerprint(self) -> str:
        """32 hex digits."""
        ...

    def require(self, number: int, source: TokenSource, /) -> None:
        """That an opened file is the one that is meant; raises `Corrupt`."""
        ...

    def contradiction(self, number: int, found: str, expected: str, /) -> Corrupt:
        """The error for a file that is another one."""
        ...


class OpenFiles:
    """The files of a source of token files as token sources, opened when they are read; those used last stay open.

    Thread-safe, picklable, and safe after fork. An array that was handed out keeps its file's mapping until it goes.

    Args:
        store: where they are.
        listed: which they are.
        options: for each of them.

    Attributes:
        most: that stay open.
        opened: so many times a file was opened.
    """

    def __init__(self, store: Store, listed: FileList, options: OpenOptions) -> None:
        self._args = (store, listed, options)
        self._open: OrderedDict[int, TokenSource] = OrderedDict()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self.most = MOST_OPEN
        self.opened = 0

    def __reduce__(self) -> tuple[object, ...]:
        return (OpenFiles, self._args)

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def get(self, number: int, check: Callable[[int, TokenSource], None] | None = None) -> TokenSource:
        """File `number`, which is given to `check` when it is opened.

        Raises:
            NotFound: it is not there.
            FormatError: it is damaged, or not the file that the index lists.
        """
        with self._held():
            found = self._open.get(number)
            if found is not None:
                self._open.move_to_end(number)
                return found
        found = self._read(number)
        if check is not None:
            check(number, found)
        with self._held():  # two threads may both come here: they opened the same bytes, and one goes
            self._open[number] = found
            while len(self._open) > self.most:
                self._open.popitem(last=False)
        return found

    def _read(self, number: int) -> TokenSource:
        store, listed, options = self._args
        self.opened += 1
        path = listed.path(number)
        if store.keeps_copies:
            path = _stated(store, listed, number)
        found = cast(TokenSource, get_format(listed.format).open(store, path, options))
        listed.require(number, found)
        return found

    def _held(self) -> threading.Lock:
        if self._pid != os.getpid():
            # A thread of the parent may have held the lock when this process was forked; it does not live here.
            self._lock, self._pid = threading.Lock(), os.getpid()
        return self._lock


def _stated(store: Store, listed: FileList, number: int) -> str:
    """Say that the files of a token file are there, and about their sizes, which are not asked for then; its path."""
    path, format = listed.path(number), listed.format
    if format not in _IN_FILES:
        store.survey(path, _MOST_IN_GROUP)
        return path
    for name in data_names(format, path):
        store.expect_size(name, max(1, int(listed.tokens[number])), exact=False)
    if listed.manifest is not None:  # ours have side files
        store.expect_size(side_name(format, path), 1, exact=False)
    return stem_of(path) if format == "megatron" else path


def require_alike(what: str, found: Any, path: str, expected: Any, first: str) -> None:
    """That a file agrees with the first one of its folder; raises `Corrupt`."""
    if found != expected:
        raise Corrupt(
            f"token files in one folder have different {what}",
            path=path,
            found=str(found),
            expected=f"{expected}, as in {first}",
            hint=_DIFFERENT,
        )
