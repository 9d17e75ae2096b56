"""Files of `.nv-meta` that a dataset had when it was written, and has no more."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.called import called

import penstock as ps
from penstock.errors import Corrupt

FILES = {"split.yaml": "error", "dataset.yaml": "error", "index.uuid": "error", "index.sqlite": "warning"}


def write(root: Path) -> None:
    with ps.create(root, format="webdataset", maxcount=2) as writer:
        for split in ("train", "val"):
            writer.begin_split(split)  # type: ignore[attr-defined]
            for number in range(3):
                writer.write({"__key__": f"{split}{number}", "txt": b"x"})


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("depth", ["quick", "sample", "full"])
def test_verify_names_a_missing_file(name: str, depth: str, tmp_path: Path) -> None:
    write(tmp_path / "x")
    assert called("verify", tmp_path / "x", "--depth", depth).returncode == 0
    (tmp_path / "x/.nv-meta" / name).unlink()
    done = called("verify", tmp_path / "x", "--depth", depth)
    assert done.returncode == (FILES[name] == "error")
    assert f"{FILES[name]}: webdataset.missing-file: {tmp_path}/x/.nv-meta/{name}" in done.stdout


@pytest.mark.parametrize("name", FILES)
def test_copies_without_it(name: str, tmp_path: Path) -> None:
    """Without the list of splits all would be copied as one; what only finds samples may be missing."""
    write(tmp_path / "x")
    (tmp_path / "x/.nv-meta" / name).unlink()
    if name in ("split.yaml", "dataset.yaml"):
        with pytest.raises(Corrupt, match=name):
            ps.merge([tmp_path / "x"], tmp_path / "out")
        assert not (tmp_path / "out").exists()
        (tmp_path / "x/.penstock").unlink()
    ps.merge([tmp_path / "x"], tmp_path / "out")
    assert sum(len(list(one.glob("*.tar"))) for one in [tmp_path / "out"]) > 0


def test_a_new_side_file_accepts_the_loss(tmp_path: Path) -> None:
    write(tmp_path / "x")
    (tmp_path / "x/.nv-meta/dataset.yaml").unlink()
    assert called("verify", tmp_path / "x", "--replace-manifest").returncode == 0
    assert called("verify", tmp_path / "x").returncode == 0
