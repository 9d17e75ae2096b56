"""Tests on a Ray cluster of three nodes on this machine: makes their environment, runs them, and says what ran.

`make cluster`, or `python tests/cluster/run.py [--fresh] [what pytest takes]`. Where Ray does not install this is
NOT RUN, and red.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venvs" / "cluster"
PYTHON = VENV / "bin" / "python"
EXTRAS = "mds,ray,remote,tokenize"
NEEDED = ("pytest>=8", "hypothesis>=6.100", "moto[s3,server]>=5")
PROBE = (
    "import hypothesis, moto.server, obstore, penstock, pytest, ray, tokenizers; assert ray.__version__[:5] == '2.60.'"
)
INSTALL_S = 400
LIMIT_S = 600


def main(arguments: list[str]) -> int:
    """Make the environment, run the tests, and give the exit status."""
    started = time.monotonic()
    if "--fresh" in arguments or not works():
        try:
            make()
        except (OSError, subprocess.SubprocessError) as error:
            print(f"cluster: NOT RUN (required): its environment can't be made: {error}", flush=True)
            return 1
    print(f"cluster: environment ready after {time.monotonic() - started:.0f} s", flush=True)
    command = [str(PYTHON), "-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider"]
    command += ["--durations=5", "-o", "addopts=", *(one for one in arguments if one != "--fresh"), "tests/cluster"]
    try:
        return subprocess.run(command, cwd=ROOT, env=environment(), timeout=LIMIT_S, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"cluster: stopped after {LIMIT_S} s", flush=True)
        return 1


def environment() -> dict[str, str]:
    """Ours with what calls home switched off, and without clusters that the user knows."""
    lines = (ROOT / "tests" / "telemetry_off.env").read_text().splitlines()
    told = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | told


def works() -> bool:
    """Whether the environment is there and has what is needed."""
    return PYTHON.exists() and subprocess.run([PYTHON, "-c", PROBE], capture_output=True, check=False).returncode == 0


def make() -> None:
    """Make the environment anew; raises what pip ends with."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True, timeout=INSTALL_S)
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "-e", f"{ROOT}[{EXTRAS}]", *NEEDED]
    subprocess.run(pip, check=True, timeout=INSTALL_S, env=environment())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
