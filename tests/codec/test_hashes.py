"""Digests of content: of blocks of bytes, and of documents whatever their format."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash

from penstock.codec import hashes
from penstock.codec.hashes import BlockHasher, DocumentDigest, hash_blocks, token_block_digest
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
