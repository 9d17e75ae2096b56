"""Worker processes, for decoding that holds Python's lock.

`forkserver` starts them, so that nothing of the trainer (CUDA, threads, connections) is copied into them.
Results are sent by `messages`. A worker ends by itself when its parent does.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from multiprocessing import process as process_module
from multiprocessing.connection import Connection
from typing import Any
from weakref import WeakSet

from penstock._threads import close_at_end, when_dropped
from penstock.errors import ConfigError, PenstockError
from penstock.load.messages import NO_SIGNAL, Blocks, Inbox, send
from penstock.load.workers import AHEAD_BYTES, LEAST_BYTES, CreditWindow, Producer, too_slow

_START_WAIT_S = 120.0
_CLOSE_WAIT_S = 1.0
_READY, _RESULT, _ERROR, _END = b"R", b"V", b"E", b"Z"

# Report of the parent to a worker: the number of results consumed since the last one, their bytes, and the number of an
# unmapped block of memory (0: none).
_CONSUMED = struct.Struct("=IQI")

_WHY = {
    "signal SIGKILL": "Usually the machine ran out of memory: use fewer workers or less prefetch",
    "signal SIGBUS": "A memory-mapped file was truncated during a read, or its disk is failing: see `penstock verify`",
}


class ProcessWorkers:
    """Worker processes; see `Workers`.

    Memory: `workers · (prefetch + 2)` results in reused anonymous memory, in addition to those that the
    caller holds; of small results up to 256 KiB per worker, and one more.

    Raises:
        ConfigError: the producer can't be pickled, for example because of a lambda; or the running script has no
            main guard.
    """

    def __init__(self, producer: Producer, workers: int, prefetch: int, timeout_seconds: float | None) -> None:
        self._timeout_seconds = timeout_seconds
        self._lines: list[_WorkerChannel] = []
        self._pid = os.getpid()
        if getattr(mp.current_process(), "_inheriting", False):
            raise _no_main_guard()
        pickled = _pickled(producer)
        close_at_end(self)
        context = mp.get_context("forkserver")
        try:
            for worker in range(workers):
                ours, theirs = context.Pipe(duplex=True)
                name = f"penstock-load-{worker}"
                given = (theirs, pickled, worker, prefetch, self._pid)
                process = context.Process(target=_work, args=given, name=name, daemon=True)
                with ours, theirs:
                    _start(process)
                    self._lines.append(_WorkerChannel(process, _socket_of(ours)))
            for worker in range(workers):
                kind, value = self._receive(worker, _START_WAIT_S, starting=True)
                if kind == _ERROR:
                    raise value
        except BaseException:
            self.close()
            raise

    def take(self, worker: int, /) -> Any:
        kind, value = self._receive(worker, self._timeout_seconds)
        if kind == _ERROR:
            raise value
        if kind == _END:
            raise StopIteration
        return value

    def ready(self) -> int:
        return sum(line.ready() for line in self._lines)

    def close(self) -> None:
        """Kill the processes immediately: they hold nothing that has to be saved."""
        if self._pid != os.getpid():
            return
        for line in self._lines:
            line.inbox.close()
            line.process.terminate()
        deadline = time.monotonic() + _CLOSE_WAIT_S
        for line in self._lines:
            line.process.join(max(0.0, deadline - time.monotonic()))
            if line.process.exitcode is None:
                line.process.kill()
                line.process.join(_CLOSE_WAIT_S)
        self._lines.clear()

    __del__ = when_dropped(close)

    def _receive(self, worker: int, timeout_seconds: float | None, *, starting: bool = False) -> tuple[bytes, Any]:
        line = self._lines[worker]
        try:
            if not line.wait(timeout_seconds):
                raise too_slow(f"process {worker} (pid {line.process.pid})", timeout_seconds)
            return line.take()
        except (EOFError, ConnectionError):
            line.process.join(_CLOSE_WAIT_S)
            raise _died(worker, line.process, starting) from None


class _WorkerChannel:
    """The parent's end of the connection to one worker."""

    def __init__(self, process: Any, channel: socket.socket) -> None:
        self.process = process
        self.inbox = Inbox(channel)
        self._channel = channel
        self._poll = select.poll()
        self._poll.register(channel.fileno(), select.POLLIN)
        self._poll.register(process.sentinel, select.POLLIN)
        self._taken = self._taken_bytes = 0
        self._has_reported = False  # the first result is reported immediately

    def ready(self) -> bool:
        """Return whether a message is ready; reads nothing, so another thread or a forked process may call it."""
        descriptor = self._channel.fileno()
        if descriptor < 0:  # closed in the meantime
            return False
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return self.inbox.has_partial() or bool(poll.poll(0))

    def wait(self, timeout_seconds: float | None) -> bool:
        """Wait until a whole result has arrived; return False on a timeout.

        Raises:
            EOFError: the worker has ended, and all its results were read.
        """
        wait_ms = None if timeout_seconds is None else max(1, int(timeout_seconds * 1000))
        while not self.inbox.ready():
            if self.inbox.fill():
                continue
            if not self._poll.poll(wait_ms):
                return False
            # Messages of a dead worker are still readable.
            if not self.inbox.fill() and self.process.exitcode is not None:
                raise EOFError
        return True

    def take(self) -> tuple[bytes, Any]:
        """Return the next message. Reports consumed results to the worker once they are worth a message."""
        kind, value, result_bytes = self.inbox.take()
        if kind == _RESULT:
            self._taken += 1
            self._taken_bytes += max(result_bytes, LEAST_BYTES)
            if not self._has_reported or self._taken_bytes >= AHEAD_BYTES // 2:
                self._has_reported = True
                # A worker that has ended has sent its last message, which is noticed when it is taken.
                with contextlib.suppress(OSError):
                    numbers = self.inbox.released() or [0]
                    reports = [_CONSUMED.pack(0, 0, number) for number in numbers[:-1]]
                    reports.append(_CONSUMED.pack(self._taken, self._taken_bytes, numbers[-1]))
                    self._channel.sendall(b"".join(reports), NO_SIGNAL)
                self._taken = self._taken_bytes = 0
        return kind, value


