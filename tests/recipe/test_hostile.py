"""Files with anything in the place of anything: opened, or refused with a typed error."""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.recipe import open_metadataset, open_recipe

from .conftest import GOLDEN as KEPT
from .conftest import MDS
from .functions import beside

# What opens a JSONL in another flavour makes an index beside it.
_FOLDER = tempfile.TemporaryDirectory(prefix="penstock-hostile-")
GOLDEN = Path(shutil.copytree(KEPT, Path(_FOLDER.name) / "golden"))

SCALARS: list[Any] = [
    *(None, True, -1, 0, 1.5, 10**30, float("nan"), float("inf"), "", "a", "~"),
    *("no/such", "s3://", "x" * 300, "\0"),
]
NESTED: list[Any] = [
    *([], {}, [[]], [{}], {"a": 1}, {"path": "none"}, {"range": [1]}, [1, 2], ["0%", "end"]),
    {"kind": "open"},
]
JUNK = st.sampled_from(SCALARS) | st.sampled_from(NESTED)
FILES = sorted(path for path in MDS.glob("*.yaml") if not path.name.startswith("bad_"))


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in plain data, the root left out."""
    pairs: list[Any] = []
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value))
    return [place for key, one in pairs for place in ((*at, key), *places(one, (*at, key)))]


def changed(value: Any, place: tuple[Any, ...], junk: Any, is_key: bool) -> Any:
    value = copy.deepcopy(value)
    inner = value
    for key in place[:-1]:
        inner = inner[key]
    if is_key and isinstance(inner, dict):
        inner[str(junk)] = inner.pop(place[-1])
    else:
        inner[place[-1]] = junk
    return value


@settings(max_examples=30, deadline=None)
@given(data=st.data(), file=st.sampled_from(FILES), junk=JUNK, is_key=st.booleans())
def test_metadatasets(tmp_path_factory: pytest.TempPathFactory, data: Any, file: Path, junk: Any, is_key: bool) -> None:
    value = yaml.safe_load(file.read_text().replace("../", f"{GOLDEN}/data/"))
    place = data.draw(st.sampled_from(places(value)))
    made = tmp_path_factory.mktemp("mds") / "made.yaml"
    try:
        made.write_text(yaml.safe_dump(changed(value, place, junk, is_key)))
    except yaml.YAMLError:
        return
    for split in ("train", "val"):
        with contextlib.suppress(PenstockError):
            found: Any = open_metadataset(made, split=split, mode="val", joiners={"fixture_joiners.pair": beside})
            assert len(found) >= 0


RECIPE: dict[str, Any] = {
    "penstock": 1,
    "batch": {"global_batch": 8, "world": 2},
    "stream": {
        "stages": [
            {
                "length": 8,
                "blend": [
                    {"path": f"{GOLDEN}/data/ds_a", "weight": 2, "subset": {"range": ["0%", "50%"]}},
                    {
                        "kind": "shuffle",
                        "seed": 3,
                        "lanes": 1,
                        "source": {"kind": "take", "start": 1, "stop": 9, "source": {"path": f"{GOLDEN}/data/ds_b"}},
                        "weight": 1,
                        "name": "b",
                    },
                ],
                "seed": 4,
            },
            {
                "blend_epochized": [
                    {"path": f"{GOLDEN}/data/primary.jsonl", "repetitions": 1.5, "aux": {"i": f"{GOLDEN}/data/aux_img"}}
                ],
                "shuffle": {"seed": 1},
                "skip": [[1, 3]],
            },
        ]
    },
}


def test_the_recipe_is_sound() -> None:
    assert open_recipe(RECIPE).locate(3).path[0] == "0"


@settings(max_examples=60, deadline=None)
@given(place=st.sampled_from(places(RECIPE)), junk=JUNK, is_key=st.booleans())
def test_recipes(place: tuple[Any, ...], junk: Any, is_key: bool) -> None:
    with contextlib.suppress(PenstockError):
        assert open_recipe(changed(RECIPE, place, junk, is_key)).recipe()


@settings(max_examples=20, deadline=None)
@given(text=st.text() | st.binary())
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, text: str | bytes) -> None:
    folder = tmp_path_factory.mktemp("any")
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    for name, read in (("a.yaml", open_metadataset), ("a.yaml", open_recipe), ("a.json", open_recipe)):
        (folder / name).write_bytes(raw)
        with pytest.raises(PenstockError):
            read(folder / name)


def test_deep_nesting() -> None:
    node: Any = {"path": "a"}
    for _ in range(400):
        node = {"kind": "take", "start": 0, "stop": 1, "source": node}
    with pytest.raises(PenstockError, match="too deeply"):
        open_recipe(json.loads(json.dumps(node)))
