"""Requests to object stores and web servers through obstore, in this process.

Only this module retries requests, so that the counts are right. It retries after throttling, 5xx responses, dropped
connections and truncated bodies, but not after errors of the caller.

obstore's threads don't survive a fork, and a call in the child would hang. `forked_after_use` detects such a process.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import multiprocessing
import os
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

from penstock._limits import count_in
from penstock._optional import require
from penstock._secrets import logger
from penstock._threads import Pool, Worker, has_ended, sleep
from penstock.errors import ConfigError, Denied, NotFound, PenstockError, Unreachable, Unsupported
from penstock.store._credentials import require_credentials, s3_settings
from penstock.store._requests import RemoteOptions
from penstock.store.base import Head, Range, RangesIgnored
from penstock.types import Buffer

_HOST_S = 0.01


def host_of(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return (host, number of hosts) as set by torchrun, SLURM or Open MPI; else (0, 1)."""
    for host, hosts in (("GROUP_RANK", "GROUP_WORLD_SIZE"), ("SLURM_NODEID", "SLURM_NNODES")):
        found = _number(environ, host), _number(environ, hosts)
        if 0 <= found[0] < found[1]:
            return found
    of_ranks = (
        ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    )
    for names in of_ranks:
        rank, world, local = (_number(environ, name) for name in names)
        if 0 <= rank < world and local > 0:
            return rank // local, -(-world // local)
    return 0, 1


def delay_s(host: int, hosts: int, window_s: float) -> float:
    """Return the delay of a host: `host / hosts` of the window, or of 10 ms per host if that is less."""
    return min(window_s, _HOST_S * hosts) * host / hosts


@functools.cache
def await_turn(window_s: float) -> None:
    """Wait for this host's turn, once per process; not in workers, and not on a single host."""
    wait_s = delay_s(*host_of(os.environ), window_s)
    if wait_s > 0 and multiprocessing.parent_process() is None:
        sleep(wait_s)


def _number(environ: Mapping[str, str], name: str) -> int:
    number = count_in(environ.get(name, ""))
    return -1 if number is None else number


REPORT_AFTER_S = 10.0
"""Wait after which a request without an answer is logged, in seconds; logged again each time that the wait doubles."""

_log = logger()


class SlowRequests:
    """Running requests of a process, watched by a thread while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[str, float, float]] = {}
        self._next = 0
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def waiting(self, url: str) -> Generator[None]:
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._waiting[number] = (url, time.monotonic(), REPORT_AFTER_S)
            if self._thread is None and not has_ended():
                # The sleep ends with the process.
                self._thread = Worker(self._look, "penstock-slow-requests", stop=int, doing=lambda: "slow requests")
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                del self._waiting[number]

    def _look(self) -> None:
        while not sleep(REPORT_AFTER_S / 10):
            now = time.monotonic()
            with self._lock:
                late = {one: found for one, found in self._waiting.items() if now - found[1] >= found[2]}
                for one, (url, since, report_after_s) in late.items():
                    self._waiting[one] = (url, since, 2 * report_after_s)
                if not self._waiting:
                    self._thread = None
                    return
            for url, since, _ in late.values():
                _log.warning("%s: no answer for %.0f s; still waiting", url, now - since)


_MOST_WAIT_S = 10.0
_PART_BYTES = 1 << 24
_COMPARED_BYTES = 1 << 23
_AS_LONG_AS_BYTES_COME = timedelta(days=7)
_MOST_PARTS = 9_000  # S3 allows 10,000
_STATUS = re.compile(r"status code: (\d{3})")
_TRY_AGAIN = {408, 429}
_NO_HEAD = {405, 501}
_EXPIRED = ("ExpiredToken", "TokenRefreshRequired")
_NO_LENGTH = "Content-Length Header missing"
_ODD_HEADER = re.compile(r"Header missing from|header not present|to parse value for|Invalid last modified|non-ASCII")
_ENCODINGS = {"gzip": (".gz", ".tgz"), "x-gzip": (".gz", ".tgz"), "zstd": (".zst",), "br": (".br",), "deflate": ()}
"""Content encodings of web servers → suffixes of files that are compressed themselves."""
T = TypeVar("T")
Answered = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Reply:
    data: Sequence[Buffer]
    head: Head
    requests: int


@functools.cache
def _owner() -> int:
    """Return the process that loaded obstore first; forked children inherit the answer."""
    return os.getpid()


def _note_owner() -> None:
    if "obstore" in sys.modules:
        _owner()


os.register_at_fork(before=_note_owner)


def forked_after_use() -> bool:
    """Return whether obstore can't work because this process was forked from one that had loaded it."""
    return "obstore" in sys.modules and _owner() != os.getpid()


