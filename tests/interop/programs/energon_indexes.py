"""What `current_batch_index` and `current_sample_index` are in every function of a task encoder."""

import json
import sys

from megatron.energon import (
    Cooker,
    DefaultTaskEncoder,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)


@stateless
def cook(sample):
    config = WorkerConfig.active_worker_config
    seen = [["cook", config.active_worker_batch_index, config.active_worker_sample_index]]
    return TextSample(**basic_sample_keys(sample), text=seen)


class Plain(DefaultTaskEncoder):
    decoder = None
    cookers = (Cooker(cook),)

    def seen(self, where):
        return [where, self.current_batch_index, self.current_sample_index]

    @stateless
    def encode_sample(self, sample):
        sample.text.append(self.seen("encode"))
        return sample

    @stateless
    def batch(self, samples):
        return [*(one.text for one in samples), self.seen("batch")]

    def encode_batch(self, batch):
        return [*batch, self.seen("encode_batch")]


class Two(Plain):
    @stateless(restore_seeds=True)
    def encode_sample(self, sample):
        for _ in range(2):
            yield TextSample.derive_from(sample, text=[*sample.text, self.seen("encode")])


class AnyNumber(Plain):
    @stateless
    def encode_sample(self, sample):
        for _ in range(self.current_sample_index * 5 // 7 % 3):
            yield TextSample.derive_from(sample, text=[*sample.text, self.seen("encode")])


class Packs(Plain):
    def select_samples_to_pack(self, samples):
        seen, packs, start = self.seen("select"), [], 0
        while start < len(samples):
            size = (1, 3, 2, 4, 1)[(self.current_sample_index + len(packs)) % 5]
            packs.append(samples[start : start + size])
            start += size
        for pack in packs:
            pack[0].text.append(seen)
        return packs

    @stateless
    def pack_selected_samples(self, samples):
        return TextSample.derive_from(samples[0], text=[*(one.text for one in samples), self.seen("pack")])


class SomePacks(Packs):
    def select_samples_to_pack(self, samples):
        return super().select_samples_to_pack(samples)[:-1]


class EncodedAfterwards(Packs):
    encode_sample = DefaultTaskEncoder.encode_sample

    @stateless
    def preencode_sample(self, sample):
        sample.text.append(self.seen("preencode"))
        return sample

    @stateless
    def postencode_sample(self, sample):
        sample.text.append(self.seen("postencode"))
        return sample


class Groups(Plain):
    def batch_group_criterion(self, sample):
        sample.text.append(self.seen("group"))
        return self.current_sample_index * 7 // 5 % 3, None


ENCODERS = {one.__name__: one for one in (Plain, Two, AnyNumber, Packs, SomePacks, EncodedAfterwards, Groups)}


def loader(path, name, split="train", rank=0, world=1, workers=0, **more):
    encoder = ENCODERS[name]()
    config = WorkerConfig(rank=rank, world_size=world, num_workers=workers)
    more |= {"packing_buffer_size": 10} if isinstance(encoder, Packs) else {}
    more = {"worker_config": config, "batch_size": 3, "task_encoder": encoder, **more}
    if split == "val":
        return get_savable_loader(get_val_dataset(path, **more))
    return get_savable_loader(get_train_dataset(path, shuffle_buffer_size=None, max_samples_per_sequence=None, **more))


def main(path):
    found = {}
    for name in ENCODERS:
        found[name] = [batch for batch, _ in zip(loader(path, name), range(12), strict=False)]
        found[f"{name} in validation"] = list(loader(path, name, "val"))
        found[f"{name} once"] = list(loader(path, name, repeat=False))
    for rank in range(2):
        batches = loader(path, "Plain", "train", rank, 2, 2)
        found[f"rank {rank} of 2"] = [batch for batch, _ in zip(batches, range(12), strict=False)]
    return found


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1])["path"])))
