"""Auxiliary datasets of metadatasets."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.called import called

import penstock as ps
from penstock.errors import PenstockError, Unsupported

HEAD = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    path: rows.jsonl\n"


def test_a_jsonl_cannot_be_an_auxiliary_dataset(tmp_path: Path) -> None:
    """Energon refuses it too."""
    for name in ("rows.jsonl", "more.jsonl"):
        (tmp_path / name).write_text('{"a": 1}\n')
    path = tmp_path / "meta.yaml"
    path.write_text(f"{HEAD}    aux:\n      more: more.jsonl\n")
    with pytest.raises(
        Unsupported, match=r"more\.jsonl: a JSONL file can't be an auxiliary dataset.*filesystem://FOLDER"
    ):
        ps.open_metadataset(path)
    verified = called("verify", path)
    assert (verified.returncode, "more.jsonl" in verified.stdout + verified.stderr) == (1, True)
    (tmp_path / "files").mkdir()
    path.write_text(f"{HEAD}    aux:\n      more: filesystem://files\n")
    assert ps.open_metadataset(path) is not None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("filesystem://http://h/files", "a web server can't list the files.*Copy the folder"),
        ("filesystem://s3://b/files", r"expected filesystem\+s3://b/files"),
        ("filesystem+http://127.0.0.1:9/files", "a web server can't list the files"),
    ],
)
def test_a_folder_of_another_store(tmp_path: Path, url: str, expected: str) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n')
    path = tmp_path / "meta.yaml"
    path.write_text(f"{HEAD}    aux:\n      more: {url}\n")
    with pytest.raises(PenstockError, match=expected):
        ps.open_metadataset(path)
