"""States of version 0.2.0 under rules that changed since: they load as they are unless batches would differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import run_of

import penstock as ps
from penstock.errors import ResumeMismatch

EOS = 9
INSIDE = [[20 + n, EOS, 40 + n, EOS] for n in range(12)]  # version 0.2.0 cut each of these in two
PLAIN = [[20 + n, 30 + n, 40 + n, EOS] for n in range(12)]
STATES = json.loads((Path(__file__).parents[1] / "golden/states/borders-0.2.0.json").read_text())
"""State by name, after two steps of two samples, as version 0.2.0 saved it: `SOURCE inside|plain[ eos]`, the last with
`Chunk(eos_id=9)`."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("states")
    for name, docs in (("inside", INSIDE), ("plain", PLAIN)):
        for path, options in (
            (f"{name}.pbin", {"format": "pbin", "token_bytes": 2}),
            (name, {"format": "megatron", "dtype": "uint16"}),
        ):
            with ps.create(made / path, eos_id=EOS, **options) as writer:  # type: ignore[arg-type]
                for doc in docs:
                    writer.write({"tokens": np.array(doc)})
    return made


def shifted(source: Any, seed: int = 1, **options: Any) -> Any:
    return ps.Shuffle(ps.Chunk(5, labels="shift", **options)(source), seed=seed)


STREAMS: dict[str, Callable[..., Any]] = {
    "pbin": lambda root, name, **options: shifted(ps.open(root / f"{name}.pbin"), **options),
    "megatron": lambda root, name, **options: shifted(ps.open(root / name), **options),
    "blend": lambda root, name, **options: ps.Blend(
        {"a": STREAMS["pbin"](root, name, **options), "b": STREAMS["megatron"](root, name, seed=2, **options)},
        {"a": 1, "b": 2},
        seed=3,
    ),
    "take": lambda root, name, **options: ps.Shuffle(
        ps.Chunk(5, labels="start-zero", **options)(ps.Take(ps.open(root / f"{name}.pbin"), 1, 11)), seed=1
    ),
    "unlabelled": lambda root, name: ps.Shuffle(ps.Chunk(5)(ps.open(root / f"{name}.pbin")), seed=1),
}


def loader(stream: Any) -> Any:
    return ps.Loader(stream, global_batch=2, rank=0, world=1, workers=0)


@pytest.mark.parametrize("kind", STREAMS)
def test_a_state_loads_as_it_is_if_batches_are_the_same(root: Path, kind: str) -> None:
    for name in ("plain", "inside") if kind in ("megatron", "unlabelled") else ("plain",):
        resumed = loader(STREAMS[kind](root, name))
        assert resumed.load_state_dict(STATES[f"{kind} {name}"]) == []
        again = loader(STREAMS[kind](root, name))
        assert again.load_state_dict(resumed.state_dict()) == []


@pytest.mark.parametrize("kind", ["pbin", "take", "blend"])
def test_a_state_whose_batches_would_differ_names_the_change(root: Path, kind: str) -> None:
    state = STATES[f"{kind} inside"]
    with pytest.raises(ResumeMismatch, match="document borders from the index") as caught:
        loader(STREAMS[kind](root, "inside")).load_state_dict(state)
    assert "accept=['document-borders']" in str(caught.value)
    assert "Chunk(eos_id=9)" in str(caught.value)
    resumed = loader(STREAMS[kind](root, "inside"))
    (line,) = resumed.load_state_dict(state, accept=["document-borders"])
    assert "after the first 4 follow the new rule" in line
    later = loader(STREAMS[kind](root, "inside"))
    assert later.load_state_dict(resumed.state_dict()) == []  # accepted once
    assert later.load_state_dict(resumed.state_dict(), accept=["document-borders"]) == []
    assert run_of(STREAMS[kind](root, "inside"), None, None, state).exact_from == 0  # the same samples are read


@pytest.mark.parametrize("kind", ["pbin", "take"])
@pytest.mark.parametrize("saved", ["", " eos"])
def test_an_explicit_eos_id_keeps_the_former_rule(root: Path, kind: str, saved: str) -> None:
    resumed = loader(STREAMS[kind](root, "inside", eos_id=EOS))
    assert resumed.load_state_dict(STATES[f"{kind} inside{saved}"]) == []
    batch = next(iter(resumed))
    flat = np.array([token for doc in INSIDE for token in doc])
    if kind == "pbin":
        for inputs, mask in zip(batch["inputs"], batch["loss_mask"], strict=True):
            assert (mask == (inputs != EOS)).all()
        assert set(batch["inputs"].ravel().tolist()) <= set(flat.tolist())


def test_an_eos_id_that_an_index_hid_is_a_change_too(root: Path) -> None:
    """Version 0.2.0 ignored `eos_id=` for formats whose index it read."""
    with pytest.raises(ResumeMismatch, match="document borders from each id 9"):
        loader(STREAMS["megatron"](root, "inside", eos_id=EOS)).load_state_dict(STATES["megatron inside eos"])
    assert loader(STREAMS["blend"](root, "plain", eos_id=EOS)).load_state_dict(STATES["blend plain eos"]) == []


def test_another_difference_is_not_hidden(root: Path) -> None:
    with pytest.raises(ResumeMismatch, match="recipe"):
        loader(STREAMS["pbin"](root, "inside", seed=2)).load_state_dict(STATES["pbin inside"])