def _socket_of(pipe: Connection) -> socket.socket:
    channel = socket.socket(fileno=os.dup(pipe.fileno()))
    channel.settimeout(None)  # the program may have a default timeout for sockets
    return channel


_workers: WeakSet[Any] = WeakSet()
"""The processes of all loaders."""


def _after_fork() -> None:
    # At its end, a forked child would terminate its parent's workers as if they were its own.
    children: set[Any] = getattr(process_module, "_children", set[Any]())
    children.difference_update(_workers)


os.register_at_fork(after_in_child=_after_fork)


def _start(process: Any) -> None:
    _workers.add(process)
    try:
        process.start()
    except ChildProcessError as error:
        raise ConfigError(
            "a forked process can't start the loader's worker processes",
            found=str(error),
            hint="Start the loading process with spawn or forkserver, or use threads",
        ) from error
    except (EOFError, ConnectionError) as error:
        raise _never_began(str(error)) from error


def _never_began(found: str) -> PenstockError:
    return PenstockError(
        "a loader process exited during startup",
        found=found,
        hint="Its own message is above. A script that starts processes must guard its main code with "
        "`if __name__ == '__main__':`, and the modules of the stream's functions must be importable",
    )


def _died(worker: int, process: Any, starting: bool) -> PenstockError:
    code = process.exitcode
    how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit status {code}"
    if starting:
        return _never_began(how)
    why = _WHY.get(how, "Check the functions of the stream and the code that they call")
    return PenstockError(
        f"the loader's process {worker} (pid {process.pid}) has died",
        found=how,
        hint=f"{why}. The loader keeps its position: the next batch starts new processes",
    )


def _no_main_guard() -> ConfigError:
    return ConfigError(
        "a loader with processes is starting while a worker process imports the script",
        expected="`if __name__ == '__main__':` around the main code of the script",
        hint="Or use threads",
    )


def _pickled(producer: Producer) -> bytes:
    try:
        return pickle.dumps(producer, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            "this stream can't be sent to another process",
            found=str(error),
            expected="functions defined at the top level of a module, and picklable objects",
            hint="Replace lambdas and nested functions, or use threads",
        ) from error


# --- in the worker process ---


def _work(pipe: Connection, pickled: bytes, worker: int, prefetch: int, parent: int) -> None:
    # Ctrl-C reaches the whole process group: the parent decides, and the closed pipe ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel, credits = _socket_of(pipe), CreditWindow(prefetch)
    blocks = Blocks(prefetch + 2)  # one being written, and one held by the caller
    threading.Thread(target=_listen, args=(channel, credits, blocks), daemon=True).start()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        producer = _loaded(pickled)
        made = producer(worker, lambda seconds: time.sleep(seconds))
        send(channel, _READY, None, blocks)
        while credits.wait():
            try:
                result = next(made)
            except StopIteration:
                send(channel, _END, None, blocks)
                return
            credits.produced(send(channel, _RESULT, result, blocks))
    except (BrokenPipeError, ConnectionError):
        os._exit(0)
    except BaseException as error:
        with contextlib.suppress(OSError):
            send(channel, _ERROR, _portable(error, worker), blocks)


def _loaded(pickled: bytes) -> Producer:
    """Return the producer, with libraries limited to one thread: the other cores belong to other workers."""
    is_bounded_by_caller = "OMP_NUM_THREADS" in os.environ
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch reads it on import
    producer: Producer = pickle.loads(pickled)  # noqa: S301  made by this process's parent
    torch: Any = sys.modules.get("torch")
    if torch is not None and not is_bounded_by_caller:  # imported earlier, by the main module
        torch.set_num_threads(1)
    return producer


def _end_with(parent: int) -> None:
    """End this process with its parent, even if processes that the parent forked keep the socket open."""
    with contextlib.suppress(AttributeError, OSError):  # not every system has process descriptors
        poll = select.poll()
        poll.register(os.pidfd_open(parent), select.POLLIN)
        poll.poll()
        os._exit(0)


def _listen(channel: socket.socket, credits: CreditWindow, blocks: Blocks) -> None:
    """Receive reports of consumed and released results; end the process when its parent ends."""
    try:
        while report := channel.recv(_CONSUMED.size, socket.MSG_WAITALL):
            results, result_bytes, number = _CONSUMED.unpack(report)
            if number:
                blocks.released(number)
            credits.consumed(results, result_bytes)
    except (OSError, struct.error):
        pass
    os._exit(0)


def _portable(error: BaseException, worker: int) -> BaseException:
    """Return the error if it survives pickling, else its text, with a note where it was raised."""
    note = f"in loader process {worker}:\n" + "".join(traceback.format_exception(error))
    try:
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301  made here
    except Exception:
        copy = RuntimeError(f"{type(error).__qualname__}: {error}")
    copy.add_note(note)
    return copy
