"""Folders of one's own on this machine, for what is being made or merged and goes when that is done."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Generator

from penstock.store.derived import upload_folder
from penstock.store.local import LocalStore
from penstock.store.place import Place
from penstock.store.put import aborting

_BLOCK_BYTES = 1 << 24


@contextlib.contextmanager
def scratch_folder(above: Place | None = None) -> Generator[str]:
    """A folder of one's own, for as long: in `above` where that is on this machine, else in the cache folder."""
    path = above.path if above is not None and above.is_local else upload_folder()
    folder = os.path.join(path, secrets.token_hex(8))
    os.makedirs(folder)
    try:
        yield folder
    finally:
        LocalStore().remove_tree(folder)


def local_copy(file: Place, folder: str) -> str:
    """Path of a file of this machine; of another one, of a copy in a scratch folder."""
    if file.is_local:
        return file.path
    path, offset_bytes, size_bytes = os.path.join(folder, file.name), 0, file.store.size(file.path)
    with aborting(LocalStore().stage(path)) as staged:
        while offset_bytes < size_bytes:
            data = file.store.get(file.path, offset_bytes, min(_BLOCK_BYTES, size_bytes - offset_bytes))
            staged.write(data)
            offset_bytes += len(data)
        staged.commit()
    return path
