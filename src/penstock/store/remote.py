"""Object stores and web servers: `s3://`, `gs://`, `az://`, `http://`, `https://`.

Paths are whole URLs, so that errors, recipes and names beside a path are right as they are. Nothing is opened before
the first request, and each process opens its own; what was opened before a fork is not used after it.

Output: a staged file is written to the cache folder. Small ones are uploaded at `commit`, by a request that fails where
the name is taken. Larger ones are uploaded under a hidden name at `sync`, and copied to their name inside the store at
`commit`, under the same condition. So of two writers only one wins, and nothing shows before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from urllib.parse import unquote, urlsplit

from penstock._secrets import redact
from penstock.abc import Staged
from penstock.errors import ConfigError, Denied, NotFound, PenstockError, Unsupported
from penstock.store._files import is_staged_name
from penstock.store._fork_helper import transport
from penstock.store._leftovers import is_staged_for, staged_start
from penstock.store._objects import Head, RangesIgnored, Reply, Transport
from penstock.store._ranges import Range, cut_answers, plan_requests, require_inside
from penstock.store._remote_options import RemoteOptions
from penstock.store._remote_staged import RemoteStaged, publish
from penstock.store._replaced import mark_of, mark_path
from penstock.store._traffic import Counters, Traffic
from penstock.store.local import output_exists
from penstock.store.patterns import alternatives

SCHEMES = ("s3", "gs", "az", "azure", "http", "https")


class RemoteStore:
    """The files of one bucket, container or server; picklable, thread-safe, and usable after fork.

    Args:
        base: `"s3://bucket"`, `"gs://bucket"`, `"az://container"` or `"http(s)://host:port"`.
        options: of all requests; by default those of the environment.
    """

    __slots__ = ("base", "counters", "options")

    def __init__(self, base: str, options: RemoteOptions | None = None) -> None:
        self.base = base.rstrip("/")
        self.options = options or RemoteOptions.from_environment()
        self.counters = Counters([])

    def __reduce__(self) -> tuple[object, ...]:
        return (RemoteStore, (self.base, self.options))

    def __repr__(self) -> str:
        return f"RemoteStore({redact(self.base)!r})"

    def stats(self) -> Traffic:
        """Requests and bytes of this store in this process."""
        return self.counters.total()

    # --- reading -------------------------------------------------------------------------------------------------

    def get(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """Return the bytes `[start, start + length)`, fewer only at the end of the file, or raise `NotFound`."""
        if start_bytes == 0 and length_bytes is None:
            return bytes(self._count(self._transport.read(self._key(path), None)).data[0])
        size_bytes = self.size(path)
        stop_bytes = size_bytes if length_bytes is None else min(size_bytes, start_bytes + length_bytes)
        return self.get_ranges(path, [(start_bytes, stop_bytes)])[0] if start_bytes < stop_bytes else b""

    def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        """Return one bytes object per `(start_bytes, stop_bytes)`, or raise `Truncated`.

        Where the server sends whole files only, the file is read whole, at each call.
        """
        try:
            return self.fetch(path, ranges)[0]
        except RangesIgnored:
            whole = self.get(path)
        require_inside(path, ranges, len(whole))
        return [whole[start:stop] for start, stop in ranges]

    def fetch(self, path: str, ranges: Sequence[Range]) -> tuple[list[bytes], Head]:
        """`get_ranges`, and what the server says of the file.

        Raises:
            RangesIgnored: the server sends whole files only.
        """
        options = self.options
        requests = plan_requests(ranges, gap_bytes=options.gap_bytes, part_bytes=options.part_bytes)
        if not requests:
            head = self.head(path)
            require_inside(path, ranges, head.size_bytes)
            return [b""] * len(ranges), head
        try:
            reply = self._count(self._transport.read(self._key(path), requests))
        except (NotFound, Denied, RangesIgnored):
            raise
        except OSError:
            # A range behind the end is refused by the server, in words of its own.
            require_inside(path, ranges, self.size(path))
            raise
        require_inside(path, ranges, reply.head.size_bytes)
        return cut_answers(ranges, requests, reply.data), reply.head

    def fetch_start(self, path: str, length_bytes: int | None = None) -> tuple[bytes, Head]:
        """The first bytes of a file, all of a small one, and what the server says of it; by one request.

        Args:
            path: of the file.
            length_bytes: how many; by default as many as one request asks for.

        Raises:
            NotFound: no such file.
            RangesIgnored: the server sends whole files only.
        """
        try:
            reply = self._count(self._transport.read(self._key(path), [(0, length_bytes or self.options.part_bytes)]))
        except (NotFound, Denied, RangesIgnored):
            raise
        except OSError:
            head = self.head(path)  # no range lies in an empty file
            if head.size_bytes:
                raise
            return b"", head
        return bytes(reply.data[0]), reply.head

    def head(self, path: str) -> Head:
        """Size and version of a file; raises `NotFound`."""
        self.counters.mine.requests += 1
        return self._transport.head(self._key(path))

    def size(self, path: str) -> int:
        """Return the size in bytes, or raise `NotFound`."""
        return self.head(path).size_bytes

    def exists(self, path: str) -> bool:
        """Whether a file or a folder of this name is there, as far as these credentials may know."""
        with contextlib.suppress(NotFound, Denied):
            return self.head(path).size_bytes >= 0
        return not self._is_web and self.is_folder(path)

    def is_folder(self, path: str) -> bool:
        """Return whether there is a file below `path`.

        A web server does not say: there, every path that is no file may be a folder, and formats look for their files
        in it; but `{a,b}` stands for files.
        """
        if self._is_web:
            return len(alternatives(path)) == 1 and not self.exists(path)
        self.counters.mine.requests += 1
        with contextlib.suppress(NotFound, Denied):
            return bool(self._transport.list(self._key(path), first_only=True))
        return False

    def list(self, prefix: str) -> Iterator[str]:
        """Yield all files below the directory `prefix`, in byte order of their paths, except staged ones."""
        if self._is_web:
            raise Unsupported(
                "a web server can't list its files", path=prefix, hint="Use the URL of a file of the dataset"
            )
        self.counters.mine.requests += 1
        found = self._transport.list(self._key(prefix), first_only=False)
        if not found:
            raise NotFound("no such file or folder", path=prefix, hint="Check the URL")
        for key in sorted(found, key=str.encode):
            if not is_staged_name(key.rpartition("/")[2]):
                yield f"{self.base}/{key}"

    @property
    def lists_nothing(self) -> bool:
        """Whether this is a web server; see `penstock.store.powers.MayListNothing`."""
        return self._is_web

    def heads_under(self, folder: str, most: int) -> dict[str, Head] | None:
        """Files under a folder, and what a listing says of them; see `penstock.store.powers.ListsHeads`."""
        if not self.base.startswith("s3://"):  # what others list was not seen to be what they answer with
            return None
        self.counters.mine.requests += 1
        found = self._transport.heads(self._key(folder), most)
        return None if found is None else {f"{self.base}/{key}": head for key, head in found}

    def first_names(self, path: str) -> list[str]:
        """Up to 1000 files under a folder; see `penstock.store.powers.PeekingStore`."""
        if self._is_web:
            return []
        self.counters.mine.requests += 1
        key = self._key(path)
        with contextlib.suppress(NotFound, Denied):
            found = (one.removeprefix(key).lstrip("/") for one in self._transport.list(key, first_only=True))
            return [one for one in found if not is_staged_name(one.rpartition("/")[2])]
        return []

    def level(self, folder: str) -> tuple[list[str], list[str]]:
        """What lies right in a folder; see `penstock.store.powers.ListsLevels`."""
        if self._is_web:
            return [], []
        self.counters.mine.requests += 1
        with contextlib.suppress(NotFound, Denied):
            return self._transport.level(self._key(folder))
        return [], []

    # --- writing -------------------------------------------------------------------------------------------------

    def stage(self, path: str, *, overwrite: bool = False) -> RemoteStaged:
        """Start a file, or raise `ConfigError` if it exists and `overwrite` is false."""
        self._require_writable(path)
        key = self._key(path)
        if not overwrite:
            with contextlib.suppress(NotFound):
                self.head(path)
                raise output_exists(path)
        return RemoteStaged(lambda: self._transport, path, key, overwrite=overwrite)

    def commit(self, staged: Sequence[Staged]) -> None:
        """Sync all files, then publish them in order; after a failure, new files are removed again."""
        publish(staged)

    def delete(self, path: str) -> None:
        """Remove one file, or raise `NotFound`."""
        self._require_writable(path)
        self.head(path)
        self._transport.delete(self._key(path))

    def sweep(self, path: str) -> None:
        """Remove the uploads of a visible file that were killed when they had been copied to its name."""
        folder, _, name = self._key(path).rpartition("/")
        with contextlib.suppress(OSError, PenstockError):
            visible = self.head(path)
            for key in self._transport.list(folder, first_only=False, start=staged_start(name)):
                if is_staged_for(key.removeprefix(folder).lstrip("/"), name):
                    hidden = self._transport.head(key)
                    # One of a living writer is younger.
                    if hidden.size_bytes == visible.size_bytes and hidden.modified <= visible.modified:
                        self._transport.delete(key)

    def sweep_folder(self, path: str) -> None:
        """Remove the hidden objects under a folder whose dataset is complete: their writers were killed.

        The mark of a writer stays where the file that it is about is not there: another part is being written.
        """
        with contextlib.suppress(OSError, PenstockError):
            keys = self._transport.list(self._key(path), first_only=False)
            marked = {mark_path(key) for key in keys}
            for key in keys:
                mark = mark_of(key)
                if is_staged_name(key.rpartition("/")[2]) and (mark is None or mark in marked):
                    self._transport.delete(key)

    def key_of(self, path: str) -> str:
        """The name of a file in its bucket; raises `ConfigError` for one of another store."""
        return self._key(path)

    # --- inside --------------------------------------------------------------------------------------------------

    @property
    def _is_web(self) -> bool:
        return self.base.startswith("http")

    @property
    def _transport(self) -> Transport:
        return transport(self.base, self.options)

    def _count(self, reply: Reply) -> Reply:
        mine = self.counters.mine
        mine.requests += reply.requests
        mine.fetched_bytes += sum(map(len, reply.data))
        return reply

    def _key(self, path: str) -> str:
        if path.rstrip("/") == self.base:
            return ""
        if not path.startswith(self.base + "/"):
            raise ConfigError("the path is not in the store", path=path, expected=f"{self.base}/…")
        key = path[len(self.base) + 1 :].rstrip("/")
        return unquote(key) if self._is_web else key

    def _require_writable(self, path: str) -> None:
        if self._is_web:
            raise Unsupported("web servers are read-only", path=path, hint="Write to a local path or to s3://…")


def base_of(url: str) -> str:
    """The store's part of a URL: scheme and bucket, or scheme and host; raises `ConfigError`."""
    parts = urlsplit(url)
    if not parts.netloc:
        raise ConfigError("the URL has no bucket or host", path=url)
    if not parts.scheme.startswith("http") and ("@" in parts.netloc or ":" in parts.netloc):
        hint = (
            "Give only the bucket, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the settings of its service"
        )
        raise ConfigError(f"{parts.scheme}:// URLs can't contain credentials", path=url, hint=hint)
    if parts.scheme in ("http", "https") and (parts.query or parts.fragment):
        what = "a URL with a query points to one file, but the dataset has several"
        raise ConfigError(what, path=url, hint="Download it")
    return f"{parts.scheme}://{parts.netloc}"
