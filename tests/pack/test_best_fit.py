"""Best-fit packing: every token once, documents whole, labels that never cross a document."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import penstock as ps
from penstock.errors import ConfigError
from penstock.pack import BestFit
from penstock.pack.best_fit import plan_windows
from penstock.testing import MemoryTokens


def starts_of(lengths: list[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


def slow_best_fit(lengths: list[int], capacity: int) -> int:
    """Windows that best-fit decreasing needs, one document at a time."""
    pieces = [n for length in lengths for n in [capacity] * (length // capacity) + [length % capacity] if n]
    rooms: list[int] = []
    for piece in sorted(pieces, reverse=True):
        fitting = [room for room in rooms if room >= piece]
        if fitting:
            rooms[rooms.index(min(fitting))] -= piece
        else:
            rooms.append(capacity - piece)
    return len(rooms)


@settings(deadline=None, max_examples=150)
@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=80), capacity=st.integers(1, 24))
def test_the_plan_is_best_fit_decreasing(lengths: list[int], capacity: int) -> None:
    plan = plan_windows(starts_of(lengths), capacity)
    n_windows = len(plan.window_starts) - 1
    assert n_windows == slow_best_fit(lengths, capacity)
    filled = [
        int(plan.piece_lengths[plan.window_starts[i] : plan.window_starts[i + 1]].sum()) for i in range(n_windows)
    ]
    assert all(0 < used <= capacity for used in filled)
    covered = np.concatenate(
        [np.arange(s, s + n) for s, n in zip(plan.piece_starts, plan.piece_lengths, strict=True)] or [[]]
    )
    assert sorted(covered.tolist()) == list(range(sum(lengths)))


@settings(deadline=None, max_examples=60)
@given(lengths=st.lists(st.integers(0, 20), min_size=1, max_size=30).filter(any), length=st.integers(1, 12))
def test_samples_hold_what_the_documents_say(lengths: list[int], length: int) -> None:
    documents = [np.arange(1, n + 1) + 100 * (number % 500) for number, n in enumerate(lengths)]
    windows = BestFit(length, pad_id=7)(MemoryTokens([one.astype(np.uint16) for one in documents], dtype=np.uint16))
    seen: list[int] = []
    for i in range(len(windows)):
        sample = windows[i]
        used = int(sample["cu_seqlens"][-1])
        assert (sample["segment_ids"][:used] > 0).all()
        assert not sample["segment_ids"][used:].any()
        assert (sample["tokens"][used:] == 7).all()
        assert sample["max_seqlen"] == np.diff(sample["cu_seqlens"]).max()
        place = windows.place_of(i).documents
        assert place is not None
        borders = sample["cu_seqlens"].tolist()
        for (document, start, stop), begin, end in zip(place, borders[:-1], borders[1:], strict=True):
            assert (start, stop) == (0, lengths[document]) or lengths[document] > length
            assert sample["tokens"][begin:end].tolist() == documents[document][start:stop].tolist()
            assert sample["positions"][begin:end].tolist() == list(range(stop - start))
            following = documents[document][start + 1 : stop + 1].tolist()
            assert sample["targets"][begin : begin + len(following)].tolist() == following
            mask = [True] * len(following) + [False] * (stop - start - len(following))
            assert sample["loss_mask"][begin:end].tolist() == mask
        seen += sample["tokens"][:used].tolist()
        assert not sample["loss_mask"][used:].any()
    assert sorted(seen) == sorted(token for document in documents for token in document.tolist())


def test_rows_of_a_batch_equal_single_samples() -> None:
    rng = np.random.default_rng(5)
    source = MemoryTokens([rng.integers(1, 99, n).astype(np.uint16) for n in rng.integers(0, 60, 200)], dtype=np.uint16)
    windows = BestFit(48)(source)
    indices = rng.integers(0, len(windows), 20)
    batch = windows.get_batch(indices)
    for row, index in enumerate(indices.tolist()):
        for name, value in windows[index].items():
            assert np.array_equal(batch[name][row], value), name
    again = pickle.loads(pickle.dumps(windows))
    assert again.fingerprint == windows.fingerprint
    assert np.array_equal(again[3]["tokens"], windows[3]["tokens"])


class CountingDerived:
    """A place for derived arrays that counts what is built."""

    def __init__(self) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}

    def array(self, key: str, dtype: str, build: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        if key not in self.arrays:
            self.arrays[key] = build().astype(dtype)
        return self.arrays[key]


def test_the_plan_is_made_once_where_it_can_be_kept() -> None:
    derived = CountingDerived()
    source = MemoryTokens([np.arange(1, n, dtype=np.uint16) for n in range(2, 40)], dtype=np.uint16)
    first = BestFit(16, derived=derived)(source)
    expected = first[2]["tokens"]
    assert len(derived.arrays) == 3
    kept = dict(derived.arrays)
    assert np.array_equal(BestFit(16, derived=derived)(source)[2]["tokens"], expected)
    assert derived.arrays == kept
    BestFit(17, derived=derived)(source).plan  # noqa: B018
    assert len(derived.arrays) == 6


def test_a_log_normal_mix_fills_windows_almost_wholly() -> None:
    lengths = np.maximum(1, np.random.default_rng(1).lognormal(5.5, 1.1, 20_000)).astype(np.int64)
    plan = plan_windows(starts_of(lengths.tolist()), 2048)
    best = -(-int(lengths.sum()) // 2048)
    assert best / (len(plan.window_starts) - 1) >= 0.99


@pytest.mark.parametrize("arguments", [{"length": 0}, {"length": 1 << 31}, {"length": 4, "pad_id": -1}])
def test_impossible_arguments_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        BestFit(**arguments)


def test_impossible_sources_are_refused() -> None:
    with pytest.raises(ConfigError, match="pad_id"):
        BestFit(4, pad_id=256)(MemoryTokens([np.ones(3, np.uint8)], dtype=np.uint8))
    with pytest.raises(ConfigError, match="no token"):
        BestFit(4)(MemoryTokens([np.ones(0, np.uint8)], dtype=np.uint8))


@pytest.mark.parametrize("long", ["truncate", "drop"])
def test_documents_longer_than_a_window(long: Any, tmp_path: Path) -> None:
    docs = [[n * 100 + k + 1 for k in range(size)] for n, size in enumerate((13, 11, 4, 25, 7, 10, 0, 3))]
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
        for doc in docs:
            writer.write({"tokens": np.array(doc, np.uint16)})
    windows: Any = ps.BestFit(10, long=long)(ps.open(tmp_path / "a.pbin"))
    expected = [doc[:10] for doc in docs if doc and (len(doc) <= 10 or long == "truncate")]
    found: list[list[int]] = []
    for one in windows:
        cuts = one["cu_seqlens"]
        for start, stop in itertools.pairwise(cuts.tolist()):
            piece = one["tokens"][start:stop].tolist()
            found.append(piece)
            whole = next(doc for doc in docs if doc[:1] == piece[:1])
            mask = one["loss_mask"][start:stop]
            assert one["targets"][start:stop][mask].tolist() == whole[1 : len(piece) + 1]
    assert sorted(found) == sorted(expected)
    assert windows.fill == sum(map(len, expected)) / (len(windows) * 10)
    assert windows.fingerprint != ps.BestFit(10)(windows.source).fingerprint
    assert ps.open_recipe({"penstock": 1, "source": windows.recipe()}).fingerprint == windows.fingerprint  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="unknown long"):
        ps.BestFit(10, long="cut")  # type: ignore[arg-type]


def test_dropping_every_document_is_an_error() -> None:
    with pytest.raises(ConfigError, match="every document is longer"):
        len(ps.BestFit(2, long="drop")(MemoryTokens([[1, 2, 3], [4, 5, 6]])))
