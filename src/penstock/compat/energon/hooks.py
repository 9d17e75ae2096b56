"""Wrappers with which a task encoder encodes, packs and batches samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.compat.energon.walks import SavableDataset
from penstock.compat.energon.worker import WorkerConfig
from penstock.compat.energon.wrapper_batches import BatchDataset, GroupBatchDataset, PackingDataset
from penstock.compat.energon.wrapper_samples import MapDataset
from penstock.errors import ConfigError

_Dataset = SavableDataset[Any]


def encoded(encoder: Any, dataset: _Dataset, config: WorkerConfig) -> _Dataset:
    if encoder.is_overridden("preencode_sample"):
        return mapped(encoder, dataset, encoder.preencode_sample, config)
    if encoder.is_overridden("encode_sample") and not encoder.leaves_samples:
        return mapped(encoder, dataset, encoder.encode_sample, config)
    return dataset


def batched(
    encoder: Any, dataset: _Dataset, size: int | None, drop_last: bool, packing: int | None, config: WorkerConfig
) -> _Dataset:
    tolerance = encoder.__default_failure_tolerance__ or 0
    if packing is not None:
        dataset = packed(encoder, dataset, packing, config, tolerance)
    elif encoder.is_overridden("postencode_sample"):
        dataset = mapped(encoder, dataset, encoder.postencode_sample, config)
    batcher: dict[str, Any] = {"batcher_stateless": _stateless(encoder.batch), "drop_last": drop_last}
    batcher |= {"failure_tolerance": tolerance, "worker_config": config}
    if encoder.is_overridden("batch_group_criterion"):
        made: _Dataset = GroupBatchDataset(dataset, size, encoder.batch_group_criterion, encoder.batch, **batcher)
    elif size is None:
        return dataset
    else:
        made = BatchDataset(dataset, size, encoder.batch, **batcher)
    return mapped(encoder, made, encoder.encode_batch, config) if encoder.is_overridden("encode_batch") else made


def packed(encoder: Any, dataset: _Dataset, buffer: int, config: WorkerConfig, tolerance: int) -> _Dataset:
    for name in ("select_samples_to_pack", "pack_selected_samples"):
        if not encoder.is_overridden(name):
            hint = "Define both select_samples_to_pack and pack_selected_samples, or omit packing_buffer_size"
            raise ConfigError(f"packing needs {name}", found=type(encoder).__name__, hint=hint)
    encode = encoder.postencode_sample if encoder.is_overridden("postencode_sample") else None
    return PackingDataset(
        dataset,
        buffer,
        encoder.select_samples_to_pack,
        encoder.pack_selected_samples,
        final_packer_stateless=_stateless(encoder.pack_selected_samples),
        sample_encoder=encode,
        sample_encoder_stateless=_stateless(encode),
        pre_packer_failure_tolerance=tolerance,
        final_packer_failure_tolerance=tolerance,
        sample_encoder_failure_tolerance=tolerance,
        worker_config=config,
    )


def mapped(encoder: Any, dataset: _Dataset, function: Callable[[Any], Any], config: WorkerConfig) -> _Dataset:
    tolerance = encoder.__default_failure_tolerance__ or 0
    return MapDataset(
        dataset, function, stateless_map_fn=_stateless(function), failure_tolerance=tolerance, worker_config=config
    )


def _stateless(function: Any) -> bool:
    return bool(getattr(function, "__stateless__", False))
