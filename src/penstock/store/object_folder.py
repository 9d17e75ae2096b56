"""Folders in stores that can't publish a folder atomically: each file is uploaded to its name when it is finished.

The file that makes the dataset visible is uploaded last, and only if it doesn't exist. Until then the object
`.<its name>.writing.staged` (the mark) names the writer. Its pieces `.<its name>.writing-00000.staged` … list the
uploaded files, each in one piece. A writer that was killed, or lost the connection, leaves all of these. The next
writer of the same output, on this machine or with `overwrite`, uploads the files that aren't stored with the same bytes
yet, and removes files that it doesn't need.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import xxhash

from penstock._arrays import byte_view
from penstock.abc import Staged
from penstock.errors import ConfigError, NotFound, PrepareError, Truncated
from penstock.store._copies import NoCopy
from penstock.store._remote_output import Owner, enter_upload, put_owner
from penstock.store.base import StagedView, Store
from penstock.store.local import output_exists
from penstock.store.lock import being_written
from penstock.store.names import WORK, writing_path, writing_piece_path
from penstock.store.put import put, require_writable
from penstock.types import Buffer

UNFINISHED = "a write is running or was interrupted"
GO_ON = "Wait for it. If it was interrupted, re-run it to resume"
SAVE_EVERY = 64
"""Number of files listed in one piece of the mark."""

_BLOCK_BYTES = 1 << 22
_SHARED_PLAN = f"{WORK}/plan"
"""Plan in a folder that several workers fill; see `penstock.engine.work`."""

T = TypeVar("T")


class Mark(Owner):
    """Content of the mark and of its pieces.

    Attributes:
        done: name → (bytes, xxh3-128) of uploaded files.
    """

    done: dict[str, tuple[int, str]] = msgspec.field(default_factory=dict[str, tuple[int, str]])


def open_objects(
    store: Store,
    path: str,
    held: Sequence[str],
    *,
    overwrite: bool,
    part: str = "",
    clashes: Callable[[str], bool] | None = None,
) -> ObjectFolder:
    """Start a folder in a store that can't publish one at once.

    Args:
        store: store of the folder.
        path: path of the folder.
        held: relative paths of files that are published last; the last one makes the dataset visible.
        overwrite: resume the work of a writer on another machine; a complete dataset is never replaced.
        part: subfolder to write, next to others; by default the whole folder.
        clashes: returns whether a file of this name, if it exists without a mark, is an error; by default always.

    Raises:
        ConfigError: a dataset exists, or files without a writer.
        PrepareError: another writer is, or may be, running.
        Unsupported: the store is read-only.
    """
    last = f"{path}/{held[-1]}"
    require_writable(store, last)
    if store.exists(last):
        if overwrite:
            raise not_replaceable(path)
        store.sweep_folder(f"{path}/{part}".rstrip("/"))
        sweep_mark(store, last)
        raise output_exists(path)
    return ObjectFolder(store, path, held, overwrite=overwrite, part=part, clashes=clashes)


def not_replaceable(path: str) -> ConfigError:
    """Return the error for replacing a dataset of several files in such a store."""
    hint = "Write to a new path. Otherwise readers would see old and new files mixed during the upload"
    return ConfigError("a dataset in this store can't be replaced atomically", path=path, hint=hint)


class ObjectFolder:
    """A staged folder; see `penstock.store.base.StagedFolder`. Each open file takes its size in the cache."""

    def __init__(
        self,
        store: Store,
        path: str,
        held: Sequence[str],
        *,
        overwrite: bool,
        part: str,
        clashes: Callable[[str], bool] | None,
    ) -> None:
        self.path = path
        self._store = store
        self._seen: Store = store.origin  # for the current state, without a cache
        self._held_back = dict.fromkeys(held)
        self._waiting: dict[str, Staged] = {}
        self._open: dict[str, Staged] = {}
        self._root = f"{path}/{part}".rstrip("/")
        self._mark_path = writing_path(f"{path}/{held[-1]}")
        self._new: dict[str, tuple[int, str]] = {}
        self._pieces = 0
        self._guard = threading.Lock()
        self._failed = False
        self._written: dict[str, int] = {}  # name → size in bytes
        self._left: set[str] = set()
        with contextlib.ExitStack() as stack:
            taken = being_written(path, hint="Wait for it")
            if not enter_upload(stack, path, self._root):
                raise taken
            known, self._most_pieces = _read_marks(self._seen, self._mark_path)
            self._mark = Mark.of_this_run()
            there = {name for name in self._names() if clashes is None or clashes(name)}
            if known is not None:
                if not overwrite and not known.is_dead(self._root):
                    raise known.refusal(path, "take it over with overwrite=True (--overwrite)")
                self._left = there
                self._mark.done = {name: one for name, one in known.done.items() if name in there}
            elif there:
                what = f"files with these names exist, but no {held[-1].rpartition('/')[2]}"
                hint = "Choose another output, or delete them if they aren't needed"
                raise ConfigError(what, path=path, found=", ".join(sorted(there)[:3]), hint=hint)
            put_owner(store, self._mark_path, self._mark, taken, overwrite=known is not None)
            if Mark.read(self._seen, f"{path}/{_SHARED_PLAN}") is not None:  # writers of a plan then check for marks
                if known is None:
                    self._store.delete(self._mark_path)
                hint = "Wait for it. If it was interrupted, re-run the command to finish it"
                raise being_written(path, hint=hint)
            self._held = stack.pop_all()

    def stage(self, name: str) -> Staged:
        """Start a file in the folder; its `commit` uploads it, or holds it back until the end. Thread-safe."""
        staged = self._store.stage(f"{self.path}/{name}", overwrite=True)
        with self._guard:
            self._open[name] = staged
        return _Part(self, name, staged)

    def size(self, path: str) -> int:
        return self._written[path]

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._seen.get_ranges(f"{self.path}/{path}", ranges)

    def commit(self, part: str | None = None, path: str | None = None) -> None:
        """Make the folder visible by its last file, if that doesn't exist yet; the arguments have no effect."""
        for name in self._left - self._written.keys() - self._held_back.keys():
            self._store.delete(f"{self.path}/{name}")
        self._require_mine()
        *others, last = self._held_back
        for name in others:
            self._waiting.pop(name).commit()
        staged = self._waiting.pop(last)
        data = staged.read_at(0, staged.tell())
        staged.abort()
        put(self._store, f"{self.path}/{last}", data, overwrite=False)
        self._written, self._left = {}, set()
        self._store.sweep_folder(self._root)  # hidden files of killed uploads
        self._end()

    def abort(self) -> None:
        """Remove all files, or keep them for the next run after a failed upload. A second call does nothing."""
        for known in (self._waiting, self._open):
            while known:
                known.popitem()[1].abort()
        if not self._failed:
            for name in self._written.keys() | self._left:
                with contextlib.suppress(OSError):
                    self._store.delete(f"{self.path}/{name}")
            self._written, self._left = {}, set()
            self._end()
        self._held.close()

    def take(self, name: str, staged: Staged, content: tuple[int, str]) -> None:
        """Upload a finished file unless the same bytes are stored, or hold it back."""
        if name in self._held_back:
            with self._guard:
                self._waiting[name] = self._open.pop(name, staged)
            return
        if self._mark.done.get(name) != content or self._seen.size(staged.path) != content[0]:
            self._require_mine()
            staged.commit()
        staged.abort()
        with self._guard:
            self._open.pop(name, None)
            self._written[name] = content[0]
            self._new[name] = content
            if len(self._new) >= SAVE_EVERY:
                self._save()

    def note_failure(self) -> None:
        """Keep uploaded files for the next run, because an upload failed."""
        self._failed = True

    def _require_mine(self) -> None:
        if not _is_of(self._seen, self._mark_path, self._mark.writer):
            self._failed = True  # the files belong to the other writer now
            raise PrepareError("another writer took over this output", path=self.path, hint="Choose another output")

    def _end(self) -> None:
        for number in range(max(self._pieces, self._most_pieces)):
            with contextlib.suppress(OSError):
                self._store.delete(writing_piece_path(self._mark_path, number))
        with contextlib.suppress(OSError):
            self._store.delete(self._mark_path)
        self._failed = True  # there is nothing left to remove
        self._held.close()

    def _save(self) -> None:
        piece = Mark(self._mark.writer, self._mark.host, self._mark.cache, self._new)
        put(self._store, writing_piece_path(self._mark_path, self._pieces), msgspec.json.encode(piece))
        self._pieces, self._new = self._pieces + 1, {}

    def _names(self) -> list[str]:
        try:
            return [one[len(self.path) + 1 :] for one in self._seen.list(self._root)]
        except NotFound:
            return []


