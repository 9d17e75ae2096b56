"""`penstock.prepare`: the command as a function."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
from pathlib import Path
from typing import Any

import pytest
from tests.internals import main

import penstock as ps
from penstock.errors import ConfigError
from penstock.testing.datasets import copy_of, files_in


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    folder = tmp_path / "made"
    with ps.create(folder, format="webdataset", maxcount=2) as writer:
        for number in range(6):
            writer.write({"__key__": f"k{number}", "txt": f"text {number}", "json": {"n": number}})
    bare = tmp_path / "tars"
    bare.mkdir()
    for one in folder.glob("*.tar"):
        one.rename(bare / one.name)
    return bare


def test_it_writes_what_the_command_writes(tars: Path, tmp_path: Path) -> None:
    also = copy_of(tars, tmp_path / "also")
    fields = {"text": "txt"}
    words = ["--non-interactive", "--split-ratio", "2,1,0", "--sample-type", "TextSample"]
    with pytest.raises(SystemExit) as ended:
        main(["prepare", str(tars), *words, "--field-map", json.dumps(fields)])
    assert ended.value.code == 0
    summary = ps.prepare(also, split_ratio=[2, 1, 0], sample_type="TextSample", field_map=fields)
    assert summary.num_samples == 6
    assert files_in(also) == files_in(tars)


def test_shares_as_text(tars: Path, tmp_path: Path) -> None:
    also = copy_of(tars, tmp_path / "also")
    ps.prepare(tars, split_ratio="2,1,0", sample_type="CrudeWebdataset")
    ps.prepare(also, split_ratio=[2.0, 1.0, 0.0], sample_type="CrudeWebdataset")
    assert files_in(also) == files_in(tars)
    with pytest.raises(ConfigError, match="three numbers, such as 8,1,1"):
        ps.prepare(also, split_ratio="2,1", overwrite=True)


def test_lines(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    assert ps.prepare(tmp_path / "a.jsonl").num_lines == 1
    with pytest.raises(ConfigError, match=r"has no shards.*overwrite, workers"):
        ps.prepare(tmp_path / "a.jsonl", split_ratio=[1, 1])


@pytest.mark.parametrize("given", [{"field_map": {"text": "txt"}}, {"exact": True}, {"media_patterns": "*.txt"}])
def test_what_belongs_to_another_option(tars: Path, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ps.prepare(tars, split_ratio=[1, 1, 1], **given)
    assert not (tars / ".nv-meta").exists()


@pytest.mark.parametrize("program", ["gzip", "bzip2", "xz"])
@pytest.mark.parametrize("size_bytes", [1, 4000])
def test_a_compressed_shard_that_is_named_tar(
    program: str, size_bytes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = random.Random(0).randbytes(size_bytes)
    compress = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}[program]
    (tmp_path / "a.tar").write_bytes(compress(data))
    with pytest.raises(SystemExit):
        main(["prepare", str(tmp_path), "--split-ratio", "1,0,0"])
    error = capsys.readouterr().err
    assert f"a.tar: the shard is compressed, although its name ends in .tar: found {program}" in error
    assert f"Decompress it: {program} -dc < IN.tar > OUT.tar" in error


def test_a_folder_of_compressed_tars(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(b"x"))
    with pytest.raises(SystemExit):
        main(["prepare", str(tmp_path), "--split-ratio", "1,0,0"])
    assert "no tar shards in this folder. Shards end in .tar. Decompress .tar.gz" in capsys.readouterr().err
