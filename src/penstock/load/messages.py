"""Messages between processes: small ones through a socket, large ones in anonymous memory.

Anonymous memory (memfd; elsewhere a file without a name) belongs to the processes that map it, and is freed with the
last of them, also after a kill. Allocating pages costs more than writing to them, so the sender reuses a block once
the receiver has unmapped it. A message is a header (kind, way, number of its block, number of parts, number of bytes
that follow), the sizes of its parts, and, if they are small, the parts: a pickle, and its out-of-band buffers.
"""

from __future__ import annotations

import contextlib
import copyreg
import errno
import io
import mmap
import os
import pickle
import socket
import struct
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, count
from typing import Any

import numpy as np

from penstock.store.mapped import Mapping

NO_SIGNAL: int = getattr(socket, "MSG_NOSIGNAL", 0)
"""A worker that has ended is reported as an error here, whatever the program does about SIGPIPE."""

_INLINE_BYTES = 1 << 16
"""Objects up to this size go through the socket: mapping memory costs more than copying so little."""

_READ_BYTES = 1 << 17
_ALIGNMENT_BYTES = 64
_HEAD = struct.Struct("=ccIIQ")
_INLINE, _MAPPED = b"I", b"M"


@dataclass(slots=True)
class _Block:
    number: int
    """0 if the block is not reused."""
    descriptor: int
    size_bytes: int
    memory: mmap.mmap | None = None
    """Mapping of reused blocks: their pages exist, so writing costs no more than the copy."""

    def write(self, views: Sequence[memoryview]) -> None:
        offset = 0
        for view in views:
            if self.memory is None:
                _write_at(self.descriptor, view, offset)
            else:
                self.memory[offset : offset + view.nbytes] = view.cast("B")
            offset += _aligned(view.nbytes)

    def close(self) -> None:
        os.close(self.descriptor)
        if self.memory is not None:
            self.memory.close()


class Blocks:
    """Anonymous memory of one sender: blocks that the receiver maps, and free ones to reuse.

    Args:
        limit: maximum number of blocks for reuse; each holds two descriptors. Other blocks are used once.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[int, _Block] = {}
        self._free: list[_Block] = []
        self._released: deque[int] = deque()
        self._numbers = count(1)

    def released(self, number: int) -> None:
        """Mark a block as unmapped by the receiver. May be called from another thread."""
        self._released.append(number)

    @contextlib.contextmanager
    def take(self, size_bytes: int) -> Generator[_Block]:
        """Provide a block to write to and to send."""
        while self._released:
            self._free.append(self._kept[self._released.popleft()])
        for block in self._free:
            if size_bytes <= block.size_bytes <= 2 * size_bytes:
                self._free.remove(block)
                if block.memory is None:
                    block.memory = mmap.mmap(block.descriptor, block.size_bytes)
                yield block
                return
        if len(self._kept) >= self._limit and self._free:  # of another size
            self._kept.pop(self._free.pop(0).number).close()
        block = _Block(0, _anonymous_file(size_bytes), size_bytes)
        if len(self._kept) < self._limit:
            block.number = next(self._numbers)
            self._kept[block.number] = block
            yield block
        else:
            try:
                yield block
            finally:
                block.close()


def send(channel: socket.socket, kind: bytes, value: Any, blocks: Blocks) -> int:
    """Send an object; return its size in bytes."""
    head, buffers = _pickled(value)
    views = [head, *(buffer.raw() for buffer in buffers)]
    sizes_bytes = [view.nbytes for view in views]
    sizes = struct.pack(f"={len(views)}Q", *sizes_bytes)
    total_bytes = sum(sizes_bytes)
    if total_bytes <= _INLINE_BYTES:
        follows = _HEAD.pack(kind, _INLINE, 0, len(views), len(sizes) + total_bytes)
        channel.sendall(b"".join((follows, sizes, *views)), NO_SIGNAL)
        return total_bytes
    with blocks.take(sum(map(_aligned, sizes_bytes))) as block:
        block.write(views)
        message = _HEAD.pack(kind, _MAPPED, block.number, len(views), len(sizes)) + sizes
        sent = socket.send_fds(channel, [message], [block.descriptor])
        channel.sendall(message[sent:], NO_SIGNAL)
    return total_bytes


class Inbox:
    """Receiving end of a socket: reads whatever is available, and returns objects one by one."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._data = b""
        self._at = 0
        self._descriptors: deque[int] = deque()
        self._released: deque[int] = deque()

    def fill(self) -> bool:
        """Read the available bytes without waiting; return False if there is nothing.

        Raises:
            EOFError: the other side has closed the socket, and everything was read.
        """
        try:
            data, ancillary, flags, _ = self._channel.recvmsg(
                _READ_BYTES, socket.CMSG_SPACE(4), socket.MSG_DONTWAIT | getattr(socket, "MSG_CMSG_CLOEXEC", 0)
            )
        except BlockingIOError:
            return False
        if not data:
            raise EOFError
        if flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, "no free file descriptor for a batch from a worker process")
        for _, _, descriptors in ancillary:
            self._descriptors.extend(memoryview(descriptors).cast("i"))
        self._data, self._at = self._data[self._at :] + data, 0
        return True

    def has_partial(self) -> bool:
        return self._at < len(self._data)

    def ready(self) -> bool:
        left_bytes = len(self._data) - self._at - _HEAD.size
        return left_bytes >= 0 and left_bytes >= _HEAD.unpack_from(self._data, self._at)[-1]

    def take(self) -> tuple[bytes, Any, int]:
        """Return the next object, which must have arrived: kind, object, and its size in bytes."""
        kind, way, number, parts, follows_bytes = _HEAD.unpack_from(self._data, self._at)
        begin = self._at + _HEAD.size
        self._at = begin + follows_bytes
        body = memoryview(self._data)[begin + 8 * parts : self._at]
        if parts == 1 and way == _INLINE:  # most small batches
            return kind, pickle.loads(body), len(body)  # noqa: S301  our own process sent it
        sizes_bytes: tuple[int, ...] = struct.unpack_from(f"={parts}Q", self._data, begin)
        if way == _INLINE:
            ends = accumulate(sizes_bytes)
            views = [body[end - size : end] for end, size in zip(ends, sizes_bytes, strict=True)]
            buffers: list[Any] = [bytearray(view) for view in views[1:]]  # the receiver's own, to write to
        else:
            unmapped = partial(_release, number, _FORKS[0], self._released) if number else None
            views = _mapped(self._descriptors.popleft(), sizes_bytes, unmapped)
            buffers = views[1:]
        return kind, pickle.loads(views[0], buffers=buffers), sum(sizes_bytes)  # noqa: S301  our own process sent it

    def released(self) -> list[int]:
        """Return the blocks unmapped since the last call, to report to their sender."""
        return [self._released.popleft() for _ in range(len(self._released))]

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popleft())
        self._channel.close()


