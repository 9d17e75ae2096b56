"""How many bytes do 1 to 8 hosts fetch for one epoch of a remote dataset, and are their global batches the same?"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import shards
from harness import DATA, PYTHON, Failed, Options, Result, Row, answer, child, limit

BATCH = 16
LANES = 8
WORLDS = {"blocks": (1, 2, 4, 8), "global": (1, 8)}
AT_MOST = 1.1
SHARD_BYTES = 1 << 20
KINDS = {"4 KB": shards.TOKEN_BYTES, "100 KB": shards.IMAGE_BYTES}


def run(_options: Options) -> Result:
    """Run each sample size, mode and number of hosts. Every host has its own cache."""
    rows: list[Row] = []
    for kind, size_bytes in KINDS.items():
        path = shards.samples(size_bytes, SHARD_BYTES)
        for mode, worlds in WORLDS.items():
            epochs = [child(PYTHON, __file__, "epoch", path=path, mode=mode, world=world) for world in worlds]
            if any(epoch["batches"] != epochs[0]["batches"] for epoch in epochs):
                raise Failed(f"{kind}, mode {mode}: the global batches differ")
            for world, epoch in zip(worlds, epochs, strict=True):
                hosts = f"{world} host{'s' if world > 1 else ''}"
                what = f"samples of {kind}, mode {mode}, {hosts}"
                fetched = limit(what, "× the dataset", [epoch["fetched"]], AT_MOST if mode == "blocks" else None)
                rows.append(fetched)
    return Result(
        "Bytes fetched by all hosts per epoch of remote MDS",
        rows,
        [
            "A dataset of 200 MB in shards of 1 MB. The hosts are simulated: each reads the batches of its rank from a "
            "local web server, through its own cache. All caches together can hold twice the dataset.",
            f"{LANES} lanes. The global batches are the same on any number of hosts, compared sample by sample.",
        ],
    )


def epoch(path: str, mode: str, world: int) -> dict[str, Any]:
    """Return the bytes fetched by all hosts relative to the dataset, and a digest of the global batches."""
    import hashlib

    import numpy as np

    from penstock.testing import FileServer

    files = {f"set/{file.name}": file.read_bytes() for file in Path(path).iterdir() if file.is_file()}
    total_bytes = sum(map(len, files.values()))
    count = 0
    with FileServer(files) as server:
        fetched_bytes, parts = 0, []
        for rank in range(world):
            read = _host(f"{server.url}/set", mode, rank, world, 2 * total_bytes // world)
            fetched_bytes += read["fetched_bytes"]
            parts.append(read["order"])
            count = len(read["order"])
    # Rank r has the positions r, r + world, …
    order = np.stack(parts, axis=1).reshape(-1, 16) if count else np.empty((0, 16), np.uint8)
    return {"fetched": fetched_bytes / total_bytes, "batches": hashlib.sha256(order.tobytes()).hexdigest()}


def _host(url: str, mode: str, rank: int, world: int, budget_bytes: int) -> dict[str, Any]:
    """Read one host's part of an epoch; return the bytes fetched and the first 16 bytes of each sample."""
    import numpy as np

    import penstock as ps
    from penstock.formats import get_format
    from penstock.store.cache import CachedStore
    from penstock.store.remote import RemoteStore, base_of
    from penstock.types import OpenOptions

    folder = DATA / f"host-{rank}"
    shutil.rmtree(folder, ignore_errors=True)
    store = CachedStore(RemoteStore(base_of(url)), str(folder), budget_bytes)
    source = get_format("mds").open(store, url, OpenOptions())
    stream = ps.Shuffle(source, seed=7, mode=mode, lanes=LANES)  # pyright: ignore[reportArgumentType]
    loader = ps.Loader(stream, BATCH, rank=rank, world=world, workers=0)
    heads: list[bytes] = []
    batches = iter(loader)
    for _ in range(len(source) // BATCH):
        heads += [one[:16] for one in next(batches)["tokens"]]
    shutil.rmtree(folder, ignore_errors=True)
    order = np.frombuffer(b"".join(heads), np.uint8).reshape(-1, 16)
    return {"fetched_bytes": store.stats().fetched_bytes, "order": order}


if __name__ == "__main__":
    answer(globals())
