"""What `penstock completion` prints, in the shells themselves."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PATIENCE_S = 60.0
WORDS = (
    ("penstock pac", "pack"),
    ("penstock info corp", "corpus.jsonl"),
    ("penstock verify corpus.jsonl --depth q", "quick"),
    ("penstock convert a b --to md", "mds"),
    ("penstock verify --fol", "--follow-links"),
)
"""A line as far as it is typed, and what its last word becomes."""


KEYBOARDS = {
    "bash": ("bash --norc -i", ""),
    "zsh": ("zsh -f -i", "autoload -Uz compinit; compinit -D -u;"),
}
"""Shell → how it is started, and what it does before it takes the script."""


@pytest.fixture
def shell(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The script of a shell that is installed, in a folder with one file; `penstock` is this one."""
    name: str = request.param
    if shutil.which(name) is None:
        pytest.skip(f"no {name} here")
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin/penstock"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m penstock "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    script = subprocess.run(["penstock", "completion", name], capture_output=True, text=True, check=True).stdout
    Path(f"script.{name}").write_text(script)
    Path("corpus.jsonl").touch()
    return name


def completed(command: list[str]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    return [line.split("\t")[0] for line in done.stdout.splitlines()]


@contextlib.contextmanager
def terminal(command: list[str]) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """A program on a terminal of its own: what types, and what waits for words."""
    main, inner = pty.openpty()
    ours = {**os.environ, "TERM": "dumb", "COLUMNS": "200"}
    process = subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner, env=ours, start_new_session=True)
    os.close(inner)
    seen = ""

    def write(text: str) -> None:
        nonlocal seen
        seen = ""
        os.write(main, text.encode())

    def wait_for(words: str) -> None:
        nonlocal seen
        until = time.monotonic() + PATIENCE_S
        while words not in seen:
            assert time.monotonic() < until, f"{words!r} does not come: {seen!r}"
            if select.select([main], [], [], 0.5)[0]:
                seen += os.read(main, 1 << 12).decode(errors="replace")

    try:
        yield write, wait_for
    finally:
        process.kill()
        process.wait()
        os.close(main)


@pytest.mark.parametrize("shell", ["fish"], indirect=True)
def test_fish(shell: str) -> None:
    for line, becomes in WORDS:
        assert completed(["fish", "--no-config", "-c", f"source script.fish; complete -C '{line}'"]) == [becomes], line


@pytest.mark.parametrize("shell", [*KEYBOARDS], indirect=True)
def test_at_a_keyboard(shell: str) -> None:
    """Their completion works in their line editors alone."""
    command, begin = KEYBOARDS[shell]
    with terminal(command.split()) as (write, wait_for):
        write(f"{begin} source script.{shell}; echo rea''dy\n")
        wait_for("ready")
        for number, (line, becomes) in enumerate(WORDS):
            write(f"{line}\t")
            wait_for(f"{line.rpartition(' ')[0]} {becomes}")
            write(f"\x15echo 'd'one{number}\n")  # the line is taken away
            wait_for(f"done{number}")
