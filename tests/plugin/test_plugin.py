"""A format in a package of its own, written by what CONTRIBUTING and `penstock.abc` say alone.

It is installed for these tests into a folder, and found there by its entry point. What is run sees nothing else of it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from penstock.errors import ConfigError

PACKAGE = Path(__file__).parent / "package"
NAME = "penstock_example_format"
TOKENIZER = Path(__file__).parents[1] / "golden" / "modalities" / "tokenizers" / "bpe2" / "tokenizer.json"
TIMEOUT_S = 300


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the package and what an installer says of it."""
    target = tmp_path_factory.mktemp("installed")
    if importlib.util.find_spec("setuptools") and importlib.util.find_spec("pip"):
        source = tmp_path_factory.mktemp("source") / "package"
        shutil.copytree(PACKAGE, source)  # a build leaves its files in there
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index"]
        pip += ["--no-deps", "--no-build-isolation", "--no-compile", "--target", str(target), str(source)]
        subprocess.run(pip, check=True, timeout=TIMEOUT_S, capture_output=True)
    else:
        _lay_down(target)
    return target


def _lay_down(target: Path) -> None:
    """What an installer does, where there is none."""
    shutil.copytree(PACKAGE / NAME, target / NAME)
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    info = target / f"{NAME}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def environment(installed: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}


def run(installed: Path, *arguments: str, cwd: Path) -> str:
    """What a Python sees that has the package; what it prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment(installed),
        timeout=TIMEOUT_S,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_it_holds_the_laws_of_formats(installed: Path, tmp_path: Path) -> None:
    shutil.copy(PACKAGE / "records_suite.py", tmp_path)
    said = run(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "records_suite.py", cwd=tmp_path)
    assert "passed" in said
    assert "skipped" not in said


def test_its_executor_holds_the_laws(installed: Path, tmp_path: Path) -> None:
    shutil.copy(PACKAGE / "threads_suite.py", tmp_path)
    said = run(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "threads_suite.py", cwd=tmp_path)
    assert "8 passed, 4 skipped" in said  # threads do not die, and nothing is sent to other processes


def test_commands_know_it(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f'{{"n":{n},"text":"text {n}"}}\n' for n in range(20)))
    run(installed, "-m", "penstock", "convert", "a.jsonl", "a.records", cwd=tmp_path)
    told = json.loads(run(installed, "-m", "penstock", "info", "a.records", "--json", cwd=tmp_path))
    assert (told["format"], told["samples"], told["manifest"]["num_samples"]) == ("records", 20, 20)
    run(installed, "-m", "penstock", "verify", "a.records", "--depth", "full", cwd=tmp_path)
    run(installed, "-m", "penstock", "convert", "a.records", "b.jsonl", cwd=tmp_path)
    assert (tmp_path / "b.jsonl").read_bytes() == (tmp_path / "a.jsonl").read_bytes()


def test_commands_know_its_executor(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f'{{"text":"text {n}"}}\n' for n in range(20)))
    given = ("--tokenizer", str(TOKENIZER), "--eos", "<|eod|>", "--engine", "tokenizers")
    for executor in ("inline", "threads"):
        pack = ("pack", "a.jsonl", "-o", f"{executor}.pbin", *given, "--executor", executor)
        run(installed, "-m", "penstock", *pack, cwd=tmp_path)
    assert (tmp_path / "threads.pbin").read_bytes() == (tmp_path / "inline.pbin").read_bytes()
    shown = [sys.executable, "-m", "penstock", "pack", "a.jsonl", "-o", "b.pbin", *given, "--executor", "thread"]
    done = subprocess.run(
        shown, cwd=tmp_path, env=environment(installed), timeout=TIMEOUT_S, text=True, capture_output=True, check=False
    )
    assert done.returncode == ConfigError.exit_status, done.stderr
    assert "Did you mean 'threads'?" in done.stderr
    assert not (tmp_path / "b.pbin").exists()


def test_it_is_small() -> None:
    lines = [line for line in (PACKAGE / NAME / "__init__.py").read_text().splitlines() if line]
    assert len(lines) <= 175
    imported = {line.split()[1] for line in lines if line.startswith("from penstock")}
    assert imported <= {
        "penstock.abc",
        "penstock.errors",
        "penstock.formats",
        "penstock.types",
    }  # of the last but one, the kit
