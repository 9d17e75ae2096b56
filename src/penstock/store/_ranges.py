"""Ranges of a remote file: which requests to make for them, and how to cut the answers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from penstock._buffers import byte_view
from penstock.store.base import Range
from penstock.types import Buffer

MOST_PARTS = 1 << 14


def plan_requests(ranges: Sequence[Range], *, gap_bytes: int, part_bytes: int) -> list[Range]:
    """The requests, in order of their place, that cover `(start_bytes, stop_bytes)` ranges.

    Neighbours that are at most `gap_bytes` apart become one; what is longer than `part_bytes` becomes several, which
    run at once. Empty ranges need none. There are never many more than `MOST_PARTS`: a size may be a lie.
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
    """One bytes object for each range, out of the answers to the requests that `plan_requests` gave for them."""
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
