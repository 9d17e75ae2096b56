"""Which keys `register` takes over. That they work there is tested against the real Modalities, in `tests/interop`."""

from __future__ import annotations

import abc
import importlib
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.internals import continuous, multi_dim_sampler

from penstock.compat import modalities
from penstock.compat.modalities import (
    DatasetBatch,
    GPT2LLMCollateFn,
    LossMaskingCollateFnWrapper,
    ResumableDistributedSampler,
    register,
)

PBIN = Path(__file__).parents[2] / "golden" / "modalities" / "pbin" / "docs.bpe2.pbin"


class Registry:
    """As much of Modalities' own as is used."""

    def __init__(self) -> None:
        self.entities: dict[tuple[str, str], tuple[Callable[..., Any], Any]] = {}

    def add_entity(self, component_key: str, variant_key: str, component_type: Any, component_config_type: Any) -> None:
        self.entities[component_key, variant_key] = (component_type, component_config_type)


# They stand for abstract bases of Modalities.
Interface: Any = abc.ABCMeta("Interface", (), {})
Batch: Any = abc.ABCMeta("Batch", (), {})


@pytest.fixture
def fake_modalities(monkeypatch: pytest.MonkeyPatch) -> None:
    class Names(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            known = {"CollateFnIF": Interface, "DatasetBatch": Batch, "get_parallel_rank": lambda mesh, key: 2}
            return known.get(name, f"{self.__name__}:{name}")

    for name in (
        "modalities",
        "modalities.batch",
        "modalities.config",
        "modalities.config.config",
        "modalities.dataloader",
        "modalities.dataloader.collate_fns",
        "modalities.dataloader.collate_fns.collate_if",
        "modalities.dataloader.collate_fns.collator_fn_wrapper_for_loss_masking",
        "modalities.dataloader.sampler_factory",
        "modalities.running_env",
        "modalities.running_env.fsdp",
        "modalities.running_env.fsdp.device_mesh",
    ):
        monkeypatch.setitem(sys.modules, name, Names(name))


@pytest.mark.usefixtures("fake_modalities")
def test_register() -> None:
    registry = Registry()
    register(registry)
    assert {(*keys, config.rpartition(":")[2]) for keys, (_, config) in registry.entities.items()} == {
        ("dataset", "mem_map_dataset", "MemMapDatasetConfig"),
        ("dataset", "packed_mem_map_dataset_continuous", "PackedMemMapDatasetContinuousConfig"),
        ("dataset", "packed_mem_map_dataset_megatron", "PackedMemMapDatasetMegatronConfig"),
        ("dataset", "combined", "CombinedDatasetConfig"),
        ("sampler", "resumable_distributed_sampler", "ResumableDistributedSamplerConfig"),
        ("sampler", "resumable_distributed_multi_dim_sampler", "ResumableDistributedMultiDimSamplerConfig"),
        ("collate_fn", "gpt_2_llm_collator", "GPT2LLMCollateFnConfig"),
        ("collate_fn", "mask_loss_collator_wrapper", "LossMaskingCollateFnWrapperConfig"),
    }
    assert issubclass(GPT2LLMCollateFn, Interface)
    assert issubclass(LossMaskingCollateFnWrapper, Interface)
    assert issubclass(DatasetBatch, Batch)


@pytest.mark.parametrize(("reuse", "length"), [(True, 65), (False, 64)])
def test_a_sequence_and_its_last_target(reuse: bool, length: int) -> None:
    dataset = continuous(raw_data_path=PBIN, sequence_length=64, sample_key="x", reuse_last_target=reuse)
    assert {len(item["x"]) for item in dataset} == {length}
    assert len(dataset) == 273


@pytest.mark.usefixtures("fake_modalities")
def test_rank_and_world_of_a_device_mesh() -> None:
    key = types.SimpleNamespace(value="dp_shard")
    mesh = {"dp_shard": types.SimpleNamespace(size=lambda: 4)}
    sampler = multi_dim_sampler(
        dataset=range(20), device_mesh=mesh, data_parallel_key=key, shuffle=True, seed=3, drop_last=True
    )
    assert isinstance(sampler, ResumableDistributedSampler)
    assert (sampler.rank, sampler.num_replicas, sampler.seed) == (2, 4, 3)


def test_public_names() -> None:
    assert set(modalities.__all__) == {
        "CombinedDataset",
        "DatasetBatch",
        "EmbeddedStreamData",
        "FileExistencePolicy",
        "GPT2LLMCollateFn",
        "LargeFileLinesReader",
        "LossMaskingCollateFnWrapper",
        "LossMaskingTokenConfig",
        "MemMapDataset",
        "PackedMemMapDatasetBase",
        "PackedMemMapDatasetContinuous",
        "PackedMemMapDatasetMegatron",
        "ResumableDistributedSampler",
        "create_filtered_tokenized_dataset",
        "filter_dataset",
        "register",
        "create_raw_data_index",
        "create_shuffled_dataset_chunk",
        "create_shuffled_jsonl_dataset_chunk",
        "merge_packed_data_files",
        "pack_encoded_data",
        "shuffle_jsonl_data",
        "shuffle_tokenized_data",
    }
    assert dir(modalities) == sorted(modalities.__all__)
    assert all(getattr(modalities, name).__name__ == name for name in modalities.__all__)
    with pytest.raises(AttributeError):
        modalities.NoSuchName  # noqa: B018


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        ("api", "generate_text", "the one of modalities.api"),
        ("batch", "InferenceResultBatch", "the one of modalities.batch"),
        ("dataloader.dataset", "DummyDataset", "the one of modalities.dataloader.dataset"),
        ("dataloader.create_packed_data", "PackedDataGenerator", "pack_encoded_data"),
    ],
)
def test_a_name_that_is_not_here_says_what_to_use(module: str, name: str, instead: str) -> None:
    found = importlib.import_module(f"penstock.compat.modalities.{module}")
    with pytest.raises(ImportError, match=instead):
        getattr(found, name)
    assert not hasattr(found, "no_such_name")


def test_filters_and_readers_work_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from penstock.compat.modalities import PackedMemMapDatasetBase, ResumableDistributedSampler, filter_dataset\n"
        f"assert len(PackedMemMapDatasetBase({str(PBIN)!r}, 'x')) == 200\n"
        "assert list(ResumableDistributedSampler(range(4), 0, 2)) == [0, 2]\n"
        "from penstock.errors import MissingExtra\n"
        "try:\n"
        "    from penstock.compat.modalities import GPT2LLMCollateFn\n"
        "except MissingExtra as error:\n"
        "    assert 'pip install torch' in str(error)\n"
        "else:\n"
        "    raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
