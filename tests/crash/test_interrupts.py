"""Ctrl-C on a terminal, in a few of the commands; `make crash` does all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.crash.interrupts import NAMES, Case
from tests.internals import CLI_MODULE


@pytest.mark.parametrize(("name", "share"), [("index", 0.4), ("filter", 0.7), ("verify", 0.5)])
def test_an_interrupted_command_says_what_is_kept_and_goes_on(name: str, share: float, tmp_path: Path) -> None:
    case = Case(name, tmp_path)
    case.begin()
    assert case.interrupt(max(1, round(case.operations * share))) == []


def test_an_interrupt_while_imports_run_is_no_traceback(tmp_path: Path) -> None:
    """The key comes as the module of the command line is looked for."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {CLI_MODULE!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "info", "x"], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\npenstock: stopped\n")


def test_no_command_is_forgotten() -> None:
    assert len(NAMES) > 40
