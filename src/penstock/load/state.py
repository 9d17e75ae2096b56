"""State of a loader as plain JSON: encoding, decoding, and comparison with the stream that resumes from it.

```
{"version": 1, "order": "blend-1+feistel-1", "consumed": 819200, "children": {"books": "9f2c…", "web": "77aa…"},
 "recipe": "41d0…", "history": [[0, 0, 512, 8], [1000, 512000, 1024, 16]], "reads": [246400, 572800]}
```
A history entry is `[first_step, consumed, global_batch, world]`. `reads` has the number of reads per
child, in the order of their sorted names, null if unknown; it exists only with several children. Accepted differences
are stored in `accepted` as `[consumed, name, old digest, new digest]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from penstock._kinds import RuleChange
from penstock.abc import SupportsPlaces
from penstock.errors import ConfigError, PenstockError, ResumeMismatch
from penstock.load.describe import Description, describe, key_of
from penstock.load.history import LIMIT, History, Stretch, step_at

VERSION = 1
_KEYS = ("order", "consumed", "children", "recipe", "history")
_NONE = "none"
_MOST_LISTED = 16
_RULES = ("document-borders", "bos-first", "pixels")
"""Rules that changed after version 0.2.0, by their names in `accept=`."""
_ABOVE = {
    "recipe": "parameters of the streams: seed, mode, weights, lanes, windows, ranges",
    "order": "how positions are computed; by default remote data is shuffled with mode=blocks, local data with global",
}


@dataclass(frozen=True, slots=True)
class State:
    """Decoded state.

    Attributes:
        order: see `Description`.
        recipe: see `Description`.
        children: see `Description`.
        consumed: global samples delivered.
        history: stretches of the run.
        accepted: previously accepted differences: (consumed, name, old, new).
        reads: place in the tree → the child's own positions read, if known.
    """

    order: str
    recipe: str
    children: Mapping[str, str]
    consumed: int
    step: int
    history: History
    accepted: tuple[tuple[int, str, str, str], ...]
    reads: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between a state and a stream.

    Attributes:
        name: a child's place in the tree, or `"order"` or `"recipe"`.
        old: digest in the state, `"none"` if the stream had no such child.
        new: digest of the current stream, likewise.
        change: the rule that changed after version 0.2.0; then `old` and `new` are its values.
    """

    name: str
    old: str
    new: str
    change: RuleChange | None = None


def encode(description: Description, consumed: int, history: History, accepted: Iterable[tuple[Any, ...]]) -> Any:
    state: dict[str, Any] = {
        "version": VERSION,
        "order": description.order,
        "consumed": consumed,
        "children": dict(description.children),
        "recipe": description.recipe,
        "history": [list(stretch) for stretch in history],
    }
    if len(description.children) > 1 and description.reads:
        state["reads"] = [description.reads.get(name) for name in sorted(description.children)]
    if taken := [list(entry) for entry in accepted]:
        state["accepted"] = taken
    return state


def decode(state: Any) -> State:
    """Return the decoded state after checking its form.

    Raises:
        ResumeMismatch: it isn't a state of this version.
    """
    if not isinstance(state, Mapping):
        raise _malformed(f"a {type(state).__name__}", "a dict from state_dict()")
    if state.get("version") != VERSION:
        raise _malformed(f"version {state.get('version')!r}", f"version {VERSION}")
    missing = [key for key in _KEYS if key not in state]
    if missing:
        raise _malformed(f"no {', '.join(missing)}", ", ".join(_KEYS))
    consumed, children = state["consumed"], state["children"]
    if not _is_count(consumed) or not _are_digests(children):
        raise _malformed(f"consumed {consumed!r}, children {children!r}"[:200], "a count, and a digest for each name")
    if not isinstance(state["order"], str) or not isinstance(state["recipe"], str):
        raise _malformed("an order or recipe that is not a string", "a digest for each")
    history = _decode_history(state["history"])
    step = step_at(history, consumed)
    if step is None:
        raise _malformed(f"{consumed} samples consumed", f"whole steps of the history's last entry {history[-1]}")
    accepted = _decode_accepted(state.get("accepted", []))
    reads = _decode_reads(state.get("reads", []), children)
    return State(str(state["order"]), str(state["recipe"]), dict(children), consumed, step, history, accepted, reads)


