from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import pickle
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import join_states, replace

from penstock.compat import energon as en
from penstock.errors import ConfigError, ResumeMismatch

GOLDEN = Path(__file__).parent.parent.parent / "golden" / "energon-loading"
DATA = GOLDEN / "data"
CASES = json.loads((GOLDEN / "expected.json").read_text())["cases"]


@en.stateless
def text(sample: Any) -> Any:
    return en.TextSample(**en.basic_sample_keys(sample), text=sample["txt"])


@en.stateless
def row(sample: Any) -> Any:
    return en.TextSample(**en.basic_sample_keys(sample), text=sample["json"]["caption"])


class Texts(en.DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (en.Cooker(text),)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "group_window", 16)


def config(rank: int = 0, world: int = 1, workers: int = 0, **more: Any) -> Any:
    return en.WorkerConfig(rank=rank, world_size=world, num_workers=workers, **more)


def train(encoder: Any = None, path: str = "ds_a", wc: Any = None, batch_size: int | None = 4, **more: Any) -> Any:
    return en.get_train_dataset(
        DATA / path,
        worker_config=config() if wc is None else wc,
        batch_size=batch_size,
        task_encoder=Texts() if encoder is None else encoder,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        **more,
    )


def keys(ld: Any, count: int) -> list[Any]:
    return [batch.__key__ for batch in islice(ld, count)]


def flat(batches: list[Any]) -> list[Any]:
    return [key for batch in batches for key in batch]


# --- contents ----------------------------------------------------------------------------------------------------


def _digest(value: Any) -> str:
    if not isinstance(value, (str, bytes)):
        value = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(value if isinstance(value, bytes) else value.encode()).hexdigest()


@pytest.mark.parametrize("name", ["ds_a", "ds_b", "primary.jsonl"])
@pytest.mark.parametrize("world", [1, 3])
def test_crude_contents_are_energons(name: str, world: int) -> None:
    @en.stateless
    def parts(sample: Any) -> Any:
        assert isinstance(sample, en.CrudeSample)
        found = {part: value for part, value in sample.items() if not part.startswith("__")}
        return {"__key__": sample["__key__"], "__restore_key__": sample["__restore_key__"], "parts": found}

    class Raw(en.DefaultTaskEncoder[Any, Any, Any, Any]):
        cookers = (en.Cooker(parts),)
        decoder = None

    case = "crude_contents_jsonl" if name.endswith("jsonl") else f"crude_contents_{name}_train"
    seen: Counter[str] = Counter()
    for rank in range(world):
        ld = en.get_loader(train(Raw(), name, config(rank, world), None, repeat=False))
        for sample in ld:
            if ld.valid.all():
                seen[sample["__key__"]] += 1
                expected = CASES[case]["samples"][sample["__key__"]]
                assert {part: _digest(value) for part, value in sample["parts"].items()} == expected
    assert seen == dict.fromkeys(CASES[case]["samples"], 1)


def test_typed_samples_are_dataclasses() -> None:
    ds = train(en.DefaultTaskEncoder(), dataset_config="text.yaml", batch_size=3)
    batch = next(iter(en.get_loader(ds)))
    assert isinstance(batch, en.TextSample)
    assert isinstance(batch.text, list)
    assert {one[:7] for one in batch.text} == {"text-a "}
    assert [len(one) for one in batch.__sources__] == [1, 1, 1]  # of each sample, as in the original
    assert all(isinstance(source, en.SourceInfo) for one in batch.__sources__ for source in one)


def test_images_are_what_the_decoder_says() -> None:
    class Shapes(en.DefaultTaskEncoder[Any, Any, Any, Any]):
        decoder = en.SampleDecoder(image_decode="rgb8")
        cookers = (en.Cooker(lambda sample, imgs, media: imgs.get(sample["json"]["image"]).shape, {"src": "jsonl"}),)

    with pytest.raises(ConfigError, match="no cooker accepts"):  # the other dataset of the blend
        list(en.get_loader(_val("mds/aux_mixed.yaml", Shapes(), "train")))


@en.stateless
@en.cooker(need_primary=True, need_cache=True)
def with_stores(sample: Any, primary: Any, cache: Any, imgs: Any, media: Any) -> Any:
    line = sample["json"]
    assert json.loads(primary.get(".json")) == line
    assert cache.get_lazy(imgs, line["image"]).get(sample) == imgs.get(line["image"])
    found = _digest(media.get(line["fs"], sample))
    return en.TextSample(**en.basic_sample_keys(sample), text=found)


