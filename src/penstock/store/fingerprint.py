"""Fingerprints of data: a few reads at any size, and the same for a copy elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import numpy as np
import xxhash

from penstock._digest import digest
from penstock.store._files import status_of
from penstock.store.base import Readable, Store
from penstock.store.derived import DerivedCache
from penstock.store.zip_store import ZipStore

_PLACE_BYTES = 4096
_PLACES = 4
_FILES = 16


def sample_fingerprint(
    store: Readable, format_name: str, index: bytes, files: Sequence[tuple[str, str]], *, index_digest: bytes = b""
) -> str:
    """32 hex digits over a format's own index and 4 KiB at four places of at most 16 files.

    Args:
        store: where the files are; or a staged folder, with names in it as paths.
        format_name: keeps equal bytes of different formats apart.
        index: the format's own index or header, as the format's rule says.
        files: `(name, path)`: the name is hashed and must not depend on where the data lie; the path is read.
        index_digest: xxh3-128 of the index, where that is known already.
    """
    read = store.peek if isinstance(store, Store) else store.get_ranges
    hasher = xxhash.xxh3_128(format_name.encode())
    hasher.update(index_digest or xxhash.xxh3_128_digest(index))
    chosen = sorted(files, key=lambda file: xxhash.xxh3_128_digest(file[0].encode("utf-8", "surrogateescape")))[:_FILES]
    for name, path in chosen:
        size_bytes = store.size(path)
        hasher.update(f"\n{name}\n{size_bytes}\n".encode("utf-8", "surrogateescape"))
        places = _places(xxhash.xxh3_64_intdigest(hasher.digest()), size_bytes)
        for data in read(path, [(start, min(start + _PLACE_BYTES, size_bytes)) for start in places]):
            hasher.update(data)
    return hasher.hexdigest()


def once_a_host(
    store: Store,
    paths: Sequence[str],
    name: str,
    find: Callable[[], str],
    recorded: Callable[[], str | None] = lambda: None,
) -> str:
    """`find()`, a fingerprint; of data that are far away it is kept for the processes of this host.

    Args:
        store: where the data are.
        paths: the files whose versions are that of the data: their index, or all of them.
        name: keeps the fingerprints apart that belong to one such file: the format, and how it is read.
        find: returns 32 hex digits, of a sample of the data.
        recorded: returns what their side file says; asked first of data that are far away. What is here is sampled
            always: that costs little, and sees a change that no writer of ours made.
    """
    if not store.keeps_copies:
        return find()
    versions = [store.version(path) for path in paths]
    if not all(versions):
        return recorded() or find()
    key = f"fingerprint-1-{digest(*paths, *versions, name)}"
    kept = DerivedCache(store.folder).array(
        key, "uint8", lambda: np.frombuffer(bytes.fromhex(recorded() or find()), np.uint8)
    )
    return kept.tobytes().hex()


def file_key(store: Store, format_name: str, path: str) -> str:
    """Key of what this host derives from a whole file: a fingerprint is a sample, but every change has a time.

    A file of a store that names versions is known by its version alone.
    """
    size_bytes = store.size(path)
    version = store.version(path) if store.keeps_copies else ""
    if version:
        return digest(path, version, size_bytes)
    return digest(sample_fingerprint(store, format_name, b"", [("data", path)]), size_bytes, *_state(store, path))


def files_key(fingerprint: str, store: Store, paths: Iterable[str]) -> str:
    """The same of data of several files, with one look at each; far away, with the version of the first, their index.

    Args:
        fingerprint: theirs.
        store: where they are.
        paths: all that what is derived depends on; one that is not there counts as such.
    """
    if isinstance(store, ZipStore):  # its members are as old as it is
        store, paths = store.file[0], [store.file[1]]
    if store.keeps_copies:
        return digest(fingerprint, [store.version(path) for path in islice(paths, 1)])
    return digest(fingerprint, *(part for path in paths for part in _state(store, path)))


def _state(store: Store, path: str) -> list[str | int]:
    """What tells of a file of this machine whether it is still the same; an old time may have been given back to it."""
    if not store.is_local:
        return []
    status = status_of(os.stat, path)
    if status is None:
        return [path, "none"]
    return [os.path.realpath(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _places(seed: int, size_bytes: int) -> list[int]:
    if size_bytes <= _PLACE_BYTES * _PLACES:
        return [place * _PLACE_BYTES for place in range(-(-size_bytes // _PLACE_BYTES))]
    return sorted(
        xxhash.xxh3_64_intdigest(bytes([place]), seed) % (size_bytes - _PLACE_BYTES) for place in range(_PLACES)
    )
