"""The metrics of a loader in TensorBoard and in Weights & Biases, read back by the readers of these packages."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from tests.internals import Metrics, TensorBoard, WandB

import penstock as ps
from penstock.testing.memory import MemoryTokens

PATIENCE_S = 60.0

pytestmark = [pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def mixed() -> Any:
    sources = {"a": ps.Chunk(4)(MemoryTokens([list(range(40))])), "b": ps.Chunk(4)(MemoryTokens([list(range(80))]))}
    return ps.Blend(sources, {"a": 1, "b": 3}, seed=3)


def told(mixed: Any, *adapters: Any) -> list[Metrics]:
    """What the loader tells over ten steps, to each of the adapters too."""
    seen: list[Metrics] = []

    def all_of_them(found: Metrics) -> None:
        seen.append(found)
        for adapter in adapters:
            adapter(found)

    with ps.Loader(mixed, 8, rank=0, world=1, workers=0, on_metrics=all_of_them, metrics_every=5) as loader:
        list(islice(loader, 10))
    return seen


def require_same(rows: dict[str, list[tuple[int, float]]], seen: list[Metrics]) -> None:
    """That what was read back is what the loader told."""
    assert [step for step, _ in rows["data/epochs/a"]] == [5, 10]
    for place, found in enumerate(seen):
        for name, one in found.sources.items():
            assert rows[f"data/tokens/{name}"][place][1] == one.tokens
            assert rows[f"data/epochs/{name}"][place][1] == pytest.approx(one.epochs)
        assert rows["data/waiting_seconds"][place][1] == pytest.approx(found.waiting_seconds, rel=1e-5)
        assert rows["data/substituted_samples"][place][1] == found.substituted
        assert rows["data/consumed_samples"][place][1] == found.consumed


def test_tensorboard(mixed: Any, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = told(mixed, TensorBoard(tmp_path / "runs"))
    read: Any = EventAccumulator(str(tmp_path / "runs"))
    read.Reload()
    rows = {name: [(one.step, one.value) for one in read.Scalars(name)] for name in read.Tags()["scalars"]}
    require_same(rows, seen)


def test_torch_writer(mixed: Any, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        seen = told(mixed, TensorBoard(writer))
    read: Any = EventAccumulator(str(tmp_path))
    read.Reload()
    require_same({name: [(one.step, one.value) for one in read.Scalars(name)] for name in read.Tags()["scalars"]}, seen)


def records_of(data: bytes) -> Iterator[bytes]:
    """The records of a run's file: a log in blocks of 32 KiB, as LevelDB writes it, behind a head of 7 bytes."""
    assert data[:4] == b":W&B"
    place, whole = 7, b""
    while place < len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
        _, length, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield whole
            whole = b""


def whole_run(path: Path, kind: Any) -> list[Any]:
    """The records of a run that is over: `finish` comes back before its service has written them all."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            found = [kind.FromString(data) for data in records_of(path.read_bytes())]
        except (struct.error, DecodeError):  # the last one is being written
            found = []
        if found and found[-1].WhichOneof("record_type") == "exit":
            return found
        assert time.monotonic() < end, "no run that is over"
        time.sleep(0.05)


def test_wandb(mixed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its package has no reader in Python any more: its messages read the records of its file."""
    for name, value in (("SILENT", "true"), ("ERROR_REPORTING", "false"), ("BASE_URL", "http://127.0.0.1:9")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    wandb: Any = pytest.importorskip("wandb")
    messages: Any = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    run = wandb.init(mode="offline", dir=str(tmp_path), project="test")
    seen = told(mixed, WandB(run))
    run.finish()
    [path] = tmp_path.rglob("*.wandb")
    rows: dict[str, list[tuple[int, float]]] = {}
    for record in whole_run(path, messages.Record):
        if record.WhichOneof("record_type") == "history":
            items = {one.key or "/".join(one.nested_key): json.loads(one.value_json) for one in record.history.item}
            for name, value in items.items():
                rows.setdefault(name, []).append((items["data/step"], value))
    require_same(rows, seen)
