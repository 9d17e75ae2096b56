"""Joins the rows of several sources by key: hashes sorted once, rows in the order of the first source.

Keys are compared by xxh3-128. Memory while building: about 60 bytes a key of the largest source, and 8 bytes a row and
source of the result; keys themselves only in runs of 65,536. The result is mapped from disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock._places import keys_of
from penstock.errors import ConfigError
from penstock.types import IntArray

How: TypeAlias = Literal["error", "skip", "none"]

RUN = 1 << 16
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys of a source, sorted by hash: uint64[n] twice, and the row of each: int64[n]."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    rows: IntArray


def join_rows(names: Sequence[str], sources: Sequence[Any], how: Sequence[How]) -> IntArray:
    """int64[n_rows · n_sources]: row after row, the sample of each source; -1 where a source has none.

    Args:
        names: of the sources, for messages.
        sources: with keys; the first decides the order.
        how: for each but the first, what happens to a row of the first that it has no partner for.

    Raises:
        ConfigError: a key comes twice in a source, or has no partner where it needs one.
    """
    first = _hashes(sources[0])
    _sorted_keys(names[0], sources[0], first)
    columns = [np.arange(len(sources[0]), dtype=np.int64)]
    kept = np.ones(len(sources[0]), dtype=np.bool_)
    for name, source, rule in zip(names[1:], sources[1:], how, strict=True):
        found = _look_up(first, _sorted_keys(name, source, _hashes(source)))
        if rule == "error" and (found < 0).any():
            raise _unmatched(names[0], sources[0], name, np.flatnonzero(found < 0))
        if rule == "skip":
            kept &= found >= 0
        columns.append(found)
    return np.stack([column[kept] for column in columns], axis=1).reshape(-1)


def _hashes(source: Any) -> NDArray[np.uint64]:
    """uint64[n, 2]: high and low half of each key's hash."""
    digests = bytearray()
    for keys in _key_runs(source):
        digests += b"".join(xxhash.xxh3_128_digest(key.encode("utf-8", "surrogatepass")) for key in keys)
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64).reshape(-1, 2)


def _key_runs(source: Any) -> Iterator[Sequence[str]]:
    size = len(source)
    for start in range(0, size, RUN):
        stop = min(start + RUN, size)
        yield keys_of(source, start, stop)


def _sorted_keys(name: str, source: Any, hashes: NDArray[np.uint64]) -> _Keys:
    rows = np.lexsort((hashes[:, 1], hashes[:, 0])).astype(np.int64)
    high, low = hashes[rows, 0], hashes[rows, 1]
    twice = np.flatnonzero((high[1:] == high[:-1]) & (low[1:] == low[:-1]))
    if twice.size:
        places = sorted(rows[twice[0] : twice[0] + 2].tolist())
        raise ConfigError(
            f"a key is repeated in {name!r}, so the join is ambiguous",
            found=f"{source.key_of(places[0])!r} at {places[0]} and {places[1]}, {twice.size:,} in total",
            expected="each key once",
        )
    return _Keys(high, low, rows)


def _look_up(wanted: NDArray[np.uint64], keys: _Keys) -> IntArray:
    """int64[k]: the row of each wanted key, -1 where there is none."""
    found = np.full(len(wanted), -1, dtype=np.int64)
    if not keys.rows.size:
        return found
    for start in range(0, len(wanted), RUN):
        high, low = wanted[start : start + RUN, 0], wanted[start : start + RUN, 1]
        at = np.searchsorted(keys.high, high)
        last = np.searchsorted(keys.high, high, side="right")
        part = found[start : start + RUN]
        # Once, but for keys whose high halves are equal by chance.
        while (open_ := np.flatnonzero((part < 0) & (at < last))).size:
            hit = open_[keys.low[at[open_]] == low[open_]]
            part[hit] = keys.rows[at[hit]]
            at[open_] += 1
    return found


def _unmatched(first: str, source: Any, name: str, rows: IntArray) -> ConfigError:
    some = ", ".join(repr(source.key_of(row)) for row in rows[:_MOST_NAMED].tolist())
    more = ", …" if len(rows) > _MOST_NAMED else ""
    return ConfigError(
        f"{len(rows):,} of {len(source):,} keys of {first!r} are not in {name!r}",
        found=f"{some}{more}",
        hint="To skip these rows: how='skip' (nonmatch: skip in a metadataset). To fill them with None: how='none'",
    )
