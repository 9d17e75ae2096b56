"""Files of a folder of token files: their names on disk, unfinished ones, and the open ones.

A folder with an unfinished run of `pack` is never read as if it were complete.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, cast

from penstock._secrets import redact
from penstock.abc import TokenSource
from penstock.errors import Corrupt, NotFound, PrepareError
from penstock.formats import get_format, owned_by
from penstock.formats.tokens.folder.index import (
    INDEX_NAME,
    MOST_INDEX_BYTES,
    SUFFIXES,
    TOKEN_FILE_NAME,
    TokenFileIndex,
    decode_index,
)
from penstock.store._files import is_folder, is_link
from penstock.store.base import Store
from penstock.store.names import NEXT, WORK
from penstock.types import IntArray, Manifest, OpenOptions

SIDE_NAME = ".penstock"
_IN_FILES = ("pbin", "megatron")
_PLANES = (f"{INDEX_NAME}.planes", f"{INDEX_NAME}.plane.")
_MOST_IN_GROUP = 1000
MOST_OPEN = 128
"""Token files that one source keeps open; a Megatron pair counts as one."""

_COMMIT_FILES = (
    *(INDEX_NAME, ".nv-meta/.info.json", ".nv-meta/.info.yaml", ".zgroup", ".zarray", "zarr.json"),
    *("state.json", "dataset_dict.json"),
)
"""Files that each make a folder a dataset, even with unfinished work in it."""
_MOST_LOOKED_AT = 1000

COPY_AGAIN = "Copy it again; `penstock verify` finds all files that differ"
_DIFFERENT = "Its files come from different runs; `penstock verify` lists those that differ"


_IN_GROUP = re.compile(r"(?:\w+/)?(?:(?:c/)?\d+|zarr\.json|\.z(?:array|attrs|group|metadata))", re.A)
"""Names of the files in a zarr group with one split, or none."""


def folder_of(path: str) -> str:
    """Return the folder that a path names: itself, or that of the `index.json`."""
    root = path.rstrip("/") or path
    return (os.path.dirname(root) or ".") if os.path.basename(root) == INDEX_NAME else root


def stem_of(name: str) -> str:
    """Return the name of a token file without its suffix."""
    return name.rpartition(".")[0]


def is_unfinished_name(name: str) -> bool:
    """Return whether a name in a folder is that of unfinished work: of its folder, or of its output."""
    return name in (WORK, SIDE_NAME, SIDE_NAME + NEXT) or is_token_file_name(name) or name.startswith(_PLANES)


def is_token_file_name(name: str) -> bool:
    """Return whether a name is that of a token file of Penstock, of its index or of its side file."""
    found = TOKEN_FILE_NAME.fullmatch(name.removesuffix(SIDE_NAME))
    return found is not None and found["suffix"] in (*SUFFIXES.values(), "idx")


def side_name(format: str, name: str) -> str:
    """Return the name of the side file of a token file in the folder."""
    return f"{stem_of(name)}.idx.penstock" if format == "megatron" else f"{name}.penstock"


def data_names(format: str, name: str) -> tuple[str, ...]:
    """Return the names of the files of a token file, or of its folder."""
    return (name, f"{stem_of(name)}.idx") if format == "megatron" else (name,)


def read_index(store: Store, root: str) -> TokenFileIndex:
    """Return the index of a folder; for errors, see `read_index_bytes` and `decode_index`."""
    return decode_index(read_index_bytes(store, root), f"{root}/{INDEX_NAME}")


def read_index_bytes(store: Store, root: str) -> bytes:
    """Return the bytes of the index of a folder, at most one more than the limit; raise `NotFound` or `Corrupt`."""
    path = f"{root}/{INDEX_NAME}"
    try:
        return store.get(path, 0, MOST_INDEX_BYTES + 1)
    except IsADirectoryError:
        raise Corrupt("the index is a folder", path=path) from None


def own_files(store: Store, folder: str) -> list[str]:
    """Return the names of the files that the index of a folder lists, and of their side files; the index last.

    `--overwrite` replaces these files, and nothing else. For errors, see `read_index`.
    """
    return listed_files(store, folder, read_index(store, folder))


def listed_files(store: Store, folder: str, index: TokenFileIndex) -> list[str]:
    """Return the files that an index lists, as `own_files` does."""
    sides = (side_name(index.format, one.path) for one in index.files)
    return [*data_files(store, folder, index), *sides, SIDE_NAME, INDEX_NAME]


def size_of_files(store: Store, folder: str, index: TokenFileIndex) -> int:
    """Return the size in bytes of all token files; of groups, that of existing files."""
    paths = [f"{folder}/{name}" for name in dict.fromkeys(data_files(store, folder, index))]
    in_groups = owned_by(index.format, store) is not None
    return sum(store.size(path) for path in paths if not in_groups or store.exists(path))


def data_files(store: Store, folder: str, index: TokenFileIndex) -> list[str]:
    """Return the names of the files of all token files; for groups also those of optional files."""
    names = (name for one in index.files for name in data_names(index.format, one.path))
    return [file for name in names for file in _files_of(store, folder, index.format, name)]


def _files_of(store: Store, folder: str, format: str, name: str) -> list[str]:
    own = owned_by(format, store)
    return [name] if own is None else [f"{name}/{inner}" for inner in own(f"{folder}/{name}") or ()]


def unlisted_names(store: Store, folder: str, name: str) -> list[str]:
    """Return the names of the files of a token file without an entry in an index; it may be incomplete."""
    path = f"{folder}/{name}"
    if not store.is_folder(path) or (store.is_local and is_link(path)):
        return [name]
    return [f"{name}/{one}" for file in store.list(path) if _IN_GROUP.fullmatch(one := file[len(path) + 1 :])]


# --- unfinished work -------------------------------------------------------------------------------------------------


def find_unfinished(store: Store, root: str) -> str | None:
    """Return the evidence that a folder without an index holds unfinished work; None without any.

    This takes a few lookups, and a listing of the first 1,000 names.
    """
    if store.exists(f"{root}/{WORK}"):
        return None if any(store.exists(f"{root}/{name}") for name in _COMMIT_FILES) else f"{WORK}/ and no commit file"
    if store.exists(f"{root}/{INDEX_NAME}"):
        return None
    first = first_token_file(store, root)
    return None if first is None else f"{first} and no {INDEX_NAME}"


def first_token_file(store: Store, root: str) -> str | None:
    """Return a token file of Penstock among the first 1,000 names in a folder, or None."""
    return next((name for name in _names(store, root) if TOKEN_FILE_NAME.fullmatch(name)), None)


def read_finished_index(store: Store, root: str) -> bytes:
    """Return the bytes of the index of a folder.

    Raises:
        NotFound: neither an index nor unfinished work exists.
        PrepareError: the run that makes it is unfinished.
    """
    try:
        return read_index_bytes(store, root)
    except NotFound:
        found = find_unfinished(store, root)
        if found is None:
            raise
        raise unfinished(root, found) from None


def unfinished(root: str, found: str) -> PrepareError:
    """Return the error for reading such a folder."""
    return PrepareError(
        "the dataset is unfinished",
        path=root,
        found=found,
        expected=INDEX_NAME,
        hint=f"`penstock status {redact(root)}` shows what is missing; re-run the command that began it to finish",
    )


def _names(store: Store, root: str) -> Iterator[str]:
    if store.is_local and is_folder(root):
        with os.scandir(root) as entries:
            yield from (entry.name for entry in itertools.islice(entries, _MOST_LOOKED_AT))
    first_names = getattr(store, "first_names", None)  # of a remote store: by one request
    for path in first_names(root) if first_names is not None else ():
        yield path.partition("/")[0]


# --- open files ------------------------------------------------------------------------------------------------------


def manifest_of(source: object) -> Manifest | None:
    """Return the side file of an opened token file, or None."""
    manifest = getattr(source, "manifest", None)
    return manifest if isinstance(manifest, Manifest) else None


class FileList(ABC):
    """Files of a source of token files, in order, and the counts of each.

    Attributes:
        format: format of all files.
        paths: paths of the files; empty if an index lists them.
    """

    format: str
    paths: tuple[str, ...] = ()
    _changed: tuple[str, str]
    """Problem of a file that isn't the listed one, and a hint."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def path(self, number: int, /) -> str:
        """Return the path of file `number`."""

    @cached_property
    def tokens(self) -> IntArray:
        """Number of tokens of each file, int64[n_files]."""
        raise TypeError(type(self).__name__)

    @cached_property
    def documents(self) -> IntArray:
        """Number of documents of each file, int64[n_files]."""
        raise TypeError(type(self).__name__)

    @cached_property
    def manifest(self) -> Manifest | None:
        """Record of how all files were made."""
        return None

    @property
    @abstractmethod
    def max_token_id(self) -> int | None:
        """Largest id; None if unknown, or without tokens."""

    @property
    @abstractmethod
    def size_bytes(self) -> int | None:
        """Size of all files in bytes; None if unknown."""

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of 32 hex digits."""
        return self._find_fingerprint()

    @abstractmethod
    def _find_fingerprint(self) -> str: ...

    def require(self, number: int, source: TokenSource, /) -> None:
        """Raise `Corrupt` if an opened file doesn't have the listed number of tokens."""
        if source.num_tokens != int(self.tokens[number]):
            raise self.contradiction(number, f"{source.num_tokens} tokens", str(self.tokens[number]))

    def contradiction(self, number: int, found: str, expected: str, /) -> Corrupt:
        """Return the error for a file that isn't the listed one."""
        what, hint = self._changed
        return Corrupt(what, path=self.path(number), found=found, expected=expected, hint=hint)


