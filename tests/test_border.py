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
    "check": {
        "check/lint:lint",
        "check/repair:repair",
        "check/summary:summarise",
        "check/verify:verify",
        "check/verify:write_side_file",
    },
    "convert": {
        "convert/partitions:merge_partitions",
        "convert/partitions:write_partition",
        "convert/run:convert",
    },
    "reshape": {
        "reshape/chunk:chunk",
        "reshape/filter:_chosen",
        "reshape/filter:filter",
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
        "prepare/energon/verb:dataset_of",
        "prepare/energon/verb:prepare",
        "prepare/media/run:prepare_media",
        "prepare/raw:build_index",
        "prepare/tokens/decode:load_decoder",
        "prepare/tokens/inputs:find_paths",
        "prepare/tokens/load_tokenizer:load_tokenizer",
        "prepare/tokens/load_tokenizer:tokenizer_files",
        "prepare/tokens/pipeline:pack",
        "prepare/tokens/tokenizer:load_spec",
    },
    "work": set(),
    "view": {"view/mount:mount", "view/mount:open_files"},
}
"""Package → `module:function` of its border: these take what users give, and begin with `place_of` or `dataset_at`."""

NAMED_IN_ERRORS = (
    "sp_model:_load",
    "sp_model:sentencepiece_spec",
    "tiktoken_ranks:_added_tokens",
    "tiktoken_ranks:_bad_line",
    "tiktoken_ranks:_config_path",
    "tiktoken_ranks:parse_ranks",
    "tiktoken_ranks:tiktoken_spec",
    "tokenizer:_apply_config",
    "tokenizer:_find_eos",
    "tokenizer_json:no_panics",
    "tokenizer_json:parse_tokenizer",
    "tokenizer_json:require_loadable",
)
"""Of the tokenizer's own file, whose name is part of what it says."""

ALLOWED: dict[str, str] = {
    "check/verify:_MakesManifest.write_manifest": "what a format implements: formats are called with store and path",
    "convert/documents:token_digest": "public: the source as errors name it, and touched in no other way",
    "reshape/rows:TokenRows.__init__": "the store says where the file of a run really is",
    "prepare/energon/run:_newest": "asks when a local shard was changed",
    "prepare/energon/run:_share": "gives the mode of a local shard to its index",
    "prepare/energon/scan:MediaReader.__call__": "what others may write takes a store and a path, as formats do",
    "prepare/media/rows:ShardMedia.__call__": "is such a reader",
    "prepare/media/run:_stamp": "asks when a local file was changed",
    "prepare/tokens/assemble:_drop_cache": "tells the system that a local part need not stay in memory",
    "prepare/tokens/columns:ColumnParts.write_part": "what writers of formats take, in their words",
    "prepare/tokens/inputs:_describe": "asks when a local input was changed",
    "prepare/tokens/inputs:changed_since": "asks when a local input was changed",
    "prepare/tokens/inputs:describe_inputs": "names inputs by their paths below the folder that all share",
    "prepare/tokens/inputs:spooled": "copies standard input into a temporary file",
    **dict.fromkeys(
        (f"prepare/tokens/inputs:{one}" for one in ("_expand", "_matches", "_walk")),
        "walks over local folders and patterns, where links and unreadable folders are looked at one by one",
    ),
    **dict.fromkeys(
        (f"prepare/tokens/{one}" for one in ("load_tokenizer:_model_in", "tokenizer:_find_json")),
        "finds the files of a local tokenizer",
    ),
    **dict.fromkeys(
        (f"prepare/tokens/{one}" for one in NAMED_IN_ERRORS),
        "gets the bytes of a tokenizer, and says in errors where they came from",
    ),
    "work/energon:stamp_of": "asks when a local shard was changed",
    "work/folder:WorkFolder.names": "a work folder is local, and what is hidden in it counts",
    "work/folder:_remove": "links in a local work folder are removed, not followed",
    "work/folder:is_real_folder": "a link in the place of a local work folder is none",
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
