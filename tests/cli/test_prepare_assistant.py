"""`penstock prepare` on a terminal: what it shows, what it asks, and that a wrong answer is told of and asked again.

The terminal is a pty, and tmux where that is installed.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Protocol

import pytest
from tests.cli.called import called

import penstock as ps

GOLDEN = Path(__file__).parent.parent / "golden" / "energon" / "captioning"
_PATIENCE_S = 60.0
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
COMMAND = (sys.executable, "-m", "penstock")


class Terminal(Protocol):
    """What both kinds do."""

    def shown(self) -> str: ...

    def type(self, text: str) -> None: ...

    def ended(self) -> bool: ...


class PtyTerminal:
    """A pseudo-terminal, read by a thread."""

    def __init__(self, command: Sequence[str]) -> None:
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.execvp(command[0], command)
        self._text = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while block := os.read(self._fd, 4096):
                self._text += block

    def shown(self) -> str:
        return _CODES.sub("", self._text.decode("utf-8", "replace"))

    def type(self, text: str) -> None:
        os.write(self._fd, f"{text}\n".encode())

    def ended(self) -> bool:
        return not self._thread.is_alive()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, 9)
        os.waitpid(self._pid, 0)
        self._thread.join()
        os.close(self._fd)


class TmuxTerminal:
    """A window of a tmux server of its own."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._socket = str(folder / "tmux.socket")
        self._marker = "the command has ended"
        script = folder / "run.sh"
        script.write_text(f"{shlex.join(command)}\necho {shlex.quote(self._marker)}\nsleep 600\n")
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", "140", "-y", "60", f"sh {shlex.quote(str(script))}")

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(["tmux", "-S", self._socket, *arguments], capture_output=True, text=True, check=True)
        return done.stdout

    def shown(self) -> str:
        return self._tmux("capture-pane", "-p", "-J", "-S", "-2000").rstrip()

    def type(self, text: str) -> None:
        if text:
            self._tmux("send-keys", "-l", text)
        self._tmux("send-keys", "Enter")

    def ended(self) -> bool:
        return self._marker in self.shown()

    def close(self) -> None:
        self._tmux("kill-server")


KINDS = ("pty", "tmux") if shutil.which("tmux") else ("pty",)


@contextlib.contextmanager
def terminal(kind: str, folder: Path, *arguments: object) -> Generator[Terminal]:
    """`penstock` with these arguments in a terminal."""
    command = [*COMMAND, *map(str, arguments)]
    made = PtyTerminal(command) if kind == "pty" else TmuxTerminal(command, folder)
    try:
        yield made
    finally:
        made.close()


def answer(one: Terminal, question: str, text: str, *, times: int = 1) -> None:
    """Wait until a question is shown for the n-th time, and type an answer."""
    _wait(one, lambda: one.shown().count(question) >= times, question)
    one.type(text)


def wait_for_end(one: Terminal) -> str:
    """All that was shown."""
    _wait(one, one.ended, "the end")
    return one.shown()


def _wait(one: Terminal, is_there: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_there():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited for {what!r}; shown is:\n{one.shown()}")
        time.sleep(0.02)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Shards that were never prepared."""
    copy = shutil.copytree(GOLDEN, tmp_path / "set", ignore=shutil.ignore_patterns(".nv-meta", "*.idx", ".penstock"))
    assert sorted(path.name for path in copy.rglob("*.tar"))
    return copy


@pytest.mark.parametrize("kind", KINDS)
def test_all_questions(folder: Path, tmp_path: Path, kind: str) -> None:
    with terminal(kind, tmp_path, "prepare", folder) as one:
        answer(one, "Splits: ", "train:train-*")
        answer(one, "Splits: ", "8,1", times=2)
        answer(one, "Splits: ", "2,1,1", times=3)
        answer(one, "Write a dataset.yaml", "")
        answer(one, "Sample type", "77")
        answer(one, "Sample type", "0", times=2)
        answer(one, "Choose the source of each field?", "y")
        answer(one, "  image [", "png")
        answer(one, "  image [", "jpg", times=2)
        answer(one, "  caption [", "json[nothing]")
        answer(one, "  caption [", "json[caption]", times=2)
        answer(one, "Write this to", "")
        shown = wait_for_end(one)
    assert "JPEG image, 8 x 6, RGB" in shown
    assert "matches no shard" in shown
    assert "three numbers" in shown
    assert "likely: " in shown
    assert "unknown sample type" in shown
    assert "has no part 'png'" in shown
    assert "json[nothing] matches nothing" in shown
    assert "wrote .nv-meta/" in shown
    source = ps.open(folder, split="val")
    assert source[0]["caption"].startswith("json caption s2_000")
    assert ps.verify(folder, depth="full") == []


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_written_before_the_last_answer(folder: Path, tmp_path: Path, kind: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with terminal(kind, tmp_path, "prepare", folder, "--split-ratio", "1,1,0", "--skip-dataset-yaml") as one:
        answer(one, "Write this to", "n")
        shown = wait_for_end(one)
    assert "train: 2 shards" in shown
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.parametrize("answer_text", ["Crude sample", "crude SAMPLE", "crude", "CrudeWebdataset", "11"])
def test_the_documented_answer_for_crude_samples(folder: Path, answer_text: str) -> None:
    done = called("energon", "prepare", folder, given=f"8,1,1\ny\n{answer_text}\ny\n")
    assert done.returncode == 0, done.stderr
    assert "__class__: CrudeWebdataset" in (folder / ".nv-meta/dataset.yaml").read_text()


def test_every_sample_type_is_offered(folder: Path) -> None:
    answers = "8,1,1\ny\nVQAOCRSample\nn\ny\n"
    done = called("energon", "prepare", folder, given=answers)
    assert done.returncode == 0, done.stderr
    assert "12  VQAOCRSample" in done.stdout + done.stderr
    assert "__class__: VQAOCRSample" in (folder / ".nv-meta/dataset.yaml").read_text()


@pytest.mark.parametrize("given", ["", "8,1,1\n"])
def test_input_that_ends_names_the_options(folder: Path, given: str) -> None:
    done = called("energon", "prepare", folder, given=given)
    assert done.returncode not in (0, 70, 130)
    assert "interrupted" not in done.stderr
    for option in ("--split-ratio", "--sample-type", "--non-interactive"):
        assert option in done.stderr
    assert not (folder / ".nv-meta").exists()
