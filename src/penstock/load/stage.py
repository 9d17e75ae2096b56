"""Download of remote files to a host's cache ahead of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock._access import capability, place_of
from penstock._kinds import is_lane_stream, is_stream
from penstock._threads import Pool
from penstock.errors import ConfigError
from penstock.load.plan import once
from penstock.mix import Blend
from penstock.node.walk import leaves
from penstock.order import OrderedStream
from penstock.store.place import is_url, resolve
from penstock.types import Extent, IntArray

_AT_ONCE = 1 << 20
_COPIES_AT_ONCE = 8
_ELSEWHERE = "Stage data whose samples are in files, or download them another way"


@dataclass(frozen=True, slots=True)
class File:
    size_bytes: int | None
    hashes: Mapping[str, str]


_UNKNOWN = File(None, {})


def stage(
    data: Any, *, hosts: int, host: int, world: int | None = None, global_batch: int | None = None,
    steps: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Copy to the cache folder of this host all remote files that contain a sample of its ranks.

    Host h of H has the ranks `[h · W / H, (h + 1) · W / H)`, and rank r of W reads the positions `p ≡ r (mod W)`. Files
    are copied whole and checked against their index. Memory: a few MB, and the file names.

    Raises:
        ConfigError: the ranks aren't divisible by the hosts, positions or locations are unknown before reading, or the
            files exceed the cache limit. Nothing was copied then.
    """
    world = hosts if world is None else world
    _require(hosts, host, world, global_batch, steps)
    if is_lane_stream(data):
        raise ConfigError(
            "the samples that this stream reads are only known once it runs",
            found=type(data).__name__,
            hint="Stage the stream that it packs: the same recipe without packing on the fly",
        )
    stop = steps * global_batch if steps is not None and global_batch is not None else once(data)
    stop = stop if is_stream(data) else min(stop, len(data))
    files = _files(data, stop, world, range(host * world // hosts, (host + 1) * world // hosts))
    stores = _stores(files)
    sizes = {path: one.size_bytes or stores[_base(path)].size(path) for path, one in files.items()}
    fetched_bytes = _copied(files, sizes, stores)
    return {
        "host": host,
        "hosts": hosts,
        "world": world,
        "samples": stop,
        "files": len(files),
        "bytes": sum(sizes.values()),
        "fetched_bytes": fetched_bytes,
    }


def _require(hosts: int, host: int, world: int, global_batch: int | None, steps: int | None) -> None:
    if not 0 <= host < hosts:
        raise ConfigError("no such host", found=host, expected=f"0 to {hosts - 1}: hosts are numbered from 0")
    if world % hosts:
        raise ConfigError("the hosts don't divide the ranks", found=f"{world} / {hosts}")
    if steps is not None and global_batch is None:
        raise ConfigError("the number of samples per step is unknown", hint="Pass the global batch")
    if global_batch is not None and global_batch % world:
        found, below = f"a batch of {global_batch} on {world} ranks", global_batch // world * world
        nearest_ones = f"{below} or {below + world}" if below else f"{world}"
        raise ConfigError("the ranks don't divide the global batch", found=found, expected=nearest_ones)


def _stores(files: Mapping[str, File]) -> dict[str, Any]:
    """Return one store per bucket or server."""
    found: dict[str, Any] = {}
    for path in files:
        if _base(path) not in found:
            found[_base(path)] = resolve(path)[0]
            if not found[_base(path)].keeps_copies:
                raise ConfigError("this store doesn't keep local copies", path=path, hint=_ELSEWHERE)
    return found


def _base(path: str) -> str:
    return "/".join(path.split("/", 3)[:3])


def _copied(files: Mapping[str, File], sizes: Mapping[str, int], stores: Mapping[str, Any]) -> int:
    """Copy the files, if the cache can hold all of them; return the number of downloaded bytes."""
    allowed_bytes = min((store.capacity_bytes() for store in stores.values()), default=0)
    if sum(sizes.values()) > allowed_bytes:
        raise ConfigError(
            "the cache is too small for the data that this host will read",
            found=f"{len(files)} files, {sum(sizes.values())} bytes",
            expected=f"at most {allowed_bytes} bytes",
            hint="Raise PENSTOCK_CACHE_BYTES, set PENSTOCK_CACHE to a larger disk, or stage fewer --steps",
        )

    def fetched_bytes() -> int:
        return sum(store.stats().fetched_bytes for store in stores.values())

    def copy(path: str) -> None:
        stores[_base(path)].local_copy(path, size_bytes=files[path].size_bytes, hashes=files[path].hashes)

    before_bytes = fetched_bytes()
    with Pool(min(_COPIES_AT_ONCE, len(files) or 1), "penstock-stage") as pool:
        for _ in pool.map(copy, sorted(files)):
            pass
    return fetched_bytes() - before_bytes


def _files(data: Any, stop: int, world: int, ranks: range) -> dict[str, File]:
    """Return URL → file for all files that these ranks' positions below `stop` are read from."""
    found: dict[str, File] = {}
    seen: dict[int, set[int]] = {}
    for first in range(0, stop, _AT_ONCE):
        positions = np.arange(first, min(stop, first + _AT_ONCE), dtype=np.int64)
        rank = positions % world
        for source, indices in _reads(data, positions[(rank >= ranks.start) & (rank < ranks.stop)]):
            for path, file in _of_source(source, indices, seen.setdefault(id(source), set())):
                if is_url(path) and not path.startswith("file://"):
                    found.setdefault(path, file)
    return found


def _reads(node: Any, positions: IntArray) -> Iterator[tuple[Any, IntArray]]:
    """Yield sources and the indices read of them; a stream of another kind is yielded itself, with its positions."""
    if not positions.size:
        return
    if isinstance(node, OrderedStream) and node.is_plain:
        yield node.source, node.resolve(positions)
    elif isinstance(node, Blend):
        owner, inner = node.split(positions)
        for number, child in enumerate(node.children().values()):
            yield from _reads(child, inner[owner == number])
    else:
        yield node, positions


def _of_source(source: Any, indices: IntArray, seen: set[int]) -> Iterator[tuple[str, File]]:
    """Yield path and file of all files that contain samples; `seen` are the blocks or samples already requested."""
    starts = None if is_stream(source) else capability(source, "block_starts")
    if starts is None or len(starts) < 2:
        for index in set(np.unique(indices).tolist()) - seen:
            seen.add(index)
            yield from ((extent.path, _UNKNOWN) for extent in _extents(source, index))
        return
    blocks = np.unique(np.searchsorted(starts, indices, side="right") - 1)
    files_of = capability(source, "block_files")
    for block in set(blocks.tolist()) - seen:
        seen.add(block)
        if files_of is not None:
            yield from ((path, File(size, hashes)) for path, size, hashes in files_of(block))
            continue
        for index in {int(starts[block]), int(starts[block + 1]) - 1}:
            yield from ((extent.path, _UNKNOWN) for extent in _extents(source, index))


def _extents(source: Any, index: int) -> tuple[Extent, ...]:
    found = source.locate(index).extents if is_stream(source) else place_of(source, index).extents
    if found is None and _is_here(source):
        return ()  # parts of compressed files have no location, and local ones need none
    if found is None:
        raise ConfigError("the location of the samples is unknown", found=str(source)[:100], hint=_ELSEWHERE)
    return tuple(found)


def _is_here(source: Any) -> bool:
    """Return whether all data is on this machine, as far as its paths show."""
    recipes = (leaf.recipe() if hasattr(leaf, "recipe") else {} for _, leaf in leaves(source))
    paths = [recipe.get("path") for recipe in recipes]
    flat = [one for path in paths for one in (path if isinstance(path, list) else [path])]
    return all(isinstance(one, str) and (one.startswith("file://") or "://" not in one) for one in flat)
