"""Lightning: pass the loader to `fit`; Lightning saves its state in each checkpoint.

    python examples/lightning_module.py tokens.pbin checkpoints 200

Two settings are needed. `use_distributed_sampler=False`, because the loader selects its rank's samples itself. And an
integer for `limit_train_batches`: without it, Lightning fetches one batch ahead to see whether it is the last one, and
saves a state that is one step too far, so a resumed run would miss a batch.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import nn

from penstock.load.torch import torch_loader
from toy import VOCABULARY, arguments, note, windows

GLOBAL_BATCH = 12
SAVE_EVERY = 5
NO_LIMIT = 1 << 40


class Toy(pl.LightningModule):
    """A model that predicts a token from the previous one, and records the samples of each step."""

    def __init__(self, notes: Path | None) -> None:
        super().__init__()
        self.notes = notes
        self.layers = nn.Sequential(nn.Embedding(VOCABULARY, 64), nn.Linear(64, VOCABULARY))

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        logits = self.layers(batch["inputs"])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())
        note(self.notes, self.global_rank, self.global_step, batch["inputs"], loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def newest_checkpoint(folder: Path) -> str | None:
    """Return the newest complete checkpoint, or None.

    Lightning writes a checkpoint in place. If the job is killed meanwhile, the directory at the end of the zip file is
    missing, and loading it would fail.
    """
    newest_first = sorted(folder.glob("*.ckpt"), key=lambda path: int(path.stem.split("=")[1]), reverse=True)
    return next((str(path) for path in newest_first if zipfile.is_zipfile(path)), None)


def main() -> None:
    """Train until `steps`."""
    args = arguments()
    pl.seed_everything(0)
    keep = ModelCheckpoint(
        args.folder, filename="{step}", every_n_train_steps=SAVE_EVERY, save_top_k=2, monitor="step", mode="max"
    )
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=args.steps,
        use_distributed_sampler=False,
        limit_train_batches=NO_LIMIT,
        callbacks=[keep],
        logger=False,
        enable_progress_bar=False,
    )
    loader = torch_loader(windows(args.tokens), GLOBAL_BATCH, rank=trainer.global_rank, world=trainer.world_size)
    trainer.fit(Toy(args.notes), loader, ckpt_path=newest_checkpoint(args.folder), weights_only=True)


if __name__ == "__main__":
    main()
