"""Modalities' API on top of Penstock: the same constructors, samples and order.

It has none of the original's ways to lose data. Each name is imported at first use; torch is required only for the
collators. `register` puts the classes into Modalities' own registry, so that they replace the originals in its YAML
files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._facade import facade

if TYPE_CHECKING:
    from penstock.compat.modalities.collators import DatasetBatch as DatasetBatch
    from penstock.compat.modalities.collators import GPT2LLMCollateFn as GPT2LLMCollateFn
    from penstock.compat.modalities.collators import LossMaskingCollateFnWrapper as LossMaskingCollateFnWrapper
    from penstock.compat.modalities.collators import LossMaskingTokenConfig as LossMaskingTokenConfig
    from penstock.compat.modalities.commands.data import FileExistencePolicy as FileExistencePolicy
    from penstock.compat.modalities.commands.data import create_raw_data_index as create_raw_data_index
    from penstock.compat.modalities.commands.data import create_shuffled_dataset_chunk as create_shuffled_dataset_chunk
    from penstock.compat.modalities.commands.data import (
        create_shuffled_jsonl_dataset_chunk as create_shuffled_jsonl_dataset_chunk,
    )
    from penstock.compat.modalities.commands.data import merge_packed_data_files as merge_packed_data_files
    from penstock.compat.modalities.commands.data import shuffle_jsonl_data as shuffle_jsonl_data
    from penstock.compat.modalities.commands.data import shuffle_tokenized_data as shuffle_tokenized_data
    from penstock.compat.modalities.commands.pack import pack_encoded_data as pack_encoded_data
    from penstock.compat.modalities.filters import (
        create_filtered_tokenized_dataset as create_filtered_tokenized_dataset,
    )
    from penstock.compat.modalities.filters import filter_dataset as filter_dataset
    from penstock.compat.modalities.lines import LargeFileLinesReader as LargeFileLinesReader
    from penstock.compat.modalities.lines import MemMapDataset as MemMapDataset
    from penstock.compat.modalities.packed import CombinedDataset as CombinedDataset
    from penstock.compat.modalities.packed import EmbeddedStreamData as EmbeddedStreamData
    from penstock.compat.modalities.packed import PackedMemMapDatasetBase as PackedMemMapDatasetBase
    from penstock.compat.modalities.packed import PackedMemMapDatasetContinuous as PackedMemMapDatasetContinuous
    from penstock.compat.modalities.packed import PackedMemMapDatasetMegatron as PackedMemMapDatasetMegatron
    from penstock.compat.modalities.registry import register as register
    from penstock.compat.modalities.sampler import ResumableDistributedSampler as ResumableDistributedSampler

__getattr__, __dir__ = facade(__name__)
