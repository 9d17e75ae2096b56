"""Helper process that makes the requests of a forked process.

obstore does not work in a child that was forked after its parent used it, and torch's `DataLoader` forks. Such a child
starts one helper process at its first request, and communicates with it through pipes. The helper exits with the child.
It costs a tenth of a second once, and a copy of the bytes.

A message is a line of JSON, `{"calls": …}` or `{"sizes": […], …}`, followed by that many bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO, Any, TypeAlias

from penstock import errors
from penstock._arrays import byte_view
from penstock.errors import PenstockError, Unreachable
from penstock.store._objects import Objects, Reply, forked_after_use
from penstock.store._requests import RemoteOptions
from penstock.store.base import Head, Range, RangesIgnored
from penstock.types import Buffer

Transport: TypeAlias = "Objects | HelperTransport"
_PROGRAM = "import sys; sys.path[:] = sys.argv[1].split('\\n'); from penstock.store._fork_helper import serve; serve()"


def transport(base: str, options: RemoteOptions) -> Transport:
    """Return the transport for requests of this process; one per bucket."""
    # A forked child has another process id, so it doesn't use its parent's connections.
    return _transport(base, options, os.getpid(), os.environ.get("S3_ENDPOINT_URL"))


@functools.cache
def _transport(base: str, options: RemoteOptions, _pid: int, _endpoint: str | None) -> Transport:
    return HelperTransport(base, options) if forked_after_use() else Objects(base, options)


@functools.cache
def _helper(_pid: int) -> Helper:
    return Helper()


class Helper:
    """The helper process. One thread at a time uses it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, "\n".join(sys.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def call(self, url: str, message: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        """Return the answer to a message; raise its error, or `Unreachable` if the helper exited."""
        sender, receiver = self._process.stdin, self._process.stdout
        with self._lock:
            try:
                if sender is None or receiver is None:
                    raise EOFError
                _send(sender, message, [])
                answer, data = _receive(receiver)
            except (EOFError, OSError):
                raise Unreachable(
                    "the helper process that reads for this forked process has exited",
                    path=url,
                    found=f"exit status {self._process.poll()}",
                    hint='Start workers with "forkserver" or "spawn"',
                ) from None
        if "error" in answer:
            raise _error(answer["error"])
        return answer, data


class HelperTransport:
    """The methods of `Objects`, called in the helper process."""

    def __init__(self, base: str, options: RemoteOptions) -> None:
        self._base = base
        self._options = dataclasses.asdict(options)

    def head(self, key: str) -> Head:
        return Head(*self._call("head", key)[0]["result"])

    def read(self, key: str, ranges: Sequence[Range] | None) -> Reply:
        answer, data = self._call("read", key, None if ranges is None else list(ranges))
        head, requests = answer["result"]
        return Reply(data, Head(*head), requests)

    def list(self, key: str, *, first_only: bool, start: str = "") -> list[str]:
        return self._call("list", key, first_only=first_only, start=start)[0]["result"]

    def heads(self, key: str, most: int) -> list[tuple[str, Head]] | None:
        found = self._call("heads", key, most)[0]["result"]
        return None if found is None else [(name, Head(*head)) for name, head in found]

    def level(self, key: str) -> tuple[list[str], list[str]]:
        folders, files = self._call("level", key)[0]["result"]
        return folders, files

    def put(self, key: str, local_path: str, *, create: bool) -> bool:
        return self._call("put", key, local_path, create=create)[0]["result"]

    def copy(self, key: str, to: str, *, create: bool) -> bool:
        return self._call("copy", key, to, create=create)[0]["result"]

    def delete(self, key: str) -> None:
        self._call("delete", key)

    def _call(self, name: str, key: str, *given: Any, **named: Any) -> tuple[dict[str, Any], list[bytes]]:
        message = {"base": self._base, "options": self._options, "name": name, "given": [key, *given], "named": named}
        # The environment is sent with the calls, because the helper has the environment of its start.
        message["environment"] = {name: value for name, value in os.environ.items() if _matters(name)}
        return _helper(os.getpid()).call(f"{self._base}/{key}", message)


def serve() -> None:
    """Answer messages on the standard streams until they end."""
    sender, receiver = os.fdopen(os.dup(1), "wb"), sys.stdin.buffer
    os.dup2(2, 1)  # other output to stdout must not mix with the messages
    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            message, _ = _receive(receiver)
            try:
                answer, data = _answer(message)
            except PenstockError as error:
                answer, data = {"error": _fields(error)}, []
            _send(sender, answer, data)


def _answer(message: dict[str, Any]) -> tuple[dict[str, Any], Sequence[Buffer]]:
    for name in [name for name in os.environ if _matters(name) and name not in message["environment"]]:
        del os.environ[name]
    os.environ.update(message["environment"])
    objects = transport(message["base"], RemoteOptions(**message["options"]))
    result = getattr(objects, message["name"])(*message["given"], **message["named"])
    if isinstance(result, Reply):
        return {"result": [dataclasses.astuple(result.head), result.requests]}, result.data
    if message["name"] == "heads" and result is not None:
        return {"result": [(name, dataclasses.astuple(head)) for name, head in result]}, []
    return {"result": dataclasses.astuple(result) if isinstance(result, Head) else result}, []


def _matters(name: str) -> bool:
    return name.startswith(("AWS_", "S3_", "AZURE_", "GOOGLE_", "MOSAICML_"))


def _send(stream: IO[bytes], message: dict[str, Any], data: Sequence[Buffer]) -> None:
    views = [byte_view(one) for one in data]
    stream.write(json.dumps({**message, "sizes": [len(view) for view in views]}).encode() + b"\n")
    for view in views:
        stream.write(view)
    stream.flush()


def _receive(stream: IO[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    message = json.loads(line)
    data = [stream.read(size) for size in message.pop("sizes")]
    return message, data


def _fields(error: PenstockError) -> dict[str, Any]:
    kept = {name: getattr(error, name) for name in ("path", "offset_bytes", "hint")}
    kept |= {name: None if value is None else str(value) for name, value in error.__dict__.items() if name not in kept}
    return {"kind": type(error).__name__, "what": error.what, "fields": kept}


def _error(given: dict[str, Any]) -> PenstockError:
    kinds = {RangesIgnored.__name__: RangesIgnored}
    kind = kinds.get(given["kind"]) or getattr(errors, given["kind"], Unreachable)
    error = kind(given["what"])
    for name, value in given["fields"].items():
        setattr(error, name, value)
    return error
