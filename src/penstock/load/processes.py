"""Worker processes for decoding that holds Python's lock.

They are started by `forkserver`, so that nothing of the trainer (CUDA, threads, connections) is copied into them.
Large results travel in anonymous memory (memfd; elsewhere a file without a name): it belongs to whoever has it mapped
and is gone with the last of them, after a kill too. A worker ends by itself when its parent does.
"""

from __future__ import annotations

import array
import contextlib
import mmap
import multiprocessing as mp
import os
import pickle
import signal
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Generator, Sequence
from itertools import accumulate
from multiprocessing.connection import Connection, wait
from typing import Any

from penstock.errors import ConfigError, PenstockError
from penstock.load.workers import Producer, too_slow

_INLINE_BYTES = 1 << 16
"""Results up to this size go through the pipe: a mapping costs more than copying so little."""

_ALIGNMENT_BYTES = 64
_START_WAIT_S = 120.0
_CLOSE_WAIT_S = 1.0
_READY, _RESULT, _ERROR, _END = b"R", b"V", b"E", b"Z"


class ProcessWorkers:
    """Processes. Memory: `workers · prefetch` results, in anonymous memory, besides those that the caller keeps.

    Args:
        producer: makes the results; pickled once.
        workers: processes, 1 or more.
        prefetch: results that each of them may be ahead, 1 or more.
        timeout_seconds: how long to wait for a result; without end where it is None.

    Raises:
        ConfigError: the producer holds what can't be moved to another process, such as a lambda; or the script that
            runs has no main guard.
    """

    def __init__(self, producer: Producer, workers: int, prefetch: int, timeout_seconds: float | None) -> None:
        self._timeout_seconds = timeout_seconds
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._pid = os.getpid()
        if getattr(mp.current_process(), "_inheriting", False):
            raise _no_main_guard()
        pickled = _pickled(producer)
        context = mp.get_context("forkserver")
        try:
            for worker in range(workers):
                ours, theirs = context.Pipe(duplex=True)
                self._pipes.append(ours)
                name = f"penstock-load-{worker}"
                process = context.Process(target=_work, args=(theirs, pickled, worker), name=name, daemon=True)
                _start(process)
                self._processes.append(process)
                theirs.close()
            for worker in range(workers):
                kind, value = self._receive(worker, _START_WAIT_S, starting=True)
                if kind == _ERROR:
                    raise value
                for _ in range(prefetch):
                    self._allow(worker)
        except BaseException:
            self.close()
            raise

    def take(self, worker: int, /) -> Any:
        """The next result of that worker."""
        kind, value = self._receive(worker, self._timeout_seconds)
        if kind == _ERROR:
            raise value
        if kind == _END:
            raise StopIteration
        self._allow(worker)
        return value

    def ready(self) -> int:
        """Workers whose next result waits to be taken."""
        return len(wait(list(self._pipes), 0))

    def close(self) -> None:
        """End the processes: at once, since nothing of theirs is worth keeping."""
        if self._pid != os.getpid():
            return
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.terminate()
        deadline = time.monotonic() + _CLOSE_WAIT_S
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join(_CLOSE_WAIT_S)
        self._pipes.clear()
        self._processes.clear()

    def __del__(self) -> None:
        self.close()

    def _allow(self, worker: int) -> None:
        """One result more. A worker that has ended has sent what it had: that is found when it is taken."""
        with contextlib.suppress(OSError):
            self._pipes[worker].send_bytes(b"+")

    def _receive(self, worker: int, timeout_seconds: float | None, *, starting: bool = False) -> tuple[bytes, Any]:
        pipe, process = self._pipes[worker], self._processes[worker]
        if not wait([pipe, process.sentinel], timeout_seconds):
            raise too_slow(f"process {worker} (pid {process.pid})", timeout_seconds)
        try:
            # What a dead worker has sent before is still in the pipe.
            if not pipe.poll(0):
                raise EOFError
            return _receive(pipe)
        except (EOFError, ConnectionError):
            process.join(_CLOSE_WAIT_S)
            raise _died(worker, process, starting) from None


def _start(process: Any) -> None:
    try:
        process.start()
    except (EOFError, ConnectionError) as error:
        raise _never_began(str(error)) from error


def _never_began(found: str) -> PenstockError:
    return PenstockError(
        "a process of the loader ended while it started",
        found=found,
        hint="Its own message is above. A script that starts processes needs `if __name__ == '__main__':` "
        "around what it runs, and the modules of the stream's functions must be importable",
    )


def _died(worker: int, process: Any, starting: bool) -> PenstockError:
    code = process.exitcode
    how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit status {code}"
    if starting:
        return _never_began(how)
    return PenstockError(
        f"the loader's process {worker} (pid {process.pid}) is dead",
        found=how,
        hint="SIGKILL is mostly the kernel out of memory: use fewer workers or less prefetch. "
        "The loader's place is kept: the next batch starts new processes",
    )


