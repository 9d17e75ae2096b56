"""Claims on outputs in object stores: an object names the one writer, from the first byte to the commit.

The object `.<name>.lock.staged` is next to the output while it is written. A lock in the cache folder of the writer's
host shows whether the writer is running. The lock of a writer on another host is unknown, so its object must be removed
by hand. Workers of one distributed job have the same writer name and share the claim. They write the same bytes, and
the store keeps those of the first.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Generator, Sequence
from typing import Protocol, Self

import msgspec
import xxhash

from penstock._digest import digest
from penstock.abc import Staged
from penstock.errors import ConfigError, NotFound, PrepareError
from penstock.store._copies import NoCopy, in_cache_folder
from penstock.store._leftovers import sweep
from penstock.store.base import Store
from penstock.store.derived import cache_folder, upload_folder
from penstock.store.local import LocalStaged, LocalStore, output_exists
from penstock.store.lock import Claim, being_written, hold_lock
from penstock.store.names import LOCK, LOCK_FILE, UPLOAD_CLAIM, object_path, staged_name
from penstock.store.put import put, require_writable
from penstock.types import Buffer


class Owner(msgspec.Struct):
    """The writer of an output.

    Attributes:
        writer: name of the run, or digest of the plan of a distributed job.
        host, cache: the writer's host and cache folder, which has a lock while the writer runs.
    """

    writer: str = ""
    host: str = ""
    cache: str = ""

    @classmethod
    def of_this_run(cls, work: str | None = None) -> Self:
        return cls(work or secrets.token_hex(8), socket.gethostname(), cache_folder())

    @classmethod
    def read(cls, store: Store, path: str) -> Self | None:
        """Return the writer that an object names, or None without the object; an empty one if it can't be decoded."""
        try:
            return msgspec.json.decode(store.get(path), type=cls)
        except NotFound:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return cls()

    def is_dead(self, path: str) -> bool:
        """Return whether this writer of `path` has certainly exited; the caller holds its own lock."""
        if self.host != socket.gethostname():
            return False
        place = upload_lock(self.cache, path)
        if self.cache == cache_folder() or not os.path.isabs(place) or not os.path.isfile(place):
            return self.cache == cache_folder()
        with contextlib.suppress(OSError), hold_lock(place, wait=False) as had:
            return had
        return False

    def refusal(self, path: str, hint: str) -> PrepareError:
        """Return the error for an output that this writer on another host may be writing."""
        what = "another machine or cache folder has an unfinished write of this output"
        hint = f"If it isn't running any more, {hint}"
        return PrepareError(what, path=path, found=f"{self.host}, {self.cache}", hint=hint)


class RemoteClaim(Claim):
    """The claim of one writer to files of a remote store; see `penstock.store.outputs.claim_files`.

    Args:
        store: store of the files.
        path: path of the data file.
        work: digest of the plan of several writers, which share the claim and replace nothing.

    Raises:
        PrepareError: another writer holds this output, or was killed on another machine.
        Unsupported: the store is read-only.
    """

    __slots__ = ("_data", "_held", "_joined", "_path", "_store")

    def __init__(self, store: Store, path: str, work: str | None = None) -> None:
        self._store = store
        self._data = path
        self._path = object_path(path, LOCK)
        require_writable(store, self._path)
        with contextlib.ExitStack() as stack:
            if not enter_upload(stack, path):
                raise being_written(path)
            own = Owner.of_this_run(work)
            known = Owner.read(store.origin, self._path)
            self._joined = known is not None and known.writer == work
            if known is not None and not self._joined and not known.is_dead(path):
                raise known.refusal(path, f"delete {self._path}")
            if not self._joined:
                put_owner(store, self._path, own, being_written(path), overwrite=known is not None)
            self._held = stack.pop_all()

    def release(self) -> None:
        with self._held.pop_all() as held:
            held.callback(self._forget)

    def _forget(self) -> None:
        with contextlib.suppress(OSError):
            if not self._joined or self._store.exists(self._data):  # else another worker may still be running
                self._store.delete(self._path)


