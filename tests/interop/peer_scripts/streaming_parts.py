"""What functions of `streaming.base`'s own modules give: run on the original, and read with ours in its place."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

import numpy as np

ALGORITHMS = ("naive", "py1s", "py2s", "py1br", "py1e")


def main(package: str = "streaming") -> dict[str, Any]:
    """By the modules of one of the two."""
    compression, hashing, shuffle = (
        import_module(f"{package}.base.{name}") for name in ("compression", "hashing", "shuffle")
    )
    compressions, hashes = sorted(compression.get_compressions()), sorted(hashing.get_hashes())
    found: dict[str, Any] = {
        "compressions": compressions,
        "extensions": [compression.get_compression_extension(one) for one in compressions],
        "unknown": [compression.is_compression(one) for one in (None, "zstd:99", "gz:", "lz")],
        "none": [compression.compress(None, b"ab").hex(), compression.decompress(None, b"ab").hex()],
        "packed": [
            compression.decompress(one, compression.compress(one, b"abc" * 99)).hex()
            for one in ("br", "bz2:3", "gz:0", "snappy", "zstd:7")
        ],
        "hashes": {one: hashing.get_hash(one, b"abc") for one in hashes},
        "no hash": hashing.is_hash("crc32"),
        "orders": [
            shuffle.get_shuffle(one, np.array([10, 7, 30, 3]), 2, 9, epoch, 40).tolist()
            for one in ALGORITHMS
            for epoch in range(2)
        ],
        "refused": [],
    }
    for call in (compression.compress, compression.decompress, hashing.get_hash):
        try:
            call("no", b"")
        except ValueError as error:
            found["refused"].append(str(error)[:18])
    return found


if __name__ == "__main__":
    print()
    print(json.dumps(main(**json.loads(sys.argv[1]))))
