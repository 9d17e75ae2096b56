"""Shuffle packed files into chunks, filter one, join them, mask what is not the assistant's, train over some ranks.

program.py prepare ROOT TOKENIZER
program.py ROOT STATE STEPS    with RANK and WORLD_SIZE
"""

import json
import os
import sys
from pathlib import Path

from modalities.api import (
    FileExistencePolicy,
    create_raw_data_index,
    create_shuffled_dataset_chunk,
    pack_encoded_data,
    shuffle_jsonl_data,
    shuffle_tokenized_data,
)
from modalities.dataloader.collate_fns.collator_fn_wrapper_for_loss_masking import (
    LossMaskingCollateFnWrapper,
    LossMaskingTokenConfig,
)
from modalities.dataloader.create_packed_data import EmbeddedStreamData
from modalities.dataloader.dataset import CombinedDataset, PackedMemMapDatasetBase, PackedMemMapDatasetContinuous
from modalities.dataloader.large_file_lines_reader import LargeFileLinesReader
from modalities.dataloader.samplers import ResumableDistributedSampler
from modalities.models.gpt2.collator import GPT2LLMCollateFn
from torch.utils.data import BatchSampler, DataLoader

GLOBAL_BATCH = 6


class Tokens:
    """Markers by their text, as a tokenizer of Modalities has them."""

    def __init__(self, first: int) -> None:
        self.first = first

    def get_token_id(self, text: str) -> int:
        return self.first + ["<b>", "<e>"].index(text)


def packed(root: Path, name: str, count: int, tokenizer: Path) -> Path:
    jsonl, target = root / f"{name}.jsonl", root / f"{name}.pbin"
    jsonl.write_text(
        "".join(json.dumps({"text": f"{name} {number} {'la ' * (number % 7)}"}) + "\n" for number in range(count))
    )
    shuffle_jsonl_data(jsonl, root / f"{name}.shuffled.jsonl", FileExistencePolicy.ERROR, seed=5)
    create_raw_data_index(root / f"{name}.shuffled.jsonl", root / f"{name}.idx", FileExistencePolicy.ERROR)
    settings = {
        "src_path": str(root / f"{name}.shuffled.jsonl"), "dst_path": str(target),
        "index_path": str(root / f"{name}.idx"),
        "jq_pattern": ".text", "num_cpus": 1, "eod_token": "<|eod|>", "processing_batch_size": 7,
        "raw_samples_queue_size": 50, "processed_samples_queue_size": 50,
    }  # fmt: skip
    config = {"pretrained_model_name_or_path": str(tokenizer), "padding": False, "truncation": False}
    wrapper = {"component_key": "tokenizer", "variant_key": "pretrained_hf_tokenizer", "config": config}
    pack_encoded_data({"settings": settings, "tokenizer": wrapper}, FileExistencePolicy.ERROR)
    return target


def prepare(root: Path, tokenizer: Path) -> None:
    root.mkdir()
    files = [packed(root, name, count, tokenizer) for name, count in (("news", 110), ("talk", 90))]
    shuffle_tokenized_data(files[1], root / "talk-2.pbin", 20, FileExistencePolicy.ERROR, seed=8)
    for chunk in range(2):
        create_shuffled_dataset_chunk(
            [files[0], root / "talk-2.pbin"],
            root / f"chunk-{chunk}.pbin",
            chunk,
            2,
            FileExistencePolicy.ERROR,
            global_seed=3,
        )


def main(root: Path, state_file: Path, steps: int) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    consumed = json.loads(state_file.read_text())["consumed"] if state_file.exists() else 0
    parts = [PackedMemMapDatasetContinuous(root / f"chunk-{chunk}.pbin", "input_ids", 17, False) for chunk in range(2)]
    dataset = CombinedDataset(parts)
    collate = LossMaskingCollateFnWrapper(
        wrapped_collate_fn=GPT2LLMCollateFn(sample_key="input_ids", target_key="target_ids"),
        target_keys_to_mask=["target_ids"],
        loss_ignore_index=-100,
        mask_tokens=LossMaskingTokenConfig(b_include_to_loss_token="<b>", e_include_to_loss_token="<e>"),
        tokenizer=Tokens(60_000),  # plain text has no markers: all of it is masked
    )
    sampler = ResumableDistributedSampler(
        dataset,
        rank=rank,
        num_replicas=world,
        shuffle=True,
        seed=2,
        epoch=0,
        drop_last=False,
        skip_num_global_samples=consumed,
    )
    batches = BatchSampler(sampler, batch_size=GLOBAL_BATCH // world, drop_last=True)
    read = []
    for step, batch in enumerate(DataLoader(dataset, batch_sampler=batches, collate_fn=collate)):
        if step == steps:
            break
        read.append([batch.samples["input_ids"].tolist(), batch.targets["target_ids"].tolist()])
        consumed += GLOBAL_BATCH
    if rank == 0:
        Path(f"{state_file}.new").write_text(json.dumps({"consumed": consumed}))
    documents = PackedMemMapDatasetBase(root / "chunk-0.pbin", "input_ids")
    lines = LargeFileLinesReader(root / "news.shuffled.jsonl", root / "news.idx")
    stream = EmbeddedStreamData(root / "chunk-1.pbin")
    facts = [
        len(dataset),
        len(documents),
        documents[3]["input_ids"].tolist(),
        lines[4],
        stream.data_len,
        stream.index_base[:3],
    ]
    print(json.dumps({"read": read, "consumed": consumed, "facts": facts}))


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        prepare(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
