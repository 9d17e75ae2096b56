"""Names of Energon's that are not here, and what to use in their place."""

from __future__ import annotations

from collections.abc import Mapping

_STREAMS = "penstock.Blend, Concat, Map, Shuffle, Take, PackStream, or the hooks of a TaskEncoder"
INSTEAD: Mapping[str, str] = {
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
"""Name → what to use."""
