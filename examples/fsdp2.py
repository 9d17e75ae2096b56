"""FSDP2 with torch's distributed checkpoints: parameters and data are sharded over the same mesh.

    torchrun --nproc-per-node 2 examples/fsdp2.py tokens.pbin checkpoints 200

A checkpoint that was saved on 2 ranks can be loaded on 3: torch reshards the parameters, and the loader only needs its
state, which is the same on all ranks.
"""

from __future__ import annotations

import json
import shutil
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from penstock.load.torch import torch_loader
from toy import VOCABULARY, arguments, leave, note, replace, windows

GLOBAL_BATCH = 12
SAVE_EVERY = 5


def main() -> None:
    """Train until `steps`."""
    args = arguments()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("data",))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCABULARY, 64), nn.Linear(64, VOCABULARY))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = torch_loader(windows(args.tokens), GLOBAL_BATCH, mesh=mesh)

    last = args.folder / "last.json"
    if last.exists():
        saved = json.loads(last.read_text())
        parameters, moments = get_state_dict(model, optimizer)
        states: dict[str, Any] = {"model": parameters, "optimizer": moments}
        dcp.load(states, checkpoint_id=args.folder / saved["name"])
        set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
        loader.load_state_dict(saved["loader"])

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
        note(args.notes, rank, step, batch["inputs"], whole.item() / world)
        if (step + 1) % SAVE_EVERY == 0:
            name = f"step-{step + 1}"
            parameters, moments = get_state_dict(model, optimizer)
            dcp.save({"model": parameters, "optimizer": moments}, checkpoint_id=args.folder / name)
            if rank == 0:  # the folder is whole, so it may be named; then the one before it may go
                text = json.dumps({"name": name, "loader": loader.state_dict()})
                replace(last, lambda path, text=text: path.write_text(text))
                shutil.rmtree(args.folder / f"step-{step + 1 - SAVE_EVERY}", ignore_errors=True)
    leave()


if __name__ == "__main__":
    main()
