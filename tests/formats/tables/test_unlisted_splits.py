"""Splits of a Hugging Face dataset that dataset_dict.json omits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.called import called

import penstock as ps
from penstock.errors import NotFound

pa = pytest.importorskip("pyarrow")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Splits train, val and test, of which each has one row."""
    root = tmp_path / "saved"
    for name in ("train", "val", "test"):
        (root / name).mkdir(parents=True)
        table = pa.table({"text": [name]})
        with pa.ipc.new_stream(str(root / name / "data.arrow"), table.schema) as writer:
            writer.write_table(table)
        (root / name / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
        (root / name / "dataset_info.json").write_text("{}")
    return root


def test_a_list_that_omits_train(saved: Path, tmp_path: Path) -> None:
    (saved / "dataset_dict.json").write_text('{"splits": ["test"]}')
    with pytest.raises(NotFound, match=r"saved/train: the split train isn't listed in dataset_dict\.json"):
        len(ps.open(saved))
    with pytest.raises(NotFound, match=r"doesn't list it.*open .*saved/train"):
        ps.open(saved, split="train")
    for command in (("info", saved), ("convert", saved, tmp_path / "out", "--to", "mds")):
        assert called(*command).returncode == 9
    assert [one["text"] for one in ps.open(saved, split="test")] == ["test"]
    assert [one["text"] for one in ps.open(saved / "train")] == ["train"]


@pytest.mark.parametrize(
    ("listed", "severities"),
    [
        (["train", "val", "test"], {}),
        (["train", "test"], {"val": "warning"}),
        (["test"], {"train": "error", "val": "warning"}),
    ],
)
def test_verify_names_splits_that_are_not_listed(saved: Path, listed: list[str], severities: dict[str, str]) -> None:
    (saved / "dataset_dict.json").write_text(json.dumps({"splits": listed}))
    found = json.loads(called("verify", saved, "--json").stdout)["findings"]
    assert {one["path"].rpartition("/")[2]: one["severity"] for one in found} == severities
