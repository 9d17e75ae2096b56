"""The verbs as functions: an option of a command is an argument of its function, by its name and with its default."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import click
import pytest
from tests.cli.called import report
from tests.internals import GROUPS, Reshaping, Settings, command_of, prepare_webdataset

import penstock as ps
from penstock import verbs
from penstock.errors import ConfigError
from penstock.types import OpenOptions

WITHOUT = {"demo", "doctor", "mount", "modalities", "energon"}
"""Verbs that make no sense as functions."""

RUN = ("split", "mode", "global_batch", "seed", "world", "lanes", "trust", "follow_links")
"""Options of a run over a recipe, which `open_run` takes."""

OTHERWISE: dict[str, dict[str, str | None]] = {
    "pack": {"field": "field", "join": "join"},
    "index": {"no_validate": "validate"},
    "prepare": {
        **dict.fromkeys(("by_extension", "by_glob", "by_header", "media_metadata"), "media"),
        "no_sqlite": "sqlite",
        "skip_dataset_yaml": None,  # without a sample_type it stays
        "non_interactive": None,  # a function asks no questions
    },
    "prepare-media": dict.fromkeys(("by_extension", "by_glob", "by_header"), "by"),
    "shuffle": {"memory_mb": "memory_bytes"},
    "convert": {"paths": "source", "more": None},  # options of a writer are arguments
    "head": {
        "flavor": "flavor",  # None is modalities
        **dict.fromkeys(("pictures", "no_pictures"), None),  # for terminals
    },
    "report": {"flavor": "flavor"},  # None is modalities
    "find": {"target": "target"},
    "verify": {
        **dict.fromkeys(("write_manifest", "replace_manifest"), None),  # write_side_file
        **dict.fromkeys(("part", "finish", "no_work", "restart", "work"), None),  # verify_shared
    },
    "exclude": {"keys": "key"},
    "plan": dict.fromkeys(("profile", "workers"), None),  # Loader.metrics
    "explain": dict.fromkeys(  # samples are those of the stream at the positions
        ("show", "start", "index", "key", "tokenizer", "show_all", "pictures", "no_pictures"), None
    ),
}
"""Verb → its parameters that a function takes otherwise: the argument, of another type or sense; None: none."""

PLACES = {"output": ("output", "target", "folder"), "path": ("path", "inputs", "source", "target")}
OWN = ("as_json", "explain")


def function_of(verb: str) -> Any:
    return getattr(verbs, verb.replace("-", "_"))


def arguments_of(verb: str) -> dict[str, Any]:
    """Name → default of what a function takes; of open options and writers' None."""
    functions = [function_of(verb)]
    functions += {"prepare": [ps.prepare, prepare_webdataset], "report": [ps.report], "exclude": [ps.exclude]}.get(
        verb, []
    )
    parameters = [one for function in functions for one in inspect.signature(function).parameters.values()]
    known = {one.name: one.default for one in parameters if one.kind is not one.VAR_KEYWORD}
    if verb in ("plan", "explain"):
        return known | dict.fromkeys(RUN, None)
    if verb == "view":
        return known | {name: getattr(Settings(), name) for name in Settings.__slots__}
    if verb == "purge":
        from tests.internals import purge

        known |= {one.name: one.default for one in inspect.signature(purge).parameters.values()}
    if verb != "prepare" and any(one.kind is one.VAR_KEYWORD for one in parameters):
        known |= {name: getattr(OpenOptions(), name) for name in OpenOptions.__slots__ if name not in known}
        known.setdefault("format", None)
    return known


def names_of(param: click.Parameter) -> set[str]:
    """Names that an argument of the function may have: that of the parameter, and the long options."""
    return {str(param.name), *(one.lstrip("-").replace("-", "_") for one in param.opts if one.startswith("--"))}


def test_every_verb_is_a_function() -> None:
    names = {name for group in GROUPS.values() for name in group} - WITHOUT
    assert {name.replace("-", "_") for name in names} == set(verbs.__all__)
    for name in verbs.__all__:
        if name not in ("view",):
            assert callable(getattr(ps, name))


