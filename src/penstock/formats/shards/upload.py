"""Finished shards on their way to a store without folders: each goes up as soon as it is finished, under its own name.

The index makes the dataset; until it is there, `.index.json.writing.staged` names the writer and the uploaded shards. A
writer that was killed, or lost the store, leaves both. The next one of the same output, from this machine or with
`overwrite`, uploads what is not up in the same bytes already, and removes what it does not need.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Iterable

import msgspec
import xxhash

from penstock._buffers import byte_view
from penstock.abc import Store
from penstock.errors import ConfigError, NotFound, PrepareError
from penstock.formats.shards.index_json import INDEX_NAME
from penstock.store._copies import NoCopy, in_cache_folder
from penstock.store._remote_claims import is_dead, upload_lock
from penstock.store._sweep import sweep_folder
from penstock.store.cache import CachedStore
from penstock.store.derived import cache_folder
from penstock.store.lock import hold_lock
from penstock.store.put import aborting, put
from penstock.store.side_file import encode_manifest
from penstock.types import Buffer, Manifest

MARK = f".{INDEX_NAME}.writing.staged"
UNFINISHED = "a writer is at work here, or was killed"
GO_ON = "Wait for it; if it was killed, run it again, and it goes on"
SAVE_EVERY = 64
"""Shards between two looks of the mark at what is up."""


class Mark(msgspec.Struct):
    """What the mark says.

    Attributes:
        writer: a name of its own for each run.
        host: and the cache folder there, whose lock shows whether the writer is alive.
        cache: see `host`.
        done: name → (bytes, xxh3-128) of what is up.
    """

    writer: str
    host: str
    cache: str
    done: dict[str, tuple[int, str]]


class FilesOutput:
    """See the module. One file of this machine is open for each thread that adds.

    Args:
        store: where the dataset goes.
        path: its folder.
        side_name: of its side file.
        overwrite: go on with the work of a writer on another machine.

    Raises:
        ConfigError: files of such names are there, and no writer left them.
        PrepareError: another writer is at work, or may be.
        Unsupported: the store is only read.
    """

    def __init__(self, store: Store, path: str, side_name: str, *, overwrite: bool) -> None:
        self._store = store
        self._seen: Store = store.remote if isinstance(store, CachedStore) else store  # as it is now, not as it was
        self._path = path
        self._side_name = side_name
        self._lock = threading.Lock()
        self._failed = False
        self._written: set[str] = set()
        self._left: set[str] = set()
        store.stage(f"{path}/{side_name}", overwrite=True).abort()  # a store that is only read says so now
        with contextlib.ExitStack() as stack:
            with in_cache_folder(path):
                had = stack.enter_context(hold_lock(upload_lock(cache_folder(), path), wait=False))
            if not had:
                raise PrepareError("another run is writing this output", path=path, hint="Wait for it")
            known = _read_mark(self._seen, path)
            self._mark = Mark(secrets.token_hex(8), socket.gethostname(), cache_folder(), {})
            there = {name for name in _names(self._seen, path) if name.startswith("shard.") or name == side_name}
            if known is not None:
                if not overwrite and not is_dead(known.host, known.cache, path):
                    raise PrepareError(
                        "a writer on another machine, or with another cache folder, is at work here, or was killed",
                        path=path,
                        found=f"{known.host}, {known.cache}",
                        hint="If it was killed, take its work over with overwrite=True (--overwrite)",
                    )
                self._left = there
                self._mark.done = {name: one for name, one in known.done.items() if name in there}
            elif there:
                what = "files of these names are there, and no index"
                hint = "Delete them, or name another output"
                raise ConfigError(what, path=path, found=", ".join(sorted(there)[:3]), hint=hint)
            try:
                self._save(first=known is None)
            except NoCopy:
                raise
            except ConfigError:  # the mark was not there a moment ago
                raise PrepareError("another run is writing this output", path=path, hint="Wait for it") from None
            self._held = stack.pop_all()

    def add(self, name: str, chunks: Iterable[Buffer], /) -> None:
        """Upload one file; nothing of it is there before all of it is."""
        path, hasher = f"{self._path}/{name}", xxhash.xxh3_128()
        staged = self._store.stage(path, overwrite=True)
        try:
            with aborting(staged):
                for chunk in chunks:
                    hasher.update(byte_view(chunk))
                    staged.write(chunk)
                content = (staged.tell(), hasher.hexdigest())
                if self._mark.done.get(name) != content or self._seen.size(path) != content[0]:
                    self._require_mine()
                    staged.commit()
        except (OSError, NoCopy):
            self._failed = True  # what is up stays, for the next run
            raise
        with self._lock:
            self._written.add(name)
            self._mark.done[name] = content
            if len(self._written) % SAVE_EVERY == 0:
                self._save()

    def publish(self, index: bytes, manifest: Manifest, /) -> None:
        """Upload side file and index."""
        self.add(self._side_name, [encode_manifest(manifest)])
        for name in self._left - self._written:
            self._store.delete(f"{self._path}/{name}")
        self._require_mine()
        put(self._store, f"{self._path}/{INDEX_NAME}", index, overwrite=False)
        self._written = set()
        self._left = set()
        sweep_folder(self._store, self._path)  # what uploads that were killed hid
        self._end()

    def abort(self) -> None:
        """Leave nothing; what a store did not take is left for the next run. Does nothing a second time."""
        if not self._failed:
            for name in self._written | self._left:
                with contextlib.suppress(OSError):
                    self._store.delete(f"{self._path}/{name}")
            self._written, self._left = set(), set()
            self._end()
        self._held.close()

    def _require_mine(self) -> None:
        now = _read_mark(self._seen, self._path)
        if now is None or now.writer != self._mark.writer:
            self._failed = True  # what is there is the other's now
            raise PrepareError("another writer has taken this output over", path=self._path, hint="Name another output")

    def _end(self) -> None:
        with contextlib.suppress(OSError):
            self._store.delete(f"{self._path}/{MARK}")
        self._failed = True  # there is nothing to remove any more
        self._held.close()

    def _save(self, *, first: bool = False) -> None:
        _save(self._store, self._path, self._mark, first=first)


def is_unfinished(store: Store, path: str) -> bool:
    """Whether a writer is at work on the folder, or was killed before its index was there."""
    return not store.exists(f"{path}/{INDEX_NAME}") and store.exists(f"{path}/{MARK}")


def take_back(store: Store, path: str) -> None:
    """Make a dataset what a killed writer of this machine left, so that the next one writes it again."""
    _save(store, path, Mark(secrets.token_hex(8), socket.gethostname(), cache_folder(), {}), first=False)
    store.delete(f"{path}/{INDEX_NAME}")


def sweep_mark(store: Store, path: str) -> None:
    """Remove the mark of a writer that was killed when its index was there already."""
    with contextlib.suppress(OSError):
        store.delete(f"{path}/{MARK}")


def _save(store: Store, path: str, mark: Mark, *, first: bool) -> None:
    put(store, f"{path}/{MARK}", msgspec.json.encode(mark), overwrite=not first)


def _read_mark(store: Store, path: str) -> Mark | None:
    try:
        return msgspec.json.decode(store.get(f"{path}/{MARK}"), type=Mark)
    except NotFound:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Mark("", "", "", {})


def _names(store: Store, path: str) -> list[str]:
    try:
        return [one[len(path) + 1 :] for one in store.list(path)]
    except NotFound:
        return []
