"""Paths become places at the border: below it no function of a verb takes a path as text, and nothing joins one.

`penstock.store.place` has what stands in their place. A package is held to it from its entry in `BORDERS` on.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "penstock"

BORDERS: dict[str, set[str]] = {
    "check": {
        "check/lint:lint",
        "check/recipes:check_run",
        "check/repairs:repair",
        "check/summary:summarise",
        "check/verification:verify",
        "check/verification:verify_in_parts",
        "check/repairs:write_side_file",
    },
    "convert": {
        "convert/partitions:merge_partitions",
        "convert/partitions:write_partition",
        "convert/run:convert",
    },
    "reshape": {
        "reshape/split:chunk",
        "reshape/filter:_chosen",
        "reshape/filter:filter",
        "reshape/filter:read_indices",
        "reshape/merge:merge",
        "reshape/rows:open_rows",
        "reshape/shuffle:shuffle",
        "reshape/split:split",
    },
    "prepare": {
        "prepare/energon/plan:peek_webdataset",
        "prepare/energon/plan:plan_webdataset",
        "prepare/energon/run:prepare_jsonl",
        "prepare/energon/run:prepare_webdataset",
        "prepare/energon/run:dataset_of",
        "prepare/energon/run:prepare",
        "prepare/media/run:prepare_media",
        "prepare/jsonl_index:build_index",
        "prepare/jsonl_index:_files_of",
        "prepare/jsonl_index:_is_search",
        "prepare/jsonl_index:index",
        "prepare/tokens/vocabulary:load_decoder",
        "prepare/tokens/vocabulary:load_vocabulary",
        "prepare/tokens/inputs:_looked",
        "prepare/tokens/inputs:_saved",
        "prepare/tokens/inputs:find_files",
        "prepare/tokens/engines:load_tokenizer",
        "prepare/tokens/engines:tokenizer_files",
        "prepare/tokens/request:understand_output",
        "prepare/tokens/pipeline:pack",
        "prepare/tokens/tokenizer:load_spec",
    },
    "cook": set(),
    "executors": set(),
    "load": {"load/adapters:TensorBoard.__init__"},
    "mix": set(),
    "order": set(),
    "pack": set(),
    "recipe": {
        "recipe/context:Budget.read",
        "recipe/context:read_document",
        "recipe/context:Context.beside",
        "recipe/context:Context.open_source",
        "recipe/leaf:format_of",
        "recipe/leaf:open_aux",
        "recipe/leaf:open_leaf",
        "recipe/metadataset:build_metadataset",
        "recipe/metadataset:open_metadataset",
        "recipe/metadataset:read_metadataset",
        "recipe/metadataset:split_names",
        "recipe/metadataset:traverse_metadataset",
        "recipe/places:aux_place",
        "recipe/places:beside",
        "recipe/recipe:_open_file",
        "recipe/recipe:_read",
        "recipe/recipe:open_recipe",
        "recipe/recipe:read_recipe",
    },
    "engine": set(),
    "view": {
        "view/facts/opening:is_recipe",
        "view/facts/opening:open_run",
        "view/facts/opening:read_state",
        "view/facts/shelves:shelf",
        "view/mount:mount",
        "view/mount:open_files",
        "view/report:_as_path",
        "view/report:report",
    },
}
"""Package → `module:function` of its border: these take what users give, and begin with `place_of` or `dataset_at`.

A recipe is text that names files, so its border is in two places: the file itself, and what it names.
"""

EDGES = ("cli", "compat")
"""Packages that are border as a whole: they take texts and hand them on, resolved at most; they touch no path."""

NAMED_IN_ERRORS = (
    "model_files:_load",
    "model_files:sentencepiece_spec",
    "model_files:_added_tokens",
    "model_files:parse_ranks",
    "model_files:tiktoken_spec",
    "tokenizer:_apply_config",
    "tokenizer:_find_eos",
    "tokenizer:_new_eos",
    "tokenizer:no_panics",
    "tokenizer:parse_tokenizer",
    "tokenizer:require_loadable",
)
"""Of the tokenizer's own file, whose name is part of what it says."""

