"""Runs inside mosaicml-streaming's environment: reads folders with its own classes, and goes on from states.

Gets {"streams", "options", "workers", "steps", "state"}; the last line it prints is {"epochs", "batches", "state",
"rest", "next"}.
"""

import json
import sys
import warnings
from itertools import islice
from typing import Any

from streaming import Stream, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory


def dataset_of(given: dict[str, Any]) -> StreamingDataset:
    return StreamingDataset(streams=[Stream(**one) for one in given["streams"]], **given["options"])


def ids_of(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def main(given: dict[str, Any]) -> dict[str, Any]:
    batch = given["options"]["batch_size"]
    dataset = dataset_of(given)
    epochs = [[sample["id"] for sample in dataset] for _ in range(2)]
    loader = StreamingDataLoader(dataset_of(given), batch_size=batch, num_workers=given["workers"])
    if given["state"] is not None:
        loader.load_state_dict(given["state"])
    batches = iter(loader)
    read = ids_of(islice(batches, given["steps"]))
    state = loader.state_dict()
    rest = ids_of(batches)
    return {"epochs": epochs, "batches": read, "state": state, "rest": rest, "next": ids_of(islice(iter(loader), 3))}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    clean_stale_shared_memory()
    print(json.dumps(main(json.loads(sys.argv[1]))))
