"""What version 0.1 saved, states and recipes, is read by every later one, and goes on with the same samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import ResumeMismatch

from .old_states import BATCH, STEPS, STREAMS, digest, loader

SAVED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "penstock" / "states-0.1.json").read_text()
)


@pytest.fixture(autouse=True)
def in_the_golden_folder(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(golden)


def test_all_are_saved() -> None:
    assert set(SAVED) == set(STREAMS)


@pytest.mark.parametrize("name", sorted(SAVED))
def test_a_state_of_0_1_goes_on(name: str) -> None:
    fed = loader(name)
    fed.load_state_dict(SAVED[name]["state"])
    batches = iter(fed)
    assert digest([next(batches) for _ in range(5)]) == SAVED[name]["next"]
    assert fed.state_dict()["consumed"] == (STEPS + 5) * BATCH


@pytest.mark.parametrize("name", sorted(name for name in SAVED if SAVED[name]["recipe"]))
def test_a_recipe_of_0_1_is_the_same_stream(name: str, tmp_path: Path) -> None:
    recipe = SAVED[name]["recipe"]
    stream = ps.open_recipe(recipe)
    assert stream.fingerprint == STREAMS[name]().fingerprint
    fed = ps.Loader(stream, global_batch=BATCH, rank=0, world=1, workers=0)
    fed.load_state_dict(SAVED[name]["state"])
    batches = iter(fed)
    assert digest([next(batches) for _ in range(5)]) == SAVED[name]["next"]


def test_a_state_of_another_stream_is_refused() -> None:
    with pytest.raises(ResumeMismatch):
        loader("blend").load_state_dict(SAVED["shuffle"]["state"])
