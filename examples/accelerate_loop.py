"""Hugging Face Accelerate: prepare the model and the optimizer, but not the loader.

    accelerate launch --cpu --num_processes 2 examples/accelerate_loop.py tokens.pbin checkpoints 200

`prepare` would divide the samples among the ranks a second time (`split_batches`, `dispatch_batches`), and
`skip_first_batches` is for loaders without a state. Neither is used here. `register_for_checkpointing` saves the
loader's state with the rest, and `load_state` restores it.
"""

from __future__ import annotations

import shutil

import torch
from accelerate import Accelerator
from torch import nn

from penstock.load.torch import torch_loader
from toy import VOCABULARY, arguments, leave, note, replace, windows

GLOBAL_BATCH = 12
SAVE_EVERY = 5


def main() -> None:
    """Train until `steps`."""
    args = arguments()
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCABULARY, 64), nn.Linear(64, VOCABULARY))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    rank, world = accelerator.process_index, accelerator.num_processes
    loader = torch_loader(windows(args.tokens), GLOBAL_BATCH, rank=rank, world=world)
    accelerator.register_for_checkpointing(loader)

    last = args.folder / "last"
    if last.exists():
        accelerator.load_state(str(args.folder / last.read_text()))

    batches = iter(loader)
    for step in range(loader.step, args.steps):
        batch = next(batches)
        logits = model(batch["inputs"].to(accelerator.device))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        note(args.notes, rank, step, batch["inputs"], accelerator.gather(loss.detach().reshape(1)).mean().item())
        if (step + 1) % SAVE_EVERY == 0:
            name = f"step-{step + 1}"
            accelerator.save_state(str(args.folder / name))
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                replace(last, lambda path, name=name: path.write_text(name))
                shutil.rmtree(args.folder / f"step-{step + 1 - SAVE_EVERY}", ignore_errors=True)
    accelerator.end_training()
    leave()


if __name__ == "__main__":
    main()
