"""Paths become places at the border: below it no function of a verb takes a path as text, and nothing joins one.

`penstock.store.place` has what stands in their place. A package is held to it from its entry in `BORDERS` on.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "penstock"

BORDERS: dict[str, set[str]] = {
    "reshape": {
        "reshape/chunk:chunk",
        "reshape/filter:_chosen",
        "reshape/filter:filter",
        "reshape/merge:merge",
        "reshape/rows:open_rows",
        "reshape/shuffle:shuffle",
        "reshape/split:split",
    },
}
"""Package → `module:function` of its border: these take what users give, and begin with `place_of` or `dataset_at`."""

ALLOWED: dict[str, str] = {
    "reshape/rows:TokenRows.__init__": "the store says where the file of a run really is",
}
"""`package/module:function` that takes a path as text, or touches one, below the border → the reason."""

PATH_NAMES = {"path", "paths", "target", "source", "sources", "output", "folder", "root", "given", "recipe"}
PATH_CALLS = {"resolve", "resolve_dataset", "absolute", "local_path", "is_url", "within", "real_path", "same_file"}
OS_CALLS = {"listdir", "walk", "scandir", "stat", "lstat", "open", "makedirs", "mkdir", "remove", "unlink", "fspath"}


def functions(package: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """`package/module:function` and its definition; a method is `Class.method`, what is inside belongs to it."""
    for path in sorted((SRC / package).rglob("*.py")):
        module = path.relative_to(SRC).with_suffix("").as_posix().removesuffix("/__init__")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{module}:{node.name}", node
            elif isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                        yield f"{module}:{node.name}.{inner.name}", inner


def texts(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Parameters that take a path as text."""
    for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        kind = "" if one.annotation is None else ast.unparse(one.annotation)
        is_text = "PathLike" in kind or "Given" in kind or "Path" in kind.replace("[", " ").replace("]", " ").split()
        named = one.arg in PATH_NAMES or one.arg.endswith("_path")
        if is_text or (named and "str" in kind.replace("[", " ").split()):
            yield f"takes {one.arg}: {kind}"


def touches(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Calls that join, split, make absolute or look at a path."""
    for one in ast.walk(node):
        if isinstance(one, ast.Call):
            name = ast.unparse(one.func)
            if name.startswith("os.path.") or name in PATH_CALLS or name in {f"os.{call}" for call in OS_CALLS}:
                yield f"calls {name}"


@pytest.mark.parametrize("package", sorted(BORDERS))
def test_below_the_border_there_are_places(package: str) -> None:
    found = {}
    for name, node in functions(package):
        wrong = [] if name in BORDERS[package] else [*texts(node), *touches(node)]
        if wrong and name not in ALLOWED:
            found[name] = wrong
    assert not found, "\n".join(f"{name}: {', '.join(wrong)}" for name, wrong in found.items())


def test_every_exception_is_there_and_has_a_reason() -> None:
    known = {name: node for package in BORDERS for name, node in functions(package)}
    borders = {name for names in BORDERS.values() for name in names}
    assert borders | ALLOWED.keys() <= known.keys()
    assert all(ALLOWED.values())
    assert [name for name in ALLOWED if not [*texts(known[name]), *touches(known[name])]] == []
