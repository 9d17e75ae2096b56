"""Run the black-box tests of an earlier commit against the present source: `python tests/run_blackbox.py REV`.

`make blackbox REV=…` calls it. Further arguments are paths of tests. `tests/internals.py` is the present one, and all
but `tests/` is linked from the checkout.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMAND = ("-m", "pytest", "-p", "tests.progress", "-m", "blackbox", "-n", "2", "--dist", "loadgroup", "--durations=5")


def main(rev: str, *selected: str) -> int:
    """Return the exit status of pytest."""
    with tempfile.TemporaryDirectory(prefix="penstock-blackbox-") as name:
        folder = Path(name)
        archive = subprocess.run(["git", "archive", rev, "tests"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        shutil.copyfile(ROOT / "tests" / "internals.py", folder / "tests" / "internals.py")
        for path in ROOT.iterdir():
            if path.name not in ("tests", ".git", "build", "dist"):
                (folder / path.name).symlink_to(path)
        return subprocess.run([sys.executable, *COMMAND, *selected], cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
