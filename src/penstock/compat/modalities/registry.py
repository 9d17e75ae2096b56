"""Registers our classes in Modalities' own component registry, under its keys and with its config classes.

```
main = Main(config_path, experiments_root_path)     # from modalities.main
register(main.registry)                             # from penstock.compat.modalities
```
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from penstock.compat.modalities.collators import DatasetBatch, GPT2LLMCollateFn, LossMaskingCollateFnWrapper
from penstock.compat.modalities.lines import MemMapDataset
from penstock.compat.modalities.packed import (
    CombinedDataset,
    PackedMemMapDatasetContinuous,
    PackedMemMapDatasetMegatron,
)
from penstock.compat.modalities.sampler import ResumableDistributedSampler

_CONFIG = "modalities.config.config"
_LOSS_MASKING = "modalities.dataloader.collate_fns.collator_fn_wrapper_for_loss_masking"
_SAMPLERS = "modalities.dataloader.sampler_factory"


def register(registry: Any) -> None:
    """Replace Modalities' own datasets, samplers and collators in its registry with Penstock's.

    Args:
        registry: a `modalities.registry.registry.Registry`, such as `main.registry`.

    Raises:
        ModuleNotFoundError: Modalities isn't installed.

    Examples:
        >>> from penstock.compat.modalities import register
        >>> try:
        ...     from modalities.registry.components import COMPONENTS
        ...     from modalities.registry.registry import Registry
        ...
        ...     register(Registry(COMPONENTS))
        ... except ModuleNotFoundError as error:
        ...     print(error)
        No module named 'modalities'
    """
    for component_key, variant_key, component, module, config in _COMPONENTS:
        registry.add_entity(component_key, variant_key, component, _of(module, config))
    # Its config classes ask for these types; they are abstract bases, which take in classes that are not their own.
    collate_fn = _of("modalities.dataloader.collate_fns.collate_if", "CollateFnIF")
    for ours in (GPT2LLMCollateFn, LossMaskingCollateFnWrapper):
        collate_fn.register(ours)
    _of("modalities.batch", "DatasetBatch").register(DatasetBatch)


def continuous(
    raw_data_path: Any, sequence_length: int, sample_key: str, reuse_last_target: bool
) -> PackedMemMapDatasetContinuous:
    """Return the continuous dataset of a YAML file, whose sequences overlap in the last target or are whole blocks."""
    return PackedMemMapDatasetContinuous(
        raw_data_path, sample_key, sequence_length + bool(reuse_last_target), reuse_last_target
    )


def multi_dim_sampler(dataset: Any, device_mesh: Any, data_parallel_key: Any, **given: Any) -> Any:
    """Return the sampler of a YAML file, with rank and world size from a device mesh."""
    rank = _of("modalities.running_env.fsdp.device_mesh", "get_parallel_rank")(device_mesh, data_parallel_key)
    world = device_mesh[data_parallel_key.value].size()
    return ResumableDistributedSampler(dataset, rank, world, **given)


def _of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


_COMPONENTS: tuple[tuple[str, str, Callable[..., Any], str, str], ...] = (
    ("dataset", "mem_map_dataset", MemMapDataset, _CONFIG, "MemMapDatasetConfig"),
    ("dataset", "packed_mem_map_dataset_continuous", continuous, _CONFIG, "PackedMemMapDatasetContinuousConfig"),
    (
        "dataset",
        "packed_mem_map_dataset_megatron",
        PackedMemMapDatasetMegatron,
        _CONFIG,
        "PackedMemMapDatasetMegatronConfig",
    ),
    ("dataset", "combined", CombinedDataset, _CONFIG, "CombinedDatasetConfig"),
    (
        "sampler",
        "resumable_distributed_sampler",
        ResumableDistributedSampler,
        _CONFIG,
        "ResumableDistributedSamplerConfig",
    ),
    (
        "sampler",
        "resumable_distributed_multi_dim_sampler",
        multi_dim_sampler,
        _SAMPLERS,
        "ResumableDistributedMultiDimSamplerConfig",
    ),
    ("collate_fn", "gpt_2_llm_collator", GPT2LLMCollateFn, _CONFIG, "GPT2LLMCollateFnConfig"),
    (
        "collate_fn",
        "mask_loss_collator_wrapper",
        LossMaskingCollateFnWrapper,
        _LOSS_MASKING,
        "LossMaskingCollateFnWrapperConfig",
    ),
)
"""Component key, variant key, what makes it, module and name of its config class."""
