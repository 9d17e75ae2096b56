"""Explaining runs: what a step read, where a document came; held against the loader and against brute force."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.internals import (
    Flavored,
    SeqaxParams,
    SeqaxPass,
    compare,
    decode_state,
    describe,
    explain_document,
    explain_step,
    indices_of,
    plan,
    positions_of,
    run_of,
)
from tests.internals import plan_once as once

import penstock as ps
from penstock.errors import ConfigError, NotFound, ResumeMismatch
from penstock.testing import FileServer, KeyedSource, MemorySource, MemoryTokens

TOKENS = MemoryTokens([[n % 7 + 1] * (n % 9 + 1) for n in range(60)], eos_id=0)


def keyed(count: int, name: str) -> Any:
    """A source with keys, as a WebDataset has them."""
    return KeyedSource([{"__key__": f"{name}{number}"} for number in range(count)])


def unchanged(sample: Any) -> Any:
    return sample


def _mix(lanes: int = 1) -> Any:
    inner = ps.Blend({"c": keyed(5, "x"), "d": keyed(8, "y")}, {"c": 1, "d": 2}, lanes=lanes)
    return ps.Blend({"a": keyed(11, "x"), "b": inner}, {"a": 0.6, "b": 0.4}, seed=4, lanes=lanes)


SEQAX = SeqaxParams(batch=4, streams=2, seed=3, sequences_per_read_block=2, read_blocks_per_shuffle_buffer=2)

STREAMS: dict[str, Callable[[], Any]] = {
    "shuffle": lambda: ps.Shuffle(keyed(13, "x"), 3),
    "sequential": lambda: ps.Sequential(keyed(13, "x"), lanes=2),
    "blocks": lambda: ps.Shuffle(keyed(40, "x"), 3, mode="blocks", block_size=4, lanes=3),
    "blend": _mix,
    "blend in lanes": lambda: _mix(3),
    "stages": lambda: ps.Stages(
        [(20, _mix()), (9, ps.Shuffle(keyed(7, "x"), 1)), (None, ps.Shuffle(keyed(9, "x"), 2))]
    ),
    "skip": lambda: ps.Skip(_mix(), [(3, 9), (30, 31)]),
    "map": lambda: ps.Map(ps.Shuffle(ps.Map(keyed(9, "x"), unchanged), 1), unchanged),
    "epochs": lambda: ps.Shuffle(ps.Epochs({"a": (keyed(6, "x"), 2), "b": (ps.Shuffle(keyed(5, "x"), 1), 0.5)}), 3),
    "flavored concat": lambda: ps.Shuffle(Flavored(ps.Concat([keyed(6, "x"), keyed(4, "x")]), {"a": 1}), 3),
    "concat": lambda: ps.Shuffle(ps.Concat([keyed(6, "x"), ps.Take(keyed(9, "x"), 2, 5)]), 3),
    "join": lambda: ps.Shuffle(ps.Join(keyed(6, "x"), keyed(4, "x"), how="skip"), 3),
    "numbers": lambda: ps.Shuffle(MemorySource([{"a": n} for n in range(9)]), 3),
    "chunk": lambda: ps.Shuffle(ps.Chunk(16, overlap=3)(TOKENS), 3),
    "whole": lambda: ps.Shuffle(ps.Whole(5)(TOKENS), 3),
    "best-fit": lambda: ps.Shuffle(ps.BestFit(16)(TOKENS), 3),
    "megatron-blocks": lambda: ps.Shuffle(ps.MegatronBlocks(16)(TOKENS), 3),
    "documents": lambda: ps.Shuffle(ps.Take(TOKENS, 5, 20), 3),
    "by length": lambda: ps.Shuffle(ps.PackByLength(keyed(9, "x"), 5, np.arange(9) % 4 + 1), 3),
    "balance": lambda: ps.Balance(ps.Shuffle(keyed(9, "x"), 3), 4, np.arange(9), steps=2),
    "seqax": lambda: ps.Sequential(SeqaxPass(keyed(40, "x"), SEQAX)),
    "streaming": lambda: ps.StreamingOrder(
        ps.Concat([keyed(20, "x"), keyed(20, "y")]), batch_size=4, shuffle=True, shuffle_algo="naive"
    ),
}  # fmt: skip


KEYS = ["x3", "x0", "y2", "7", "59", "nothing", "999"]


def keys_at(stream: Any, position: int) -> set[str]:
    """The keys of all documents at a position."""
    at = stream.locate(position)
    if at.documents is not None:
        return {str(document) for document, _, _ in at.documents}
    return {str(at.index) if at.key is None else at.key}


@pytest.mark.parametrize("name", sorted(set(STREAMS) - {"by length"}))
def test_the_inverse_is_brute_force(name: str, own_cache: None) -> None:
    stream = STREAMS[name]()
    keys = [keys_at(stream, position) for position in range(150)]
    for key in KEYS:
        expected = [position for position, found in enumerate(keys) if key in found]
        assert list(positions_of(stream, key, len(keys))) == expected, key


@pytest.mark.parametrize("name", sorted(STREAMS))
def test_a_document_that_no_source_has_is_not_found(name: str, own_cache: None) -> None:
    run = run_of(STREAMS[name](), 4, 1, None)
    for key in ("nothing", "999", "x999", ""):
        with pytest.raises(NotFound, match="no source in this run contains document"):
            explain_document(run, key, 9, 100)


def test_a_document_that_is_left_out_is_at_no_position() -> None:
    taken = run_of(ps.Sequential(ps.Take(keyed(9, "x"), 2, 5)), 3, 1, None)
    assert explain_document(taken, "x7", 9, 100)["samples"] == []
    late = run_of(ps.Sequential(keyed(9, "x")), 3, 1, None)
    assert explain_document(late, "x8", 1, 100)["samples"] == [], "not in the first step"


def test_the_inverse_of_groups(own_cache: None) -> None:
    stream = STREAMS["by length"]()
    [index] = indices_of(stream.source, "x3").tolist()
    assert 3 in stream.source.members(index)
    assert stream.locate(next(positions_of(stream, "x3", 40))).index == index


@settings(max_examples=30, deadline=None)
@given(batch=st.integers(1, 12), world=st.integers(1, 4), step=st.integers(0, 20))
def test_steps_are_the_loaders(batch: int, world: int, step: int) -> None:
    stream, size = _mix(), batch * world
    run = run_of(stream, size, world, None)
    loader = ps.Loader(stream, global_batch=size, rank=0, world=world, workers=0)
    whole = explain_step(run, step)
    assert [one["position"] for one in whole["samples"]] == loader.positions(step).tolist()
    for rank in range(world):
        own = explain_step(run, step, rank)["samples"]
        assert own == [one for one in whole["samples"] if one["position"] % world == rank]
        reader = ps.Loader(stream, global_batch=size, rank=rank, world=world, workers=0, start=step * size)
        assert list(next(iter(reader))["__key__"]) == [one["key"] for one in own]


def _resumed(shapes: list[tuple[int, int, int]]) -> tuple[Any, Any, list[tuple[int, list[str]]]]:
    """A run through several shapes (steps, global batch, world): stream, state, and what its steps held."""
    stream, state, seen = _mix(), None, list[tuple[int, list[str]]]()
    for steps, batch, world in shapes:
        loader = ps.Loader(stream, global_batch=batch, rank=0, world=world, workers=0)
        whole = ps.Loader(stream, global_batch=batch, rank=0, world=1, workers=0)
        if state is not None:
            loader.load_state_dict(state)
            whole.load_state_dict(state)
        batches, all_of_it = iter(loader), iter(whole)
        for _ in range(steps):
            number = loader.step
            next(batches)
            seen.append((number, list(next(all_of_it)["__key__"])))
        state = json.loads(json.dumps(loader.state_dict()))
    return stream, state, seen


def test_the_history_is_followed() -> None:
    stream, state, seen = _resumed([(3, 8, 2), (2, 12, 3), (4, 4, 1)])
    run = run_of(stream, None, None, state)
    for step, keys in seen:
        assert [one["key"] for one in explain_step(run, step)["samples"]] == keys
    assert [explain_step(run, step)["world"] for step in (0, 3, 5)] == [2, 3, 1]
    found = explain_document(run, "x3", 9, 100)["samples"]
    assert [(one["step"], one["key"]) for one in found] == [
        (step, key) for step, keys in seen for key in keys if key == "x3"
    ]


def test_another_stream_is_refused() -> None:
    stream, state, _ = _resumed([(3, 8, 2)])
    other = ps.Shuffle(keyed(3, "x"), 1)
    with pytest.raises(ResumeMismatch, match="a different stream"):
        run_of(other, None, None, state)
    loader = ps.Loader(other, global_batch=8, rank=0, world=1, workers=0)
    loader.load_state_dict(
        state, accept=["a", "b", "b/c", "b/d", "source", "x", "recipe", "order"][:0] or _names(other, state)
    )
    next(iter(loader))
    run = run_of(other, None, None, loader.state_dict())
    assert len(explain_step(run, 3)["samples"]) == 8
    with pytest.raises(ResumeMismatch, match="accepted later"):
        explain_step(run, 2)
    assert all(one["step"] >= 3 for one in explain_document(run, "x1", 10, 100)["samples"])
    assert stream is not other


def _names(data: Any, state: Any) -> list[str]:
    saved = decode_state(state)
    return [one.name for one in compare(saved, describe(data, saved.consumed))]


def test_one_pass() -> None:
    source = ps.Epochs({"a": (keyed(5, "x"), 1), "b": (keyed(4, "y"), 1)})
    run = run_of(source, 4, 2, None)
    assert [one["key"] for one in explain_step(run, 1)["samples"]] == ["x4", "y0", "y1", "y2"]
    assert [one["path"] for one in explain_step(run, 2)["samples"]] == [["b"]]
    with pytest.raises(ConfigError, match="ends before"):
        explain_step(run, 3)
    plain = run_of(keyed(5, "x"), 4, 1, None)
    assert [one["index"] for one in explain_step(plain, 1)["samples"]] == [4]
    assert explain_document(plain, "x4", 9, 5)["samples"][0]["step"] == 1


def by_number(samples: list[Any]) -> list[list[Any]]:
    """Samples of even numbers together, others alone; the last of them are left out."""
    numbers = [int(one["__key__"][1:]) for one in samples]
    even = [place for place, number in enumerate(numbers) if number % 2 == 0]
    return [even, *([place] for place, number in enumerate(numbers) if number % 2 and number < 19)]


def keys_of(group: list[Any]) -> list[Any]:
    """Nothing for no sample, two outputs for the numbers 3 and 7, else one."""
    keys = [one["__key__"] for one in group]
    return [{"keys": keys}] * (0 if not keys else 2 if keys in (["x3"], ["x7"]) else 1)


def _packed(lanes: int) -> Any:
    return ps.PackStream(ps.Shuffle(keyed(23, "x"), 5, lanes=lanes), 4, by_number, keys_of, leftover="drop")


@pytest.mark.parametrize("lanes", [1, 4])
def test_lanes_are_walked_again(lanes: int) -> None:
    stream = _packed(lanes)
    loader = ps.Loader(stream, global_batch=8, rank=0, world=1, workers=0)
    steps, state = [], None
    for number, batch in zip(range(8), loader, strict=False):
        steps.append([list(keys) for keys in batch["keys"]])
        if number == 3:
            state = json.loads(json.dumps(loader.state_dict()))
    for run in (run_of(stream, 8, 1, None), run_of(stream, None, None, state)):
        for step in (0, 3, 4, 7):
            found = explain_step(run, step)["samples"]
            assert [[row["key"] for row in one["inputs"]] for one in found] == steps[step]
            assert [one["position"] for one in found] == list(range(8 * step, 8 * step + 8))
            assert {one["position"] % lanes == one["lane"] for one in found} == {True}
        assert explain_step(run, 5, rank=1, world=2)["samples"] == explain_step(run, 5)["samples"][1::2]
        hits = explain_document(run, "x3", 8, 100)["samples"]
        places = [(step, row) for step, rows in enumerate(steps) for row, keys in enumerate(rows) if "x3" in keys]
        assert [(one["step"], one["position"] - 8 * one["step"]) for one in hits] == places
        assert places


def test_lanes_that_do_not_tell() -> None:
    class Plain:
        lanes, fingerprint = 2, "plain"

        def outputs(self, lane: int, window: int) -> Any:
            yield {"lane": lane, "window": window}

        def children(self) -> Any:
            return {}

    with pytest.raises(ConfigError, match="can't tell which samples"):
        explain_step(run_of(Plain(), 4, 1, None), 0)


def test_what_can_not_be_explained() -> None:
    packed = ps.PackStream(ps.Shuffle(keyed(5, "x"), 1), 2)
    with pytest.raises(ConfigError, match="no positions"):
        positions_of(packed, "x1", 10)
    with pytest.raises(ConfigError, match="global batch"):
        run_of(_mix(), None, None, None)
    run = run_of(_mix(), 4, 2, None)
    for step, rank in ((-1, None), (0, 2), (0, -1)):
        with pytest.raises(ConfigError, match="out of range"):
            explain_step(run, step, rank)


SIZES = {"shuffle": [13], "map": [9], "blend": [11, 5, 8], "skip": [11, 5, 8]}


@pytest.mark.parametrize("name", SIZES)
def test_after_once_all_was_read(name: str, own_cache: None) -> None:
    stream = STREAMS[name]()
    stop = once(stream)
    seen: dict[Any, set[int]] = {}
    for position in range(stop + 3 * 6):
        at = stream.locate(position)
        seen.setdefault(at.path, set()).add(at.index)
    assert sorted(map(len, seen.values())) == sorted(SIZES[name])
    assert stop <= 80


def test_once_knows_passes_and_stages() -> None:
    assert once(STREAMS["epochs"]()) == 14
    assert once(keyed(7, "x")) == 7
    assert 29 + 9 <= once(STREAMS["stages"]()) <= 60


def test_plan_counts() -> None:
    found = plan(_mix(), global_batch=8, world=2, steps=1000)
    assert found["samples"] == 8000
    reads = {one["path"]: one["reads"] for one in found["sources"]}
    stream = _mix()
    counted = {"a": 0, "b/c": 0, "b/d": 0}
    for position in range(8000):
        counted["/".join(stream.locate(position).path)] += 1
    assert reads == pytest.approx(counted, abs=2)
    assert {one["path"]: one["repeats"] for one in found["sources"]}["b/c"] == -(-reads["b/c"] // 5) - 1
    assert any("b/c" in warning and "times" in warning for warning in found["warnings"])


def test_plan_of_windows(own_cache: None) -> None:
    found = plan(ps.Shuffle(ps.Whole(32)(TOKENS), 1), global_batch=4)
    [source] = found["sources"]
    filled = sum(min(32, n % 9 + 1) for n in range(60)) / (60 * 32)
    assert source["padding"] == pytest.approx(1 - filled, abs=0.05)
    assert found["tokens"] == pytest.approx(filled * 60 * 32, rel=0.4)
    assert any("padding" in warning for warning in found["warnings"])
    assert found["samples"] == 60
    assert found["steps"] == 15


def test_plan_of_files(tmp_path: Path) -> None:
    with ps.create(tmp_path / "a", format="mds", columns={"n": "int"}, size_limit=100) as writer:
        for number in range(50):
            writer.write({"n": number})
    source = ps.open(tmp_path / "a")
    shards = len(source.block_starts) - 1
    found = plan(ps.Shuffle(source, 1, mode="blocks"), global_batch=5, steps=20)
    assert found["requests"] == 2 * shards
    assert found["cache_bytes"] == 0
    assert found["bytes"] is None or found["bytes"] > 0
    with pytest.raises(ConfigError):
        plan(source, steps=3)
    with pytest.raises(ConfigError):
        plan(source, global_batch=5, world=3)
    assert "tail" in plan(source, global_batch=7)["warnings"][-1]
    assert "packing on the fly" in plan(ps.PackStream(ps.Shuffle(source, 1), 2))["warnings"][0]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


def test_plan_advises_no_blocks_where_they_are_what_is_read(tmp_path: Path, own_cache: None) -> None:
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
        writer.write({"tokens": np.arange(1, 400, dtype=np.uint16)})
    with FileServer({path.name: path.read_bytes() for path in tmp_path.glob("a.*")}) as server:
        windows = ps.Chunk(8, labels="shift")(ps.open(f"{server.url}/a.pbin"))
        told = [plan(ps.Shuffle(windows, 1, mode=mode))["warnings"] for mode in ("global", "blocks")]
    assert [len([one for one in warnings if "sample by sample" in one]) for warnings in told] == [1, 0]


def test_plan_of_a_join_counts_the_ranges_of_its_members(tmp_path: Path, own_cache: None) -> None:
    for name, count in (("a", 6), ("b", 4)):
        with ps.create(str(tmp_path / name), format="webdataset") as writer:
            for number in range(count):
                writer.write({"__key__": f"k{number}", "txt": b"text"})
    joined = ps.Join(ps.open(str(tmp_path / "a")), ps.open(str(tmp_path / "b")), how="none")
    found = plan(ps.Shuffle(joined, 1), global_batch=6, steps=2)
    one = ps.open(str(tmp_path / "a")).place_of(0).extents[0].length_bytes
    assert found["requests"] == 2 * (6 + 4)
    assert found["bytes"] == 2 * (6 + 4) * one
