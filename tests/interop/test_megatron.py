"""Penstock against the real megatron-core, in both directions, on fresh input: they read what we write, we read what
they write, and the same documents give the same bytes."""

from __future__ import annotations

import os
import random
from itertools import chain
from pathlib import Path
from typing import Any

import peers
import pytest

import penstock as ps

LIMITS = {"uint8": 1 << 8, "int8": 1 << 7, "int16": 1 << 15, "int32": 1 << 31, "int64": 1 << 32, "uint16": 1 << 16}


def theirs(call: str, **arguments: Any) -> Any:
    """Run the script with megatron-core's interpreter."""
    return peers.run_script("megatron", peers.SCRIPTS / "megatron_dataset.py", {"call": call, **arguments})


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(f"{os.environ.get('PENSTOCK_INTEROP_SEED', '0')}:{request.node.name}")


def documents(rng: random.Random, limit: int, count: int = 60) -> list[list[int]]:
    """Documents of very different lengths, empty ones among them, with the smallest and the largest id."""
    lengths = [rng.choice((0, 1, 2, 5, rng.randrange(400))) for _ in range(count)]
    return [[rng.choice((0, limit - 1, rng.randrange(limit))) for _ in range(length)] for length in lengths] + [[1, 2]]


def bytes_of(prefix: Path) -> list[bytes]:
    return [Path(f"{prefix}{suffix}").read_bytes() for suffix in (".bin", ".idx")]


@pytest.mark.parametrize("dtype", sorted(LIMITS))
def test_same_documents_same_bytes(tmp_path: Path, rng: random.Random, dtype: str) -> None:
    docs = documents(rng, LIMITS[dtype])
    theirs("write", prefix=tmp_path / "theirs", dtype=dtype, documents=[[doc] for doc in docs], modes=None)
    with ps.create(tmp_path / "ours", format="megatron", dtype=dtype) as writer:
        for doc in docs:
            writer.write({"tokens": doc})
    assert bytes_of(tmp_path / "ours") == bytes_of(tmp_path / "theirs")
    read = theirs("read", prefix=tmp_path / "ours")
    assert read["sequences"] == docs
    assert read["dtype"] == dtype
    assert [sample["tokens"].tolist() for sample in ps.open(tmp_path / "theirs")] == docs
    assert ps.verify(tmp_path / "theirs", depth="full") == []


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floats(tmp_path: Path, rng: random.Random, dtype: str) -> None:
    docs = documents(rng, 1 << 24)
    theirs("write", prefix=tmp_path / "theirs", dtype=dtype, documents=[[doc] for doc in docs], modes=None)
    with ps.create(tmp_path / "ours", format="megatron", dtype=dtype) as writer:
        for doc in docs:
            writer.write({"tokens": doc})
    assert bytes_of(tmp_path / "ours") == bytes_of(tmp_path / "theirs")
    assert [sample["tokens"].tolist() for sample in ps.open(tmp_path / "theirs")] == docs


def test_documents_of_several_sequences_and_modes(tmp_path: Path, rng: random.Random) -> None:
    parts = documents(rng, 1 << 31)
    nested = [[parts.pop() for _ in range(min(len(parts), rng.randrange(4)))] for _ in range(30)]
    modes = [rng.randrange(-3, 4) for document in nested for _ in document]
    for name, given in (("plain", None), ("modes", modes)):
        theirs("write", prefix=tmp_path / name, dtype="int32", documents=nested, modes=given)
        source: Any = ps.open(tmp_path / name)
        assert [sample["tokens"].tolist() for sample in source] == [[*chain.from_iterable(one)] for one in nested]
        told = theirs("read", prefix=tmp_path / name, multimodal=given is not None)
        assert source.document_indices.tolist() == told["documents"]
        assert source.sequence_lengths.tolist() == told["lengths"]
        assert (None if source.modes is None else source.modes.tolist()) == told["modes"]
        assert ps.verify(tmp_path / name, depth="full") == []


def test_our_modes(tmp_path: Path, rng: random.Random) -> None:
    docs = documents(rng, 1000)
    modes = [rng.randrange(-128, 128) for _ in docs]
    with ps.create(tmp_path / "ours", format="megatron", dtype="int32", modes=modes) as writer:
        for doc in docs:
            writer.write({"tokens": doc})
    read = theirs("read", prefix=tmp_path / "ours", multimodal=True)
    assert (read["sequences"], read["modes"]) == (docs, modes)


def test_merged_by_them(tmp_path: Path, rng: random.Random) -> None:
    parts = [documents(rng, 5000, 20) for _ in range(3)]
    for number, docs in enumerate(parts):
        with ps.create(tmp_path / str(number), format="megatron", vocab_size=5000) as writer:
            for doc in docs:
                writer.write({"tokens": doc})
    theirs("merge", prefix=tmp_path / "all", dtype="uint16", parts=[str(tmp_path / str(n)) for n in range(3)])
    merged: Any = ps.open(tmp_path / "all")
    assert [sample["tokens"].tolist() for sample in merged] == [doc for docs in parts for doc in docs]
    with ps.create(tmp_path / "ours", format="megatron", vocab_size=5000) as writer:
        for docs in parts:
            writer.write_batch({"tokens": docs})
    assert bytes_of(tmp_path / "ours") == bytes_of(tmp_path / "all")


def test_nothing_at_all(tmp_path: Path) -> None:
    theirs("write", prefix=tmp_path / "theirs", dtype="uint16", documents=[], modes=None)
    with ps.create(tmp_path / "ours", format="megatron", dtype="uint16"):
        pass
    assert bytes_of(tmp_path / "ours") == bytes_of(tmp_path / "theirs")


def test_dtype_rule(tmp_path: Path) -> None:
    sizes = [2, 256, 257, 32_000, 65_499, 65_500, 65_536, 65_537, 128_000]
    for size, name in zip(sizes, theirs("rule", sizes=sizes), strict=True):
        with ps.create(tmp_path / str(size), format="megatron", vocab_size=size) as writer:
            writer.write({"tokens": [1]})
        source: Any = ps.open(tmp_path / str(size))
        assert source.header.kind.name == name


def test_what_repair_makes(tmp_path: Path, rng: random.Random) -> None:
    docs = [[*(token % 90 + 1 for token in doc), 0] for doc in documents(rng, 5000)]
    theirs("write", prefix=tmp_path / "theirs", dtype="uint16", documents=[[doc] for doc in docs], modes=None)
    before = bytes_of(tmp_path / "theirs")
    os.unlink(tmp_path / "theirs.idx")
    done = ps.repair(tmp_path / "theirs", format="megatron", layout="uint16", eos_id=0, write=True)
    assert [one.done for one in done] == [True]
    assert bytes_of(tmp_path / "theirs") == before
