"""Lightning: the loader goes to `fit`, and Lightning itself keeps its state in each checkpoint.

    python examples/lightning_module.py tokens.pbin checkpoints 200

Two switches. `use_distributed_sampler=False`: the loader knows its rank. `limit_train_batches`, an integer: without
one, Lightning fetches a batch ahead of a loader without end, to see whether it is the last, and saves a state that is
one step too far: a resumed run would leave a batch out.
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
    """Predicts a token from the one before it, and writes down the samples of each step."""

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
    """Return the newest checkpoint that is whole; None if there is none.

    Lightning writes a checkpoint in place. If the job is killed meanwhile, the directory at the end of the zip file is
    missing, and loading it would fail.
    """
    newest_first = sorted(folder.glob("*.ckpt"), key=lambda path: int(path.stem.split("=")[1]), reverse=True)
    return next((str(path) for path in newest_first if zipfile.is_zipfile(path)), None)


def main() -> None:
    """Train until `steps`."""
    given = arguments()
    pl.seed_everything(0)
    keep = ModelCheckpoint(
        given.folder, filename="{step}", every_n_train_steps=SAVE_EVERY, save_top_k=2, monitor="step", mode="max"
    )
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=given.steps,
        use_distributed_sampler=False,
        limit_train_batches=NO_LIMIT,
        callbacks=[keep],
        logger=False,
        enable_progress_bar=False,
    )
    loader = torch_loader(windows(given.tokens), GLOBAL_BATCH, rank=trainer.global_rank, world=trainer.world_size)
    trainer.fit(Toy(given.notes), loader, ckpt_path=newest_checkpoint(given.folder), weights_only=True)


if __name__ == "__main__":
    main()
