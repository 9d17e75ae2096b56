"""`verify RECIPE`: datasets under two names, and references to files that no auxiliary dataset has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.called import called

import penstock as ps
from penstock.cook import cook
from penstock.errors import UnsafeData

HEAD = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images/vg").mkdir(parents=True)
    for name in ("vg/0.jpg", "vg/1.jpg", "a b#ü.png"):
        (tmp_path / "images" / name).write_bytes(b"\xff\xd8\xff" + name.encode())
    (tmp_path / "secret.jpg").write_bytes(b"no")
    inside = str(tmp_path / "images/vg/1.jpg")
    names: list[Any] = ["vg/0.jpg", ["vg/1.jpg", "vg/404.jpg"], "a b#ü.png", "./vg/0.jpg", "vg/../vg/1.jpg", inside,
                        "../secret.jpg", None]  # fmt: skip
    rows = [{"id": f"r{number}", "image": name, "text": "see x.jpg\n"} for number, name in enumerate(names)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ps.index(tmp_path / "a.jsonl", flavor="energon")
    text = HEAD + "    path: a.jsonl\n    aux:\n      images: filesystem://images\n"
    (tmp_path / "aux.yaml").write_text(text)
    return tmp_path


def findings_of(path: Path, *options: str, status: int) -> list[Any]:
    done = called("verify", path, *options, "--json")
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(done.stdout)["findings"]


def test_references_without_a_file_are_listed(folder: Path) -> None:
    found = [one for one in findings_of(folder / "aux.yaml", status=1) if one["code"] == "recipe.missing-file"]
    assert [one["found"].split(" refers to ")[1] for one in found] == ["'vg/404.jpg'", "'../secret.jpg'"]
    assert all(one["path"].endswith("a.jsonl") for one in found)
    (folder / "images/vg/404.jpg").write_bytes(b"\xff\xd8\xff")
    lines = (folder / "a.jsonl").read_text().replace("../secret.jpg", "vg/0.jpg")
    (folder / "a.jsonl").write_text(lines)
    ps.index(folder / "a.jsonl", flavor="energon", overwrite=True)
    assert not [one for one in findings_of(folder / "aux.yaml", status=0) if one["code"] == "recipe.missing-file"]


def test_datasets_under_two_names_are_reported(folder: Path) -> None:
    (folder / "copy.jsonl").write_bytes((folder / "a.jsonl").read_bytes())
    ps.index(folder / "copy.jsonl", flavor="energon")
    blend = "    blend:\n" + "".join(f"    - path: {name}.jsonl\n      weight: 1\n" for name in ("a", "copy"))
    (folder / "twice.yaml").write_text(HEAD + blend)
    found = [one for one in findings_of(folder / "twice.yaml", status=0) if one["code"] == "recipe.repeated"]
    assert len(found) == 1
    assert "a.jsonl" in found[0]["found"]
    assert "copy.jsonl" in found[0]["found"]


def test_each_dataset_of_a_recipe_is_checked(folder: Path) -> None:
    data = folder / "a.jsonl"
    data.write_bytes(data.read_bytes()[:-20])
    assert any("a.jsonl" in one["path"] for one in findings_of(folder / "aux.yaml", status=1))


@pytest.mark.parametrize("more", ["", ", shuffle: {seed: 8}"])
def test_a_recipe_with_an_order_of_its_own_is_checked(folder: Path, more: str) -> None:
    path = folder / "run.yaml"
    path.write_text(f"penstock: 1\nstream: {{path: a.jsonl{more}}}\n")
    assert not findings_of(path, status=0)
    done = called("verify", path, "--split", "train")
    assert (done.returncode, "found split" in done.stderr) == (10, True)


def test_the_named_split_of_a_metadataset_is_checked(folder: Path) -> None:
    (folder / "broken.jsonl").write_text('{"id": 1}\n{"id": \n')
    path = folder / "two.yaml"
    path.write_text(f"{HEAD}    path: a.jsonl\n  val:\n    path: broken.jsonl\n")
    assert not findings_of(path, status=0)
    assert not findings_of(path, "--split", "train", status=0)
    assert findings_of(path, "--split", "val", status=1)
    done = called("verify", path, "--split", "vla")
    assert (done.returncode, "have this split: found 'vla'" in done.stderr) == (10, True)


@pytest.mark.parametrize("name", ["vg/0.jpg", "./vg/0.jpg", "vg/../vg/0.jpg", "vg//0.jpg", "{folder}/vg/0.jpg"])
def test_a_name_in_a_folder_may_be_absolute(folder: Path, name: str) -> None:
    images = ps.open(folder / "images", format="folder")
    assert images.get(name.format(folder=folder / "images")) == b"\xff\xd8\xffvg/0.jpg"


@pytest.mark.parametrize("name", ["../secret.jpg", "vg/../../secret.jpg", "/etc/hostname", "{folder}/../secret.jpg"])
def test_a_name_that_leaves_the_folder_names_the_sample(folder: Path, name: str) -> None:
    images, rows = ps.open(folder / "images", format="folder"), ps.open(folder / "a.jsonl", flavor="energon")
    wanted = name.format(folder=folder / "images")

    def read(sample: Any, images: Any) -> Any:
        return {"data": images.get(wanted)}

    cooked = cook(ps.WithAux(rows, images=images), read)
    with pytest.raises(UnsafeData, match=r"the sample '.*1'.* points outside the folder"):
        cooked[1]
