"""Every hook that Energon calls on a task encoder is called, or refused before the first sample."""

from __future__ import annotations

import io
import json
import logging
import pickle
import re
import shutil
import time
import wave
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.codec.films import film
from tests.internals import ENERGON_INSTEAD as INSTEAD

import penstock as ps
from penstock.compat import energon as en
from penstock.errors import ConfigError, PenstockError, ResumeMismatch, UnsafeData

DATA = Path(__file__).parent.parent.parent / "golden" / "energon-loading" / "data"


@en.stateless
def text(sample: Any) -> Any:
    return en.TextSample(**en.basic_sample_keys(sample), text=sample["txt"])


class Texts(en.DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (en.Cooker(text),)


def _train(encoder: Any, path: Any = DATA / "ds_a", batch_size: int | None = 4, **more: Any) -> Any:
    config = en.WorkerConfig(rank=0, world_size=1, num_workers=0)
    return en.get_train_dataset(path, worker_config=config, batch_size=batch_size, task_encoder=encoder, **more)


def _val(encoder: Any, path: Any = DATA / "ds_a", batch_size: int = 4, **more: Any) -> Any:
    config = en.WorkerConfig(rank=0, world_size=1, num_workers=0)
    return en.get_val_dataset(path, worker_config=config, batch_size=batch_size, task_encoder=encoder, **more)


def _texts(dataset: Any, count: int = 5) -> list[str]:
    return [one for batch in islice(en.get_loader(dataset), count) for one in batch.text]


# --- postencode_sample without packing -------------------------------------------------------------------------------


class Post(Texts):
    @en.stateless
    def postencode_sample(self, sample: Any) -> Any:
        sample.text += " post"
        return sample


class PreAndPost(Post):
    @en.stateless
    def preencode_sample(self, sample: Any) -> Any:
        sample.text += " pre"
        return sample


class EncodeAndPost(Post):
    @en.stateless
    def encode_sample(self, sample: Any) -> Any:
        sample.text += " encode"
        return sample


@pytest.mark.parametrize(("kind", "end"), [(Post, " post"), (PreAndPost, " pre post"), (EncodeAndPost, " encode post")])
@pytest.mark.parametrize("lanes", [None, 2])
def test_postencode_comes_after_encoding_without_packing(kind: Any, end: str, lanes: int | None) -> None:
    assert _texts(_train(kind(), lanes=lanes)) == [f"{one}{end}" for one in _texts(_train(Texts(), lanes=lanes))]
    if lanes is None:
        for val in (_val(kind()), en.get_val_datasets(DATA / "ds_a", **_given(kind()))[0][0]):
            assert _texts(val) == [f"{one}{end}" for one in _texts(_val(Texts()))]


def _given(encoder: Any) -> dict[str, Any]:
    config = en.WorkerConfig(rank=0, world_size=1, num_workers=0)
    return {"worker_config": config, "batch_size": 4, "task_encoder": encoder}


def test_postencode_with_packing_is_called_once_for_a_sample_of_a_pack() -> None:
    class Packs(PreAndPost):
        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            return [samples[at : at + 2] for at in range(0, len(samples), 2)]

        def pack_selected_samples(self, samples: list[Any]) -> Any:
            samples[0].text = "|".join(one.text for one in samples)
            return samples[0]

    for packed in _texts(_train(Packs(), packing_buffer_size=4)):
        assert packed.count(" pre post") == packed.count(" post") == 2


def test_postencode_is_saved_and_restored() -> None:
    whole = [batch.text for batch in islice(en.get_savable_loader(_train(PreAndPost())), 8)]
    begun = en.get_savable_loader(_train(PreAndPost()))
    list(islice(begun, 3))
    resumed = en.get_savable_loader(_train(PreAndPost()))
    resumed.restore_state_rank(json.loads(json.dumps(begun.save_state_rank())))
    assert [batch.text for batch in islice(resumed, 5)] == whole[3:]


class Twice(Texts):
    """Two samples of one, and of each of them two again."""

    @en.stateless
    def preencode_sample(self, sample: Any) -> Iterator[Any]:
        for number in range(2):
            yield en.TextSample(**en.basic_sample_keys(vars_of(sample)), text=f"{sample.text} {number}")

    @en.stateless
    def postencode_sample(self, sample: Any) -> Iterator[Any]:
        for number in range(2):
            yield en.TextSample(**en.basic_sample_keys(vars_of(sample)), text=f"{sample.text}.{number}")


def vars_of(sample: Any) -> dict[str, Any]:
    names = ("__key__", "__restore_key__", "__subflavors__", "__sources__")
    return {name: getattr(sample, name) for name in names}


def test_generators_in_both_steps_and_their_restore_keys() -> None:
    ld = en.get_savable_loader(_train(Twice(), batch_size=None))
    samples = list(islice(ld, 8))
    assert [sample.text[-4:] for sample in samples] == [" 0.0", " 0.1", " 1.0", " 1.1"] * 2
    for sample in samples:
        assert ld.restore_sample(sample.__restore_key__).text == sample.text
    of_four = en.get_savable_loader(_train(Twice(), batch_size=None, lanes=2))
    for sample in islice(of_four, 8):
        assert of_four.restore_sample(sample.__restore_key__).text == sample.text


def test_a_postencode_that_fails_or_skips() -> None:
    class Some(Texts):
        @en.stateless
        def postencode_sample(self, sample: Any) -> Any:
            if int(sample.text.split()[1]) % 2:
                raise en.SkipSample
            return sample

    ld = en.get_loader(_train(Some()))
    numbers = [int(one.split()[1]) for batch in islice(ld, 5) for one in batch.text]
    assert not any(number % 2 for number in numbers)
    assert ld.failures["skipped"] > 0


# --- cookers that give several samples -------------------------------------------------------------------------------


@en.stateless
def halves(sample: Any) -> Iterator[Any]:
    for half in "ab":
        yield en.TextSample(**en.basic_sample_keys(sample), text=f"{sample['txt']} {half}")


def test_a_cooker_that_gives_several_samples() -> None:
    class Halves(Texts):
        cookers = (en.Cooker(halves),)

        @en.stateless
        def encode_sample(self, sample: Any) -> Any:
            sample.text += "!"
            return sample

    ld = en.get_savable_loader(_train(Halves(), batch_size=None))
    samples = list(islice(ld, 6))
    assert [sample.text[-2:] for sample in samples] == ["a!", "b!"] * 3
    for sample in samples:
        assert ld.restore_sample(sample.__restore_key__).text == sample.text


# --- what is never called is refused ---------------------------------------------------------------------------------

NEVER_CALLED = ("build_cook_crude_sample", "_load_dataset", "_is_overridden")


@pytest.mark.parametrize("name", NEVER_CALLED)
@pytest.mark.parametrize("open_data", [_train, _val])
def test_what_puts_datasets_together_is_refused(name: str, open_data: Any) -> None:
    own: Any = type("Own", (Texts,), {name: lambda self, *args, **kwargs: None})
    with pytest.raises(ConfigError, match=f"Own overrides a method that is never called here: found {name}"):
        open_data(own())


@pytest.mark.parametrize("name", ["batch", "encode_batch"])
def test_a_batch_becomes_several(name: str) -> None:
    def several(self: Any, batch: Any) -> Iterator[Any]:
        yield batch
        yield batch

    own: Any = type("Own", (Texts,), {name: several})
    batches = [batch for _, batch in zip(range(4), en.get_loader(_train(own())), strict=False)]
    assert batches[0] is batches[1]
    assert batches[2] is batches[3]
    assert batches[1] is not batches[2]

    own = type("Own", (Texts,), {name: lambda self, batch: several(self, batch)})
    with pytest.raises(ConfigError, match="one batch each"):
        next(iter(en.get_loader(_train(own()))))


@pytest.mark.parametrize("name", ["decode", "__call__", "config"])
def test_a_decoder_of_its_own_is_refused(name: str) -> None:
    class Own(Texts):
        decoder = type("Mine", (en.SampleDecoder,), {name: lambda self, *args: None})()

    with pytest.raises(ConfigError, match="Mine overrides"):
        _train(Own())

    class Other(Texts):
        decoder: Any = object()

    with pytest.raises(ConfigError, match="no decoder"):
        _val(Other())


# --- sample types of the user's --------------------------------------------------------------------------------------


@en.edataclass
class Mine(en.Sample):
    words: str
    weight: float = 1.0


@pytest.fixture
def own_type(tmp_path: Path) -> Path:
    shutil.copytree(DATA / "ds_a", tmp_path / "ds")
    (tmp_path / "ds" / ".nv-meta" / "dataset.yaml").write_text(
        f"sample_type:\n  __module__: {Mine.__module__}\n  __class__: Mine\nfield_map:\n  words: txt\n"
    )
    return tmp_path / "ds"


@pytest.mark.parametrize("how", [{"trust": True}, {"sample_types": {f"{Mine.__module__}.Mine": Mine}}], ids=str)
def test_an_own_sample_type_comes_as_its_class(own_type: Path, how: dict[str, Any]) -> None:
    seen: list[Any] = []

    class Sees(en.DefaultTaskEncoder[Any, Any, Any, Any]):
        def encode_sample(self, sample: Any) -> Any:
            seen.append(sample)
            return sample

    batch = next(iter(en.get_loader(_train(Sees(), own_type, **how))))
    assert type(batch).__name__ == type(seen[0]).__name__ == "Mine"
    assert seen[0].words.startswith("text-a ")
    assert seen[0].weight == 1.0
    seen.clear()
    next(iter(en.get_loader(_val(Sees(), own_type, **how))))
    assert type(seen[0]).__name__ == "Mine"


# --- wrapping another task encoder -----------------------------------------------------------------------------------


def test_what_augments_keeps_what_it_says_itself() -> None:
    @en.stateless
    def shouted(sample: Any) -> Any:
        return en.TextSample(**en.basic_sample_keys(sample), text=sample["txt"].decode().upper())

    class Shouts(en.AugmentTaskEncoder):
        cookers = (en.Cooker(shouted),)
        decoder = None

    class Strict(Texts):
        __default_failure_tolerance__ = 3

    augmented = Shouts(Strict())
    assert _texts(_train(augmented))[0].startswith("TEXT-A ")
    assert augmented.__default_failure_tolerance__ == 3
    assert en.AugmentTaskEncoder(Strict()).decoder == Strict.decoder


def test_a_cache_reaches_the_encoder_inside() -> None:
    class Asks(Texts):
        def encode_sample(self, sample: Any) -> Any:
            assert self.cache is pool
            return sample

    pool = en.NoCachePool()
    inner = Asks()
    ld = en.get_loader(_train(en.AugmentTaskEncoder(inner)), cache_pool=pool)
    next(iter(ld))
    assert inner.cache is pool


# --- what a decoder says ---------------------------------------------------------------------------------------------


@pytest.fixture
def sounds(tmp_path: Path) -> Path:
    """Samples with a sound and a pickled part, as crude data, and as typed ones by typed.yaml."""
    with ps.create(tmp_path / "sounds", format="webdataset") as writer:
        for number in range(4):
            value = {"number": number, "of a class": Path()}
            writer.write({"__key__": f"{number}", "wav": _sound(), "pkl": pickle.dumps(value)})
    meta = tmp_path / "sounds" / ".nv-meta"
    assert (meta / "split.yaml").exists()
    head = "__module__: megatron.energon\n"
    (meta / "dataset.yaml").write_text(head + "__class__: CrudeWebdataset\n")
    (meta / "typed.yaml").write_text(
        f"sample_type:\n  {head}  __class__: CaptioningSample\nfield_map:\n  image: wav\n  caption: pkl\n"
    )
    return tmp_path / "sounds"


def _sound() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(16_000)
        writer.writeframes(bytes(3200))
    return file.getvalue()


@en.stateless
def of_sound(sample: Any, primary: Any) -> Any:
    of_store = primary.get(f"{sample['__key__']}.wav")
    return {**en.basic_sample_keys(sample), "part": sample["wav"], "store": of_store, "pkl": sample.get("pkl")}


class Sounds(en.DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (en.Cooker(en.cooker(need_primary=True)(of_sound)),)
    decoder = en.SampleDecoder(av_decode="torch", trust=True)


def test_a_decoder_s_trust_and_frames_hold_for_parts_and_stores(sounds: Path) -> None:
    sample = next(iter(en.get_loader(_train(Sounds(), sounds, batch_size=None))))
    assert sample["pkl"]["number"] in range(4)
    for found in (sample["part"], sample["store"]):
        assert isinstance(found, en.AVData)
        assert len(found.audio_clips) == 1
    typed = next(iter(en.get_loader(_train(Sounds(), sounds, batch_size=None, dataset_config="typed.yaml"))))
    assert isinstance(typed.image, en.AVData)
    assert typed.caption["number"] in range(4)


def test_without_trust_pickled_parts_end_the_run(sounds: Path) -> None:
    class Careful(Sounds):
        decoder = en.SampleDecoder()

    ld = en.get_loader(_train(Careful(), sounds, batch_size=None))
    with pytest.raises(UnsafeData):
        next(iter(ld))


TOUCHES = {
    "by name": lambda sample: sample["pkl"],
    "get": lambda sample: sample.get("pkl"),
    "pop": lambda sample: sample.pop("pkl"),
    "dict": lambda sample: dict(sample),
    "copy": lambda sample: sample.copy(),
    "double star": lambda sample: {**sample},
    "items": lambda sample: list(sample.items()),
    "values": lambda sample: list(sample.values()),
}
"""How a cooker may come by a part."""


@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("how", TOUCHES)
def test_a_part_that_runs_code_is_refused_however_it_is_asked_for(how: str, prepared: bool, sounds: Path) -> None:
    if not prepared:
        (sounds / ".nv-meta" / "dataset.yaml").unlink()

    class Asks(en.DefaultTaskEncoder[Any, Any, Any, Any]):
        cookers = (en.Cooker(en.stateless(TOUCHES[how])),)

    with pytest.raises(UnsafeData, match=r"sounds: sample '\d': a part 'pkl' runs code"):
        next(iter(en.get_loader(_train(Asks(), sounds, batch_size=None))))


@pytest.mark.parametrize("prepared", [True, False])
def test_a_part_that_runs_code_and_that_nobody_touches_harms_nobody(prepared: bool, sounds: Path) -> None:
    if not prepared:
        (sounds / ".nv-meta" / "dataset.yaml").unlink()

    @en.stateless
    def rest(sample: Any) -> Any:
        return {"__key__": sample["__key__"], "wav": sample.get("wav"), "has": "pkl" in sample, "no": sample.get("no")}

    class Rest(en.DefaultTaskEncoder[Any, Any, Any, Any]):
        cookers = (en.Cooker(rest),)

    made = next(iter(en.get_loader(_train(Rest(), sounds, batch_size=None))))
    assert isinstance(made["wav"], en.AVDecoder)
    assert (made["has"], made["no"]) == (True, None)
    if prepared:
        with pytest.raises(UnsafeData):
            ps.open(sounds)[0]


# --- time limits, and what changes nothing ---------------------------------------------------------------------------


class Slow(Texts):
    @en.stateless
    def encode_sample(self, sample: Any) -> Any:
        time.sleep(0.05)
        return sample


@pytest.mark.parametrize("workers", [0, 1])
def test_a_slow_batch_is_logged_and_waited_for(workers: int, caplog: pytest.LogCaptureFixture) -> None:
    config = en.WorkerConfig(rank=0, world_size=1, num_workers=workers)
    data = en.get_train_dataset(DATA / "ds_a", worker_config=config, batch_size=2, task_encoder=Slow())
    limits = {"watchdog_timeout_seconds": 0.02, "watchdog_initial_timeout_seconds": 30, "fail_on_timeout": False}
    batches = iter(en.get_loader(data, prefetch_factor=1, **limits))
    with caplog.at_level(logging.WARNING):
        assert len(next(batches).text) == 2
        assert not caplog.messages  # the first one has a limit of its own
        assert len([len(next(batches).text) for _ in range(3)]) == 3
    assert "no batch for 0.02 s" in caplog.text
    assert "test_hooks.py" in caplog.text  # where the threads are


def test_a_slow_batch_of_a_worker_is_an_error_by_default() -> None:
    config = en.WorkerConfig(rank=0, world_size=1, num_workers=1)
    data = en.get_train_dataset(DATA / "ds_a", worker_config=config, batch_size=20, task_encoder=Slow())
    for fails in ({}, {"fail_on_timeout": True}):
        with pytest.raises(PenstockError, match="timed out"):
            next(iter(en.get_loader(data, watchdog_timeout_seconds=0.02, **fails)))
    with pytest.raises(ConfigError, match="one time limit"):
        en.get_loader(data, watchdog_timeout_seconds=60, watchdog_initial_timeout_seconds=300)


def test_a_batch_of_the_calling_thread_can_not_be_ended() -> None:
    for limit in ({}, {"watchdog_timeout_seconds": 60}):
        with pytest.raises(ConfigError, match="calling thread"):
            en.get_loader(_train(Texts()), fail_on_timeout=True, **limit)


def test_options_without_effect_are_said(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with caplog.at_level(logging.WARNING):
        en.get_loader(_train(Texts()), checkpoint_every_sec=60, n_checkpoints=None, gc_collect_every_n_steps=10)
        _train(Texts(), shuffle_buffer_size=None, max_samples_per_sequence=None)
        en.FileStoreCachePool().close()
        assert not caplog.messages
        en.get_loader(_train(Texts()), checkpoint_every_sec=5, n_checkpoints=3, checkpoint_every_min_n_samples=9)
        en.get_loader(_train(Texts()), gc_collect_every_n_steps=1, gc_freeze_at_start=False)
        _train(Texts(), shuffle_buffer_size=100, max_samples_per_sequence=50, parallel_shard_iters=4)
        en.WorkerConfig(
            rank=0, world_size=1, num_workers=0, worker_debug_path="x", worker_log_level=2,
            restore_error_handler=en.log_exception,
        )  # fmt: skip
        en.FileStoreCachePool(parent_cache_dir=tmp_path, max_cache_count=5, method="pickle", max_cache_size_gbytes=9)
    for name in (
        "checkpoint_every_sec=5", "n_checkpoints=3", "checkpoint_every_min_n_samples=9", "gc_collect_every_n_steps=1",
        "gc_freeze_at_start=False", "shuffle_buffer_size=100", "max_samples_per_sequence=50", "parallel_shard_iters=4",
        "worker_debug_path='x'", "worker_log_level=2", "restore_error_handler=", "parent_cache_dir=",
        "max_cache_count=5", "method='pickle'", "max_cache_size_gbytes=9",
    ):  # fmt: skip
        assert name in caplog.text


@pytest.mark.parametrize(
    "name", ["Cooker", "DirectLazy", "FileCacheLazy", "FileStore", "Lazy", "MockLazy", "SavableDataLoader"]
)
def test_names_that_energon_lets_be_subscribed(name: str) -> None:
    assert getattr(en, name)[en.TextSample].__origin__ is getattr(en, name)


def test_pickles_of_plain_values_need_no_trust(tmp_path: Path) -> None:
    with ps.create(tmp_path, format="webdataset") as w:
        for number in range(4):
            w.write({"__key__": f"{number}", "txt": "a", "pkl": pickle.dumps({"number": number})})

    @en.stateless
    def cook(sample: Any) -> Any:
        return {**en.basic_sample_keys(sample), "number": sample["pkl"]["number"]}

    class Plain(en.DefaultTaskEncoder[Any, Any, Any, Any]):
        cookers = (en.Cooker(cook),)

    assert {next(iter(en.get_loader(_train(Plain(), tmp_path, batch_size=None))))["number"]} <= set(range(4))


def test_film_and_sound_are_handed_out_by_energons_classes_with_tensors(sounds: Path) -> None:
    class Later(Sounds):
        decoder = en.SampleDecoder(trust=True)

    sample = next(iter(en.get_loader(_train(Later(), sounds, batch_size=None))))
    typed = next(iter(en.get_loader(_train(Later(), sounds, batch_size=None, dataset_config="typed.yaml"))))
    for found in (
        sample["part"],
        sample["store"],
        typed.image,
        en.AVDecoder(io.BytesIO(_sound())),
        en.AVDecoder(_sound()),
    ):
        assert isinstance(found, en.AVDecoder)
        again = pickle.loads(pickle.dumps(found))
        for data in (again.get_audio(), again.get_clips(audio_clip_ranges=[(0, 0.1)]), again.get_frames()):
            assert isinstance(data, en.AVData)
            assert [clip.shape for clip in data.audio_clips or ()] == [torch.Size([1, 1600])]
        assert again.get_audio_clips([(0, 4)], "samples")[0][0].tolist() == [[0, 0, 0, 0]]
        assert found.stream.read() == _sound()


def test_metadata_of_a_film_say_what_is_asked_for() -> None:
    decoder = en.AVDecoder(film("matroska", num_frames=9, width=32, height=24))
    assert decoder.get_metadata().video_num_frames == 9
    assert decoder.get_video_duration(get_frame_count=True)[1] == 9
    assert decoder.get_video_duration()[1] is None
    assert decoder.get_metadata(get_video_frame_count=False).video_num_frames is None
    assert decoder.get_metadata(get_video_frame_size=False).video_width is None
    assert decoder.get_metadata(get_video=False) == en.AVMetadata()
    assert en.AVDecoder(_sound()).get_metadata(get_audio=False) == en.AVMetadata()
    assert en.AVDecoder(_sound()).get_metadata(get_audio_num_samples=True).audio_num_samples == 1600


class Own(en.FileStore):
    """Files that are no dataset's."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    def __getitem__(self, key: str, /) -> Any:
        return self._files[key], en.SourceInfo("own", None, None, (key,))

    def get_path(self) -> str:
        return "own"


class Upper(en.SampleDecoder):
    def decode(self, fname: str, raw: bytes) -> Any:
        return f"{fname}: {raw.decode().upper()}"


@pytest.mark.parametrize("pool", [en.NoCachePool, en.FileStoreCachePool])
def test_stores_and_decoders_of_the_programs_own(pool: Any, tmp_path: Path) -> None:
    own = Own({"a.txt": b"text"})
    decoded = en.DecodeFileStore(own, decoder=Upper())
    assert en.DecodeFileStore(own, decoder=en.SampleDecoder()).get("a.txt") == "text"
    cache = pool()
    for store, value in ((own, b"text"), (decoded, "a.txt: TEXT")):
        for get in (store.get, lambda name, sample, store=store: cache.get(store, name, sample)):
            sample: dict[str, Any] = {"__sources__": ()}
            assert get("a.txt", sample) == value
            assert [(one.dataset_path, one.file_names) for one in sample["__sources__"]] == [("own", ("a.txt",))]
        sample = {}
        assert cache.get_lazy(store, "a.txt").get(sample) == value
        assert len(sample["__sources__"]) == 1
        with pytest.raises(ConfigError, match="no media metadata"):
            store.get_media_metadata("a.txt")
    cache.close()
    (tmp_path / "b.txt").write_text("more")
    system = en.SystemFileStore(tmp_path)
    assert en.DecodeFileStore(system, decoder=Upper()).get("b.txt") == "b.txt: MORE"
    assert isinstance(system, en.FileStore)
    assert isinstance(decoded, en.FileStore)


class Pictures(Texts):
    decoder = en.SampleDecoder(image_decode="pilrgb", video_decode_audio=True)


def test_a_state_of_another_task_encoder_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    begun = en.get_savable_loader(_train(Texts()))
    list(islice(begun, 2))
    state = begun.save_state_rank()
    other = en.get_savable_loader(_train(Post()))
    other.restore_state_rank(state)
    assert "another task encoder" in caplog.text
    assert next(iter(other)).__key__ == next(iter(begun)).__key__
    packs = en.get_savable_loader(_train(Texts(), packing_buffer_size=3))
    next(iter(packs))
    others = en.get_savable_loader(_train(Post(), packing_buffer_size=3))
    others.restore_state_rank(packs.save_state_rank())
    assert next(iter(others)).__key__ == next(iter(packs)).__key__
    pictures = en.get_savable_loader(_train(Pictures()))  # decodes in another way
    pictures.restore_state_rank(state)
    again = en.get_savable_loader(_train(Texts()))
    again.restore_state_rank(state)
    assert next(iter(pictures)).__key__ == next(iter(again)).__key__
    elsewhere = en.get_savable_loader(_train(Texts(), shuffle_over_epochs_multiplier=3))
    with pytest.raises(ResumeMismatch, match="accept"):
        elsewhere.restore_state_rank(state)
    elsewhere.restore_state_rank(state, accept=("recipe", "order"))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_of_a_blend_of_blends(workers: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
    one = f"path: {DATA}/ds_a"
    (tmp_path / "in.yaml").write_text(
        f"{head}    - {{weight: 4, {one}}}\n    - {{weight: 1, {one}, subflavors: {{a: b}}}}\n"
    )
    outer = tmp_path / "out.yaml"
    outer.write_text(f"{head}    - {{weight: 4, path: ./in.yaml}}\n    - {{weight: 1, path: ./in.yaml}}\n")

    def loader() -> Any:
        config = en.WorkerConfig(rank=0, world_size=1, num_workers=workers)
        options: dict[str, Any] = {"shuffle_buffer_size": None, "max_samples_per_sequence": None}
        return en.get_savable_loader(
            en.get_train_dataset(outer, worker_config=config, batch_size=1, task_encoder=Texts(), **options)
        )

    begun, restored, unread = loader(), loader(), loader()
    unread.restore_state_rank(begun.save_state_rank())
    assert next(iter(unread)).__key__ == next(iter(loader())).__key__
    list(islice(begun, 5))
    restored.restore_state_rank(json.loads(json.dumps(begun.save_state_rank())))
    assert [one.__key__ for one in islice(restored, 20)] == [one.__key__ for one in islice(begun, 20)]
    assert "another task encoder" not in caplog.text


def test_a_name_that_is_not_here_says_what_to_use() -> None:
    with pytest.raises(ImportError, match=r"has no Metadataset\. Use load_dataset"):
        from penstock.compat.energon import Metadataset  # noqa: F401  # pyright: ignore
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        from penstock.compat.energon import Nothing  # noqa: F401  # pyright: ignore
    for hint in {word for text in INSTEAD.values() for word in re.findall(r"(\w+)\(path\)", text)}:
        assert hasattr(en, hint)
    assert not set(INSTEAD) & set(en.__all__)


def test_the_log_of_a_failed_sample_says_where_it_comes_from(caplog: pytest.LogCaptureFixture) -> None:
    source = en.SourceInfo(dataset_path="/data/set", index=7, shard_name="shard_3.tar", file_names=("k.txt",))
    with caplog.at_level(logging.WARNING, logger="penstock.energon"):
        en.log_exception(ValueError("odd"), {"__key__": "k"}, [source])
        en.log_exception(ValueError("odd"), {"__key__": "k"})
    first, second = caplog.messages
    assert "'k' of /data/set/shard_3.tar (7) failed" in first
    assert "'k' failed" in second
