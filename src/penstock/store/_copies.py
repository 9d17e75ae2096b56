"""Whole local copies of remote files in a shared folder: lookup, fetching, checks and eviction.

`<cache folder>/remote/` contains these files for each copy:

- `<name>.copy`: the bytes.
- `<name>.json`: its record. The modification time is the time of the last use.
- `<name>.lock`: only while the copy is fetched. Its length is the final size of the copy.

A name is a digest of URL, version and size, so each version of a file has its own copy. Files with other names are
never removed.

Copies are validated as described in `penstock.store.derived`. A wrong copy is logged, deleted and fetched again. Users
of a host may share the folder, even if some of them can't write to it.

Locks are `flock`s: they end with their process. Eviction never waits for users of a copy: it is `unlink`, and processes
that have the copy mapped keep its bytes.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import secrets
import shutil
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._arrays import byte_view
from penstock._digest import digest
from penstock._secrets import logger, redact
from penstock.codec.hashes import hasher, hex_digest
from penstock.errors import ConfigError, Corrupt, FormatError, NotFound, PenstockError, Truncated
from penstock.store._files import on_network
from penstock.store._leftovers import sweep
from penstock.store.cache_room import COPY_NAME, room_in
from penstock.store.derived import (
    DIGEST,
    Published,
    cache_folder,
    note_use,
    open_published,
    remove_published,
    require_publishable,
    write_record,
)
from penstock.store.local import LocalStore
from penstock.store.lock import hold_lock
from penstock.store.put import aborting
from penstock.types import Buffer

_log = logger()
_KEPT_FREE = 20
"""Without a budget, 1/20 of the disk stays free."""

_REMOTE = "remote"

RUN = secrets.token_hex(8)
"""Prefix of the names of copies without a known version, which only this process and its workers use."""
_RUN_PROCESS = os.getpid()


class NoCopy(ConfigError):
    """The cache folder can't store a copy: its disk is full, or this user can't write to it."""


@contextlib.contextmanager
def in_cache_folder(url: str) -> Generator[None]:
    """Raise `NoCopy` for errors of the cache folder that stop an upload of `url`."""
    try:
        yield
    except PenstockError:
        raise
    except OSError as error:
        raise NoCopy(
            "the cache folder can't hold the data to upload",
            path=url,
            found=f"{cache_folder()}: {error.strerror or error}",
            hint="Free some space, or set PENSTOCK_CACHE to another folder, then run it again",
        ) from error


class Copies:
    """Copies under one folder, shared by all processes of this host.

    A new copy costs the same whatever is in the folder; see `penstock.store.cache_room`. Copies, and reservations of
    copies that are being fetched, stay within the budget. Mapped files still take disk space after eviction.

    Args:
        budget_bytes: limit on the size of all copies; by default 95 % of the disk, including its other contents.
        folder: cache folder; by default the user's.

    Raises:
        ConfigError: the folder is on a network file system.
    """

    def __init__(self, budget_bytes: int | None = None, folder: str | None = None) -> None:
        self.folder = os.path.join(folder or cache_folder(), _REMOTE)
        self.budget_bytes = budget_bytes
        self._checked: dict[str, tuple[int, ...]] = {}
        _require_local(self.folder)

    def find(self, name: str, url: str, size_bytes: int, hashes: Mapping[str, str], *, whole: bool) -> Published | None:
        """Return a correct copy, which counts as used now, or None. A wrong copy is logged and deleted.

        With `whole`, its digest is checked at the first use in this process in any case.
        """
        found = open_published(self._path(name, "copy"))
        if found is None:
            return None
        if not self._is_right(found, size_bytes, hashes, whole):
            if found.about:  # else another process may be about to write its record
                _log.warning("%s: this copy of %s was changed or damaged; deleting it", found.path, url)
                remove_published(found.path)
            return None
        note_use(found.path)
        return found

    def make(
        self, name: str, url: str, size_bytes: int, hashes: Mapping[str, str], fetch: Callable[[], Iterable[Buffer]]
    ) -> Published:
        """Return a copy, fetched by one process of this host while others wait, and checked.

        Args:
            name: name of the copy.
            url: shown in errors.
            size_bytes: expected size.
            hashes: algorithm → expected hex digest.
            fetch: returns its bytes in order; called again if the first result is wrong.

        Raises:
            Truncated, Corrupt: the bytes are wrong the second time too.
            NoCopy: the folder can't store it.
            ConfigError: the copy is larger than the budget.
        """
        sweep(self.folder)
        lock_path = self._path(name, "lock")
        while True:
            try:
                with hold_lock(lock_path):
                    try:
                        found = self.find(name, url, size_bytes, hashes, whole=True)
                        if found is None:
                            self._make_room(url, size_bytes, lock_path)
                            try:
                                found = self._fetch(name, url, size_bytes, hashes, fetch)
                            except BaseException:
                                self._give_room_back(size_bytes)
                                raise
                        return found
                    finally:
                        _remove(lock_path)
            except NotFound as error:
                if not str(error.path).startswith(self.folder):
                    raise
                raise self._no_copy(url, size_bytes, "something else is deleting files in it") from error
            except PenstockError:
                raise
            except FileNotFoundError:
                continue  # another process removed it for one of its own, before it was mapped
            except OSError as error:
                raise self._no_copy(url, size_bytes, error.strerror or str(error)) from error

    def _fetch(
        self, name: str, url: str, size_bytes: int, hashes: Mapping[str, str], fetch: Callable[[], Iterable[Buffer]]
    ) -> Published:
        path = self._path(name, "copy")
        require_publishable(path)
        problem: FormatError | None = None
        for _ in range(2):
            with aborting(LocalStore().stage(path, overwrite=True)) as staged:
                fed = hasher(DIGEST)
                for part in fetch():
                    staged.write(part)
                    fed.update(part)
                staged.sync()
                problem = _problem(url, staged.hidden_path, size_bytes, hashes)
                if problem is None:
                    staged.commit()
                    return self._publish(name, url, hashes, fed.hexdigest())
        raise problem or Corrupt("the file couldn't be copied", path=url)

    def _publish(self, name: str, url: str, hashes: Mapping[str, str], digest: str) -> Published:
        path = self._path(name, "copy")
        if name.startswith(RUN):
            _drop_at_exit(self.folder)
        try:
            write_record(path, {"url": redact(url), "hashes": _lower(hashes)}, digest)
        except BaseException:
            _remove(path)
            raise
        found = open_published(path)
        if found is None:
            raise FileNotFoundError(path)
        self._checked[name] = found.identity
        return found

    def _is_right(self, found: Published, size_bytes: int, hashes: Mapping[str, str], whole: bool) -> bool:
        """Return whether a copy matches its record and the hashes of an index."""
        if len(found.data) != size_bytes:
            return False
        name = os.path.basename(found.path).partition(".")[0]
        known: Any = found.about.get("hashes")
        known = known if isinstance(known, dict) else {}
        proven = _lower(hashes).items() <= known.items()
        seen = self._checked.get(name) == found.identity
        if seen and proven:
            return True
        if found.unchanged and proven and not whole:
            return True
        if found.about:
            right = (seen or found.is_right()) and (proven or _wrong_hash(found.data, hashes) is None)
        else:  # there is no record, so only the index can be checked
            right = bool(hashes) and _wrong_hash(found.data, hashes) is None
        if right:
            self._checked[name] = found.identity
            if found.about and not (found.unchanged and proven):
                with contextlib.suppress(OSError):  # it may be another user's
                    about = {"url": found.about.get("url"), "hashes": {**known, **_lower(hashes)}}
                    write_record(found.path, about, str(found.about["digest"]))
        return right

    def _no_copy(self, url: str, size_bytes: int, why: str) -> NoCopy:
        return NoCopy(
            f"can't store a copy in {self.folder}",
            path=url,
            found=why,
            expected=f"room for {size_bytes} bytes, and write permission",
            hint="Free some space, or set PENSTOCK_CACHE to another folder",
        )

    # --- room ----------------------------------------------------------------------------------------------------

    def _make_room(self, url: str, size_bytes: int, lock_path: str) -> None:
        """Reserve room for a new copy by the length of its lock file; evict the least recently used copies."""
        with room_in(self.folder) as room:
            in_doubt = room.in_doubt and self.budget_bytes is not None
            if in_doubt or room.used_bytes + size_bytes > self._allowed(room.used_bytes):
                found = room.look(self.folder, lock_path)
                allowed_bytes = self._allowed(room.used_bytes)
                self._require_less(url, size_bytes, allowed_bytes)
                room.evict(found, allowed_bytes, size_bytes)
            with contextlib.suppress(PermissionError):  # another user's lock reserves no room for this process
                fd = os.open(lock_path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    os.ftruncate(fd, size_bytes)
                finally:
                    os.close(fd)
            room.used_bytes += size_bytes
            room.copies += 1

    def capacity_bytes(self) -> int:
        if self.budget_bytes is not None:
            return self.budget_bytes
        with room_in(self.folder) as room:
            room.look(self.folder, "")
            return self._allowed(room.used_bytes)

    def _give_room_back(self, size_bytes: int) -> None:
        with contextlib.suppress(OSError), room_in(self.folder) as room:
            room.used_bytes -= size_bytes
            room.copies -= 1

    def _require_less(self, url: str, size_bytes: int, allowed_bytes: int) -> None:
        if size_bytes > allowed_bytes and self.budget_bytes is None:
            raise self._no_copy(url, size_bytes, f"{allowed_bytes} bytes for all copies")
        if size_bytes > allowed_bytes:
            raise ConfigError(
                "the file is larger than the cache limit",
                path=url,
                found=f"{size_bytes} bytes",
                expected=f"at most {allowed_bytes} bytes",
                hint="Raise PENSTOCK_CACHE_BYTES, or set PENSTOCK_CACHE to a larger disk",
            )

    def _allowed(self, used_bytes: int) -> int:
        if self.budget_bytes is not None:
            return self.budget_bytes
        disk = shutil.disk_usage(self.folder)
        return used_bytes + max(0, disk.free - disk.total // _KEPT_FREE)

    def _path(self, name: str, kind: str) -> str:
        return os.path.join(self.folder, f"{name}.{kind}")


def copy_name(url: str, version: str, size_bytes: int, run: str = RUN) -> str:
    """Return the name of the copy of a version; without a version, the name of a copy for this run only."""
    name = digest(url, version, size_bytes)
    return name if version else run + name[len(run) :]


def share_run(folder: str | None) -> str:
    """Return the name of this run for its workers, whose copies are removed at the end of this run."""
    _drop_at_exit(os.path.join(folder or cache_folder(), _REMOTE))
    return RUN


def in_memory(
    url: str, size_bytes: int, hashes: Mapping[str, str], fetch: Callable[[], Iterable[Buffer]]
) -> NDArray[np.uint8]:
    """Return a file as uint8[size_bytes] if no copy can be stored; see `Copies.make` for arguments and errors."""
    problem: FormatError | None = None
    for _ in range(2):
        data = b"".join(map(byte_view, fetch()))
        problem = wrong_size(url, len(data), size_bytes) if len(data) != size_bytes else wrong_bytes(url, data, hashes)
        if problem is None:
            return np.frombuffer(data, np.uint8)
    raise problem or Corrupt("the file couldn't be read", path=url)


def wrong_size(url: str, found_bytes: int, size_bytes: int) -> FormatError:
    kind = Truncated if found_bytes < size_bytes else Corrupt
    return kind(
        "the size of the copy differs from the file",
        path=url,
        offset_bytes=min(found_bytes, size_bytes),
        found=f"{found_bytes} bytes",
        expected=f"{size_bytes} bytes",
    )


def wrong_bytes(url: str, data: Buffer, hashes: Mapping[str, str]) -> Corrupt | None:
    """Return the error for bytes that contradict an index, or None if they match."""
    wrong = _wrong_hash(data, hashes)
    if wrong is None:
        return None
    algorithm, found = wrong
    return Corrupt(
        f"the {algorithm} hash differs from the index",
        path=url,
        found=found,
        expected=hashes[algorithm],
        hint="The file in the remote store is damaged or doesn't belong to this index",
    )


def _problem(url: str, path: str, size_bytes: int, hashes: Mapping[str, str]) -> FormatError | None:
    data = LocalStore().mmap(path)
    return wrong_size(url, len(data), size_bytes) if len(data) != size_bytes else wrong_bytes(url, data, hashes)


def _wrong_hash(data: Buffer, hashes: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the first algorithm whose digest differs, and that digest."""
    for algorithm, expected in hashes.items():
        found = hex_digest(algorithm, data)
        if found != expected.lower():
            return algorithm, found
    return None


def _lower(hashes: Mapping[str, str]) -> dict[str, str]:
    return {algorithm: value.lower() for algorithm, value in hashes.items()}


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


@functools.cache
def _drop_at_exit(folder: str) -> None:
    """Remove the copies of this run when it ends."""

    def drop() -> None:
        if os.getpid() == _RUN_PROCESS:
            with contextlib.suppress(OSError):
                for name in os.listdir(folder):
                    if name.startswith(RUN) and COPY_NAME.match(name):
                        _remove(os.path.join(folder, name))

    atexit.register(drop)


def _require_local(folder: str) -> None:
    if _is_far(folder):
        raise ConfigError(
            "the cache folder is on a network file system, where a failed mmap read kills the process",
            path=folder,
            hint="Set PENSTOCK_CACHE to a folder on a local disk",
        )


@functools.cache
def _is_far(folder: str) -> bool:
    return on_network(folder)
