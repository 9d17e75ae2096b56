"""The exclude list `<side file>.exclude.jsonl`: the samples excluded from a dataset, with reason, time and author.

One line per entry, JSON:

| field | content |
|---|---|
| `index` | index of the sample, from 0 |
| `key` | its key, or null |
| `digest` | 32 hex digits: digest of the sample, the same in every format |
| `reason`, `time`, `who` | text; the time as `2026-11-22T10:00:00+00:00` |
| `split` | the split, if one list covers several splits, else null |
| `dataset` | fingerprint of the dataset |
| `number`, `entries` | number of this entry, from 1, and the number of entries |
| `check` | xxh3-128 over the previous `check`, if any, and this entry's own fields |

So a truncated or changed list is detected, and the last `check` is the digest of the whole list. A list is always
rewritten as a whole, under a lock; readers see the old list or the new list.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import xxhash

from penstock._secrets import redacted_repr
from penstock.errors import ConfigError, Corrupt, Denied, NotFound, TooLarge, Unsupported
from penstock.store._files import is_link, is_there
from penstock.store.base import Store
from penstock.store.dry import dry_place
from penstock.store.local import LocalStore
from penstock.store.lock import hold_lock
from penstock.store.names import LOCK_FILE, NEXT
from penstock.store.place import Place, place_of
from penstock.store.put import put
from penstock.types import IntArray

SUFFIX = ".exclude.jsonl"
"""Suffix after the name of a side file."""

SIDE = ".penstock"
BESIDE = f"{SIDE}{SUFFIX}"
"""Suffix after the name of data."""

CERTIFICATE = ".certificate.json"
"""Suffix of certificates of `purge`."""

WAITING = f".penstock{SUFFIX}{NEXT}"
"""Suffix of the name of a list whose data is about to become visible."""

OURS = (BESIDE, f"{BESIDE}{LOCK_FILE}", WAITING)
"""Suffixes of lists, of their locks and of waiting lists, which aren't data."""

NOT_SHOWN = (NotFound, Denied, Unsupported)
"""Errors of a store that doesn't show the files next to data; these count as no list. Without an answer from the store,
reading fails, because excluded samples would be included."""

_MOST_BYTES = 1 << 30
_AGAIN = "Restore it, or remove it and create it again with `penstock exclude`"