def put_owner(store: Store, path: str, owner: Owner, taken: PrepareError, *, overwrite: bool) -> None:
    """Write the object that names a writer, or raise `taken` if another writer was faster."""
    try:
        put(store, path, msgspec.json.encode(owner), overwrite=overwrite)
    except NoCopy:
        raise
    except ConfigError:
        raise taken from None


def enter_upload(stack: contextlib.ExitStack, path: str, locked: str | None = None) -> bool:
    """Hold the lock of a running writer of `locked`, by default `path`; return False if another process holds it."""
    with in_cache_folder(path):
        return stack.enter_context(hold_lock(upload_lock(cache_folder(), locked or path), wait=False))


def sweep_claim(store: Store, path: str) -> None:
    """Remove the object of a writer that was killed after its output was complete; raise like `RemoteClaim`."""
    if Owner.read(store.origin, object_path(path, LOCK)) is not None:
        RemoteClaim(store, path).release()


def forget_claim(store: Store, path: str, work: str) -> None:
    """Remove the object of a writer of this work on any host, after its output is complete."""
    known = None if store.is_local else Owner.read(store.origin, object_path(path, LOCK))
    if known is not None and known.writer == work:
        store.delete(object_path(path, LOCK))


def is_at_work(path: str) -> bool:
    """Return whether a process with this host and cache folder is writing an output; others are unknown."""
    place = upload_lock(cache_folder(), path)
    if not os.path.isfile(place):
        return False
    with contextlib.suppress(OSError), hold_lock(place, wait=False) as had:
        return not had
    return False


def upload_lock(cache: str, path: str) -> str:
    """Return the file that a running writer of `path` locks in its cache folder."""
    return os.path.join(cache, "locks", f"upload-{digest(path)}{LOCK_FILE}")


ONE_PUT_BYTES = 1 << 23
"""Size up to which a file is uploaded at its commit, by one conditional request; it is in memory meanwhile."""

ONE_COPY_BYTES = 5 << 30
"""S3's limit for copies in one request. A larger file is uploaded to its name, and a claim excludes other writers."""


_HASHED_BYTES = 1 << 22


class Uploads(Protocol):
    """Requests of a writer to a remote store; False from `put` and `copy` means that `create` found the key."""

    def head(self, key: str, /) -> object: ...

    def put(self, key: str, local_path: str, /, *, create: bool) -> bool: ...

    def copy(self, key: str, to: str, /, *, create: bool) -> bool: ...

    def delete(self, key: str, /) -> None: ...


