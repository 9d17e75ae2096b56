"""Resharding WebDatasets: the same samples in other tars, splits kept apart."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.internals import DatasetOptions, prepare_webdataset

import penstock as ps
from penstock import merge, shuffle, split
from penstock.errors import ConfigError, Unsupported

GOLDEN = Path(__file__).parent.parent / "golden" / "energon" / "captioning"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Four shards of ten, never prepared."""
    return shutil.copytree(GOLDEN, tmp_path / "set", ignore=shutil.ignore_patterns(".nv-meta", "*.idx"))


@pytest.fixture
def prepared(plain: Path) -> Path:
    fields = {"image": "jpg", "caption": "json[caption]"}
    dataset = DatasetOptions(sample_type="CaptioningSample", field_map=fields)
    prepare_webdataset(plain, split_ratio=(2, 1, 1), dataset=dataset)
    return plain


def samples(path: Path, name: str = "train") -> list[dict[str, Any]]:
    source = ps.open(path, split=name, raw=True)
    return [
        {key: value for key, value in one.items() if not key.startswith("__") or key == "__key__"} for one in source
    ]


def test_many_small_tars_become_one(plain: Path, tmp_path: Path) -> None:
    report = merge([plain], tmp_path / "out")
    assert (report.output.samples, report.inputs) == (40, ((str(plain), 40),))
    prepare_webdataset(plain, split_ratio=(1, 0, 0))
    assert samples(tmp_path / "out") == samples(plain)
    assert [path.name for path in (tmp_path / "out").glob("*.tar")] == ["shard_000000.tar"]
    assert ps.verify(tmp_path / "out", depth="full") == []


def test_splits_exclusions_and_types_are_kept(prepared: Path, tmp_path: Path) -> None:
    config = prepared / ".nv-meta" / "split.yaml"
    config.write_text(config.read_text().replace("exclude: []", "exclude: [shards/shard_000.tar/s0_003]"))
    merge([prepared], tmp_path / "out", maxcount=7)
    for name in ("train", "val", "test"):
        assert samples(tmp_path / "out", name) == samples(prepared, name)
    assert "s0_003" not in [one["__key__"] for one in samples(tmp_path / "out")]
    assert ps.open(tmp_path / "out", split="val")[0]["caption"] == ps.open(prepared, split="val")[0]["caption"]
    merge([prepared], tmp_path / "one", split="val", pattern="v/%03d.tar")
    assert (tmp_path / "one" / "v" / "000.tar").exists()
    assert len(samples(tmp_path / "one", "val")) == 10


def test_code_goes_with_its_type(plain: Path, tmp_path: Path) -> None:
    text = (
        "def sample_loader(raw):\n    return {'text': raw['txt']}\n\ndef part_filter(part):\n    return part == 'txt'\n"
    )
    prepare_webdataset(
        plain, split_ratio=(1, 0, 0), dataset=DatasetOptions(sample_type="TextSample", sample_loader=text)
    )
    merge([plain], tmp_path / "out")
    assert ps.open(tmp_path / "out", trust=True)[3]["text"] == ps.open(plain, trust=True)[3]["text"]


def test_shuffled_inside_splits(prepared: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shuffle(prepared, tmp_path / name, seed=3, maxcount=6)
    for name in ("train", "val"):
        mixed, before = samples(tmp_path / "a", name), samples(prepared, name)
        assert mixed != before
        assert sorted(mixed, key=lambda one: one["__key__"]) == sorted(before, key=lambda one: one["__key__"])
    tars = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.tar"))
    assert [(tmp_path / "a" / one).read_bytes() for one in tars] == [
        (tmp_path / "b" / one).read_bytes() for one in tars
    ]


@pytest.mark.parametrize("by", ["position", "content"])
def test_dealt(prepared: Path, tmp_path: Path, by: Any) -> None:
    made = split(prepared, tmp_path / "parts", ratio=(3, 1), by=by, **{"split": "train"})
    assert sum(one.samples for one in made) == 20
    keys = [[one["__key__"] for one in samples(Path(part.path))] for part in made]
    assert sorted(keys[0] + keys[1]) == sorted(one["__key__"] for one in samples(prepared))
    if by == "position":
        assert [len(one) for one in keys] == [15, 5]
    with pytest.raises(ConfigError, match="the split to divide"):
        split(prepared, tmp_path / "other", ratio=(3, 1))


def test_refused(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is used twice"):
        merge([prepared, prepared], tmp_path / "out")
    with pytest.raises(ConfigError, match="doesn't apply to tar shards"):
        merge([prepared], tmp_path / "out", columns=("jpg",), keep_excluded=False)
    with pytest.raises(Unsupported):
        merge([prepared], tmp_path / "out", to="mds")
    with pytest.raises(ConfigError, match="replace an input"):
        merge([prepared], prepared, overwrite=True)
    other = shutil.copytree(GOLDEN, tmp_path / "other", ignore=shutil.ignore_patterns(".nv-meta"))
    prepare_webdataset(other, split_ratio=(1, 0, 0), dataset=DatasetOptions(sample_type="CrudeWebdataset"))
    with pytest.raises(ConfigError, match=r"the dataset\.yaml differs from"):
        merge([prepared, other], tmp_path / "out")
    assert not (tmp_path / "out").exists()