def compare(state: State, description: Description) -> list[Difference]:
    """Return the differences between the current stream and that of the state."""
    old, new = state.children, description.children
    names = [*old, *(name for name in new if name not in old)]
    found = [Difference(name, old.get(name, _NONE), new.get(name, _NONE)) for name in names]
    found.append(Difference("recipe", state.recipe, description.recipe))
    found.append(Difference("order", state.order, description.order))
    return [difference for difference in found if difference.old != difference.new]


def differences(state: State, data: Any, description: Description) -> list[Difference]:
    """Return the differences between a stream and that of a state, which may be one of version 0.2.0.

    A rule that changed since is a separate difference if it changes samples of this data, and ignored otherwise.
    """
    found = compare(state, description)
    if not found:
        return []
    former = describe(data, state.consumed, former=True)
    differs_too = {one.name for one in compare(state, former)}
    left = [one for one in found if one.name in differs_too]
    if len(left) == len(found):
        return found
    changes = {change.name: change for change in former.changes if change.changes_samples()}
    return [*left, *(Difference(one.name, one.old, one.new, one) for one in changes.values())]


def check(differences: Iterable[Difference], accept: Iterable[str], description: Description) -> list[Difference]:
    """Return the differences if all of them are accepted.

    Raises:
        ResumeMismatch: a difference isn't accepted; the message names it.
        ConfigError: `accept` contains an unknown name.
    """
    found, names = list(differences), list(accept)
    known = [*description.children, *(difference.name for difference in found), *_ABOVE, *_RULES]
    for name in names:
        if not any(_covers(name, place) for place in known):
            raise ConfigError(
                "unknown name in accept=",
                found=repr(name),
                expected="one of " + ", ".join(dict.fromkeys(known)),
            )
    refused = [difference for difference in found if not any(_covers(name, difference.name) for name in names)]
    if refused:
        hint = f"Pass accept={[one.name for one in refused]} to resume with the current data"
        hint += "".join(f". {one.change.keep}" for one in refused if one.change is not None)
        raise mismatch(refused, description, hint)
    return found


def mismatch(differences: Iterable[Difference], description: Description, hint: str) -> ResumeMismatch:
    """Return the error for differences that aren't accepted, with the first file of the first that has one."""
    named = list(differences)
    return ResumeMismatch(
        "the state belongs to a different stream; different: " + ", ".join(_title(one) for one in named),
        path=next(filter(None, (_path_of(description.ends.get(one.name)) for one in named)), None),
        found=", ".join(f"{one.name} {one.new}" for one in named),
        expected=", ".join(f"{one.name} {one.old}" for one in named),
        hint=hint,
    )


def account(
    difference: Difference, consumed: int, reads: Mapping[str, int], before: Mapping[str, int] | None = None
) -> str:
    """Describe which samples are skipped or repeated when resuming with an accepted difference.

    Args:
        difference: the accepted difference.
        consumed: global samples delivered.
        reads: place in the tree → the child's own positions before that in the current stream.
        before: the same in the state's stream, if known.
    """
    name, old, new = difference.name, difference.old, difference.new
    if difference.change is not None:
        return f"{difference.change.text}: samples after the first {consumed} follow the new rule"
    if name in _ABOVE:
        moved = _moves(before or {}, reads)
        return (
            f"{_title(difference)} changed after {consumed} samples ({old} → {new}): from now on, samples are "
            f"reassigned to positions{moved or ', so parts of the current epochs are repeated or skipped'}"
        )
    if new == _NONE:
        return (
            f"{name} ({old}) was read in the first {consumed} samples and no longer exists: the rest of it is skipped"
        )
    if old == _NONE:
        return f"{name} ({new}) is new after {consumed} samples: its samples at earlier positions are skipped"
    read = f"its first {reads[name]} positions" if name in reads else f"its part of the first {consumed} samples"
    return (
        f"{name} changed after {consumed} samples ({old} → {new}): {read} came from the old data; "
        "new samples at those positions are skipped in the current epoch, and samples in both versions may be repeated"
    )


