"""Caches that levanter's own store writes, of chance: what we read is what levanter reads."""

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
    folder = tmp_path_factory.mktemp("levanter")
    seed = int(os.environ.get("PENSTOCK_INTEROP_SEED", "0"))
    given = {"folder": str(folder), "seed": seed, "count": COUNT}
    return peers.run_script("levanter", peers.SCRIPTS / "levanter_caches.py", given)


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """As the peer's script puts it."""
    return {
        name: {"dtype": str(one.dtype), "shape": list(one.shape), "values": one.reshape(-1).tolist()}
        for name, one in row.items()
    }


def test_rows_are_equal(cases: list[dict[str, Any]]) -> None:
    for case in cases:
        source: Any = ps.open(case["path"])
        assert [plain(source[index]) for index in range(len(source))] == case["rows"], case["path"]
        assert [one for one in ps.verify(case["path"], depth="full") if one.severity == "error"] == []
    assert len(cases) == COUNT


def test_documents_are_equal(cases: list[dict[str, Any]], tmp_path: Path) -> None:
    converted = 0
    for case in cases[1::2]:
        documents = [row["input_ids"]["values"] for row in case["rows"]]
        mask = {"mask_column": "assistant_masks"} if "assistant_masks" in case["rows"][0] else {}
        source: Any = ps.open(case["path"], tokens_column="input_ids", **mask)
        assert [source[index]["tokens"].tolist() for index in range(len(source))] == documents, case["path"]
        assert source.tokens(0, source.num_tokens).tolist() == [*np.concatenate(documents).astype(int)]
        if converted < 10:
            report = ps.convert(case["path"], tmp_path / f"{converted}.pbin", **mask)
            assert report.samples == len(documents)
            converted += 1
