"""`bench/run.py --against`: runs in pairs, the table and the exit status, with two small fake versions."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"

MAIN = """import sys
from penstock import __version__
def main():
    if sys.argv[1] != "log":
        raise SystemExit(f"no such command: {sys.argv[1]}")
    open(sys.argv[2], "a").write(__version__ + " ")
"""


@pytest.fixture
def against(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Return the module, for a repository with version `old` committed and version `new` in the working tree."""
    package = tmp_path / "repository" / "src" / "penstock"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text(MAIN)
    (package / "__init__.py").write_text("__version__ = 'old'\n")
    git = (
        "git",
        "-C",
        str(tmp_path / "repository"),
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "commit.gpgsign=false",
    )
    for command in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "old")):
        subprocess.run([*git, *command], check=True)
    (package / "__init__.py").write_text("__version__ = 'new'\n")

    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCH))
    module = importlib.import_module("against")
    monkeypatch.setattr(module, "ROOT", tmp_path / "repository")
    monkeypatch.setattr(module, "DATA", tmp_path / "data")
    yield module
    for name in set(sys.modules) - before:
        if BENCH in Path(getattr(sys.modules[name], "__file__", None) or "/").parents:
            del sys.modules[name]


def log(path: Path) -> Callable[[Path], list[object]]:
    python = "from penstock.__main__ import main; main()"
    return lambda out: [sys.executable, "-c", python, "log", path]


def run(*arguments: str) -> int:
    return importlib.import_module("run").main(["--against", "HEAD", *arguments])


def give_times(monkeypatch: pytest.MonkeyPatch, against: ModuleType, new: list[float], old: list[float]) -> None:
    """Replace the measured wall times of all runs; the CPU times are 1 s."""
    times = {"new": iter([9.0, *new]), "old": iter([9.0, *old])}
    measure = against.command_cost

    def cost(command: list[object], variables: Mapping[str, str]) -> object:
        measure(command, variables)
        version = "new" if variables["PYTHONPATH"] == str(against.ROOT / "src") else "old"
        return against.Cost(next(times[version]), 1.0)

    monkeypatch.setattr(against, "command_cost", cost)


def test_versions_run_in_turn_after_one_run_each(
    against: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(against, "ROWS", {"fake": {"a row": log(tmp_path / "log")}})
    give_times(monkeypatch, against, new=[1, 2, 1, 4, 1], old=[1, 1.9, 2, 1, 0.8])
    assert run("fake") == 0
    assert (tmp_path / "log").read_text() == "new old " * 6
    row = capsys.readouterr().out.splitlines()[1]
    assert row.split("  ")[0] == "fake: a row"
    assert row.split()[3:] == ["1.000", "s", "1.000", "s", "0.95", "(0.25–2.00)", "1.00", "(1.00–1.00)", "pass"]
    assert list((tmp_path / "data").iterdir()) == []


def test_a_slow_row_fails(
    against: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(against, "ROWS", {"slow": {"a row": log(tmp_path / "log")}})
    give_times(monkeypatch, against, new=[1.0] * 7, old=[0.94] * 7)
    assert run("--pairs", "7") == 1
    assert (tmp_path / "log").read_text() == "new old " * 8
    _, row, last = capsys.readouterr().out.splitlines()
    assert row.endswith("FAIL")
    assert last.startswith("1 failed.")


def test_a_row_that_the_other_commit_lacks_is_not_comparable(
    against: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = against.ROOT / "src" / "penstock"
    (package / "__main__.py").write_text(MAIN.replace('!= "log"', 'not in ("log", "added")'))

    def added(out: Path) -> list[object]:
        command = log(tmp_path / "log")(out)
        return [*command[:3], "added", command[4]]

    monkeypatch.setattr(
        against, "ROWS", {"verbs": {"added": added, "removed": lambda out: [sys.executable, "-c", "1/0"]}}
    )
    assert run() == 1
    out = capsys.readouterr().out
    assert "not comparable: no such command: added" in " ".join(out.split())
    assert "ZeroDivisionError" in out
    assert "FAIL" in out


@pytest.mark.parametrize("arguments", [("--pairs", "4"), ("loader",)])
def test_too_few_pairs_and_unknown_rows_are_errors(against: ModuleType, arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(*arguments)


def test_an_unknown_commit_is_an_error(against: ModuleType) -> None:
    with pytest.raises(SystemExit, match="can't read the source of no-such-commit"):
        importlib.import_module("run").main(["--against", "no-such-commit"])
