"""Something wrong with a file: an error for those who open it, a finding for those who check it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.types import Finding, Severity


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault and its place.

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

    def error(self) -> PenstockError:
        """As an exception."""
        return self.kind(
            self.what,
            path=self.path,
            offset_bytes=self.offset_bytes,
            found=self.found,
            expected=self.expected,
            hint=self.fix,
        )

    def finding(self) -> Finding:
        """As a finding."""
        found = self.what if self.found is None else f"{self.what}: {self.found}"
        return Finding(self.code, self.severity, self.path, self.offset_bytes, found, self.expected, self.fix)
