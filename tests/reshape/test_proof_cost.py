"""What a comparison with the side file costs: few requests for remote data, and no memory once it is done."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
import penstock.formats.tokens.proof as token_proof
from penstock.convert import convert, tokens
from penstock.formats import _proof, get_format
from penstock.formats._planes import require_all_listed
from penstock.formats._proof import Proof, ProvedRun
from penstock.formats._side_checks import BlockTask, block_digest
from penstock.store.memory import MemoryStore
from penstock.types import OpenOptions


class Told(MemoryStore):
    """A store that notes which of its methods are used; flags such as `is_local` cost nothing."""

    __slots__ = ("asked",)

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if not name.startswith("_") and callable(found):
            self.asked.append(name)
        return found


@pytest.mark.parametrize("name", ["pbin", "megatron", "flat-tokens"])
def test_another_store_is_asked_as_little_for_more_documents(name: str) -> None:
    counts: list[int] = []
    for documents in (9, 900):
        store = Told()
        with get_format(name).create(store, "folder/data", {"token_bytes": 2, "eos_id": 0}, overwrite=False) as writer:
            for _ in range(documents):
                writer.write({"tokens": np.array([1, 2, 0], np.uint16)})
        source: Any = get_format(name).open(store, "folder/data", OpenOptions(planes=None))
        assert store.asked
        store.asked.clear()
        require_all_listed(name, store, "folder/data", source)
        assert not store.asked
        assert source.proof() is None
        counts.append(len(store.asked))
    assert counts[0] == counts[1] < 40


def test_what_was_looked_at_is_given_back() -> None:
    class Looked:
        def __call__(self) -> None: ...

    checks = [Looked() for _ in range(4)]
    held = [weakref.ref(one) for one in checks]
    proof = Proof(ProvedRun(number * 10, number * 10 + 10, one) for number, one in enumerate(checks))
    checks.clear()
    proof.require(0, 15)
    assert [one() is not None for one in held] == [False, False, True, True]


def test_a_block_is_looked_at_for_the_tokens_that_lie_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ps.create(tmp_path / "a", format="megatron", dtype="int64") as writer:  # read as ids of 4 bytes
        writer.write({"tokens": np.arange(4096)})
    source: Any = ps.open(tmp_path / "a.idx")
    looked: list[int] = []

    def looks(task: BlockTask) -> str | None:
        if task.path.endswith(".bin"):
            looked.append(task.start_bytes)
        return None if task.start_bytes else block_digest(replace(task, stop_bytes=task.store.size(task.path)))

    monkeypatch.setattr(_proof, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(_proof, "block_digest", looks)
    for number in range(8):
        looked.clear()
        source.proof().require(number * 512 + 3, number * 512 + 5)
        assert number * 4096 in looked


def test_a_conversion_by_parts_looks_at_a_digest_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ps.create(tmp_path / "in.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
        for _ in range(40):
            writer.write({"tokens": np.array([*range(1, 30), 0], np.uint16)})
    convert(tmp_path / "in.pbin", tmp_path / "files", to="pbin", file_tokens=900)
    for one in (tmp_path / "files").glob("*.pbin.penstock"):
        one.unlink()  # then nothing but the digest of the folder proves a file, which is of all of it
    looked: list[str] = []
    real: Any = token_proof._Documents.__call__  # type: ignore[attr-defined]

    def looks(documents: Any) -> None:
        looked.append(documents.path)
        real(documents)

    monkeypatch.setattr(token_proof._Documents, "__call__", looks)  # type: ignore[attr-defined]
    monkeypatch.setattr(tokens, "TASK_TOKENS", 100)
    convert(tmp_path / "files", tmp_path / "out.pbin", to="pbin", part=(0, 1), executor="inline")
    assert len(looked) == len(set(looked)) == 2
    convert(tmp_path / "files", tmp_path / "out.pbin", to="pbin", finish=True)
    made: Any = ps.open(tmp_path / "out.pbin")
    assert made.num_tokens == 1200
