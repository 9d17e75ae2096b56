"""What reading a remote file by ranges costs, and the beginnings of files that were read to learn their sizes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from penstock.store._ranges import Range, plan_requests
from penstock.store._remote_options import REQUEST_BYTES

_MOST_BEGUN = 64


class Costs:
    """Path → what its ranges cost so far, and what is to come of them; a request counts as `REQUEST_BYTES`."""

    __slots__ = ("_coming", "_spent")

    def __init__(self) -> None:
        self._spent: dict[str, int] = {}
        self._coming: dict[str, int] = {}

    def hint(self, reads: Mapping[str, tuple[int, int]]) -> None:
        """Count what will be read: path → number of requests, and bytes of all of them."""
        for path, (requests, size_bytes) in reads.items():
            self._coming[path] = self._coming.get(path, 0) + size_bytes + requests * REQUEST_BYTES

    def is_hinted(self, path: str) -> bool:
        """Whether more is said to come."""
        return path in self._coming

    def add(self, path: str, ranges: Sequence[Range]) -> int:
        """Add ranges of a file to its sum; the sum, with what is to come."""
        requests = plan_requests(ranges, gap_bytes=REQUEST_BYTES, part_bytes=1 << 62)
        cost_bytes = sum(stop - start + REQUEST_BYTES for start, stop in requests)
        self._spent[path] = self._spent.get(path, 0) + cost_bytes
        if path in self._coming:
            self._coming[path] = max(0, self._coming[path] - cost_bytes)
        return self._spent[path] + self._coming.get(path, 0)

    def forget(self, path: str) -> None:
        """Count a file from the beginning."""
        self._spent.pop(path, None)
        self._coming.pop(path, None)

    def clear(self) -> None:
        """Count all files from the beginning."""
        self._spent.clear()
        self._coming.clear()


class Beginnings:
    """The first bytes of files, of those that were asked for last."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: OrderedDict[str, bytes] = OrderedDict()

    def put(self, path: str, data: bytes) -> None:
        """Keep the beginning of a file."""
        self._held[path] = data
        while len(self._held) > _MOST_BEGUN:
            self._held.popitem(last=False)

    def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes] | None:
        """The bytes of each range; None where they are not all in it."""
        data = self._held.get(path)
        if data is None or any(stop > len(data) for _, stop in ranges):
            return None
        return [data[start:stop] for start, stop in ranges]

    def forget(self, path: str) -> None:
        """Keep it no longer."""
        self._held.pop(path, None)