class RemoteStaged:
    """One staged remote file; see `penstock.abc.Staged`. Takes its size in the cache folder until `sync`.

    Args:
        uploads: returns the store's transport of this process.
        path: path to show to users.
        key: key in the store.
        overwrite: the file may exist.
    """

    __slots__ = ("_hidden", "_key", "_local", "_overwrite", "_size_bytes", "_uploads", "path")

    def __init__(self, uploads: Callable[[], Uploads], path: str, key: str, *, overwrite: bool) -> None:
        self.path = path
        self._uploads = uploads
        self._key = key
        self._overwrite = overwrite
        self._hidden: str | None = None
        self._size_bytes = 0
        self._local: LocalStaged | None = scratch_file(path)

    def write(self, data: Buffer) -> int:
        with in_cache_folder(self.path):
            return self._open.write(data)

    def write_at(self, offset_bytes: int, data: Buffer) -> None:
        with in_cache_folder(self.path):
            self._open.write_at(offset_bytes, data)

    def read_at(self, offset_bytes: int, length_bytes: int) -> bytes:
        return self._open.read_at(offset_bytes, length_bytes)

    def append_file(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> int:
        with in_cache_folder(self.path):
            return self._open.append_file(path, start_bytes, length_bytes)

    def tell(self) -> int:
        return self._size_bytes if self._hidden else self._open.tell()

    def sync(self) -> None:
        """Make the bytes durable, still invisible; a large file can't grow afterwards."""
        if self._hidden is None and ONE_PUT_BYTES < self._open.tell() <= ONE_COPY_BYTES:
            folder, _, name = self._key.rpartition("/")
            self._sync_here()
            self._size_bytes = self._open.tell()
            hidden = f"{folder}/{self._hidden_name(name)}".removeprefix("/")
            self._uploads().put(hidden, self._open.hidden_path, create=False)
            self._hidden = hidden
            self._close()

    def commit(self) -> None:
        """Sync the file, then make it visible under the final path.

        With `overwrite`, the file is uploaded to its final name directly.
        """
        try:
            if not self._overwrite:
                self.sync()
            if not self._publish():
                raise output_exists(self.path)
        finally:
            self.abort()

    def commit_as(self, path: str) -> bool:
        folder, _, _ = self._key.rpartition("/")
        self._key = f"{folder}/{path.rpartition('/')[2]}".removeprefix("/")
        self.path = path
        try:
            self.commit()
        except ConfigError:
            with contextlib.suppress(NotFound):
                self._uploads().head(self._key)
                return False
            raise
        return True

    def abort(self) -> None:
        self._close()
        if self._hidden is not None:
            hidden, self._hidden = self._hidden, None
            with contextlib.suppress(OSError):
                self._uploads().delete(hidden)

    def undo_commit(self) -> None:
        """Undo the commit of a new file."""
        if not self._overwrite:
            with contextlib.suppress(OSError):
                self._uploads().delete(self._key)

    def _publish(self) -> bool:
        remote, create = self._uploads(), not self._overwrite
        if self._hidden is not None:
            return remote.copy(self._hidden, self._key, create=create)
        staged = self._open
        self._sync_here()
        if staged.tell() <= ONE_PUT_BYTES:
            return remote.put(self._key, staged.hidden_path, create=create)
        return self._publish_large(staged.hidden_path, create)

    def _publish_large(self, local_path: str, create: bool) -> bool:
        remote = self._uploads()
        claim = object_path(self._key, UPLOAD_CLAIM)
        with contextlib.ExitStack() as stack:
            if create:
                empty = stack.enter_context(_empty_file(local_path))
                if not remote.put(claim, empty, create=True):
                    raise ConfigError(
                        "another writer is uploading this file, or was interrupted",
                        path=self.path,
                        found=claim,
                        hint="If it isn't running any more, delete that object",
                    )
                stack.callback(remote.delete, claim)
                with contextlib.suppress(NotFound):
                    remote.head(self._key)
                    return False
            return remote.put(self._key, local_path, create=False)

    def _sync_here(self) -> None:
        with in_cache_folder(self.path):
            self._open.sync()

    def _hidden_name(self, name: str) -> str:
        """Return a name that depends on the bytes, so that a re-run with the same bytes reuses a killed upload."""
        hasher = xxhash.xxh3_64()
        for start_bytes in range(0, self._size_bytes, _HASHED_BYTES):
            length_bytes = min(_HASHED_BYTES, self._size_bytes - start_bytes)
            hasher.update(self._open.read_at(start_bytes, length_bytes))
        return staged_name(name, hasher.hexdigest()[:8])

    @property
    def _open(self) -> LocalStaged:
        if self._local is None:
            raise ValueError(f"{self.path}: the staged file was already uploaded, committed or aborted")
        return self._local

    def _close(self) -> None:
        if self._local is not None:
            local, self._local = self._local, None
            local.abort()


def scratch_file(path: str) -> LocalStaged:
    """Return a hidden file in the cache folder for an upload to `path`; later runs remove a killed run's file."""
    with in_cache_folder(path):
        folder = upload_folder()
        sweep(folder)
        return LocalStore().stage(os.path.join(folder, f"{digest(path)}-{secrets.token_hex(4)}"))


def publish(staged: Sequence[Staged]) -> None:
    """Sync all files, then commit them in order; after a failure, remove the new files again."""
    for one in staged:
        one.sync()
    done: list[Staged] = []
    try:
        for one in staged:
            one.commit()
            done.append(one)
    except BaseException:
        for one in done:
            if isinstance(one, RemoteStaged):
                one.undo_commit()
        raise


@contextlib.contextmanager
def _empty_file(beside: str) -> Generator[str]:
    staged = LocalStore().stage(f"{beside}-claim")
    try:
        staged.sync()
        yield staged.hidden_path
    finally:
        staged.abort()
