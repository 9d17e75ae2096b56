"""Holds an output in an object store for one writer: an object names the writer, from the first byte to the commit.

`.<name>.lock.staged` lies beside the output while it is written. A lock in the cache folder of the writer's host shows
whether it is alive; that of a writer on another host can't be seen, so its object is removed by hand. Writers of one
piece of work have one name, and join: they make the same bytes, and the store takes those of the first.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket

import msgspec

from penstock._digest import digest
from penstock.errors import ConfigError, NotFound, PrepareError
from penstock.store._copies import NoCopy, in_cache_folder
from penstock.store.base import Store
from penstock.store.derived import cache_folder
from penstock.store.lock import hold_lock
from penstock.store.put import require_writable

_WAIT = "Wait for it, or choose another output"


class Owner(msgspec.Struct):
    """The writer of an output.

    Attributes:
        writer: a name of its own for each run, or the digest of the plan of shared work.
        host: and the cache folder there, whose lock shows whether the writer is alive.
        cache: see `host`.
    """

    writer: str
    host: str
    cache: str


class RemoteClaim:
    """The claim of one writer to files of a remote store; see `penstock.store.outputs.claim_files`.

    Args:
        store: where they go.
        path: the data file.
        work: digest of the plan that this is a writer of, with others; it replaces nothing.

    Raises:
        PrepareError: another writer holds this output, or was killed on another machine while it did.
        Unsupported: the store is only read.
    """

    __slots__ = ("_data", "_held", "_joined", "_path", "_store")

    def __init__(self, store: Store, path: str, work: str | None = None) -> None:
        self._store = store
        self._data = path
        self._path = _owner_path(path)
        require_writable(store, self._path)
        with contextlib.ExitStack() as stack:
            with in_cache_folder(path):
                had = stack.enter_context(hold_lock(upload_lock(cache_folder(), path), wait=False))
            if not had:
                raise PrepareError("another run is writing this output", path=path, hint=_WAIT)
            own = Owner(work or secrets.token_hex(8), socket.gethostname(), cache_folder())
            known = _owner(store, path)
            self._joined = known is not None and known.writer == work
            if known is not None and not self._joined and not is_dead(known.host, known.cache, path):
                raise PrepareError(
                    "another machine or cache folder has an unfinished write of this output",
                    path=path,
                    found=f"{known.host}, {known.cache}",
                    hint=f"If it isn't running any more, delete {self._path}",
                )
            if not self._joined:
                self._say(own, path, first=known is None)
            self._held = stack.pop_all()

    def release(self) -> None:
        """Release the output for other writers; a second call does nothing."""
        with self._held.pop_all() as held:
            held.callback(self._forget)

    def _forget(self) -> None:
        with contextlib.suppress(OSError):
            if not self._joined or self._store.exists(self._data):  # else another may be at work still
                self._store.delete(self._path)

    def _say(self, own: Owner, path: str, *, first: bool) -> None:
        staged = self._store.stage(self._path, overwrite=not first)
        try:
            staged.write(msgspec.json.encode(own))
            staged.commit()
        except NoCopy:
            raise
        except ConfigError:  # it was not there a moment ago
            raise PrepareError("another run is writing this output", path=path, hint=_WAIT) from None
        finally:
            staged.abort()


def sweep_claim(store: Store, path: str) -> None:
    """Remove the object of a writer that was killed when its output was complete; raises as `RemoteClaim`."""
    if _owner(store, path) is not None:
        RemoteClaim(store, path).release()


def forget_claim(store: Store, path: str, work: str) -> None:
    """Remove the object of a writer of this work, wherever it was, when its output is complete."""
    known = None if store.is_local else _owner(store, path)
    if known is not None and known.writer == work:
        store.delete(_owner_path(path))


def is_at_work(path: str) -> bool:
    """Whether a writer of this host and its cache folder is at work on an output; of others nobody can tell."""
    place = upload_lock(cache_folder(), path)
    if not os.path.isfile(place):
        return False
    with contextlib.suppress(OSError), hold_lock(place, wait=False) as had:
        return not had
    return False


def upload_lock(cache: str, path: str) -> str:
    """The file that a writer of `path` locks while it lives, in its cache folder."""
    return os.path.join(cache, "locks", f"upload-{digest(path)}.lock")


def is_dead(host: str, cache: str, path: str) -> bool:
    """Whether the writer of `path` with this host and cache is gone for sure; our own cache's lock must be held."""
    if host != socket.gethostname():
        return False
    place = upload_lock(cache, path)
    if cache == cache_folder() or not os.path.isabs(place) or not os.path.isfile(place):
        return cache == cache_folder()
    with contextlib.suppress(OSError), hold_lock(place, wait=False) as had:
        return had
    return False


def _owner_path(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.lock.staged"


def _owner(store: Store, path: str) -> Owner | None:
    """The writer named by the object that the store has now; an empty one if that can't be read."""
    seen = store.origin
    try:
        return msgspec.json.decode(seen.get(_owner_path(path)), type=Owner)
    except NotFound:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Owner("", "", "")
