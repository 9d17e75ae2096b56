"""A dataset under two names is reported: when it is built by its path, in plans and first states by its content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.internals import plan

import penstock as ps
from penstock.load import Loader

HEAD = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n"
TWICE = "    blend:\n    - path: a.jsonl\n      weight: 1\n    - path: {0}\n      weight: 1\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(f'{{"{name}": {n}}}\n' for n in range(20)))
        ps.index(path, flavor="energon")
    (tmp_path / "link").symlink_to("a.jsonl")
    (tmp_path / "copy.jsonl").write_bytes((tmp_path / "a.jsonl").read_bytes())
    (tmp_path / "inner.yaml").write_text(HEAD + "    path: a.jsonl\n")
    (tmp_path / "other.yaml").write_text(HEAD + "    path: b.jsonl\n")
    return tmp_path


def warnings_of(path: Path, recipe: Any, caplog: pytest.LogCaptureFixture) -> list[list[str]]:
    """What is reported when the recipe is built, planned, and first saved."""
    path.write_text(recipe if isinstance(recipe, str) else json.dumps(recipe))
    caplog.clear()
    data = ps.open_recipe(path, seed=1)
    built = [one.getMessage() for one in caplog.records]
    planned = plan(data, global_batch=4)["warnings"]
    loader = Loader(data, 4, rank=0, world=1, tail=None if hasattr(data, "horizon") else "drop")
    caplog.clear()
    for _ in range(2):
        loader.state_dict()
    saved = [one.getMessage() for one in caplog.records]
    return [[line for line in lines if "same samples" in line] for lines in (built, planned, saved)]


def blend(*nodes: dict[str, Any]) -> dict[str, Any]:
    return {"stream": {"blend": [{"name": f"n{at}", **node} for at, node in enumerate(nodes)], "seed": 1}}


A, B, COPY = {"path": "a.jsonl"}, {"path": "b.jsonl"}, {"path": "copy.jsonl"}
FIRST, LAST = {**A, "subset": {"range": [0, 10]}}, {**A, "subset": {"range": [10, 20]}}
SHUFFLED: dict[str, Any] = {"shuffle": {"seed": 1}}
CASES: dict[str, tuple[Any, str | None]] = {
    "the same path": (blend(A, A), "n0 and n1"),
    "another spelling": (blend(A, {"path": "../" + "{name}" + "/./a.jsonl"}), "n0 and n1"),
    "a link": (blend(A, {"path": "link", "format": "jsonl"}), None),
    "nested": (blend(B, {"blend": [{"name": "x", **A}, {"name": "y", **B}]}), "n0 and n1/y"),
    "overlapping parts": (blend(FIRST, {**A, "subset": {"range": [9, 20]}}), "n0 and n1"),
    "a part and the whole": (blend(FIRST, A), "n0 and n1"),
    "two parts": (blend(FIRST, LAST), ""),
    "two datasets": (blend(A, B), ""),
    "a metadataset": (HEAD + TWICE.format("inner.yaml"), "a and inner"),
    "another metadataset": (HEAD + TWICE.format("other.yaml"), ""),
    "two stages": (
        {"stream": {"stages": [{"length": 8, **A, "shuffle": {"seed": 1}}, {**A, "shuffle": {"seed": 2}}]}},
        "",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_repeats_are_named(case: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    recipe, names = CASES[case]
    if isinstance(recipe, dict):
        recipe = json.loads(json.dumps(recipe).replace("{name}", folder.name))
    file = folder / ("recipe.yaml" if isinstance(recipe, str) else "recipe.json")
    found = warnings_of(file, recipe, caplog)
    if names == "":
        assert found == [[], [], []]
    else:
        for lines in found:
            assert len(lines) == 1, found
            assert names is None or names in lines[0]


def test_a_copy_is_told_by_its_content(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    built, planned, saved = warnings_of(folder / "recipe.json", blend(A, COPY), caplog)
    assert built == []
    assert len(planned) == len(saved) == 1
    assert str(folder / "a.jsonl") in planned[0]
    assert str(folder / "copy.jsonl") in planned[0]
