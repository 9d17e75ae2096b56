"""Every guarantee of a page has a test that exists."""

from __future__ import annotations

import ast
import functools
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUARANTEES = json.loads((Path(__file__).parent / "guarantees.json").read_text())
"""Page → guarantee → the tests of it."""


@functools.cache
def names_in(file: Path) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, kinds)}


@pytest.mark.parametrize("page", GUARANTEES)
def test_each_guarantee_has_tests_that_exist(page: str) -> None:
    assert len(GUARANTEES[page]) > 3
    for guarantee, tests in GUARANTEES[page].items():
        assert tests, guarantee
        for test in tests:
            file, _, name = test.partition("::")
            assert (ROOT / file).exists(), f"{guarantee}: {file}"
            assert not name or name in names_in(ROOT / file), f"{guarantee}: {test}"


def test_every_guarantee_of_the_security_page_has_tests() -> None:
    rows = [line for line in (ROOT / "SECURITY.md").read_text().splitlines() if line.startswith("| ")]
    guarantees = [row.split("|")[1].strip() for row in rows if not row.startswith("| guarantee")]
    assert len(guarantees) > 15
    assert guarantees == list(GUARANTEES["SECURITY.md"])


def test_guarantees_of_the_guide_on_clusters_are_on_the_page() -> None:
    text = (ROOT / "docs/guide/clusters.md").read_text()
    assert [event for event in GUARANTEES["docs/guide/clusters.md"] if f"\n| {event} | " not in text] == []
