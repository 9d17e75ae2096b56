"""`print`: a node shows its fingerprint once it was computed, and computes none for that."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from tests.internals import Flavored, SeqaxParams, SeqaxPass

from penstock.cook import Crude, PackStream, cook
from penstock.errors import NotFound
from penstock.mix import Balance, Concat, Join, Map, WithAux
from penstock.order import Shuffle, Skip, Take
from penstock.pack import BestFit, Chunk, MegatronBlocks, PackByLength, Whole
from penstock.testing.memory import MemorySource, MemoryTokens


class Files(MemorySource):
    """Samples with keys, and files by name."""

    def key_of(self, index: int, /) -> str:
        return str(self[index]["n"])

    def index_of(self, key: str, /) -> int:
        if not 0 <= int(key) < len(self):
            raise NotFound(key)
        return int(key)

    def get(self, name: str, /) -> bytes:
        return name.encode()

    def get_media_metadata(self, name: str, /) -> Any:
        raise NotFound(name)


def same(sample: Any) -> Any:
    return sample


ROWS = Files([{"n": n, "__subflavors__": {}} for n in range(8)])
TOKENS = MemoryTokens([[1, 2], [3], [4, 5, 6]])
STREAM = Shuffle(ROWS, 1)
NODES = {
    "map": lambda: Map(ROWS, same),
    "map stream": lambda: Map(STREAM, same),
    "take": lambda: Take(ROWS, 1, 3),
    "take tokens": lambda: Take(TOKENS, 1, 3),
    "concat": lambda: Concat([ROWS, ROWS]),
    "concat tokens": lambda: Concat([TOKENS, TOKENS]),
    "join": lambda: Join(ROWS, ROWS),
    "aux": lambda: WithAux(ROWS, files=ROWS),
    "aux stream": lambda: WithAux(STREAM, files=ROWS),
    "skip": lambda: Skip(STREAM, [(0, 2)]),
    "balance": lambda: Balance(STREAM, 2, np.arange(8)),
    "crude": lambda: Crude(ROWS, subflavors={"a": 1}),
    "cook": lambda: cook(ROWS, same),
    "cook stream": lambda: cook(STREAM, same),
    "pack stream": lambda: PackStream(STREAM, 2, merge=same),
    "subflavors": lambda: Flavored(ROWS, {"a": 1}),
    "chunk": lambda: Chunk(2)(TOKENS),
    "whole": lambda: Whole(4)(TOKENS),
    "best fit": lambda: BestFit(4)(TOKENS),
    "megatron": lambda: MegatronBlocks(2)(TOKENS),
    "by length": lambda: PackByLength(ROWS, 8, np.arange(1, 9), name="n"),
    "seqax": lambda: SeqaxPass(ROWS, SeqaxParams(2, 1, 1, 2, 7)),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Joins keep their rows in the cache folder."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))


@pytest.mark.parametrize("kind", NODES)
def test_a_known_fingerprint_is_shown(kind: str) -> None:
    node: Any = NODES[kind]()
    first, *below = str(node).splitlines()
    assert "[" not in first
    known = node.fingerprint
    assert known == NODES[kind]().fingerprint == node.fingerprint
    assert str(node).splitlines()[0] == f"{first}  [{known[:8]}]"
    assert len(str(node).splitlines()) == 1 + len(below)
    copy = pickle.loads(pickle.dumps(node))
    assert copy.fingerprint == known
    assert str(copy).splitlines()[0] == f"{first}  [{known[:8]}]"
