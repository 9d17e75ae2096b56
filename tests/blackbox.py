"""Which test files are black-box tests: they use public names, the command line and `tests/internals.py`, nothing else.

`tests/conftest.py` gives them the marker `blackbox`, and `tests/test_blackbox.py` checks the lists below.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

TESTS = Path(__file__).parent
SRC = TESTS.parent / "src"
MARKER = "blackbox"

PUBLIC = re.compile(
    r"penstock(\.(__main__|_?notebook|abc|check|compat|convert|cook|errors|executors|formats|formats\.kit|load|load\.jax"
    r"|load\.torch|mix|order|pack|prepare|recipe|store|testing|testing\.\w+|types|verbs"
    r"|compat\.(energon|modalities|streaming)"
    r"|compat\.energon\.(av|cache|dataset_config|epathlib|errors|flavors|media|metadataset|task_encoder|wrappers)(\.\w+)*"
    r"|compat\.modalities\.(dataloader|models)(\.\w+)*"
    r"|compat\.streaming\.(base|multimodal|text|util|vision)(\.\w+)*))?"
)
"""Public modules: those in the API reference, and those with the name of a module of an original package."""

IMPORT = re.compile(r"\bfrom (penstock[\w.]*) import (\([^)]*\)|[^\n;\"']+)")
DOTTED = re.compile(r"(?<![\w.])(?:penstock|ps)(?:\.[A-Za-z_]\w*)+")

FUNCTIONS = {"penstock.check.repair", "penstock.check.verify", "penstock.mix.subset", "penstock.store.resolve"}
"""Public functions with the name of the module that defines them."""

HIDDEN = re.compile(
    r"\.(staged|lock|writing|claim|unfinished|work|next|pieces|replaced)\b(?!\.)|penstock-(files|old|new)|\.kept-|^-new$"
)
"""Names of hidden files, in a string."""

FINDING = re.compile(r"(megatron|pbin|shards|token-files)\.(replaced|unfinished|work)")
"""A code of a finding with the name of a hidden file."""

FOREIGN = {"os", "sys", "threading", "atexit", "self", "cls", "parser", "made"}
"""Objects whose private attributes aren't ours."""

UNIT = (
    *("codec", "cook", "corpus", "executors", "formats", "load", "look", "mix", "order", "pack", "recipe", "store"),
    "view",
)
"""Folders with tests of internal functions, where a file is marked if it qualifies."""

SUITES = ("*/test_*suite*.py", "*/test_golden*.py", "*/conftest.py")
"""Files in these folders that must qualify nevertheless."""


@functools.cache
def is_black_box(path: Path) -> bool:
    """Tell whether the tests of a file are marked."""
    name = path.relative_to(TESTS).as_posix()
    return not is_free(name) or (name not in INTERNAL and not any(_violations(path)))


def is_free(name: str) -> bool:
    """Tell whether a file may use internal names."""
    in_unit_folder = name.startswith(tuple(f"{folder}/" for folder in UNIT))
    return name in INTERNAL or (in_unit_folder and not any(fnmatch(name, suite) for suite in SUITES))


@functools.cache
def violations(path: Path) -> tuple[str, ...]:
    """Return the internal names and hidden file names that a file uses, itself or through other files of tests."""
    return tuple(_violations(path))


def _violations(path: Path) -> Iterator[str]:
    text = path.read_text()
    yield from _imported(text)  # most of those that have any end here
    yield from _dotted(text)
    tree = ast.parse(text)
    yield from _hidden(tree)
    yield from _private(tree, text)
    for helper in _helpers(tree, path):
        yield from (f"{helper.relative_to(TESTS)}: {one}" for one in violations(helper))


def _imported(text: str) -> Iterator[str]:
    """Yield internal names in `from … import …`, also in code that is a string."""
    for module, names in IMPORT.findall(text):
        for name in re.findall(r"(?:^|,)\s*(\w+)", names.strip("()")):
            if not PUBLIC.fullmatch(module) or re.match(r"_(?!_)", name) or not _is_public(f"{module}.{name}"):
                yield f"{module}.{name}"


def _dotted(text: str) -> Iterator[str]:
    """Yield internal modules and their names, spelled in full."""
    for dotted in DOTTED.findall(text):
        name = re.sub(r"^ps\b", "penstock", dotted)
        if not _is_public(name) or re.search(r"\._(?!_)", name):
            yield dotted


def _is_public(dotted: str) -> bool:
    """Tell whether the longest module that a name begins with is public."""
    if dotted in FUNCTIONS:
        return True
    module = "penstock"
    for part in dotted.split(".")[1:]:
        path = SRC.joinpath(*module.split("."), part)
        if not (path.is_dir() or path.with_suffix(".py").exists()):
            break
        module += f".{part}"
    return PUBLIC.fullmatch(module) is not None


def _hidden(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if HIDDEN.search(text) and not FINDING.fullmatch(text):
            yield text


def _private(tree: ast.Module, text: str) -> Iterator[str]:
    """Yield private attributes of objects that the file doesn't define."""
    own = set(re.findall(r"(?:def |class |self\.)(_\w+)", text))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not re.match(r"_(?!_)", node.attr) or node.attr in own:
            continue
        if not (isinstance(node.value, ast.Name) and node.value.id in FOREIGN):
            yield ast.unparse(node)


def _helpers(tree: ast.Module, path: Path) -> Iterator[Path]:
    """Yield the other files of tests that a file imports, except `tests/internals.py`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tests":
            folder = TESTS.joinpath(*node.module.split(".")[1:])
            for one in (folder.with_suffix(".py"), *(folder / f"{alias.name}.py" for alias in node.names)):
                if one.exists() and one not in (path, TESTS / "internals.py", TESTS / "blackbox.py"):
                    yield one


INTERNAL = frozenset(
    f"{folder}/{name}.py".removeprefix("./")
    for folder, names in {
        ".": (
            "test_architecture test_border test_buffers test_columns test_digest test_facade test_index "
            "test_local_paths test_numbers test_one_definition test_optional test_places test_pool "
            "test_recycled test_secrets test_settings test_tree test_wrappers"
        ),
        "abc": "test_seams",
        "cluster": "test_ray",
        "compat": "test_nothing_passed_over test_urls",
        "compat/streaming": "test_moved_scripts",
        "crash": "test_transaction",
        "docs": "test_scale test_site",
        "engine": "test_journals test_parts",
        "prepare/media": "test_rows",
        "prepare/tokens": (
            "test_chat_mask test_documents test_driver test_engines test_fill_in test_inputs test_join test_select"
        ),
        "reshape": "test_proof_cost test_reorder test_rows",
        "strangers/scripts": "threads_being_started",
    }.items()
    for name in names.split()
)
"""Files elsewhere that test internal functions, or the tests themselves; and helpers of such tests."""
