"""Datasets put together by wrappers: counts, places, other world sizes."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.internals import join_states

from penstock.compat import energon as en
from penstock.errors import ConfigError, ResumeMismatch

SAMPLES = 23


@en.stateless
def cook(sample: Any) -> en.TextSample:
    return en.TextSample(**en.basic_sample_keys(sample), text=sample["json"]["text"])


class Texts(en.DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (en.Cooker(cook),)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rows = [json.dumps({"text": str(number)}) for number in range(SAMPLES)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    return tmp_path / "rows.jsonl"


def config(rank: int = 0, world: int = 1, workers: int = 0) -> en.WorkerConfig:
    return en.WorkerConfig(rank=rank, world_size=world, num_workers=workers)


def one_pass(path: Path, wc: en.WorkerConfig) -> Any:
    return en.get_val_dataset(path, worker_config=wc, batch_size=None, task_encoder=Texts())


def endless(path: Path, wc: en.WorkerConfig, batch_size: int | None = None) -> Any:
    options: dict[str, Any] = {"shuffle_buffer_size": None, "max_samples_per_sequence": None}
    return en.get_train_dataset(path, worker_config=wc, batch_size=batch_size, task_encoder=Texts(), **options)


def texts(samples: Iterator[Any]) -> list[Any]:
    return [sample if isinstance(sample, str) else getattr(sample, "text", sample) for sample in samples]


@en.stateless
def batch(samples: list[Any]) -> Any:
    return en.Batch(
        __key__=[one.__key__ for one in samples], __restore_key__=tuple(one.__restore_key__ for one in samples)
    )


@en.stateless
def halves(sample: Any) -> Iterator[Any]:
    for part in "ab"[: 1 + int(sample.text) % 2]:
        yield en.TextSample.derive_from(sample, text=sample.text + part)


def pairs(samples: Iterator[Any]) -> Iterator[Any]:
    for sample in samples:
        yield from halves(sample)


def chosen(samples: list[Any]) -> list[list[Any]]:
    return [samples[:1], samples[1:3], samples[3:]]


@en.stateless
def joined(samples: list[Any]) -> Any:
    return en.TextSample.derive_from(samples[0], text="+".join(one.text for one in samples))


def parity(sample: Any) -> tuple[Any, int]:
    return int(sample.text) % 2, 2 + int(sample.text) % 2


Make = Callable[[Path, en.WorkerConfig], Any]
KINDS: dict[str, Make] = {
    "map": lambda p, wc: en.MapDataset(endless(p, wc), halves, stateless_map_fn=True, worker_config=wc),
    "iter_map": lambda p, wc: en.IterMapDataset(endless(p, wc), pairs, stateless_iter_fn=True, worker_config=wc),
    "filter": lambda p, wc: en.FilterDataset(endless(p, wc), filter_fn=lambda s: int(s.text) % 3, worker_config=wc),
    "batch": lambda p, wc: en.BatchDataset(endless(p, wc), 4, batch, batcher_stateless=True, worker_config=wc),
    "group": lambda p, wc: en.GroupBatchDataset(
        endless(p, wc), None, parity, batch, batcher_stateless=True, worker_config=wc
    ),
    "packing": lambda p, wc: en.PackingDataset(
        endless(p, wc), 5, chosen, joined, final_packer_stateless=True, worker_config=wc
    ),
    "shuffle": lambda p, wc: en.ShuffleBufferDataset(
        en.RepeatDataset(one_pass(p, wc), worker_config=wc), 5, worker_config=wc
    ),
    "repeat": lambda p, wc: en.RepeatDataset(one_pass(p, wc), worker_config=wc),
    "blend": lambda p, wc: en.BlendDataset((endless(p, wc), 1), (endless(p, wc), 3), worker_config=wc),
    "mix": lambda p, wc: en.MixBatchDataset(
        (endless(p, wc), 1), (endless(p, wc), 1), batch_size=3, batch_mix_fn=batch, worker_config=wc
    ),
    "log": lambda p, wc: en.LogSampleDataset(endless(p, wc), "train", worker_config=wc),
    "gc": lambda p, wc: en.GcDataset(endless(p, wc), worker_config=wc),
    "epochize": lambda p, wc: en.BatchDataset(
        en.RepeatDataset(en.EpochizeDataset(endless(p, wc), 7, wc), worker_config=wc), 3, batch, worker_config=wc
    ),
    "tower": lambda p, wc: en.BatchDataset(
        en.PackingDataset(
            en.FilterDataset(
                en.MapDataset(
                    en.ShuffleBufferDataset(en.RepeatDataset(one_pass(p, wc), worker_config=wc), 4, worker_config=wc),
                    halves,
                    worker_config=wc,
                ),
                filter_fn=lambda s: not s.text.startswith("7"),
                worker_config=wc,
            ),
            4,
            chosen,
            joined,
            worker_config=wc,
        ),
        2,
        lambda samples: samples,
        worker_config=wc,
    ),
}


def same(one: Any) -> Any:
    if isinstance(one, list):
        return [same(each) for each in one]
    return one.__key__, getattr(one, "text", None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_saved_and_restored_midway(path: Path, kind: str, workers: int) -> None:
    make = KINDS[kind]
    whole = [same(one) for one in islice(en.get_savable_loader(make(path, config(workers=workers))), 40)]
    for taken in (0, 1, 2, 7, 19):
        running = en.get_savable_loader(make(path, config(workers=workers)))
        begun = [same(one) for one in islice(running, taken)]
        state = json.loads(json.dumps(running.save_state_rank()))
        resumed = en.get_savable_loader(make(path, config(workers=workers)))
        resumed.restore_state_rank(state)
        assert begun + [same(one) for one in islice(resumed, 20)] == whole[: taken + 20]
        running.close()
        resumed.close()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("filter", "log", "gc")])
def test_a_sample_made_again_by_its_key(path: Path, kind: str) -> None:
    loader = en.get_savable_loader(KINDS[kind](path, config()))
    for sample in islice(loader, 12):
        if not isinstance(sample, list):
            made = loader.restore_sample(json.loads(json.dumps(sample.__restore_key__)))
            assert same(made) == same(sample)
            assert made.__restore_key__ == sample.__restore_key__


@pytest.mark.parametrize(("before", "after"), [((1, 0), (3, 0)), ((2, 2), (3, 1)), ((2, 0), (1, 2)), ((1, 1), (4, 2))])
def test_other_world_sizes(path: Path, before: tuple[int, int], after: tuple[int, int]) -> None:
    """Each sample of a pass comes once, whatever the ranks before and after."""

    def made(rank: int, shape: tuple[int, int]) -> Any:
        wc = config(rank, *shape)
        blend = en.ConcatDataset(one_pass(path, wc), one_pass(path, wc), worker_config=wc)
        mapped = en.MapDataset(en.ShuffleBufferDataset(blend, 3, worker_config=wc), halves, worker_config=wc)
        return en.get_savable_loader(mapped)

    ranks = [made(rank, before) for rank in range(before[0])]
    seen = [one.text for loader in ranks for one in islice(loader, 7)]
    state = json.loads(json.dumps(join_states([loader.save_state_rank() for loader in ranks])))
    for rank in range(after[0]):
        loader = made(rank, after)
        loader.restore_state_rank(state)
        seen += [one.text for one in loader]
    expected = [f"{number}{part}" for number in range(SAMPLES) for part in "ab"[: 1 + number % 2]]
    assert Counter(seen) == Counter(expected * 2)


def test_counts(path: Path) -> None:
    wc = config()
    samples = one_pass(path, wc)

    def given(dataset: Any) -> tuple[int, int]:
        return len(dataset), len(list(en.get_loader(dataset)))

    assert given(en.BatchDataset(samples, 4, batch, worker_config=wc)) == (6, 6)
    assert given(en.BatchDataset(samples, 4, batch, drop_last=True, worker_config=wc)) == (5, 5)
    assert given(en.BatchDataset(samples, 100, batch, worker_config=wc)) == (1, 1)
    assert given(en.ConcatDataset(samples, samples, worker_config=wc)) == (2 * SAMPLES, 2 * SAMPLES)
    assert given(en.LimitDataset(samples, 5, worker_config=wc)) == (5, 5)
    assert given(en.EpochizeDataset(endless(path, wc), 5, wc)) == (5, 5)
    assert given(en.RepeatDataset(samples, repeats=2, worker_config=wc)) == (2 * SAMPLES, 2 * SAMPLES)
    assert given(en.RepeatDataset(samples, repeats=1.5, worker_config=wc)) == (34, SAMPLES + 11)
    assert given(en.MapDataset(samples, halves, worker_config=wc)) == (SAMPLES, SAMPLES + SAMPLES // 2)
    assert given(en.ShuffleBufferDataset(samples, 4, worker_config=wc)) == (SAMPLES, SAMPLES)


def test_each_worker_has_its_share(path: Path) -> None:
    wc = config(workers=2)
    loader = en.get_loader(en.BatchDataset(one_pass(path, wc), 5, batch, worker_config=wc))
    assert [len(one.__key__) for one in loader] == [5, 5, 5, 5, 2, 1]


def test_weights(path: Path) -> None:
    wc = config()
    blend = en.BlendDataset((endless(path, wc, 10), 2), (endless(path, wc, 20), 8), worker_config=wc)
    sizes = Counter(len(one.__key__) for one in islice(en.get_loader(blend), 1000))
    assert 150 <= sizes[10] <= 250
    assert 750 <= sizes[20] <= 850


def test_iterations(path: Path) -> None:
    wc = config()
    limited = en.get_loader(en.LimitDataset(endless(path, wc), 4, worker_config=wc))
    assert texts(iter(limited)) == texts(iter(limited))
    epochs = en.get_loader(en.EpochizeDataset(endless(path, wc), 4, wc))
    whole = texts(islice(en.get_loader(endless(path, wc)), 8))
    assert texts(iter(epochs)) + texts(iter(epochs)) == whole
    ended = en.get_loader(en.RepeatDataset(one_pass(path, wc), repeats=1, restart=False, worker_config=wc))
    assert [len(list(ended)), len(list(ended))] == [SAMPLES, 0]


def test_shuffled_among_so_many(path: Path) -> None:
    wc = config()
    loader = en.get_loader(en.ShuffleBufferDataset(one_pass(path, wc), 5, worker_config=wc))
    found = [int(text) for text in texts(iter(loader))]
    assert sorted(found) == list(range(SAMPLES))
    assert found != sorted(found)
    assert all(place // 5 == number // 5 for place, number in enumerate(found))


def test_seeds_of_functions(path: Path) -> None:
    class Draws(Texts):
        @en.stateless(restore_seeds=True)
        def draw(self, sample: Any) -> Any:
            return en.TextSample.derive_from(sample, text=f"{random.random()} {self.current_sample_index}")

    wc = config()
    loader = en.get_savable_loader(
        en.MapDataset(endless(path, wc), Draws().draw, stateless_map_fn=True, worker_config=wc)
    )
    found = list(islice(loader, 9))
    assert len({one.text for one in found}) == 9
    assert loader.restore_sample(found[4].__restore_key__).text == found[4].text


def test_failures_are_left_out(path: Path) -> None:
    lost: list[Any] = []

    def fails(sample: Any) -> Any:
        if sample.text == "3":
            raise ValueError("odd")
        if sample.text == "4":
            raise en.SkipSample
        return sample

    wc = en.WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=lambda *args: lost.append(args))
    mapped = en.MapDataset(one_pass(path, wc), fails, worker_config=wc)
    assert len(list(en.get_loader(mapped))) == SAMPLES - 2
    assert [type(error) for error, _, _ in lost] == [ValueError]


def test_misuse(path: Path) -> None:
    wc = config()
    for wrong in (
        lambda: en.BlendDataset((endless(path, wc), 0), worker_config=wc),
        lambda: en.BlendDataset(worker_config=wc),
        lambda: en.BatchDataset(endless(path, wc), 0, batch, worker_config=wc),
        lambda: en.MapDataset([1, 2], halves, worker_config=wc),  # type: ignore[arg-type]
        lambda: en.MapDataset(endless(path, wc), halves, worker_config=config(0, 2)),
        lambda: en.get_loader([1, 2]),  # type: ignore[arg-type]
        lambda: en.homogeneous_concat_mix([1, "a"]),
        lambda: type("Own", (en.SavableDataset,), {"__iter__": lambda self: iter(())}),
    ):
        with pytest.raises(ConfigError):
            wrong()
    running = en.get_savable_loader(en.IterMapDataset(endless(path, wc), pairs, worker_config=wc))
    next(iter(running))
    with pytest.raises(ConfigError, match="can't be saved"):
        running.save_state_rank()
    begun = en.get_savable_loader(KINDS["map"](path, wc))
    next(iter(begun))
    other = en.get_savable_loader(KINDS["batch"](path, wc))
    with pytest.raises(ResumeMismatch, match="another dataset"):
        other.restore_state_rank(begun.save_state_rank())
