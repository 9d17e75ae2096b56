"""The exclude lists that a run reads by, over time: what a state records of them, and what it had read before.

A state has `"excluded": [[consumed, {place: digest}], …]`, one entry a change, only where there was a list: from that
many consumed samples on, the list of the source at this place in the tree had this digest. A list grows at its end, so
the digest tells which of today's entries it had then.
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
    """Place in the tree, and source, of all that have an exclude list."""
    if hasattr(type(data), "exclusions") or "exclusions" in vars(data):
        yield "/".join(path) or "source", data
        return
    for name, child in data.children().items():
        yield from lists_of(child, path if name in UNNAMED else (*path, name))


def now_in_force(data: Any) -> dict[str, str]:
    """Place in the tree → short digest of its list."""
    return {place: source.exclusions.listed.digest[:_DIGEST_CHARS] for place, source in lists_of(data)}


def begin(data: Any, consumed: int) -> Rows:
    """The rows of a run that starts here."""
    lists = now_in_force(data)
    return ((consumed, lists),) if lists else ()


def go_on(rows: Rows, data: Any, consumed: int) -> Rows:
    """The same, from `consumed` on by the lists that are there now."""
    lists = now_in_force(data)
    if (rows[-1][1] if rows else {}) == lists:
        return rows
    return (*(row for row in rows if row[0] < consumed), (consumed, lists))


def encode(rows: Rows) -> list[Any]:
    """As they stand in a state."""
    return [[consumed, dict(lists)] for consumed, lists in rows]


def decode(value: Any) -> Rows:
    """What a state says; raises `ResumeMismatch` for anything else."""
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
    """How many of today's entries the list of a source had at a position; None where that is not known."""
    said = next((lists for consumed, lists in reversed(rows) if consumed <= position), {})
    digest = said.get(place)
    if digest is None:
        return 0
    known = [one[:_DIGEST_CHARS] for one in source.exclusions.listed.digests()]
    return known.index(digest) + 1 if digest in known else None


def explain_excluded(run: Any, limit: int) -> dict[str, Any]:
    """The steps of a run that had read what is excluded now, each with the sample, by a state's record of the lists.

    A step counts where the list that was in force then did not have the sample; and where that list is not known.

    Args:
        run: of a state; see `explain.run_of`.
        limit: at most so many rows.

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
    """Whether a position held the sample at `index` of its source itself, and not a substitute, when it was read."""
    if run.consumed is None or position >= run.consumed:
        return False
    for place, source in lists_of(run.data):
        numbers = [number for number, one in enumerate(source.exclusions.listed.entries) if one.index == index]
        had = entries_then(source, place, run.excluded, position)
        if numbers and (had is None or numbers[0] >= had):
            return True
    return False
