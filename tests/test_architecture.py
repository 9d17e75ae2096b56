"""The structure of the code: layers, cycles, who may call what, and what an import costs."""

from __future__ import annotations

import ast
import functools
import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.formats import BUILT_IN

pytestmark = pytest.mark.xdist_group("architecture")  # one process parses the source

SRC = Path(__file__).parent.parent / "src"

LAYERS: dict[str, int] = {
    "abc": 0,
    "types": 0,
    "errors": 0,
    "_facade": 0,
    "_optional": 0,
    "_printable": 0,
    "_secrets": 0,
    "_settings": 0,
    "_digest": 0,
    "_tokens": 0,
    "_arrays": 0,
    "_naming": 0,
    "_tree": 0,
    "_keywords": 0,
    "_kinds": 0,
    "_access": 0,
    "_regular": 0,
    "_limits": 0,
    "_threads": 0,
    "node": 0,
    "store": 1,
    "codec": 1,
    "formats": 2,
    "mix": 3,
    "cook": 3,
    "order": 3,
    "pack": 3,
    "executors": 3,
    "engine": 4,
    "recipe": 4,
    "load": 4,
    "prepare": 5,
    "reshape": 5,
    "check": 5,
    "convert": 5,
    "compat": 6,
    "view": 6,
    "look": 6,
    "verbs": 7,
    "cli": 8,
    "__main__": 9,
    "testing": 9,
}
"""Top module or package → layer. Imports go down only; between packages of one layer there are none."""

BESIDE: dict[tuple[str, str], str] = {
    ("store", "codec"): "a local copy is checked by the hashes that an index states",
    ("mix", "order"): "mixing is arithmetic over the same blocks and permutations",
    ("cook", "mix"): "a cook function gets the auxiliary stores of what is cooked",
    ("view", "look"): "pages show what find and diff found",
}
"""Imports between packages of one layer → the reason."""

DOORS: dict[str, set[str]] = {
    "tokens": {
        *("common", "folder.files", "folder.index", "folder.side", "joined", "writer"),
        *("pbin.index", "pbin.layout", "pbin.source", "pbin.writer"),
    },
    "shards": {"files", "find_index", "index_json", "merge", "side", "source", "writer"},
    "samples": {
        "media_index",
        "sqlite",
        "folder.files",
        "folder.source",
        "folder.writer",
        "webdataset.dataset_yaml",
        "webdataset.details",
        "webdataset.find",
        "webdataset.manifest",
        "webdataset.members",
        "webdataset.nvmeta",
        "webdataset.sample_types",
        "webdataset.shards",
        "webdataset.source",
        "webdataset.splits",
        "webdataset.tar_write",
        "webdataset.key_index",
        "webdataset.sqlite_index",
        "webdataset.typed",
        "webdataset.writer",
    },
    "tables": {"arrow", "hf", "lines", "parquet"},
    "jsonl": {"build", "decompress", "energon", "index", "scan", "source", "text"},
}
"""Family of formats → its modules that others may import."""

PURE = {"order", "pack"}
PURE_MAY_IMPORT = {"numpy", "xxhash"} | set(sys.stdlib_module_names)

HEAVY = (
    "torch",
    "jax",
    "ray",
    "zarr",
    "PIL",
    "tokenizers",
    "gigatoken",
    "transformers",
    "zstandard",
    "hypothesis",
    "pytest",
    "starlette",
    "uvicorn",
)
TORCH_ONLY_IN = ("penstock.load.torch", "penstock.load.sequence", "penstock.load.device", "penstock.compat")
VIEW_ONLY_IN = ("penstock.view.pages",)
COMMANDS_OF_COMPAT = ("penstock.compat.modalities.commands",)
"""Packages of the command line: they import no torch, although the classes next to them do."""
JAX_ONLY_IN = ("penstock.load.jax", "penstock.compat")

