"""The API reference: every public name, on the first page that has it, from its docstring."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock._facade import names_of as facade_names
from penstock.errors import MissingExtra

FACADE = "penstock"
MODULES = {
    "penstock.load.torch": "With torch",
    "penstock.load.jax": "With jax",
    "penstock.load": "Loaders",
    "penstock.mix": "Mixing",
    "penstock.order": "Orders",
    "penstock.pack": "Windows",
    "penstock.cook": "Typed samples",
    "penstock.recipe": "Recipes",
    "penstock.check": "Checking",
    "penstock.convert": "Converting",
    "penstock.prepare": "Preparing",
    "penstock.executors": "Executors",
    "penstock.store": "Stores",
    "penstock.abc": "Interfaces for plug-ins",
    "penstock.types": "Data types",
    "penstock.errors": "Errors",
    "penstock.formats.kit": "Writing a format",
    "penstock.testing": "Test suites",
    "penstock.testing.strategies": "Test strategies",
    "penstock.compat.modalities": "Modalities compatibility",
    "penstock.compat.energon": "Energon compatibility",
    "penstock.compat.streaming": "MosaicML Streaming compatibility",
}
"""Module → title of its page."""


@dataclass(frozen=True, slots=True)
class Name:
    """A public name: where it is taken from, and where it is made."""

    module: str
    name: str
    made_at: str
    what: str


def reference_pages() -> tuple[dict[str, str], list[Any]]:
    """Path → Markdown, and the part of the navigation; raises `SystemExit` that lists names without a docstring."""
    pages: dict[str, str] = {}
    seen: dict[str, str] = {}
    undocumented: list[str] = []
    index = ["# API reference\n\n## `import penstock as ps`\n"]
    facade = list(names_of(FACADE, undocumented))
    index.append(_table(facade, lambda one: f"ps.{one.name}.md", "ps."))
    for one in facade:
        seen[one.made_at] = f"ps.{one.name}.md"
        pages[f"reference/ps.{one.name}.md"] = f"---\nsearch: {{boost: 4}}\n---\n\n{_directive(one, level=1)}"
    nav: list[Any] = [
        "reference/index.md",
        {"import penstock as ps": [{f"ps.{one.name}": f"reference/ps.{one.name}.md"} for one in facade]},
    ]
    for module, title in MODULES.items():
        file = f"{module.removeprefix('penstock.')}.md"
        names = list(names_of(module, undocumented))
        for one in names:
            seen.setdefault(one.made_at, f"{file}#{one.made_at}")
        pages[f"reference/{file}"] = _page(module, names, file, seen)
        nav.append({title: f"reference/{file}"})
        index.append(f"## {title}\n\n[`{module}`]({file})\n")
        index.append(_table(names, lambda one: seen[one.made_at], ""))
    if undocumented:
        raise SystemExit("public names without a docstring:\n  " + "\n  ".join(sorted(undocumented)))
    pages["reference/index.md"] = "\n".join(index)
    return pages, nav


def names_of(module: str, undocumented: list[str]) -> Iterator[Name]:
    """The public names of a module, in byte order."""
    try:
        found = importlib.import_module(module)
    except MissingExtra:
        yield from (_name_in_source(module, name, module, name) for name in _public_in(_tree_of(module)))
        return
    own = (name for name, value in vars(found).items() if _made_in(value, module) and not name.startswith("_"))
    for name in sorted(getattr(found, "__all__", None) or own):
        try:
            value = getattr(found, name)
        except MissingExtra:
            yield _name_in_source(module, name, *facade_names(module)[name])
            continue
        if not callable(value) and not inspect.isclass(value):
            continue
        undocumented += [f"{module}.{missing}" for missing in _without_docstring(name, value)]
        made = name if "<locals>" in value.__qualname__ else value.__qualname__  # a decorator made it
        made_at = f"{value.__module__}.{made}"
        yield Name(module, name, made_at, _first_line(value))


def _name_in_source(module: str, name: str, made_in: str, attribute: str) -> Name:
    """Return a name whose module needs a package that isn't installed, from the source of that module."""
    for node in _tree_of(made_in).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == attribute:
            return Name(module, name, f"{made_in}.{attribute}", _first_paragraph(ast.get_docstring(node) or ""))
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == attribute:
                    return _name_in_source(module, name, node.module, alias.name)
    raise SystemExit(f"{made_in} doesn't define {attribute}")


def _tree_of(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    return ast.parse(Path(str(spec and spec.origin)).read_text())


def _public_in(tree: ast.Module) -> list[str]:
    """Return the names in `__all__`, or else all definitions without an underscore."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name) and target.id == "__all__":
            return sorted(ast.literal_eval(node.value))
    made = (node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    return sorted(name for name in made if not name.startswith("_"))


def _made_in(value: Any, module: str) -> bool:
    return (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == module


def _without_docstring(name: str, value: Any) -> Iterator[str]:
    if not inspect.getdoc(value):
        yield name
    for member, made in vars(value).items() if inspect.isclass(value) else ():
        plain = getattr(made, "fget", getattr(made, "__func__", made))
        # The name of a test of a suite is the law that it holds.
        if inspect.isfunction(plain) and not member.startswith(("_", "test_", "pytest_")):
            with contextlib.suppress(TypeError):
                if not inspect.getdoc(getattr(value, member)):
                    yield f"{name}.{member}"


def _first_line(value: Any) -> str:
    return _first_paragraph(inspect.getdoc(value) or "")


def _first_paragraph(text: str) -> str:
    return text.strip().partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def _table(names: list[Name], target: Any, prefix: str) -> str:
    rows = [f"| [`{prefix}{one.name}`]({target(one)}) | {one.what} |" for one in names if one.name]
    return "\n".join(["| name | description |", "|---|---|", *rows, ""]) if rows else ""


def _directive(one: Name, *, level: int = 2) -> str:
    shown = f"ps.{one.name}" if one.module == FACADE else one.name or one.module
    options = f'heading: "{shown}"\n      toc_label: "{shown}"\n      heading_level: {level}'
    return f"::: {one.made_at}\n    options:\n      {options}\n"


def _page(module: str, names: list[Name], file: str, seen: dict[str, str]) -> str:
    """Return the page of a module: its docstring, links to names on other pages, and all other names."""
    parts = [f"# {module}\n"]
    parts.append(ast.get_docstring(_tree_of(module)) or "")
    elsewhere = [one for one in names if not seen[one.made_at].startswith(f"{file}#")]
    if elsewhere:
        parts.append("\nAlso here: " + ", ".join(f"[`{one.name}`]({seen[one.made_at]})" for one in elsewhere) + ".\n")
    return "\n".join([*parts, *(f"\n{_directive(one)}" for one in names if one not in elsewhere)])
