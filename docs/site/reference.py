"""The API reference: every public name, on the first page that has it, from its docstring."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock._facade import names_of as facade_names
from penstock.errors import MissingExtra

FACADE = "penstock"
MODULES = {
    "penstock.load": "Loaders",
    "penstock.load.torch": "PyTorch",
    "penstock.load.jax": "JAX",
    "penstock.mix": "Mixing",
    "penstock.order": "Orders",
    "penstock.pack": "Packers",
    "penstock.cook": "Cook functions",
    "penstock.recipe": "Recipes",
    "penstock.check": "Checks",
    "penstock.convert": "Conversion",
    "penstock.prepare": "Preparation",
    "penstock.verbs": "Commands as functions",
    "penstock.executors": "Executors",
    "penstock.store": "Stores",
    "penstock.abc": "Extension points",
    "penstock.types": "Data types",
    "penstock.errors": "Errors",
    "penstock.formats.kit": "Helpers for format plug-ins",
    "penstock.testing": "Test suites for plug-ins",
    "penstock.testing.strategies": "Hypothesis strategies",
    "penstock.compat.modalities": "Modalities",
    "penstock.compat.energon": "Megatron-Energon",
    "penstock.compat.streaming": "MosaicML Streaming",
}
"""Module → title of its page. The first module that exports a class or function documents it."""

TASKS: dict[str, tuple[str, ...]] = {
    "Open and read": ("open", "head", "info", "find", "diff", "lineage", "report", "penstock.types"),
    "Order and mix": (
        "Shuffle", "Sequential", "Take", "subset", "Skip", "Blend", "Concat", "Stages", "Epochs", "Join", "Map",
        "WithAux", "Balance", "StreamingOrder", "penstock.order", "penstock.mix",
    ),
    "Pack": (
        "Chunk", "BestFit", "Whole", "MegatronBlocks", "FillInTheMiddle", "PackByLength", "PackStream", "penstock.pack",
    ),
    "Load": (
        "Loader", "merge_states", "plan", "explain", "stage", "cache", "penstock.load", "penstock.load.torch",
        "penstock.load.jax",
    ),
    "Prepare and convert": (
        "pack", "index", "prepare", "prepare_media", "status", "convert", "create", "merge", "shuffle", "split",
        "filter", "penstock.prepare", "penstock.convert",
    ),
    "Check and repair": ("verify", "repair", "penstock.check"),
    "Remove data": ("exclude", "purge"),
    "Recipes": ("open_recipe", "open_metadataset", "penstock.recipe"),
    "Run commands from Python": ("penstock.verbs",),
    "Extend": (
        "register_sample_type", "penstock.cook", "penstock.abc", "penstock.formats.kit", "penstock.store",
        "penstock.executors", "penstock.testing", "penstock.testing.strategies",
    ),
    "Errors": ("penstock.errors",),
    "Compat": ("penstock.compat.modalities", "penstock.compat.energon", "penstock.compat.streaming"),
}  # fmt: skip
"""Task → names of the façade, and modules, in the order of the navigation. Names that don't exist are skipped."""

INTRODUCTION = """# API reference

Every public class and function, by task. `ps` is `import penstock as ps`.

The examples run as they are shown, in a directory with these files:

| file | contents |
|---|---|
| `docs.jsonl` | 6 lines with `id`, `lang` and `text` |
| `tokenizer.json` | a small byte-level BPE tokenizer with an EOS token |
| `corpus.pbin`, `code.pbin` | 6 and 4 token documents; document i has i + 5 tokens and ends with the EOS id 0 |
| `chat-mds` | 12 MDS samples with `id` and `text`, in several shards |
| `pictures` | 6 samples in 3 tar shards, prepared for Energon as `CaptioningSample` |
| `films` | 2 samples in one tar shard, each a film of 6 frames and a question, prepared as `VidQASample` |
| `tars` | the shards of `pictures` without metadata |
| `recipe.json`, `metadataset.yaml` | a blend of windows of the two token files; an Energon metadataset of `pictures` |
"""


@dataclass(frozen=True, slots=True)
class Name:
    """A public name: the module that exports it, and the path of its definition."""

    module: str
    name: str
    made_at: str
    summary: str