MAY_IMPORT_BY_NAME: dict[str, str] = {
    "penstock._facade": "names at first use; that a package hands them on is no arrow",
    "penstock._optional": "packages of others",
    "penstock.formats": "the registry's table",
    "penstock._tree": "what a notebook shows, which is drawn above all that it shows",
    "penstock.formats._registry": "the same table: a format's module under its name alone",
    "penstock.formats.samples.webdataset.sample_types": "sample types of others, by the name in a dataset.yaml",
    "penstock.recipe.code": "code of others, by the name in a recipe",
    "penstock.compat.namespace": "the table of re-exported names",
    "penstock.compat.modalities.registry": "Modalities' own registry, where it is installed",
    "penstock.compat.streaming.checks": "packages of others",
    "penstock.cli.main": "the table of commands",
    "penstock.cli.energon": "the table of Energon's commands",
    "penstock.executors.worker": "what a worker process is told to import before its first task",
}
"""Module that imports what a value names → the reason. Literal names are imports like others."""

MAY_UNPICKLE: dict[str, str] = {
    "penstock.load.messages": "what a worker process of its own sends back",
    "penstock.load.processes": "what its parent gives a worker process",
    "penstock.executors.messages": "what crosses between a process and its own workers",
    "penstock.codec.tensor_files": "the error of torch, which unpickles tensors and plain values alone",
    "penstock.codec.fields._pickled": "columns of pickles, written as the original does and read only with trust",
}
"""Module → the reason."""

DURABLE_CALLS = {"fsync", "fdatasync", "rename", "renames", "replace", "link"}


@functools.cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found: dict[str, Path] = {}
    for path in sorted((SRC / "penstock").rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    assert len(found) > 20
    return found


@functools.cache
def trees() -> dict[str, tuple[ast.Module, tuple[ast.AST, ...]]]:
    """Parse every module: its syntax tree, and all nodes of the tree."""
    gc.disable()  # it would look at a million new nodes again and again
    try:
        parsed = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in modules().items()}
        return {name: (tree, tuple(ast.walk(tree))) for name, tree in parsed.items()}
    finally:
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def drop_trees() -> Iterator[None]:
    """Free the trees after the last test of this module: they take half a gigabyte."""
    yield
    trees.cache_clear()


def tree_of(name: str) -> ast.Module:
    return trees()[name][0]


def nodes_of(name: str) -> tuple[ast.AST, ...]:
    return trees()[name][1]


@functools.cache
def imports_of(name: str) -> tuple[str, ...]:
    """Return the names that a module imports, in functions too. `from a import b` is `a.b` if that is a module."""
    return tuple(_imports(name))


def _imports(name: str) -> Iterator[str]:
    for node in nodes_of(name):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import in line {node.lineno}"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules() else str(node.module)
    yield from (imported for imported in _by_call(name) if imported is not None)


def _by_call(name: str) -> Iterator[str | None]:
    """What a module imports by `import_module`; None where a value names it."""
    for node in nodes_of(name):
        if isinstance(node, ast.Call) and _last_name(node.func) == "import_module":
            yield _literal(name, node.args[0])