NAMES_OF_RECIPES = (
    "context:Budget.count_node",
    "context:check_nesting",
    *(f"code:{one}" for one in ("Code.function", "Code.pair", "_imported", "joiner_name", "joiner_of")),
    *(f"values:{one}" for one in ("check_keys", "check_list", "check_map", "check_text", "unknown")),
    "recipe:_check_derived",
    *(f"short:{one}" for one in ("_blend", "_check_values", "_check_window", "_concat", "_epochized", "_items")),
    *(f"short:{one}" for one in ("_joined", "_modified", "_stages", "_stores", "expand")),
    *(f"values:{one}" for one in ("_check_any", "_check_items", "_check_map", "_check_number", "_wrong")),
    "values:check_value",
)
"""Of the file that a value stands in, for errors."""

ALLOWED: dict[str, str] = {
    "check/lint:decoding_findings": "hands what `verify` was given on to `lint`, and names it in findings",
    "check/lint:_of_lines": "names a file in findings",
    "engine/plan:read_input_states": "asks for the state of a local file, of which `is_local` was asked",
    "check/repairs:_planes_to_record": "formats are called with store and path",
    "convert/values:_suffix_of": "a name that a row of data states; nothing is opened",
    "convert/tables:_suffixes_of": "the name of a file",
    "convert/tables:_bounded_lines": "names a file in an error",
    **dict.fromkeys(
        ("convert/tables:_Pieces.__init__", "convert/tables:_open_plain"), "a file of this machine, or a local copy"
    ),
    **dict.fromkeys(("mix/repeats:_location", "mix/repeats:_listed"), "compares paths of recipes with links resolved"),
    "prepare/tokens/chat/rows:NullFields._without": "the names of nested fields of a row",
    "prepare/tokens/engines:_typed_errors": "names the tokenizer in an error",
    "view/mount:_serve_detached": "opens the null device",
    "check/verification:_ChecksByTasks.check_by_tasks": "what a format implements takes a store and a path",
    "cli/modalities:LocalPath.convert": "looks whether a file that must be there is",
    "cli/main:_open_what_is_closed": "opens the null device",
    "cli/main:main": "opens the null device",
    "cli/main:_understand": "names the folder of a file of this machine that can't be written",
    "cli/_errors:_near_path": "names beside one that leads nowhere, for people",
    "cli/start:_folders": "what a shell completes lies on this machine",
    **dict.fromkeys(("cli/_machine:file_system_of", "cli/_machine:_existing"), "folders of this machine"),
    **dict.fromkeys(
        (f"cli/start:{one}" for one in ("_index", "_pack", "_train", "_verify", "demo")),
        "makes its own files in a folder of this machine",
    ),
    "compat/energon/epathlib:EPath.__truediv__": "what is absolute stands for itself, behind a `/` too",
    "compat/modalities/commands/data:_refuse_same": "compares two local paths",
    "compat/modalities/commands/data:Target.kept": "a link that leads nowhere is there too",
    "compat/modalities/commands/data:merge_packed_data_files": "a link that leads nowhere is there too",
    "compat/modalities/filters:_places": "compares two local paths",
    **dict.fromkeys(
        (f"compat/streaming/util:{one}" for one in ("_mapped_elsewhere", "remove_stale")),
        "shared memory of this machine, and which processes have it",
    ),
    "compat/streaming/writers:Writer.__init__": "a local folder with anything in it is not written to",
    "compat/streaming/writers:_local_and_remote": "one URL alone is both: no copy stays here",
    "compat/streaming/writers:_copy": "copies all that lies in a local folder",
    "check/repairs:_MakesManifest.write_manifest": "what a format implements: formats are called with store and path",
    **dict.fromkeys(
        (f"engine/sample_groups:_Placed.{one}" for one in ("size", "get_ranges", "commit")),
        "a `StagedFolder`: names of files in it",
    ),
    "convert/tokens:token_digest": "public: the source as errors name it, and touched in no other way",
    **dict.fromkeys(
        (f"load/plan:{one}" for one in ("_about_weights", "_sources")), "names of children down a tree of streams"
    ),
    "view/facts/places:_are_same": "compares two paths as recipes have them",
    "view/facts/disk:_name_in": "a path as the place's own store lists it, shortened for people",
    "view/pages/targets:_mark": "asks when a local dataset was changed",
    "executors/processes:_stopped_in": "asks the system which processes of this one are stopped",
    "load/read:read_batches": "resolves positions of a stream",
    **dict.fromkeys((f"recipe/{one}" for one in NAMES_OF_RECIPES), "says in errors which file it is"),
    "recipe/places:_cached": "what dss:// stands for is a folder of this machine",
    "recipe/places:_join": "joins a path in a file to the place of that file",
    "prepare/energon/index:_newest": "asks when a local shard was changed",
    "prepare/energon/index:_share": "gives the mode of a local shard to its index",
    "prepare/media/rows:ShardMedia.__call__": "takes a store and a path, as formats do",
    "prepare/media/index:_stamp": "asks when a local file was changed",
    "engine/token_files:_drop_cache": "tells the system that a local part need not stay in memory",
    "prepare/tokens/request:_ColumnParts.write_part": "what writers of formats take, in their words",
    "prepare/tokens/engine_choice:disagreed": "names an input in an error",
    "prepare/tokens/inputs:_names_below": "names inputs by their paths below the folder that all share",
    **dict.fromkeys(
        (
            *(f"engine/token_files:{one}" for one in ("_as_local", "_made", "_mapped", "_write_file")),
            *(f"engine/token_files:{one}" for one in ("join_file", "_write")),
        ),
        "makes a token file in a scratch folder of this machine, out of parts or copies of them",
    ),
    "engine/work:scratch": "makes a scratch folder of this machine",
    "prepare/tokens/inputs:spooled": "copies standard input into a temporary file",
    "prepare/tokens/engines:_model_in": "finds the files of a local tokenizer",
    **dict.fromkeys(
        (f"prepare/tokens/{one}" for one in NAMED_IN_ERRORS),
        "gets the bytes of a tokenizer, and says in errors where they came from",
    ),
    "prepare/tokens/request:name_inputs": "makes places of what `find_files` found",
    "executors/on_ray:run_task": "the folder in which a driver on this machine looks for its workers",
    **dict.fromkeys(
        (f"executors/seen:{one}" for one in ("_file_of", "_probe", "_seen")),
        "looks whether another host sees the same local files",
    ),
    **dict.fromkeys(
        (f"load/stage:{one}" for one in ("_base", "_files", "_stores")), "sorts what extents of samples name, by store"
    ),
    "engine/plan:require_same": "says in errors which output it is",
    "engine/work:_clear_staged": "walks over a local work folder",
    "engine/folder:WorkFolder.names": "a work folder is local, and what is hidden in it counts",
    "engine/folder:_remove": "links in a local work folder are removed, not followed",
    "engine/folder:is_real_folder": "a link in the place of a local work folder is none",
}
"""`package/module:function` that takes a path as text, or touches one, below the border → the reason."""

