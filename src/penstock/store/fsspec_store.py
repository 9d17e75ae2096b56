"""Store for the other protocols of fsspec, such as `memory://`, `hf://`, `sftp://` and `dbfs://`.

Most protocols need a package. Paths are whole URLs. Each process creates the file system at its first use; the file
system finds its own credentials.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from penstock._optional import require
from penstock.errors import ConfigError, NotFound, PenstockError, Unreachable
from penstock.store._objects import strong
from penstock.store._remote_output import RemoteStaged
from penstock.store._requests import cut_answers, plan_requests
from penstock.store.base import Head, Range, require_inside
from penstock.store.local import output_exists
from penstock.store.names import is_staged_name, staged_name
from penstock.store.remote import Remote

_VERSIONS = ("ETag", "etag", "oid", "version")
_TIMES = ("LastModified", "mtime", "modified", "created")


def knows(scheme: str) -> bool:
    """Return whether fsspec supports the scheme; raise `MissingExtra` if fsspec isn't installed."""
    fsspec = require("fsspec", extra="fsspec")
    return scheme in fsspec.available_protocols() or scheme in fsspec.registry


class FsspecStore(Remote):
    """The files of one fsspec protocol; picklable, and usable after fork if the file system is.

    Args:
        scheme: fsspec's name of the protocol.
        storage_options: keyword arguments of the file system.
        url: a URL with its host or user, if it needs one.
    """

    __slots__ = ("_url", "scheme", "storage_options")

    def __init__(self, scheme: str, storage_options: dict[str, Any] | None = None, url: str = "") -> None:
        super().__init__()
        self.scheme = scheme
        self.storage_options = dict(storage_options or {})
        self._url = url

    def __reduce__(self) -> tuple[object, ...]:
        return (FsspecStore, (self.scheme, self.storage_options, self._url))

    def __repr__(self) -> str:
        return f"FsspecStore({self.scheme!r})"

    # --- reading -------------------------------------------------------------------------------------------------

    def fetch(self, path: str, ranges: Sequence[Range]) -> tuple[list[bytes], Head]:
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
        self.counters.mine.requests += 1
        with self._typed(path):
            # A listing that fsspec has cached may be older than the file.
            self._files.invalidate_cache(path)
            info = self._files.info(path)
        if info.get("type") == "directory" or info.get("size") is None:
            raise NotFound("this is a folder, not a file", path=path)
        version, modified = (
            next((str(info[name]) for name in names if info.get(name)), "") for names in (_VERSIONS, _TIMES)
        )
        return Head(info["size"], strong(version), modified)

    def is_folder(self, path: str) -> bool:
        return bool(self._found(path))

    def list(self, prefix: str) -> Iterator[str]:
        found = self._found(prefix)
        if not found:
            raise NotFound("no such file or folder", path=prefix)
        yield from sorted(found, key=str.encode)

    def first_names(self, path: str) -> list[str]:
        return [one[len(path.rstrip("/")) + 1 :] for one in self._found(path)]

    def level(self, folder: str) -> tuple[list[str], list[str]]:
        found = [one[len(folder.rstrip("/")) + 1 :].partition("/") for one in self._found(folder)]
        folders = dict.fromkeys(name for name, slash, _ in found if slash)
        return [*folders], [name for name, slash, _ in found if not slash]

    # --- writing -------------------------------------------------------------------------------------------------

    def stage(self, path: str, *, overwrite: bool = False) -> RemoteStaged:
        if not overwrite and self.exists(path):
            raise output_exists(path)
        return RemoteStaged(lambda: self, path, path, overwrite=overwrite)

    def delete(self, path: str) -> None:
        self.head(path)
        with self._typed(path):
            self._files.rm_file(path)

    def put(self, path: str, local_path: str, *, create: bool) -> bool:
        """Upload a file; return False if `create` and it exists.

        Few file systems have conditional writes, so two writers that finish at the same moment may both succeed.
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
        if create and self.exists(to):
            return False
        with self._typed(path):
            self._files.cp_file(path, to)
        return True

    # --- inside --------------------------------------------------------------------------------------------------

    @property
    def _files(self) -> Any:
        # fsspec keeps one instance per process and thread.
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
        try:
            yield
        except PenstockError:
            raise
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise NotFound("no such file or folder", path=path, hint="Check the URL") from None
        except Exception as error:
            what = f"{self.scheme}:// returned an unexpected response"
            raise Unreachable(what, path=path, found=f"{type(error).__name__}: {error}") from None
