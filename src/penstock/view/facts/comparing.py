"""Results of `diff`, bounded and without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock._printable import recordable
from penstock._secrets import redact
from penstock.look.diff import DiffReport


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Two differing samples, or one without a counterpart: index and key on each side, and its fields as text."""

    index_a: int | None
    index_b: int | None
    key_a: str | None
    key_b: str | None
    rows: tuple[tuple[str, str | None, str | None], ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of the samples of two datasets.

    Attributes:
        equal: whether both contain the same samples.
        by: `"samples"` if samples were read, or `"side files"` if their digests are equal.
        num_a, num_b: number of samples; `only_in_a`, `only_in_b`: samples without a counterpart.
        fields: name, kind in A, kind in B.
        num_reordered: differing positions if both contain the same samples in different orders.
    """

    equal: bool
    by: str
    num_a: int
    num_b: int
    only_in_a: int
    only_in_b: int
    fields: tuple[tuple[str, str | None, str | None], ...]
    differences: tuple[SideBySide, ...]
    num_reordered: int


def compared(report: DiffReport) -> Comparison:
    """Return the result of `penstock.diff` as plain data."""
    pairs = tuple(
        SideBySide(one.index_a, one.index_b, _text(one.key_a), _text(one.key_b), _joined(one.a or {}, one.b or {}))
        for one in report.first_differences
    )
    fields = _joined(report.schema.a, report.schema.b)
    return Comparison(
        report.equal,
        report.by,
        report.num_a,
        report.num_b,
        report.only_in_a,
        report.only_in_b,
        fields,
        pairs,
        report.num_reordered,
    )


def _joined(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[tuple[str, str | None, str | None], ...]:
    return tuple((recordable(name), _text(a.get(name)), _text(b.get(name))) for name in dict.fromkeys((*a, *b)))


def _text(text: str | None) -> str | None:
    return None if text is None else redact(recordable(text))
