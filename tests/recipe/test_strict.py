"""Nothing that is not known is let through: every map of the grammar, and every closed choice."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.internals import main, read_schema

from penstock.errors import ConfigError
from penstock.recipe import open_recipe

from .conftest import GOLDEN
from .functions import double
from .test_recipe import NAMED as COLONS
from .test_recipe import NODES, data  # noqa: F401  # pyright: ignore[reportUnusedImport]

NAMED = {**COLONS, **{name.replace(":", "."): fn for name, fn in COLONS.items()}}
SCHEMA = read_schema()
# In these a key may belong to the mix or to the node in it, so the JSON schema says less than the code.
ITEMS = ("blend", "blend_epochized", "join", "stages", "concat")


@functools.cache
def _errors(reference: str, instance: str) -> list[jsonschema.ValidationError]:
    return list(
        VALIDATOR.evolve(schema=SCHEMA["$defs"][reference.rpartition("/")[2]]).iter_errors(json.loads(instance))
    )


def _check_reference(_: Any, reference: str, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    """Check a part once: of a tree of alternatives, jsonschema checks each part once for every way to it."""
    return map(jsonschema.ValidationError.create_from, _errors(reference, json.dumps(instance)))


VALIDATOR = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"$ref": _check_reference})(SCHEMA)


def short_forms(folder: Path) -> dict[str, Any]:
    ds_a, ds_b = (str(GOLDEN / "data" / f"ds_{name}") for name in "ab")
    rows, books, web = (str(folder / name) for name in ("rows.jsonl", "books.pbin", "web.pbin"))
    windowed = {"path": books, "window": {"chunk": {"length": 16, "labels": "shift"}}, "shuffle": {"seed": 1}}
    weighed = [{"path": books, "weight": 1, "name": "x"}, {"path": web, "weight": 2}]
    blend = {"blend": weighed, "window": {"whole": {"length": 16}}, "seed": 3, "lanes": 1, "mixed_tokenizers": True}
    joiner = {"__module__": double.__module__, "__function__": "beside"}
    return {
        "top": {
            "penstock": 1, "stream": windowed,
            "batch": {"global_batch": 8, "micro_batch": 2, "world": 4, "tail": "pad"},
        },
        "top source": {"source": {"path": rows}, "batch": 4},
        "path": {
            "path": rows, "format": "jsonl", "subset": [{"range": [0, 9]}, {"range": ["0%", "50%"]}],
            "subflavors": {"a": 1}, "aux": {"media": f"filesystem://{GOLDEN}/data/fs_media"},
            "sequential": {"lanes": 1}, "skip": [[0, 2]],
        },
        "subset": {"path": rows, "subset": {"range": [0, 9]}},
        "pack": {
            "path": rows, "map": f"{double.__module__}:double", "shuffle": {"seed": 2},
            "pack": {"window": 2, "merge": f"{double.__module__}:together", "leftover": "drop"},
        },
        "blend": blend,
        "best-fit": {"path": books, "window": {"best-fit": {"length": 64, "pad_id": 0}}},
        "fill-in-the-middle": {
            "path": books, "window": {"chunk": {"length": 64}},
            "fill-in-the-middle": {"rate": 0.5, "seed": 1, "prefix_id": 5, "middle_id": 6, "suffix_id": 7},
        },
        "megatron-blocks": {"path": books, "window": {"megatron-blocks": {"length": 64}}},
        "blend_epochized": {"blend_epochized": [{"path": rows, "repetitions": 2, "name": "x"}], "first_pass": 1},
        "concat": {"concat": [{"path": books}, {"path": web}], "mixed_tokenizers": True},
        "join": {"join": [{"path": ds_b}, {"path": ds_a, "nonmatch": "skip"}], "joiner": joiner},
        "join named": {"join": {"l": {"path": ds_b}, "r": {"path": ds_a, "nonmatch": "skip"}}},
        "stages": {"stages": [{**windowed, "length": 64}, {**windowed, "shuffle": {"seed": 2}}]},
        "schedule": {
            "blend": [windowed], "seed": 1,
            "schedule": [{"length": 9, "weights": {"books": 1}}, {"weights": {"books": 2}}],
        },
    }  # fmt: skip


def maps(value: Any, schema: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], frozenset[str]]]:
    """Place and known keys of each map below a recipe that has a fixed set of them."""
    for option in schema.get("allOf", ()):
        yield from maps(value, option, at)
    for option in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        if "required" not in option or "properties" in option:
            fits = VALIDATOR.evolve(schema={**option, "$defs": SCHEMA["$defs"]})
            if fits.is_valid(value):
                yield from maps(value, option, at)
    if "$ref" in schema:
        yield from maps(value, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], at)
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        for place, one in enumerate(value):
            yield from maps(one, first[place] if place < len(first) else schema.get("items", {}), (*at, place))
    if isinstance(value, dict):
        known = schema.get("properties", {})
        if schema.get("additionalProperties") is False:
            yield at, frozenset(known)
        for key, one in value.items():
            below = known.get(key, schema.get("additionalProperties"))
            if isinstance(below, dict):
                yield from maps(one, below, (*at, key))


def misspelled(recipe: Any) -> Iterator[tuple[tuple[Any, ...], str, str, Any]]:
    """(place, key, what stands there instead, recipe), for each key of each map."""
    found = dict(maps(recipe, SCHEMA))
    for base in ITEMS:
        found.update({at: frozenset() for at in _items(recipe, base)})
    for at in found:
        for key in _at(recipe, at):
            wrong = copy.deepcopy(recipe)
            inside = _at(wrong, at)
            other = f"{key[:-1]}q{key[-1]}"
            pairs = [(other if name == key else name, one) for name, one in inside.items()]
            inside.clear()
            inside.update(pairs)
            yield at, key, other, wrong


def _items(value: Any, base: str, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        below = value.get(base, ())
        pairs = below.items() if isinstance(below, dict) else enumerate(below)
        yield from ((*at, base, place) for place, _ in pairs)
    for key, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _items(one, base, (*at, key))


def _at(value: Any, at: tuple[Any, ...]) -> Any:
    for key in at:
        value = value[key]
    return value


@pytest.fixture(scope="module")
def recipes(data: Path) -> dict[str, Any]:  # noqa: F811
    made = {name: json.loads(json.dumps(make(data).recipe())) for name, make in NODES.items()}
    return {**made, **{f"short {name}": one for name, one in short_forms(data).items()}}


def test_the_recipes_are_fine(recipes: dict[str, Any]) -> None:
    for name, recipe in recipes.items():
        VALIDATOR.validate(recipe)
        assert open_recipe(recipe, functions=NAMED), name


def test_every_map_of_the_schema_is_tried(recipes: dict[str, Any]) -> None:
    tried = {keys for recipe in recipes.values() for _, keys in maps(recipe, SCHEMA)}
    closed = set(_closed(SCHEMA))
    assert {frozenset(keys) for keys in closed} - tried == {
        # People alone write these two, and neither is in what is tried.
        frozenset(SCHEMA["$defs"]["kind:metadataset"]["properties"]),
        frozenset(SCHEMA["$defs"]["kind:subset"]["properties"]),
    }


def _closed(schema: Any) -> Iterator[frozenset[str]]:
    if isinstance(schema, dict):
        if schema.get("additionalProperties") is False:
            yield frozenset(schema["properties"])
        for one in schema.values():
            yield from _closed(one)
    elif isinstance(schema, list):
        for one in schema:
            yield from _closed(one)


def test_a_misspelled_key_is_refused(recipes: dict[str, Any]) -> None:
    count = 0
    for name, recipe in recipes.items():
        for place, key, other, wrong in misspelled(recipe):
            with pytest.raises(ConfigError) as refused:
                open_recipe(wrong, functions=NAMED)
            said = str(refused.value)
            assert f"found {other!r}" in said, (name, place, key, said)
            assert f"Did you mean {key!r}?" in said, (name, place, key, said)
            # Children are named by their names, so one of the last parts of the place is there.
            last = [*place[-3:], *(["the recipe"] if len(place) < 2 else [])]
            assert any(str(part) in said for part in last), (name, place, key, said)
            count += 1
    assert count > 300


@pytest.mark.parametrize(
    ("recipe", "found", "nearest"),
    [
        ({"path": "rows.jsonl", "subset": {"range": [0, 3], "rang": [0, 1]}}, "rang", "range"),
        ({"path": "rows.jsonl", "subset": {"rang": [0, 1]}}, "rang", "range"),
        ({"source": {"path": "rows.jsonl"}, "batch": {"global_batch": 4, "tail": "padd"}}, "padd", "pad"),
        ({"path": "rows.jsonl", "shuffle": {"sede": 1}}, "sede", "seed"),
        ({"path": "rows.jsonl", "shuffle": {"mode": "blcks"}}, "blcks", "blocks"),
        ({"path": "rows.jsonl", "pack": {"window": 2, "leftover": "dorp"}}, "dorp", "drop"),
        ({"join": [{"path": "a", "nonmatch": "eror"}, {"path": "b"}]}, "eror", "error"),
        ({"join": [{"path": "a"}, {"path": "b", "nonmatch": "skp"}]}, "skp", "skip"),
        ({"join": [{"path": "a"}, {"path": "b"}], "joiner": {"__modul__": "a"}}, "__modul__", "__module__"),
        ({"strem": {"path": "rows.jsonl"}}, "strem", "stream"),
        ({"kind": "crude", "decode": "torchrbg8", "source": {"path": "rows.jsonl"}}, "torchrbg8", "torchrgb8"),
        ({"path": "rows.jsonl", "read": "mmpa"}, "mmpa", "mmap"),
    ],
)
def test_the_command_line_refuses_the_same(
    recipe: Any, found: str, nearest: str, data: Path, capsys: pytest.CaptureFixture[str]  # noqa: F811
) -> None:  # fmt: skip
    file = data / "wrong.json"
    file.write_text(json.dumps(recipe))
    with pytest.raises(ConfigError, match=f"Did you mean '{nearest}'"):
        open_recipe(file)
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(file), "--steps", "2", "--global-batch", "4"])
    said = capsys.readouterr().err
    assert ended.value.code != 0
    assert "wrong.json" in said
    assert found in said
    assert nearest in said


def test_a_stage_is_nothing_but_its_options(data: Path) -> None:  # noqa: F811
    """A short form is what it says: its options change neither what it is nor what it is over."""
    rows = {"path": str(data / "rows.jsonl")}
    for wrong in ({"kind": "sequential"}, {"source": rows}):
        with pytest.raises(ConfigError, match="unknown key"):
            open_recipe({**rows, "shuffle": wrong})
    with pytest.raises(ConfigError, match="the first member determines the rows"):
        open_recipe({"join": [{**rows, "nonmatch": "skip"}, rows]})
