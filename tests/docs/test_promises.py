"""Every guarantee of a page has a test that exists."""

from __future__ import annotations

import ast
import functools
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("docs/guide/clusters.md",)
GUARANTEES = json.loads((Path(__file__).parent / "guarantees.json").read_text())
"""Page → guarantee → the tests of it."""
FILE = re.compile(r"tests/[\w/]+\.py")
NAME = re.compile(r"::(test_\w+|Test\w+)")


def named(page: str) -> list[tuple[str, str | None]]:
    """`(file, function or None)` of each test that a page names; `::name` alone belongs to the file before it."""
    found: list[tuple[str, str | None]] = []
    file = None
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        for match in re.finditer(rf"{FILE.pattern}|{NAME.pattern}", line):
            if match[0].startswith("::"):
                assert file is not None, line
                found.append((file, match[1]))
            else:
                file = match[0]
                found.append((file, None))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_each_test_that_is_named_exists(page: str) -> None:
    places = named(page)
    assert len(places) > 3
    for file, name in places:
        assert (ROOT / file).exists(), f"{page}: {file}"
        if name is not None:
            assert name in names_in(ROOT / file), f"{page}: {file}::{name}"


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
