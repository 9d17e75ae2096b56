"""Digests of content: of blocks of bytes, and of documents whatever their format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import xxhash

from penstock.codec import hashes
from penstock.codec.hashes import ALGORITHMS, BlockHasher, DocumentDigest, hash_blocks, hex_digest, token_block_digest
from penstock.errors import ConfigError
from penstock.testing.strategies import for_all, token_documents
from penstock.types import TokenArray


def test_blocks_are_plain_xxh3() -> None:
    data = np.random.default_rng(0).integers(0, 256, 250).astype(np.uint8)
    expected = tuple(xxhash.xxh3_128_hexdigest(data[start : start + 100].tobytes()) for start in (0, 100, 200))
    assert hash_blocks(data, 100) == expected
    assert hash_blocks(data[:0], 100) == ()
    assert len(hash_blocks(data[:200], 100)) == 2


@pytest.mark.parametrize("sizes", [[250], [0, 1, 99, 100, 50], [99, 1, 150], [1] * 250])
def test_blocks_piece_by_piece(sizes: list[int]) -> None:
    data = np.random.default_rng(1).integers(0, 256, 250).astype(np.uint8)
    hasher = BlockHasher(100)
    start = 0
    for number, size in enumerate(sizes):
        piece = data[start : start + size]
        hasher.update(piece if number % 2 else piece.tobytes())
        start += size
    assert hasher.finish() == hash_blocks(data, 100)


def test_blocks_of_other_arrays() -> None:
    data = np.arange(60, dtype=np.uint16).reshape(6, 10)
    hasher = BlockHasher(16)
    hasher.update(data[:, ::2])
    assert hasher.finish() == hash_blocks(np.ascontiguousarray(data[:, ::2]).reshape(-1).view(np.uint8), 16)


def digest_of(documents: list[TokenArray], cuts: int = 1) -> str:
    """The digest, fed in `cuts` calls."""
    digest = DocumentDigest()
    for part in np.array_split(np.arange(len(documents)), cuts):
        chosen = [documents[index] for index in part]
        tokens = np.concatenate([*chosen, np.empty(0, np.uint8)])
        digest.update(tokens, np.array([len(one) for one in chosen], np.int64))
    return digest.hexdigest()


def test_pinned() -> None:
    # Side files hold these digests: they never change for the same documents.
    assert digest_of([]) == "590350119ab0222f04245739b8563505"
    assert (
        digest_of([np.array([1, 2, 3], np.uint16), np.array([70_000], np.uint32)]) == "5b9c6f2ae90507eba9ae64c43b3be009"
    )


def test_documents_alone_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "BLOCK_TOKENS", 7)

    @for_all(token_documents(max_id=255))
    def law(documents: list[TokenArray]) -> None:
        expected = digest_of(documents)
        assert digest_of(documents, 3) == expected
        for dtype in ("uint8", "uint32", ">u2", "int64"):
            assert digest_of([document.astype(dtype) for document in documents]) == expected


def test_digest_sees_borders_order_and_ids() -> None:
    documents = [[1, 2], [3], []]
    others = [[[1, 2], [3]], [[1], [2, 3], []], [[3], [1, 2], []], [[1, 2], [4], []], [[1, 2], [], [3]], [[1, 2, 3]]]
    digests = {digest_of([np.array(document, np.uint16) for document in one]) for one in [documents, *others]}
    assert len(digests) == 1 + len(others)


def test_blocks_hashed_elsewhere_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "BLOCK_TOKENS", 5)
    tokens = np.arange(12, dtype=np.uint16)
    lengths = np.array([4, 8], np.int64)
    whole, pieces = DocumentDigest(), DocumentDigest()
    whole.update(tokens, lengths)
    pieces.update_lengths(lengths)
    for start in (0, 5, 10):
        pieces.update_block(token_block_digest(tokens[start : start + 5]))
    assert pieces.hexdigest() == whole.hexdigest()


def test_fed_tokens_may_change_afterwards() -> None:
    tokens = np.array([1, 2, 3], np.uint32)
    digest = DocumentDigest()
    digest.update(tokens, np.array([3], np.int64))
    tokens[:] = 9
    assert digest.hexdigest() == digest_of([np.array([1, 2, 3], np.uint32)])


ABC = {
    "md5": "900150983cd24fb0d6963f7d28e17f72",
    "sha1": "a9993e364706816aba3e25717850c26c9cd0d89d",
    "sha224": "23097d223405d8228642a477bda255b32aadbce4bda0b3f7e36c9da7",
    "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    "sha384": "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed8086072ba1e7cc2358baeca134c825a7",
    "sha512": "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a"
    "2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
    "sha3_256": "3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532",
    "blake2b": "ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d1"
    "7d87c5392aab792dc252d5de4533cc9518d38aa8dbf1925ab92386edd4009923",
    "blake2s": "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982",
    "xxh32": "32d153ff",
    "xxh64": "44bc2cf5ad770999",
    "xxh3_64": "78af5f94892f3950",
    "xxh128": "06b05ab6733a618578af5f94892f3950",
    "xxh3_128": "06b05ab6733a618578af5f94892f3950",
}


def test_digests_by_name() -> None:
    assert {name: hex_digest(name, b"abc") for name in ABC} == ABC
    assert hex_digest("sha1", np.frombuffer(b"xabc", np.uint8)[1:]) == ABC["sha1"]
    assert len(ALGORITHMS) == 17
    assert list(ALGORITHMS) == sorted(ALGORITHMS)
    assert {len(hex_digest(name, b"")) for name in ALGORITHMS} == {8, 16, 32, 40, 56, 64, 96, 128}


@pytest.mark.parametrize("name", ["", "SHA1", "shake_128", "crc32"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="sha3_224"):
        hex_digest(name, b"")


def test_the_digests_that_the_original_wrote() -> None:
    folder = Path(__file__).parent.parent / "golden" / "streaming" / "mds_all"
    for shard in json.loads((folder / "index.json").read_text())["shards"]:
        data = (folder / shard["raw_data"]["basename"]).read_bytes()
        assert {name: hex_digest(name, data) for name in shard["hashes"]} == shard["raw_data"]["hashes"]