class OpenFiles:
    """Open files of a source of token files, as token sources; those used last stay open.

    Thread-safe, picklable, and safe after fork. A returned array keeps its file's mapping alive.

    Args:
        store: store of the files.
        listed: list of the files.
        options: options for opening each file.

    Attributes:
        most: number of files that stay open.
        opened: how often a file was opened.
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
        """Return the number of open files."""
        return len(self._open)

    def get(self, number: int, check: Callable[[int, TokenSource], None] | None = None) -> TokenSource:
        """Return file `number`, which is passed to `check` when it is opened.

        Raises:
            NotFound: the file doesn't exist.
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
        with self._held():  # two threads may both come here: they opened the same bytes, and one of them is dropped
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
            # A thread of the parent may have held the lock during the fork; it doesn't exist here.
            self._lock, self._pid = threading.Lock(), os.getpid()
        return self._lock


def _stated(store: Store, listed: FileList, number: int) -> str:
    """Announce the existence and the sizes of the files of a token file, which aren't requested then.

    Return its path.
    """
    path, format = listed.path(number), listed.format
    if format not in _IN_FILES:
        store.survey(path, _MOST_IN_GROUP)
        return path
    for name in data_names(format, path):
        store.expect_size(name, max(1, int(listed.tokens[number])), exact=False)
    if listed.manifest is not None:  # files of Penstock have side files
        store.expect_size(side_name(format, path), 1, exact=False)
    return stem_of(path) if format == "megatron" else path


def require_alike(what: str, found: Any, path: str, expected: Any, first: str) -> None:
    """Raise `Corrupt` if a file doesn't agree with the first one of its folder."""
    if found != expected:
        raise Corrupt(
            f"token files in one folder have different {what}",
            path=path,
            found=str(found),
            expected=f"{expected}, as in {first}",
            hint=_DIFFERENT,
        )
