"""Plain PyTorch DDP that resumes exactly after a stop, on any number of ranks.

    torchrun --nproc-per-node 2 examples/ddp.py tokens.pbin checkpoints 200
    torchrun --nproc-per-node 3 examples/ddp.py tokens.pbin checkpoints 400

There is no DistributedSampler and nothing to skip: the loader gives each rank its samples of a step. Its state is the
same on all ranks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from penstock.load.torch import torch_loader
from toy import VOCABULARY, arguments, leave, note, replace, windows

GLOBAL_BATCH = 12
SAVE_EVERY = 5


def main() -> None:
    """Train until `steps`."""
    args = arguments()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(VOCABULARY, 64), nn.Linear(64, VOCABULARY)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = torch_loader(windows(args.tokens), GLOBAL_BATCH, rank=dist.get_rank(), world=dist.get_world_size())

    last = args.folder / "last.pt"
    if last.exists():
        saved = torch.load(last, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])  # saved on any number of ranks; nothing is replayed

    batches = iter(loader)
    for step in range(loader.step, args.steps):
        batch = next(batches)
        logits = model(batch["inputs"])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        whole = loss.detach()
        dist.all_reduce(whole)
        note(args.notes, dist.get_rank(), step, batch["inputs"], whole.item() / dist.get_world_size())
        if (step + 1) % SAVE_EVERY == 0 and dist.get_rank() == 0:
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            replace(last, lambda path, states=states: torch.save(states, path))
    leave()


if __name__ == "__main__":
    main()
