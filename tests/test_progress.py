"""A run of the tests says how far it is, in plain lines, and hides no failure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TESTS = (
    "import pytest\n"
    "@pytest.fixture\ndef broken(): raise ValueError\n"
    "@pytest.mark.parametrize('n', range(20))\ndef test_good(n): pass\n"
    "def test_bad(): assert 0\n"
    "def test_setup(broken): pass\n"
    "@pytest.mark.skip\ndef test_skipped(): pass\n"
    "@pytest.mark.xfail\ndef test_known(): assert 0\n"
)


@pytest.mark.parametrize("more", [(), ("-p", "xdist", "-n", "1")])
def test_lines(tmp_path: Path, more: tuple[str, ...]) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.progress",
        "-p",
        "no:cacheprovider",
        *more,
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, env=_environ(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    told = [line for line in lines if re.fullmatch(r" *\d+% [\d,]+ of 24, \d failed, \d+ s", line)]
    assert [int(line.split("%")[0]) for line in told] == [12, 25, 38, 50, 62, 75, 88, 100]
    assert ", 2 failed, " in told[-1]
    failed = [line for line in lines if re.match(r"FAILED .*, \d+ s", line)]
    assert ["::test_bad, " in failed[0], "::test_setup (setup), " in failed[1]] == [True, True]
    assert "1 failed, 20 passed, 1 skipped, 1 xfailed, 1 error" in lines[-1]
    assert "AssertionError" in done.stdout or "assert 0" in done.stdout


def test_a_lone_surrogate_in_a_failure_does_not_end_the_run(tmp_path: Path) -> None:
    """Neither in its message, nor in what the test printed."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_report_to_serializable\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    tests = (
        "def test_bad(): assert 'a' == 'b' + chr(0xDC80), 'message ' + chr(0xDC81)\n"
        "def test_error(): raise ValueError(chr(0xD800))\n"
        "def test_good(): pass\n"
    )
    (tmp_path / "test_some.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "xdist", "-n", "1", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=_environ(), capture_output=True, text=True, timeout=120, check=False)
    assert "INTERNALERROR" not in done.stdout + done.stderr
    assert r"message \udc81" in done.stdout
    assert r"ValueError: \ud800" in done.stdout
    assert "2 failed, 1 passed" in done.stdout.splitlines()[-1]


def _environ() -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