def _val(path: str, encoder: Any, split: str = "val", wc: Any = None, batch_size: int = 1, **more: Any) -> Any:
    return en.get_val_dataset(
        DATA / path, split_part=split, worker_config=wc or config(), batch_size=batch_size, task_encoder=encoder, **more
    )


def test_stores_and_cache_of_a_cooker() -> None:
    class Stores(en.DefaultTaskEncoder[Any, Any, Any, Any]):
        cookers = (en.Cooker(with_stores, {"src": "jsonl"}), en.Cooker(text_of_pair))
        decoder = None

    ds = _val("mds/aux_mixed.yaml", Stores(), "train")
    with pytest.raises(ConfigError, match="needs a cache"):
        next(iter(en.get_loader(ds)))
    pool = en.FileStoreCachePool(num_workers=2, max_cache_size_gbytes=0.001)
    found = {}
    for batch in en.get_savable_loader(ds, cache_pool=pool):
        if batch.__subflavors__[0]["src"] == "jsonl":
            found[batch.__key__[0]] = batch
    pool.close()
    expected = CASES["aux"]["rows"]
    assert {key: one.text[0] for key, one in found.items()} == {key: row["media"]["sha256"] for key, row, _ in expected}
    for key, _, sources in expected:
        told = [[str(one.index), list(one.file_names)] for one in found[key].__sources__[0]]
        assert told == [[index, names] for _, index, _, names in sources]


def text_of_pair(sample: Any, imgs: Any) -> Any:
    del imgs
    return en.TextSample(**en.basic_sample_keys(sample), text="")


# --- passes ------------------------------------------------------------------------------------------------------


def test_validation_over_five_ranks() -> None:
    expected = CASES["val_concat"]["count_per_tag"]
    for workers in (0, 2):
        counts: Counter[str] = Counter()
        lengths: set[int] = set()
        for rank in range(5):
            ld = en.get_loader(_val("mds/val_concat.yaml", Texts(), "val", config(rank, 5, workers), 3))
            steps = 0
            for batch in ld:
                steps += 1
                for key, flavors, valid in zip(batch.__key__, batch.__subflavors__, ld.valid, strict=True):
                    counts[f"{flavors['src']}/{key}"] += bool(valid)
            lengths.add(steps)
            assert steps == len(ld)
        assert counts == expected
        assert lengths == {3}


def test_validation_begins_anew_and_stops_at_its_limit() -> None:
    ld = en.get_loader(_val("ds_a", Texts(), "val", batch_size=2, limit=2))
    first = [batch.__key__ for batch in ld]
    assert first == [["s020", "s021"], ["s022", "s023"]]
    assert [batch.__key__ for batch in ld] == first
    whole = en.get_loader(_val("ds_a", Texts(), "val", batch_size=2))
    assert [batch.__key__ for batch in whole] == [*first, ["s024", "s025"]]
    assert len(whole) == 3


def test_each_dataset_of_a_metadataset_has_a_validation_of_its_own() -> None:
    found = en.get_val_datasets(
        DATA / "mds/val_concat.yaml", worker_config=config(), batch_size=5, task_encoder=Texts()
    )
    assert [one.path.name for _, one in found] == ["ds_a", "ds_b"]
    assert [sum(int(ld.valid.sum()) for _ in ld) for ld in (en.get_loader(ds) for ds, _ in found)] == [20, 14]


def test_one_epoch_after_another() -> None:
    ld = en.get_loader(train(repeat=False, batch_size=5))
    first, second = [[key for batch in ld for key in batch.__key__] for _ in range(2)]
    assert sorted(first) == sorted(second)
    assert len(set(first)) == 20
    assert first != second


def test_virtual_epochs_go_on() -> None:
    straight = keys(en.get_loader(train()), 6)
    ld = en.get_loader(train(virtual_epoch_length=4))
    assert len(ld) == 4
    first = [batch.__key__ for batch in ld]
    assert first == straight[:4]
    assert keys(ld, 2) == straight[4:]


