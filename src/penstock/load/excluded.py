"""History of a run's exclude lists: its record in a state, and which samples were read before an exclusion.

A state has `"excluded": [[consumed, {place: digest}], …]`, one entry per change, if there was a list: from `consumed`
samples on, the list of the source at this place in the tree had this digest. A list only grows at its end, so the
digest
identifies which of today's entries it had then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from penstock._kinds import is_lane_stream
from penstock.errors import ConfigError, NotFound, ResumeMismatch
from penstock.load.inverse import OneOf, positions_of
from penstock.node.walk import UNNAMED

Rows: TypeAlias = "tuple[tuple[int, Mapping[str, str]], ...]"
"""(samples consumed, place in the tree → digest of the list from there on)."""

_DIGEST_CHARS = 12


def lists_of(data: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the place in the tree and the source of all sources with an exclude list."""
    if hasattr(type(data), "exclusions") or "exclusions" in vars(data):
        yield "/".join(path) or "source", data
        return
    for name, child in data.children().items():
        yield from lists_of(child, path if name in UNNAMED else (*path, name))


def now_in_force(data: Any) -> dict[str, str]:
    """Return place in the tree → short digest of the source's current list."""
    return {place: source.exclusions.listed.digest[:_DIGEST_CHARS] for place, source in lists_of(data)}


def begin(data: Any, consumed: int) -> Rows:
    lists = now_in_force(data)
    return ((consumed, lists),) if lists else ()


def go_on(rows: Rows, data: Any, consumed: int) -> Rows:
    """Return the rows, extended by the current lists from `consumed` on."""
    lists = now_in_force(data)
    if (rows[-1][1] if rows else {}) == lists:
        return rows
    return (*(row for row in rows if row[0] < consumed), (consumed, lists))


def encode(rows: Rows) -> list[Any]:
    return [[consumed, dict(lists)] for consumed, lists in rows]


def decode(value: Any) -> Rows:
    """Return the rows in a state; raise `ResumeMismatch` if they are malformed."""
    rows: list[tuple[int, Mapping[str, str]]] = []
    given: list[Any] = value if isinstance(value, list) else [None]
    for row in given:
        fits = isinstance(row, list | tuple) and len(row) == 2 and isinstance(row[0], int) and isinstance(row[1], dict)
        if not fits or not all(isinstance(one, str) for pair in row[1].items() for one in pair):
            what, expected = "this is not a state that can be loaded", "a list of [consumed, {place: digest}]"
            raise ResumeMismatch(what, found="different exclude lists", expected=expected)
        rows.append((row[0], dict(row[1])))
    return tuple(rows)


def entries_then(source: Any, place: str, rows: Rows, position: int) -> int | None:
    """Return how many of today's entries the list of a source had at a position; None if unknown."""
    said = next((lists for consumed, lists in reversed(rows) if consumed <= position), {})
    digest = said.get(place)
    if digest is None:
        return 0
    known = [one[:_DIGEST_CHARS] for one in source.exclusions.listed.digests()]
    return known.index(digest) + 1 if digest in known else None


def explain_excluded(run: Any, limit: int) -> dict[str, Any]:
    """Return the steps of a run that read samples which are excluded now, each with the sample.

    A step counts if the list at that time didn't have the sample, or if that list is unknown.

    Raises:
        ConfigError: no state, or a stream that packs on the fly.
        NotFound: nothing is excluded.
    """
    if run.consumed is None:
        raise ConfigError("the position of the run is unknown", hint="Pass its state: --state FILE")
    if is_lane_stream(run.data):
        raise ConfigError("a stream that packs on the fly has no positions", hint="Use its `stream` instead")
    found = list(lists_of(run.data))
    if not found:
        raise NotFound("no source in this run has an exclude list", hint="penstock exclude --show DATASET")
    rows = sorted(_read_before(run, found), key=lambda row: (row["position"], row["index"]))
    steps = sorted({row["step"] for row in rows})
    return {"consumed": run.consumed, "steps": steps, "samples": rows[:limit], "of": len(rows)}


def _read_before(run: Any, found: Sequence[tuple[str, Any]]) -> Iterator[dict[str, Any]]:
    for place, source in found:
        for number, entry in enumerate(source.exclusions.listed.entries):
            if entry.index not in source.exclusions.indices:
                continue
            key = entry.key if entry.key is not None and hasattr(source, "key_of") and source.key_of else None
            wanted = _sample_in(source, entry.index) if key is None else key
            for position in positions_of(run.data, wanted, run.consumed):
                at = run.data.locate(position) if hasattr(run.data, "locate") else None
                if at is not None and at.path and not f"{place}/".startswith("/".join(at.path) + "/"):
                    continue
                had = entries_then(source, place, run.excluded, position)
                if had is not None and number < had:
                    continue
                stretch = next(one for one in reversed(run.history) if one.consumed <= position)
                step = stretch.first_step + (position - stretch.consumed) // stretch.global_batch
                rank = position % stretch.world
                yield {"step": step, "rank": rank, "position": position, "source": place, "index": entry.index,
                       "key": entry.key, "reason": entry.reason, "time": entry.time}  # fmt: skip


def _sample_in(source: Any, index: int) -> OneOf:
    return OneOf(str(index), lambda node: index if node is source else None)


def was_read_then(run: Any, position: int, index: int) -> bool:
    """Return whether a position held the sample at `index` of its source itself, not a substitute, when it was read."""
    if run.consumed is None or position >= run.consumed:
        return False
    for place, source in lists_of(run.data):
        numbers = [number for number, one in enumerate(source.exclusions.listed.entries) if one.index == index]
        had = entries_then(source, place, run.excluded, position)
        if numbers and (had is None or numbers[0] >= had):
            return True
    return False
