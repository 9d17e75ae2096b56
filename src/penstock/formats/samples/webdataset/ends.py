"""What comes after the members of a shard: every reader of tar stops at the end-of-archive mark.

So data after the mark is lost without a message: the second of two tars joined with `cat`, or what follows a block of
zeros that a failed copy left. A shard cut between two members has no mark.
"""

from __future__ import annotations

from penstock.errors import Corrupt, Truncated
from penstock.formats._findings import Problem
from penstock.formats.samples.webdataset.shards import ShardTable
from penstock.formats.samples.webdataset.tar import MOST_PADDING_BYTES, read_tail
from penstock.store.base import Store

_FETCH = "Download or pack this shard again"


def end_problem(store: Store, path: str, table: ShardTable) -> Problem | None:
    """Return the problem with the end of a scanned shard, if there is one; one small read unless there is.

    Only data after the mark is an error: tars that other tools made without a mark may be whole.
    """
    if table.end is None:
        return None
    end_bytes = table.end.offset_bytes
    if not table.end.is_marked:
        what = "no end-of-archive mark: the shard may be truncated"
        return Problem("webdataset.no-end", Truncated, path, what, _FETCH, end_bytes, severity="warning")
    size_bytes, first_bytes = read_tail(store, path, end_bytes)
    if first_bytes is not None:
        what = "data after the end-of-archive mark, where tar readers stop"
        fix = f"{_FETCH} (`tar -A` joins tars, `cat` doesn't), or omit the shard: `penstock prepare --exclude`"
        found = f"the mark at byte {end_bytes}, data starting at byte {first_bytes}"
        return Problem(
            "webdataset.after-end", Corrupt, path, what, fix, first_bytes, found, "zeros to the end of the file"
        )
    if size_bytes > MOST_PADDING_BYTES:
        what = "too many zeros after the end-of-archive mark: the shard may be damaged"
        found, expected = f"{size_bytes} bytes", f"at most {MOST_PADDING_BYTES}"
        return Problem(
            "webdataset.after-end", Corrupt, path, what, _FETCH, end_bytes, found, expected, severity="warning"
        )
    return None


def require_ended(store: Store, path: str, table: ShardTable) -> Problem | None:
    """Raise `Corrupt` for data after the end-of-archive mark; return any other problem with the end."""
    problem = end_problem(store, path, table)
    if problem is not None and problem.severity == "error":
        raise problem.error()
    return problem
