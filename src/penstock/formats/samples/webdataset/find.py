"""Finding the shards of a folder, and looking at their first samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.abc import Store
from penstock.errors import NotFound
from penstock.formats.samples.webdataset.names import split_name
from penstock.formats.samples.webdataset.nvmeta import SHARD_SUFFIXES
from penstock.formats.samples.webdataset.tar import scan_file
from penstock.formats.samples.webdataset.tar_blocks import Run
from penstock.store._links import walk_files
from penstock.store.local import LocalStore

_MOST_PEEK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PeekedSample:
    """One of the first samples: its shard, its key, and part → size in bytes and content, up to 1 MiB of it."""

    shard: str
    key: str
    parts: dict[str, tuple[int, bytes]]


def find_shards(store: Store, root: str) -> list[str]:
    """Shards under a folder, by their paths in it, in the order that numbers them: by path components.

    Links are followed; names that begin with a dot are left out, and folders that are called like a shard.

    Raises:
        NotFound: no such folder, or a link that leads nowhere.
        UnsafeData: a link that leads out of the folder.
    """
    if not store.is_folder(root):
        raise NotFound("no such folder", path=root, hint="Check the path")
    names = walk_files(root, store.guard, hidden=False) if isinstance(store, LocalStore) else _names(store, root)
    return sorted((name for name in names if name.endswith(SHARD_SUFFIXES)), key=lambda name: name.split("/"))


def _names(store: Store, root: str) -> Iterator[str]:
    start = len(root.rstrip("/")) + 1
    for path in store.list(root):
        if not any(piece.startswith(".") for piece in path[start:].split("/")):
            yield path[start:]


def peek(store: Store, root: str, shards: Sequence[str], most: int = 2) -> list[PeekedSample]:
    """The first samples of the first shards that have any; reads headers, and the parts of these samples.

    Raises:
        FormatError: damage before them.
    """
    found: list[PeekedSample] = []
    for shard in shards:
        path = f"{root.rstrip('/')}/{shard}"
        for name, content_bytes, size_bytes in _regular(store, path):
            split = split_name(name)
            if split is None:
                continue
            if not found or (found[-1].shard, found[-1].key) != (shard, split[0]):
                if len(found) == most:
                    return found
                found.append(PeekedSample(shard, split[0], {}))
            content = store.get(path, content_bytes, min(size_bytes, _MOST_PEEK_BYTES))
            found[-1].parts[split[1]] = (size_bytes, content)
    return found


def _regular(store: Store, path: str) -> Iterator[tuple[str, int, int]]:
    for one in scan_file(store, path):
        if isinstance(one, Run):
            yield from zip(one.names, one.contents, one.sizes, strict=True)
        elif one.is_regular:
            yield one.name, one.content_bytes, one.size_bytes
