"""Make a release, and test it outside the checkout.

    make release VERSION=0.3.0          # dry run: archives in dist/; the tree doesn't change
    make release VERSION=0.3.0 WRITE=1  # then also write the version and CHANGELOG.md, and remove the fragments

A copy of the tracked files gets the version and the compiled CHANGELOG.md. An sdist is built from it, and a wheel from
the sdist. Their files are checked. Then, in an empty virtual environment and another directory, the wheel is installed
and imported, and `penstock demo`, the examples of the README and the smoke tests run. Archives that pass are copied to
`dist/`.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import archives
import changelog
from stubs import stubs

ROOT = Path(__file__).resolve().parent.parent
VERSION_FILE = "src/penstock/__init__.py"
TORCH = "torch==2.13.0"
_STATED = re.compile(r'^__version__ = "(.*)"$', re.M)
VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?")  # as PEP 440 writes it
_WHERE = (
    "import sys, penstock, importlib.metadata\n"
    "print(penstock.__file__, penstock.__version__, importlib.metadata.version('penstock-data'))"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make a release; exit with a status other than 0 at the first failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", help="version of the release [default: that of the package]")
    parser.add_argument("--extra", default="tokenize", help="extra to install for the demo and the smoke tests")
    parser.add_argument("--write", action="store_true", help="write version and CHANGELOG.md, remove the fragments")
    given = parser.parse_args(arguments)
    version = given.version or stated_version(ROOT)
    if not VERSION.fullmatch(version):
        parser.error(f"{version!r} is not a version, such as 0.3.0 or 0.3.0.dev0")
    if given.write and _run("git", "status", "--porcelain", folder=ROOT, quiet=True):
        parser.error("commit or stash your changes first: a release is made from commits")
    release(version, given.extra)
    if given.write:
        prepare(ROOT, version, datetime.date.today().isoformat())
        print(f"release: written. Review `git diff`, commit, and tag the commit v{version}")
    return 0


def release(version: str, extra: str) -> None:
    """Build and test the archives, and copy them to `dist/`."""
    with tempfile.TemporaryDirectory(prefix="penstock-release-") as name:
        folder = Path(name)
        copy = folder / "penstock"
        with step("a clean copy, CHANGELOG.md"):
            names = copy_tracked(ROOT, copy)
            prepare(copy, version, datetime.date.today().isoformat())
            tracked = [name for name in names if (copy / name).exists()]
        with step("sdist and wheel"):
            sdist, wheel = build(copy, folder, version)
        findings = [
            *archives.sdist_findings(archives.sdist_names(sdist), tracked),
            *archives.wheel_findings(archives.wheel_names(wheel), [*tracked, *stubs(copy)], version),
        ]
        if findings:
            raise SystemExit("\n".join(findings))
        try_out(sdist, wheel, version, folder, extra)
        (ROOT / "dist").mkdir(exist_ok=True)
        for archive in (sdist, wheel):
            shutil.copyfile(archive, ROOT / "dist" / archive.name)
            print(f"release: dist/{archive.name}, {archive.stat().st_size / 1e6:.2f} MB")


def stated_version(root: Path) -> str:
    """Return the version of the package."""
    found = _STATED.search((root / VERSION_FILE).read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit(f"{VERSION_FILE} has no __version__")
    return found[1]


def copy_tracked(root: Path, target: Path) -> list[str]:
    """Copy the tracked files, with uncommitted changes; return their paths."""
    names = _run("git", "ls-files", "-z", folder=root, quiet=True).split("\0")
    names = [name for name in names if name and (root / name).exists()]
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target / name)
    return names


def prepare(root: Path, version: str, date: str) -> None:
    """Write the version, compile the fragments, and remove them."""
    path, changes = root / "CHANGELOG.md", root / "changes"
    text = changelog.compiled(path.read_text(encoding="utf-8"), version, date, changelog.fragments(changes))
    path.write_text(text, encoding="utf-8")
    shutil.rmtree(changes, ignore_errors=True)
    stating = root / VERSION_FILE
    stating.write_text(_STATED.sub(f'__version__ = "{version}"', stating.read_text(encoding="utf-8")), encoding="utf-8")


def build(copy: Path, folder: Path, version: str) -> tuple[Path, Path]:
    """Build an sdist, and a wheel from it, which fails if the sdist lacks a file."""
    python = environment(folder / "build")
    _pip(python, "build")
    _run(python, "-m", "build", "--outdir", str(folder / "out"), str(copy), folder=folder, quiet=True)
    stem = f"penstock_data-{version}"
    return folder / "out" / f"{stem}.tar.gz", folder / "out" / f"{stem}-py3-none-any.whl"


def try_out(sdist: Path, wheel: Path, version: str, folder: Path, extra: str) -> None:
    """Test the wheel in an empty environment, from a directory outside the checkout."""
    away = folder / "away"
    away.mkdir()
    with step("install and import in an empty environment"):
        python = environment(folder / "empty")
        _pip(python, str(wheel))
        where, *versions = _run(python, "-c", _WHERE, folder=away, quiet=True).split()
        if not Path(where).is_relative_to(folder / "empty") or versions != [version, version]:
            raise SystemExit(f"imported from {where} as {versions}, expected {version} of {folder / 'empty'}")
        _run(str(Path(python).parent / "penstock"), "--version", folder=away, quiet=True)
    with step("demo"):
        _pip(python, f"{wheel}[{extra}]")
        _run(str(Path(python).parent / "penstock"), "demo", "demo", folder=away)
    with step("smoke"):
        _pip(python, "pytest", "hypothesis")
        with tarfile.open(sdist) as archive:
            archive.extractall(folder / "sdist", filter="data")
        tests = folder / "sdist" / sdist.name.removesuffix(".tar.gz") / "tests"
        _run(python, "-m", "pytest", str(tests / "smoke"), "--without-extras", "-rs", "--durations=5", folder=away)
    with step("README"):
        _pip(python, f"{wheel}[all]", TORCH)
        _run(python, "-m", "pytest", str(tests / "docs" / "test_docs.py"), "-k", "README", folder=away)


def environment(folder: Path) -> str:
    """Create a virtual environment, and return its Python."""
    venv.create(folder, with_pip=True, symlinks=True)
    return str(folder / "bin" / "python")


@contextmanager
def step(name: str) -> Iterator[None]:
    """Print the name of a step, and the time that it took."""
    print(f"release: {name} …", flush=True)
    started = time.monotonic()
    yield
    print(f"release: {name}: {time.monotonic() - started:.0f} s", flush=True)


def _pip(python: str, *what: str) -> None:
    _run(python, "-m", "pip", "install", "--quiet", *what, quiet=True)


def _run(*command: str, folder: Path | None = None, quiet: bool = False) -> str:
    """Run a command without variables of Python, Penstock or git; return its output if `quiet`."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PENSTOCK", "GIT_"))}
    out = subprocess.PIPE if quiet else None
    done = subprocess.run(command, cwd=folder, env=environ, stdout=out, stderr=subprocess.STDOUT if quiet else None)
    output = (done.stdout or b"").decode(errors="replace")
    if done.returncode:
        raise SystemExit(f"{output}\n`{' '.join(command)}` failed with status {done.returncode}")
    return output


if __name__ == "__main__":
    sys.exit(main())
