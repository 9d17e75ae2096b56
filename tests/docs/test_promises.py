"""Every promise names a test, and the test is there."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("SECURITY.md", "docs/errors.md", "docs/guide/clusters.md")
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


def test_every_promise_of_the_security_page_names_a_test() -> None:
    rows = [line for line in (ROOT / "SECURITY.md").read_text().splitlines() if line.startswith("| ")]
    promises = [row for row in rows if not row.startswith("| promise")]
    assert len(promises) > 15
    assert [row for row in promises if not FILE.search(row)] == []