def reference_pages() -> tuple[dict[str, str], list[Any]]:
    """Return path → Markdown, and the navigation; raise `SystemExit` with all names that lack a docstring or a task."""
    undocumented: list[str] = []
    facade = {one.name: one for one in names_of(FACADE, undocumented)}
    modules = {module: list(names_of(module, undocumented)) for module in MODULES}
    if undocumented:
        raise SystemExit("public names without a docstring:\n  " + "\n  ".join(sorted(undocumented)))
    if missing := sorted({*facade, *modules} - {name for names in TASKS.values() for name in names}):
        raise SystemExit("names without a task in docs/site/reference.py:\n  " + "\n  ".join(missing))
    seen = {one.made_at: f"ps.{one.name}.md" for one in facade.values()}
    pages = {
        f"reference/{seen[one.made_at]}": f"---\nsearch: {{boost: 4}}\n---\n\n{_directive(one, level=1)}"
        for one in facade.values()
    }
    for module, names in modules.items():
        file = f"{module.removeprefix('penstock.')}.md"
        for one in names:
            seen.setdefault(one.made_at, f"{file}#{one.made_at}")
        pages[f"reference/{file}"] = _page(module, names, file, seen)
    results: dict[str, Name] = {}
    for one in facade.values():
        found = [_name_of(made) for made in _results_of(one)]
        parts = [_name_of(part) for made in _results_of(one) for part in _classes_of_fields(made)]
        results |= {made.made_at: made for made in (*found, *parts) if made.made_at not in seen}
        links = ", ".join(f"[`{made.name}`]({seen.get(made.made_at, f'results.md#{made.made_at}')})" for made in found)
        pages[f"reference/ps.{one.name}.md"] += f"\n**Result types:** {links}.\n" if links else ""
    head = "# Result types\n\nClasses of the objects that the functions of `ps` return.\n"
    pages["reference/results.md"] = "\n".join([head, *(_directive(made) for made in results.values())])
    index = [INTRODUCTION]
    nav: list[Any] = ["reference/index.md"]
    for task, members in TASKS.items():
        own = [facade[name] for name in members if name in facade]
        index += [f"## {task}\n", _table(own, lambda one: seen[one.made_at], "ps.")]
        entries = [{f"ps.{one.name}": f"reference/ps.{one.name}.md"} for one in own]
        for module in [name for name in members if name in modules]:
            file = f"{module.removeprefix('penstock.')}.md"
            index += [f"### {MODULES[module]}\n\n[`{module}`]({file})\n"]
            own = [one for one in modules[module] if seen[one.made_at].startswith(f"{file}#")]
            index += [_table(own, lambda one: seen[one.made_at], "")]
            entries.append({MODULES[module]: f"reference/{file}"})
        nav.append({task: entries})
    nav.append({"Result types": "reference/results.md"})
    pages["reference/index.md"] = "\n".join(index)
    return pages, nav


def _results_of(one: Name) -> Iterator[type]:
    """Yield the classes of this package that a function of the façade returns."""
    module, _, name = one.made_at.rpartition(".")
    function = vars(sys.modules.get(module, ast)).get(name)
    if not inspect.isfunction(function):
        return
    for word in re.findall(r"\b[A-Z]\w+", str(function.__annotations__.get("return", ""))):
        made = vars(sys.modules[module]).get(word) or _imported(module, word)
        if inspect.isclass(made) and made.__module__.startswith("penstock.") and made.__module__ != "penstock.abc":
            yield made


def _classes_of_fields(made: type) -> Iterator[type]:
    """Yield the classes of a result's fields that are defined in the same module."""
    for word in re.findall(r"\b[A-Z]\w+", " ".join(map(str, vars(made).get("__annotations__", {}).values()))):
        part = vars(sys.modules[made.__module__]).get(word)
        if inspect.isclass(part) and part.__module__ == made.__module__ and part is not made:
            yield part


def _name_of(made: type) -> Name:
    return Name(made.__module__, made.__name__, f"{made.__module__}.{made.__qualname__}", _first_line(made))


def _imported(module: str, name: str) -> Any:
    """Return what a module imports under a name, also for type checkers only; None if nothing."""
    for node in ast.walk(_tree_of(module)):
        if isinstance(node, ast.ImportFrom) and node.module and name in {alias.name for alias in node.names}:
            with contextlib.suppress(MissingExtra):
                return vars(importlib.import_module(node.module)).get(name)
    return None


def names_of(module: str, undocumented: list[str]) -> Iterator[Name]:
    """Yield the public names of a module, in byte order."""
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
        made = name if "<locals>" in value.__qualname__ else value.__qualname__  # made by a decorator
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
        # The name of a test in a suite describes it.
        if inspect.isfunction(plain) and not member.startswith(("_", "test_", "pytest_")):
            with contextlib.suppress(TypeError):
                if not inspect.getdoc(getattr(value, member)):
                    yield f"{name}.{member}"


def _first_line(value: Any) -> str:
    return _first_paragraph(inspect.getdoc(value) or "")


def _first_paragraph(text: str) -> str:
    return text.strip().partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def _table(names: list[Name], target: Any, prefix: str) -> str:
    rows = [f"| [`{prefix}{one.name}`]({target(one)}) | {one.summary} |" for one in names if one.name]
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
