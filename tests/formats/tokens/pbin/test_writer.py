"""Writing packed files: byte for byte what the original writes, and a side file that is true."""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from penstock._kinds import TokenParts
from penstock.abc import SupportsRuns
from penstock.codec.hashes import DocumentDigest, hash_blocks
from penstock.errors import ConfigError, TooLarge, Truncated
from penstock.formats.tokens.pbin import FORMAT
from penstock.formats.tokens.pbin.source import PbinSource
from penstock.formats.tokens.pbin.writer import PbinWriter
from penstock.store.local import LocalStore
from penstock.store.memory import MemoryStore
from penstock.store.side_file import read_side_file
from penstock.testing.strategies import token_documents
from penstock.types import OpenOptions

DOCS = [[300, 2, 7], [7], [], [65_535, 0, 1, 7], [5, 7]]
GOLDEN = ["docs.bpe2", "docs.small1", "docs.word4", "chunk_0_of_3_seed7", "writer_t1", "writer_t4"]


def create(path: Path | str, *, overwrite: bool = False, **options: Any) -> PbinWriter:
    return FORMAT.create(LocalStore(), str(path), options, overwrite=overwrite)


def one_by_one(writer: PbinWriter, source: PbinSource, _: str) -> None:
    for index in range(len(source)):
        writer.write({"tokens": source[index]["tokens"].tolist()})


def batches(writer: PbinWriter, source: PbinSource, _: str) -> None:
    for first in range(0, len(source), 7):
        writer.write_batch(source.get_batch(range(first, min(first + 7, len(source)))))


def runs(writer: PbinWriter, source: PbinSource, _: str) -> None:
    starts = source.doc_starts
    for first in range(0, len(source), 40):
        some = starts[first : first + 41]
        writer.write_run(source.tokens(int(some[0]), int(some[-1])).astype(np.int64), np.diff(some))


def parts(writer: PbinWriter, source: PbinSource, path: str) -> None:
    starts = source.doc_starts
    half = len(source) // 2
    for some in (starts[: half + 1], starts[half:]):
        tokens = source.tokens(int(some[0]), int(some[-1]))
        writer.write_part(path, 12 + int(some[0]) * tokens.itemsize, np.diff(some), int(tokens.max()))


@pytest.mark.parametrize("way", [one_by_one, batches, runs, parts])
@pytest.mark.parametrize("name", GOLDEN)
def test_golden(golden: Path, tmp_path: Path, name: str, way: Callable[..., None]) -> None:
    path = golden / "modalities" / "pbin" / f"{name}.pbin"
    source = FORMAT.open(LocalStore(), str(path), OpenOptions())
    with create(tmp_path / "a.pbin", token_bytes=source.dtype.itemsize) as writer:
        way(writer, source, str(path))
    assert (tmp_path / "a.pbin").read_bytes() == path.read_bytes()


@given(docs=token_documents(max_docs=30))
@settings(deadline=None, max_examples=40)
def test_bytes_are_header_tokens_and_pickle(docs: list[Any]) -> None:
    store = MemoryStore()
    with FORMAT.create(store, "a", {"token_bytes": 2}, overwrite=False) as writer:
        writer.write_batch({"tokens": docs})
    data = b"".join(doc.astype("<u2").tobytes() for doc in docs)
    sizes = [2 * len(doc) for doc in docs]
    index = [(sum(sizes[:i]), size) for i, size in enumerate(sizes)]
    assert store.files["a"] == struct.pack("<QI", len(data), 2) + data + pickle.dumps(index, 4)


def test_many_documents(tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).integers(0, 5, 200_000)
    with create(tmp_path / "a.pbin", token_bytes=1) as writer:
        for first in range(0, len(lengths), 150):
            some = lengths[first : first + 150]
            writer.write_run(np.ones(some.sum(), np.uint8), some)
    offsets = np.cumsum(lengths) - lengths
    index = list(zip(offsets.tolist(), lengths.tolist(), strict=True))
    assert (tmp_path / "a.pbin").read_bytes()[12 + int(lengths.sum()) :] == pickle.dumps(index, 4)


def test_nothing_written_is_an_empty_file_that_opens(tmp_path: Path) -> None:
    with create(tmp_path / "a.pbin", token_bytes=2):
        pass
    assert (tmp_path / "a.pbin").read_bytes() == b"\0" * 8 + b"\2\0\0\0\x80\x04]\x94."
    source = FORMAT.open(LocalStore(), str(tmp_path / "a.pbin"), OpenOptions())
    assert (len(source), source.num_tokens) == (0, 0)
    assert source.gather(np.empty(0, np.int64), 5).shape == (0, 5)


def test_side_file(tmp_path: Path) -> None:
    path = str(tmp_path / "a.pbin")
    given_options = {"inputs": {"x.jsonl": "00"}, "options": {"field": "text"}, "tokenizer": "t", "eos_id": 7}
    with create(path, vocab_size=65_536, **given_options) as writer:
        writer.write_batch({"tokens": DOCS})
        manifest = writer.commit()
    assert read_side_file(LocalStore(), path + ".penstock", path) == manifest
    data = Path(path).read_bytes()
    digest = DocumentDigest()
    digest.update(np.concatenate(DOCS).astype(np.uint16), np.array([len(doc) for doc in DOCS]))
    assert manifest.digest == digest.hexdigest()
    assert manifest.block_digests == {"data": hash_blocks(np.frombuffer(data, np.uint8))}
    assert (manifest.num_samples, manifest.num_tokens, manifest.max_token_id) == (5, 10, 65_535)
    assert (manifest.size_bytes, manifest.eos_id, manifest.tokenizer) == (len(data), 7, "t")
    assert manifest.inputs == {"x.jsonl": "00"}
    assert manifest.options == {"field": "text", "token_bytes": 2, "vocab_size": 65_536}
    assert manifest.tool.startswith("penstock ")


