"""`repair`: the fixes for what `verify` finds."""

from __future__ import annotations

import os
from typing import Any

from penstock.abc import Format, Store
from penstock.check.verify import find_format, open_options
from penstock.errors import Unsupported
from penstock.store.outputs import claimed
from penstock.types import Action, OpenOptions


def repair(
    path: str | os.PathLike[str], *, write: bool = False, format: str | None = None, **options: Any
) -> list[Action]:
    """List what would be mended; mend it when `write` is true, keeping a backup beside the original.

    Args:
        path: file, folder or URL.
        write: make the changes.
        format: format name; found by sniffing where it is None.
        options: what `penstock.open` takes; `eos_id=` lets a lost index be rebuilt.

    Raises:
        NotFound: nothing is at `path`.
        Unsupported: the format has no repair.
    """
    store, root, chosen = find_format(path, format)
    if not chosen.traits.repair:
        raise Unsupported(f"the format {chosen.name!r} has no repair", path=root)
    opened = open_options(options)
    if not write or store.is_folder(root):
        return _repair(store, root, chosen, opened, write=write)
    with claimed(store, root) as held:  # also where nothing is wrong: what a killed repair left of its claim goes
        return _repair(held, root, chosen, opened, write=write)


def _repair(store: Store, root: str, chosen: Format, opened: OpenOptions, *, write: bool) -> list[Action]:
    findings = list(chosen.check(store, root, opened, "quick"))
    return chosen.repair(store, root, opened, findings, write=write)
