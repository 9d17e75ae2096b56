"""flat-tokens groups against zarr 2, which seqax's tools run on, and tensorstore: both ways, on fresh input."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import peers
import pytest

import penstock as ps

LAYOUTS: dict[str, dict[str, Any]] = {
    "raw": {},
    "blosc": {"compressor": "blosc"},
    "blosc-zstd": {"compressor": "blosc-zstd"},
    "zstd": {"compressor": "zstd"},
    "seqax": {"compressor": "seqax"},
    "raw 3": {"zarr_format": 3},
    "blosc 3": {"zarr_format": 3, "compressor": "blosc"},
    "zstd 3": {"zarr_format": 3, "compressor": "zstd"},
    "shards": {"zarr_format": 3, "chunk_tokens": 500, "shard_tokens": 2000},
    "shards of blosc": {"zarr_format": 3, "chunk_tokens": 500, "shard_tokens": 2000, "compressor": "blosc"},
}


def peer_script(arguments: Any) -> None:
    peers.run_script("zarr", peers.SCRIPTS / "zarr_groups.py", arguments)


@pytest.fixture(scope="module")
def documents() -> list[list[int]]:
    """Fresh ones, some of them empty."""
    seed = int(os.environ.get("PENSTOCK_INTEROP_SEED", "0"))
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 1 << 31, rng.integers(0, 120) * rng.integers(0, 2)).tolist() for _ in range(400)]


def encoded_of(documents: list[list[int]]) -> dict[str, Any]:
    """Arrays of a group, written down once more."""
    encoded = [2 * token + (place == 0) for document in documents for place, token in enumerate(document)]
    starts = np.cumsum([0, *map(len, documents)])
    limit = max(token for document in documents for token in document)
    return {"encoded": np.array(encoded, np.uint32), "starts": starts.astype(np.uint64), "limit": limit}


def test_they_read_what_we_write(documents: list[list[int]], tmp_path: Path) -> None:
    expected = encoded_of(documents)
    jobs: list[tuple[str, str, str]] = []
    for name, options in LAYOUTS.items():
        path = tmp_path / name
        chosen = {"chunk_tokens": 1000, "chunk_starts": 90} | options
        with ps.create(path, format="flat-tokens", **chosen) as writer:
            for document in documents:
                writer.write({"tokens": np.array(document, np.uint32)})
        if not name.endswith("3") and "shards" not in name:
            jobs.append((str(path), f"{path}.zarr.npz", "zarr"))
        if name != "seqax":  # tensorstore knows no delta filter, seqax's own groups included
            jobs.append((str(path), f"{path}.tensorstore.npz", "tensorstore"))
    peer_script({"read": jobs})
    assert len(jobs) == 14
    for _, npz, by in jobs:
        with np.load(npz) as found:
            assert (found["encoded"] == expected["encoded"]).all(), npz
            assert (found["starts"] == expected["starts"]).all(), npz
            assert found["encoded"].dtype == np.uint32
            assert found["starts"].dtype == np.uint64
            assert by == "tensorstore" or int(found["limit"]) == expected["limit"]


def test_we_read_what_they_write(documents: list[list[int]], tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", **encoded_of(documents))
    profiles = ("raw", "seqax", "zstd")
    peer_script({"write": [(str(tmp_path / "in.npz"), str(tmp_path / one), one) for one in profiles]})
    for profile in profiles:
        source = ps.open(tmp_path / profile)
        assert [source[index]["tokens"].tolist() for index in range(len(source))] == documents
        assert ps.verify(tmp_path / profile, depth="full") == []


def test_they_open_a_dataset_of_two_splits(documents: list[list[int]], tmp_path: Path) -> None:
    path = tmp_path / "set.zarr"
    for split in ("train", "validation"):
        with ps.create(path, format="flat-tokens", split=split, chunk_tokens=1000) as writer:
            for document in documents:
                writer.write({"tokens": document})
    peer_script({"read": [(str(path / one), str(tmp_path / f"{one}.npz"), "zarr") for one in ("train", "validation")]})
    for split in ("train", "validation"):
        with np.load(tmp_path / f"{split}.npz") as found:
            assert (found["encoded"] == encoded_of(documents)["encoded"]).all()
