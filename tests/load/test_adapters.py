"""Metrics of a loader to TensorBoard and Weights & Biases; the real runs of these are read back by `make browser`."""

from __future__ import annotations

import os
import pickle
from itertools import islice
from typing import Any

import pytest
from tests.internals import Metrics, TensorBoard, WandB, scalars

import penstock as ps
from penstock.errors import ConfigError
from penstock.testing.memory import MemoryTokens


class Writer:
    def __init__(self) -> None:
        self.rows: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, value: float, step: int, /) -> None:
        self.rows.append((tag, value, step))


class Run:
    def __init__(self) -> None:
        self.defined: list[tuple[str, dict[str, Any]]] = []
        self.rows: list[dict[str, Any]] = []

    def define_metric(self, name: str, **how: Any) -> None:
        self.defined.append((name, how))

    def log(self, data: dict[str, Any], /) -> None:
        self.rows.append(data)


def told(*adapters: Any) -> list[Metrics]:
    """What a loader of two sources tells over ten steps, handed to the adapters too."""
    sources = {"a": ps.Chunk(4)(MemoryTokens([list(range(40))])), "b": ps.Chunk(4)(MemoryTokens([list(range(80))]))}
    seen: list[Metrics] = []

    def all_of_them(found: Metrics) -> None:
        seen.append(found)
        for adapter in adapters:
            adapter(found)

    mixed = ps.Blend(sources, {"a": 1, "b": 3}, seed=3)
    with ps.Loader(mixed, 8, rank=0, world=1, workers=0, on_metrics=all_of_them, metrics_every=5) as loader:
        list(islice(loader, 10))
    return seen


def test_the_same_figures_to_both() -> None:
    writer, run = Writer(), Run()
    seen = told(TensorBoard(writer, "d"), WandB(run, "d"))
    assert [row["d/step"] for row in run.rows] == [one.step for one in seen] == [5, 10]
    by_writer = {(name, step): value for name, value, step in writer.rows}
    for row, found in zip(run.rows, seen, strict=True):
        assert {name: value for name, value in row.items() if name != "d/step"} == {
            name: value for (name, step), value in by_writer.items() if step == found.step
        }
        for name, one in found.sources.items():
            assert (row[f"d/tokens/{name}"], row[f"d/epochs/{name}"]) == (one.tokens, one.epochs)
        assert row["d/share/a"] + row["d/share/b"] == 1
        assert (row["d/substituted_samples"], row["d/waiting_seconds"]) == (found.substituted, found.waiting_seconds)
    assert run.defined == [("d/step", {"hidden": True}), ("d/*", {"step_metric": "d/step"})]


def test_shares_of_time_are_since_the_call_before() -> None:
    first, second = told()
    waited = second.waiting_seconds - first.waiting_seconds
    whole = waited + second.training_seconds - first.training_seconds
    assert scalars(second, first)["waiting_share"] == pytest.approx(waited / whole)


def test_what_takes_no_metrics_is_refused() -> None:
    with pytest.raises(ConfigError, match="add_scalar"):
        TensorBoard(7)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"s3://bucket/runs"):
        TensorBoard("s3://bucket/runs")
    with pytest.raises(ConfigError, match=r"wandb\.init"):
        WandB(None)


def test_a_folder_goes_to_worker_processes() -> None:
    assert pickle.loads(pickle.dumps(TensorBoard("runs", "x"))).__reduce__()[1] == (os.path.abspath("runs"), "x")
