"""Megatron-LM: a provider for `build_train_valid_test_data_loaders`, with `--dataloader-type external`.

    torchrun --nproc-per-node 2 examples/megatron_provider.py tokens.pbin checkpoints 200

`external` bypasses Megatron's samplers. Only one number of its checkpoint is needed, `consumed_train_samples`, and any
number of ranks can resume. Ranks are data-parallel ranks, so tensor-parallel peers read the same batches.
`megatron.training` isn't part of the package `megatron-core`, so `main` calls the provider in the same way, with layers
that don't need a GPU.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import ModelParallelConfig, parallel_state
from megatron.core.rerun_state_machine import RerunDataIterator
from megatron.core.tensor_parallel import ColumnParallelLinear, VocabParallelEmbedding, vocab_parallel_cross_entropy
from torch import nn

from penstock.load.torch import torch_loader
from toy import VOCABULARY, arguments, leave, note, replace, windows

SAVE_EVERY, TENSOR_PARALLEL = 5, 2
NAMES = {"inputs": "tokens", "targets": "labels", "loss_mask": "loss_mask", "positions": "position_ids"}


class External:
    """An iterator over micro-batches with Megatron's names; `save_state` is called for `--dataloader-save`."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.batches = loader, iter(loader)

    def __next__(self) -> dict[str, torch.Tensor]:
        batch = next(self.batches)
        return {theirs: batch[ours] for ours, theirs in NAMES.items()}

    def save_state(self) -> Any:
        return self.loader.state_dict()


def train_valid_test_datasets_provider(num_samples: Any, args: Namespace) -> tuple[Any, Any, Any]:
    """Return the three iterators. Megatron passes only `num_samples`; use `get_args()` for `args` there."""
    rank, world = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
    more = {"micro_batch": args.micro_batch_size, "start": args.consumed_train_samples}
    loader = torch_loader(windows(args.tokens, tuple(NAMES)), args.global_batch_size, rank=rank, world=world, **more)
    return External(loader), None, None


train_valid_test_datasets_provider.is_distributed = True  # each rank calls it


def main() -> None:
    """Train until `steps`."""
    args = arguments()
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=TENSOR_PARALLEL)
    part, copies = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_data_parallel_world_size()
    config = ModelParallelConfig(tensor_model_parallel_size=TENSOR_PARALLEL, use_cpu_initialization=True)
    embedding = VocabParallelEmbedding(VOCABULARY, 64, init_method=nn.init.normal_, config=config)
    head = ColumnParallelLinear(64, VOCABULARY, bias=False, init_method=nn.init.normal_, config=config)
    layers = nn.ModuleList([embedding, head])
    optimizer = torch.optim.AdamW(layers.parameters(), lr=3e-2)
    kept = (layers, optimizer)

    args.global_batch_size, args.micro_batch_size, args.consumed_train_samples = 12, 3, 0
    last = args.folder / "last"
    if last.exists():
        args.consumed_train_samples = int(last.read_text())
        for one, state in zip(kept, torch.load(args.folder / f"{last.read_text()}.{part}.pt"), strict=True):
            one.load_state_dict(state)
    data = RerunDataIterator(train_valid_test_datasets_provider((args.steps * 12, 0, 0), args)[0])

    for step in range(args.consumed_train_samples // args.global_batch_size, args.steps):
        micro_batches = [next(data) for _ in range(args.global_batch_size // args.micro_batch_size // copies)]
        for batch in micro_batches:
            losses = vocab_parallel_cross_entropy(head(embedding(batch["tokens"]))[0], batch["labels"])
            loss = (losses * batch["loss_mask"]).mean()
            (loss / len(micro_batches) / copies).backward()
        for parameter in layers.parameters():
            dist.all_reduce(parameter.grad, group=parallel_state.get_data_parallel_group())
        optimizer.step()
        optimizer.zero_grad()
        note(args.notes, dist.get_rank(), step, torch.cat([batch["tokens"] for batch in micro_batches]), loss.item())
        args.consumed_train_samples += args.global_batch_size
        if (step + 1) % SAVE_EVERY == 0:
            if parallel_state.get_data_parallel_rank() == 0:
                torch.save([one.state_dict() for one in kept], args.folder / f"{args.consumed_train_samples}.{part}.pt")
            dist.barrier()
            if dist.get_rank() == 0:  # all parts are written
                replace(last, lambda path: path.write_text(str(args.consumed_train_samples)))
    leave()


if __name__ == "__main__":
    main()
