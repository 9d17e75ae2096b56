"""What formats share that are read and never written: `create`, `repair`, and files that no index lists."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn, Protocol

from penstock.abc import Store
from penstock.errors import PenstockError, Unsupported
from penstock.types import Action, Finding, OpenOptions

_INSTEAD = "Samples are written as mds, json-shards, jsonl or webdataset; tokens as pbin or megatron"


class _Named(Protocol):
    name: str


def instead_of(this: object) -> str:
    """What makes datasets of a format that has no writer, in words."""
    return getattr(this, "instead", _INSTEAD)


def refuse_to_create(this: _Named, store: Store, path: str, options: Mapping[str, Any], *, overwrite: bool) -> NoReturn:
    """The `create` of a format in which nothing is written; raises `Unsupported`."""
    raise Unsupported(f"the format {this.name!r} is read-only", path=path, hint=instead_of(this))


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
                fix = "It is not read: remove it, or leave it"
                found.append(Finding(code, "warning", one, None, "a data file that is not listed", None, fix))
    return found


def repair_nothing(
    _this: _Named, store: Store, path: str, options: OpenOptions, findings: Sequence[Finding], *, write: bool
) -> list[Action]:
    """The `repair` of a format of which nothing can be made anew from the rest."""
    return []
