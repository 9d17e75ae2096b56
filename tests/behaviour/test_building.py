"""Overridden `build_…` hooks, factories, and the names and submodules that programs import."""

from __future__ import annotations

import importlib
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.internals import ENERGON_INSTEAD as INSTEAD

from penstock.compat import energon as en
from penstock.compat.energon.dataset_config import get_dataset_from_config
from penstock.compat.energon.metadataset.loader_interface import DatasetBlendMode
from penstock.errors import ConfigError

DATA = Path(__file__).parent.parent / "golden" / "energon-loading" / "data"
PUBLIC = """
AugmentTaskEncoder BaseCoreDatasetFactory BaseWebdatasetFactory basic_sample_keys batch_list batch_pad_stack batch_stack
Batch BatchDataset BlendDataset CachePool CaptioningSample CaptioningWebdataset concat_pad ConcatDataset cooker Cooker
CrudeJsonlDatasetFactory CrudeSample CrudeWebdataset DatasetLoader DatasetLoaderInterface DecodeFileStore
DefaultCrudeJsonlDatasetFactory DefaultDecoderWebdatasetFactory DefaultGenericWebdatasetFactory DefaultTaskEncoder
DirectLazy edataclass EpochizeDataset FileCacheLazy FileStore FileStoreCachePool FileStoreDecoder FilterDataset
GcDataset generic_batch generic_concat get_loader get_savable_loader get_train_dataset get_val_dataset get_val_datasets
GroupBatchDataset homogeneous_concat_mix ImageClassificationSample ImageClassificationWebdataset ImageSample
ImageWebdataset InterleavedSample InterleavedWebdataset IterMapDataset JoinedWebdatasetFactory Lazy LimitDataset
load_dataset log_exception LogSampleDataset MapDataset Metadataset MetadatasetV2 MixBatchDataset MockLazy
MultiChoiceVQASample MultiChoiceVQAWebdataset NoCachePool OCRSample OCRWebdataset PackingDataset PrimaryFileStore
prepare_metadataset RepeatDataset reraise_exception Sample SampleDecoder SavableDataLoader SavableDataset
traverse_metadataset ShuffleBufferDataset SimilarityInterleavedSample SimilarityInterleavedWebdataset SkipSample
SourceInfo StandardWebdatasetFactory stateless SystemFileStore TaskEncoder TextSample TextWebdataset VidQASample
VidQAWebdataset VQAOCRWebdataset VQASample VQAWebdataset WorkerConfig
"""
"""The public names of 7.4.1."""
SUBMODULES = {
    "task_encoder": "TaskEncoder Batch Cooker stateless get_train_dataset",
    "task_encoder.base": "TaskEncoder DefaultTaskEncoder stateless get_stateless",
    "task_encoder.cooking": "Cooker cooker basic_sample_keys",
    "flavors": "Sample CaptioningSample CaptioningWebdataset CrudeWebdataset SampleDecoder",
    "flavors.base_dataset": "Sample SavableDataset",
    "flavors.captioning": "CaptioningSample CaptioningWebdataset",
    "flavors.webdataset": "StandardWebdatasetFactory AVData",
    "flavors.webdataset.sample_decoder": "SampleDecoder",
    "epathlib": "EPath",
    "epathlib.epath": "EPath",
    "media": "AVMetadata ImageMetadata",
    "media.metadata": "AVMetadata ImageMetadata",
    "dataset_loader": "DatasetLoader",
    "dataset_config": "get_dataset_from_config",
    "metadataset": "load_dataset prepare_metadataset traverse_metadataset",
    "metadataset.loader_interface": "DatasetBlendMode LoadedDataset",
    "loader": "get_loader get_savable_loader",
    "savable_loader": "SavableDataLoader",
    "worker": "WorkerConfig",
    "wrappers": "MapDataset concat_pad BlendDataset",
    "wrappers.map_dataset": "MapDataset",
    "wrappers.skip": "SkipSample",
    "cache": "FileStore FileStoreCachePool Lazy",
    "errors": "SkipSample FatalSampleError log_exception",
    "edataclass": "edataclass",
    "source_info": "SourceInfo add_source_info",
    "av": "AVData AVDecoder get_clips_uniform get_single_frames_uniform",
}


