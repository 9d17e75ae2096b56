"""Megatron-Energon's names over Penstock: a training script moves by changing its import.

Each name is imported at first use. torch is needed only for tensors: for the decoder's default images, padding and
stacking of tensors, and states over several ranks.
"""

from __future__ import annotations

import importlib
from typing import Any

_NAMES = {
    "batching": ("batch_list", "batch_pad_stack", "batch_stack", "generic_batch"),
    "cookers": ("Cooker", "SampleDecoder", "cooker"),
    "datasets": (
        "DatasetLoader", "EnergonDataset", "get_train_dataset", "get_val_dataset", "get_val_datasets", "load_dataset",
        "traverse_metadataset",
    ),
    "encoder": ("AugmentTaskEncoder", "DefaultTaskEncoder", "TaskEncoder", "stateless"),
    "media": ("AVData", "AVDecoder"),
    "loader": ("SavableDataLoader", "get_loader", "get_savable_loader"),
    "samples": (
        "AVMetadata", "Batch", "CaptioningSample", "ImageClassificationSample", "ImageMetadata",
        "ImageSample", "InterleavedSample", "MultiChoiceVQASample", "OCRSample", "Sample",
        "SimilarityInterleavedSample", "SourceInfo", "TextSample", "VQAOCRSample", "VQASample", "VidQASample",
        "basic_sample_keys", "edataclass",
    ),
    "stores": (
        "CachePool", "DecodeFileStore", "DirectLazy", "FileCacheLazy", "FileStore", "FileStoreCachePool",
        "JsonlFileStore", "Lazy", "MockLazy", "NoCachePool", "PrimaryFileStore", "SystemFileStore",
        "WebdatasetFileStore",
    ),
    "worker": ("FatalSampleError", "WorkerConfig", "log_exception", "reraise_exception"),
}  # fmt: skip
_WHERE = {name: f"penstock.compat.energon.{module}" for module, names in _NAMES.items() for name in names} | {
    "CrudeSample": "penstock.cook",
    "SkipSample": "penstock.cook",
}

_STREAMS = "penstock.Blend, Concat, Map, Shuffle, Take, PackStream, or the hooks of a TaskEncoder"
_INSTEAD = {
    **dict.fromkeys(
        (
            "BatchDataset", "BlendDataset", "ConcatDataset", "EpochizeDataset", "FilterDataset", "GroupBatchDataset",
            "IterMapDataset", "LimitDataset", "MapDataset", "MixBatchDataset", "PackingDataset", "RepeatDataset",
            "SavableDataset", "ShuffleBufferDataset", "concat_pad", "generic_concat", "homogeneous_concat_mix",
        ),
        _STREAMS,
    ),
    **dict.fromkeys(("GcDataset", "LogSampleDataset"), "the loader's metrics, and penstock explain"),
    **dict.fromkeys(
        (
            "BaseCoreDatasetFactory", "BaseWebdatasetFactory", "CaptioningWebdataset", "CrudeJsonlDatasetFactory",
            "CrudeWebdataset", "DatasetLoaderInterface", "DefaultCrudeJsonlDatasetFactory",
            "DefaultDecoderWebdatasetFactory", "DefaultGenericWebdatasetFactory", "ImageClassificationWebdataset",
            "ImageWebdataset", "InterleavedWebdataset", "JoinedWebdatasetFactory", "Metadataset", "MetadatasetV2",
            "MultiChoiceVQAWebdataset", "OCRWebdataset", "SimilarityInterleavedWebdataset", "StandardWebdatasetFactory",
            "TextWebdataset", "VQAOCRWebdataset", "VQAWebdataset", "VidQAWebdataset",
        ),
        "get_train_dataset or get_val_dataset with the path: dataset.yaml says what the samples are",
    ),
    "FileStoreDecoder": "SampleDecoder",
    "prepare_metadataset": "nothing: joins are worked out at first use, and kept",
}  # fmt: skip
"""Names of Energon's that are not here → what to use."""

__all__ = sorted(_WHERE)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _INSTEAD:
        raise ImportError(f"{__name__} has no {name}. Use {_INSTEAD[name]}", name=name)
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = found  # cook functions ask for `energon.TextSample` once a sample
    return found


def __dir__() -> list[str]:
    return __all__