def _pickled(value: Any) -> tuple[memoryview, list[pickle.PickleBuffer]]:
    buffers: list[pickle.PickleBuffer] = []
    head = io.BytesIO()
    pickler = pickle.Pickler(head, protocol=5, buffer_callback=buffers.append)
    tensor_type: Any = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor_type is not None:
        pickler.dispatch_table = {**copyreg.dispatch_table, tensor_type: _reduce_tensor}
    pickler.dump(value)
    return head.getbuffer(), buffers


def _reduce_tensor(tensor: Any) -> Any:
    """Pickle a tensor as the array over its memory, out of band: torch's own way copies it into the pickle."""
    if tensor.is_contiguous() and not vars(tensor):
        # Not every tensor can be an array: on a device, sparse, with a gradient, of a dtype unknown to numpy.
        with contextlib.suppress(TypeError, RuntimeError):
            return sys.modules["torch"].from_numpy, (tensor.numpy(),)
    return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


_FORKS = [0]
"""Number of forks of this process, which identifies the process as its pid does."""


def _forking() -> None:
    _FORKS[0] += 1


os.register_at_fork(before=_forking)


def _release(number: int, forks: int, released: deque[int]) -> None:
    # A process forked since shares the block, so it must not be overwritten.
    if forks == _FORKS[0]:
        released.append(number)


def _mapped(descriptor: int, sizes_bytes: Sequence[int], unmapped: Callable[[], None] | None) -> list[memoryview]:
    try:
        memory = np.asarray(_mapping(descriptor, sum(map(_aligned, sizes_bytes)), unmapped)).data
    finally:
        os.close(descriptor)
    ends = accumulate(map(_aligned, sizes_bytes))
    return [
        memory[end - _aligned(size) : end - _aligned(size) + size] for size, end in zip(sizes_bytes, ends, strict=True)
    ]


def _mapping(descriptor: int, size_bytes: int, unmapped: Callable[[], None] | None) -> Mapping:
    try:
        # Private: writes of a forked process to its batch are its own.
        return Mapping(descriptor, size_bytes, private=True, unmapped=unmapped)
    except OSError as error:
        what = f"a batch of {size_bytes} bytes from a worker process can't be memory-mapped"
        raise OSError(error.errno, f"{what}: {error.strerror}") from None


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _anonymous_file(size_bytes: int) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("penstock", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, size_bytes)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _write_at(descriptor: int, view: memoryview, offset_bytes: int) -> None:
    view = view.cast("B")
    while view.nbytes:
        written = os.pwrite(descriptor, view, offset_bytes)
        offset_bytes += written
        view = view[written:]