class Objects:
    """Requests about the keys of one bucket or server, through obstore. Errors name the URL."""

    def __init__(self, base: str, options: RemoteOptions) -> None:
        self._obstore = require("obstore", extra="remote")
        _owner()
        await_turn(options.spread_s)
        self._base = base
        self._options = options
        self._store = _open(base, options)
        self._slow = SlowRequests()
        self._threads = Pool(options.requests, "penstock-remote")

    def head(self, key: str) -> Head:
        def once() -> Any:
            try:
                meta = self._obstore.head(self._store, key)
                if meta["size"] or not self._is_web:
                    return meta
            except Exception as error:
                if not self._is_web or (_status(error) not in _NO_HEAD and _NO_LENGTH not in str(error)):
                    raise
            return self._obstore.get(self._store, key).meta  # for servers that only answer GET; no body is read

        return _head(self._try(key, once)[0])

    def read(self, key: str, ranges: Sequence[Range] | None) -> Reply:
        """Return bytes of ranges inside the file, or the whole file for None; raise `NotFound` or `RangesIgnored`."""
        asked: Sequence[Range | None] = [None] if ranges is None else ranges
        one = functools.partial(self._read_one, key)
        # A single request needs no thread. A failure stops the retries of the others, whose errors would be the same.
        answers = [one(asked[0])] if len(asked) == 1 else list(self._threads.map(one, asked))
        return Reply([data for data, _, _ in answers], answers[0][1], sum(tries for _, _, tries in answers))

    def list(self, key: str, *, first_only: bool, start: str = "") -> list[str]:
        """Return the keys under a folder that start with `start` there; with `first_only`, at least one, if any."""
        first = f"{key}/{start}".removeprefix("/") if start else ""

        def pages() -> list[str]:
            found: list[str] = []
            for page in self._obstore.list(self._store, key or None, offset=first or None, chunk_size=1000):
                names = [one["path"] for one in page if one["path"] != key]
                these = [name for name in names if name.startswith(first)]
                found += these
                if (first_only and found) or (first and not these):  # pages are sorted
                    break
            return found

        return self._try(key, pages)[0]

    def heads(self, key: str, most: int) -> list[tuple[str, Head]] | None:
        """Return `(key, size and version)` of all files under a folder, or None if there are more than `most`."""

        def pages() -> list[tuple[str, Head]] | None:
            found: list[tuple[str, Head]] = []
            for page in self._obstore.list(self._store, key or None, chunk_size=1000):
                found += [(one["path"], _head(one)) for one in page if one["path"] != key]
                if len(found) > most:
                    return None
            return found

        return self._try(key, pages)[0]

    def level(self, key: str) -> tuple[list[str], list[str]]:
        """Return the names of the folders and of the files directly in a folder, unordered."""

        def once() -> tuple[list[str], list[str]]:
            found = self._obstore.list_with_delimiter(self._store, key or None)
            folders = [one.rstrip("/").rpartition("/")[2] for one in found["common_prefixes"]]
            return folders, [one["path"].rpartition("/")[2] for one in found["objects"] if one["path"] != key]

        return self._try(key, once)[0]

    def put(self, key: str, local_path: str, *, create: bool) -> bool:
        """Upload a file atomically; return False if `create` and the key exists."""
        chunk_bytes = max(_PART_BYTES, os.path.getsize(local_path) // _MOST_PARTS)
        how = {"mode": "create"} if create else {"chunk_size": chunk_bytes, "max_concurrency": 4}

        def upload() -> None:
            # The parts of a large file are retried one by one. A conditional request must be retried here.
            store = self._store if create else self._retrying
            with open(local_path, "rb") as file:
                self._obstore.put(store, key, file, **how)

        def is_ours() -> bool:
            # If the answer to a successful try was lost, the retry reports that the key exists.
            with open(local_path, "rb") as file:
                return bytes(self.read(key, None).data[0]) == file.read()

        return self._create(key, upload, is_ours)

    def copy(self, key: str, to: str, *, create: bool) -> bool:
        """Copy inside the store; return False if `create` and `to` exists."""

        def copy() -> None:
            self._obstore.copy(self._store, key, to, overwrite=not create)

        try:
            return self._create(to, copy, lambda: self._is_same(key, to))
        except Unreachable:
            # Maybe only the answer to the last try was lost.
            with contextlib.suppress(NotFound, Unreachable):
                if self._is_same(key, to):
                    return True
            raise

    def _is_same(self, key: str, other: str) -> bool:
        """Return whether two keys have the same bytes. Memory: 16 MiB."""
        size = self.head(key).size_bytes
        if self.head(other).size_bytes != size:
            return False
        ranges = ((start, min(size, start + _COMPARED_BYTES)) for start in range(0, size, _COMPARED_BYTES))
        return all(bytes(self.read(key, [one]).data[0]) == self.read(other, [one]).data[0] for one in ranges)

    def delete(self, key: str) -> None:
        with contextlib.suppress(NotFound):
            self._try(key, lambda: self._obstore.delete(self._store, key))

    @functools.cached_property
    def _retrying(self) -> Any:
        return _open(self._base, self._options, retries=self._options.tries)

    def _read_one(self, key: str, place: Range | None) -> tuple[Buffer, Head, int]:
        options = {} if place is None else {"range": place}

        def once(answered: Answered) -> tuple[Buffer, Head]:
            try:
                found = self._obstore.get(self._store, key, options=options)
            except self._obstore.exceptions.NotSupportedError as error:
                raise RangesIgnored(
                    "the server can only send whole files", path=self._url(key), found=_first_lines(error)
                ) from None
            self._require_plain(key, found.attributes.get("Content-Encoding"))
            answered()
            data = memoryview(found.bytes())
            expected_bytes = found.meta["size"] if place is None else min(place[1], found.meta["size"]) - place[0]
            if len(data) != expected_bytes:
                raise _EndsEarly(f"the answer has {len(data)} bytes, but {expected_bytes} were announced")
            return data, _head(found.meta)

        (data, head), tries = self._try_answered(key, once)
        return data, head, tries

    @property
    def _is_web(self) -> bool:
        return self._base.startswith("http")

    def _require_plain(self, key: str, encoding: str | None) -> None:
        endings = _ENCODINGS.get((encoding or "").lower()) if self._is_web else None
        if endings is not None and not key.endswith(endings):
            raise Unsupported(
                "the server compresses this file in transit, so byte ranges can't be read",
                path=self._url(key),
                found=f"Content-Encoding: {encoding}",
                hint="Configure the server to send it uncompressed, or download it",
            )

    def _create(self, key: str, work: Callable[[], object], is_ours: Callable[[], bool]) -> bool:
        tries = 0

        def once() -> None:
            nonlocal tries
            tries += 1
            try:
                work()
            except Exception as error:
                if type(error).__name__ == "AlreadyExistsError":  # obstore's error for any 409, even of a read
                    raise _Exists(self._url(key)) from None
                raise

        try:
            self._try(key, once)
        except _Exists:
            return tries > 1 and is_ours()
        return True

    def _try(self, key: str, work: Callable[[], T]) -> tuple[T, int]:
        """Return the result of `work`, and the number of tries."""
        return self._try_answered(key, lambda _: work())

    def _try_answered(self, key: str, work: Callable[[Answered], T]) -> tuple[T, int]:
        """Do the same for work that reports when the server begins to answer, which restarts the deadline."""
        options = self._options
        end_s = time.monotonic() + options.deadline_s

        def answered() -> None:
            nonlocal end_s
            end_s = time.monotonic() + options.deadline_s

        signed_in_again = False
        for number in range(1, options.tries + 1):
            try:
                with self._slow.waiting(self._url(key)):
                    return work(answered), number
            except Exception as error:
                if not signed_in_again and self._may_be_expired(error):
                    signed_in_again = True
                    self._sign_in_again()
                elif not _may_pass(error):
                    raise self._typed(key, error, number) from None
                wait_s = min(_MOST_WAIT_S, options.backoff_s * 2.0 ** (number - 1))
                wait_s *= 1 - secrets.randbelow(1000) / 2000  # don't change the caller's state of `random`
                if number == options.tries or time.monotonic() + wait_s > end_s:
                    raise self._typed(key, error, number) from None
            if sleep(wait_s):  # the process is exiting
                raise Unreachable("the program exited while retrying", path=self._url(key))
        raise ConfigError("retries are disabled", found=options.tries)

    def _may_be_expired(self, error: Exception) -> bool:
        """Return whether credentials may have expired; the response to a HEAD request has no text."""
        return is_expired(error) or (self._base.startswith("s3") and _status(error) == 400)

    def _sign_in_again(self) -> None:
        """Read credentials again, because other programs replace them in files."""
        self._store = _open(self._base, self._options)
        self.__dict__.pop("_retrying", None)

    def _url(self, key: str) -> str:
        return f"{self._base}/{key}" if key else self._base

    def _typed(self, key: str, error: Exception, tries: int) -> Exception:
        url = self._url(key)
        kind, text = type(error).__name__, _first_lines(error)
        if isinstance(error, (PenstockError, _Exists)):
            return error
        if isinstance(error, FileNotFoundError) or "NoSuchBucket" in str(error):
            hint = "The bucket does not exist" if "NoSuchBucket" in str(error) else "Check the URL"
            return NotFound("no such file or folder", path=url, hint=hint)
        if kind == "NotSupportedError":
            return Unsupported("the store can't do this", path=url, found=text)
        if kind in ("PermissionDeniedError", "UnauthenticatedError") or _status(error) in (401, 403):
            return Denied("the store rejected the credentials", path=url, found=text, hint="See docs/guide/remote.md")
        if isinstance(error, ValueError) or kind == "InvalidPathError":
            return ConfigError("not a valid name for a remote store", path=url, found=text)
        if _ODD_HEADER.search(text):
            return Unreachable("invalid response from the server", path=url, found=text, hint="Download the dataset")
        told = "the store doesn't answer" if tries == 1 else f"the store doesn't answer after {tries} tries"
        return Unreachable(told, path=url, found=text)


class _EndsEarly(Exception):
    pass


class _Exists(Exception):
    pass


def is_expired(error: Exception) -> bool:
    """Return whether a server reports expired credentials."""
    return any(word in str(error) for word in _EXPIRED)


def _may_pass(error: Exception) -> bool:
    if isinstance(error, _EndsEarly):
        return True
    if _ODD_HEADER.search(_first_lines(error)):
        return False
    status = _status(error)
    return type(error).__name__ == "GenericError" and (status is None or status >= 500 or status in _TRY_AGAIN)


def _status(error: Exception) -> int | None:
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None


def _first_lines(error: Exception) -> str:
    """Return obstore's message without its debug output and the server's page."""
    return str(error).partition("\n\nDebug source")[0].partition(": <")[0].strip()


def _head(meta: Any) -> Head:
    # Whole seconds, as in headers: listings of some servers are more precise.
    modified = meta["last_modified"].replace(microsecond=0).isoformat() if meta["last_modified"].timestamp() else ""
    return Head(meta["size"], strong(meta["e_tag"] or ""), modified)


def strong(etag: str) -> str:
    """Return an ETag without the weak prefix, because servers send the same ETag with and without it."""
    return etag.removeprefix("W/")


def _open(base: str, options: RemoteOptions, retries: int = 0) -> Any:
    store = require("obstore.store", extra="remote")
    scheme, _, place = base.partition("://")
    common: dict[str, Any] = {
        "client_options": {
            "allow_http": True,
            "connect_timeout": timedelta(seconds=min(10.0, options.timeout_s)),
            "read_timeout": timedelta(seconds=options.timeout_s),
            "timeout": _AS_LONG_AS_BYTES_COME,
        },
        "retry_config": {"max_retries": retries, "retry_timeout": timedelta(seconds=options.deadline_s)},
    }
    settings = s3_settings(place) if scheme == "s3" else {}
    require_credentials(scheme, base, settings)
    try:
        if scheme == "s3":
            return store.S3Store(place, **settings, **common)
        if scheme == "gs":
            return store.GCSStore(place, **common)
        if scheme in ("az", "azure"):
            return store.AzureStore(place, **_azure_settings(), **common)
        base, headers = _without_auth(base)
        common["client_options"]["default_headers"] = headers
        return store.HTTPStore(base, **common)
    except Exception as error:
        what = "unknown store, or invalid settings"
        raise ConfigError(what, path=base, found=_first_lines(error)) from None


def _without_auth(base: str) -> tuple[str, dict[str, str]]:
    """Return the URL of a web server without user and password, and the header with them."""
    scheme, _, place = base.partition("://")
    auth, at, host = place.rpartition("@")
    if not at:
        return base, {}
    return f"{scheme}://{host}", {"authorization": f"Basic {base64.b64encode(unquote_to_bytes(auth)).decode()}"}


def _azure_settings() -> dict[str, str]:
    """Return Azure's account from the variables that MosaicML Streaming uses; obstore reads its own."""
    given = {"account_name": "AZURE_ACCOUNT_NAME", "account_key": "AZURE_ACCOUNT_ACCESS_KEY"}
    return {name: os.environ[variable] for name, variable in given.items() if variable in os.environ}