PATH_NAMES = {"path", "paths", "target", "source", "sources", "output", "folder", "root", "given", "recipe"}
RESOLVING = {"local_path", "os.fspath"}
"""What an edge may call: it gives a text again, of this machine or at all."""
STATUS_CALLS = {"is_there", "is_link", "leads_somewhere", "is_folder", "is_file"}
PATH_CALLS = STATUS_CALLS | {"resolve", "absolute", "local_path", "is_url", "within", "real_path", "same_file"}
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
        is_text = (
            "PathLike" in kind
            or re.search(r"\bGiven\b", kind) is not None
            or "Path" in kind.replace("[", " ").replace("]", " ").split()
        )
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


def found_in(package: str) -> Iterator[tuple[str, list[str]]]:
    """Each function that takes a path as text, or touches one; an edge may take one."""
    for name, node in functions(package):
        if package not in EDGES:
            wrong = [*texts(node), *touches(node)]
        else:
            wrong = [one for one in touches(node) if one.removeprefix("calls ") not in RESOLVING]
        if wrong:
            yield name, wrong


@pytest.mark.parametrize("package", sorted({*BORDERS, *EDGES}))
def test_below_the_border_there_are_places(package: str) -> None:
    known = ALLOWED.keys() | BORDERS.get(package, set())
    found = {name: wrong for name, wrong in found_in(package) if name not in known}
    assert not found, "\n".join(f"{name}: {', '.join(wrong)}" for name, wrong in found.items())


def test_every_exception_is_there_and_has_a_reason() -> None:
    known = {name for package in BORDERS for name, _ in functions(package)}
    borders = {name for names in BORDERS.values() for name in names}
    assert borders <= known
    assert all(ALLOWED.values())
    assert ALLOWED.keys() <= {name for package in {*BORDERS, *EDGES} for name, _ in found_in(package)}
