"""Data files beside a dataset that its index does not list."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection

from penstock.abc import Store
from penstock.errors import PenstockError
from penstock.types import Finding


def find_unlisted(
    store: Store, folder: str, files: Collection[str], names: re.Pattern[str], code: str
) -> list[Finding]:
    """A warning for each file right in a folder whose name is that of its data files and that is none of `files`.

    Nothing where the store can't list.
    """
    known, start, found = set(files), len(folder) + 1, list[Finding]()
    with contextlib.suppress(PenstockError):
        for one in store.list(folder):
            if one not in known and names.fullmatch(one[start:]):
                fix = "It isn't read. Remove it or ignore it"
                found.append(Finding(code, "warning", one, None, "a data file that is not listed", None, fix))
    return found
