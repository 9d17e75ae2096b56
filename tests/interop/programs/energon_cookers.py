"""Crude data of a metadataset: cookers by subflavors, images of auxiliary stores, parts of the own dataset."""

import json
import sys

from megatron.energon import (
    Cooker,
    DefaultTaskEncoder,
    SampleDecoder,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)


@stateless
def of_rows(sample, imgs, media):
    made = TextSample(**basic_sample_keys(sample), text="")
    made.text = (imgs.get(sample["json"]["image"], made), sorted(sample["json"]))
    return made


@stateless
@cooker(need_primary=True)
def of_tars(sample, primary, **stores):
    made = TextSample(**basic_sample_keys(sample), text="")
    made.text = (primary.get(".txt", made), sorted(stores))
    return made


class Encoder(DefaultTaskEncoder):
    cookers = (Cooker(of_rows, has_subflavors={"src": "jsonl"}), Cooker(of_tars))
    decoder = SampleDecoder(image_decode="rgb8")

    @stateless
    def batch(self, samples):
        return samples


def training(path, rank=0, world=1, batch_size=3, **more):
    config = WorkerConfig(rank=rank, world_size=world, num_workers=0)
    options = {"shuffle_buffer_size": 5, "max_samples_per_sequence": 5, **more}
    return get_savable_loader(
        get_train_dataset(path, batch_size=batch_size, worker_config=config, task_encoder=Encoder(), **options)
    )


def validation(path, rank, world):
    config = WorkerConfig(rank=rank, world_size=world, num_workers=0)
    dataset = get_val_dataset(path, split_part="train", batch_size=3, worker_config=config, task_encoder=Encoder())
    return get_savable_loader(dataset)


def plain(value):
    return value.sum().item() if hasattr(value, "sum") else value


def rows(batches):
    return [(one.__key__, [plain(each) for each in one.text]) for batch in batches for one in batch]


def main(path):
    begun = training(path)
    batches = iter(begun)
    _ = rows(next(batches) for _ in range(3))
    state = begun.save_state_rank()
    after = rows(next(batches) for _ in range(5))
    resumed = training(path)
    resumed.restore_state_rank(state)
    again = iter(resumed)
    return {
        "validation": rows(validation(path, 0, 1)),
        "two ranks": sorted(rows(validation(path, 0, 2)) + rows(validation(path, 1, 2)), key=repr),
        "resumed": rows(next(again) for _ in range(5)) == after,
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1])["path"])))
