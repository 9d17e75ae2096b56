"""Chunks that litdata itself writes, in datasets of chance: what we read is what litdata reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import peers
import pytest

import penstock as ps

COUNT = 200


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("litdata")
    seed = int(os.environ.get("PENSTOCK_INTEROP_SEED", "0"))
    given = {"folder": str(folder), "seed": seed, "count": COUNT}
    return peers.run_script("litdata", peers.SCRIPTS / "litdata_chunks.py", given)


def plain(one: Any) -> Any:
    """As the peer's script puts it."""
    if isinstance(one, np.ndarray):
        array: Any = one
        return {"dtype": str(array.dtype), "shape": list(array.shape), "values": array.reshape(-1).tolist()}
    if isinstance(one, bytes):
        return {"hex": one.hex()}
    if isinstance(one, dict):
        return {name: plain(inside) for name, inside in one.items()}
    return [plain(inside) for inside in one] if isinstance(one, list | tuple) else one


def test_tokens_are_equal(cases: list[dict[str, Any]], tmp_path: Path) -> None:
    seen = 0
    for case in cases:
        if case["tokens"] is None:
            continue
        source: Any = ps.open(case["path"])
        assert [source[index]["tokens"].tolist() for index in range(len(source))] == case["tokens"], case["path"]
        assert ps.verify(case["path"], depth="full") == []
        if seen < 10:
            report = ps.convert(case["path"], tmp_path / f"{seen}.pbin")
            assert report.samples == len(case["tokens"])
        seen += 1
    assert seen == COUNT // 2


def test_samples_are_equal(cases: list[dict[str, Any]]) -> None:
    seen = 0
    for case in cases:
        if case["samples"] is None:
            continue
        source: Any = ps.open(case["path"])
        found = [plain(source[index]) for index in range(len(source))]
        # Of a list we make names, which a sample has.
        expected = [dict(zip("0123", one, strict=False)) if isinstance(one, list) else one for one in case["samples"]]
        assert found == expected, case["path"]
        assert ps.verify(case["path"], depth="full") == []
        seen += 1
    assert seen == COUNT // 2