def test_a_blend_has_no_end() -> None:
    with pytest.raises(ConfigError, match="repeat=False"):
        train(path="mds/blend.yaml", repeat=False)
    counts = Counter(
        batch.__subflavors__[0]["src"]
        for batch in islice(en.get_loader(train(path="mds/blend.yaml", batch_size=1)), 400)
    )
    assert abs(counts["a"] / 400 - CASES["blend_weights"]["weights"]["a"]) < 0.05


# --- state -------------------------------------------------------------------------------------------------------


class Noisy(Texts):
    @en.stateless(restore_seeds=True)
    def encode_sample(self, sample: Any) -> Any:
        sample.text = (sample.text, random.random(), np.random.random(), self.current_batch_index)
        return sample


class Packs(Texts):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[i : i + 3] for i in range(0, len(samples), 3)]

    @en.stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return en.TextSample.derive_from(samples[0], text=[one.text for one in samples])


class Copies(Texts):
    @en.stateless
    def encode_sample(self, sample: Any) -> Iterator[Any]:
        for number in range(len(sample.text) % 3):
            yield en.TextSample.derive_from(sample, text=f"{sample.text}.{number}")


class Grouped(Texts):
    def batch_group_criterion(self, sample: Any) -> tuple[Any, int | None]:
        return int(sample.__key__[-1]) % 2, 3


KINDS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "plain": (Texts, {}),
    "seeded": (Noisy, {}),
    "packed": (Packs, {"packing_buffer_size": 7, "lanes": 4}),
    "generator": (Copies, {"lanes": 4}),
    "grouped": (Grouped, {"lanes": 4, "batch_size": None}),
}


def _plain(batch: Any) -> Any:
    return dataclasses.asdict(batch)


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_the_same_after_a_restore_at_every_step(kind: str, workers: int) -> None:
    make, options = KINDS[kind]

    def loader(count: int) -> Any:
        return en.get_savable_loader(train(make(), wc=config(workers=count), **options))

    straight = [_plain(batch) for batch in islice(loader(0), 9)]
    ld = loader(workers)
    states = [json.dumps(ld.save_state_rank())]
    for batch in islice(ld, 7):
        assert _plain(batch) == straight[len(states) - 1]
        states.append(json.dumps(ld.save_state_rank()))
    for k in (0, 3, 6):
        again = loader(workers)
        again.restore_state_rank(json.loads(states[k]))
        assert [_plain(b) for b in islice(again, 2)] == straight[k : k + 2]
        # Saved again right after a restore, and restored once more.
        twice = loader(workers)
        twice.restore_state_rank(again.save_state_rank())
        assert [_plain(b) for b in islice(twice, 1)] == straight[k + 2 : k + 3][:1]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_states_do_not_grow(kind: str) -> None:
    make, options = KINDS[kind]
    ld = en.get_savable_loader(train(make(), **options))
    sizes = []
    for _ in islice(ld, 6):
        sizes.append(len(json.dumps(ld.save_state_rank())))
    assert max(sizes) - min(sizes) < 24
    assert max(sizes) < 500


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_restore_key_makes_samples_and_batches_again(kind: str) -> None:
    make, options = KINDS[kind]
    ld = en.get_savable_loader(train(make(), **options))
    assert ld.can_restore_sample()
    for batch in islice(ld, 4):
        batch_again = ld.restore_sample(json.loads(json.dumps(batch.__restore_key__)))
        assert _plain(batch_again) == _plain(batch)
        one = ld.restore_sample(batch.__restore_key__[1])
        assert (one.__key__, one.text) == (batch.__key__[1], batch.text[1])
    with pytest.raises(ConfigError, match="restore key"):
        ld.restore_sample(("Webdataset", "x"))


