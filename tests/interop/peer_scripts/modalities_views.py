"""Modalities' views and ours, side by side in Modalities' own environment.

Argument: JSON {"src": our `src` folder, "seed", "pbins": [pbin, pbin], "jsonl", "tokenizer": folder, "folder": of what
is written}. Prints JSON {topic: {"theirs": …, "ours": …}}: plain values, or a digest of arrays with their types.
"""

import hashlib
import itertools
import json
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import modalities.api
import numpy as np
import torch
from modalities.batch import DatasetBatch
from modalities.config.component_factory import ComponentFactory
from modalities.config.pydantic_if_types import PydanticDatasetIFType, PydanticLLMDataLoaderIFType
from modalities.dataloader import dataset as their_datasets
from modalities.dataloader.collate_fns import collator_fn_wrapper_for_loss_masking as their_masking
from modalities.dataloader.create_packed_data import EmbeddedStreamData
from modalities.dataloader.filter_packed_data import filter_dataset
from modalities.dataloader.large_file_lines_reader import LargeFileLinesReader
from modalities.dataloader.samplers import ResumableDistributedSampler
from modalities.models.gpt2.collator import GPT2LLMCollateFn
from modalities.registry.components import COMPONENTS
from modalities.registry.registry import Registry
from pydantic import BaseModel

KEY = "input_ids"


def digest(value: Any) -> str:
    """Of nested lists of arrays, tensors and numbers, with types and shapes."""
    hasher = hashlib.sha256()
    feed(hasher, value)
    return hasher.hexdigest()