def _no_main_guard() -> ConfigError:
    return ConfigError(
        "a loader with processes starts while a worker process imports the script",
        expected="`if __name__ == '__main__':` around what the script runs",
        hint="Or use threads",
    )


def _pickled(producer: Producer) -> bytes:
    try:
        return pickle.dumps(producer, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            "this stream can't be moved to another process",
            found=str(error),
            expected="functions defined at the top of a module, and objects that pickle",
            hint="Replace lambdas and nested functions, or use threads",
        ) from error


# --- the worker's side -------------------------------------------------------------------------------------------


def _work(pipe: Connection, pickled: bytes, worker: int) -> None:
    # Ctrl-C reaches the whole group: the parent decides, and the closed pipe ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    credits = threading.Semaphore(0)
    threading.Thread(target=_listen, args=(pipe, credits), daemon=True).start()
    try:
        producer: Producer = pickle.loads(pickled)  # noqa: S301  made by this process's parent
        made = producer(worker, lambda seconds: time.sleep(seconds))
        _send(pipe, _READY, None)
        while True:
            credits.acquire()
            try:
                result = next(made)
            except StopIteration:
                _send(pipe, _END, None)
                return
            _send(pipe, _RESULT, result)
    except (BrokenPipeError, ConnectionError):
        os._exit(0)
    except BaseException as error:
        with contextlib.suppress(OSError):
            _send(pipe, _ERROR, _portable(error, worker))


def _listen(pipe: Connection, credits: threading.Semaphore) -> None:
    """Count credits; end the process with its parent, whatever it is doing."""
    try:
        while True:
            pipe.recv_bytes()
            credits.release()
    except (EOFError, OSError):
        os._exit(0)


def _portable(error: BaseException, worker: int) -> BaseException:
    """The error where it survives pickling, else its text; with a note that says where it was raised."""
    note = f"in loader process {worker}:\n" + "".join(traceback.format_exception(error))
    try:
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301  made here
    except Exception:
        copy = RuntimeError(f"{type(error).__qualname__}: {error}")
    copy.add_note(note)
    return copy


# --- results through anonymous memory ----------------------------------------------------------------------------


def _send(pipe: Connection, kind: bytes, value: Any) -> None:
    """One result: inline where it is small, else its sizes through the pipe and its bytes in anonymous memory."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    views = [memoryview(head), *(buffer.raw() for buffer in buffers)]
    total_bytes = sum(_aligned(view.nbytes) for view in views)
    if total_bytes <= _INLINE_BYTES:
        pipe.send_bytes(kind + b"I" + pickle.dumps([bytes(view) for view in views]))
        return
    with _anonymous_file(total_bytes) as descriptor:
        offset = 0
        for view in views:
            _write_at(descriptor, view, offset)
            offset += _aligned(view.nbytes)
        pipe.send_bytes(kind + b"M" + array.array("q", [view.nbytes for view in views]).tobytes())
        with socket.socket(fileno=os.dup(pipe.fileno())) as channel:
            socket.send_fds(channel, [b"F"], [descriptor])


def _receive(pipe: Connection) -> tuple[bytes, Any]:
    message = pipe.recv_bytes()
    kind, way, body = message[:1], message[1:2], message[2:]
    if way == b"I":
        views: list[Any] = [bytearray(copy) for copy in pickle.loads(body)]  # noqa: S301  from our own worker
    else:
        views = _mapped(pipe, array.array("q", body))
    return kind, pickle.loads(views[0], buffers=views[1:])  # noqa: S301  from our own worker


def _mapped(pipe: Connection, sizes_bytes: Sequence[int]) -> list[Any]:
    with socket.socket(fileno=os.dup(pipe.fileno())) as channel:
        _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    if not descriptors:
        raise EOFError
    try:
        # The mapping lives as long as an array over it.
        memory = memoryview(mmap.mmap(descriptors[0], sum(map(_aligned, sizes_bytes))))
    finally:
        os.close(descriptors[0])
    ends = list(accumulate(map(_aligned, sizes_bytes)))
    return [
        memory[end - _aligned(size) : end - _aligned(size) + size] for size, end in zip(sizes_bytes, ends, strict=True)
    ]


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


@contextlib.contextmanager
def _anonymous_file(size_bytes: int) -> Generator[int]:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("penstock", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, size_bytes)
        yield descriptor
    finally:
        os.close(descriptor)


def _write_at(descriptor: int, view: memoryview, offset_bytes: int) -> None:
    view = view.cast("B")
    while view.nbytes:
        written = os.pwrite(descriptor, view, offset_bytes)
        offset_bytes += written
        view = view[written:]
