"""A column of its own encoding, rows in CSV and JSON beside it, batches of one stream each, shards looked at by number.

program.py prepare ROOT
program.py ROOT STATE STEPS    with RANK, WORLD_SIZE and LOCAL_WORLD_SIZE
"""

import json
import os
import sys

import numpy as np
from streaming import CSVWriter, JSONWriter, MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from streaming.base.format.mds.encodings import Encoding, _encodings


class Packed(Encoding):
    """uint16 ids with their differences stored."""

    def encode(self, obj) -> bytes:
        self._validate(obj, np.ndarray)
        return np.diff(obj, prepend=0).astype(np.int16).tobytes()

    def decode(self, data: bytes):
        return np.cumsum(np.frombuffer(data, np.int16)).astype(np.int64)


_encodings["packed"] = Packed


def prepare(root: str) -> None:
    with MDSWriter(out=f"{root}/ids", columns={"ids": "packed", "n": "int"}, size_limit=900) as out:
        for number in range(120):
            out.write({"ids": np.arange(number, number + 5), "n": number})
    for kind, name in ((CSVWriter, "csv"), (JSONWriter, "json")):
        with kind(out=f"{root}/{name}", columns={"n": "int", "word": "str"}, size_limit=500) as out:
            for number in range(70):
                out.write({"n": 1000 + number, "word": f"w{number}"})


def together(samples):
    return {"n": [one["n"] for one in samples], "sum": [int(np.sum(one.get("ids", 0))) for one in samples]}


def main(root: str, state_file: str, steps: int) -> None:
    batch = 6 // int(os.environ["WORLD_SIZE"])
    streams = [
        Stream(local=f"{root}/ids", repeat=1.5),
        Stream(local=f"{root}/csv"),
        Stream(local=f"{root}/json", choose=40),
    ]
    dataset = StreamingDataset(
        streams=streams, batch_size=batch, shuffle=True, batching_method="per_stream", num_canonical_nodes=2
    )
    loader = StreamingDataLoader(dataset, batch_size=batch, collate_fn=together)
    if os.path.exists(state_file):
        with open(state_file) as file:
            loader.load_state_dict(json.load(file))
    read = []
    for step, found in enumerate(loader):
        if step == steps:
            break
        read.append([found["n"], found["sum"]])
        state = loader.state_dict()
    if os.environ["RANK"] == "0":
        with open(state_file + ".new", "w") as file:
            json.dump(state, file)
    units, drawn = dataset.resample_streams(0)
    shards = [[one.samples, one.raw_data.bytes, one.compression] for one in dataset.shards]
    facts = {
        "shards": shards,
        "units": units.tolist(),
        "drawn": drawn.tolist(),
        "per": dataset.samples_per_shard.tolist(),
    }
    print(json.dumps({"read": read, "state": state, **facts, "first": dataset.shards[0][0]["ids"].tolist()}))


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        prepare(sys.argv[2])
    else:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
