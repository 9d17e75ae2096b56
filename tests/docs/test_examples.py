"""The programs of `examples/`: short, named in their guide, and run by an interop test (`make interop` runs them)."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name != "toy.py")
INTEROP = "".join(path.read_text() for path in sorted((ROOT / "tests" / "interop").glob("test_*.py")))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program(program: Path) -> None:
    assert len(program.read_text().splitlines()) < 120
    assert f"(../../examples/{program.name})" in (ROOT / "docs" / "guide" / "frameworks.md").read_text()
    assert f'"{program.name}"' in INTEROP


def test_there_is_one_for_each_framework() -> None:
    assert len(PROGRAMS) == 8
