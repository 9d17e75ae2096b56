"""`info`, `head`, `verify` and `repair` over folders of shards."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.cli.called import report, run

import penstock as ps

GOLDEN = Path(__file__).parent.parent / "golden" / "streaming" / "mds_all"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(GOLDEN, tmp_path / "set")


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "info", GOLDEN)
    assert (found["format"], found["samples"], found["details"]["shards"]) == ("mds", 24, 6)
    assert found["size_bytes"] == sum(path.stat().st_size for path in GOLDEN.glob("*.mds"))
    assert found["details"]["columns"]["nd_static"] == "ndarray:float32:2,3"
    assert found["details"]["hashes"] == ["sha1", "xxh64"]
    text, _ = run(capsys, "info", GOLDEN)
    for line in ("samples            24", "samples per shard  3 to 5", "hashes             sha1, xxh64"):
        assert line in text
    assert "nd_static (ndarray:float32:2,3)" in text


def test_head_shows_everything_and_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    (first,) = report(capsys, "head", GOLDEN, "-n", 1)["samples"]
    assert first["i_jpeg"] == "<RGB image, 8 x 8>"
    assert first["i_jpeg_array"] == ["<RGB image, 6 x 5>"]
    assert first["c_str_decimal"] == "0.10"
    assert "--trust" in first["c_pkl"]
    (trusted,) = report(capsys, "head", GOLDEN, "-n", 1, "--trust")["samples"]
    assert trusted["c_pkl"] == {"a": [1, 2]}
    (some,) = report(capsys, "head", GOLDEN, "-n", 1, "--columns", "c_int,c_str")["samples"]
    assert some == {"index": 0, "c_int": 0, "c_str": ""}


def test_verify_names_the_damage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(capsys, "verify", folder, "--depth", "full")["findings"] == []
    with (folder / "shard.00002.mds").open("r+b") as file:
        file.truncate(5000)
    (only,) = report(capsys, "verify", folder, status=1)["findings"]
    assert (Path(only["path"]).name, only["offset_bytes"]) == ("shard.00002.mds", 5000)
    assert "shard 2" in only["found"]


def test_repair_brings_a_lost_index_back(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "index.json").unlink()
    run(capsys, "verify", folder, status=1)
    assert "6 shards with 24 samples" in run(capsys, "repair", folder)[0]
    assert not (folder / "index.json").exists()
    run(capsys, "repair", folder, "--write")
    assert (folder / "index.json").read_bytes() == (GOLDEN / "index.json").read_bytes()
    run(capsys, "verify", folder, "--depth", "full")


@pytest.mark.parametrize("write", [[], ["--write"]])
def test_repair_of_what_stays_wrong_is_no_success(
    folder: Path, capsys: pytest.CaptureFixture[str], write: list[str]
) -> None:
    (folder / "index.json").unlink()
    shard = sorted(folder.glob("shard.*"))[0]
    shard.write_bytes(shard.read_bytes()[:-1])
    said, _ = run(capsys, "repair", folder, *write, status=1)
    assert said.startswith("impossible: ")
    assert "the index is not rebuilt" in said
    assert "1 error can't be repaired" in said
    found = report(capsys, "repair", folder, *write, status=1)
    assert [one["possible"] for one in found["actions"]] == [False]
    assert [one["code"] for one in found["left"]] == ["shards.no-index"]


def test_repair_says_how_deep_it_looked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.pbin"
    with ps.create(path, format="pbin", token_bytes=2, eos_id=0) as writer:
        writer.write({"tokens": np.array([5, 6, 0], np.uint16)})
    path.with_name("a.pbin.penstock").unlink()
    path.write_bytes(path.read_bytes()[:-3])
    said = run(capsys, "repair", path, "--write", "--eos-id", 0)[0]
    assert "no errors left at depth quick; --depth full reads every byte" in said
