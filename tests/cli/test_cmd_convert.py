"""`penstock convert`: options of both sides, the rule for EOS, and what it prints."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.called import called

import penstock as ps

run = functools.partial(called, "convert")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("convert") / "c.pbin"
    with ps.create(path, format="pbin", token_bytes=2, eos_id=0) as writer:
        for n_tokens in (3, 5, 2):
            writer.write({"tokens": np.r_[np.arange(1, n_tokens), 0].astype(np.uint16)})
    return path


def test_json_is_one_document(packed: Path, tmp_path: Path) -> None:
    done = run(packed, tmp_path / "d.zarr", "--eos", "strip", 0, "-O", "chunk-tokens=4", "--split", "train", "--json")
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert (report["to"], report["samples"], report["tokens"], report["eos"]) == ("flat-tokens", 3, 7, "strip 0")
    assert len(report["digest"]) == 32
    assert report["verify_seconds"] >= 0
    source = ps.open(tmp_path / "d.zarr", split="train")
    assert [one["tokens"].tolist() for one in source] == [[1, 2], [1, 2, 3, 4], [1]]
    assert (tmp_path / "d.zarr" / "train" / "encoded_tokens" / "1").exists()
    back = run(tmp_path / "d.zarr", tmp_path / "e.pbin", "--eos", "add", 0, "--source-split", "train")
    assert back.returncode == 0
    assert (tmp_path / "e.pbin").read_bytes() == packed.read_bytes()
    assert "EOS: add 0" in back.stdout
    assert "verified in" in back.stdout


def test_options_of_each_format(packed: Path, golden: Path, tmp_path: Path) -> None:
    assert run(packed, tmp_path / "m", "--to", "megatron", "--dtype", "int64").returncode == 0
    assert ps.open(tmp_path / "m").header.kind.name == "int64"
    assert run(packed, tmp_path / "w.pbin", "--token-bytes", 4).returncode == 0
    assert ps.open(tmp_path / "w.pbin").dtype == np.uint32
    raw = golden / "raw-tokens" / "nanogpt" / "train.bin"
    given = ("--format", "raw-tokens", "--layout", "uint16", "--eos-id", 50_256)
    assert run(raw, tmp_path / "r.pbin", *given).returncode == 0
    assert ps.open(tmp_path / "r.pbin").eos_id == 50_256
    assert run(packed, tmp_path / "z", "--to", "flat-tokens", "-O", "compressor=blosc").returncode == 0


def test_what_is_lost_is_noted_beside_the_result(golden: Path, tmp_path: Path) -> None:
    done = run(golden / "megatron" / "multimodal_int32", tmp_path / "a.pbin", "--json")
    assert json.loads(done.stdout)["lost"] == ["sequence borders inside documents", "modes"]
    assert "can't store its modes" in done.stderr


def test_refusals(packed: Path, tmp_path: Path) -> None:
    for status, word, arguments in (
        (10, "EOS", ("--eos", "strip", 7)),
        (10, "EOS", ("--eos", "add", 0)),
        (10, "no_such", ("-O", "no_such=1")),
        (8, "fit", ("--vocab-size", 3)),
        (2, "NAME=VALUE", ("-O", "chunk_tokens")),
        (2, "Invalid value", ("--eos", "drop", 0)),
        (10, "unknown split", ("--split", "test")),
    ):
        done = run(packed, tmp_path / "x.zarr", *arguments)
        assert done.returncode == status, done.stderr
        assert word in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_samples(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,one\n2,two\n3,three\n")
    options = ["--columns", "id=int,text=str", "--compression", "zstd:3", "--hashes", "sha1,xxh64"]
    options += ["--size-limit", "64kb", "--workers", 2, "--group-rows", 2]
    done = run(tmp_path / "a.csv", tmp_path / "m", "--to", "mds", *options, "--json")
    report = json.loads(done.stdout)
    assert (report["to"], report["samples"], report["groups"], len(report["digest"])) == ("mds", 3, 2, 32)
    assert list(ps.open(tmp_path / "m"))[2] == {"id": 3, "text": "three"}
    index = json.loads((tmp_path / "m" / "index.json").read_text())
    assert {(one["compression"], tuple(one["hashes"])) for one in index["shards"]} == {("zstd:3", ("sha1", "xxh64"))}
    done = run(tmp_path / "m", tmp_path / "b.jsonl", "--columns", "text")
    assert "column" not in done.stderr
    assert (tmp_path / "b.jsonl").read_text().splitlines()[0] == '{"text":"one"}'
    done = run(tmp_path / "m", tmp_path / "b.mds", "--columns", "v=ndarray:uint16:3,4,id=int")
    assert done.returncode == 10
    assert "no column 'v'" in done.stderr
    done = run(tmp_path / "m", tmp_path / "c.jsonl", "--columns", "id=int")
    assert "can't store its column 'text'" in done.stderr
