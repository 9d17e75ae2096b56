"""The real loader of Megatron-Energon beside `penstock.compat.energon`, over the same datasets."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import peers
import pytest
from tests.internals import build_index

import penstock as ps
from penstock.compat import energon as en

SCRIPT = peers.SCRIPTS / "energon_loading.py"
DATA = Path(__file__).parent.parent / "golden" / "energon-loading" / "data"


@en.stateless
def parts_of(sample: Any, **stores: Any) -> dict[str, Any]:
    return {
        "key": sample["__key__"],
        "subflavors": sample["__subflavors__"],
        "stores": sorted(stores),
        "sources": [[one.index, one.shard_name, list(one.file_names)] for one in sample["__sources__"]],
        "parts": {name: _plain(value) for name, value in sample.items() if not name.startswith("__")},
    }


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    return value.decode("latin-1") if isinstance(value, bytes) else value


def ours(path: str, split: str, image: str | None, training: bool) -> list[Any]:
    class Encoder(en.DefaultTaskEncoder[Any, Any, Any, Any]):
        cookers = (en.Cooker(parts_of),)
        decoder = None if image is None else en.SampleDecoder(image_decode=image)

    options: dict[str, Any] = {"worker_config": en.WorkerConfig(rank=0, world_size=1, num_workers=0)}
    options |= {"batch_size": None, "task_encoder": Encoder(), "split_part": split}
    if not training:
        return list(en.get_savable_loader(en.get_val_dataset(path, **options)))
    return list(en.get_savable_loader(en.get_train_dataset(path, repeat=False, **options)))


def _sorted(samples: list[Any]) -> list[str]:
    return sorted(json.dumps({**one, "subflavors": one["subflavors"] or {}}, sort_keys=True) for one in samples)


CASES: list[tuple[str, str, str | None, bool]] = [
    ("ds_a", "train", None, True),
    ("ds_a", "val", "rgb8", False),
    ("aux_img", "train", "rgb8", False),
    ("aux_img", "train", "l", False),
    ("primary.jsonl", "train", None, True),
    ("mds/aux_mixed.yaml", "train", "rgb8", False),
    ("mds/epochized.yaml", "train", "rgb8", True),
    ("mds/subset_percent.yaml", "train", None, True),
    ("mds/nested_outer.yaml", "train", "rgb8", False),
    ("mds/val_concat.yaml", "val", "rgb8", False),
]


@pytest.mark.parametrize(("path", "split", "image", "training"), CASES)
def test_contents(path: str, split: str, image: str | None, training: bool) -> None:
    given = {"path": str(DATA / path), "split": split, "image": image, "training": training}
    theirs = peers.run_script("energon", SCRIPT, {"call": "contents", **given})
    found = json.loads(json.dumps(ours(**given)))
    assert _sorted(found) == _sorted(theirs)
    if not training:
        assert [one["key"] for one in found] == [one["key"] for one in theirs]


def test_subset_of_a_dataset_yaml(tmp_path: Path) -> None:
    """It counts whatever a metadataset says, and can be written as the object that it is in the original."""
    folder = shutil.copytree(DATA / "ds_a", tmp_path / "ds_a")
    (tmp_path / "half.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\n"
        "splits: {train: {path: ds_a, split_part: train, subset: {range: [0%, 50%]}}}\n"
    )
    plain = (folder / ".nv-meta" / "dataset.yaml").read_text()
    ranges = ["range: [0.25, 0.75]", "absolute_range: [3, 10], range: [0.333, 1]"]
    for said in ranges:
        object_of = "__module__: megatron.energon.flavors.webdataset.structs, __class__: DatasetSubset"
        (folder / ".nv-meta" / "dataset.yaml").write_text(f"{plain}subset: {{{object_of}, {said}}}\n")
        for path in [folder, tmp_path / "half.yaml"]:
            given = {"path": str(path), "split": "train", "image": None, "training": False}
            theirs = peers.run_script("energon", SCRIPT, {"call": "contents", **given})
            assert theirs
            assert json.loads(json.dumps(ours(**given))) == theirs, (said, path)
        (folder / ".nv-meta" / "dataset.yaml").write_text(f"{plain}subset: {{{said}}}\n")
        assert json.loads(json.dumps(ours(**given))) == theirs


def test_jsonl_by_chance(tmp_path: Path) -> None:
    rng = random.Random(os.environ.get("PENSTOCK_INTEROP_SEED", "0"))
    values = [None, True, -3, 1.5e300, 'ä\u2028"\\', [1, [2]], {"a": {"b": []}}]
    path = tmp_path / "rows.jsonl"
    rows = [{str(n): rng.choice(values) for n in range(rng.randrange(4))} for _ in range(200)]
    path.write_text("".join(json.dumps(row, ensure_ascii=rng.random() < 0.5) + "\n" for row in rows), encoding="utf-8")
    build_index(path, flavor="energon")
    assert len(ps.open(str(path), flavor="energon")) == 200
    given = {"path": str(path), "split": "train", "image": None, "training": False}
    theirs = peers.run_script("energon", SCRIPT, {"call": "contents", **given})
    assert json.loads(json.dumps(ours(**given))) == [{**one, "subflavors": one["subflavors"] or {}} for one in theirs]
