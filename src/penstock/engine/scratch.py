"""Copies, in a scratch folder of this machine, of what lies in an object store."""

from __future__ import annotations

from penstock.store.place import Place
from penstock.store.put import aborting

_BLOCK_BYTES = 1 << 24


def local_copy(file: Place, folder: Place) -> Place:
    """A file of this machine itself; of another one, a copy in a folder of this machine."""
    if file.is_local:
        return file
    copy, offset_bytes, size_bytes = folder.child(file.name), 0, file.store.size(file.path)
    with aborting(copy.store.stage(copy.path)) as staged:
        while offset_bytes < size_bytes:
            data = file.store.get(file.path, offset_bytes, min(_BLOCK_BYTES, size_bytes - offset_bytes))
            staged.write(data)
            offset_bytes += len(data)
        staged.commit()
    return copy
