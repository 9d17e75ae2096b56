"""Convert images in parallel, merge the parts, train with a transform, evaluate on a local split.

program.py prepare ROOT
program.py ROOT STATE STEPS    with RANK, WORLD_SIZE and LOCAL_WORLD_SIZE
"""

import json
import os
import sys

import numpy as np
from streaming import LocalDataset, MDSWriter, StreamingDataLoader, StreamingDataset

COLUMNS = {"x": "ndarray:uint8:4,4", "y": "int", "meta": "json"}


def write_part(out: str, first: int, count: int, compression: str | None) -> None:
    rng = np.random.default_rng(first)
    with MDSWriter(out=out, columns=COLUMNS, compression=compression, hashes=["xxh64"], size_limit=2000) as writer:
        for number in range(first, first + count):
            image = rng.integers(0, 255, (4, 4), np.uint8)
            writer.write({"x": image, "y": number, "meta": {"path": f"{number}.png", "wide": bool(number % 2)}})


def prepare(root: str) -> None:
    from streaming.base.util import merge_index

    for part in range(4):
        write_part(f"{root}/train/{part}", 100 * part, 60, "zstd:3")
    merge_index(f"{root}/train")
    write_part(f"{root}/val", 1000, 21, None)  # a LocalDataset reads no compressed shards


class Images(StreamingDataset):
    """Pairs, as a vision trainer wants them."""

    def __init__(self, *, scale: float, **given) -> None:
        super().__init__(**given)
        self.scale = scale

    def get_item(self, sample_id: int, retry: int = 7):
        sample = super().get_item(sample_id, retry)
        return (sample["x"].astype(np.float32) * self.scale).sum(), sample["y"]


def main(root: str, state_file: str, steps: int) -> None:
    batch = 8 // int(os.environ["WORLD_SIZE"])
    dataset = Images(
        scale=0.5, local=f"{root}/train", batch_size=batch, shuffle=True, shuffle_algo="py1s", num_canonical_nodes=8
    )
    loader = StreamingDataLoader(dataset, batch_size=batch, num_workers=1)
    if os.path.exists(state_file):
        with open(state_file) as file:
            loader.load_state_dict(json.load(file))
    read = []
    for step, (images, labels) in enumerate(loader):
        if step == steps:
            break
        read.append([images.tolist(), labels.tolist()])
        state = loader.state_dict()
    if os.environ["RANK"] == "0":
        with open(state_file + ".new", "w") as file:
            json.dump(state, file)
    val = LocalDataset(f"{root}/val")
    seen = [[val[at]["y"], val[at]["meta"]["path"]] for at in (0, 7, 20)]
    print(json.dumps({"read": read, "state": state, "val": [len(val), seen]}))


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        prepare(sys.argv[2])
    else:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
