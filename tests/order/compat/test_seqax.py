"""seqax's shuffle: permutations and batches as its own loader gave them, and what the order covers."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import penstock as ps
from penstock.errors import ConfigError
from penstock.order.compat.seqax import SeqaxParams, SeqaxPass, seqax_order, seqax_permutation
from penstock.store import DerivedCache
from penstock.testing.memory import MemorySource
from penstock.testing.sources import SourceLaws
from penstock.types import Sample

PARAMS = SeqaxParams(6, 3, 2, 4, 11)


@pytest.fixture(scope="module")
def loader(golden: Path) -> dict[str, Any]:
    """What the real loader gave."""
    return json.loads((golden / "flat-tokens" / "loader" / "expected_loader.json").read_text())


def params_of(case: dict[str, Any]) -> SeqaxParams:
    names = ("batch", "streams", "read_blocks_per_shuffle_buffer", "sequences_per_read_block", "seed")
    return SeqaxParams(**{name: case[name] for name in names})


def sha(array: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def one_by_one(seed: int, n: int) -> list[int]:
    """The walk as it is written down."""
    words = np.random.Philox(seed).random_raw(n).tolist() if n else []
    places = list(range(n))
    for i in reversed(range(n)):
        j = words[i] % (i + 1)
        places[i], places[j] = places[j], places[i]
    return places


def test_permutations_of_the_original(loader: dict[str, Any]) -> None:
    assert len(loader["permutations"]) == 16
    for name, expected in loader["permutations"].items():
        seed, n = name.removeprefix("seed").split("_n")
        assert seqax_permutation(int(seed), int(n)).tolist() == expected


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 1 << 70), st.integers(0, 3000))
def test_permutations_are_the_walk(seed: int, n: int) -> None:
    assert seqax_permutation(seed, n).tolist() == one_by_one(seed, n)


def test_batches_of_the_original(loader: dict[str, Any], golden: Path) -> None:
    for case in loader["cases"]:
        source = ps.open(golden / "flat-tokens" / case["dataset"], split=case["split"])
        windows = ps.Chunk(case["len"], labels="start-zero")(source)  # type: ignore[arg-type]
        run = SeqaxPass(windows, params_of(case))
        assert len(windows) == case["seq_count"]
        assert run.params.read_blocks(len(windows)) == case["read_block_count"]
        assert run.steps == case["step_count"]
        assert len(windows) - len(run) == case["windows_never_visited"]
        for text, expected in case["steps"].items():
            step = int(text)
            assert run.sequences(step).tolist() == expected["packed_window_of_each_row"]
            batch = run.get_batch(np.arange(case["batch"]) + step * case["batch"])
            assert sha(batch["targets"].astype("<u4")) == expected["targets_sha256_u32le"]
            assert sha(batch["is_seq_start"].astype(np.uint8)) == expected["is_seq_start_sha256_u8"]
            assert batch["targets"][0].tolist() == expected["first_row"]


def test_through_the_loader(loader: dict[str, Any], golden: Path) -> None:
    """The loader's batches are the original's steps, and a rank's rows are of those batches."""
    case = loader["cases"][2]
    windows = ps.Chunk(case["len"], labels="start-zero")(
        ps.open(golden / "flat-tokens" / case["dataset"], split=case["split"])  # type: ignore[arg-type]
    )
    run = SeqaxPass(windows, params_of(case))
    batches = list(ps.Loader(run, global_batch=case["batch"], rank=0, world=1, tail="drop"))
    assert len(batches) == case["step_count"]
    for text, expected in case["steps"].items():
        assert sha(batches[int(text)]["targets"].astype("<u4")) == expected["targets_sha256_u32le"]


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    *(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(1, 6)),
    *(st.integers(0, 1 << 40), st.integers(1, 200)),
)
def test_each_sequence_at_most_once_and_rows_by_stream(
    rows: int, streams: int, blocks: int, size: int, seed: int, sequences: int
) -> None:
    params = SeqaxParams(rows * streams, streams, blocks, size, seed)
    if not params.read_blocks(sequences):
        with pytest.raises(ConfigError):
            seqax_order(sequences, params)
        return
    order = seqax_order(sequences, params)
    used = params.read_blocks(sequences) * size
    assert len(order) == params.steps(sequences) * params.batch <= used
    assert used - len(order) < params.batch
    assert len(np.unique(order)) == len(order)
    assert len(order) == 0 or int(order.max()) < used
    # A stream's rows come from its own blocks only.
    block_order = seqax_permutation(seed, params.read_blocks(sequences))
    by_row = order.reshape(-1, streams, rows)
    for stream in range(streams):
        assert set((by_row[:, stream] // size).flat) <= set(block_order[stream::streams].tolist())


def test_the_order_is_made_once_and_mapped(tmp_path: Path) -> None:
    asked: list[str] = []

    class Watched:
        def __init__(self) -> None:
            self.inner = DerivedCache(str(tmp_path))

        def array(self, key: str, dtype: str, build: Callable[[], NDArray[Any]]) -> NDArray[Any]:
            asked.append(key)
            return self.inner.array(key, dtype, build)

    source = MemorySource([{"n": n} for n in range(50)])
    plain, kept = SeqaxPass(source, PARAMS), SeqaxPass(source, PARAMS, Watched())
    assert asked == []
    for run in (kept, pickle.loads(pickle.dumps(SeqaxPass(source, PARAMS, DerivedCache(str(tmp_path)))))):
        assert [run[i] for i in range(len(run))] == [plain[i] for i in range(len(plain))]
    assert len(set(asked)) == 1
    assert len([*(tmp_path / "derived").glob("*.npy")]) == 1
    other = SeqaxPass(source, SeqaxParams(6, 3, 2, 4, 12), DerivedCache(str(tmp_path)))
    assert other.sequences(0).tolist() != plain.sequences(0).tolist()
    assert other.fingerprint != plain.fingerprint
    assert len([*(tmp_path / "derived").glob("*.npy")]) == 2


def test_what_can_not_be() -> None:
    for changed in (
        {"batch": 0},
        {"streams": 0},
        {"streams": 4},
        {"read_blocks_per_shuffle_buffer": 0},
        {"sequences_per_read_block": -1},
        {"seed": -1},
    ):
        with pytest.raises(ConfigError):
            replace(PARAMS, **changed)
    with pytest.raises(ConfigError, match="too few"):
        SeqaxPass(MemorySource([{"n": 1}] * 11), PARAMS)
    run = SeqaxPass(MemorySource([{"n": 1}] * 24), PARAMS)
    with pytest.raises(IndexError):
        run.sequences(run.steps)


class TestLaws(SourceLaws):
    @pytest.fixture
    def source(self) -> SeqaxPass[Sample]:
        return SeqaxPass(MemorySource([{"n": n} for n in range(50)]), PARAMS)

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return [{"n": int(n)} for n in seqax_order(50, PARAMS)]
