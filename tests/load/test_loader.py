from __future__ import annotations

import gc
import json
import logging
import os
import signal
import threading
import time
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError, Corrupt, ResumeMismatch
from penstock.load import Loader
from penstock.order import Sequential, Shuffle, Skip
from penstock.pack import Chunk
from penstock.testing.memory import MemoryTokens

FAR = 10**12


def ids(batch: Any) -> list[int]:
    return batch["id"].tolist()


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("penstock-load-")]


def global_ids(loaders: list[Loader], num_steps: int) -> list[list[int]]:
    """The global batches that ranks make together, put in the order of their positions."""
    steps: list[list[int]] = []
    iterators = [iter(loader) for loader in loaders]
    for _ in range(num_steps):
        positions = loaders[0].positions(loaders[0].step)
        whole = np.full(len(positions), -1)
        for loader, iterator in zip(loaders, iterators, strict=True):
            mine = positions % loader.world == loader.rank
            micro_batches = [ids(next(iterator)) for _ in range(int(mine.sum()) // loader.micro_batch)]
            whole[mine] = [i for micro_batch in micro_batches for i in micro_batch]
        steps.append(whole.tolist())
    for iterator in iterators:
        iterator.close()
    return steps


@settings(max_examples=25)
@given(
    world=st.sampled_from([1, 2, 3, 4, 6]),
    accumulation=st.sampled_from([1, 2]),
    workers=st.integers(0, 3),
    prefetch=st.integers(1, 3),
    start=st.one_of(st.integers(0, 300), st.just(FAR)),
)
def test_ranks_micro_batches_and_workers_give_the_same_global_batches(
    numbers: Any, world: int, accumulation: int, workers: int, prefetch: int, start: int
) -> None:
    stream = Shuffle(numbers(101), seed=2)
    loaders = [
        Loader(
            stream,
            24,
            rank=rank,
            world=world,
            micro_batch=24 // (world * accumulation),
            workers=workers,
            prefetch=prefetch,
            start=start,
        )
        for rank in range(world)
    ]
    expected = [stream.order(np.arange(at, at + 24)).tolist() for at in range(start, start + 6 * 24, 24)]
    assert global_ids(loaders, 6) == expected
    assert {loader.consumed for loader in loaders} == {start + 144}
    assert not loader_threads()


@settings(max_examples=25)
@given(
    steps=st.integers(0, 7),
    first=st.sampled_from([(12, 1), (12, 2), (24, 4)]),
    second=st.sampled_from([(12, 1), (12, 3), (20, 5), (8, 4), (7, 7)]),
    workers=st.sampled_from([0, 2]),
)
def test_saved_after_any_step_a_run_goes_on_in_any_shape(
    numbers: Any, steps: int, first: tuple[int, int], second: tuple[int, int], workers: int
) -> None:
    stream = Shuffle(numbers(50), seed=2)
    before = [Loader(stream, first[0], rank=rank, world=first[1], workers=workers) for rank in range(first[1])]
    read = [i for step in global_ids(before, steps) for i in step]
    states = [json.dumps(loader.state_dict()) for loader in before]
    assert len(set(states)) == 1
    after = [Loader(stream, second[0], rank=rank, world=second[1], workers=workers) for rank in range(second[1])]
    for loader in after:
        loader.load_state_dict(json.loads(states[0]))
    read += [i for step in global_ids(after, 3) for i in step]
    assert read == stream.order(np.arange(len(read))).tolist()
    assert [loader.step for loader in after] == [steps + 3] * second[1]
    at = 0
    for step in range(steps + 3):
        positions = after[0].positions(step)
        assert positions.tolist() == list(range(at, at + (first if step < steps else second)[0]))
        at += len(positions)


def test_far_positions_cost_no_more_reads(numbers: Any) -> None:
    source = numbers(FAR)
    stream = Shuffle(source, seed=1)
    loader = Loader(stream, 8, start=9 * FAR, workers=0)
    assert ids(next(iter(loader))) == stream.order(9 * FAR + np.arange(8)).tolist()
    loader.load_state_dict({**loader.state_dict(), "consumed": 8 * (FAR // 3), "history": [[0, 0, 8, 1]]})
    assert loader.step == FAR // 3
    assert ids(next(iter(loader))) == stream.order(8 * (FAR // 3) + np.arange(8)).tolist()
    assert source.reads == 2


def test_the_place_counts_what_was_handed_out_not_what_was_read_ahead(numbers: Any) -> None:
    loader = Loader(Sequential(numbers(100)), 8, workers=3, prefetch=4)
    assert (loader.step, loader.consumed) == (0, 0)
    for step, _ in zip(range(1, 4), loader, strict=False):
        assert (loader.step, loader.consumed) == (step, 8 * step)
        assert loader.state_dict()["consumed"] == 8 * step


def test_between_micro_batches_the_place_is_the_steps_beginning(numbers: Any) -> None:
    loader = Loader(Sequential(numbers(100)), 8, micro_batch=2, workers=0)
    places: list[tuple[int, int]] = []
    for _ in islice(loader, 6):
        places.append((loader.step, loader.consumed))
    assert places == [(0, 0), (0, 0), (0, 0), (1, 8), (1, 8), (1, 8)]
    assert ids(next(iter(loader))) == [12, 13]
    loader.load_state_dict(loader.state_dict())
    assert ids(next(iter(loader))) == [8, 9]


@pytest.mark.parametrize("workers", [0, 2])
def test_iterators_follow_the_loader(numbers: Any, workers: int) -> None:
    loader = Loader(Sequential(numbers(1000)), 4, workers=workers)
    iterator = iter(loader)
    assert [ids(next(iterator))[0] for _ in range(3)] == [0, 4, 8]
    state = loader.state_dict()
    assert [ids(next(iterator))[0] for _ in range(2)] == [12, 16]
    loader.load_state_dict(state)
    assert [ids(next(iterator))[0] for _ in range(2)] == [12, 16]
    loader.seek(100)
    assert ids(next(iterator))[0] == 400
    assert ids(next(iter(loader)))[0] == 404
    assert ids(next(iterator))[0] == 408
    assert loader.step == 103


def test_seek_and_start_need_no_state(numbers: Any) -> None:
    stream = Shuffle(numbers(1000), seed=4)
    started, sought = Loader(stream, 8, start=80, workers=0), Loader(stream, 8, workers=0)
    sought.seek(10)
    assert (started.step, started.consumed) == (sought.step, sought.consumed) == (10, 80)
    assert ids(next(iter(started))) == ids(next(iter(sought)))
    assert started.state_dict() == sought.state_dict()
    between = Loader(stream, 8, start=83, workers=0)
    assert (between.step, between.consumed) == (10, 83)
    assert between.positions(10).tolist() == list(range(83, 91))


def test_positions_of_a_step_are_those_of_all_ranks(numbers: Any) -> None:
    loader = Loader(Sequential(numbers(100)), 6, rank=1, world=3)
    assert loader.positions(2).tolist() == [12, 13, 14, 15, 16, 17]
    assert loader.positions(2).dtype == np.int64
    assert ids(next(iter(loader))) == [1, 4]


def test_a_rank_has_its_positions_whatever_was_consumed_before(numbers: Any) -> None:
    loader = Loader(Sequential(numbers(100)), 6, rank=1, world=3, start=8, workers=0)
    assert ids(next(iter(loader))) == [10, 13]


@pytest.mark.parametrize("tail", ["pad", "drop"])
@pytest.mark.parametrize(("world", "micro"), [(1, None), (2, None), (5, None), (5, 1), (2, 5)])
def test_a_pass_gives_every_sample_once(numbers: Any, tail: Any, world: int, micro: int | None) -> None:
    loaders = [Loader(numbers(23), 10, rank=rank, world=world, micro_batch=micro, tail=tail) for rank in range(world)]
    assert {len(loader) for loader in loaders} == {3 if tail == "pad" else 2}
    batches = [list(loader) for loader in loaders]
    assert {len(one) for one in batches} == {len(loaders[0]) * 10 // (world * loaders[0].micro_batch)}
    flat = [batch for one in batches for batch in one]
    valid = [i for batch in flat for i, ok in zip(ids(batch), batch["valid"].tolist(), strict=True) if ok]
    assert sorted(valid) == list(range(23 if tail == "pad" else 20))
    assert all(batch["valid"].dtype == np.bool_ and batch["valid"].shape == batch["id"].shape for batch in flat)
    assert {loader.left_out for loader in loaders} == {0 if tail == "pad" else 3}
    padded = [i for batch in flat for i, ok in zip(ids(batch), batch["valid"].tolist(), strict=True) if not ok]
    assert sorted(padded) == (list(range(7)) if tail == "pad" else [])


def test_a_pass_begins_anew_after_its_end_and_goes_on_after_a_break(numbers: Any) -> None:
    loader = Loader(numbers(10), 4, tail="pad")
    assert [ids(batch)[0] for batch in loader] == [0, 4, 8]
    assert loader.state_dict()["consumed"] == 12
    assert [ids(batch)[0] for batch in islice(loader, 1)] == [0]
    assert [ids(batch)[0] for batch in loader] == [4, 8]
    assert [ids(batch)[0] for batch in loader] == [0, 4, 8]
    assert not loader_threads()


def test_a_pass_resumes_in_another_shape_and_at_its_end(numbers: Any) -> None:
    first = Loader(numbers(23), 5, tail="pad", workers=0)
    read = [i for batch in islice(first, 2) for i in ids(batch)]
    second = Loader(numbers(23), 4, tail="pad", workers=0)
    second.load_state_dict(first.state_dict())
    assert len(second) == 2 + 4
    read += [i for batch in second for i in np.array(ids(batch))[batch["valid"]].tolist()]
    assert read == list(range(23))
    ended = Loader(numbers(23), 4, tail="pad", workers=0)
    ended.load_state_dict(second.state_dict())
    assert len(ended) == len(second)
    assert list(ended) == []
    assert [ids(batch)[0] for batch in ended] == [0, 4, 8, 12, 16, 20]


def test_empty_and_tiny_sources(numbers: Any) -> None:
    assert list(Loader(numbers(0), 4, tail="pad")) == []
    assert list(Loader(numbers(3), 4, tail="drop")) == []
    [batch] = Loader(numbers(3), 8, tail="pad")
    assert ids(batch) == [0, 1, 2, 0, 1, 2, 0, 1]
    assert batch["valid"].tolist() == [True] * 3 + [False] * 5


def test_drop_says_what_it_leaves_out(numbers: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock")
    Loader(numbers(23), 10, tail="drop")
    assert "skips the last 3 of 23 samples" in caplog.text


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_error_comes_in_its_place_and_the_place_is_kept(numbers: Any, workers: int) -> None:
    broken = True

    def fail(indices: list[int]) -> None:
        if broken and 13 in indices:
            raise Corrupt("bad sample", path="a.bin", offset_bytes=13)

    loader = Loader(Sequential(numbers(100, fail=fail)), 4, workers=workers)
    iterator = iter(loader)
    assert [ids(next(iterator))[0] for _ in range(3)] == [0, 4, 8]
    for _ in range(2):
        with pytest.raises(Corrupt, match=r"a\.bin: bad sample at byte 13"):
            next(iterator)
        assert loader.consumed == 12
        assert not loader_threads()
    broken = False
    assert [ids(next(iterator))[0] for _ in range(2)] == [12, 16]
    iterator.close()


def test_substitutes_are_the_same_for_every_rank_and_worker(numbers: Any) -> None:
    def fail(indices: list[int]) -> None:
        if any(index % 10 == 3 for index in indices):
            raise Corrupt("bad sample")

    stream = Shuffle(numbers(100, fail=fail), seed=6)
    [alone] = [global_ids([Loader(stream, 12, workers=0, on_error="substitute", substitute_limit=1)], 10)]
    options: dict[str, Any] = {"on_error": "substitute", "substitute_limit": 1, "world": 3}
    assert global_ids([Loader(stream, 12, rank=rank, **options) for rank in range(3)], 10) == alone
    expected = stream.order(np.arange(120)).reshape(10, 12)
    good = expected % 10 != 3
    assert (np.array(alone)[good] == expected[good]).all()
    assert (np.array(alone) % 10 != 3).all()


@pytest.mark.parametrize("how", ["break", "close", "forget"])
def test_threads_end_with_their_iterator(numbers: Any, how: str) -> None:
    iterator = iter(Loader(Sequential(numbers(1000)), 4, workers=3))
    next(iterator)
    assert len(loader_threads()) == 3
    if how == "close":
        iterator.close()
        assert not loader_threads()
        assert ids(next(iterator))[0] == 4
        iterator.close()
    elif how == "break":
        for _ in iterator:
            break
    del iterator
    gc.collect()
    assert not loader_threads()


def test_an_interrupt_ends_the_wait_for_a_slow_read_at_once(numbers: Any) -> None:
    asked, released = threading.Event(), threading.Event()

    def fail(indices: list[int]) -> None:
        if 4 in indices:
            asked.wait(30)
            time.sleep(0.1)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            released.wait(30)

    loader = Loader(Sequential(numbers(1000, fail=fail)), 4, workers=2)
    iterator = iter(loader)
    assert ids(next(iterator))[0] == 0
    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        asked.set()
        next(iterator)
    assert time.monotonic() - before < 10
    assert loader.consumed == 4
    released.set()
    for thread in loader_threads():
        thread.join(10)
    assert not loader_threads()


def test_no_workers_no_threads(numbers: Any) -> None:
    before = set(threading.enumerate())
    iterator = iter(Loader(Sequential(numbers(100)), 4, workers=0))
    next(iterator)
    assert not set(threading.enumerate()) - before


def test_a_running_iterator_works_in_a_forked_child(numbers: Any) -> None:
    iterator = iter(Loader(Sequential(numbers(1000)), 4, workers=2))
    next(iterator)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write_end, json.dumps(ids(next(iterator))).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        assert json.loads(pipe.read()) == [4, 5, 6, 7]
    assert os.waitpid(child, 0)[1] == 0
    assert ids(next(iterator)) == [4, 5, 6, 7]
    iterator.close()


def test_collate_runs_on_columns_and_default_joins_cu_seqlens(numbers: Any) -> None:
    loader = Loader(Sequential(numbers(100)), 4, collate=lambda batch: int(batch["id"].sum()))
    assert list(islice(loader, 3)) == [6, 22, 38]
    tokens = MemoryTokens([[*range(1, 6), 0], [*range(1, 11), 0]], eos_id=0)
    [batch] = islice(Loader(Sequential(Chunk(8, labels="shift")(tokens)), 2, workers=0), 1)
    assert batch["cu_seqlens"].tolist() == [0, 6, 8, 16]
    assert batch["max_seqlen"] == 8


def test_handed_out_batches_are_never_written_to_again() -> None:
    stream = Sequential(Chunk(8)(MemoryTokens([list(range(200))])))
    kept = list(islice(Loader(stream, 2), 12))
    expected = np.arange(192).reshape(12, 2, 8)
    assert (np.array([batch["tokens"] for batch in kept]) == expected).all()


def test_the_state_is_small(numbers: Any, mixed: Any) -> None:
    stream = mixed({f"common-crawl/2024/shard-{i:03}": Shuffle(numbers(50, str(i)), 1) for i in range(40)})
    loader = Loader(stream, 512, world=64, rank=0, workers=0, start=FAR)
    empty = {**loader.state_dict(), "children": {}}
    assert len(json.dumps(empty)) < 256
    assert len(json.dumps(loader.state_dict())) <= len(json.dumps(empty)) + 40 * 64
    state = loader.state_dict()
    for world in (8, 16, 32, 64, 128):
        other = Loader(stream, 1024, world=world, rank=0, workers=0)
        other.load_state_dict(state)
        next(iter(other))
        state = other.state_dict()
    assert len(state["history"]) == 6
    assert len(json.dumps(state)) <= len(json.dumps(loader.state_dict())) + 5 * 40 + 8


def test_another_stream_is_refused_by_name(numbers: Any, mixed: Any) -> None:
    def stream(books: int = 70, seed: int = 1) -> Any:
        return mixed({"books": Shuffle(numbers(books), 1), "web": Shuffle(numbers(50), 2)}, seed=seed)

    loader = Loader(stream(), 4, workers=0)
    next(iter(loader))
    state = loader.state_dict()
    Loader(stream(), 4).load_state_dict(state)
    with pytest.raises(ResumeMismatch, match="different: books") as caught:
        Loader(stream(books=71), 4).load_state_dict(state)
    assert caught.value.expected == f"books {state['children']['books']}"
    with pytest.raises(ResumeMismatch, match="different: recipe"):
        Loader(stream(seed=2), 4).load_state_dict(state)
    with pytest.raises(ResumeMismatch, match="different: source"):
        Loader(Shuffle(numbers(70), 1), 4).load_state_dict(Loader(Shuffle(numbers(71), 1), 4).state_dict())
    with pytest.raises(ResumeMismatch, match=r"different: .*order"):
        Loader(Sequential(numbers(70)), 4).load_state_dict(Loader(Shuffle(numbers(70), 1), 4).state_dict())


def test_a_refused_state_changes_nothing(numbers: Any) -> None:
    loader = Loader(Sequential(numbers(70)), 4, workers=0)
    next(iter(loader))
    before = loader.state_dict()
    with pytest.raises(ResumeMismatch):
        loader.load_state_dict(Loader(Sequential(numbers(71)), 4).state_dict())
    assert loader.state_dict() == before


def test_an_accepted_difference_is_logged_told_and_recorded(
    numbers: Any, mixed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def stream(books: int) -> Any:
        return mixed({"books": Shuffle(numbers(books), 1), "web": Shuffle(numbers(50), 2)})

    old, new = Loader(stream(70), 4, workers=0), Loader(stream(90), 4, workers=0)
    next(iter(old))
    account = new.load_state_dict(old.state_dict(), accept=["books"])
    assert len(account) == 1
    assert account[0].startswith("books changed after 4 samples")
    assert account[0] in caplog.text
    assert ids(next(iter(new))) == stream(90).get_batch(np.arange(4, 8))["id"].tolist()
    [[consumed, name, before, after]] = new.state_dict()["accepted"]
    assert (consumed, name) == (4, "books")
    assert (before, after) == (old.state_dict()["children"]["books"], new.state_dict()["children"]["books"])
    again = Loader(stream(90), 4, workers=0)
    assert again.load_state_dict(json.loads(json.dumps(new.state_dict()))) == []
    assert again.state_dict() == new.state_dict()


def test_what_differs_only_after_the_consumed_samples_resumes(numbers: Any, mixed: Any, staged: Any) -> None:
    a, b, c = (Shuffle(numbers(50, name), 1) for name in "abc")
    loader = Loader(staged((20, a), (None, b)), 4, workers=0)
    for _ in islice(loader, 5):
        pass
    state = loader.state_dict()
    longer = Loader(staged((20, a), (8, mixed({"b": b, "c": c})), (None, c)), 4, workers=0)
    assert longer.load_state_dict(state) == []
    assert ids(next(iter(longer))) == mixed({"b": b, "c": c}).get_batch(np.arange(4))["id"].tolist()
    next(iter(loader))
    with pytest.raises(ResumeMismatch, match="different: 1"):
        longer.load_state_dict(loader.state_dict())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"global_batch": 10, "rank": 0, "world": 4}, "multiple of world = 4: found 10, expected 8 or 12"),
        ({"global_batch": 2, "rank": 0, "world": 4}, "expected 4$"),
        ({"global_batch": 20, "rank": 0, "world": 4, "micro_batch": 3}, r"4 × 3 = 12: found 20, expected 12 or 24"),
        ({"global_batch": 0}, "found 0, expected 1"),
        ({"global_batch": 8, "micro_batch": 0}, "micro_batch"),
        ({"global_batch": 8, "start": -1}, "start must be a number of samples"),
        ({"global_batch": 8, "start": 1 << 62}, "start must be a number of samples"),
        ({"global_batch": 8, "workers": -1}, "workers=-1"),
        ({"global_batch": 8, "prefetch": 0}, "prefetch=0"),
        ({"global_batch": 8, "tail": "pad"}, "endless stream has no tail"),
        ({"global_batch": 8, "on_error": "skip"}, "'raise' or 'substitute'"),
        ({"global_batch": 8, "on_error": "substitute", "substitute_limit": 2}, "must be a fraction"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(numbers: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Loader(Sequential(numbers(50)), **arguments)


def test_a_source_needs_a_tail_and_has_no_substitutes(numbers: Any) -> None:
    with pytest.raises(ConfigError, match="tail='pad'"):
        Loader(numbers(50), 8)
    with pytest.raises(ConfigError, match="'pad' or 'drop'"):
        Loader(numbers(50), 8, tail="keep")  # pyright: ignore
    with pytest.raises(ConfigError, match="unreadable samples can't be replaced"):
        Loader(numbers(50), 8, tail="pad", on_error="substitute")


def test_seeking_outside_is_refused(numbers: Any) -> None:
    with pytest.raises(ConfigError, match="step is out of range"):
        Loader(Sequential(numbers(50)), 8).seek(-1)
    with pytest.raises(ConfigError, match="step is out of range"):
        Loader(Sequential(numbers(50)), 8).seek(1 << 59)
    one_pass = Loader(numbers(50), 8, tail="pad")
    one_pass.seek(7)
    assert list(one_pass) == []
    with pytest.raises(ConfigError, match="step is out of range for this pass"):
        one_pass.seek(8)


def test_an_endless_loader_has_no_length_and_both_print(numbers: Any) -> None:
    loader = Loader(Sequential(numbers(50)), 8, rank=1, world=2, start=16)
    with pytest.raises(TypeError, match="endless"):
        len(loader)
    assert repr(loader) == "<Loader  global_batch=8 rank=1/2 micro_batch=4 step=2 consumed=16>"
    assert loader.history[0].global_batch == 8


def test_skipping_what_is_ahead_resumes_and_skipping_what_was_read_is_refused(numbers: Any) -> None:
    stream = Shuffle(numbers(1000), seed=3)
    loader = Loader(stream, 8, workers=0)
    for _ in islice(loader, 4):
        pass
    spike = loader.positions(6)
    skipping = Loader(Skip(stream, spike), 8, workers=0)
    assert skipping.load_state_dict(loader.state_dict()) == []
    expected = stream.order(np.concatenate([np.arange(32, 48), np.arange(56, 64)])).tolist()
    assert [i for batch in islice(skipping, 3) for i in ids(batch)] == expected
    more = Loader(Skip(stream, np.concatenate([spike, np.arange(800, 808)])), 8, workers=0)
    assert more.load_state_dict(skipping.state_dict()) == []
    with pytest.raises(ResumeMismatch, match="different: recipe"):
        Loader(Skip(stream, loader.positions(2)), 8).load_state_dict(loader.state_dict())
