"""The table of differences: every row stands in a guide's own table, and means something."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
GUIDES = HERE.parents[1] / "docs" / "guide"
TABLE = tomllib.loads((HERE / "differences.toml").read_text())


@pytest.mark.parametrize("peer", TABLE)
def test_the_guide_shows_each_difference(peer: str) -> None:
    guide = (GUIDES / f"{peer}.md").read_text()
    shown = guide[guide.index("## Differences") :]
    for row in TABLE[peer].get("different", []):
        assert row["guide"] in shown, row
        assert row["why"]
        assert row["tests"]
    assert all(row["why"] and row["tests"] for row in TABLE[peer].get("not_ours", []))


def test_the_guide_shows_what_tests_meet_that_modalities_does_not_distribute() -> None:
    """Of its repository's 99 that apply one fails, `test_conversion_tokens_represented_as_unsigned_ints[4]`."""
    guide = (GUIDES / "modalities.md").read_text().partition("## Differences")[2]
    assert "the data isn't a multiple of the token width" in guide


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("upstream_run", HERE / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "upstream_run", module)
    spec.loader.exec_module(module)
    monkeypatch.delitem(sys.modules, "peers", raising=False)
    return module


def test_what_a_run_is_told_of(run: Any) -> None:
    table = {
        "different": [{"tests": ["test_a.py::meant*", "test_a.py::gone"]}],
        "not_ours": [{"tests": ["test_a.py::inner[1]"]}],
    }
    results = {
        "tests/test_a.py::fine": ["passed", True, ""],
        "tests/test_a.py::meant[1]": ["failed", True, "x"],
        "tests/test_a.py::meant[2]": ["passed", True, ""],
        "tests/test_a.py::wrong": ["failed", True, "ValueError: no"],
        "tests/test_a.py::inner[1]": ["failed", True, "x"],
        "tests/test_a.py::theirs": ["failed", False, "x"],
        "tests/test_a.py::cut": ["unknown", False, "x"],
    }
    line, faults = run.told("a", results, table)
    assert line == "a: 4 apply, 2 pass, 1 differ as the table says (25.0 %)"
    assert faults == [
        "PASSES, and stands in the table: test_a.py::meant[2]",
        "FAILS test_a.py::wrong: ValueError: no",
        "NEVER ENDED test_a.py::cut",
        "NO SUCH TEST: test_a.py::gone",
    ]
    assert run.told("a", {}, {})[1] == ["NO TEST CALLS OURS"]
