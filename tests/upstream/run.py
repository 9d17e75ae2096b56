"""The peers' own tests, as their source distributions hold them, with Penstock's names in the place of theirs.

`make upstream`, or `python tests/upstream/run.py [peer …]`. Nothing of them is kept: they are downloaded, unpacked in a
temporary folder, and run with the peer's environment of `make interop`. One line a peer says how many apply (they call
something of ours), how many pass, and how many differ as `differences.toml` says. It ends with 1 where another fails,
or where a difference that is named there is none.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "interop"))

import peers  # noqa: E402

_PACKAGES = (
    *("pytest==8.4.1", "pytest-timeout==2.4.0", "msgspec>=0.18", "xxhash>=3.4", "PyYAML>=6", "click>=8.1", "rich>=13"),
    *("zstandard", "brotli", "python-snappy"),
)
"""What the tests and Penstock need, beside the peer's environment: a folder of its own on the path."""


@dataclass(frozen=True, slots=True)
class Suite:
    """One peer's tests.

    Attributes:
        distribution: name and version.
        files: of its folder `tests`.
        helpers: modules of ours for `tests.common`, which the distribution leaves out.
    """

    distribution: str
    files: tuple[str, ...]
    helpers: bool = False


SUITES = {
    "streaming": Suite(
        "mosaicml-streaming==0.13.0",
        (
            *("compression", "eviction", "hashing", "laziness", "local", "mixing", "reader", "registry", "stream"),
            *("streaming", "unsafe_types", "util", "writer"),
        ),
        helpers=True,
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print a line a peer, and give the exit status."""
    parser = argparse.ArgumentParser(description="The peers' own tests on Penstock's names.")
    parser.add_argument("names", nargs="*", choices=[*SUITES, []], help="peers; all by default")
    table = tomllib.loads((HERE / "differences.toml").read_text())
    wrong = 0
    for name in parser.parse_args(arguments).names or SUITES:
        try:
            with tempfile.TemporaryDirectory() as folder:
                line, faults = told(name, _results(name, Path(folder)), table.get(name, {}))
        except (peers.PeerError, OSError, subprocess.SubprocessError) as error:
            line, faults = f"{name}: NOT RUN: {error}", [""]
        print(line, *faults, sep="\n  ", flush=True)
        wrong += bool(faults)
    return int(bool(wrong))


def told(name: str, results: Mapping[str, Any], table: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The line of a suite, and what is wrong.

    Args:
        name: of the peer.
        results: test → outcome, whether it calls something of ours, and the error.
        table: `different` and `not_ours`: rows with patterns of `tests`.
    """
    applies = passes = differs = 0
    faults: list[str] = []
    used: set[str] = set()
    for test, (outcome, is_ours, error) in results.items():
        short = test.removeprefix("tests/")
        not_ours = [one for row in table.get("not_ours", []) for one in row["tests"] if matches(one, short)]
        used.update(not_ours)
        if not is_ours or outcome == "skipped" or not_ours:
            if outcome == "unknown":
                faults.append(f"NEVER ENDED {short}")
            continue
        applies += 1
        known = [one for row in table.get("different", []) for one in row["tests"] if matches(one, short)]
        used.update(known)
        if outcome == "passed":
            passes += 1
            faults += [f"PASSES, and stands in the table: {short}"] if known else []
        elif known:
            differs += 1
        else:
            faults.append(f"FAILS {short}: {error.splitlines()[0] if error else ''}")
    patterns = {one for rows in table.values() for row in rows for one in row["tests"]}
    faults += [f"NO SUCH TEST: {one}" for one in sorted(patterns - used)]
    if not applies:
        faults.append("NO TEST CALLS OURS")
    share = 100 * differs / max(1, applies)
    return f"{name}: {applies} apply, {passes} pass, {differs} differ as the table says ({share:.1f} %)", faults


def matches(pattern: str, test: str) -> bool:
    """Whether a pattern means a test; brackets are no classes of characters."""
    return fnmatch.fnmatchcase(test.replace("[", "("), pattern.replace("[", "("))


def _results(name: str, folder: Path) -> dict[str, Any]:
    """Download, unpack and run; what became of each test."""
    suite, python = SUITES[name], peers.ensure(name)
    packages = peers.VENVS / f"upstream-{name}"
    if not (packages / ".ready").exists():
        shutil.rmtree(packages, ignore_errors=True)
        _run([str(python), "-m", "pip", "install", "--quiet", "--target", str(packages), *_PACKAGES])
        (packages / ".ready").touch()
    download = [str(python), "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    _run([*download, "--dest", str(folder), suite.distribution])
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (tests,) = folder.glob("*/tests")
    (tests / "__init__.py").touch()
    if suite.helpers:
        shutil.copytree(HERE / "helpers", tests / "common")
        (tests / "common" / "__init__.py").touch()
        named = "from tests.common.utils import compressed_local_remote_dir, local_remote_dir  # noqa: F401\n"
        (tests / "conftest.py").write_text(f'{named}MY_BUCKET = R2_URL = GCS_URL = {{"": ""}}\n')
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  daily: ours\n  remote: ours\n  world_size(n): ours\n")
    path = [HERE, tests.parent, peers.STUBS, packages, ROOT / "src"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "UPSTREAM_RESULTS": str(folder / "results.json"),
        "PENSTOCK_CACHE": str(folder / "cache"),
        "TMPDIR": str(folder),
        **dict.fromkeys(("HF_HUB_OFFLINE", "PYTHONDONTWRITEBYTECODE", "OMP_NUM_THREADS"), "1"),
    }
    command = [str(python), "-m", "pytest", "-q", "-c", str(folder / "pytest.ini"), "--rootdir", str(tests.parent)]
    command += ["-p", "no:cacheprovider", "-p", "binding", "--timeout", "240", "--tb", "no"]
    command += ["-m", "not daily and not remote", *(f"tests/test_{one}.py" for one in suite.files)]
    log = folder / "log"
    with log.open("w") as file:
        subprocess.run(command, cwd=tests.parent, env=environment, stdout=file, stderr=file, timeout=3000, check=False)
    if not (folder / "results.json").exists():
        raise peers.PeerError(f"its tests did not run: {log.read_text()[-1500:]}")
    return json.loads((folder / "results.json").read_text())


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise peers.PeerError(f"{command[0]} ended with {done.returncode}: {done.stderr[-1000:]}")


if __name__ == "__main__":
    sys.exit(main())