def _moves(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """Describe the samples that each child skips or repeats when it resumes at another position; empty if unknown."""
    moves: list[str] = []
    for name in before.keys() & after.keys():
        was, goes_on = before[name], after[name]
        if was != goes_on:
            what = f"[{was}, {goes_on}) are skipped" if was < goes_on else f"[{goes_on}, {was}) are repeated"
            moves.append(f"; positions of {name}: {what}")
    moves.sort()
    more = f"; and {len(moves) - _MOST_LISTED} more" if len(moves) > _MOST_LISTED else ""
    return "".join(moves[:_MOST_LISTED]) + more


def _path_of(source: Any) -> str | None:
    """Return the path of a source's first file, if known."""
    if not isinstance(source, SupportsPlaces) or not isinstance(source, Sized) or not len(source):
        return None
    try:
        extents = source.place_of(0).extents
    except (PenstockError, OSError):
        return None
    return extents[0].path if extents else None


def _title(difference: Difference) -> str:
    about = _ABOVE.get(difference.name) if difference.change is None else difference.change.text
    return difference.name if about is None else f"{difference.name} ({about})"


def _covers(name: str, place: str) -> bool:
    # Long names are truncated in a state, with a digest; the whole name is equivalent.
    return place in (name, key_of(name)) or place.startswith(f"{name}/") or place.endswith(f"/{name}")


def _decode_history(value: Any) -> History:
    rows = value if isinstance(value, list) else []
    fits = all(isinstance(row, (list, tuple)) and len(row) == 4 and all(map(_is_count, row)) for row in rows)
    if not rows or not fits:
        raise _malformed("a different history", "a list of [first_step, consumed, global_batch, world]")
    history = tuple(Stretch(*row) for row in rows)
    if history[0].first_step or any(stretch.global_batch < 1 or stretch.world < 1 for stretch in history):
        raise _malformed(f"a history that begins with {list(history[0])}", "step 0 and batches of at least 1")
    for before, after in pairwise(history):
        if after.first_step <= before.first_step or after.consumed != before.consumed_at(after.first_step):
            raise _malformed(f"{list(after)} in the history", f"an entry that follows from {list(before)}")
    return history


def _decode_accepted(value: Any) -> tuple[tuple[int, str, str, str], ...]:
    rows: list[Any] = value if isinstance(value, list) else [None]
    if not all(_is_accepted(row) for row in rows):
        raise _malformed("different accepted differences", "a list of [consumed, what, old, new]")
    return tuple((row[0], row[1], row[2], row[3]) for row in rows)


def _is_accepted(row: Any) -> bool:
    is_row = isinstance(row, (list, tuple)) and len(row) == 4
    return is_row and _is_count(row[0]) and all(isinstance(one, str) for one in row[1:])


def _are_digests(children: Any) -> bool:
    return isinstance(children, Mapping) and all(
        isinstance(name, str) and isinstance(one, str) for name, one in children.items()
    )


def _decode_reads(value: Any, children: Mapping[str, Any]) -> dict[str, int]:
    if not isinstance(value, list):
        raise _malformed("other reads", "a number or null for each child")
    rows: list[Any] = value
    if not all(row is None or _is_count(row) for row in rows) or len(rows) not in (0, len(children)):
        raise _malformed("other reads", "a number or null for each child")
    names = sorted(map(str, children))
    return {name: row for name, row in zip(names, rows, strict=False) if row is not None}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LIMIT


def _malformed(found: str, expected: str) -> ResumeMismatch:
    return ResumeMismatch("this is not a state that can be loaded", found=found, expected=expected)
