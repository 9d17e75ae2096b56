"""A training run whose data are described in a YAML file of Modalities; its components are the package's, or others.

program.py prepare ROOT TOKENIZER
program.py ROOT STATE STEPS    with RANK and WORLD_SIZE
"""

import json
import os
import sys
from pathlib import Path

import yaml
from modalities.api import FileExistencePolicy, create_raw_data_index, pack_encoded_data
from modalities.config.component_factory import ComponentFactory
from modalities.config.pydantic_if_types import PydanticLLMDataLoaderIFType
from modalities.registry.components import COMPONENTS
from modalities.registry.registry import Registry
from pydantic import BaseModel

register = lambda registry: None  # noqa: E731 (the package's own components)

GLOBAL_BATCH = 4
YAML = """
train_dataset:
  component_key: dataset
  variant_key: packed_mem_map_dataset_continuous
  config: {raw_data_path: CORPUS, sequence_length: 16, sample_key: input_ids, reuse_last_target: true}
train_dataloader:
  component_key: data_loader
  variant_key: default
  config:
    num_workers: 0
    pin_memory: false
    dataloader_tag: train
    dataset: {instance_key: train_dataset, pass_type: BY_REFERENCE}
    batch_sampler:
      component_key: batch_sampler
      variant_key: default
      config:
        batch_size: BATCH
        drop_last: true
        sampler:
          component_key: sampler
          variant_key: resumable_distributed_sampler
          config:
            dataset: {instance_key: train_dataset, pass_type: BY_REFERENCE}
            rank: RANK
            num_replicas: WORLD
            shuffle: true
            seed: 42
            drop_last: true
            skip_num_global_samples: CONSUMED
    collate_fn:
      component_key: collate_fn
      variant_key: gpt_2_llm_collator
      config: {sample_key: input_ids, target_key: target_ids}
"""


class Components(BaseModel):
    train_dataloader: PydanticLLMDataLoaderIFType


def prepare(root: Path, tokenizer: Path) -> None:
    root.mkdir()
    lines = [{"text": "one more document " * (1 + number % 5)} for number in range(200)]
    (root / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    create_raw_data_index(root / "corpus.jsonl", root / "corpus.idx", FileExistencePolicy.ERROR)
    settings = {
        "src_path": str(root / "corpus.jsonl"), "dst_path": str(root / "corpus.pbin"),
        "index_path": str(root / "corpus.idx"),
        "jq_pattern": ".text", "num_cpus": 1, "eod_token": "<|eod|>", "processing_batch_size": 10,
        "raw_samples_queue_size": 50, "processed_samples_queue_size": 50,
    }  # fmt: skip
    config = {"pretrained_model_name_or_path": str(tokenizer), "padding": False, "truncation": False}
    wrapper = {"component_key": "tokenizer", "variant_key": "pretrained_hf_tokenizer", "config": config}
    pack_encoded_data({"settings": settings, "tokenizer": wrapper}, FileExistencePolicy.ERROR)


def main(root: Path, state_file: Path, steps: int) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    consumed = json.loads(state_file.read_text())["consumed"] if state_file.exists() else 0
    given = {
        "CORPUS": root / "corpus.pbin",
        "BATCH": GLOBAL_BATCH // world,
        "RANK": rank,
        "WORLD": world,
        "CONSUMED": consumed,
    }
    text = YAML
    for name, value in given.items():
        text = text.replace(name, str(value))
    registry = Registry(COMPONENTS)
    register(registry)
    found = ComponentFactory(registry=registry).build_components(
        config_dict=yaml.safe_load(text), components_model_type=Components
    )
    read = []
    for step, batch in enumerate(found.train_dataloader):
        if step == steps:
            break
        read.append([batch.samples["input_ids"].tolist(), batch.targets["target_ids"].tolist()])
        consumed += GLOBAL_BATCH
    if rank == 0:
        Path(f"{state_file}.new").write_text(json.dumps({"consumed": consumed}))
    print(json.dumps({"read": read, "consumed": consumed}))


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        prepare(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
