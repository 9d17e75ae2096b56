"""Every other protocol of fsspec: `memory://`, `hf://`, `sftp://`, `dbfs://`, …, each with its own package.

Paths are whole URLs. A file system is made for each process, at its first use; credentials are those that it finds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from penstock._optional import require
from penstock.abc import Staged
from penstock.errors import ConfigError, NotFound, PenstockError, Unreachable
from penstock.store._files import is_staged_name
from penstock.store._leftovers import staged_name
from penstock.store._objects import Head, strong
from penstock.store._ranges import Range, cut_answers, plan_requests, require_inside
from penstock.store._remote_options import RemoteOptions
from penstock.store._remote_staged import RemoteStaged, publish
from penstock.store._traffic import Counters, Traffic
from penstock.store.local import output_exists

_VERSIONS = ("ETag", "etag", "oid", "version")
_TIMES = ("LastModified", "mtime", "modified", "created")


def knows(scheme: str) -> bool:
    """Whether fsspec has a file system for the scheme; raises `MissingExtra` where fsspec is not installed."""
    fsspec = require("fsspec", extra="fsspec")
    return scheme in fsspec.available_protocols() or scheme in fsspec.registry


class FsspecStore:
    """The files of one fsspec protocol; picklable, and usable after fork as far as the file system is.

    Args:
        scheme: fsspec's name of the protocol.
        storage_options: keyword arguments of the file system.
        url: of a place in it, which tells some file systems their host, or their user.
    """

    __slots__ = ("_url", "counters", "options", "scheme", "storage_options")

    def __init__(self, scheme: str, storage_options: dict[str, Any] | None = None, url: str = "") -> None:
        self.scheme = scheme
        self.storage_options = dict(storage_options or {})
        self._url = url
        self.options = RemoteOptions.from_environment()
        self.counters = Counters([])

    def __reduce__(self) -> tuple[object, ...]:
        return (FsspecStore, (self.scheme, self.storage_options, self._url))

    def __repr__(self) -> str:
        return f"FsspecStore({self.scheme!r})"

    def stats(self) -> Traffic:
        """Requests and bytes of this store in this process."""
        return self.counters.total()

    # --- reading -------------------------------------------------------------------------------------------------

    def get(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """Return the bytes `[start, start + length)`, fewer only at the end of the file, or raise `NotFound`."""
        size_bytes = self.size(path)
        stop_bytes = size_bytes if length_bytes is None else min(size_bytes, start_bytes + length_bytes)
        return self.get_ranges(path, [(start_bytes, stop_bytes)])[0] if start_bytes < stop_bytes else b""

    def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        """Return one bytes object per `(start_bytes, stop_bytes)`, or raise `Truncated`."""
        return self.fetch(path, ranges)[0]

    def fetch(self, path: str, ranges: Sequence[Range]) -> tuple[list[bytes], Head]:
        """`get_ranges`, and size and version of the file."""
        head = self.head(path)
        require_inside(path, ranges, head.size_bytes)
        options = self.options
        requests = plan_requests(ranges, gap_bytes=options.gap_bytes, part_bytes=options.part_bytes)
        starts, stops = [start for start, _ in requests], [stop for _, stop in requests]
        with self._typed(path):
            found: list[bytes] = self._files.cat_ranges([path] * len(requests), starts, stops, on_error="raise")
        for (start, stop), data in zip(requests, found, strict=True):
            if len(data) != stop - start:
                what = "the response is too short"
                raise Unreachable(what, path=path, offset_bytes=start, found=len(data), expected=stop - start)
        mine = self.counters.mine
        mine.requests += len(requests)
        mine.fetched_bytes += sum(map(len, found))
        return cut_answers(ranges, requests, found), head

    def head(self, path: str) -> Head:
        """Size and version of a file; raises `NotFound`, also for a folder."""
        self.counters.mine.requests += 1
        with self._typed(path):
            # A listing that fsspec remembers may be older than the file.
            self._files.invalidate_cache(path)
            info = self._files.info(path)
        if info.get("type") == "directory" or info.get("size") is None:
            raise NotFound("this is a folder, not a file", path=path)
        version, modified = (
            next((str(info[name]) for name in names if info.get(name)), "") for names in (_VERSIONS, _TIMES)
        )
        return Head(info["size"], strong(version), modified)

    def size(self, path: str) -> int:
        """Return the size in bytes, or raise `NotFound`."""
        return self.head(path).size_bytes

    def exists(self, path: str) -> bool:
        """Return whether there is a file or directory of this name."""
        with contextlib.suppress(NotFound):
            return self.head(path).size_bytes >= 0
        return self.is_folder(path)

    def is_folder(self, path: str) -> bool:
        """Return whether there is a file below `path`."""
        return bool(self._found(path))

    def list(self, prefix: str) -> Iterator[str]:
        """Yield all files below the directory `prefix`, in byte order of their paths, except staged ones."""
        found = self._found(prefix)
        if not found:
            raise NotFound("no such file or folder", path=prefix)
        yield from sorted(found, key=str.encode)

    def first_names(self, path: str) -> list[str]:
        """The files under a folder; see `penstock.store.powers.PeekingStore`."""
        return [one[len(path.rstrip("/")) + 1 :] for one in self._found(path)]

    def level(self, folder: str) -> tuple[list[str], list[str]]:
        """What lies right in a folder; see `penstock.store.powers.ListsLevels`."""
        found = [one[len(folder.rstrip("/")) + 1 :].partition("/") for one in self._found(folder)]
        folders = dict.fromkeys(name for name, slash, _ in found if slash)
        return [*folders], [name for name, slash, _ in found if not slash]

    # --- writing -------------------------------------------------------------------------------------------------

    def stage(self, path: str, *, overwrite: bool = False) -> RemoteStaged:
        """Start a file, or raise `ConfigError` if it exists and `overwrite` is false."""
        if not overwrite and self.exists(path):
            raise output_exists(path)
        return RemoteStaged(lambda: self, path, path, overwrite=overwrite)

    def commit(self, staged: Sequence[Staged]) -> None:
        """Sync all files, then make them visible in the given order."""
        publish(staged)

    def delete(self, path: str) -> None:
        """Remove one file, or raise `NotFound`."""
        self.head(path)
        with self._typed(path):
            self._files.rm_file(path)

    def put(self, path: str, local_path: str, *, create: bool) -> bool:
        """Upload a file; false where `create` and it exists.

        Few file systems have a conditional write: two writers that end at the same moment may both succeed here.
        """
        if create and self.exists(path):
            return False
        folder, _, name = path.rpartition("/")
        hidden = f"{folder}/{staged_name(name)}"
        with self._typed(path):
            self._files.makedirs(folder, exist_ok=True)
            self._files.put_file(local_path, hidden)
            self._files.mv(hidden, path)
        return True

    def copy(self, path: str, to: str, *, create: bool) -> bool:
        """Copy inside the file system; false where `create` and `to` exists."""
        if create and self.exists(to):
            return False
        with self._typed(path):
            self._files.cp_file(path, to)
        return True

    # --- inside --------------------------------------------------------------------------------------------------

    @property
    def _files(self) -> Any:
        # fsspec keeps one instance a process and thread.
        fsspec = require("fsspec", extra="fsspec")
        try:
            told = fsspec.get_filesystem_class(self.scheme)._get_kwargs_from_urls(self._url) if self._url else {}
            return fsspec.filesystem(self.scheme, **{**told, **self.storage_options})
        except (ImportError, ValueError) as error:
            if isinstance(error, PenstockError):
                raise
            raise ConfigError(f"fsspec can't open {self.scheme}://", found=error) from None

    def _found(self, prefix: str) -> list[str]:
        self.counters.mine.requests += 1
        with self._typed(prefix):
            self._files.invalidate_cache(prefix)
            names: list[str] = self._files.find(prefix)
        root, files = self._files._strip_protocol(prefix).rstrip("/"), []
        for name in names:
            if name.startswith(root + "/") and not is_staged_name(name.rpartition("/")[2]):
                files.append(prefix.rstrip("/") + name[len(root) :])
        return files

    @contextlib.contextmanager
    def _typed(self, path: str) -> Generator[None]:
        """Errors of file systems as ours, naming the URL."""
        try:
            yield
        except PenstockError:
            raise
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise NotFound("no such file or folder", path=path, hint="Check the URL") from None
        except Exception as error:
            what = f"{self.scheme}:// returned an unexpected response"
            raise Unreachable(what, path=path, found=f"{type(error).__name__}: {error}") from None
