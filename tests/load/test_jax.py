"""The JAX loader against a stand-in for jax: what it is given, and when. The real jax stands in `tests/interop`."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pytest

from penstock.errors import ConfigError, MissingExtra, TooLarge
from penstock.load import Loader
from penstock.order import Sequential, Shuffle
from penstock.pack import BestFit, Chunk
from penstock.testing.memory import MemorySource, MemoryTokens

DOCUMENTS = [[*range(1 + i, 6 + i + i % 7), 0] for i in range(60)]


@dataclass(frozen=True)
class Local:
    """What the stand-in makes of an array of one process."""

    value: Any


@dataclass(frozen=True)
class Global:
    """What it makes of rows of one process."""

    sharding: Any
    rows: Any
    shape: tuple[int, ...]


class PartitionSpec(tuple):
    def __new__(cls, *parts: Any) -> PartitionSpec:
        return super().__new__(cls, parts)


@dataclass(frozen=True)
class NamedSharding:
    mesh: str
    spec: PartitionSpec


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`penstock.load.jax` over the stand-in, which says that this is process 1 of 2."""
    jax: Any = types.ModuleType("jax")
    jax.numpy = types.SimpleNamespace(asarray=Local)
    jax.process_index, jax.process_count = (lambda: 1), (lambda: 2)
    jax.make_array_from_process_local_data = Global
    jax.sharding = types.SimpleNamespace(NamedSharding=NamedSharding, PartitionSpec=PartitionSpec)
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.delitem(sys.modules, "penstock.load.jax", raising=False)
    yield importlib.import_module("penstock.load.jax")
    sys.modules.pop("penstock.load.jax", None)


def windows(dtype: str = "uint16", labels: Any = None) -> Any:
    return Chunk(8, labels=labels)(MemoryTokens(DOCUMENTS, eos_id=0, dtype=dtype))


def test_without_jax_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "penstock.load.jax", raising=False)
    with pytest.raises(MissingExtra, match="pip install jax"):
        importlib.import_module("penstock.load.jax")


def test_rank_and_world_are_those_of_the_process(module: Any) -> None:
    loader = module.JaxLoader(Shuffle(windows(), seed=3), 8)
    assert (loader.rank, loader.world, loader.global_batch) == (1, 2, 8)
    plain = Loader(Shuffle(windows(), seed=3), 8, rank=1, world=2)
    for ours, theirs in islice(zip(loader, plain, strict=False), 5):
        assert isinstance(ours["tokens"], Local)
        assert ours["tokens"].value.dtype == np.int32
        assert ours["tokens"].value.tolist() == theirs["tokens"].tolist()
    assert repr(loader).startswith("<JaxLoader")
    given = module.JaxLoader(Shuffle(windows(), seed=3), 8, rank=0, world=1)
    assert next(iter(given))["tokens"].value.shape == (8, 8)
    with pytest.raises(ConfigError, match="together"):
        module.JaxLoader(Shuffle(windows(), seed=3), 8, rank=0)


def test_rows_of_all_processes_become_one_array(module: Any) -> None:
    sharding = NamedSharding("mesh", PartitionSpec("data", None))
    loader = module.JaxLoader(Sequential(BestFit(16)(MemoryTokens(DOCUMENTS, eos_id=0))), 8, sharding=sharding)
    batch = next(iter(loader))
    for name in ("tokens", "inputs", "targets", "segment_ids", "positions", "loss_mask"):
        assert batch[name].shape == (8, 16)
        assert batch[name].rows.shape == (4, 16)
        assert batch[name].sharding is sharding
    assert batch["loss_mask"].rows.dtype == np.bool_
    assert isinstance(batch["cu_seqlens"], Local)
    assert isinstance(batch["max_seqlen"], int)


def test_a_sharding_is_cut_to_the_dimensions_of_a_field(module: Any) -> None:
    source = MemorySource([{"x": np.arange(3), "y": i} for i in range(8)])
    sharding = NamedSharding("mesh", PartitionSpec("data", None))
    batch = next(iter(module.JaxLoader(source, 4, sharding=sharding, tail="drop")))
    assert batch["x"].shape == (4, 3)
    assert batch["y"].sharding == NamedSharding("mesh", PartitionSpec("data"))
    assert batch["valid"].shape == (4,)
    by_name = next(iter(module.JaxLoader(source, 4, sharding={"x": sharding}, tail="drop")))
    assert isinstance(by_name["x"], Global)
    assert isinstance(by_name["y"], Local)


def test_state_is_that_of_a_loader(module: Any) -> None:
    loader = module.JaxLoader(Shuffle(windows(), seed=3), 8)
    batches = [batch["tokens"].value.tolist() for batch in islice(loader, 6)]
    loader.seek(2)
    state = loader.state_dict()
    assert (state["consumed"], loader.step, loader.consumed) == (16, 2, 16)
    again = module.JaxLoader(Shuffle(windows(), seed=3), 8)
    assert again.load_state_dict(state) == []
    assert [batch["tokens"].value.tolist() for batch in islice(again, 4)] == batches[2:]
    plain = Loader(Shuffle(windows(), seed=3), 8, rank=1, world=2)
    plain.load_state_dict(state)
    assert next(iter(plain))["tokens"].tolist() == batches[2]


def test_one_pass_ends(module: Any) -> None:
    loader = module.JaxLoader(windows(), 8, tail="pad")
    assert len(list(loader)) == len(loader)
    with pytest.raises(TypeError):
        len(module.JaxLoader(Shuffle(windows(), seed=3), 8))


def test_values_that_are_no_rows(module: Any) -> None:
    source = MemorySource([{"text": "a" * i, "run": np.arange(i)} for i in range(8)])
    batch = next(iter(module.JaxLoader(source, 4, tail="drop", sharding="s")))
    assert batch["text"] == ["a", "aaa"]
    assert [one.value.tolist() for one in batch["run"]] == [[0], [0, 1, 2]]


def test_ids_that_int32_does_not_hold(module: Any) -> None:
    source = Chunk(2)(MemoryTokens([[1, 1 << 31]], dtype="uint32"))
    with pytest.raises(TooLarge, match="tokens"):
        next(iter(module.JaxLoader(source, 2, tail="pad", workers=0)))


def test_own_collate(module: Any) -> None:
    loader = module.JaxLoader(Sequential(windows()), 4, collate=lambda batch: {"n": batch["tokens"].sum(1)})
    assert next(iter(loader))["n"].value.shape == (2,)
    tuples = module.JaxLoader(Sequential(windows()), 4, collate=lambda batch: (batch["tokens"],))
    assert isinstance(next(iter(tuples)), tuple)
