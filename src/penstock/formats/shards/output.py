"""Write finished shards to disk, in a folder that becomes visible as a whole."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from penstock._arrays import byte_view
from penstock._threads import thread_pool
from penstock.codec.compress import compress, parse_compression
from penstock.codec.hashes import BlockHasher, hasher, hex_digest
from penstock.formats.shards.find_index import own_files
from penstock.formats.shards.index_json import INDEX_NAME, Layout, Shard, ShardFile
from penstock.formats.shards.side import with_fingerprint
from penstock.store.base import StagedFolder, Store
from penstock.store.outputs import open_folder, output_path
from penstock.store.put import aborting
from penstock.store.side_file import encode_manifest
from penstock.types import Buffer, IntArray, Manifest

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

MakeShard: TypeAlias = Callable[[IntArray], tuple[bytes, bytes | None]]
"""Function from int64[n], sizes of a shard's rows in bytes, to the head of the data file and the meta file, if any."""

_THREADS = 4
_IN_FLIGHT_BYTES = 1 << 27
_CHUNK_BYTES = 1 << 20  # stays in the CPU cache between steps


class Output(Protocol):
    """Destination of files, which aren't visible before `publish`."""

    def add(self, name: str, chunks: Iterable[Buffer], /) -> None:
        """Write one file and make it durable. Thread-safe."""
        ...

    def publish(self, index: bytes, shards: Sequence[Shard], manifest: Manifest, /) -> Manifest:
        """Write side file and index, make everything visible, the index last, and return the side file's content."""
        ...

    def abort(self) -> None: ...


def open_output(store: Store, path: str, side_name: str, *, overwrite: bool) -> Output:
    """Begin a dataset at `path`; raise `ConfigError` if existing data may not be replaced."""
    path = output_path(store, path)
    folder = open_folder(
        store,
        path,
        partial(own_files, store),
        overwrite=overwrite,
        held=(INDEX_NAME,),
        clashes=lambda name: name.startswith("shard.") or name == side_name,
    )
    return _FolderOutput(folder, side_name)


class _FolderOutput:
    __slots__ = ("_folder", "_side_name")

    def __init__(self, folder: StagedFolder, side_name: str) -> None:
        self._folder = folder
        self._side_name = side_name

    def add(self, name: str, chunks: Iterable[Buffer], /) -> None:
        with aborting(self._folder.stage(name)) as staged:
            for chunk in chunks:
                staged.write(chunk)
            staged.commit()

    def publish(self, index: bytes, shards: Sequence[Shard], manifest: Manifest, /) -> Manifest:
        manifest = with_fingerprint(manifest, self._folder, index, shards)
        self.add(self._side_name, [encode_manifest(manifest)])
        self.add(INDEX_NAME, [index])
        self._folder.commit()
        return manifest

    def abort(self) -> None:
        self._folder.abort()


class ShardWork:
    """Finished shards, compressed, hashed and written by a few threads, with bounded memory.

    Attributes:
        digests: name of each file → xxh3-128 of its 64 MiB blocks; complete after `finish`.
        sizes: name of each file → its size in bytes.
    """

    __slots__ = (
        *("_layout", "_make", "_num_shards", "_out", "_pool", "_queue", "_queued_bytes", "_shards", "digests"),
        "sizes",
    )

    def __init__(self, layout: Layout, make: MakeShard, out: Output) -> None:
        self._layout = layout
        self._make = make
        self._out = out
        self._pool: ThreadPoolExecutor | None = None
        self._queue: deque[tuple[Future[Shard], int]] = deque()
        self._queued_bytes = 0
        self._num_shards = 0
        self._shards: list[Shard] = []
        self.digests: dict[str, tuple[str, ...]] = {}
        self.sizes: dict[str, int] = {}

    def submit(self, parts: list[Any], sizes: IntArray) -> None:
        """Write the next shard, of rows of int64[n] `sizes`; raises errors of earlier shards."""
        size_bytes = int(sizes.sum())
        while self._queue and self._queued_bytes + size_bytes > _IN_FLIGHT_BYTES:
            self._wait()
        if self._pool is None:
            self._pool = thread_pool(_THREADS)
        self._queue.append((self._pool.submit(self._write, self._num_shards, parts, sizes), size_bytes))
        self._queued_bytes += size_bytes
        self._num_shards += 1

    def finish(self) -> list[Shard]:
        while self._queue:
            self._wait()
        self.stop()
        return self._shards

    def stop(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _wait(self) -> None:
        future, size_bytes = self._queue.popleft()
        self._queued_bytes -= size_bytes
        self._shards.append(future.result())

    def _write(self, number: int, parts: list[Any], sizes: IntArray) -> Shard:
        head, meta = self._make(sizes)
        name = f"shard.{number:05d}.{self._layout.format}"
        raw_data, zip_data = self._files(name, [head, *parts])
        raw_meta, zip_meta = (None, None) if meta is None else self._files(f"{name}.meta", [meta])
        return Shard(self._layout, len(sizes), raw_data, zip_data, raw_meta, zip_meta)

    def _files(self, name: str, parts: list[Any]) -> tuple[ShardFile, ShardFile | None]:
        """Write one file, compressed if requested; return its raw and compressed index entries."""
        how = parse_compression(self._layout.compression)
        if how is None:
            return self._add(name, parts), None
        data = b"".join(parts)
        raw = ShardFile(name, len(data), {one: hex_digest(one, data) for one in self._layout.hashes})
        return raw, self._add(f"{name}.{how.family}", [compress(data, how)])

    def _add(self, name: str, parts: list[Any]) -> ShardFile:
        """Write one file unchanged, computing its hashes."""
        hashers = {one: hasher(one) for one in self._layout.hashes}
        blocks, size_bytes = BlockHasher(), 0

        def passing() -> Iterator[Buffer]:
            nonlocal size_bytes
            for chunk in _chunks(parts):
                blocks.update(chunk)
                for one in hashers.values():
                    one.update(chunk)
                size_bytes += chunk.nbytes
                yield chunk

        self._out.add(name, passing())
        self.sizes[name] = size_bytes
        self.digests[name] = blocks.finish()
        return ShardFile(name, size_bytes, {name: one.hexdigest() for name, one in hashers.items()})


def _chunks(parts: list[Any]) -> Iterator[memoryview]:
    """Yield the parts back to back, small ones joined."""
    small: list[Any] = []
    small_bytes = 0
    for part in parts:
        size_bytes = memoryview(part).nbytes
        if size_bytes < _CHUNK_BYTES:
            small.append(part)
            small_bytes += size_bytes
        if small and (small_bytes >= _CHUNK_BYTES or size_bytes >= _CHUNK_BYTES):
            yield memoryview(b"".join(small))
            small, small_bytes = [], 0
        if size_bytes >= _CHUNK_BYTES:
            for start in range(0, size_bytes, _CHUNK_BYTES):
                yield byte_view(part)[start : start + _CHUNK_BYTES]
    if small:
        yield memoryview(b"".join(small))
