"""Find the shards of a folder, peek at their first samples, and compare shards with their indexes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock._threads import Pool
from penstock.codec.parts import AV_SUFFIXES, IMAGE_SUFFIXES
from penstock.errors import NotFound, PenstockError, Unsupported
from penstock.formats.samples.webdataset.key_index import KeyIndex, KeyPlace, stored_keys
from penstock.formats.samples.webdataset.nvmeta import SHARD_SUFFIXES
from penstock.formats.samples.webdataset.samples import split_name
from penstock.formats.samples.webdataset.shards import index_path
from penstock.formats.samples.webdataset.tar import End, Member, next_member, plain_name, reading, scan_file
from penstock.formats.samples.webdataset.tar_blocks import Run
from penstock.store._links import walk_files
from penstock.store.base import Store

_MOST_PEEK_BYTES = 1 << 20
_AT_ONCE = 16
_MOST_LISTED = 1000
_MEDIA = tuple(f".{name}" for name in IMAGE_SUFFIXES | AV_SUFFIXES)
_LEFT = r"\.(part\w*|partial|filepart|incomplete|crdownload|download|aria2|tmp|temp)"
_PACKED = r"\.(gz|zst|zstd|bz2|xz|lz4|lzma|br|Z)"
_TAR = re.compile(rf"\.(tar({_PACKED})?|tgz|tbz2?|txz|tzst)({_LEFT})?$", re.IGNORECASE)
_UNFINISHED = re.compile(rf"{_LEFT}$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PeekedSample:
    """One of the first samples: its shard, its key, and part → size in bytes and up to 1 MiB of content."""

    shard: str
    key: str
    parts: dict[str, tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class FoundShards:
    """Shards of a folder that has no list of them.

    Attributes:
        names: paths of the shards in the folder, in the order of their numbers: by path components.
        warnings: about ignored files with names similar to those of shards.
    """

    names: list[str]
    warnings: list[str]


def find_readable_shards(
    store: Store, root: str, *, exclude: re.Pattern[str] | None = None, hint: str = "Unpack it, or move it elsewhere"
) -> FoundShards:
    """Return the shards of a folder that was never prepared, and warnings about ignored files.

    Args:
        store: the store of the folder.
        root: the folder.
        exclude: skip files with a matching path in the folder.
        hint: what to do about a compressed shard.

    Raises:
        NotFound: the folder doesn't exist, or has no shards; or a link is broken.
        Unsupported: a shard is compressed.
        UnsafeData: a link leads out of the folder.
    """
    tars = find_tars(store, root)
    if exclude is not None:
        tars = [name for name in tars if not exclude.search(name)]
    if not any(name.endswith(SHARD_SUFFIXES) for name in tars):
        hint = "Shards end in .tar. Decompress .tar.gz files"
        if any(name.lower().endswith(_MEDIA) for name in itertools.islice(store.list(root), _MOST_LISTED)):
            hint = f"Shards end in .tar. Convert media files first: `penstock convert {root} TARS --to webdataset`"
        raise NotFound("no tar shards in this folder", path=root, hint=hint)
    unfinished = [name for name in tars if _UNFINISHED.search(name)]
    renamed = [name for name in tars if name.lower().endswith(".tar") and not name.endswith(".tar")]
    ignored = {*unfinished, *renamed}
    shards = [name for name in tars if name not in ignored]
    require_random_access(root, shards, hint)
    warnings: list[str] = []
    if unfinished:
        warnings.append(f"ignored {len(unfinished):,} unfinished downloads or copies, such as {unfinished[0]}")
    if renamed:
        warnings.append(
            f"ignored {len(renamed):,} files such as {renamed[0]}: names of shards must end in lower-case .tar"
        )
    return FoundShards(shards, warnings)


def require_random_access(root: str, shards: Sequence[str], hint: str) -> None:
    compressed = [name for name in shards if not name.endswith(".tar")]
    if compressed:
        raise Unsupported(
            "a compressed shard: its samples can't be read one by one", path=f"{root.rstrip('/')}/{compressed[0]}",
            found=f"{len(compressed)} such shards", hint=hint,
        )  # fmt: skip


def find_shards(store: Store, root: str) -> list[str]:
    """Return the shards below a folder, by their paths in it, in the order of their numbers: by path components.

    See `find_tars`.
    """
    return [name for name in find_tars(store, root) if name.endswith(SHARD_SUFFIXES)]


def find_tars(store: Store, root: str) -> list[str]:
    """Return the files of a folder with names of tars: shards, compressed and unfinished ones, `.TAR`.

    Links are followed. Names that begin with a dot and folders with names of shards are skipped.

    Raises:
        NotFound: the folder doesn't exist, or a link is broken.
        UnsafeData: a link leads out of the folder.
    """
    if not store.is_folder(root):
        if store.exists(root):
            hint = "Pass the folder of tar shards, or a file that ends in .jsonl"
            raise NotFound("not a folder of tar shards", path=root, found="a file", hint=hint)
        raise NotFound("no such folder", path=root, hint="Check the path")
    names = walk_files(root, store.guard, hidden=False) if store.is_local else _names(store, root)
    return sorted(filter(_TAR.search, names), key=lambda name: name.split("/"))


def _names(store: Store, root: str) -> Iterator[str]:
    start = len(root.rstrip("/")) + 1
    for path in store.list(root):
        if not any(piece.startswith(".") for piece in path[start:].split("/")):
            yield path[start:]


def peek(store: Store, root: str, shards: Sequence[str], most: int = 2) -> list[PeekedSample]:
    """Return the first samples of the first nonempty shards; reads headers, and the parts of these samples.

    Raises:
        FormatError: a shard is damaged before these samples.
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
    """Yield the files of a shard in order, and links to earlier files: name, and offset and size of the content."""
    contents: dict[str, tuple[int, int]] = {}
    for one in scan_file(store, path):
        if isinstance(one, Run):
            found = list(zip(one.names, one.contents, one.sizes, strict=True))
        elif isinstance(one, End):
            return
        elif one.is_regular:
            found = [(one.name, one.content_bytes, one.size_bytes)]
        else:
            found = [(one.name, *contents[one.target])] if one.target in contents else []
        contents |= {plain_name(name): (content, size) for name, content, size in found}
        yield from found


def are_as_indexed(store: Store, root: str, counts: Mapping[str, int]) -> bool:
    """Return true if the ends and last samples of shards match their indexes; needs a few small reads per shard."""
    try:
        keys = stored_keys(store, root, counts)
        with Pool(_AT_ONCE, "penstock-shards") as pool:
            shards = ((number, f"{root}/{name}", count) for number, (name, count) in enumerate(counts.items()))
            return all(pool.map(lambda one: _is_as_indexed(store, keys, *one), shards))
    except PenstockError:
        return False


def _is_as_indexed(store: Store, keys: KeyIndex | None, number: int, path: str, count: int) -> bool:
    ends = store.get(index_path(path), max(0, count - 1) * 8, 24)
    if len(ends) != 16:
        return False  # the index has another number of samples
    start, stop = np.frombuffer(ends, "<i8").tolist()
    with reading(store, path) as (read, size_bytes, _):
        if not 0 <= start < stop <= size_bytes or next_member(read, stop, size_bytes, path) is not None:
            return False
        last = next_member(read, start, size_bytes, path)
    if not isinstance(last, Member) or (named := split_name(last.name)) is None:
        return False
    return keys is None or KeyPlace(number, count - 1, start, stop) in keys.find(named[0])
