"""The table of behaviours names tests that there are, and the guide names what differs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
GUIDES = TESTS.parent / "docs" / "guide"
README = (Path(__file__).parent / "README.md").read_text()

MEANT = {
    "energon-training.md": (
        "order", "`num_workers`", "ranks in validation", "`current_batch_index`", "`worker_debug_path`",
        "`energon checkpoint redist`", "packs of training with several workers", "few samples for many workers",
        "`len(dataset)`", "code that files name", "joiners", "`Metadataset`", "`IterMapDataset`",
        "`prepare_metadataset`", "watchdog", "`FileStoreCachePool`", "a state saved by Energon's own loader",
    ),
    "energon.md": ("`checkpoint redist`", "`preview`", "`--fix-duplicates`", "`lint`"),
}  # fmt: skip
"""Guide → how rows of its table begin that the original's tests meet, and that are meant."""


def test_every_test_of_the_table_is_there() -> None:
    named = [row[1] for row in rows_of(README.partition("## What remains")[0])]
    assert len(named) > 15
    for name in named:
        file, _, test = name.partition("::")
        assert (TESTS / file).is_file(), file
        assert not test or re.search(rf"^def {test}\b", (TESTS / file).read_text(), re.MULTILINE), name


@pytest.mark.parametrize("guide", MEANT)
def test_the_guide_names_what_differs(guide: str) -> None:
    rows = differences(guide)
    assert all(row[-1] for row in rows), "a difference without a word of what happens here"
    for words in MEANT[guide]:
        assert any(row[0].startswith(words) for row in rows), words


def test_the_guide_names_why_a_test_of_theirs_fails() -> None:
    rows = rows_of(README.partition("## What remains")[2])
    assert len(rows) > 5
    for begins, tests, why in rows:
        assert any(row[0].startswith(begins) for row in differences("energon-training.md")), begins
        assert re.fullmatch(r"test_\w+(, test_\w+)*", tests), tests
        assert why, tests


def differences(guide: str) -> list[list[str]]:
    """The rows of a guide's table "Differences"."""
    return rows_of((GUIDES / guide).read_text().partition("Differences")[2].partition("\n## ")[0])


def rows_of(text: str) -> list[list[str]]:
    """The rows of a table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
