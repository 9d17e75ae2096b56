"""Problems of a zarr group: an error when it is opened, a finding of flat-tokens when it is checked."""

from __future__ import annotations

from penstock.errors import PenstockError
from penstock.formats._findings import Problem
from penstock.types import Severity

REBUILD = "`penstock repair --write` rebuilds it"
AGAIN = "Copy the group again, or recreate it"


def fault(
    code: str,
    kind: type[PenstockError],
    path: str,
    what: str,
    fix: str,
    offset_bytes: int | None = None,
    found: str | None = None,
    expected: str | None = None,
    severity: Severity = "error",
) -> Problem:
    """Return a problem; `code` is the check that finds it, such as `"seq_starts.monotone"`.

    The finding is one of flat-tokens; other formats that read zarr arrays make theirs of the error.
    """
    return Problem(f"flat-tokens.{code}", kind, path, what, fix, offset_bytes, found, expected, severity)
