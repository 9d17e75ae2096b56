"""Megatron-Energon's API on top of Penstock: a training script only changes its import.

Each name is imported at first use. torch is required only for tensors: for the decoder's default images, padding and
stacking of tensors, and states over several ranks.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from penstock._facade import facade

if TYPE_CHECKING:
    from penstock.compat.energon.batching import batch_list as batch_list
    from penstock.compat.energon.batching import batch_pad_stack as batch_pad_stack
    from penstock.compat.energon.batching import batch_stack as batch_stack
    from penstock.compat.energon.batching import generic_batch as generic_batch
    from penstock.compat.energon.build import EnergonDataset as EnergonDataset
    from penstock.compat.energon.cookers import Cooker as Cooker
    from penstock.compat.energon.cookers import FileStoreDecoder as FileStoreDecoder
    from penstock.compat.energon.cookers import SampleDecoder as SampleDecoder
    from penstock.compat.energon.cookers import cooker as cooker
    from penstock.compat.energon.datasets import DatasetLoader as DatasetLoader
    from penstock.compat.energon.datasets import DatasetLoaderInterface as DatasetLoaderInterface
    from penstock.compat.energon.datasets import get_train_dataset as get_train_dataset
    from penstock.compat.energon.datasets import get_val_dataset as get_val_dataset
    from penstock.compat.energon.datasets import get_val_datasets as get_val_datasets
    from penstock.compat.energon.datasets import load_dataset as load_dataset
    from penstock.compat.energon.datasets import prepare_metadataset as prepare_metadataset
    from penstock.compat.energon.datasets import traverse_metadataset as traverse_metadataset
    from penstock.compat.energon.encoder import AugmentTaskEncoder as AugmentTaskEncoder
    from penstock.compat.energon.encoder import DefaultTaskEncoder as DefaultTaskEncoder
    from penstock.compat.energon.encoder import TaskEncoder as TaskEncoder
    from penstock.compat.energon.encoder import stateless as stateless
    from penstock.compat.energon.factories import BaseCoreDatasetFactory as BaseCoreDatasetFactory
    from penstock.compat.energon.factories import BaseWebdatasetFactory as BaseWebdatasetFactory
    from penstock.compat.energon.factories import CaptioningWebdataset as CaptioningWebdataset
    from penstock.compat.energon.factories import CrudeJsonlDatasetFactory as CrudeJsonlDatasetFactory
    from penstock.compat.energon.factories import CrudeWebdataset as CrudeWebdataset
    from penstock.compat.energon.factories import DefaultCrudeJsonlDatasetFactory as DefaultCrudeJsonlDatasetFactory
    from penstock.compat.energon.factories import DefaultDecoderWebdatasetFactory as DefaultDecoderWebdatasetFactory
    from penstock.compat.energon.factories import DefaultGenericWebdatasetFactory as DefaultGenericWebdatasetFactory
    from penstock.compat.energon.factories import ImageClassificationWebdataset as ImageClassificationWebdataset
    from penstock.compat.energon.factories import ImageWebdataset as ImageWebdataset
    from penstock.compat.energon.factories import InterleavedWebdataset as InterleavedWebdataset
    from penstock.compat.energon.factories import JoinedWebdatasetFactory as JoinedWebdatasetFactory
    from penstock.compat.energon.factories import MultiChoiceVQAWebdataset as MultiChoiceVQAWebdataset
    from penstock.compat.energon.factories import OCRWebdataset as OCRWebdataset
    from penstock.compat.energon.factories import SimilarityInterleavedWebdataset as SimilarityInterleavedWebdataset
    from penstock.compat.energon.factories import StandardWebdatasetFactory as StandardWebdatasetFactory
    from penstock.compat.energon.factories import TextWebdataset as TextWebdataset
    from penstock.compat.energon.factories import VidQAWebdataset as VidQAWebdataset
    from penstock.compat.energon.factories import VQAOCRWebdataset as VQAOCRWebdataset
    from penstock.compat.energon.factories import VQAWebdataset as VQAWebdataset
    from penstock.compat.energon.loader import SavableDataLoader as SavableDataLoader
    from penstock.compat.energon.loader import get_loader as get_loader
    from penstock.compat.energon.loader import get_savable_loader as get_savable_loader
    from penstock.compat.energon.media import AVData as AVData
    from penstock.compat.energon.media import AVDecoder as AVDecoder
    from penstock.compat.energon.samples import AVMetadata as AVMetadata
    from penstock.compat.energon.samples import Batch as Batch
    from penstock.compat.energon.samples import CaptioningSample as CaptioningSample
    from penstock.compat.energon.samples import ImageClassificationSample as ImageClassificationSample
    from penstock.compat.energon.samples import ImageMetadata as ImageMetadata
    from penstock.compat.energon.samples import ImageSample as ImageSample
    from penstock.compat.energon.samples import InterleavedSample as InterleavedSample
    from penstock.compat.energon.samples import MultiChoiceVQASample as MultiChoiceVQASample
    from penstock.compat.energon.samples import OCRSample as OCRSample
    from penstock.compat.energon.samples import Sample as Sample
    from penstock.compat.energon.samples import SimilarityInterleavedSample as SimilarityInterleavedSample
    from penstock.compat.energon.samples import SourceInfo as SourceInfo
    from penstock.compat.energon.samples import TextSample as TextSample
    from penstock.compat.energon.samples import VidQASample as VidQASample
    from penstock.compat.energon.samples import VQAOCRSample as VQAOCRSample
    from penstock.compat.energon.samples import VQASample as VQASample
    from penstock.compat.energon.samples import basic_sample_keys as basic_sample_keys
    from penstock.compat.energon.samples import edataclass as edataclass
    from penstock.compat.energon.stores import CachePool as CachePool
    from penstock.compat.energon.stores import DecodeFileStore as DecodeFileStore
    from penstock.compat.energon.stores import DirectLazy as DirectLazy
    from penstock.compat.energon.stores import FileCacheLazy as FileCacheLazy
    from penstock.compat.energon.stores import FileStore as FileStore
    from penstock.compat.energon.stores import FileStoreCachePool as FileStoreCachePool
    from penstock.compat.energon.stores import JsonlFileStore as JsonlFileStore
    from penstock.compat.energon.stores import Lazy as Lazy
    from penstock.compat.energon.stores import MockLazy as MockLazy
    from penstock.compat.energon.stores import NoCachePool as NoCachePool
    from penstock.compat.energon.stores import PrimaryFileStore as PrimaryFileStore
    from penstock.compat.energon.stores import SystemFileStore as SystemFileStore
    from penstock.compat.energon.stores import WebdatasetFileStore as WebdatasetFileStore
    from penstock.compat.energon.walks import SavableDataset as SavableDataset
    from penstock.compat.energon.worker import FatalSampleError as FatalSampleError
    from penstock.compat.energon.worker import WorkerConfig as WorkerConfig
    from penstock.compat.energon.worker import log_exception as log_exception
    from penstock.compat.energon.worker import reraise_exception as reraise_exception
    from penstock.compat.energon.wrapper_batches import BatchDataset as BatchDataset
    from penstock.compat.energon.wrapper_batches import GroupBatchDataset as GroupBatchDataset
    from penstock.compat.energon.wrapper_batches import MixBatchDataset as MixBatchDataset
    from penstock.compat.energon.wrapper_batches import PackingDataset as PackingDataset
    from penstock.compat.energon.wrapper_batches import ShuffleBufferDataset as ShuffleBufferDataset
    from penstock.compat.energon.wrapper_batches import concat_pad as concat_pad
    from penstock.compat.energon.wrapper_batches import generic_concat as generic_concat
    from penstock.compat.energon.wrapper_batches import homogeneous_concat_mix as homogeneous_concat_mix
    from penstock.compat.energon.wrapper_samples import BlendDataset as BlendDataset
    from penstock.compat.energon.wrapper_samples import ConcatDataset as ConcatDataset
    from penstock.compat.energon.wrapper_samples import EpochizeDataset as EpochizeDataset
    from penstock.compat.energon.wrapper_samples import FilterDataset as FilterDataset
    from penstock.compat.energon.wrapper_samples import GcDataset as GcDataset
    from penstock.compat.energon.wrapper_samples import IterMapDataset as IterMapDataset
    from penstock.compat.energon.wrapper_samples import LimitDataset as LimitDataset
    from penstock.compat.energon.wrapper_samples import LogSampleDataset as LogSampleDataset
    from penstock.compat.energon.wrapper_samples import MapDataset as MapDataset
    from penstock.compat.energon.wrapper_samples import RepeatDataset as RepeatDataset
    from penstock.cook import CrudeSample as CrudeSample
    from penstock.cook import SkipSample as SkipSample

__version__ = "7.4.1"
"""Version of Energon whose API this is."""

_find, __dir__ = facade(__name__, modules=True)
_INSTEAD = dict.fromkeys(
    ("Metadataset", "MetadatasetV2"),
    "load_dataset(path), or get_train_dataset and get_val_dataset with the path: the type is read from the file",
)
"""Name of Energon's that doesn't exist here → what to use."""


def __getattr__(name: str) -> Any:
    if name in _INSTEAD:
        raise ImportError(f"{__name__} has no {name}. Use {_INSTEAD[name]}", name=name)
    return _find(name)


# Import the module of this name first: a later import would replace the function.
importlib.import_module("penstock.compat.energon.edataclass")
from penstock.compat.energon.samples import edataclass as edataclass  # noqa: E402
