"""Train on a mix of books, web text and code; stop in the middle of an epoch; go on with other ranks.

program.py DATA STATE STEPS    with RANK, WORLD_SIZE and LOCAL_WORLD_SIZE
"""

import json
import os
import sys

from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset

GLOBAL_BATCH = 12
MIX = {"books": 2.0, "web": 5.0, "code": 1.0}


def prepare(root: str) -> None:
    for number, (name, count) in enumerate((("books", 170), ("web", 410), ("code", 90))):
        columns = {"id": "int", "text": "str"}
        with MDSWriter(out=f"{root}/{name}", columns=columns, size_limit="2kb", hashes=["sha1"]) as out:
            for sample in range(count):
                out.write({"id": 1000 * number + sample, "text": f"{name} " * (sample % 9)})


class Texts(StreamingDataset):
    """Text as ids, the way a trainer's own dataset makes them."""

    def __getitem__(self, at):
        sample = super().__getitem__(at)
        return {"id": sample["id"], "length": len(sample["text"].split())}


def main(root: str, state_file: str, steps: int) -> None:
    world = int(os.environ["WORLD_SIZE"])
    local = GLOBAL_BATCH // world
    dataset = Texts(
        streams=[Stream(local=f"{root}/{name}", proportion=share) for name, share in MIX.items()],
        epoch_size=480,
        shuffle=True,
        shuffle_algo="py1e",
        shuffle_seed=17,
        num_canonical_nodes=4,
        batch_size=local,
        batching_method="stratified",
        predownload=64,
    )
    loader = StreamingDataLoader(dataset, batch_size=local, num_workers=2, drop_last=True)
    if os.path.exists(state_file):
        with open(state_file) as file:
            loader.load_state_dict(json.load(file))
    read = []
    for step, batch in enumerate(loader):
        if step == steps:
            break
        read.append([batch["id"].tolist(), batch["length"].tolist()])
        state = loader.state_dict()
    if os.environ["RANK"] == "0":
        with open(state_file + ".new", "w") as file:
            json.dump(state, file)
    print(json.dumps({"read": read, "state": state, "size": dataset.size, "length": len(dataset)}))


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        prepare(sys.argv[2])
    else:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
