"""Modules of the peers that only re-export names, made from one table: no file exists for them.

A program that imports `megatron.energon.flavors.captioning` finds the same module below `penstock.compat.energon`.
Type checkers read stubs of these modules, which `release/stubs.py` generates from the table into the wheel.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_COMPAT = "penstock.compat."
_PEERS: Mapping[str, str] = {"energon": "megatron.energon", "modalities": "modalities", "streaming": "streaming"}
"""Package below `penstock.compat` → the peer's."""


class _Table(MetaPathFinder, Loader):
    """Make the modules of `MODULES`. First on `sys.meta_path`: a folder of stubs must not become a package."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        name = fullname.removeprefix(_COMPAT)
        return ModuleSpec(fullname, self, is_package=True) if name != fullname and name in MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        from penstock._facade import facade

        short = module.__name__.removeprefix(_COMPAT)
        names = dict(_names_in(short))
        if "*" in names:  # another module under a second name
            sys.modules[module.__name__] = importlib.import_module(names["*"])
            return
        find, listed = facade(module.__name__, modules=True, names={name: (home, name) for name, home in names.items()})
        instead = _INSTEAD.get(short, {})

        def get(name: str) -> Any:
            for pattern, use in instead.items():
                if fnmatchcase(name, pattern):
                    raise ImportError(f"{module.__name__} has no {name}. Use {use}", name=name)
            return find(name)

        vars(module).update(__doc__=f"Names of the original's module `{short}`.", __getattr__=get, __dir__=listed)


class _Absent(MetaPathFinder):
    """Explain what to do about a peer's module that has no counterpart. Last on `sys.meta_path`."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        peer, _, inside = fullname.removeprefix(_COMPAT).partition(".")
        if not fullname.startswith(_COMPAT) or peer not in _PEERS or not inside or inside.startswith("_"):
            return
        raise ModuleNotFoundError(
            f"No module named {fullname!r}: {_PEERS[peer]}.{inside} is a part of the original that has no counterpart "
            f"here. Public names are in {_COMPAT}{peer}; its guide lists replacements under `Differences`",
            name=fullname,
        )


def install_finders() -> None:
    """Make the modules of the table importable."""
    if not any(isinstance(one, _Table) for one in sys.meta_path):
        sys.meta_path.insert(0, _Table())
        sys.meta_path.append(_Absent())


def stub_of(short: str) -> str:
    """Write the stub (`.pyi`) of a module of the table."""
    return "".join(
        f"from {home} import {name}{'' if name == '*' else f' as {name}'}\n" for name, home in _names_in(short)
    )


def _names_in(short: str) -> Iterator[tuple[str, str]]:
    peer = short.partition(".")[0]
    for part in filter(None, MODULES[short].split("; ")):
        home, _, names = part.partition(": ")
        for name in names.split():
            yield name, home if home.startswith("penstock.") else f"{_COMPAT}{peer}.{home}"


