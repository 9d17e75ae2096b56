"""Staged files of remote stores: written to the cache folder, then uploaded; see `penstock.store.remote`."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Generator, Sequence
from typing import Protocol

import xxhash

from penstock._digest import digest
from penstock.abc import Staged
from penstock.errors import ConfigError, NotFound
from penstock.store._copies import in_cache_folder
from penstock.store._leftovers import staged_name, sweep
from penstock.store.derived import upload_folder
from penstock.store.local import LocalStaged, LocalStore, output_exists
from penstock.types import Buffer

ONE_PUT_BYTES = 1 << 23
"""Up to here a file is uploaded when it is committed, by one conditional request; it is in memory for that time."""

ONE_COPY_BYTES = 5 << 30
"""S3 copies no more in one request; a larger file is uploaded to its name, and a claim keeps others from it."""


_HASHED_BYTES = 1 << 22


class Uploads(Protocol):
    """What a remote store does for its writers; see `penstock.store._objects.Transport`."""

    def head(self, key: str, /) -> object:
        """What is known of a file; raises `NotFound`."""
        ...

    def put(self, key: str, local_path: str, /, *, create: bool) -> bool:
        """Upload a file in one piece or none; false where `create` and the key exists."""
        ...

    def copy(self, key: str, to: str, /, *, create: bool) -> bool:
        """Copy inside the store; false where `create` and `to` exists."""
        ...

    def delete(self, key: str, /) -> None:
        """Remove a key."""
        ...


class RemoteStaged:
    """One staged remote file; see `penstock.abc.Staged`. Needs its size in the cache folder until `sync`.

    Args:
        uploads: gives the store as this process reaches it.
        path: the file, as users name it.
        key: the file, as the store names it.
        overwrite: it may be there.
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
        """Append; returns bytes written. Raises `ConfigError` where the cache folder is full."""
        with in_cache_folder(self.path):
            return self._open.write(data)

    def write_at(self, offset_bytes: int, data: Buffer) -> None:
        """Overwrite bytes already written."""
        with in_cache_folder(self.path):
            self._open.write_at(offset_bytes, data)

    def read_at(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Bytes already written."""
        return self._open.read_at(offset_bytes, length_bytes)

    def append_file(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> int:
        """Append a range of a local file; raises `Truncated`."""
        with in_cache_folder(self.path):
            return self._open.append_file(path, start_bytes, length_bytes)

    def tell(self) -> int:
        """Return the number of bytes appended so far."""
        return self._size_bytes if self._hidden else self._open.tell()

    def sync(self) -> None:
        """Make the bytes durable, still invisible; a large file takes no more bytes after that."""
        if self._hidden is None and ONE_PUT_BYTES < self._open.tell() <= ONE_COPY_BYTES:
            folder, _, name = self._key.rpartition("/")
            self._sync_here()
            self._size_bytes = self._open.tell()
            hidden = f"{folder}/{self._hidden_name(name)}".removeprefix("/")
            self._uploads().put(hidden, self._open.hidden_path, create=False)
            self._hidden = hidden
            self._close()

    def commit(self) -> None:
        """`sync`, then make visible under the final path.

        Where a file may be replaced, there is nothing to lose: it goes up under its own name at once.
        """
        try:
            if not self._overwrite:
                self.sync()
            if not self._publish():
                raise output_exists(self.path)
        finally:
            self.abort()

    def commit_as(self, path: str) -> bool:
        """Commit under another name in its folder; false where one of that name is there already."""
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
        """Drop it; a second call does nothing."""
        self._close()
        if self._hidden is not None:
            hidden, self._hidden = self._hidden, None
            with contextlib.suppress(OSError):
                self._uploads().delete(hidden)

    def undo_commit(self) -> None:
        """Undo the commit, where there was nothing before."""
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
        folder, _, name = self._key.rpartition("/")
        claim = f"{folder}/.{name}.claim.staged".removeprefix("/")
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
        """A name made from its bytes: a writer of the same bytes takes over what a killed one left."""
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
    """A hidden file in the cache folder for what goes to `path`; where this run is killed, another one removes it."""
    with in_cache_folder(path):
        folder = upload_folder()
        sweep(folder)
        return LocalStore().stage(os.path.join(folder, f"{digest(path)}-{secrets.token_hex(4)}"))


def publish(staged: Sequence[Staged]) -> None:
    """Sync all, then commit in order; after a failure the ones that are new are removed again."""
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
    staged = LocalStore().stage(beside + ".claim")
    try:
        staged.sync()
        yield staged.hidden_path
    finally:
        staged.abort()
