"""Merged indexes: ours are read by the real mosaicml-streaming, and its own here."""

from __future__ import annotations

import hashlib
import json
import os
import random
from pathlib import Path
from typing import Any

import peers

import penstock as ps
from penstock.compat.streaming import merge_index

SCRIPT = peers.SCRIPTS / "streaming_merge.py"


def test_merged_indexes(tmp_path: Path) -> None:
    rng = random.Random(os.environ.get("PENSTOCK_INTEROP_SEED", "0"))
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    expected: list[list[Any]] = []
    for part in range(12):  # more than ten: folder 10 comes after 9 here, and after 1 there
        options = {"compression": rng.choice([None, "zstd"]), "hashes": rng.choice([[], ["xxh64"]])}
        with ps.create(
            str(ours / str(part)), format="mds", columns={"id": "int", "data": "bytes"}, size_limit=400, **options
        ) as writer:
            for number in range(rng.randint(1, 20)):
                data = rng.randbytes(rng.randint(0, 90))
                writer.write({"id": 100 * part + number, "data": data})
                expected.append([100 * part + number, hashlib.sha1(data).hexdigest()])
    merge_index(str(ours))
    for part in range(12):  # LocalDataset decompresses nothing
        decompress(ours / str(part))
    folders = [str(theirs / str(part)) for part in range(12)]
    read = peers.run_script("streaming", SCRIPT, {"theirs": folders, "into": str(theirs), "read": [ours, theirs]})
    assert read[0] == expected == digests(ours)
    assert read[1] == digests(theirs)
    assert [one for one in ps.verify(str(theirs), depth="full") if one.severity == "error"] == []
    # The same entries, whatever the order of the folders.
    merged = json.loads((theirs / "index.json").read_text())["shards"]
    (theirs / "index.json").unlink()
    merge_index(str(theirs))
    own = json.loads((theirs / "index.json").read_text())["shards"]
    assert sorted(own, key=place) == sorted(merged, key=place)
    assert [sample["id"] for sample in ps.open(str(theirs))] == sorted(one[0] for one in read[1])


def decompress(folder: Path) -> None:
    import zstandard

    for path in folder.glob("*.zstd"):
        path.with_suffix("").write_bytes(zstandard.ZstdDecompressor().decompress(path.read_bytes()))


def digests(folder: Path) -> list[list[Any]]:
    return [[sample["id"], hashlib.sha1(sample["data"]).hexdigest()] for sample in ps.open(str(folder))]


def place(entry: dict[str, Any]) -> tuple[int, str]:
    folder, name = entry["raw_data"]["basename"].split("/")
    return int(folder), name
