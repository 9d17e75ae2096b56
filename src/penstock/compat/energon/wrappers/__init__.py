"""Datasets made of others, as Energon has them; each is walked lane by lane, so that its place can be saved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._facade import facade

if TYPE_CHECKING:
    from penstock.compat.energon.walks import SavableDataset as SavableDataset
    from penstock.compat.energon.wrappers.base import BaseWrapperDataset as BaseWrapperDataset
    from penstock.compat.energon.wrappers.batch_dataset import BatchDataset as BatchDataset
    from penstock.compat.energon.wrappers.blend_dataset import BlendDataset as BlendDataset
    from penstock.compat.energon.wrappers.concat_dataset import ConcatDataset as ConcatDataset
    from penstock.compat.energon.wrappers.epochize_dataset import EpochizeDataset as EpochizeDataset
    from penstock.compat.energon.wrappers.filter_dataset import FilterDataset as FilterDataset
    from penstock.compat.energon.wrappers.gc_dataset import GcDataset as GcDataset
    from penstock.compat.energon.wrappers.group_batch_dataset import GroupBatchDataset as GroupBatchDataset
    from penstock.compat.energon.wrappers.iter_map_dataset import IterMapDataset as IterMapDataset
    from penstock.compat.energon.wrappers.limit_dataset import LimitDataset as LimitDataset
    from penstock.compat.energon.wrappers.log_sample_dataset import LogSampleDataset as LogSampleDataset
    from penstock.compat.energon.wrappers.map_dataset import MapDataset as MapDataset
    from penstock.compat.energon.wrappers.mix_batch_dataset import MixBatchDataset as MixBatchDataset
    from penstock.compat.energon.wrappers.mix_batch_dataset import concat_pad as concat_pad
    from penstock.compat.energon.wrappers.mix_batch_dataset import generic_concat as generic_concat
    from penstock.compat.energon.wrappers.mix_batch_dataset import homogeneous_concat_mix as homogeneous_concat_mix
    from penstock.compat.energon.wrappers.packing_dataset import PackingDataset as PackingDataset
    from penstock.compat.energon.wrappers.repeat_dataset import RepeatDataset as RepeatDataset
    from penstock.compat.energon.wrappers.shuffle_buffer_dataset import ShuffleBufferDataset as ShuffleBufferDataset

__getattr__, __dir__ = facade(__name__, modules=True)
