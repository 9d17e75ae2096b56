"""`repair`: the fixes for what `verify` finds."""

from __future__ import annotations

import os
from typing import Any

from penstock.check.verify import find_format, open_options
from penstock.errors import Unsupported
from penstock.formats import files_at
from penstock.store.local import LocalStore
from penstock.store.outputs import claimed_data
from penstock.types import Action


def repair(
    path: str | os.PathLike[str], *, write: bool = False, format: str | None = None, **options: Any
) -> list[Action]:
    """List the repairs that are possible; make them when `write` is true, with a backup beside the original.

    Args:
        path: file, folder or URL.
        write: make the changes.
        format: format name; found by sniffing where it is None.
        options: what `penstock.open` takes; `eos_id=` lets a lost index be rebuilt.

    Raises:
        NotFound: nothing is at `path`.
        Unsupported: the format has no repair.
        PrepareError: another writer holds this dataset.
    """
    opened = open_options(options)
    store, root, chosen = find_format(path, format, opened)
    if not chosen.traits.repair:
        raise Unsupported(f"the format {chosen.name!r} has no repair", path=root)
    with claimed_data(store, *files_at(chosen.name, root) if write else ()) as held:
        findings = list(chosen.check(held, root, opened, "quick"))
        done = chosen.repair(held, root, opened, findings, write=write)
        if write and isinstance(held, LocalStore) and held.is_folder(root):
            held.stage(f"{root}/.penstock", overwrite=True).abort()  # what a killed repair left of it goes
        return done
