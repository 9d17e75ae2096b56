"""Index and pack a corpus, train on windows of it over some ranks, stop, and go on with another number of ranks.

program.py prepare ROOT TOKENIZER
program.py ROOT STATE STEPS    with RANK and WORLD_SIZE
"""

import json
import os
import sys
from pathlib import Path

from modalities.api import FileExistencePolicy, create_raw_data_index, pack_encoded_data
from modalities.batch import DatasetBatch
from modalities.dataloader.dataset import PackedMemMapDatasetContinuous
from modalities.dataloader.samplers import ResumableDistributedSampler
from modalities.models.gpt2.collator import GPT2LLMCollateFn
from torch.utils.data import BatchSampler, DataLoader

GLOBAL_BATCH = 8
SEQUENCE = 24


def prepare(root: Path, tokenizer: Path) -> None:
    root.mkdir()
    lines = [
        {"text": f"document {number} says {'a word and ' * (number % 13)}stop", "id": number} for number in range(300)
    ]
    (root / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    create_raw_data_index(root / "corpus.jsonl", root / "corpus.idx", file_existence_policy=FileExistencePolicy.ERROR)
    settings = {
        "src_path": str(root / "corpus.jsonl"), "dst_path": str(root / "corpus.pbin"),
        "index_path": str(root / "corpus.idx"),
        "jq_pattern": ".text", "num_cpus": 1, "eod_token": "<|eod|>", "processing_batch_size": 10,
        "raw_samples_queue_size": 50, "processed_samples_queue_size": 50,
    }  # fmt: skip
    wrapper = {
        "component_key": "tokenizer",
        "variant_key": "pretrained_hf_tokenizer",
        "config": {"pretrained_model_name_or_path": str(tokenizer), "padding": False, "truncation": False},
    }
    config = {"settings": settings, "tokenizer": wrapper}
    pack_encoded_data(config_dict=config, file_existence_policy=FileExistencePolicy.ERROR)
    pack_encoded_data(config_dict=config, file_existence_policy=FileExistencePolicy.SKIP)
    create_raw_data_index(
        root / "corpus.jsonl", root / "corpus.idx", file_existence_policy=FileExistencePolicy.OVERRIDE
    )


def main(root: Path, state_file: Path, steps: int) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    consumed = json.loads(state_file.read_text())["consumed"] if state_file.exists() else 0
    dataset = PackedMemMapDatasetContinuous(root / "corpus.pbin", "input_ids", SEQUENCE + 1, True)
    sampler = ResumableDistributedSampler(
        dataset, rank=rank, num_replicas=world, shuffle=True, seed=11, drop_last=True, skip_num_global_samples=consumed
    )
    batches = BatchSampler(sampler, batch_size=GLOBAL_BATCH // world, drop_last=True)
    collate = GPT2LLMCollateFn(sample_key="input_ids", target_key="target_ids")
    read = []
    for step, batch in enumerate(DataLoader(dataset, batch_sampler=batches, collate_fn=collate, num_workers=1)):
        if step == steps:
            break
        assert isinstance(batch, DatasetBatch)
        read.append([batch.samples["input_ids"].tolist(), batch.targets["target_ids"][:, -1].tolist()])
        consumed += GLOBAL_BATCH
    if rank == 0:
        Path(f"{state_file}.new").write_text(json.dumps({"consumed": consumed}))
    print(json.dumps({"read": read, "consumed": consumed, "length": len(dataset)}))


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        prepare(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
