"""Questions about images: typed samples, a batch class, validation, and a training that is saved midway."""

import json
import sys
from dataclasses import dataclass

import torch
from megatron.energon import (
    Batch,
    DefaultTaskEncoder,
    VQASample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)


@dataclass
class Questions(Batch):
    pixels: torch.Tensor
    prompts: list[str]


class Encoder(DefaultTaskEncoder):
    @stateless
    def encode_sample(self, sample: VQASample) -> VQASample:
        sample.context = f"Question: {sample.context} Answer: {sample.answers}"
        return sample

    @stateless
    def batch(self, samples):
        return Questions.derive_from(
            Batch.from_samples(samples),
            pixels=torch.stack([one.image.mean(dim=(1, 2)) for one in samples]),
            prompts=[one.context for one in samples],
        )


def training(path, rank=0, world=1, batch_size=2, **more):
    config = WorkerConfig(rank=rank, world_size=world, num_workers=0)
    options = {"shuffle_buffer_size": 10, "max_samples_per_sequence": 10, "repeat": False, **more}
    return get_savable_loader(
        get_train_dataset(path, batch_size=batch_size, worker_config=config, task_encoder=Encoder(), **options)
    )


def validation(path, rank, world):
    config = WorkerConfig(rank=rank, world_size=world, num_workers=0)
    return get_savable_loader(
        get_val_dataset(path, split_part="train", batch_size=5, worker_config=config, task_encoder=Encoder())
    )


def rows(batches):
    return [
        (key, [round(float(one), 4) for one in pixels], prompt)
        for batch in batches
        for key, pixels, prompt in zip(batch.__key__, batch.pixels, batch.prompts, strict=True)
    ]


def main(path):
    begun = training(path)
    batches = iter(begun)
    first = rows(next(batches) for _ in range(3))
    state = begun.save_state_rank()
    rest = rows(batches)
    resumed = training(path)
    resumed.restore_state_rank(state)
    return {
        "validation": rows(validation(path, 0, 1)),
        "sizes": [len(batch.__key__) for batch in validation(path, 0, 1)],
        "two ranks": sorted(rows(validation(path, 0, 2)) + rows(validation(path, 1, 2))),
        "trained": sorted(first + rest),
        "resumed": rows(resumed) == rest,
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1])["path"])))
