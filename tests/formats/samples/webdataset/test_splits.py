"""Splits by ratio as Energon cuts them, lists of names collapsed and expanded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.internals import collapse_braces as collapse
from tests.internals import expand_braces as expand

from penstock.errors import ConfigError, FormatError
from penstock.formats.samples.webdataset.splits import by_patterns, by_ratio

from .conftest import golden_json

SPLITS = golden_json("splits.json")
OURS = ("\u0663.tar", "a1_001.tar")
"""Lists that the original collapses into something else."""


def expanded(texts: list[str]) -> list[str]:
    return [name for text in texts for name in expand(text, "split.yaml")]


@pytest.mark.parametrize(
    "row", SPLITS["ratio"], ids=lambda row: f"{row['shards']}-{row['ratio']}-{row['shuffle_seed']}"
)
def test_ratios_as_the_original(row: dict[str, Any]) -> None:
    shards = [f"shard_{number:03d}.tar" for number in range(row["shards"])]
    found = by_ratio(shards, row["ratio"], shuffle=row["shuffle_seed"] is not None)
    theirs = {split: expanded(texts) for split, texts in row["split_parts"].items()}
    ours = [name for part in found.parts.values() for name in part]
    assert sorted(ours) == shards
    assert sorted(found.lost) == sorted(set(shards) - {name for part in theirs.values() for name in part})
    if not found.lost:
        assert found.parts == theirs


@pytest.mark.parametrize("row", SPLITS["collapse"], ids=lambda row: ",".join(row["in"])[:40])
def test_collapse_as_the_original(row: dict[str, Any]) -> None:
    assert expanded(collapse(row["in"])) == row["in"]
    if row["in"] and row["in"][0] not in OURS:
        assert collapse(row["in"]) == row["out"]


@pytest.mark.parametrize("row", golden_json("tables.json")["braceexpand"], ids=lambda row: row["in"])
def test_braces_as_the_original(row: dict[str, Any]) -> None:
    if "error" in row:
        with pytest.raises(FormatError):
            expand(row["in"], "split.yaml")
    else:
        assert expand(row["in"], "split.yaml") == row["out"]


@settings(deadline=None, max_examples=150)
@given(st.lists(st.text("ab0189{},.\\/_", min_size=1, max_size=8) | st.integers(0, 20).map("s_{:02d}.tar".format)))
def test_collapse_is_undone_by_expand(names: list[str]) -> None:
    assert expanded(collapse(names)) == names


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 300), st.lists(st.integers(0, 20), min_size=1, max_size=3).filter(any), st.booleans())
def test_every_shard_is_in_one_split(count: int, ratio: list[int], shuffle: bool) -> None:
    shards = [f"s{number}" for number in range(count)]
    found = by_ratio(shards, ratio, shuffle=shuffle)
    assert sorted(name for part in found.parts.values() for name in part) == sorted(shards)


def test_patterns() -> None:
    shards = ["train/a.tar", "train/b.tar", "val/a.tar"]
    found = by_patterns(shards, [("train", "train/.*"), ("val", r"val/\w\.tar"), ("both", "{train,val}/a")])
    assert found.parts == {"train": shards[:2], "val": shards[2:], "both": ["train/a.tar", "val/a.tar"]}
    for pattern in ("dev-*", "(", "a{"):
        with pytest.raises((ConfigError, FormatError)):
            by_patterns(shards, [("x", pattern)])
