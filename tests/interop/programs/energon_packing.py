"""Texts of a JSONL, packed to a length, in training and validation."""

import json
import sys

from megatron.energon import (
    Cooker,
    DefaultTaskEncoder,
    Sample,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)

LENGTH = 40


@edataclass
class Tokens(Sample):
    tokens: list[int]
    lengths: list[int]


@stateless
def cook(sample):
    text = sample["json"]["text"]
    return Tokens(**basic_sample_keys(sample), tokens=[ord(one) for one in text], lengths=[len(text)])


class Encoder(DefaultTaskEncoder):
    cookers = (Cooker(cook),)

    @stateless
    def encode_sample(self, sample):
        sample.tokens = [one % 1000 for one in sample.tokens]
        return sample

    def select_samples_to_pack(self, samples):
        packs, filled = [[]], 0
        for one in sorted(samples, key=lambda one: (len(one.tokens), one.__key__)):
            if filled + len(one.tokens) > LENGTH and packs[-1]:
                packs.append([])
                filled = 0
            packs[-1].append(one)
            filled += len(one.tokens)
        return packs

    @stateless
    def pack_selected_samples(self, samples):
        return Tokens(
            __key__=",".join(one.__key__ for one in samples),
            __restore_key__=(),
            tokens=[token for one in samples for token in one.tokens],
            lengths=[len(one.tokens) for one in samples],
        )

    @stateless
    def batch(self, samples):
        return samples


def training(path, rank=0, world=1, batch_size=2, **more):
    config = WorkerConfig(rank=rank, world_size=world, num_workers=0)
    options = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "packing_buffer_size": 6, **more}
    return get_savable_loader(
        get_train_dataset(path, batch_size=batch_size, worker_config=config, task_encoder=Encoder(), **options)
    )


def validation(path, rank, world):
    config = WorkerConfig(rank=rank, world_size=world, num_workers=0)
    dataset = get_val_dataset(
        path, batch_size=2, packing_buffer_size=6, worker_config=config, task_encoder=Encoder(), limit=None
    )
    return get_savable_loader(dataset)


def rows(batches):
    return [(one.__key__, one.tokens, one.lengths) for batch in batches for one in batch]


def main(path):
    begun = training(path)
    batches = iter(begun)
    first = rows(next(batches) for _ in range(3))
    state = begun.save_state_rank()
    after = rows(next(batches) for _ in range(5))
    resumed = training(path)
    resumed.restore_state_rank(state)
    again = iter(resumed)
    checked = rows(validation(path, 0, 1))
    return {
        "validation": checked,
        "keys of two ranks": sorted(
            key for rank in range(2) for keys, _, _ in rows(validation(path, rank, 2)) for key in keys.split(",")
        ),
        "packs fit": all(sum(lengths) <= LENGTH or len(lengths) == 1 for _, _, lengths in first + after),
        "resumed": rows(next(again) for _ in range(5)) == after,
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1])["path"])))
