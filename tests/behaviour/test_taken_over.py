"""States that the original's own loader saved: the number of samples is taken over, or it is said what is lost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.compat import energon as en
from penstock.errors import ResumeMismatch


@dataclass
class SavableDataLoaderState:
    """As the original's, by name and fields."""

    worker_states: list[Any]
    next_worker_id: int
    micro_batch_size: int | None


@dataclass
class SavableDatasetState:
    sample_index: int


@dataclass
class SavableDatasetCheckpoint:
    state: SavableDatasetState | None
    offset: int


ALONE = SavableDataLoaderState([{"__class__": "SimpleSavableDatasetWrapper", "_sample_index": 6}], 0, 4)
WORKERS = SavableDataLoaderState(
    [SavableDatasetCheckpoint(SavableDatasetState(2), 1), SavableDatasetCheckpoint(None, 3)], 1, 4
)


@en.stateless
def cook(sample: Any) -> en.TextSample:
    return en.TextSample(**en.basic_sample_keys(sample), text=sample["json"]["text"])


class Texts(en.DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (en.Cooker(cook),)


class Packs(Texts):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return samples[0]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": f"text {number}"}) + "\n" for number in range(10)))
    return path


def loader(path: Path, *, rank: int = 0, world: int = 1, encoder: Any = None, **more: Any) -> Any:
    config = en.WorkerConfig(rank=rank, world_size=world, num_workers=0)
    options: dict[str, Any] = {"batch_size": 4, "shuffle_buffer_size": None, "max_samples_per_sequence": None, **more}
    encoder = Texts() if encoder is None else encoder
    return en.get_savable_loader(en.get_train_dataset(path, worker_config=config, task_encoder=encoder, **options))


def texts(one: Any, batches: int) -> list[str]:
    return [text for _, batch in zip(range(batches), one, strict=False) for text in batch.text]


@pytest.mark.parametrize(("state", "ranks"), [(ALONE, 1), (WORKERS, 1), ([ALONE], 1), ([ALONE, WORKERS], 2)])
def test_the_number_of_samples_is_taken_over(rows: Path, state: Any, ranks: int) -> None:
    taken = loader(rows)
    taken.restore_state_rank(state, accept=["order"])
    assert texts(taken, 5) == texts(loader(rows), 6 * ranks + 5)[6 * ranks * 4 :]
    again = loader(rows)
    again.restore_state_rank(json.loads(json.dumps(taken.save_state_rank())))
    assert texts(again, 3) == texts(taken, 3)


def test_on_other_ranks_no_sample_comes_twice(rows: Path) -> None:
    found: list[str] = []
    for rank in range(2):
        taken = loader(rows, rank=rank, world=2, batch_size=1)
        taken.restore_state_global([SavableDataLoaderState([{"_sample_index": 10}], 0, 1)], accept=["order"])
        found += texts(taken, 5)
    # Ten samples were one pass; these are the next.
    assert sorted(found) == sorted(f"text {number}" for number in range(10))
    own = loader(rows, rank=1, world=2, batch_size=1)
    own.restore_state_rank(SavableDataLoaderState([{"_sample_index": 5}], 0, 1), accept=["order"])
    assert texts(own, 5) == found[5:]


@pytest.mark.parametrize("state", [ALONE, [WORKERS]])
def test_what_is_lost_is_said(rows: Path, state: Any) -> None:
    with pytest.raises(ResumeMismatch, match=r"a different order.*6 batches of 4.*after 24 samples.*repeated.*skipped"):
        loader(rows).restore_state_rank(state)


@pytest.mark.parametrize("more", [{"repeat": False}, {"encoder": Packs(), "packing_buffer_size": 4}])
def test_where_a_number_of_samples_is_no_place(rows: Path, more: dict[str, Any]) -> None:
    with pytest.raises(ResumeMismatch, match="is unknown here"):
        loader(rows, **more).restore_state_rank(ALONE, accept=["order"])


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (SavableDataLoaderState([{"_sample_index": 6}], 0, None), "without a fixed batch size"),
        ([ALONE, SavableDataLoaderState([{"_sample_index": 6}], 0, 8)], "without a fixed batch size"),
        (SavableDataLoaderState([{}], 0, 4), "without a position"),
        (SavableDataLoaderState([SavableDatasetCheckpoint(None, -1)], 0, 4), "without a position"),
        ("state", "not a state of this loader"),
        ([], "not a state of this loader"),
        ([{"version": 1}], "not a state of this loader"),
    ],
)
def test_what_is_no_such_state(rows: Path, state: Any, said: str) -> None:
    with pytest.raises(ResumeMismatch, match=said):
        loader(rows).restore_state_rank(state, accept=["order"])
