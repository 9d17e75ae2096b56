"""A part of the corpus gives what its golden files say; all of it does in `make corpus`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("corpus")

SEED = os.environ.get("CORPUS_SEED", "1")


def test_a_part() -> None:
    command = [sys.executable, str(Path(__file__).parent / "run.py"), "--seed", SEED, "--share", "25", "--jobs", "1"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stdout