class _Part(StagedView):
    __slots__ = ("_folder", "_hasher", "_is_taken", "_name")

    def __init__(self, folder: ObjectFolder, name: str, staged: Staged) -> None:
        super().__init__(staged)
        self._folder = folder
        self._name = name
        self._hasher: xxhash.xxh3_128 | None = xxhash.xxh3_128()
        self._is_taken = False

    def write(self, data: Buffer) -> int:
        if self._hasher is not None:
            self._hasher.update(byte_view(data))
        return self._noting(lambda: self.staged.write(data))

    def write_at(self, offset_bytes: int, data: Buffer) -> None:
        self._hasher = None
        self._noting(lambda: self.staged.write_at(offset_bytes, data))

    def append_file(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> int:
        self._hasher = None
        return self._noting(lambda: self.staged.append_file(path, start_bytes, length_bytes))

    def sync(self) -> None:
        """Do nothing, because files that a killed writer hadn't uploaded are written again."""

    def commit(self) -> None:
        """Upload the file, or hold it back until the folder is committed."""
        self._noting(lambda: self._folder.take(self._name, self.staged, (self.staged.tell(), self._digest())))
        self._is_taken = True

    def abort(self) -> None:
        if not self._is_taken:
            self.staged.abort()

    def _digest(self) -> str:
        if self._hasher is not None:
            return self._hasher.hexdigest()
        hasher = xxhash.xxh3_128()
        for start_bytes in range(0, self.staged.tell(), _BLOCK_BYTES):
            hasher.update(self.staged.read_at(start_bytes, _BLOCK_BYTES))
        return hasher.hexdigest()

    def _noting(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except (OSError, NoCopy):
            self._folder.note_failure()
            raise


def is_unfinished(store: Store, last: str) -> bool:
    """Return whether a remote dataset with this last file has a running or killed writer."""
    return not store.is_local and store.exists(writing_path(last)) and not store.exists(last)


def require_finished(store: Store, last: str) -> None:
    """Raise `NotFound` for a dataset with a running or killed writer; see `is_unfinished`."""
    if is_unfinished(store, last):
        raise NotFound(f"no dataset yet: {UNFINISHED}", path=last.rpartition("/")[0], hint=GO_ON)


def require_no_writer(store: Store, last: str) -> None:
    """Raise `PrepareError` if a writer is, or may be, writing the dataset with this last file."""
    if store.is_local:
        return
    path, mark = last.rpartition("/")[0], writing_path(last)
    known = Mark.read(store.origin, mark)
    if known is None:
        return
    with contextlib.ExitStack() as stack:
        if enter_upload(stack, path) and known.is_dead(path):
            return
    hint = f"Wait for it, or choose another output. If it isn't running any more, delete {mark}"
    raise being_written(path, found=known.host or None, hint=hint)


def take_back(store: Store, last: str) -> None:
    """Mark a dataset as unfinished work of this machine, so that the next writer writes it again."""
    put(store, writing_path(last), msgspec.json.encode(Mark.of_this_run()))
    store.delete(last)


def sweep_mark(store: Store, last: str) -> None:
    """Remove the mark of a writer that was killed after its dataset was complete."""
    with contextlib.suppress(OSError):
        store.delete(writing_path(last))


def _read_marks(store: Store, path: str) -> tuple[Mark | None, int]:
    """Return the mark with the files of its pieces, and the number of pieces; ignore pieces of earlier writers."""
    found, number = Mark.read(store, path), 0
    while found is not None and (piece := Mark.read(store, writing_piece_path(path, number))) is not None:
        if piece.writer == found.writer:
            found.done |= piece.done
        number += 1
    return found, number


def _is_of(store: Store, path: str, writer: str) -> bool:
    """Return whether a mark names this writer, from its first bytes, because its list may be long."""
    start = b'{"writer":"%s"' % writer.encode()
    try:
        return store.get_ranges(path, [(0, len(start))])[0] == start
    except (NotFound, Truncated):
        return False
