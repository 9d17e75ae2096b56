"""torchtitan: a dataloader that follows its protocol, with its state in torch's distributed checkpoints.

    torchrun --nproc-per-node 2 examples/torchtitan_dataloader.py tokens.pbin checkpoints 200

torchtitan's own loader has one state per rank and can't load it on another number of ranks. This one has a single
state, so 3 ranks can resume a run of 2. Pass `PenstockLoader.Config(…)` to torchtitan's trainer as `dataloader`; the
trainer calls `build` with the arguments below. Release 0.3.0 expects batches of rows. The main branch has moved the
base class and expects one row per batch, with the position of each token. The step here is plain DDP, without a GPU.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

from penstock.load.torch import torch_loader
from toy import LENGTH, VOCABULARY, arguments, leave, note, replace, windows

try:
    from torchtitan.components.data.loader import BaseDataLoader
except ImportError:  # release 0.3.0
    from torchtitan.components.dataloader import BaseDataLoader

GLOBAL_BATCH = 12
SAVE_EVERY = 5


class PenstockLoader(BaseDataLoader):
    """Yields `({"input": …}, labels)`, the windows of this data-parallel rank.

    As rows if the trainer gives a `local_batch_size`, in one row with `positions` if it gives a number of tokens.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """`dataset_path` is a packed corpus; `global_batch` is torchtitan's `global_batch_size`."""

        dataset_path: str
        global_batch: int

    def __init__(self, config: Config, *, dp_rank: int, dp_world_size: int, **size: Any) -> None:
        self.in_one_row = "local_batch_size" not in size
        rows = size["num_tokens_per_batch"] // LENGTH if self.in_one_row else size["local_batch_size"]
        ranks = {"rank": dp_rank, "world": dp_world_size, "micro_batch": rows}
        self.loader = torch_loader(windows(Path(str(config.dataset_path))), config.global_batch, **ranks)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for batch in self.loader:
            inputs, targets = batch["inputs"], batch["targets"]
            if self.in_one_row:
                positions = torch.arange(LENGTH).repeat(len(inputs))
                yield {"input": inputs.flatten(), "positions": positions}, targets.flatten()
            else:
                yield {"input": inputs}, targets

    def state_dict(self) -> dict[str, Any]:
        return {"penstock": json.dumps(self.loader.state_dict())}  # one value, whatever shape the state has

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loader.load_state_dict(json.loads(state_dict["penstock"]))


def main() -> None:
    """Train until `steps`."""
    args = arguments()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(VOCABULARY, 64), nn.Linear(64, VOCABULARY)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    config = PenstockLoader.Config(dataset_path=str(args.tokens), global_batch=GLOBAL_BATCH)
    ranks, local_batch = {"dp_rank": rank, "dp_world_size": world}, GLOBAL_BATCH // world
    if BaseDataLoader.__module__ == "torchtitan.components.dataloader":
        size = {"seq_len": LENGTH, "local_batch_size": local_batch}
    else:
        size = {"max_context_length": LENGTH, "num_tokens_per_batch": local_batch * LENGTH}
    dataloader = config.build(**ranks, **size, tokenizer=None)

    def states() -> dict[str, Any]:
        parameters, moments = get_state_dict(model, optimizer)
        return {"model": parameters, "optimizer": moments, "dataloader": dataloader}

    last = args.folder / "last"
    if last.exists():
        saved = states()
        dcp.load(saved, checkpoint_id=args.folder / last.read_text())
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])

    batches = iter(dataloader)
    for step in range(dataloader.loader.step, args.steps):
        inputs, labels = next(batches)
        loss = nn.functional.cross_entropy(model(inputs["input"]).flatten(0, -2), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(whole := loss.detach())
        note(args.notes, rank, step, inputs["input"].view(-1, LENGTH), whole.item() / world)
        if (step + 1) % SAVE_EVERY == 0:
            name = f"step-{step + 1}"
            dcp.save(states(), checkpoint_id=args.folder / name)
            if rank == 0:  # the folder is whole, so it may be named
                replace(last, lambda path, name=name: path.write_text(name))
                shutil.rmtree(args.folder / f"step-{step + 1 - SAVE_EVERY}", ignore_errors=True)
    leave()


if __name__ == "__main__":
    main()