MODULES: Mapping[str, str] = {
    "energon.av": "media: AVData AVDecoder get_clips_uniform get_single_frames_uniform",
    "energon.av.av_data": "media: AVData",
    "energon.av.av_decoder": "media: AVDecoder",
    "energon.av.utils": "media: get_clips_uniform get_single_frames_uniform",
    "energon.cache": (
        "cookers: FileStoreDecoder; stores: CachePool DecodeFileStore DirectLazy FileCacheLazy FileStore "
        "FileStoreCachePool JsonlFileStore Lazy MockLazy NoCachePool PrimaryFileStore SystemFileStore "
        "WebdatasetFileStore"
    ),
    "energon.cache.base": "cookers: FileStoreDecoder; stores: CachePool FileStore Lazy MockLazy PrimaryFileStore",
    "energon.cache.file_cache_pool": "stores: FileCacheLazy FileStoreCachePool",
    "energon.cache.file_store": "stores: DecodeFileStore JsonlFileStore SystemFileStore WebdatasetFileStore",
    "energon.cache.no_cache": "stores: DirectLazy NoCachePool",
    "energon.dataset_config": "factories: get_dataset_from_config",
    "energon.dataset_loader": "datasets: DatasetLoader DatasetLoaderInterface load_dataset",
    "energon.edataclass": "samples: edataclass",
    "energon.epathlib.epath": "epathlib: EPath",
    "energon.errors": (
        "penstock.cook: SkipSample; worker: FatalSampleError SampleException log_exception reraise_exception"
    ),
    "energon.flavors": (
        "cookers: SampleDecoder; factories: BaseCoreDatasetFactory BaseWebdatasetFactory CaptioningWebdataset "
        "CrudeJsonlDatasetFactory CrudeWebdataset DefaultCrudeJsonlDatasetFactory DefaultDecoderWebdatasetFactory "
        "DefaultGenericWebdatasetFactory ImageClassificationWebdataset ImageWebdataset InterleavedWebdataset "
        "JoinedWebdatasetFactory MultiChoiceVQAWebdataset OCRWebdataset SimilarityInterleavedWebdataset "
        "StandardWebdatasetFactory TextWebdataset VQAOCRWebdataset VQAWebdataset VidQAWebdataset; penstock.cook: "
        "CrudeSample; samples: CaptioningSample ImageClassificationSample ImageSample InterleavedSample "
        "MultiChoiceVQASample OCRSample Sample SimilarityInterleavedSample TextSample VQAOCRSample VQASample "
        "VidQASample; walks: SavableDataset"
    ),
    "energon.flavors.base_dataset": "factories: BaseCoreDatasetFactory; samples: Sample; walks: SavableDataset",
    "energon.flavors.captioning": "factories: CaptioningWebdataset; samples: CaptioningSample",
    "energon.flavors.crude": "factories: CrudeWebdataset; penstock.cook: CrudeSample",
    "energon.flavors.image": "factories: ImageWebdataset; samples: ImageSample",
    "energon.flavors.image_classification": (
        "factories: ImageClassificationWebdataset; samples: ImageClassificationSample"
    ),
    "energon.flavors.interleaved": "factories: InterleavedWebdataset; samples: InterleavedSample",
    "energon.flavors.jsonl": "factories: CrudeJsonlDatasetFactory DefaultCrudeJsonlDatasetFactory",
    "energon.flavors.jsonl.crude_jsonl_dataset": "factories: CrudeJsonlDatasetFactory DefaultCrudeJsonlDatasetFactory",
    "energon.flavors.multichoice_vqa": "factories: MultiChoiceVQAWebdataset; samples: MultiChoiceVQASample",
    "energon.flavors.ocr": "factories: OCRWebdataset; samples: OCRSample",
    "energon.flavors.similarity_interleaved": (
        "factories: SimilarityInterleavedWebdataset; samples: SimilarityInterleavedSample"
    ),
    "energon.flavors.text": "factories: TextWebdataset; samples: TextSample",
    "energon.flavors.vid_qa": "factories: VidQAWebdataset; samples: VidQASample",
    "energon.flavors.vqa": "factories: VQAWebdataset; samples: VQASample",
    "energon.flavors.vqa_and_ocr": "factories: VQAOCRWebdataset; samples: VQAOCRSample",
    "energon.flavors.webdataset": (
        "cookers: SampleDecoder; factories: BaseWebdatasetFactory DefaultDecoderWebdatasetFactory "
        "DefaultGenericWebdatasetFactory JoinedWebdatasetFactory StandardWebdatasetFactory; media: AVData AVDecoder"
    ),
    "energon.flavors.webdataset.base_webdataset": "factories: BaseWebdatasetFactory",
    "energon.flavors.webdataset.default_decoder_webdataset": "factories: DefaultDecoderWebdatasetFactory",
    "energon.flavors.webdataset.default_generic_webdataset": "factories: DefaultGenericWebdatasetFactory",
    "energon.flavors.webdataset.joined_webdataset": "factories: JoinedWebdatasetFactory",
    "energon.flavors.webdataset.sample_decoder": "cookers: SampleDecoder",
    "energon.flavors.webdataset.standard_webdataset": "factories: StandardWebdatasetFactory",
    "energon.media.metadata": "penstock.types: AVMetadata ImageMetadata",
    "energon.metadataset": (
        "datasets: DatasetLoader DatasetLoaderInterface load_dataset prepare_metadataset traverse_metadataset"
    ),
    "energon.metadataset.dataset_loader": "datasets: DatasetLoader",
    "energon.metadataset.loader": "datasets: load_dataset prepare_metadataset traverse_metadataset",
    "energon.metadataset.loader_interface": (
        "datasets: DatasetLoaderInterface TraversedDatasetReference; factories: DatasetBlendMode LoadedDataset "
        "LoadedDatasetList"
    ),
    "energon.savable_loader": "loader: SavableDataLoader",
    "energon.task_encoder": (
        "batching: batch_list batch_pad_stack batch_stack generic_batch; cookers: Cooker cooker; datasets: "
        "get_train_dataset get_val_dataset get_val_datasets; encoder: AugmentTaskEncoder DefaultTaskEncoder "
        "TaskEncoder stateless; samples: Batch Sample basic_sample_keys"
    ),
    "energon.task_encoder.base": (
        "batching: batch_list batch_pad_stack batch_stack generic_batch; cookers: Cooker SampleDecoder cooker; "
        "encoder: AugmentTaskEncoder DefaultTaskEncoder TaskEncoder get_failure_tolerance get_stateless stateless; "
        "samples: Batch Sample; worker: WorkerConfig"
    ),
    "energon.task_encoder.cooking": "cookers: Cooker cooker; samples: basic_sample_keys",
    "energon.task_encoder.loader": "datasets: get_train_dataset get_val_dataset get_val_datasets",
    "energon.wrappers": (
        "walks: SavableDataset; wrapper_base: BaseWrapperDataset; wrapper_batches: BatchDataset GroupBatchDataset "
        "MixBatchDataset PackingDataset ShuffleBufferDataset concat_pad generic_concat homogeneous_concat_mix; "
        "wrapper_samples: BlendDataset ConcatDataset EpochizeDataset FilterDataset GcDataset IterMapDataset "
        "LimitDataset LogSampleDataset MapDataset RepeatDataset"
    ),
    "energon.wrappers.base": "wrapper_base: BaseWrapperDataset",
    "energon.wrappers.batch_dataset": "wrapper_batches: BatchDataset",
    "energon.wrappers.blend_dataset": "wrapper_samples: BlendDataset",
    "energon.wrappers.concat_dataset": "wrapper_samples: ConcatDataset",
    "energon.wrappers.epochize_dataset": "wrapper_samples: EpochizeDataset",
    "energon.wrappers.filter_dataset": "wrapper_samples: FilterDataset",
    "energon.wrappers.gc_dataset": "wrapper_samples: GcDataset",
    "energon.wrappers.group_batch_dataset": "wrapper_batches: GroupBatchDataset",
    "energon.wrappers.iter_map_dataset": "wrapper_samples: IterMapDataset _same",
    "energon.wrappers.limit_dataset": "wrapper_samples: LimitDataset",
    "energon.wrappers.log_sample_dataset": "wrapper_samples: LogSampleDataset default_get_batch_keys",
    "energon.wrappers.map_dataset": "wrapper_samples: MapDataset",
    "energon.wrappers.mix_batch_dataset": (
        "wrapper_batches: MixBatchDataset _as_list concat_pad generic_concat homogeneous_concat_mix"
    ),
    "energon.wrappers.packing_dataset": "wrapper_batches: PackingDataset",
    "energon.wrappers.repeat_dataset": "wrapper_samples: RepeatDataset",
    "energon.wrappers.shuffle_buffer_dataset": "wrapper_batches: ShuffleBufferDataset",
    "energon.wrappers.skip": "penstock.cook: SkipSample",
    "modalities.api": (
        "commands.data: FileExistencePolicy create_raw_data_index create_shuffled_dataset_chunk "
        "create_shuffled_jsonl_dataset_chunk merge_packed_data_files shuffle_jsonl_data shuffle_tokenized_data; "
        "commands.pack: pack_encoded_data; filters: create_filtered_tokenized_dataset"
    ),
    "modalities.batch": "collators: DatasetBatch",
    "modalities.dataloader": "",
    "modalities.dataloader.collate_fns": "",
    "modalities.dataloader.collate_fns.collator_fn_wrapper_for_loss_masking": (
        "collators: LossMaskingCollateFnWrapper LossMaskingTokenConfig"
    ),
    "modalities.dataloader.create_index": "lines: IndexGenerator",
    "modalities.dataloader.create_packed_data": "commands.data: join_embedded_stream_data; packed: EmbeddedStreamData",
    "modalities.dataloader.dataset": (
        "lines: MemMapDataset; packed: CombinedDataset PackedMemMapDatasetBase PackedMemMapDatasetContinuous "
        "PackedMemMapDatasetMegatron"
    ),
    "modalities.dataloader.filter_packed_data": "filters: filter_dataset",
    "modalities.dataloader.large_file_lines_reader": "lines: LargeFileLinesReader",
    "modalities.dataloader.samplers": "sampler: ResumableDistributedSampler",
    "modalities.models": "",
    "modalities.models.gpt2": "",
    "modalities.models.gpt2.collator": "collators: GPT2LLMCollateFn",
    "streaming.base": (
        "dataloader: StreamingDataLoader; dataset: StreamingDataset; local: LocalDataset; streams: Stream; writers: "
        "CSVWriter JSONWriter MDSWriter TSVWriter XSVWriter"
    ),
    "streaming.base.compression": "util: compress decompress get_compression_extension get_compressions is_compression",
    "streaming.base.converters": "spark: *",
    "streaming.base.converters.dataframe_to_mds": "spark: *",
    "streaming.base.dataloader": "dataloader: StreamingDataLoader",
    "streaming.base.dataset": "dataset: StreamingDataset",
    "streaming.base.distributed": "world: get_local_rank get_local_world_size get_rank get_world_size",
    "streaming.base.format": (
        "shards: FileInfo Reader; util: get_index_basename; writers: CSVWriter JSONWriter MDSWriter TSVWriter XSVWriter"
    ),
    "streaming.base.format.base": "writers: Writer",
    "streaming.base.format.base.writer": "writers: Writer",
    "streaming.base.format.index": "util: get_index_basename",
    "streaming.base.format.json": "writers: JSONWriter",
    "streaming.base.format.json.writer": "writers: JSONWriter",
    "streaming.base.format.mds": "writers: MDSWriter",
    "streaming.base.format.mds.encodings": "encodings: * _encodings",
    "streaming.base.format.mds.writer": "writers: MDSWriter",
    "streaming.base.format.xsv": "writers: CSVWriter TSVWriter XSVWriter",
    "streaming.base.format.xsv.writer": "writers: CSVWriter TSVWriter XSVWriter",
    "streaming.base.hashing": "util: get_hash get_hashes is_hash",
    "streaming.base.local": "local: LocalDataset",
    "streaming.base.shuffle": "util: get_shuffle",
    "streaming.base.storage": "",
    "streaming.base.stream": "streams: Stream streams_registry",
    "streaming.base.util": (
        "util: bytes_to_int clean_stale_shared_memory get_import_exception_message get_list_arg merge_index "
        "number_abbrev_to_int retry wait_for_file_to_exist"
    ),
    "streaming.base.world": "world: World",
    "streaming.multimodal.webvid": (
        "multimodal: StreamingInsideWebVid StreamingOutsideDTWebVid StreamingOutsideGIWebVid"
    ),
    "streaming.registry": "streams: streams_registry",
    "streaming.text.c4": "text: StreamingC4",
    "streaming.text.enwiki": "text: StreamingEnWiki",
    "streaming.text.pile": "text: StreamingPile",
    "streaming.vision.ade20k": "vision: StreamingADE20K",
    "streaming.vision.base": "vision: StreamingVisionDataset",
    "streaming.vision.cifar10": "vision: StreamingCIFAR10",
    "streaming.vision.coco": "vision: StreamingCOCO",
    "streaming.vision.imagenet": "vision: StreamingImageNet",
}
"""Module below `penstock.compat` → `home: names; …`, each home below its peer's package. `*`: the home itself."""

_READING = (
    "StreamingDataset(remote=…), which downloads data as it is read, or `penstock stage`, which copies it to the cache"
)


def _original(module: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, f"the one of {module}, which works with these classes")


_INSTEAD: Mapping[str, Mapping[str, str]] = {
    "modalities.api": _original("modalities.api", "convert_pytorch_to_hf_checkpoint", "generate_text"),
    "modalities.batch": _original(
        "modalities.batch", "Batch", "EvaluationResultBatch", "InferenceResultBatch", "ResultItem", "TorchDeviceMixin"
    ),
    "modalities.dataloader.create_packed_data": {
        "PackedDataGenerator": "pack_encoded_data(config) of penstock.compat.modalities, or penstock.pack"
    },
    "modalities.dataloader.dataset": _original(
        "modalities.dataloader.dataset",
        *("DummyDataset", "DummyDatasetConfig", "DummySampleConfig", "DummySampleDataType"),
    ),
    "streaming.base.storage": {
        "*Downloader": _READING,
        "download_*": _READING,
        "*Uploader": "MDSWriter(out=(local, remote)), which uploads what it writes",
    },
}
"""Module → pattern of names that don't exist here → what to use."""