def _last_name(node: ast.expr) -> str:
    """Return `c` for `c` and for `a.b.c`, and the empty string for other expressions."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _literal(name: str, node: ast.expr) -> str | None:
    """What an expression of a module is, where it is a string or a constant of the module that is one."""
    if isinstance(node, ast.Name):
        for line in tree_of(name).body:
            if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == node.id:
                return _literal(name, line.value)
    return node.value if isinstance(node, ast.Constant) else None


def top(name: str) -> str:
    """`penstock.formats.tokens.pbin` → `formats`; the façade itself → the empty name."""
    return name.partition(".")[2].partition(".")[0]


def inside(name: str, places: tuple[str, ...]) -> bool:
    return any(name == place or name.startswith(place + ".") for place in places)


def ours(name: str) -> Iterator[str]:
    return (one for one in imports_of(name) if one.partition(".")[0] == "penstock")


# --- layers ----------------------------------------------------------------------------------------------------------


def test_every_module_has_a_layer() -> None:
    assert {top(name) for name in modules()} - {""} == LAYERS.keys()


def test_imports_go_down() -> None:
    upward: list[str] = []
    for name in modules():
        here = top(name)
        if here == "":
            continue  # the façade delivers names of every layer, and nothing imports it except for its version
        for other in ours(name):
            there = top(other)
            if there in ("", here):
                continue
            # Layer 0 is one layer; the cycles test keeps it in order.
            down = LAYERS[there] < LAYERS[here] or LAYERS[here] == 0
            if not down and (here, there) not in BESIDE:
                upward.append(f"{name} (layer {LAYERS[here]}) imports {other} (layer {LAYERS[there]})")
    assert upward == []


def test_only_the_version_is_taken_from_the_facade() -> None:
    for name in modules():
        for node in nodes_of(name):
            if isinstance(node, ast.ImportFrom) and node.module == "penstock":
                taken = {alias.name for alias in node.names if f"penstock.{alias.name}" not in modules()}
                assert taken <= {"__version__"}, f"{name} takes {taken} from the façade"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "penstock":
                assert node.attr == "__version__", f"{name} takes penstock.{node.attr} from the façade"


def test_every_exception_is_used_and_has_a_reason() -> None:
    used = {(top(name), top(other)) for name in modules() for other in ours(name)}
    assert BESIDE.keys() <= used
    assert all(LAYERS[here] == LAYERS[there] for here, there in BESIDE)
    assert all(BESIDE.values())
    assert all(MAY_IMPORT_BY_NAME.values())
    assert MAY_IMPORT_BY_NAME.keys() == {name for name in modules() if None in _by_call(name)}


def test_what_may_be_asked_for_is_a_seam() -> None:
    """Public Protocols that a plug-in may add stand in one module; what others ask of each other has other names."""
    found = {
        name
        for name in modules()
        for node in nodes_of(name)
        if isinstance(node, ast.ClassDef) and node.name.startswith("Supports")
    }
    assert found == {"penstock.abc.powers"}


def test_formats_do_not_know_each_other() -> None:
    """A format imports its family's helpers, and what stands beside the registry; never another format."""
    places = {target.partition(":")[0]: name for name, target in BUILT_IN.items()}
    for name in modules():
        here = next((place for place in places if inside(name, (place,))), None)
        for other in ours(name) if here else ():
            there = next((place for place in places if inside(other, (place,))), here)
            assert there == here, f"{name} imports another format: {other}"


def test_families_of_formats_do_not_know_each_other() -> None:
    for name in modules():
        family = name.split(".")[2:3]
        for other in ours(name) if inside(name, ("penstock.formats",)) and family else ():
            there = other.split(".")
            if there[:2] == ["penstock", "formats"] and len(there) > 2 and there[2] in DOORS:
                assert there[2:3] == family, f"{name} imports another family: {other}"


def test_families_of_formats_are_entered_by_their_doors() -> None:
    used: dict[str, set[str]] = {family: set() for family in DOORS}
    for name in modules():
        for other in () if inside(name, ("penstock.formats",)) else ours(name):
            parts = other.split(".")
            if parts[:2] == ["penstock", "formats"] and len(parts) > 3:
                used[parts[2]].add(".".join(parts[3:]))
    assert used == DOORS
    for family, doors in DOORS.items():
        page = ast.get_docstring(tree_of(f"penstock.formats.{family}")) or ""
        assert [door for door in sorted(doors) if f"`{door}`" not in page] == [], (
            f"the page of {family} names its doors"
        )


def test_arithmetic_imports_only_the_seams() -> None:
    for name in modules():
        if top(name) not in PURE:
            continue
        for other in imports_of(name):
            package = other.partition(".")[0]
            if package == "penstock":
                assert top(other) == top(name) or LAYERS[top(other)] == 0, f"{name} imports {other}"
            else:
                assert package in PURE_MAY_IMPORT, f"{name} imports {other}"


def test_nothing_imports_testing() -> None:
    for name in modules():
        if top(name) != "testing":
            assert not [
                other for other in imports_of(name) if inside(other, ("penstock.testing", "hypothesis", "pytest"))
            ]


def test_no_cycles() -> None:
    # Importing a module imports its packages too, but those only hand names on: they are edges only where named.
    graph = {name: {other for other in ours(name) if other in modules() and other != name} for name in modules()}
    graph["penstock"] = set()
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join((*path[path.index(name) :], name))
        if name in done:
            return
        for other in sorted(graph[name]):
            walk(other, (*path, name))
        done.add(name)

    for name in graph:
        walk(name, ())


# --- who may call what -----------------------------------------------------------------------------------------------