@pytest.mark.parametrize("verb", [name.replace("_", "-") for name in verbs.__all__])
def test_parameters_are_arguments(verb: str) -> None:
    known, otherwise = arguments_of(verb), OTHERWISE.get(verb, {})
    params = [one for one in command_of(verb).params if one.name not in OWN]
    assert set(otherwise) <= {one.name for one in params}
    for param in params:
        name, default = str(param.name), param.to_info_dict().get("default")
        named = names_of(param) & known.keys()
        if name in otherwise:
            assert otherwise[name] is None or otherwise[name] in known, name
        elif name in PLACES and not named:
            assert known.keys() & set(PLACES[name]), name
        elif name == "drop_planes":
            assert default is None, "of tokens, taken with the other options"
            assert name in Reshaping.__annotations__
        elif verb in ("merge", "shuffle", "split") and name in ("maxcount", "maxsize", "pattern", "prefix_keys"):
            assert not default, "of tars, which take them with the other options"
        elif verb == "convert" and not named:
            assert default is None, "of a writer"
        elif isinstance(param, click.Argument):
            assert named, f"verbs.{verb} has no {name}"
        else:
            assert named, f"verbs.{verb} has no {name}="
            argument = next(iter(named))
            if param.required:
                assert known[argument] is inspect.Parameter.empty
            elif verb not in ("plan", "explain", "stage") or name not in RUN:
                assert (known[argument] or None) == (default or None), f"the default of {argument}="


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"id": {number}}}\n' for number in range(7)))
    return path


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
        for number in range(1, 1202):
            writer.write({"tokens": [number, 0]})
    path = tmp_path / "run.yaml"
    path.write_text("penstock: 1\nbatch: {global_batch: 1200}\nstream: {path: a.pbin, shuffle: {seed: 8}}\n")
    return path


@pytest.mark.parametrize(
    "options",
    [{"limit": -1}, {"start": -1}, {"index": -1}, {"index": 7}, {"index": 1, "start": 1}, {"key": "1", "start": 1}],
)
def test_head_refuses_what_the_command_refuses(lines: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ps.head(lines, **options)


@pytest.mark.parametrize("options", [{"steps": 0}, {"steps": -1}, {"global_batch": 0}, {"world": 0}])
def test_plan_refuses_what_the_command_refuses(recipe: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ps.plan(recipe, **options)


@pytest.mark.parametrize(
    "options",
    [{"step": -1}, {"step": 0, "limit": 0}, {"step": 0, "rank": 1}, {"document": "3", "step": -1},
     {"excluded": True}, {"excluded": True, "step": 0}, {"excluded": True, "document": "3"}, {}],
)  # fmt: skip
def test_explain_refuses_what_the_command_refuses(recipe: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ps.explain(recipe, **options)


@pytest.mark.parametrize("limit", [(), ("--limit", 3)])
def test_explain_returns_what_the_command_prints(
    recipe: Path, limit: tuple[Any, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    printed = report(capsys, "explain", recipe, "--step", 0, *limit)
    found = ps.explain(recipe, step=0, **dict(zip(("limit",), limit[1:], strict=False)))
    assert json.loads(json.dumps(found)) == printed
    assert len(found["samples"]) == (limit[1] if limit else 1200)


def test_options_that_would_have_no_effect_raise(lines: Path) -> None:
    with pytest.raises(ConfigError, match="key"):
        verbs.exclude(lines, show=True, key="3")
    with pytest.raises(ConfigError, match="trim"):
        ps.cache(trim=-1)
    with pytest.raises(ConfigError, match="split_ratio"):
        verbs.prepare(lines.parent, ratio="1,0,0", split_ratio=(1, 0, 0))


@pytest.mark.parametrize("depth", ["quick", "sample", "full", "decode"])
def test_verify_names_an_unknown_split(tmp_path: Path, depth: Any) -> None:
    with ps.create(tmp_path / "tars", format="webdataset") as writer:
        writer.write({"__key__": "a", "txt": "text"})
    ps.verify(tmp_path / "tars", depth=depth, split="train")
    with pytest.raises(ConfigError, match="unknown split"):
        ps.verify(tmp_path / "tars", depth=depth, split="tarin")
