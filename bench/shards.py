"""Shard datasets for the benchmarks, written by Penstock. The interop tests check that the bytes match the original."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from data import made

PAYLOAD_BYTES = 200_000_000
TOKEN_BYTES, IMAGE_BYTES = 4096, 100_000
N_SHARDS, SHARD_SAMPLES = 10_000, 10_000
N_ROWS = 50_000


def payloads() -> Path:
    """Return 200 MB of random bytes, from which samples are cut."""

    def make(path: Path) -> None:
        path.write_bytes(np.random.default_rng(11).bytes(PAYLOAD_BYTES))

    return made("payloads.bin", make)


def samples(size_bytes: int, shard_bytes: int = 1 << 26) -> Path:
    """Return an MDS dataset with one column `tokens: bytes` and samples of `size_bytes`."""

    def make(folder: Path) -> None:
        import penstock as ps

        data = payloads().read_bytes()
        with ps.create(str(folder), format="mds", columns={"tokens": "bytes"}, size_limit=shard_bytes) as writer:
            for at in range(0, len(data) - size_bytes + 1, size_bytes):
                writer.write({"tokens": data[at : at + size_bytes]})

    return made(f"mds-{size_bytes}-{shard_bytes >> 20}mb", make)


def many_samples() -> Path:
    """Return 10^8 samples of one byte in 10,000 shards that are hard links to one file of 60 KB. The index has 3 MB."""
    return made("mds-many", lambda folder: _write_many(folder, N_SHARDS))


def few_samples() -> Path:
    """Return the same in 10 shards."""
    return made("mds-few", lambda folder: _write_many(folder, 10))


def rows() -> Path:
    """Return a JSON file of 50,000 rows `[id, text, score]`."""

    def make(path: Path) -> None:
        rng = np.random.default_rng(12)
        words = ["alpha", "beta", "gamma", "delta", "épsilon", "zeta", "eta", "theta"]
        lengths, picks = rng.integers(10, 60, N_ROWS).tolist(), rng.integers(0, 8, 1 << 20).tolist()
        scores = rng.random(N_ROWS).tolist()
        made_rows: list[Any] = []
        for number, length in enumerate(lengths):
            at = number * 17 % (1 << 19)
            text = " ".join(words[pick] for pick in picks[at : at + length])
            made_rows.append([number, text, scores[number]])
        path.write_text(json.dumps(made_rows))

    return made("rows.json", make)


def table(format: str) -> Path:
    """Return the rows as a folder of shards."""

    def make(folder: Path) -> None:
        import penstock as ps

        columns = {"id": "int", "text": "str", "score": "float"}
        with ps.create(str(folder), format=format, columns=columns) as writer:
            for number, text, score in json.loads(rows().read_text()):
                writer.write({"id": number, "text": text, "score": score})

    return made(f"rows-{format}", make)


def drop_pages(folder: Path) -> None:
    """Drop the files of a folder from the page cache."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _write_many(folder: Path, n_shards: int) -> None:
    import penstock as ps

    one = folder.with_name(f"{folder.name}.one")
    with ps.create(str(one), format="mds", columns={"x": "uint8"}) as writer:
        for number in range(SHARD_SAMPLES):
            writer.write({"x": number % 251})
    entry = json.loads((one / "index.json").read_text())["shards"][0]
    folder.mkdir()
    entries: list[Any] = []
    for number in range(n_shards):
        name = f"shard.{number:05}.mds"
        os.link(one / "shard.00000.mds", folder / name)
        entries.append({**entry, "raw_data": {**entry["raw_data"], "basename": name}})
    (folder / "index.json").write_text(json.dumps({"shards": entries, "version": 2}, sort_keys=True))
    for path in one.iterdir():
        path.unlink()
    one.rmdir()