def test_one_place_makes_bytes_durable() -> None:
    durable = {f"penstock.store.{name}" for name in ("local", "_local_staged", "transaction")}
    for name in modules():
        if name in durable | {"penstock.testing.faults"}:
            continue
        for node in nodes_of(name):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in DURABLE_CALLS:
                target = ast.unparse(node.func.value)
                assert target.split(".")[-1] not in ("os", "_os", "shutil"), f"{name}:{node.lineno} calls {target}"
                # str.replace and dataclasses.replace take two arguments or keywords; Path.replace takes one.
                path_like = len(node.args) == 1 and not node.keywords and node.func.attr in ("replace", "rename")
                assert not path_like, f"{name}:{node.lineno} renames a file"


def test_nobody_unpickles() -> None:
    for name in modules():
        taken = {one for one in imports_of(name) if one in ("pickle", "dill", "cloudpickle", "marshal", "shelve")}
        allowed = {"pickle"} if top(name) == "testing" or name in MAY_UNPICKLE else set()
        assert taken <= allowed, f"{name} imports {taken}"
        for node in nodes_of(name):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), name
                assert node.value.value is False, f"{name}:{node.value.lineno} allows pickles"


def test_no_code_from_data() -> None:
    for name in modules():
        for node in nodes_of(name):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile", "__import__"), f"{name}:{node.lineno}"


def test_only_the_command_line_prints() -> None:
    for name in modules():
        if top(name) == "cli":
            continue
        for node in nodes_of(name):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{name}:{node.lineno} prints"


def test_assert_is_for_tests() -> None:
    for name in modules():
        if top(name) != "testing":
            found = [node.lineno for node in nodes_of(name) if isinstance(node, ast.Assert)]
            assert not found, f"{name}: assert in line {found}"


def test_nothing_is_left_for_later() -> None:
    for name, path in modules().items():
        text = path.read_text(encoding="utf-8")
        for word in ("TODO", "FIXME", "XXX", "NotImplementedError", "not yet supported"):
            assert word not in text, f"{name} says {word}"


# --- what an import costs --------------------------------------------------------------------------------------------


def loaded_after(code: str) -> set[str]:
    """Top modules in `sys.modules` of a fresh interpreter after `code`."""
    script = f"{code}\nimport json, sys\nsys.stderr.write(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    return {name.partition(".")[0] for name in json.loads(done.stderr)}


def test_importing_penstock_costs_nothing() -> None:
    slow = {"numpy", "msgspec", "yaml", "rich", "click", "xxhash", "concurrent", "logging", "threading"}
    assert not loaded_after("import penstock") & {*slow, *HEAVY}


def test_importing_everything_loads_nothing_optional() -> None:
    names = [
        name
        for name in modules()
        if inside(name, COMMANDS_OF_COMPAT)
        or not inside(name, (*TORCH_ONLY_IN, *JAX_ONLY_IN, *VIEW_ONLY_IN, "penstock.testing"))
    ]
    assert not loaded_after("\n".join(f"import {name}" for name in names if not name.endswith("__main__"))) & {*HEAVY}


def test_help_does_not_load_numpy() -> None:
    lines = [
        "import contextlib, sys",
        "from penstock.cli.main import main",
        "sys.argv = ['penstock', '--help']",
        "with contextlib.suppress(SystemExit):",
        "    main()",
    ]
    loaded = loaded_after("\n".join(lines))
    assert "click" in loaded
    assert not loaded & {"numpy", "msgspec", "yaml", "concurrent", "logging", *HEAVY}


def test_thread_pools_are_imported_when_they_are_made() -> None:
    """Python refuses their import once the main program is over, while its threads and exit handlers may still read."""
    for name in modules():
        for node in nodes_of(name):
            pools = isinstance(node, ast.ImportFrom) and node.module == "concurrent.futures" and not node.col_offset
            if pools and top(name) != "testing":
                assert {one.name for one in node.names} == {"Future"}, f"{name}:{node.lineno}: see _threads.thread_pool"


@pytest.mark.parametrize(
    ("package", "places"),
    [("torch", TORCH_ONLY_IN), ("jax", JAX_ONLY_IN), ("starlette", VIEW_ONLY_IN), ("uvicorn", VIEW_ONLY_IN)],
)
def test_one_place_imports(package: str, places: tuple[str, ...]) -> None:
    for name in modules():
        if not inside(name, places):
            assert package not in {other.partition(".")[0] for other in imports_of(name)}, f"{name} imports {package}"