def test_another_world_goes_on_with_the_next_sample() -> None:
    straight = flat(keys(en.get_loader(train(batch_size=1)), 24))
    ld = en.get_savable_loader(train(wc=config(1, 2, 2), batch_size=4))
    assert flat(keys(ld, 1)) == straight[1:8:2]
    state = ld.save_state_rank()
    for world in (1, 4):
        found: list[Any] = [None] * 8
        for rank in range(world):
            again = en.get_savable_loader(train(wc=config(rank, world), batch_size=8 // world))
            again.restore_state_global(state)
            found[rank::world] = flat(keys(again, 1))
        assert found == straight[8:16]


def test_packs_go_on_in_another_world() -> None:
    options = {"packing_buffer_size": 7, "lanes": 4, "batch_size": 2}
    straight = [batch.text for batch in islice(en.get_loader(train(Packs(), **options)), 12)]
    states = []
    for rank in range(4):
        ld = en.get_savable_loader(train(Packs(), wc=config(rank, 4, 1), **options))
        assert len(keys(ld, 1)) == 1
        states.append(ld.save_state_rank())
    again = en.get_savable_loader(train(Packs(), **options))
    again.restore_state_rank(join_states(states))
    of_a_list = en.get_savable_loader(train(Packs(), **options))
    of_a_list.restore_state_global(states)  # as the original gathers them
    assert of_a_list.save_state_rank() == again.save_state_rank()
    assert [batch.text for batch in islice(again, 4)] == straight[4:8]


def test_processes_give_the_same() -> None:
    folder = str(Path(__file__).parent)
    sys.path.insert(0, folder)
    try:
        functions = importlib.import_module("energon_functions")
        for encoder, options in [(functions.Encoder(), {}), (functions.Copies(), {"lanes": 2})]:
            threads = list(islice(en.get_loader(train(encoder, wc=config(workers=1), **options)), 6))
            ld = en.get_savable_loader(train(encoder, wc=config(workers=2), **options), worker_kind="processes")
            assert list(islice(ld, 6)) == threads
    finally:
        sys.path.remove(folder)


def test_states_of_other_data_are_refused() -> None:
    state = en.get_savable_loader(train()).save_state_rank()
    ld = en.get_savable_loader(train())
    next(iter(ld))
    with pytest.raises(ResumeMismatch):
        en.get_savable_loader(train(path="ds_b")).restore_state_rank(ld.save_state_rank())
    with pytest.raises(ResumeMismatch, match="not a state"):
        ld.restore_state_rank({"version": 9})
    assert state["version"] == 1
    other = en.get_savable_loader(train(wc=config(seed_offset=3)))
    with pytest.raises(ResumeMismatch):
        other.restore_state_rank(ld.save_state_rank())


def test_seeds_change_order_and_noise() -> None:
    one, two = (next(iter(en.get_loader(train(Noisy(), wc=config(seed_offset=s))))) for s in (0, 1))
    assert one.__key__ != two.__key__
    before = random.getstate()
    next(iter(en.get_loader(train(Noisy()))))
    assert random.getstate() == before


# --- skipping and failing ----------------------------------------------------------------------------------------


class Skips(Texts):
    @en.stateless
    def encode_sample(self, sample: Any) -> Any:
        if sample.__key__.endswith("7"):
            raise en.SkipSample
        if sample.__key__ == "s003":
            raise ValueError("broken")
        return sample


def test_skipped_samples_are_counted_and_replaced() -> None:
    seen: list[Any] = []
    wc = config(global_error_handler=lambda *given: seen.append(given))
    ld = en.get_loader(train(Skips(), wc=wc, batch_size=5))
    found = flat(keys(ld, 4))
    assert len(found) == 20
    assert not {"s003", "s007", "s017"} & set(found)
    assert ld.failures["skipped"] >= 2
    assert ld.failures["encode_sample"] >= 1
    error, sample, sources = seen[0]
    assert type(error) is ValueError  # the user's own, with a note of what it was raised over
    assert (str(error), error.__notes__) == ("broken", [f"encode_sample failed on the sample {sample.__key__!r}"])
    assert sources == list(sample.__sources__)


def test_in_lanes_skipped_samples_leave_nothing() -> None:
    ld = en.get_loader(train(Skips(), batch_size=1, lanes=1, wc=config(global_error_handler=lambda *_: None)))
    found = flat(keys(ld, 17))
    assert len(set(found)) == 17
    assert not {"s003", "s007", "s017"} & set(found)


def test_in_validation_what_fails_is_not_valid() -> None:
    ld = en.get_loader(_val("ds_a", Skips(), "train", config(global_error_handler=lambda *_: None), batch_size=4))
    keys_of_valid = [key for batch in ld for key, ok in zip(batch.__key__, ld.valid, strict=True) if ok]
    assert len(keys_of_valid) == len(set(keys_of_valid)) == 17


class FailsOnAll(Texts):
    @en.stateless
    def encode_sample(self, sample: Any) -> Any:
        raise ValueError(f"no image in {sample.__key__}")


def test_a_pass_whose_samples_all_fail_is_an_error() -> None:
    """The 20 samples of `ds_a` are fewer than the 100 failures in a row that are tolerated."""
    ld = en.get_loader(_val("ds_a", FailsOnAll(), "train", config(global_error_handler=lambda *_: None), batch_size=4))
    with pytest.raises(en.FatalSampleError, match=r"no samples are left.* 20 failed.*ds_a.*no image in s0") as caught:
        list(ld)
    assert "encode_sample" in str(caught.value)


@pytest.mark.parametrize("lanes", [None, 1])
def test_a_dataset_of_a_blend_whose_samples_all_fail_is_an_error(lanes: int | None) -> None:
    class FailsOnOne(Texts):
        @en.stateless(failure_tolerance=5)
        def encode_sample(self, sample: Any) -> Any:
            if str(sample.__sources__[0].dataset_path).endswith("ds_b"):
                raise ValueError(sample.__key__)
            return sample

    wc = config(global_error_handler=lambda *_: None)
    ld = en.get_loader(train(FailsOnOne(), path="mds/blend.yaml", batch_size=1, lanes=lanes, wc=wc))
    with pytest.raises(en.FatalSampleError, match="ds_b: encode_sample failed 5 times in a row"):
        list(islice(ld, 1000))


def test_a_pass_whose_samples_are_all_skipped_is_empty() -> None:
    class SkipsAll(Texts):
        @en.stateless
        def encode_sample(self, sample: Any) -> Any:
            raise en.SkipSample

    assert list(en.get_loader(_val("ds_a", SkipsAll(), "train", batch_size=4))) == []


def test_a_handler_may_end_the_run_and_so_do_failures_in_a_row() -> None:
    class Broken(Texts):
        @en.stateless(failure_tolerance=3)
        def encode_sample(self, sample: Any) -> Any:
            raise ValueError(sample.__key__)

    calls: list[Any] = []
    wc = config(global_error_handler=lambda *given: calls.append(given))
    with pytest.raises(en.FatalSampleError, match="encode_sample failed 3 times in a row"):
        next(iter(en.get_loader(train(Broken(), wc=wc))))
    assert len(calls) == 3
    with pytest.raises(ValueError, match="s0"):
        next(iter(en.get_loader(train(Broken(), wc=config(global_error_handler=en.reraise_exception)))))

    class Misspelled(Texts):
        def encode_sample(self, sample: Any) -> Any:
            return smaple  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore

    with pytest.raises(NameError):
        next(iter(en.get_loader(train(Misspelled()))))


def test_misuse_is_said_before_the_first_sample() -> None:
    class Both(Texts):
        def encode_sample(self, sample: Any) -> Any:
            return sample

        def preencode_sample(self, sample: Any) -> Any:
            return sample

    for wrong in (
        lambda: train(Both()),
        lambda: train(max_samples=3),
        lambda: config(3, 3),
        lambda: en.get_loader(train(), prefetch=2),
        lambda: en.SampleDecoder(image_decode="torchrgb16"),
        lambda: en.load_dataset("x", spilt_part="train"),
    ):
        with pytest.raises(ConfigError):
            wrong()


# --- small things ------------------------------------------------------------------------------------------------


def test_postencode_gets_lazy_files() -> None:
    @en.stateless
    def lazily(sample: Any, imgs: Any, media: Any) -> Any:
        made = en.TextSample(**en.basic_sample_keys(sample), text="")
        made.text = en.DirectLazy(imgs, sample["json"]["image"])  # type: ignore[assignment]
        return made

    class Late(en.DefaultTaskEncoder[Any, Any, Any, Any]):
        cookers = (en.Cooker(lazily, {"src": "jsonl"}), en.Cooker(text_of_pair))
        decoder = None

        @en.stateless
        def postencode_sample(self, sample: Any) -> Any:
            sample.text = len(sample.text.get(sample)) if sample.text else 0
            return sample

        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return samples[0]

    ld = en.get_loader(train(Late(), "mds/aux_mixed.yaml", packing_buffer_size=4, batch_size=2))
    sizes = [size for batch in islice(ld, 10) for size in batch.text]
    assert max(sizes) > 50


def test_batches_of_own_types() -> None:
    @en.edataclass
    class Own(en.Batch):
        text: list[str]

    encoder = Texts(raw_batch_type=Own)
    batch = next(iter(en.get_loader(train(encoder))))
    assert isinstance(batch, Own)
    assert isinstance(batch.__restore_key__, tuple)
    assert Own.derive_from(batch, text=["x"]).__key__ == batch.__key__
    assert isinstance(next(iter(en.get_loader(train(Texts(batch_type=dict))))), dict)
    assert dataclasses.is_dataclass(en.Sample)


def test_an_augmenting_encoder_adds_to_another() -> None:
    class Louder(en.AugmentTaskEncoder):
        def encode_sample(self, sample: Any) -> Any:
            sample.text = sample.text.upper()
            return sample

    batch = next(iter(en.get_loader(train(Louder(Texts())))))
    assert all(one.startswith("TEXT-A") for one in batch.text)


def test_samples_are_joined_by_their_fields() -> None:
    one = en.TextSample(__key__="a", __restore_key__=(1,), __subflavors__={"x": 1}, text="t")
    two = {"__key__": "b", "image": 3, "caption": "c", "__sources__": ()}
    made = en.CaptioningSample.from_joined(one, two, None)
    assert (made.__key__, made.__subflavors__, made.image, made.caption) == ("a", {"x": 1}, 3, "c")
    assert pickle.loads(pickle.dumps(made)) == made


def test_tensors_are_padded_and_stacked() -> None:
    import torch

    batch = en.generic_batch([{"x": torch.ones(2, 1)}, {"x": torch.ones(1, 3)}])
    assert batch["x"].tolist() == [[[1, 0, 0], [1, 0, 0]], [[1, 1, 1], [0, 0, 0]]]


def test_numbers_of_samples_and_batches() -> None:
    class Numbers(Texts):
        def encode_batch(self, batch: Any) -> Any:
            return self.current_batch_index

        def encode_sample(self, sample: Any) -> Any:
            sample.text = self.current_sample_index
            return sample

    assert list(islice(en.get_loader(train(Numbers())), 3)) == [0, 1, 2]
    with pytest.raises(ConfigError):
        Numbers().current_sample_index  # noqa: B018


def test_names() -> None:
    for name in en.__all__:
        assert getattr(en, name) is not None
    assert [Path(leaf.path).name for leaf in en.load_dataset(DATA / "mds/aux_mixed.yaml").leaves()] == [
        "primary.jsonl",
        "ds_a",
    ]
    ds = en.get_train_dataset(
        en.load_dataset(DATA / "ds_a"), worker_config=config(), batch_size=1, task_encoder=Texts()
    )
    assert isinstance(ds, en.EnergonDataset)


@pytest.mark.parametrize(
    ("world", "workers", "batch_size", "drop", "lengths"),
    # 20 samples; what Energon 7.4.1 says of the same
    [(1, 0, 3, False, [7]), (1, 4, 3, False, [8]), (2, 3, 3, True, [3, 3]), (3, 2, None, False, [7, 7, 6])],
)
def test_an_endless_dataset_is_as_long_as_an_epoch_of_it_in_energon(
    world: int, workers: int, batch_size: int | None, drop: bool, lengths: list[int]
) -> None:
    options: dict[str, Any] = {"batch_size": batch_size, "batch_drop_last": drop}
    made = [train(wc=config(rank, world, workers), **options) for rank in range(world)]
    assert [len(one) for one in made] == [len(en.get_loader(one)) for one in made] == lengths
    assert {len(train(wc=config(0, world, workers), virtual_epoch_length=5, **options))} == {5}


def test_a_blend_is_as_long_as_all_its_datasets_together() -> None:
    counted = [len(train(path=path, batch_size=1)) for path in ("ds_a", "ds_b", "mds/blend.yaml")]
    assert counted[2] == counted[0] + counted[1]


def test_a_sample_type_is_held_against_every_dataset() -> None:
    assert len(train(sample_type=en.CrudeSample)) == len(train())
    for get in (train, lambda **more: _val("ds_a", Texts(), "val", batch_size=1, **more)):
        with pytest.raises(ConfigError, match="the sample type differs: found CrudeSample, expected TextSample"):
            get(sample_type=en.TextSample)
