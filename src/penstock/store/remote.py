"""Object stores and web servers: `s3://`, `gs://`, `az://`, `http://`, `https://`.

Paths are whole URLs, so that errors, recipes and names next to a path need no translation. Nothing is opened before the
first request. Each process opens its own connections; connections opened before a fork aren't used after it.

Output: a staged file is written to the cache folder. Small files are uploaded at `commit`, by a request that fails if
the name exists. Larger files are uploaded under a hidden name at `sync`, and copied to their name inside the store at
`commit`, under the same condition. So only one of two writers wins, and nothing is visible before the commit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import unquote, urlsplit

from penstock._secrets import redact
from penstock.abc import Staged
from penstock.errors import ConfigError, Denied, NotFound, PenstockError, Unsupported
from penstock.store._fork_helper import Transport, transport
from penstock.store._objects import Reply
from penstock.store._remote_output import RemoteStaged, publish
from penstock.store._requests import Counters, RemoteOptions, Traffic, cut_answers, plan_requests
from penstock.store.base import Head, Range, RangesIgnored, Store, require_inside
from penstock.store.local import output_exists
from penstock.store.names import is_staged_for, is_staged_name, staged_start, writing_path, writing_path_of
from penstock.store.patterns import alternatives

SCHEMES = ("s3", "gs", "az", "azure", "http", "https")


class Remote(Store):
    """A store that is accessed by requests, and counts them.

    Attributes:
        options: options of all requests.
        counters: counts of requests and bytes in this process.
    """

    __slots__ = ("counters", "options")

    lists_levels = True

    def __init__(self, options: RemoteOptions | None = None) -> None:
        self.options = options or RemoteOptions.from_environment()
        self.counters = Counters([])

    def stats(self) -> Traffic:
        return self.counters.total()

    def fetch(self, path: str, ranges: Sequence[Range]) -> tuple[list[bytes], Head]:
        """Return the bytes of each range, with size and version of the file; raise `RangesIgnored` if unsupported."""
        raise Unsupported("this store can't read files", path=path)

    def fetch_start(self, path: str, length_bytes: int | None = None) -> tuple[bytes, Head] | None:
        """Return the first bytes of an unknown file, and its size and version, by one request; None if unsupported.

        Args:
            path: path of the file.
            length_bytes: number of bytes; by default the maximum per request.

        Raises:
            NotFound: no such file.
            RangesIgnored: the server sends whole files only.
        """
        return None

    def head(self, path: str) -> Head:
        raise Unsupported("this store can't read files", path=path)

    def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        return self.fetch(path, ranges)[0]

    def size(self, path: str) -> int:
        return self.head(path).size_bytes

    def exists(self, path: str) -> bool:
        with contextlib.suppress(NotFound):
            return self.head(path).size_bytes >= 0
        return self.is_folder(path)

    def commit(self, staged: Sequence[Staged]) -> None:
        """Sync all files, then publish them in order; after a failure, new files are removed again."""
        publish(staged)


class RemoteStore(Remote):
    """The files of one bucket, container or server; picklable, thread-safe, and usable after fork.

    Args:
        base: `"s3://bucket"`, `"gs://bucket"`, `"az://container"` or `"http(s)://host:port"`.
        options: options of all requests; by default those of the environment.
    """

    __slots__ = ("base",)

    read_only = "web servers are read-only"
    read_only_hint = "Write to a local path or to s3://…"

    def __init__(self, base: str, options: RemoteOptions | None = None) -> None:
        super().__init__(options)
        self.base = base.rstrip("/")

    def __reduce__(self) -> tuple[object, ...]:
        return (RemoteStore, (self.base, self.options))

    def __repr__(self) -> str:
        return f"RemoteStore({redact(self.base)!r})"

    # --- reading -------------------------------------------------------------------------------------------------

    def get(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        if start_bytes == 0 and length_bytes is None:
            return bytes(self._count(self._transport.read(self.key_of(path), None)).data[0])
        return super().get(path, start_bytes, length_bytes)

    def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        """Return one bytes object per range; if the server sends whole files only, each call reads all of it."""
        try:
            return self.fetch(path, ranges)[0]
        except RangesIgnored:
            whole = self.get(path)
        require_inside(path, ranges, len(whole))
        return [whole[start:stop] for start, stop in ranges]

    def fetch(self, path: str, ranges: Sequence[Range]) -> tuple[list[bytes], Head]:
        options = self.options
        requests = plan_requests(ranges, gap_bytes=options.gap_bytes, part_bytes=options.part_bytes)
        if not requests:
            head = self.head(path)
            require_inside(path, ranges, head.size_bytes)
            return [b""] * len(ranges), head
        try:
            reply = self._count(self._transport.read(self.key_of(path), requests))
        except (NotFound, Denied, RangesIgnored):
            raise
        except OSError:
            require_inside(path, ranges, self.size(path))  # servers report a range after the end in different ways
            raise
        require_inside(path, ranges, reply.head.size_bytes)
        return cut_answers(ranges, requests, reply.data), reply.head

    def fetch_start(self, path: str, length_bytes: int | None = None) -> tuple[bytes, Head]:
        key, ranges = self.key_of(path), [(0, length_bytes or self.options.part_bytes)]
        try:
            reply = self._count(self._transport.read(key, ranges))
        except (NotFound, Denied, RangesIgnored):
            raise
        except OSError:
            head = self.head(path)  # a range of an empty file can't be requested
            if head.size_bytes:
                raise
            return b"", head
        return bytes(reply.data[0]), reply.head

    def head(self, path: str) -> Head:
        self.counters.mine.requests += 1
        return self._transport.head(self.key_of(path))

    def exists(self, path: str) -> bool:
        """Return whether a file or folder of this name exists and is visible with these credentials."""
        with contextlib.suppress(NotFound, Denied):
            return self.head(path).size_bytes >= 0
        return not self.lists_nothing and self.is_folder(path)

    def is_folder(self, path: str) -> bool:
        """Return whether there is a file below `path`.

        This is unknown for a web server: every path that isn't a file counts as a folder, and formats look for their
        files in it. A pattern `{a,b}` always stands for files.
        """
        if self.lists_nothing:
            return len(alternatives(path)) == 1 and not self.exists(path)
        self.counters.mine.requests += 1
        with contextlib.suppress(NotFound, Denied):
            return bool(self._transport.list(self.key_of(path), first_only=True))
        return False

    def list(self, prefix: str) -> Iterator[str]:
        if self.lists_nothing:
            hint = "Use the URL of a file of the dataset"
            raise Unsupported("a web server can't list its files", path=prefix, hint=hint)
        self.counters.mine.requests += 1
        found = self._transport.list(self.key_of(prefix), first_only=False)
        if not found:
            raise NotFound("no such file or folder", path=prefix, hint="Check the URL")
        for key in sorted(found, key=str.encode):
            if not is_staged_name(key.rpartition("/")[2]):
                yield f"{self.base}/{key}"

    @property
    def server(self) -> str:
        return self.base

    @property
    def lists_nothing(self) -> bool:
        return self.base.startswith("http")

    def heads_under(self, folder: str, most: int) -> dict[str, Head] | None:
        if not self.base.startswith("s3://"):  # listings of other stores may differ from the answers to requests
            return None
        self.counters.mine.requests += 1
        found = self._transport.heads(self.key_of(folder), most)
        return None if found is None else {f"{self.base}/{key}": head for key, head in found}

    def first_names(self, path: str) -> list[str]:
        if self.lists_nothing:
            return []
        self.counters.mine.requests += 1
        key = self.key_of(path)
        with contextlib.suppress(NotFound, Denied):
            found = (name.removeprefix(key).lstrip("/") for name in self._transport.list(key, first_only=True))
            return [name for name in found if not is_staged_name(name.rpartition("/")[2])]
        return []

    def level(self, folder: str) -> tuple[list[str], list[str]]:
        if self.lists_nothing:
            return [], []
        self.counters.mine.requests += 1
        with contextlib.suppress(NotFound, Denied):
            return self._transport.level(self.key_of(folder))
        return [], []

    # --- writing -------------------------------------------------------------------------------------------------

    def stage(self, path: str, *, overwrite: bool = False) -> RemoteStaged:
        if self.lists_nothing:
            self._refuse(path)
        key = self.key_of(path)
        if not overwrite:
            with contextlib.suppress(NotFound):
                self.head(path)
                raise output_exists(path)
        return RemoteStaged(lambda: self._transport, path, key, overwrite=overwrite)

    def stage_new(self, path: str) -> RemoteStaged:
        if self.lists_nothing:
            self._refuse(path)
        return RemoteStaged(lambda: self._transport, path, self.key_of(path), overwrite=False)

    def delete(self, path: str) -> None:
        if self.lists_nothing:
            self._refuse(path)
        self.head(path)
        self._transport.delete(self.key_of(path))

    def delete_listed(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._transport.delete(self.key_of(path))

    def sweep(self, path: str) -> None:
        """Remove hidden uploads of a visible file, left by writers killed after the copy to its name."""
        folder, _, name = self.key_of(path).rpartition("/")
        with contextlib.suppress(OSError, PenstockError):
            visible = self.head(path)
            for key in self._transport.list(folder, first_only=False, start=staged_start(name)):
                if is_staged_for(key.removeprefix(folder).lstrip("/"), name):
                    hidden = self._transport.head(key)
                    # The upload of a running writer is younger.
                    if hidden.size_bytes == visible.size_bytes and hidden.modified <= visible.modified:
                        self._transport.delete(key)

    def sweep_folder(self, path: str) -> None:
        """Remove the hidden objects of killed writers under a folder whose dataset is complete.

        The mark of a writer stays if its file is missing, because another part is being written.
        """
        with contextlib.suppress(OSError, PenstockError):
            keys = self._transport.list(self.key_of(path), first_only=False)
            marked = {writing_path(key) for key in keys}
            for key in keys:
                mark = writing_path_of(key)
                if is_staged_name(key.rpartition("/")[2]) and (mark is None or mark in marked):
                    self._transport.delete(key)

    def key_of(self, path: str) -> str:
        """Return the name of a file in its bucket, or raise `ConfigError` if it is in another store."""
        if path.rstrip("/") == self.base:
            return ""
        if not path.startswith(self.base + "/"):
            raise ConfigError("the path is not in the store", path=path, expected=f"{self.base}/…")
        key = path[len(self.base) + 1 :].rstrip("/")
        return unquote(key) if self.lists_nothing else key

    @property
    def _transport(self) -> Transport:
        return transport(self.base, self.options)

    def _count(self, reply: Reply) -> Reply:
        mine = self.counters.mine
        mine.requests += reply.requests
        mine.fetched_bytes += sum(map(len, reply.data))
        return reply


def base_of(url: str) -> str:
    """Return scheme and bucket, or scheme and host, of a URL; raise `ConfigError` if it has none."""
    parts = urlsplit(url)
    if not parts.netloc:
        raise ConfigError("the URL has no bucket or host", path=url if parts.path else f"{parts.scheme}://")
    if not parts.scheme.startswith("http") and ("@" in parts.netloc or ":" in parts.netloc):
        hint = (
            "Give only the bucket, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the settings of its service"
        )
        raise ConfigError(f"{parts.scheme}:// URLs can't contain credentials", path=url, hint=hint)
    if parts.scheme in ("http", "https") and (parts.query or parts.fragment):
        what = "a URL with a query points to one file, but the dataset has several"
        raise ConfigError(what, path=url, hint="Download it")
    return f"{parts.scheme}://{parts.netloc}"