class _Line(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    index: int
    key: str | None
    digest: str
    reason: str
    time: str
    who: str
    split: str | None
    dataset: str
    number: int
    entries: int
    check: str


@redacted_repr
@dataclass(frozen=True, slots=True)
class Entry:
    """An excluded sample; see the table above."""

    index: int
    key: str | None
    digest: str
    reason: str
    time: str
    who: str
    split: str | None
    dataset: str

    @property
    def sample(self) -> tuple[str | None, int]:
        return self.split, self.index


@redacted_repr
@dataclass(frozen=True, slots=True)
class ExcludeList:
    """Content of an exclude list; picklable, so that workers use the list that their caller read.

    Attributes:
        entries: the entries, in the order in which they were added.
        path: path of the file, or None without a file.
    """

    entries: tuple[Entry, ...] = ()
    path: str | None = None

    @property
    def digest(self) -> str:
        """Digest of the list, 32 hex digits; all 0 for an empty list."""
        return "0" * 32 if not self.entries else self.digests()[-1]

    def digests(self) -> list[str]:
        return list(_checks(self.entries))

    def of(self, split: str | None) -> tuple[Entry, ...]:
        """Return the entries of a split, or all if the list doesn't distinguish splits."""
        return tuple(one for one in self.entries if one.split is None or one.split == split)


NO_LIST = ExcludeList()
"""Empty exclude list."""


def indices_of(entries: Iterable[Entry]) -> IntArray:
    """Return the distinct sample indices of entries, ascending, as int64[k]."""
    return np.unique(np.array([one.index for one in entries], np.int64))


def encode_list(entries: Sequence[Entry], path: str) -> bytes:
    """Return the bytes of a list for `path`; raise `TooLarge` if readers would reject it."""
    data = bytearray()
    for number, (one, check) in enumerate(zip(entries, _checks(entries), strict=True), 1):
        data += msgspec.json.encode(_Line(*_fields(one), number, len(entries), check)) + b"\n"
        if len(data) > _MOST_BYTES:
            hint = (
                "Rewrite the dataset without the excluded samples using `penstock purge`, and continue with the result"
            )
            what = "too many samples in an exclude list"
            raise TooLarge(what, path=path, found=len(entries), expected=f"at most {number - 1}", hint=hint)
    return bytes(data)


def decode_list(data: bytes, path: str) -> ExcludeList:
    """Return the list in a file; raise `Corrupt` if it is truncated, changed, or not a list."""
    decoder = msgspec.json.Decoder(_Line)
    entries: list[Entry] = []
    known: dict[str, str] = {}
    num_lines, before = data.count(b"\n"), b""
    if not data.endswith(b"\n"):
        raise _damaged(path, "the last line has no line end" if data else "no entry")
    for number, line in enumerate(io.BytesIO(data), 1):
        try:
            found = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _damaged(path, f"line {number}: {error}") from None
        if not 0 <= found.index < 1 << 62:
            raise _damaged(path, f"line {number}: index {found.index}")
        # Most entries have the same texts, so each text is kept once.
        texts = (found.reason, found.time, found.who, found.dataset)
        reason, time, who, dataset = (known.setdefault(text, text) for text in texts)
        entry = Entry(found.index, found.key, found.digest, reason, time, who, found.split, dataset)
        check = _check(before, entry)
        if (found.number, found.check) != (number, check):
            raise _damaged(path, f"line {number} or an earlier line was changed")
        if found.entries != num_lines:
            raise _damaged(path, f"{num_lines} entries", f"{found.entries}")
        entries.append(entry)
        before = check.encode()
    return ExcludeList(tuple(entries), path)


def read_list(store: Store, path: str) -> ExcludeList:
    """Return the list in a file; raise `NotFound` or `Corrupt`."""
    size_bytes = store.size(path)
    if size_bytes > _MOST_BYTES:
        raise TooLarge("the exclude list is too large", path=path, found=f"{size_bytes} bytes")
    return decode_list(store.get(path), path)


class _RecordsList(Protocol):
    def __call__(self, place: Place, /, *, exists: bool) -> None: ...


def change_list(
    place: Place,
    change: Callable[[tuple[Entry, ...]], Sequence[Entry]],
    record: _RecordsList,
    *,
    dry_run: bool = False,
) -> ExcludeList:
    """Replace a list by the result of `change` on its entries, durably; an empty list is deleted.

    Concurrent changes wait, so that no entries are lost. A dry run writes nothing, and doesn't wait. `record` is called
    after a list is written, and before a list is deleted: a process that is killed in between leaves a valid list.

    Raises:
        ConfigError: the list is not on this machine.
        OSError: its directory can't be written to.
        Corrupt: the existing list can't be read; it stays.
    """
    if not place.store.is_local:
        what = "an exclude list must be a local file: elsewhere, concurrent writers would lose entries"
        raise ConfigError(what, path=place.path, hint="Write a local file with --excludes (list=), and copy it")
    lock, writes = f"{place.path}{LOCK_FILE}", dry_place(place) if dry_run else place
    with _refused(place), _rehearsed(writes.store, lock) if dry_run else _held(lock):
        before = read_list(place.store, place.path).entries if place.exists() else ()
        after = tuple(change(before))
        if after:
            if after != before:
                put(writes.store, writes.path, encode_list(after, place.path))
            record(writes, exists=True)
        elif before and not after:
            record(writes, exists=False)
            writes.store.delete(writes.path)
    return ExcludeList(after, place.path)


_ELSEWHERE = "Write the list elsewhere with --excludes FILE (list=), and open the data with --excludes FILE (excludes=)"


@contextlib.contextmanager
def _refused(place: Place) -> Generator[None]:
    """Add to the `OSError` of a read-only directory where else the list can be."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise OSError(error.errno, f"{error.strerror}. {_ELSEWHERE}", place.path) from None


@contextlib.contextmanager
def _held(lock: str) -> Generator[None]:
    with hold_lock(lock):
        try:
            yield
        finally:
            Path(lock).unlink(missing_ok=True)


@contextlib.contextmanager
def _rehearsed(dry: Store, lock: str) -> Generator[None]:
    """Raise the errors of `_held` without a lock."""
    put(dry, lock, b"")
    yield


def require_no_list(store: Store, side: str, why: str = "it wouldn't match the new data") -> None:
    """Raise `ConfigError`, with the reason, if a dataset with this side file has an exclude list."""
    path = side + SUFFIX
    if store.is_local and store.exists(path):
        what = f"there is an exclude list: {why}"
        hint = "Apply it with `penstock purge`, move it away, or write somewhere else"
        raise ConfigError(what, path=path, hint=hint)


def list_above(paths: Collection[str], own: str | None = None, known: Collection[str] = ()) -> str | None:
    """Return an exclude list in a directory above local files, up to the root, except their `own`, or None.

    For `known` files, as in `with_lists`, only the directories above are checked.
    """
    own, store = None if own is None else os.path.realpath(own), LocalStore()
    listed = {os.path.dirname(one) for one in paths if one in known}
    folders = {os.path.realpath(folder) for folder in listed}
    for folder, files in _by_folder(store, (one for one in paths if one not in known)).items():
        names = [one.rstrip("/").rpartition("/")[2] for one in files]
        _, links = _names_in(store, folder, len(files))
        linked = [one for one in names if is_link(f"{folder}/{one}")] if links is None else links & {*names}
        folders.add(os.path.realpath(folder))
        folders |= {os.path.dirname(os.path.realpath(f"{folder}/{one}")) for one in linked}
    for folder in list(folders):
        while (above := os.path.dirname(folder)) not in folders:
            folders.add(folder := above)
    lists = (os.path.join(folder, OURS[0]) for folder in sorted(folders))
    return next((one for one in lists if one != own and is_there(one)), None)


def linked_file(store: Store, path: str) -> Place | None:
    bare = path.rstrip("/") or path
    return place_of(os.path.realpath(bare)) if store.is_local and is_link(bare) else None


def list_beside(store: Store, side: str) -> str:
    """Return the path of the exclude list for a side file; if that is a link, next to its target.

    Raises `ConfigError` if there is another list next to the link.
    """
    data = side.removesuffix(".penstock")
    if not store.is_local or data.endswith("/") or not is_link(data):
        return side + SUFFIX
    real = f"{os.path.realpath(data)}.penstock{SUFFIX}"
    if is_there(side + SUFFIX):
        what, hint = "there is an exclude list next to a link", f"Exclude samples of the file that it points to: {data}"
        raise ConfigError(what, path=side + SUFFIX, expected=real, hint=f"{hint}, and remove the list")
    return real


def with_lists(store: Store, paths: Collection[str], known: Collection[str] = ()) -> dict[str, str]:
    """Return file → exclude list for files that have one; a directory with several files is listed once.

    `known` is a listing of their directories: the files that aren't links, and all lists.
    """
    found = {path: f"{path}{BESIDE}" for path in paths if path in known and f"{path}{BESIDE}" in known}
    for folder, files in _by_folder(store, (one for one in paths if one not in known)).items():
        names, links = _names_in(store, folder, len(files))
        for path in files:
            own, name = f"{path}{BESIDE}", path.rpartition("/")[2]
            if names is not None and links is not None and name not in links:
                found |= {path: own} if f"{name}{BESIDE}" in names else {}
                continue
            listed = list_beside(store, f"{path}.penstock")
            is_there = store.exists(listed) if names is None or listed != own else f"{name}{BESIDE}" in names
            found |= {path: listed} if is_there else {}
    return found


def with_side_files(store: Store, paths: Collection[str], known: Collection[str] = ()) -> list[str]:
    """Return the files that have a side file; a directory with several files is listed once.

    `known` is a listing of their directories: the files and all side files.
    """
    found = [path for path in paths if path in known and f"{path}{SIDE}" in known]
    for folder, files in _by_folder(store, (one for one in paths if one not in known)).items():
        names, _ = _names_in(store, folder, len(files))
        for path in files:
            side = f"{path.rpartition('/')[2]}.penstock"
            if side in names if names is not None else store.exists(f"{path}.penstock"):
                found.append(path)
    return found


def _by_folder(store: Store, paths: Iterable[str]) -> dict[str, list[str]]:
    named: dict[str, list[str]] = {}
    for path in paths:
        named.setdefault(path.rpartition("/")[0], []).append(path)
    folders: dict[str, list[str]] = {}
    for files in named.values():  # one folder may contain a million files, and may have several names
        folders.setdefault(Place(store, files[0]).folder().path, []).extend(files)
    return folders


def _names_in(store: Store, folder: str, num_asked: int) -> tuple[set[str] | None, set[str] | None]:
    """Return the names in a directory, and which of them are links; None if looking at each file costs less."""
    if num_asked == 1:
        return None, None
    if not store.is_local:
        try:
            return set(Place(store, folder).names()), set()
        except Unsupported:  # web servers don't list files
            return None, None
    with os.scandir(folder) as entries:
        kinds = {one.name: one.is_symlink() for one in entries}
    return set(kinds), {name for name, is_link in kinds.items() if is_link}


def list_if_there(place: Place) -> ExcludeList:
    try:
        return read_list(place.store, place.path)
    except NotFound:
        return NO_LIST


def _fields(one: Entry) -> tuple[int, str | None, str, str, str, str, str | None, str]:
    return one.index, one.key, one.digest, one.reason, one.time, one.who, one.split, one.dataset


def _checks(entries: Sequence[Entry]) -> Iterator[str]:
    before = b""
    for one in entries:
        check = _check(before, one)
        yield check
        before = check.encode()


def _check(before: bytes, one: Entry) -> str:
    return xxhash.xxh3_128_hexdigest(before + msgspec.json.encode(_fields(one)))


def _damaged(path: str, found: str, expected: str = "entries written by `penstock exclude`") -> Corrupt:
    return Corrupt("the exclude list can't be read", path=path, found=found, expected=expected, hint=_AGAIN)
