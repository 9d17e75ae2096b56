"""What a recipe holds, and what has to be said beside it: decoding, arrays, trust, shares of 0, other formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypedDict

import jsonschema
import numpy as np
import pytest
from tests.internals import DecodeOptions, read_schema

import penstock as ps
from penstock.cook import Crude
from penstock.errors import ConfigError, UnsafeData, Unsupported
from penstock.recipe import open_recipe

from .conftest import GOLDEN

HEAD = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n"


@pytest.fixture
def rows(tmp_path: Path) -> Any:
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"id": {number}}}\n' for number in range(17)))
    return ps.open(tmp_path / "rows.jsonl")


def crude(how: DecodeOptions, **options: Any) -> Crude:
    return Crude(ps.open(GOLDEN / "data" / "ds_a", split="train", raw=True), decode=how, **options)


@pytest.mark.parametrize(
    "made",
    [
        crude(DecodeOptions()),
        crude(DecodeOptions("rgb8")),
        crude(DecodeOptions("rgb8"), decode_parts=False),
        crude(DecodeOptions("rgb8", most_pixels=12, most_bytes=7), kind="TextSample"),
    ],
)
def test_decoding_comes_back(made: Crude) -> None:
    recipe = json.loads(json.dumps(made.recipe()))
    jsonschema.validate(recipe, read_schema())
    again = open_recipe(recipe)
    assert again.fingerprint == made.fingerprint
    # What a child process would get of it is all that decides.
    assert repr(again.__reduce__()[1][2:]) == repr(made.__reduce__()[1][2:])
    assert again.recipe() == recipe


def test_a_recipe_as_it_was_is_read_as_it_was() -> None:
    made = crude(DecodeOptions("rgb8"))
    assert made.recipe().keys() == {"kind", "subflavors", "decode", "source"}
    assert open_recipe({**made.recipe(), "decode": None}).fingerprint == crude(None).fingerprint  # pyright: ignore


def test_trust_is_recorded_and_has_to_be_given() -> None:
    made = crude(DecodeOptions(trust=True))
    assert made.recipe()["trust"] is True
    with pytest.raises(UnsafeData, match=r"code that is part of the dataset.*Pass trust=True"):
        open_recipe(made.recipe())
    again = open_recipe(made.recipe(), trust=True)
    assert again.recipe() == made.recipe()
    # The opener's trust alone gives none to a recipe that asks for none.
    assert open_recipe(crude(DecodeOptions()).recipe(), trust=True).recipe() == crude(DecodeOptions()).recipe()


def test_costs_are_given_by_their_digest(rows: Any) -> None:
    costs = np.arange(1, 18)
    made = ps.Balance(ps.Shuffle(rows, seed=1), 2, costs=costs)
    recipe = json.loads(json.dumps(made.recipe()))
    key = recipe["costs"]
    with pytest.raises(ConfigError, match=rf"needs its costs.*each of 17 samples.*functions={{'{key}': costs}}"):
        open_recipe(recipe)
    with pytest.raises(ConfigError, match=rf"functions={{'{key}': costs}}"):
        open_recipe(recipe, functions={"costs": costs})
    for given in (costs, costs.tolist(), costs.astype(np.int32)):
        assert open_recipe(recipe, functions={key: given}).fingerprint == made.fingerprint
    with pytest.raises(ConfigError, match="has a different costs"):
        open_recipe(recipe, functions={key: costs + 1})


def test_costs_beside_those_of_the_source(rows: Any) -> None:
    """Where the source has costs of its own, others are asked for instead of being mistaken for them."""
    packed = ps.PackByLength(rows, 9, lambda sample: sample["id"] % 5 + 1, name="a:b -")
    functions: dict[str, Any] = {"a:b -": lambda sample: sample["id"] % 5 + 1}
    stream = ps.Shuffle(packed, seed=1)
    plain = ps.Balance(stream, 2)
    assert open_recipe(plain.recipe(), functions=functions).fingerprint == plain.fingerprint
    costs = np.full(len(packed), 3)
    made = ps.Balance(stream, 2, costs=costs)
    with pytest.raises(ConfigError, match="needs its costs"):
        open_recipe(made.recipe(), functions=functions)
    functions[made.recipe()["costs"]] = costs
    assert open_recipe(made.recipe(), functions=functions).fingerprint == made.fingerprint


class Row(TypedDict):
    id: int


def together(samples: list[Any]) -> dict[str, Any]:
    return {"ids": [sample["id"] for sample in samples]}


@pytest.mark.parametrize("merge", [None, together])
def test_lengths_are_given_by_their_digest(rows: Any, merge: Any) -> None:
    lengths = [1 + number % 5 for number in range(17)]
    made = ps.PackByLength(rows, 10, lengths, merge)
    recipe = json.loads(json.dumps(made.recipe()))
    key, _, name = recipe["fn"].partition(" ")
    given = {} if merge is None else {name: merge}
    for trust in (False, True):
        with pytest.raises(ConfigError, match=rf"needs its lengths.*of 17 samples.*functions={{'{key}': lengths}}"):
            open_recipe(recipe, functions=given, trust=trust)
    again = open_recipe(recipe, functions={key: lengths, **given})
    assert again.fingerprint == made.fingerprint
    assert again[2] == made[2]
    assert open_recipe(recipe, functions={recipe["fn"]: (lengths, merge)}).fingerprint == made.fingerprint
    with pytest.raises(ConfigError, match="the lengths differ from those of the recipe"):
        open_recipe(recipe, functions={key: lengths[::-1], **given})


def test_a_share_of_0_is_left_out(tmp_path: Path) -> None:
    """As in a metadataset, which is a recipe, too: the same names, seeds and samples."""
    parts = [(0, "ds_a"), (1, "ds_b"), (2, "ds_a")]
    text = "".join(f"    - {{weight: {weight}, path: {GOLDEN}/data/{name}}}\n" for weight, name in parts)
    (tmp_path / "theirs.yaml").write_text(HEAD + "    blend:\n" + text)
    (tmp_path / "ours.yaml").write_text("blend:\n" + text.replace("    -", "-"))
    theirs, ours = ps.open_metadataset(tmp_path / "theirs.yaml"), open_recipe(tmp_path / "ours.yaml")
    assert ours.counts == theirs.counts == {"ds_b": 43, "ds_a-2": 85}  # pyright: ignore
    assert ours.fingerprint == theirs.fingerprint
    jsonschema.validate({"blend": [{"path": "a", "weight": 0}, {"path": "b"}]}, read_schema())
    there = {"path": str(GOLDEN / "data" / "ds_b")}
    # What is left out is not opened.
    assert open_recipe({"blend": [{"path": "nowhere", "weight": "0"}, there]}).counts == {"ds_b": 1}
    assert open_recipe({"blend_epochized": [{"path": "nowhere", "repetitions": 0}, there]}).counts == {"ds_b": 14}
    inner = {"blend_epochized": [{"path": "nowhere"}, there], "repetitions": 0, "name": "x"}
    assert open_recipe({"blend_epochized": [inner, there]}).counts == {"ds_b": 14}


def test_shares_that_are_none() -> None:
    there = {"path": str(GOLDEN / "data" / "ds_b")}
    with pytest.raises(ConfigError, match=r"the recipe is empty: all weights are 0.*ds_b, ds_b-2"):
        open_recipe({"blend": [{**there, "weight": 0}, {**there, "weight": 0}]})
    with pytest.raises(ConfigError, match="0 or more"):
        open_recipe({"blend": [{**there, "weight": -1}, there]})
    with pytest.raises(ConfigError):
        ps.Blend({"a": ps.open(**there)}, {"a": 0})


def test_a_metadatasets_member_in_another_format(tmp_path: Path, rows: Any) -> None:
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
        writer.write({"tokens": [1, 2, 0]})
    with ps.create(tmp_path / "mds", format="mds", columns={"id": "int"}) as writer:
        writer.write({"id": 1})
    (tmp_path / "notes.txt").write_text("nothing\n")
    (tmp_path / "tars").mkdir()
    (tmp_path / "tars" / "a.tar").write_bytes(b"\0" * 1024)
    for name, found in (("a.pbin", "the format 'pbin'"), ("mds", "the format 'mds'"), ("notes.txt", "a file")):
        for text in (f"    path: {name}\n", f"    path: rows.jsonl\n    aux: {{x: {name}}}\n"):
            (tmp_path / "mix.yaml").write_text(HEAD + text)
            with pytest.raises(Unsupported) as refused:
                ps.open_metadataset(tmp_path / "mix.yaml")
            said = str(refused.value)
            assert f"{name}: not a prepared WebDataset: found {found}" in said
            assert "recipe" in said
            assert "penstock prepare" not in said
    (tmp_path / "mix.yaml").write_text(HEAD + "    path: tars\n")
    with pytest.raises(Unsupported, match="penstock prepare"):
        ps.open_metadataset(tmp_path / "mix.yaml")


def test_types_change_nothing_of_other_formats(tmp_path: Path, rows: Any) -> None:
    """`sample_types` are for datasets that name some; every other path is opened as without them."""
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
        writer.write({"tokens": [1, 2, 0]})
    types: Any = {"mine.Row": Row}
    for name in ("a.pbin", "rows.jsonl"):
        node = {"path": str(tmp_path / name)}
        assert open_recipe(node, sample_types=types).fingerprint == open_recipe(node).fingerprint
