"""What all formats share for checking data against their side file: what contradicts it is an error."""

from __future__ import annotations

from collections.abc import Callable

from penstock.abc import Store
from penstock.store.side_file import NEXT, REPLACE, Facts, is_damaged, judged_manifest
from penstock.types import Finding, Manifest

RESTORE = f"Restore the data; if the change was meant, {REPLACE}"
"""What to do about data that contradict their side file."""


def check_side_file(
    format_name: str, store: Store, data_path: str, side_path: str, facts: Callable[[], Facts], part: str | None = None
) -> tuple[Manifest | None, list[Finding]]:
    """The side file of data, whether it fits or not, and the finding where it does not.

    Args:
        format_name: the first part of codes.
        store: where both are.
        data_path: what the data are called in the finding.
        side_path: the side file.
        facts: tells of the data.
        part: the part of the side file that is meant.
    """
    manifest, differs = judged_manifest(store, side_path, facts, part)
    damaged = [one for one in (side_path, side_path + NEXT) if is_damaged(store, one)]
    if damaged:  # then it can't say what is wrong with the data either
        return manifest, [_not_proved(format_name, one, "is damaged") for one in damaged]
    if differs is None:
        return manifest, []
    if manifest is None:
        return None, [_not_proved(format_name, side_path, "can't be read")]
    return manifest, [Finding(f"{format_name}.changed", "error", data_path, None, differs.found, differs.told, RESTORE)]


def _not_proved(format_name: str, path: str, what: str) -> Finding:
    told = f"a side file that {what}, so the data are not proved"
    fix = f"Restore it; if the data are right, {REPLACE}"
    return Finding(f"{format_name}.side-file", "error", path, None, told, None, fix)