def test_digests_of_more_than_a_block(tmp_path: Path) -> None:
    path = str(tmp_path / "a.pbin")
    with create(path, token_bytes=4) as writer:
        for number in range(9):
            writer.write_run(np.full(2_000_000, number, np.uint32), np.array([2_000_000]))
        manifest = writer.commit()
    assert manifest.size_bytes > 1 << 26
    assert manifest.block_digests["data"] == hash_blocks(LocalStore().mmap(path))
    assert read_side_file(LocalStore(), path + ".penstock", path) is not None


def test_width_follows_the_vocabulary(tmp_path: Path) -> None:
    for number, (vocab_size, token_bytes) in enumerate([(256, 1), (257, 2), (65_536, 2), (65_537, 4), (1, 4)]):
        path = tmp_path / str(number)
        with create(path, vocab_size=vocab_size) as writer:
            writer.write({"tokens": [0]})
        assert path.read_bytes()[8] == token_bytes


def test_ids_are_checked_against_the_vocabulary(tmp_path: Path) -> None:
    with create(tmp_path / "a.pbin", token_bytes=4, vocab_size=100) as writer:
        writer.write({"tokens": [99]})
        with pytest.raises(TooLarge, match="document 2") as caught:
            writer.write_batch({"tokens": [[1], [2, 100]]})
        assert caught.value.found == 100
        with pytest.raises(TooLarge, match="document 1"):
            writer.write({"tokens": [3, -1]})
        writer.write({"tokens": [5]})
    source = FORMAT.open(LocalStore(), str(tmp_path / "a.pbin"), OpenOptions())
    assert source.tokens(0, source.num_tokens).tolist() == [99, 5]


def test_options(tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [
        {},
        {"token_bytes": 3},
        {"token_bytes": 0},
        {"vocab_size": 0},
        {"token_bytes": 2, "eos_id": 1 << 16},
        {"token_bytes": 2, "eos_id": -1},
        {"token_bytes": 2, "compression": "zstd"},
    ]
    for options in wrong:
        with pytest.raises(ConfigError):
            create(tmp_path / "new" / "a.pbin", **options)
    assert not (tmp_path / "new").exists()
    create(tmp_path / "a.pbin", token_bytes=2, eos_id=None, tokenizer=None).abort()


def test_parts(tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(b"\1\0\2\0")
    with create(tmp_path / "a.pbin", token_bytes=2) as writer:
        assert isinstance(writer, TokenParts)
        assert isinstance(writer, SupportsRuns)
        with pytest.raises(TooLarge):
            writer.write_part(str(part), 0, np.array([2]), 65_536)
        with pytest.raises(Truncated):
            writer.write_part(str(part), 2, np.array([1, 1]), 2)
        writer.write_part(str(part), 0, np.empty(0, np.int64), -1)
        writer.write_part(str(part), 2, np.array([1, 0]), 2)
    source = FORMAT.open(LocalStore(), str(tmp_path / "a.pbin"), OpenOptions())
    assert [source[0]["tokens"].tolist(), source[1]["tokens"].tolist()] == [[2], []]
    assert source.manifest is not None
    assert source.manifest.max_token_id == 2


def test_a_failed_write_closes_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = create(tmp_path / "a.pbin", token_bytes=2)
    writer.write({"tokens": [1]})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(writer._staged), "write", full)
    with pytest.raises(OSError, match="No space"):
        writer.write({"tokens": [2]})
    with pytest.raises(ConfigError, match="closed"):
        writer.commit()
    assert os.listdir(tmp_path) == []


def test_a_lost_race_leaves_the_winner_and_its_side_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pbin"
    with create(tmp_path / "winner.pbin", token_bytes=2) as winner:
        winner.write({"tokens": [1, 2]})
    late = create(path, token_bytes=2)
    late.write({"tokens": [9]})
    for suffix in ("", ".penstock"):  # copied there by somebody else
        os.rename(f"{tmp_path}/winner.pbin{suffix}", f"{path}{suffix}")
    with pytest.raises(ConfigError):
        late.commit()
    source = FORMAT.open(LocalStore(), str(path), OpenOptions())
    assert source.manifest is not None
    assert source[0]["tokens"].tolist() == [1, 2]


def test_a_part_whose_ids_are_looked_at(tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(np.array([1, 250, 99], "<u2").tobytes())
    with create(tmp_path / "a.pbin", token_bytes=2) as writer:
        writer.write_part(str(part), 0, np.array([1, 2]), None)
        manifest = writer.commit()
    assert manifest.max_token_id == 250
    with pytest.raises(TooLarge) as caught, create(tmp_path / "b.pbin", token_bytes=2, vocab_size=200) as writer:
        writer.write_part(str(part), 0, np.array([1, 2]), None)
    assert caught.value.found == 250
    assert not (tmp_path / "b.pbin").exists()
