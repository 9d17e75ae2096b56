"""Python commands that run in forks of an interpreter that has imported Penstock: no command imports it again.

`served` starts that interpreter and gives a folder with two programs, `penstock` and `python`, for the front of PATH.
Each sends its arguments, environment, working directory and open files to the interpreter and ends with the status of
the fork. A program that is killed takes its fork with it, an instant later: tests of signals start a real interpreter.

`python` serves `-c` and `-m penstock`. Everything else runs in a real interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

MOST_FDS = 128
_HIGH = 512
"""File descriptors of a request wait above this number until their own numbers are free."""

CLIENT = """#!{python} -IS
import _socket, marshal, os, sys
arguments = {first!r} + sys.argv[1:]
if arguments[:2] != ["-m", "penstock"] and arguments[:1] != ["-c"]:
    os.execv({python!r}, [{python!r}, *arguments])
fds = []
for name in os.listdir("/proc/self/fd"):
    try:
        os.fstat(int(name))
        fds.append(int(name))
    except OSError:
        pass
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
server.connect({address!r})
request = marshal.dumps((arguments, os.getcwd(), dict(os.environb), fds))
numbers = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
server.sendmsg([len(request).to_bytes(8, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)])
while request:
    request = request[server.send(request):]
status = int.from_bytes(server.recv(4), "big", signed=True)
if status < 0:
    os.kill(os.getpid(), -status)
os._exit(status)
"""


@contextlib.contextmanager
def served(folder: Path, preload: Sequence[str]) -> Iterator[Path]:
    """Start the interpreter; the programs are in `folder`, which must be empty, while this context is open.

    Args:
        folder: for the programs and the address of the interpreter.
        preload: modules to import.
    """
    address = str(folder / "address")
    for name, first in (("penstock", ["-m", "penstock"]), ("python", [])):
        client = CLIENT.format(python=sys.executable, first=first, address=address)
        (folder / name).write_text(client)
        (folder / name).chmod(0o755)
    command = [sys.executable, __file__, address, str(folder / "python"), *preload]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        assert server.stdout.readline() == b"ready\n"
        yield folder
    finally:
        server.stdin.close()
        server.stdout.close()
        server.wait()


def serve(address: str, python: str, preload: Sequence[str]) -> None:
    """Run requests until standard input is closed."""
    for module in preload:
        importlib.import_module(module)
    sys.executable = python
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    os.write(1, b"ready\n")
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, 1)
    children: dict[int, tuple[int, socket.socket]] = {}  # pidfd → process, and who waits for it
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(listener, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == 0:
                for pid, _ in children.values():
                    _kill(pid)
                return
            if fd == listener.fileno():
                connection, _ = listener.accept()
                pid = os.fork()
                if pid == 0:
                    _run(connection)
                pidfd = os.pidfd_open(pid)
                children[pidfd] = (pid, connection)
                poll.register(pidfd, select.POLLIN)
                poll.register(connection, select.POLLRDHUP)
            elif fd in children:
                pid, connection = children.pop(fd)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                poll.unregister(fd)
                os.close(fd)
                poll.unregister(connection)
                with contextlib.suppress(OSError):  # the client was killed
                    connection.sendall(status.to_bytes(4, "big", signed=True))
                connection.close()
            else:
                for pid, connection in children.values():
                    if connection.fileno() == fd:
                        poll.unregister(connection)
                        poll.register(connection, 0)
                        _kill(pid)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _run(connection: socket.socket) -> NoReturn:
    """Do in this fork what a client asks for, as an interpreter of its own would."""
    status = 70
    try:
        os.setsid()
        head, received, _, _ = socket.recv_fds(connection, 8, MOST_FDS)
        data = b""
        while len(data) < int.from_bytes(head, "big"):
            data += connection.recv(1 << 16)
        arguments, folder, environment, fds = marshal.loads(data)  # noqa: S302 (from our own client)
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, _HIGH) for fd in received]
        connection.detach()
        os.closerange(3, _HIGH)
        for fd, number in zip(high, fds, strict=True):
            os.dup2(fd, number)
            os.close(fd)
        os.chdir(folder)
        os.environb.clear()
        os.environb.update(environment)
        status = _status_of(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(status)


def _status_of(arguments: list[str]) -> int:
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    try:
        try:
            if arguments[0] == "-c":
                sys.argv = ["-c", *arguments[2:]]
                exec(compile(arguments[1], "<string>", "exec"), vars(main))
            else:
                sys.argv = [arguments[1], *arguments[2:]]
                runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        finally:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
    except SystemExit as ended:
        code: Any = ended.code
        if code is None or isinstance(code, int):
            return code or 0
        print(code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], sys.argv[3:])
