"""Findings of a check: problems, errors as problems, the steps of a check, and limits on findings of one kind."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from penstock.errors import PenstockError
from penstock.store.base import Store
from penstock.types import Depth, Finding, Severity

MOST_FINDINGS = 20
"""Findings of one kind that are listed one by one; the others are counted."""

Run = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""Runs the tasks of a check: `map`, or that of an executor."""

_Opened = TypeVar("_Opened")


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault and its place: an error when the file is opened, a finding when it is checked.

    Attributes:
        code: of the finding, `"<format>.<what>"`.
        kind: class of the error.
        path: the file.
        what: what is wrong.
        fix: what to do.
        offset_bytes, found, expected: as in `penstock.types.Finding`.
        severity: a warning never keeps data from being read.
    """

    code: str
    kind: type[PenstockError]
    path: str
    what: str
    fix: str | None
    offset_bytes: int | None = None
    found: str | None = None
    expected: str | None = None
    severity: Severity = "error"

    @classmethod
    def of_error(cls, code: str, error: PenstockError, fix: str | None = None, path: str = "") -> Problem:
        """Describe an error. Its own path and hint, if any, replace `path` and `fix`."""
        found, expected = (None if value is None else str(value) for value in (error.found, error.expected))
        where = str(error.path or path)
        return cls(code, type(error), where, error.what, error.hint or fix, error.offset_bytes, found, expected)

    @classmethod
    def warning(
        cls, code: str, path: str, what: str, fix: str, offset_bytes: int | None = None, found: str | None = None
    ) -> Problem:
        """Describe something that doesn't keep data from being read."""
        return cls(code, PenstockError, path, what, fix, offset_bytes, found, severity="warning")

    def at(self, path: str) -> Problem:
        """Return the problem of the file `path`."""
        return replace(self, path=path)

    def error(self) -> PenstockError:
        """Return the problem as an exception."""
        return self.kind(
            self.what,
            path=self.path,
            offset_bytes=self.offset_bytes,
            found=self.found,
            expected=self.expected,
            hint=self.fix,
        )

    def finding(self) -> Finding:
        """Return the problem as a finding."""
        found = self.what if self.found is None else f"{self.what}: {self.found}"
        return Finding(self.code, self.severity, self.path, self.offset_bytes, found, self.expected, self.fix)


@dataclass(frozen=True, slots=True)
class Check(Generic[_Opened]):
    """One step of a format's check.

    Attributes:
        look: yields the problems of an opened dataset.
        code, fix: of the finding if `look` raises an error; the other steps still run. If `code` is None, the
            error is raised, such as `UnsafeData` for a link out of the dataset.
        depths: depths at which the step runs.
        is_limited: report only the first problems of each code.
        unless: code of findings after which the step is pointless.
    """

    look: Callable[[_Opened], Iterable[Problem | Finding]]
    code: str | None = None
    fix: str = ""
    depths: Collection[Depth] = ("quick", "sample", "full")
    is_limited: bool = False
    unless: str = ""


def run_checks(checks: Iterable[Check[_Opened]], opened: _Opened, depth: Depth) -> Iterator[Finding]:
    """Yield the findings of the steps of a check, in their order."""

    def problems(check: Check[_Opened]) -> Iterator[Problem | Finding]:
        try:
            yield from check.look(opened)
        except PenstockError as error:
            if check.code is None:
                raise
            yield Problem.of_error(check.code, error, check.fix)

    codes = set[str]()
    for check in checks:
        if depth in check.depths and check.unless not in codes:
            found = [one.finding() if isinstance(one, Problem) else one for one in problems(check)]
            codes.update(one.code for one in found)
            yield from limited(found, count_rest=False) if check.is_limited else found


def limited(
    problems: Iterable[Problem | Finding], path: str | None = None, *, count_rest: bool = True
) -> Iterator[Finding]:
    """Yield the first findings of each code, then the number of the others.

    Args:
        problems: problems or findings, in their order.
        path: place of the others, usually the dataset; by default that of the last one.
        count_rest: leave the others out if false.
    """
    counts, last = Counter[str](), dict[str, Problem | Finding]()
    for one in problems:
        counts[one.code] += 1
        last[one.code] = one
        if counts[one.code] <= MOST_FINDINGS:
            yield one.finding() if isinstance(one, Problem) else one
    for code, count in counts.items():
        if count > MOST_FINDINGS and count_rest:
            one = last[code]
            one = one.finding() if isinstance(one, Problem) else one
            rest = replace(one, offset_bytes=None, found=f"{count - MOST_FINDINGS} more of these")
            yield rest if path is None else replace(rest, path=path, expected=None)


def by_place(findings: Iterable[Finding]) -> list[Finding]:
    """Sort the findings of one file by their offsets; those of the whole file come first."""
    return sorted(findings, key=lambda one: -1 if one.offset_bytes is None else one.offset_bytes)


def find_unlisted(
    store: Store, folder: str, files: Collection[str], names: re.Pattern[str], code: str
) -> list[Finding]:
    """Return a warning for each data file directly in a folder that its index doesn't list.

    Nothing if the store can't list.

    Args:
        store: where the folder is.
        folder: the folder.
        files: paths of listed files.
        names: matches the names of data files.
        code: of the findings.
    """
    known, start, found = set(files), len(folder) + 1, list[Finding]()
    with contextlib.suppress(PenstockError):
        for one in store.list(folder):
            if one not in known and names.fullmatch(one[start:]):
                fix = "It isn't read. Remove it or ignore it"
                found.append(Finding(code, "warning", one, None, "a data file that is not listed", None, fix))
    return found
