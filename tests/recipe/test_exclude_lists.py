"""WebDatasets with an exclude list, opened by a split file that the list doesn't know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import penstock as ps
from penstock.errors import ConfigError
from penstock.testing import FileServer


@pytest.mark.parametrize("place", ["local", "local, list lost", "remote"])
def test_a_list_is_not_passed_over(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "data"
    with ps.create(folder, format="webdataset", maxcount=2) as writer:
        for number in range(4):
            writer.write({"__key__": f"k{number}", "txt": f"text {number}"})
    split = folder / ".nv-meta" / "split.yaml"
    split.with_name("other.yaml").write_text(split.read_text())
    ps.exclude(folder, indices=[1], reason="blurred")
    if place == "local, list lost":
        (folder / ".penstock.exclude.jsonl").unlink()
    with FileServer({}) as server:
        for file in folder.rglob("*"):
            if file.is_file():
                server.files[f"data/{file.relative_to(folder)}"] = file.read_bytes()
        path = f"{server.url}/data" if place == "remote" else str(folder)
        recipe = tmp_path / "mix.yaml"
        dataset = {"path": path, "split_config": "other.yaml"}
        metadataset = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": dataset}}
        recipe.write_text(json.dumps(metadataset))
        with pytest.raises(ConfigError, match="has an exclude list"):
            ps.open_recipe(recipe)
