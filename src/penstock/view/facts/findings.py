"""Findings of a check for display: by severity, each kind once with its locations and its fix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock._printable import recordable
from penstock._secrets import redact
from penstock.types import Finding, Severity

MOST_PLACES = 20
"""Number of locations that are shown of one kind of finding."""

MOST_KINDS = 200


@dataclass(frozen=True, slots=True)
class Spot:
    """Location of a finding: file, byte, found and expected value."""

    path: str
    offset_bytes: int | None
    found: str | None
    expected: str | None


@dataclass(frozen=True, slots=True)
class Kind:
    """Findings with the same code and fix."""

    code: str
    severity: Severity
    count: int
    fix: str | None
    places: tuple[Spot, ...]


@dataclass(frozen=True, slots=True)
class Health:
    errors: int
    warnings: int
    kinds: tuple[Kind, ...]
    of: int

    @property
    def is_sound(self) -> bool:
        """Whether the check found nothing."""
        return not self.of


def health(findings: Iterable[Finding]) -> Health:
    """Return the findings of `penstock.verify` as plain data. Memory: at most 200 kinds of 20 locations."""
    counts: dict[tuple[str, str, str | None], int] = {}
    places: dict[tuple[str, str, str | None], list[Spot]] = {}
    for one in findings:
        kind = (one.severity, one.code, one.fix)
        counts[kind] = counts.get(kind, 0) + 1
        if len(places.setdefault(kind, [])) < MOST_PLACES and len(places) <= MOST_KINDS:
            places[kind].append(Spot(str(_shown(one.path)), one.offset_bytes, _shown(one.found), _shown(one.expected)))
    ordered = sorted(counts, key=lambda kind: kind[0] != "error")  # sorting is stable
    made = tuple(
        Kind(kind[1], "error" if kind[0] == "error" else "warning", counts[kind], _shown(kind[2]), tuple(places[kind]))
        for kind in ordered[:MOST_KINDS]
    )
    errors = sum(count for kind, count in counts.items() if kind[0] == "error")
    return Health(errors, sum(counts.values()) - errors, made, len(counts))


def _shown(text: str | None) -> str | None:
    return None if text is None else redact(recordable(text[:2000]))
