"""The table of behaviours names tests that there are, and the guide names what differs."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
GUIDE = TESTS.parent / "docs" / "guide" / "energon-training.md"

MEANT = (
    "order", "num_workers", "ranks in validation", "current_batch_index", "worker_debug_path", "checkpoint redist",
    "packs of training with several workers", "few samples for many workers", "fractions of passes", "sample_loader.py",
    "functions that join", "Metadataset", "IterMapDataset", "prepare_metadataset",
)  # fmt: skip
"""What the original's tests meet here, and is meant."""


def test_every_test_of_the_table_is_there() -> None:
    rows = [line.split("|") for line in (Path(__file__).parent / "README.md").read_text().splitlines() if "|" in line]
    named = [row[2].strip() for row in rows[2:]]
    assert len(named) > 15
    for name in named:
        file, _, test = name.partition("::")
        assert (TESTS / file).is_file(), file
        assert not test or re.search(rf"^def {test}\b", (TESTS / file).read_text(), re.MULTILINE), name


def test_the_guide_names_what_differs() -> None:
    table = GUIDE.read_text().partition("## What differs")[2].partition("\n## ")[0]
    for words in MEANT:
        assert words in table, words