def test_public_names() -> None:
    assert len(PUBLIC.split()) == 95
    for name in PUBLIC.split():
        if name in INSTEAD:
            with pytest.raises(ImportError, match="Use load_dataset"):
                getattr(en, name)
        else:
            assert getattr(en, name) is not None


@pytest.mark.parametrize("module", SUBMODULES)
def test_submodules(module: str) -> None:
    found = importlib.import_module(f"penstock.compat.energon.{module}")
    for name in SUBMODULES[module].split():
        assert getattr(found, name) is not None
        assert name not in en.__all__ or getattr(found, name) is getattr(en, name)


@en.stateless
def cook(sample: Any, **stores: Any) -> en.TextSample:
    del stores
    return en.TextSample(**en.basic_sample_keys(sample), text=sample["__key__"])


class Texts(en.DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (en.Cooker(cook),)


def config(workers: int = 0) -> en.WorkerConfig:
    return en.WorkerConfig(rank=0, world_size=1, num_workers=workers)


def training(encoder: Any, path: str = "ds_a", **more: Any) -> Any:
    options = {"batch_size": 4, "shuffle_buffer_size": None, "max_samples_per_sequence": None, **more}
    return en.get_train_dataset(DATA / path, worker_config=config(), task_encoder=encoder, **options)


def validation(encoder: Any, **more: Any) -> Any:
    options = {"split_part": "train", "batch_size": 4, **more}
    return en.get_val_dataset(DATA / "ds_a", worker_config=config(), task_encoder=encoder, **options)


class Filters(Texts):
    """Encodes, then lets half of the samples through; and batches of its own."""

    def build_encode_sample(self, dataset: Any, *, worker_config: Any) -> Any:
        encoded = super().build_encode_sample(dataset, worker_config=worker_config)
        return en.FilterDataset(encoded, filter_fn=lambda one: one.text.endswith("!0"), worker_config=worker_config)

    def encode_sample(self, sample: Any) -> Any:
        sample.text = f"{sample.text}!{int(sample.text[-1]) % 2}"
        return sample

    def build_batch(self, dataset: Any, *, batch_size: Any, worker_config: Any, **options: Any) -> Any:
        del options
        return en.BatchDataset(dataset, batch_size + 1, lambda samples: samples, worker_config=worker_config)


@pytest.mark.parametrize("open_data", [training, validation])
def test_wrappers_of_a_task_encoder(open_data: Any) -> None:
    loader = en.get_savable_loader(open_data(Filters()))
    begun = list(islice(loader, 1))
    assert len(begun[0]) == 5
    assert all(one.text.endswith("!0") for one in begun[0])
    resumed = en.get_savable_loader(open_data(Filters()))
    resumed.restore_state_rank(json.loads(json.dumps(loader.save_state_rank())))
    (after,), (again,) = list(islice(loader, 1)), list(islice(resumed, 1))
    assert [one.text for one in after] == [one.text for one in again]


class Weighs(Texts):
    """Takes one dataset of two, and stops after two batches."""

    def build_train_datasets(self, *, datasets: Any, **options: Any) -> Any:
        kept = [one for one in datasets if one.dataset.path.name == "ds_a"]
        whole = super().build_train_datasets(datasets=kept, **{**options, "blend_mode": DatasetBlendMode.NONE})
        return en.LimitDataset(whole, 2, worker_config=options["worker_config"])

    def build_val_datasets(self, *, datasets: Any, **options: Any) -> Any:
        whole = super().build_val_datasets(datasets=datasets, **options)
        return en.LimitDataset(whole, 1, worker_config=options["worker_config"])


def test_datasets_of_a_task_encoder() -> None:
    loader = en.get_loader(training(Weighs(), "mds/aux_mixed.yaml"))
    keys = [key for batch in loader for key in batch.__key__]
    assert len(keys) == 8
    assert set(keys) <= {key for batch in en.get_loader(validation(Texts())) for key in batch.__key__}
    assert len(list(en.get_loader(validation(Weighs())))) == 1


def test_what_is_not_honoured_is_refused() -> None:
    for name in ("build_cook_crude_sample", "_load_dataset"):
        own: Any = type("Own", (Texts,), {name: lambda self, *args, **kwargs: None})
        for open_data in (training, validation):
            with pytest.raises(ConfigError, match="never called"):
                open_data(own())
    nothing: Any = type("Nothing", (Texts,), {"build_batch": lambda self, *args, **kwargs: None})
    with pytest.raises(ConfigError, match="build_batch doesn't return a dataset"):
        en.get_loader(training(nothing()))
    with pytest.raises(ConfigError, match="can't be combined"):
        training(Filters(), lanes=4)


def test_datasets_of_a_path() -> None:
    found = en.load_dataset(DATA / "mds" / "aux_mixed.yaml").get_datasets(
        training=False, split_part="train", worker_config=config()
    )
    assert found.blend_mode is DatasetBlendMode.SAMPLE_REPETITIONS
    assert [one.dataset.path.name for one in found.datasets] == ["primary.jsonl", "ds_a"]
    assert [one.repetitions for one in found.datasets] == [1, 1]
    assert [one.dataset.subflavors["src"] for one in found.datasets] == ["jsonl", "a"]
    leaves = en.traverse_metadataset(DATA / "mds" / "aux_mixed.yaml", split_part="train")
    assert [one.split_part for one in leaves] == ["train", "train"]
    assert leaves[0].aux["imgs"] == DATA / "aux_img"
    en.prepare_metadataset(DATA / "mds" / "aux_mixed.yaml")


def test_a_dataset_by_hand() -> None:
    factory = get_dataset_from_config(DATA / "ds_a", split_part="train", training=False, worker_config=config())
    assert isinstance(factory, en.CrudeWebdataset)
    assert len(list(en.get_loader(factory.build()))) == len(factory) == 20
    given: dict[str, Any] = {"split_part": "train", "worker_config": config()}
    typed = en.TextWebdataset(DATA / "ds_a", field_map={"text": "txt"}, **given)
    found = list(en.get_loader(typed.build()))
    assert all(isinstance(one, en.TextSample) for one in found)
    assert [one.__key__ for one in found] == [one["__key__"] for one in en.get_loader(factory.build())]
    with pytest.raises(ConfigError):
        en.TextWebdataset(DATA / "ds_a", field_map={"nothing": "txt"}, **given).build()
    rows = en.DefaultCrudeJsonlDatasetFactory(DATA / "primary.jsonl", training=True, worker_config=config())
    keys = [[one["__key__"] for one in en.get_loader(rows.build())] for _ in range(2)]
    assert keys[0] == keys[1]
    assert sorted(keys[0], key=int) != keys[0]


class Packs(Texts):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[:1], samples[1:]]

    @en.stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return en.TextSample.derive_from(samples[0], text=",".join(one.text for one in samples))


def test_packing_in_validation() -> None:
    loader = en.get_savable_loader(validation(Packs(), packing_buffer_size=6, batch_size=2))
    batches = list(loader)
    assert [[len(text.split(",")) for text in batch.text] for batch in batches] == [[1, 5]] * 3 + [[1, 1]]
    whole = {one for batch in batches for text in batch.text for one in text.split(",")}
    assert len(whole) == 20
    assert list(map(repr, loader)) == list(map(repr, batches))
    made = loader.restore_sample(batches[1].__restore_key__)
    assert (made.text, made.__restore_key__) == (batches[1].text, batches[1].__restore_key__)
    once = en.get_loader(training(Packs(), packing_buffer_size=6, repeat=False))
    assert {one for batch in once for text in batch.text for one in text.split(",")} == whole
