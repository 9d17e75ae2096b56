"""Joins, auxiliary data, subsets and nesting: what all ranks of a loader read is what Energon documents."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import penstock as ps

GOLDEN = Path(__file__).parent.parent / "golden" / "energon-loading"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())["cases"]
COUNTED = sorted(
    name for name in EXPECTED if (GOLDEN / "data" / "mds" / f"{name}.yaml").exists() and "total" in EXPECTED[name]
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


def pair(a: Any, b: Any) -> dict[str, Any]:
    return {"text_a": a["text"], "text_b": None if b is None else b["text"]}


def open_case(name: str) -> Any:
    split = "val" if name.startswith("val") else "train"
    path = GOLDEN / "data" / "mds" / f"{name}.yaml"
    return ps.open_metadataset(path, split=split, mode=split, joiners={"fixture_joiners.pair": pair})  # pyright: ignore[reportArgumentType]


def read(data: Any, rank: int, world: int, workers: int, **options: Any) -> list[dict[str, Any]]:
    """The valid rows that a rank gets in one pass."""
    loader = ps.Loader(data, global_batch=world * 2, rank=rank, world=world, workers=workers, tail="pad", **options)
    rows: list[dict[str, Any]] = []
    for batch in loader:
        for row, valid in enumerate(batch["valid"]):
            if valid:
                rows.append({name: values[row] for name, values in batch.items()})
    return rows


def test_there_are_such_cases() -> None:
    assert len(COUNTED) >= 5


@pytest.mark.parametrize("name", COUNTED)
def test_every_sample_as_often_as_it_says(name: str) -> None:
    source = open_case(name)
    for world, workers in EXPECTED[name]["configs_checked"]:
        rows = [row for rank in range(world) for row in read(source, rank, world, workers)]
        tags = Counter(f"{row['__subflavors__'].get('src', '')}/{row['__key__']}" for row in rows)
        assert tags == EXPECTED[name]["count_per_tag"]


@pytest.mark.parametrize("name", ["join_none", "join_skip"])
def test_joined_rows(name: str) -> None:
    source = open_case(name)
    rows = [row for rank in range(3) for row in read(source, rank, 3, 2)]
    found = sorted([str(row["__key__"]), row["text_a"], row["text_b"]] for row in rows)
    assert sorted(found, key=str) == sorted(EXPECTED[name]["rows"], key=str)


def test_a_join_that_failed_can_be_mended(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ps.errors.ConfigError, match="10 of 20 keys"):
            open_case("join_error")
    folder = tmp_path / "mds"
    folder.mkdir()
    text = (GOLDEN / "data" / "mds" / "join_error.yaml").read_text().replace("..", str(GOLDEN / "data"))
    (folder / "join.yaml").write_text(text.replace("nonmatch: error", "nonmatch: skip"))
    source: Any = ps.open_metadataset(folder / "join.yaml", joiners={"fixture_joiners.pair": pair})
    assert len(source) == 10
