"""Hugging Face Trainer with Penstock's loader, whose state is saved in each checkpoint.

    python examples/hf_trainer.py tokens.pbin checkpoints 200

Trainer has its own order in two places. It wraps datasets in samplers that select each rank's samples, so
`get_train_dataloader` returns Penstock's loader instead. When it resumes, it skips the samples that those samplers have
read, so `ignore_data_skip=True` leaves that to the loader's state.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

from penstock.load.torch import torch_loader
from toy import LENGTH, VOCABULARY, arguments, note, replace, windows

GLOBAL_BATCH = 12
SAVE_EVERY = 5


class Batches:
    """The loader's batches with the names that transformers' models expect; `shift_labels` are already shifted."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.loader:
            yield {"input_ids": batch["inputs"], "labels": batch["targets"], "shift_labels": batch["targets"]}


class KeepLoader(TrainerCallback):
    """Add the loader's state to each checkpoint, as its last file: a checkpoint that has it is complete."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            text = json.dumps(self.loader.state_dict())
            path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / "loader.json"
            replace(path, lambda path: path.write_text(text))


class ToyTrainer(Trainer):
    """A Trainer with Penstock's loader that records the samples of each step."""

    def __init__(self, loader: Any, notes: Path | None, **more: Any) -> None:
        super().__init__(**more)
        self.loader, self.notes = loader, notes

    def get_train_dataloader(self) -> Any:
        return Batches(self.loader)

    def compute_loss(self, model: Any, inputs: Any, *more: Any, **named: Any) -> Any:
        loss = super().compute_loss(model, inputs, *more, **named)
        note(self.notes, self.args.process_index, self.state.global_step, inputs["input_ids"], loss.item())
        return loss


def main() -> None:
    """Train until `steps`."""
    args = arguments()
    options = TrainingArguments(
        output_dir=str(args.folder),
        max_steps=args.steps,  # the stream has no end
        ignore_data_skip=True,
        per_device_train_batch_size=GLOBAL_BATCH,  # only for its statistics: the loader makes the batches
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        save_steps=SAVE_EVERY,
        save_total_limit=2,  # the previous one remains while the newest is written
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    set_seed(0)
    shape = {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": LENGTH}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, **shape))
    loader = torch_loader(windows(args.tokens), GLOBAL_BATCH, rank=options.process_index, world=options.world_size)
    trainer = ToyTrainer(loader, args.notes, model=model, args=options, callbacks=[KeepLoader(loader)])

    whole = sorted(args.folder.glob("checkpoint-*/loader.json"), key=lambda path: int(path.parent.name.split("-")[1]))
    if whole:
        loader.load_state_dict(json.loads(whole[-1].read_text()))
    trainer.train(resume_from_checkpoint=str(whole[-1].parent) if whole else None)


if __name__ == "__main__":
    main()
