"""The folder of whole local copies: what is in it, who may add to it, and what has to go.

`<cache folder>/remote/` holds, for each copy, `<name>.copy`, `<name>.json` with the hashes that it was checked by, and
while it is fetched `<name>.lock`, whose length is the size that the copy will have. A name is a digest of URL, version
and size, so a file that changed is another copy. Nothing but such names is ever removed.

Locks are `flock`s: they end with their process. A copy that is used is never waited for: removing is `unlink`, and who
has it mapped keeps its bytes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping

from penstock._digest import digest
from penstock.abc import Buffer
from penstock.codec.hashes import hex_digest
from penstock.errors import ConfigError, Corrupt, FormatError, Truncated
from penstock.store._sweep import remove_if_dead, sweep
from penstock.store.derived import cache_folder
from penstock.store.local import LocalStore
from penstock.store.lock import hold_lock
from penstock.store.network import on_network

_NAME = re.compile(r"^[0-9a-f]{32}\.(copy|json|lock)$")
_KEPT_FREE = 20
"""Without a budget, one part in so many of the disk stays free."""


class Copies:
    """Copies under one folder, shared by all processes of this host.

    A new copy costs a look at the whole folder, some microseconds for each copy in it.

    Args:
        budget_bytes: what all copies may take; by default 95 % of the disk, with what else is on it.
        folder: of the cache; by default the user's.

    Raises:
        ConfigError: the folder lies on a network file system.
    """

    def __init__(self, budget_bytes: int | None = None, folder: str | None = None) -> None:
        self.folder = os.path.join(folder or cache_folder(), "remote")
        self.budget_bytes = budget_bytes
        _require_local(self.folder)

    def find(self, name: str, size_bytes: int) -> str | None:
        """Path of a copy, which counts as used now; None where there is none, or one that was cut."""
        path = self._path(name, "copy")
        try:
            if os.stat(path).st_size != size_bytes:
                return None
            os.utime(path)
        except FileNotFoundError:
            return None
        return path

    def make(
        self, name: str, url: str, size_bytes: int, hashes: Mapping[str, str], fetch: Callable[[], Iterable[Buffer]]
    ) -> str:
        """Path of a copy, fetched by one process of this host while others wait, and checked.

        Args:
            name: of the copy.
            url: named in errors.
            size_bytes: that it must have.
            hashes: algorithm → hex digest that it must have.
            fetch: gives its bytes in order; called twice where the first ones are wrong.

        Raises:
            Truncated, Corrupt: the bytes are wrong the second time too.
            ConfigError: the copy is larger than the budget.
        """
        sweep(self.folder)
        lock_path = self._path(name, "lock")
        with hold_lock(lock_path):
            path = self.find(name, size_bytes)
            if path is not None and self._is_checked(name, path, hashes):
                self._remove(lock_path)
                return path
            try:
                self._make_room(url, size_bytes, lock_path)
                return self._fetch(name, url, size_bytes, hashes, fetch)
            finally:
                self._remove(lock_path)

    def _fetch(
        self, name: str, url: str, size_bytes: int, hashes: Mapping[str, str], fetch: Callable[[], Iterable[Buffer]]
    ) -> str:
        path = self._path(name, "copy")
        problem: FormatError | None = None
        for _ in range(2):
            staged = LocalStore().stage(path, overwrite=True)
            try:
                for part in fetch():
                    staged.write(part)
                staged.sync()
                problem = _problem(url, staged.hidden_path, size_bytes, hashes)
                if problem is None:
                    staged.commit()
                    self._remember(name, url, hashes)
                    return path
            finally:
                staged.abort()
        raise problem or Corrupt("no copy could be made", path=url)

    def _is_checked(self, name: str, path: str, hashes: Mapping[str, str]) -> bool:
        """Whether a copy is right; removes it where it is not."""
        known: dict[str, str] = {}
        with contextlib.suppress(FileNotFoundError, ValueError, AttributeError), open(self._path(name, "json")) as file:
            known = dict(json.load(file)["hashes"])
        asked = {algorithm: value.lower() for algorithm, value in hashes.items()}
        if asked.items() <= known.items():
            return True
        if _problem(path, path, os.path.getsize(path), hashes) is not None:
            self._remove(path)
            return False
        self._remember(name, path, {**known, **asked})
        return True

    def _remember(self, name: str, url: str, hashes: Mapping[str, str]) -> None:
        if hashes:
            staged = LocalStore().stage(self._path(name, "json"), overwrite=True)
            text = {"url": url, "hashes": {algorithm: value.lower() for algorithm, value in hashes.items()}}
            staged.write(json.dumps(text).encode())
            staged.commit()

    # --- room ----------------------------------------------------------------------------------------------------

    def _make_room(self, url: str, size_bytes: int, lock_path: str) -> None:
        """Reserve room for a new copy by the length of its lock file; the least recently used copies go for it."""
        with hold_lock(os.path.join(self.folder, "budget.lock")):
            found = [one for one in self._scan() if one[2] != lock_path]
            used_bytes = sum(size for _, size, _ in found)
            allowed_bytes = self._allowed(used_bytes)
            if size_bytes > allowed_bytes:
                raise ConfigError(
                    "the file is larger than all that the cache may hold",
                    path=url,
                    found=f"{size_bytes} bytes",
                    expected=f"at most {allowed_bytes} bytes",
                    hint="Raise PENSTOCK_CACHE_BYTES, or set PENSTOCK_CACHE to a larger disk",
                )
            for _, one_bytes, path in sorted(found):
                if used_bytes + size_bytes <= allowed_bytes:
                    break
                if path.endswith(".lock"):
                    remove_if_dead(path)
                else:
                    self._remove(path)
                    self._remove(path.removesuffix("copy") + "json")
                used_bytes -= 0 if os.path.exists(path) else one_bytes
            os.truncate(lock_path, size_bytes)

    def _scan(self) -> list[tuple[float, int, str]]:
        """(last use, size in bytes, path) of each copy, and of each lock of one that is being fetched."""
        found: list[tuple[float, int, str]] = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if _NAME.match(entry.name) and not entry.name.endswith("json"):
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        found.append((status.st_mtime, status.st_size, entry.path))
        return found

    def _allowed(self, used_bytes: int) -> int:
        if self.budget_bytes is not None:
            return self.budget_bytes
        disk = shutil.disk_usage(self.folder)
        return used_bytes + max(0, disk.free - disk.total // _KEPT_FREE)

    def _path(self, name: str, kind: str) -> str:
        return os.path.join(self.folder, f"{name}.{kind}")

    def _remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def copy_name(url: str, version: str, size_bytes: int) -> str:
    """The name of the copy of this version of a file."""
    return digest(url, version, size_bytes)


def _problem(url: str, path: str, size_bytes: int, hashes: Mapping[str, str]) -> FormatError | None:
    """What is wrong with the bytes of a file at `path`; errors name `url`."""
    data = LocalStore().mmap(path)
    if len(data) != size_bytes:
        kind = Truncated if len(data) < size_bytes else Corrupt
        return kind(
            "the copy does not have the file's size",
            path=url,
            offset_bytes=min(len(data), size_bytes),
            found=f"{len(data)} bytes",
            expected=f"{size_bytes} bytes",
        )
    for algorithm, expected in hashes.items():
        found = hex_digest(algorithm, data)
        if found != expected.lower():
            return Corrupt(
                f"the {algorithm} hash is not the one that the index states",
                path=url,
                found=found,
                expected=expected,
                hint="The file in the remote store is damaged, or does not belong to this index",
            )
    return None


def _require_local(folder: str) -> None:
    if _is_far(folder):
        raise ConfigError(
            "the cache folder lies on a network file system, where a failed read of a mapping kills the process",
            path=folder,
            hint="Set PENSTOCK_CACHE to a folder on a local disk",
        )


@functools.cache
def _is_far(folder: str) -> bool:
    return on_network(folder)
