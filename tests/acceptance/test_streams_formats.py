"""Any formats in one stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.testing import same


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Any]:
    with ps.create(str(tmp_path / "a.pbin"), format="pbin", token_bytes=2, eos_id=0) as writer:
        for n in range(2, 30):
            writer.write({"tokens": [n] * n + [0]})
    with ps.create(str(tmp_path / "mds"), format="mds", columns={"text": "str", "n": "int"}, size_limit=300) as writer:
        for n in range(25):
            writer.write({"text": f"mds {n}", "n": n})
    lines = [json.dumps({"text": f"line {n}", "n": n}) for n in range(20)]
    (tmp_path / "c.jsonl").write_text("\n".join(lines) + "\n")
    return {
        "tokens": ps.Chunk(16)(ps.open(str(tmp_path / "a.pbin"))),
        "mds": ps.open(str(tmp_path / "mds")),
        "lines": ps.open(str(tmp_path / "c.jsonl")),
    }


def test_a_stream_of_several_formats(sources: dict[str, Any]) -> None:
    blend = ps.Blend(sources, {"tokens": 2, "mds": 1, "lines": 1}, seed=3)
    for position in (*range(60), 10**12):
        at = blend.locate(position)
        assert same(blend[position], sources[at.path[0]][at.index])
    batch = next(iter(ps.Loader(blend, 32, rank=0, world=1, workers=2)))
    assert {"tokens", "text", "n"} <= batch.keys()
    for position in range(32):
        sample = blend[position]
        assert all(same(sample.get(name), column[position]) for name, column in batch.items())


def test_one_pass_over_several_formats(sources: dict[str, Any]) -> None:
    texts = {"mds": (sources["mds"], 1), "lines": (ps.Shuffle(sources["lines"], 1), 1.5)}
    mixed = ps.Epochs(texts)
    read = [
        text
        for batch in ps.Loader(mixed, 8, rank=0, world=1, tail="pad")
        for text in np.array(batch["text"])[batch["valid"]]
    ]
    assert len(read) == 55
    assert sorted(set(read)) == sorted({f"mds {n}" for n in range(25)} | {f"line {n}" for n in range(20)})
