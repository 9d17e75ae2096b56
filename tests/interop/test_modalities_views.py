"""Our classes in the place of Modalities' own, in its environment and in its YAML, on fresh input."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import fresh
import numpy as np
import peers
import pytest

import penstock as ps

# `^` and `$` of the golden tokenizer.
BEGIN_ID, END_ID = 3, 4
TOPICS = ("yaml", "documents", "megatron", "lines", "sampler", "masking", "filters", "stream_data")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, golden: Path) -> dict[str, Any]:
    """What both sides give."""
    seed = int(os.environ.get("PENSTOCK_INTEROP_SEED", "0"))
    rng = random.Random(seed)
    root = tmp_path_factory.mktemp("views")
    for name, longest in (("a", 90), ("b", 400)):
        write_pbin(root / f"{name}.pbin", np.random.default_rng(rng.randrange(2**32)), longest)
    fresh.write_documents(rng, root / "docs.jsonl", 60)
    ps.index(root / "docs.jsonl")
    (root / "filtered").mkdir()
    arguments = {
        "src": peers.ROOT / "src",
        "seed": seed,
        "pbins": [root / "a.pbin", root / "b.pbin"],
        "jsonl": root / "docs.jsonl",
        "tokenizer": golden / "modalities" / "tokenizers" / "bpe2",
        "folder": root / "filtered",
    }
    return peers.run_script("modalities", peers.SCRIPTS / "modalities_views.py", arguments)


def write_pbin(path: Path, rng: np.random.Generator, longest: int) -> None:
    """Documents of any length; each 32 tokens hold a pair of markers, so that no window of 33 begins inside one."""
    lengths = rng.integers(1, longest, 60)
    tokens = rng.choice([100, 500, 65_535], int(lengths.sum()))
    for start in range(0, len(tokens) - 32, 32):
        begin, end = sorted(rng.choice(np.arange(1, 32), 2, replace=False).tolist())
        tokens[[start + begin, start + end]] = BEGIN_ID, END_ID
    with ps.create(path, format="pbin", token_bytes=2) as writer:
        for document in np.split(tokens, np.cumsum(lengths)[:-1]):
            writer.write({"tokens": document})


@pytest.mark.parametrize("topic", TOPICS)
def test_ours_gives_what_theirs_gives(found: dict[str, Any], topic: str) -> None:
    assert found[topic]["ours"] == found[topic]["theirs"]


def test_every_topic_is_looked_at(found: dict[str, Any]) -> None:
    assert found.keys() == set(TOPICS)
    # Errors and results both occur, or the comparison says little.
    assert {type(one) for one in found["masking"]["theirs"]} == {str}
    assert 20 < found["masking"]["theirs"].count("ValueError") < 380
    assert {"ValueError"} < set(map(str, found["documents"]["theirs"]))