def feed(hasher: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        hasher.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    elif isinstance(value, (list, tuple)):
        hasher.update(f"{len(value)}".encode())
        for one in value:
            feed(hasher, one)
    else:
        hasher.update(repr(value).encode())


def outcome(work: Any) -> Any:
    """What `work` gives, or the kind of its error."""
    try:
        return work()
    except (ValueError, IndexError) as error:
        return "ValueError" if isinstance(error, ValueError) else "IndexError"


class Components(BaseModel):
    loader: PydanticLLMDataLoaderIFType
    texts: PydanticDatasetIFType
    megatron: PydanticDatasetIFType | None = None

    model_config = {"arbitrary_types_allowed": True}


def component(key: str, variant: str, **config: Any) -> dict[str, Any]:
    return {"component_key": key, "variant_key": variant, "config": config}


def reference(key: str) -> dict[str, str]:
    return {"instance_key": key, "pass_type": "BY_REFERENCE"}


def config_of(given: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """What stands in a YAML file of Modalities."""
    world = rng.randint(1, 5)
    continuous = [
        component(
            "dataset",
            "packed_mem_map_dataset_continuous",
            raw_data_path=pbin,
            sequence_length=32,
            sample_key=KEY,
            reuse_last_target=True,
        )
        for pbin in given["pbins"]
    ]
    return {
        "tokenizer": component(
            "tokenizer",
            "pretrained_hf_tokenizer",
            pretrained_model_name_or_path=given["tokenizer"],
            padding=False,
            truncation=False,
        ),
        "dataset": component("dataset", "combined", datasets=continuous),
        "sampler": component(
            "sampler",
            "resumable_distributed_sampler",
            dataset=reference("dataset"),
            rank=rng.randrange(world),
            num_replicas=world,
            epoch=rng.randint(0, 3),
            shuffle=rng.random() < 0.8,
            seed=rng.randrange(2**40),
            drop_last=True,
            skip_num_global_samples=rng.randint(0, 20),
        ),
        "batch_sampler": component(
            "batch_sampler", "default", sampler=reference("sampler"), batch_size=rng.randint(1, 6), drop_last=True
        ),
        "collator": component("collate_fn", "gpt_2_llm_collator", sample_key=KEY, target_key="target_ids"),
        "masking": component(
            "collate_fn",
            "mask_loss_collator_wrapper",
            wrapped_collate_fn=reference("collator"),
            target_keys_to_mask=["target_ids"],
            loss_ignore_index=-100,
            mask_tokens={"b_include_to_loss_token": "^", "e_include_to_loss_token": "$"},
            tokenizer=reference("tokenizer"),
        ),
        "loader": component(
            "data_loader",
            "default",
            dataloader_tag="train",
            dataset=reference("dataset"),
            batch_sampler=reference("batch_sampler"),
            collate_fn=reference(rng.choice(("collator", "masking"))),
            num_workers=rng.choice((0, 2)),
            pin_memory=False,
        ),
        "texts": component(
            "dataset",
            "mem_map_dataset",
            raw_data_path=given["jsonl"],
            tokenizer=reference("tokenizer"),
            jq_pattern=rng.choice((".text", '.text + "!"')),
            sample_key=KEY,
        ),
    }


def from_yaml(registry: Any, config: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """All batches of the loader, and all texts."""
    made = ComponentFactory(registry).build_components(config, Components)
    batches = list(made.loader)
    assert all(isinstance(batch, DatasetBatch) for batch in batches)
    tensors = [[batch.samples[KEY], batch.targets["target_ids"], len(batch)] for batch in batches]
    return tensors, [made.texts[index] for index in range(len(made.texts))]


def in_yaml(given: dict[str, Any], ours: Any, rng: random.Random) -> dict[str, Any]:
    config = config_of(given, rng)
    registry = Registry(COMPONENTS)
    theirs = from_yaml(registry, config)
    ours.register(registry)
    kept = from_yaml(registry, config)
    # The original can't be built from YAML at all.
    config["megatron"] = component(
        "dataset", "packed_mem_map_dataset_megatron", raw_data_path=given["pbins"][0], block_size=40, sample_key=KEY
    )
    blocks = ComponentFactory(registry).build_components(config, Components).megatron
    assert isinstance(blocks, ours.PackedMemMapDatasetMegatron)
    assert {len(block[KEY]) for block in blocks} == {40}
    found = {
        side: [digest(batches), len(batches), digest(texts)]
        for side, (batches, texts) in (("theirs", theirs), ("ours", kept))
    }
    assert found["ours"][1] > 3
    return found


def documents(given: dict[str, Any], module: Any) -> list[Any]:
    found: list[Any] = []
    for pbin in map(Path, given["pbins"]):
        base = module.PackedMemMapDatasetBase(pbin, sample_key=KEY)
        found += [len(base), digest([base[i][KEY] for i in range(-5, len(base))]), base.token_size_in_bytes]
        for part in (slice(0, 7), slice(-3, None), slice(5, 5), slice(4, 2), slice(None, None, 2)):
            found.append(outcome(lambda part=part, base=base: digest(base[part][KEY])))
        for size, reuse in ((2, True), (17, False), (64, True), (1, True), (10**8, False)):
            blocks = outcome(lambda p=pbin, s=size, r=reuse: module.PackedMemMapDatasetContinuous(p, KEY, s, r))
            found.append(blocks if isinstance(blocks, str) else digest([item[KEY] for item in blocks]))
    return found


def megatron(given: dict[str, Any], module: Any, **exact: bool) -> list[str]:
    """Up to the first block that can't be read."""
    found = []
    for pbin in map(Path, given["pbins"]):
        for size in (4, 50, 333):
            dataset = module.PackedMemMapDatasetMegatron(pbin, KEY, size, **exact)
            found.append(digest([outcome(lambda i=i, d=dataset: d[i][KEY]) for i in range(len(dataset))]))
    return found


def lines(given: dict[str, Any], reader: Any) -> list[str]:
    path = Path(given["jsonl"])
    ways = ((None, True), ("utf-8", True), (None, False))
    return [digest(list(reader(path, encoding=encoding, use_sample_length_from_index=own))) for encoding, own in ways]


def samples_of_ranks(sampler: Any, rng: random.Random) -> list[Any]:
    found = []
    for _ in range(60):
        n, world = rng.randint(1, 3000), rng.randint(1, 9)
        options = {
            "epoch": rng.randint(0, 5),
            "shuffle": rng.random() < 0.7,
            "seed": rng.choice((rng.randrange(100), rng.randrange(2**63), -rng.randrange(1, 2**31))),
            "drop_last": rng.random() < 0.5,
            "skip_num_global_samples": rng.randint(0, n),
        }
        found.append(list(sampler(range(n), rng.randrange(world), world, **options)))
    return [digest(found), sum(map(len, found))]


class Tokenizer:
    def get_token_id(self, token: str) -> int:
        return {"^": 1, "$": 2}[token]


def unnoticed(targets: list[int]) -> bool:
    """Whether a second begin marker stands directly before an end: the original keeps everything behind them."""
    inside = False
    for token, following in itertools.pairwise(targets):
        if inside and (token, following) == (1, 2):
            return True
        inside = token == 1 or (inside and token != 2)
    return False


def masked(collate: Any, masking: Any, config: Any, rng: random.Random) -> list[Any]:
    wrapped = masking(
        collate(KEY, "t"), ["t"], -100, config(b_include_to_loss_token="^", e_include_to_loss_token="$"), Tokenizer()
    )
    found = []
    for _ in range(400):
        rows, length = rng.randint(1, 3), rng.randint(2, 9)
        batch = [{KEY: np.array(rng.choices(range(5), (3, 2, 2, 3, 3), k=length), np.int32)} for _ in range(rows)]
        if any(unnoticed(row[KEY][1:].tolist()) for row in batch):
            continue
        result = outcome(lambda batch=batch: wrapped(batch))
        found.append(result if isinstance(result, str) else digest([result.targets["t"], result.samples[KEY]]))
    return found


def filtered(given: dict[str, Any], filter_one: Any, filter_api: Any, name: str) -> list[str]:
    target = Path(given["folder"])
    found = []
    for number, pbin in enumerate(map(Path, given["pbins"])):
        filter_one(pbin, target / f"{name}{number}.pbin", lambda item: len(item[1][KEY]) % 3 != 0)
        filter_api(
            pbin,
            lambda index: index % 5 in (0, 1),
            target / f"{name}{number}.api.pbin",
            modalities.api.FileExistencePolicy.ERROR,
        )
        found += [
            hashlib.sha256((target / f"{name}{number}{end}").read_bytes()).hexdigest() for end in (".pbin", ".api.pbin")
        ]
    return found


def stream_data(given: dict[str, Any], kind: Any) -> list[Any]:
    made = [kind(Path(pbin)) for pbin in given["pbins"]]
    return [[one.data_len, one.token_size_in_bytes, digest(np.array(one.data)), digest(one.index_base)] for one in made]


def main(given: dict[str, Any]) -> dict[str, Any]:
    sys.path.append(given["src"])
    import penstock.compat.modalities as ours

    seed = given["seed"]
    warnings.simplefilter("ignore")
    their_mask, their_config = their_masking.LossMaskingCollateFnWrapper, their_masking.LossMaskingTokenConfig
    return {
        "yaml": in_yaml(given, ours, random.Random(seed)),
        "documents": {"theirs": documents(given, their_datasets), "ours": documents(given, ours)},
        "megatron": {"theirs": megatron(given, their_datasets), "ours": megatron(given, ours, exact=True)},
        "lines": {"theirs": lines(given, LargeFileLinesReader), "ours": lines(given, ours.LargeFileLinesReader)},
        "sampler": {
            "theirs": samples_of_ranks(ResumableDistributedSampler, random.Random(seed)),
            "ours": samples_of_ranks(ours.ResumableDistributedSampler, random.Random(seed)),
        },
        "masking": {
            "theirs": masked(GPT2LLMCollateFn, their_mask, their_config, random.Random(seed)),
            "ours": masked(
                ours.GPT2LLMCollateFn,
                ours.LossMaskingCollateFnWrapper,
                ours.LossMaskingTokenConfig,
                random.Random(seed),
            ),
        },
        "filters": {
            "theirs": filtered(given, filter_dataset, modalities.api.create_filtered_tokenized_dataset, "theirs"),
            "ours": filtered(given, ours.filter_dataset, ours.create_filtered_tokenized_dataset, "ours"),
        },
        "stream_data": {
            "theirs": stream_data(given, EmbeddedStreamData),
            "ours": stream_data(given, ours.EmbeddedStreamData),
        },
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
