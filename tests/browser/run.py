"""The viewer in a real browser: installs Debian's chromium and its driver where they are missing, and walks every page.

`make browser`, or `python tests/browser/run.py [what pytest takes]`. Pictures go to build/browser. Where there is no
browser this is NOT RUN, and red.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("chromium", "chromedriver")
PACKAGES = ("chromium", "chromium-driver")
INSTALL_S = 300
LIMIT_S = 570


def main(arguments: list[str]) -> int:
    """Install, run the tests, and give the exit status."""
    if missing():
        install()
    if missing():
        print(f"browser: NOT RUN (required): {', '.join(missing())} can't be installed", flush=True)
        return 1
    command = [sys.executable, "-m", "pytest", "-q", "-s", "--import-mode=importlib", "-p", "no:cacheprovider"]
    command += ["--durations=5", "-o", "addopts=", *arguments, str(ROOT / "tests" / "browser")]
    try:
        return subprocess.run(command, cwd=ROOT, env={**os.environ, "SE_OFFLINE": "true"}, timeout=LIMIT_S).returncode
    except subprocess.TimeoutExpired:
        print(f"browser: not done after {LIMIT_S} s", flush=True)
        return 1


def missing() -> list[str]:
    """Programs that are not there."""
    return [name for name in NEEDED if shutil.which(name) is None]


def install() -> None:
    """Debian's packages, where this user may install any."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for line in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *PACKAGES]):
        try:
            subprocess.run(
                ["apt-get", *line], env=environment, timeout=INSTALL_S, check=False, stdout=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"browser: apt-get {line[0]}: {error}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
