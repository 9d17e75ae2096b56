"""The real StreamingDataset and StreamingDataLoader over folders that our writers made, beside ours."""

from __future__ import annotations

import os
import random
from itertools import islice
from typing import Any

import peers
import pytest

from penstock.compat.streaming import CSVWriter, JSONWriter, MDSWriter, Stream, StreamingDataLoader, StreamingDataset

SCRIPT = peers.SCRIPTS / "streaming_dataset.py"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    rng = random.Random(os.environ.get("PENSTOCK_INTEROP_SEED", "0"))
    root = tmp_path_factory.mktemp("streaming")
    made: list[str] = []
    for number, writer in enumerate((MDSWriter, CSVWriter, JSONWriter)):
        folder = str(root / str(number))
        columns = {"id": "int", "text": "str"}
        with writer(columns=columns, out=folder, size_limit=rng.randint(800, 3000), hashes=["xxh64"]) as out:
            for place in range(rng.randint(80, 300)):
                out.write({"id": 1000 * number + place, "text": "ä" * rng.randrange(40)})
        made.append(folder)
    return made


CASES: list[tuple[dict[str, Any], int]] = [
    ({"batch_size": 7, "shuffle": True}, 0),
    ({"batch_size": 8, "shuffle": True, "shuffle_algo": "py1s", "batching_method": "stratified"}, 2),
    ({"batch_size": 5, "shuffle": False, "batching_method": "per_stream", "num_canonical_nodes": 2}, 2),
    ({"batch_size": 6, "shuffle": True, "shuffle_algo": "py1br", "shuffle_block_size": 50, "epoch_size": 333}, 2),
]


@pytest.mark.parametrize(("options", "workers"), CASES)
def test_datasets(folders: list[str], options: dict[str, Any], workers: int) -> None:
    rng = random.Random(os.environ.get("PENSTOCK_INTEROP_SEED", "0"))
    options = {**options, "shuffle_seed": rng.randrange(1000)}
    streams = [{"local": folder, "proportion": rng.choice([1, 2, 3])} for folder in folders]
    steps = rng.randint(2, 9)
    given = {"streams": streams, "options": options, "workers": workers, "steps": steps, "state": None}
    theirs = peers.run_script("streaming", SCRIPT, given)

    def dataset() -> StreamingDataset:
        return StreamingDataset(streams=[Stream(**stream) for stream in streams], **options)

    def loader() -> StreamingDataLoader:
        return StreamingDataLoader(dataset(), batch_size=options["batch_size"], num_workers=workers)

    one = dataset()
    assert [[sample["id"] for sample in one] for _ in range(2)] == theirs["epochs"]
    begun = loader()
    batches = iter(begun)
    assert ids_of(islice(batches, steps)) == theirs["batches"]
    assert begun.state_dict() == theirs["state"]
    assert ids_of(batches) == theirs["rest"]

    # From the original's state here, and from ours there.
    resumed = loader()
    resumed.load_state_dict(theirs["state"])
    batches = iter(resumed)
    going_on = ids_of(islice(batches, 2))
    state = resumed.state_dict()
    rest, after = ids_of(batches), ids_of(islice(iter(resumed), 3))
    back = peers.run_script("streaming", SCRIPT, {**given, "state": theirs["state"], "steps": 2})
    assert (back["batches"], back["state"], back["rest"], back["next"]) == (going_on, state, rest, after)
    assert after == theirs["next"]


def ids_of(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]
