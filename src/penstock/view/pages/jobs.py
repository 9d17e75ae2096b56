"""Background jobs started by pages: Penstock commands in separate processes, with progress, which can be stopped.

Memory and crashes of a job don't affect the server. There is one job of each kind per dataset; its result is kept until
the next one starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from penstock._threads import Worker
from penstock.errors import ConfigError

MOST_JOBS = 4
"""Limit on parallel jobs."""

_MOST_RESULT_BYTES = 1 << 26
_MOST_LINE = 1 << 16


@dataclass(frozen=True, slots=True)
class Progress:
    state: str
    done: int = 0
    total: int | None = None
    unit: str = ""
    seconds: float = 0.0
    left_seconds: float | None = None
    result: Any = None
    error: str | None = None

    @property
    def is_running(self) -> bool:
        return self.state == "running"


class Jobs:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[tuple[str, ...], _Job] = {}

    def start(self, name: tuple[str, ...], arguments: list[str]) -> None:
        """Start a command, replacing a running job of the same name.

        Raises:
            ConfigError: too many jobs are running.
        """
        with self._lock:
            old = self._jobs.pop(name, None)
            if old is not None:
                old.stop()
            if sum(one.progress().is_running for one in self._jobs.values()) >= MOST_JOBS:
                self._jobs |= {} if old is None else {name: old}
                raise ConfigError(f"{MOST_JOBS} checks run already", hint="Wait for one, or stop it")
            self._jobs[name] = _Job(arguments)

    def stop(self, name: tuple[str, ...]) -> None:
        with self._lock:
            job = self._jobs.get(name)
        if job is not None:
            job.stop()

    def progress(self, name: tuple[str, ...]) -> Progress | None:
        """Return the progress of a job; None if none was started."""
        with self._lock:
            job = self._jobs.get(name)
        return None if job is None else job.progress()

    def close(self) -> None:
        with self._lock:
            jobs = list(self._jobs.values())
        for job in jobs:
            job.stop()


class _Job:
    def __init__(self, arguments: list[str]) -> None:
        self._began, self._ended = time.monotonic(), 0.0
        self._facts: dict[str, Any] = {}
        self._last: deque[str] = deque(maxlen=8)
        self._is_stopped = False
        self._result: Any = None
        self._error: str | None = None
        self._out = tempfile.TemporaryFile()  # noqa: SIM115
        command = [sys.executable, "-m", "penstock", *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._out, stderr=subprocess.PIPE, start_new_session=True,
            env=os.environ | {"PENSTOCK_PROGRESS": "json"},
        )  # fmt: skip
        name = f"penstock-view-{arguments[0]}"
        self._thread = Worker(self._listen, name, stop=self.stop, doing=lambda: " ".join(arguments[:1]))
        self._thread.start()

    def stop(self) -> None:
        """End the process and its children."""
        if self._process.poll() is None:
            self._is_stopped = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def progress(self) -> Progress:
        facts = self._facts
        seconds = (self._ended or time.monotonic()) - self._began
        known: dict[str, Any] = {"seconds": seconds, "done": facts.get("done", 0), "total": facts.get("total")}
        known |= {"unit": facts.get("unit", ""), "left_seconds": facts.get("left_seconds")}
        if not self._ended:
            return Progress("stopping" if self._is_stopped else "running", **known)
        if self._is_stopped:
            return Progress("stopped", **known)
        if self._error is not None:
            return Progress("failed", **known, error=self._error)
        return Progress("done", **known, result=self._result)

    def _listen(self) -> None:
        errors = self._process.stderr
        with contextlib.suppress(OSError, ValueError):
            while errors is not None and (line := errors.readline(_MOST_LINE)):
                self._hear(line.decode(errors="replace").strip())
        status = self._process.wait()
        if errors is not None:
            errors.close()
        self._read(status)
        self._out.close()
        self._ended = time.monotonic()

    def _hear(self, line: str) -> None:
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                self._facts = json.loads(line)
                return
        self._last.append(line)

    def _read(self, status: int) -> None:
        self._out.seek(0)
        text = self._out.read(_MOST_RESULT_BYTES + 1)
        if len(text) > _MOST_RESULT_BYTES:
            self._error = "too many findings for a page: run the command in a terminal"
            return
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if status in (0, 1) and found is not None and "error" not in found:
            self._result = found
            return
        said = found["error"]["message"] if isinstance(found, dict) and "error" in found else None
        self._error = said or " ".join(self._last) or f"it exited with status {status}"
