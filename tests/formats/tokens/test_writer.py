"""What token formats share for writing: runs of documents, counts, digests, and the order of the commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.codec.hashes import DocumentDigest, hash_blocks
from penstock.errors import ConfigError
from penstock.formats._manifest import FileDigests, commit_with_side_file
from penstock.formats.tokens.writer import TokenTally, check_lengths, document_run
from penstock.store.local import LocalStaged, LocalStore
from penstock.store.memory import MemoryStore
from penstock.store.side_file import file_binding
from penstock.types import Manifest


@given(
    st.lists(st.binary(max_size=6000), max_size=6),
    st.binary(min_size=1, max_size=12),
    st.booleans(),
    st.sampled_from([64, 5000, 1 << 26]),
)
@settings(deadline=None, max_examples=40)
def test_digests_are_those_of_the_file(pieces: list[bytes], header: bytes, late: bool, block_bytes: int) -> None:
    store = MemoryStore({})
    staged = store.stage("a")
    digests = FileDigests(staged, len(header) if late else 0, block_bytes=block_bytes)
    for piece in (bytes(len(header)) if late else header, *pieces):
        staged.write(piece)
        digests.update(piece)
    if late:
        staged.write_at(0, header)
    found = digests.finish()
    staged.commit()
    data = header + b"".join(pieces)
    assert found == (hash_blocks(np.frombuffer(data, np.uint8), block_bytes), file_binding(store, "a"))


def test_tally() -> None:
    tally, digest = TokenTally(), DocumentDigest()
    lengths: list[int] = []
    for number in range(1500):  # so many that runs of lengths are joined
        tokens = np.arange(number % 3, dtype=np.uint16)
        tally.add(tokens, np.array([len(tokens)]), len(tokens) - 1)
        digest.update(tokens, np.array([len(tokens)]))
        lengths.append(len(tokens))
    assert (tally.num_docs, tally.num_tokens, tally.max_token_id) == (1500, 1500, 1)
    assert np.concatenate(list(tally.lengths())).tolist() == lengths
    assert tally.hexdigest() == digest.hexdigest()


def test_each_length_is_copied_once_however_many_parts_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    plain = np.concatenate

    def counted(arrays: Any) -> Any:
        joined = plain(arrays)
        copied[-1] += len(joined)
        return joined

    monkeypatch.setattr(np, "concatenate", counted)
    for count in (10_000, 100_000):
        copied.append(0)
        tally = TokenTally()
        for _ in range(count):
            tally.add_lengths(np.ones(1, np.int64), 0)
        assert sum(map(len, tally.lengths())) == count
    assert copied[1] <= 12 * copied[0]


def test_runs_of_lengths_are_short() -> None:
    tally = TokenTally()
    tally.add_lengths(np.ones(150_000, np.int64), 0)
    assert [len(run) for run in tally.lengths()] == [1 << 16, 1 << 16, 150_000 - (1 << 17)]


def test_document_run() -> None:
    tokens, lengths = document_run({"tokens": [[1, 2], [], np.array([3], np.uint8)]}, "a")
    assert (tokens.tolist(), lengths.tolist()) == ([1, 2, 3], [2, 0, 1])
    tokens, lengths = document_run({"tokens": np.array([[1, 2], [3, 4]], np.uint16)}, "a")
    assert (tokens.tolist(), lengths.tolist(), tokens.dtype) == ([1, 2, 3, 4], [2, 2], np.uint16)
    tokens, lengths = document_run({"tokens": []}, "a")
    assert (tokens.tolist(), lengths.tolist()) == ([], [])
    tokens, _ = document_run({"tokens": [np.array([1], np.uint64), np.empty(0, np.int64), np.empty(0)]}, "a")
    assert tokens.dtype == np.uint64  # and no float, which would round ids
    wrong: list[dict[str, Any]] = [{}, {"text": ["a"]}, {"tokens": [[1]], "id": [1]}, {"tokens": [1, 2]}]
    for batch in wrong:
        with pytest.raises(ConfigError):
            document_run(batch, "a")


def test_lengths_fill_the_run() -> None:
    assert check_lengths(3, [1, 2]).dtype == np.int64
    wrong: list[tuple[int, Any]] = [(3, [1, 1]), (3, [4, -1]), (1, [0.5, 0.5]), (2, [[1, 1]])]
    for num_tokens, lengths in wrong:
        with pytest.raises(ConfigError):
            check_lengths(num_tokens, lengths)


class Broken(Exception):
    """What a disk might do."""


@pytest.mark.parametrize("exists", [False, True])
def test_a_failed_commit_leaves_no_side_file_alone(
    tmp_path: Path, exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, path = LocalStore(), str(tmp_path / "a")
    if exists:
        Path(path).write_bytes(b"old")
    staged = store.stage(path, overwrite=exists)
    staged.write(b"new")
    publish = LocalStaged._publish

    def fail_for_the_data(self: LocalStaged) -> None:
        if self.path == path:
            raise Broken
        publish(self)

    monkeypatch.setattr(LocalStaged, "_publish", fail_for_the_data)
    with pytest.raises(Broken):
        commit_with_side_file(store, staged, path + ".penstock", Manifest("x", 1, 3), overwrite=exists)
    staged.abort()
    names = sorted(one.name for one in tmp_path.iterdir())
    assert names == (["a"] if exists else [])
