"""Planning, settings and counts of requests to remote stores."""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from penstock._arrays import byte_view
from penstock._settings import said_by, setting
from penstock.errors import ConfigError
from penstock.store.base import Range
from penstock.types import Buffer

REQUEST_BYTES = 1 << 18
"""Cost of one request in bytes: with concurrent requests, 256 KiB arrive while a request waits for its first byte.

So reading a gap of up to this size between two ranges is cheaper than another request.
"""


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Settings of all requests; each field is also a setting `PENSTOCK_REMOTE_<FIELD>`.

    Attributes:
        gap_bytes: ranges with smaller gaps are read by one request.
        part_bytes: longer reads become several concurrent requests: one connection only gets 50 to 100 MB/s.
        requests: concurrent requests per process.
        tries: maximum number of tries per request.
        backoff_s: wait before the second try; doubled each time up to 10 s, and shortened at random by up to a half.
        timeout_s: a try fails if no byte arrives for this long.
        deadline_s: limit on all tries without an answer; restarts when the server answers.
        spread_s: window for the first requests of a job's hosts, or 10 ms per host if that is less; 0 for no delay.
    """

    gap_bytes: int = REQUEST_BYTES
    part_bytes: int = 1 << 23
    requests: int = 16
    tries: int = 10
    backoff_s: float = 0.1
    timeout_s: float = 30.0
    deadline_s: float = 120.0
    spread_s: float = 10.0

    @classmethod
    def from_environment(cls) -> RemoteOptions:
        """Return the options of the environment, or raise `ConfigError` for an invalid number."""
        given = {}
        for one in fields(cls):
            name = f"PENSTOCK_REMOTE_{one.name.upper()}"
            text, _ = said_by(name)
            if text is not None:
                given[one.name] = _number(name, text, whole=isinstance(one.default, int))
        return cls(**given)


def whole_number(name: str) -> int | None:
    """Return a setting as an integer, None if it isn't set; raise `ConfigError` if it is invalid."""
    text = setting(name)
    return int(_number(name, text, whole=True)) if text else None


def _number(name: str, text: str, *, whole: bool) -> float:
    try:
        value: float = int(text) if whole else float(text)
    except ValueError:
        value = -1
    least = 0 if name.endswith("GAP_BYTES") or not whole else 1
    if not least <= value <= sys.maxsize:  # also NaN and infinity
        kind = "an integer" if whole else "a number"
        raise ConfigError(f"invalid value for {name}", found=repr(text), expected=f"{kind} of at least {least}")
    return value


MOST_PARTS = 1 << 14


def plan_requests(ranges: Sequence[Range], *, gap_bytes: int, part_bytes: int) -> list[Range]:
    """Return the requests that cover `(start_bytes, stop_bytes)` ranges, in order of their offsets.

    Ranges that are at most `gap_bytes` apart are merged. Ranges longer than `part_bytes` are split into concurrent
    requests. Empty ranges need no request. The number of parts is limited to about `MOST_PARTS`, because a recorded
    size may be wrong.
    """
    runs: list[list[int]] = []
    for start, stop in sorted(one for one in ranges if one[0] < one[1]):
        if runs and start - runs[-1][1] <= gap_bytes:
            runs[-1][1] = max(runs[-1][1], stop)
        else:
            runs.append([start, stop])
    part_bytes = max(part_bytes, sum(stop - start for start, stop in runs) // MOST_PARTS)
    return [(begin, min(begin + part_bytes, stop)) for start, stop in runs for begin in range(start, stop, part_bytes)]


def cut_answers(ranges: Sequence[Range], requests: Sequence[Range], answers: Sequence[Buffer]) -> list[bytes]:
    starts = [start for start, _ in requests]
    views = [byte_view(answer) for answer in answers]
    found: list[bytes] = []
    for start, stop in ranges:
        if start >= stop:
            found.append(b"")
            continue
        at = bisect_right(starts, start) - 1
        pieces: list[memoryview] = []
        while start < stop:
            begin, end = requests[at]
            pieces.append(views[at][start - begin : min(stop, end) - begin])
            start, at = min(stop, end), at + 1
        found.append(bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces))
    return found


@dataclass(slots=True)
class Traffic:
    """Requests and bytes of a store in this process.

    Attributes:
        requests: number of requests, including failed tries.
        fetched_bytes: number of bytes received.
        asked_bytes: requested by callers of a cached store; more than `fetched_bytes` if copies answered.
        copies: number of files that were fetched completely.
    """

    requests: int = 0
    fetched_bytes: int = 0
    asked_bytes: int = 0
    copies: int = 0


class Counters(threading.local):
    """Traffic, counted per thread, so that no count is lost."""

    def __init__(self, all_threads: list[Traffic]) -> None:
        self.all_threads = all_threads
        self.mine = Traffic()
        all_threads.append(self.mine)

    def total(self) -> Traffic:
        names = Traffic.__slots__
        return Traffic(**{name: sum(getattr(one, name) for one in self.all_threads) for name in names})


_MOST_BEGUN = 64


class Costs:
    """Costs per path of ranges read so far and of hinted ranges; a request counts as `REQUEST_BYTES`."""

    __slots__ = ("_coming", "_spent")

    def __init__(self) -> None:
        self._spent: dict[str, int] = {}
        self._coming: dict[str, int] = {}

    def hint(self, reads: Mapping[str, tuple[int, int]]) -> None:
        """Count future reads: path → number of requests, and their bytes."""
        for path, (requests, size_bytes) in reads.items():
            self._coming[path] = self._coming.get(path, 0) + size_bytes + requests * REQUEST_BYTES

    def is_hinted(self, path: str) -> bool:
        return path in self._coming

    def add(self, path: str, ranges: Sequence[Range]) -> int:
        """Add ranges of a file, and return the file's total, including hinted reads."""
        requests = plan_requests(ranges, gap_bytes=REQUEST_BYTES, part_bytes=1 << 62)
        cost_bytes = sum(stop - start + REQUEST_BYTES for start, stop in requests)
        self._spent[path] = self._spent.get(path, 0) + cost_bytes
        if path in self._coming:
            self._coming[path] = max(0, self._coming[path] - cost_bytes)
        return self._spent[path] + self._coming.get(path, 0)

    def forget(self, path: str) -> None:
        self._spent.pop(path, None)
        self._coming.pop(path, None)

    def clear(self) -> None:
        self._spent.clear()
        self._coming.clear()


class Beginnings:
    """The first bytes of the most recently requested files."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: OrderedDict[str, bytes] = OrderedDict()

    def put(self, path: str, data: bytes) -> None:
        self._held[path] = data
        while len(self._held) > _MOST_BEGUN:
            self._held.popitem(last=False)

    def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes] | None:
        """Return the bytes of each range, or None if the beginning doesn't contain all of them."""
        data = self._held.get(path)
        if data is None or any(stop > len(data) for _, stop in ranges):
            return None
        return [data[start:stop] for start, stop in ranges]

    def forget(self, path: str) -> None:
        self._held.pop(path, None)
