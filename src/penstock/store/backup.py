"""Backs up a file before `repair` writes another in its place."""

from __future__ import annotations

import itertools

from penstock.abc import Staged, Store
from penstock.store._sweep import sweep_output
from penstock.store.local import LocalStore
from penstock.store.put import aborting

_STEP_BYTES = 1 << 22


def back_up(store: Store, path: str) -> str:
    """Copy a file, durably, to `<path>.bak`, or to the first of `.bak1`, `.bak2`, … that is free; returns that path.

    A backup with the same bytes is taken as it is: a repair that was killed and is run again adds none.
    """
    name = path
    for number in itertools.count():
        name = f"{path}.bak{number or ''}"
        sweep_output(store, name)
        if not store.exists(name):
            break
        if _is_same(store, path, name):
            return name
    with aborting(store.stage(name)) as copy:
        _copy(store, path, copy)
        copy.commit()
    return name


def _is_same(store: Store, path: str, name: str) -> bool:
    size_bytes = store.size(path)
    if store.is_folder(name) or store.size(name) != size_bytes:
        return False
    starts = range(0, size_bytes, _STEP_BYTES)
    return all(store.get(path, start, _STEP_BYTES) == store.get(name, start, _STEP_BYTES) for start in starts)


def _copy(store: Store, path: str, copy: Staged) -> None:
    if isinstance(store, LocalStore):
        copy.append_file(store.real_path(path))  # by the kernel
        return
    for start_bytes in range(0, store.size(path), _STEP_BYTES):
        copy.write(store.get(path, start_bytes, _STEP_BYTES))
