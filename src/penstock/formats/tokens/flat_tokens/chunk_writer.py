"""Background writing of chunk files."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock._threads import thread_pool
from penstock.formats.tokens.flat_tokens.encode import encode_file
from penstock.formats.tokens.zarr.meta import ArrayMeta
from penstock.store.base import StagedFolder
from penstock.store.put import aborting
from penstock.store.side_file import EDGE_BYTES, edge_binding

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_THREADS = 4
_IN_FLIGHT_BYTES = 1 << 26


@dataclasses.dataclass(frozen=True, slots=True)
class FileFact:
    """Record of one file in the side file."""

    size_bytes: int
    digest: str
    binding: str


class ChunkWork:
    """Chunk files being written by a few threads, a bounded number at once."""

    __slots__ = ("_folder", "_free", "_pool", "_queue", "_queued_bytes", "facts")

    def __init__(self, folder: StagedFolder) -> None:
        self._folder = folder
        self._pool: ThreadPoolExecutor | None = None
        self._queue: deque[tuple[Future[None], int]] = deque()
        self._free: deque[NDArray[Any]] = deque()
        self._queued_bytes = 0
        self.facts: dict[str, FileFact] = {}

    def room(self, meta: ArrayMeta) -> NDArray[Any]:
        """Return an array [chunk_items] of any content, in the memory of a written chunk or new."""
        for _ in range(len(self._free)):
            found = self._free.popleft()
            if found.dtype == meta.dtype and len(found) == meta.chunk_items:
                return found
            self._free.append(found)
        return np.empty(meta.chunk_items, meta.dtype.newbyteorder("<"))

    def submit(self, name: str, meta: ArrayMeta, items: NDArray[Any]) -> None:
        """Encode and write a chunk file, and keep its memory for `room`; raise the error of an earlier chunk."""
        while self._queue and self._queued_bytes + items.nbytes > _IN_FLIGHT_BYTES:
            self._wait()
        if self._pool is None:
            # Even one chunk is compressed in a thread: in the main thread Blosc would divide the work among
            # threads of its own, and their order affects the bytes.
            self._pool = thread_pool(_THREADS)
        self._queue.append((self._pool.submit(self._write_chunk, name, meta, items), items.nbytes))
        self._queued_bytes += items.nbytes

    def write(self, name: str, pieces: list[memoryview]) -> None:
        """Write a file at once."""
        hasher = xxhash.xxh3_128()
        with aborting(self._folder.stage(name)) as file:
            for piece in pieces:
                file.write(piece)
                hasher.update(piece)
            file.commit()
        size_bytes = sum(map(len, pieces))
        head, tail = _edge(pieces), _edge([piece[::-1] for piece in reversed(pieces)])[::-1]
        self.facts[name] = FileFact(size_bytes, hasher.hexdigest(), edge_binding(size_bytes, head, tail))

    def write_all(self, files: Mapping[str, bytes]) -> None:
        """Write small files together: each of them waits for the disk."""
        with thread_pool(max(1, len(files))) as pool:
            for future in [pool.submit(self.write, name, [memoryview(data)]) for name, data in files.items()]:
                future.result()

    def finish(self) -> None:
        """Wait for all chunks; raise the error of one that failed."""
        while self._queue:
            self._wait()
        self.stop()

    def stop(self) -> None:
        """Cancel chunks that were not started, and wait for the rest."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _write_chunk(self, name: str, meta: ArrayMeta, items: NDArray[Any]) -> None:
        self.write(name, encode_file(meta, items))
        if len(items) == meta.chunk_items:
            self._free.append(items)

    def _wait(self) -> None:
        future, size_bytes = self._queue.popleft()
        self._queued_bytes -= size_bytes
        future.result()


class ArrayWriter:
    """Items of one array, cut into chunk files.

    Args:
        work: writes the chunk files.
        name: folder of the array in the staged one; empty for the staged folder itself.
        meta: metadata of the array; its length is counted here.
    """

    __slots__ = ("_buffer", "_filled", "_work", "meta", "name", "num_files")

    def __init__(self, work: ChunkWork, name: str, meta: ArrayMeta) -> None:
        self._work = work
        self._buffer = np.empty(0, meta.dtype.newbyteorder("<"))
        self._filled = 0
        self.name = name
        self.meta = meta
        self.num_files = 0

    def append(self, items: NDArray[Any]) -> None:
        """Add items."""
        for start, space in self.spaces(len(items)):
            space[:] = items[start : start + len(space)]

    def spaces(self, count: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield `(first item, array to fill)` for the next `count` items, piece by piece."""
        done = 0
        while done < count:
            if self._filled == len(self._buffer):
                self._buffer = self._work.room(self.meta)
                self._filled = 0
            step = min(count - done, len(self._buffer) - self._filled)
            yield done, self._buffer[self._filled : self._filled + step]
            done, self._filled = done + step, self._filled + step
            if self._filled == len(self._buffer):
                self._submit()

    def finish(self) -> ArrayMeta:
        """Submit the last, short chunk; return the metadata with the length."""
        whole, rest = self.num_files * self.meta.chunk_items, self._filled
        if rest:
            self._submit()
        return dataclasses.replace(self.meta, num_items=whole + rest)

    def _submit(self) -> None:
        name = f"{self.name}/{self.meta.file_name(self.num_files)}".lstrip("/")
        self.num_files += 1
        self._work.submit(name, self.meta, self._buffer[: self._filled])
        self._buffer, self._filled = self._buffer[:0], 0


def _edge(pieces: list[memoryview]) -> bytes:
    """Return the first `EDGE_BYTES` of some pieces."""
    found = b""
    for piece in pieces:
        found += bytes(piece[: EDGE_BYTES - len(found)])
        if len(found) == EDGE_BYTES:
            break
    return found
