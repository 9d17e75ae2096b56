"""Outputs whose suffix is that of another format than the one written."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.called import called

import penstock as ps
from penstock.errors import ConfigError


@pytest.fixture(name="inputs")
def _inputs(tmp_path: Path) -> Path:
    (tmp_path / "lines.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    ps.convert(tmp_path / "lines.jsonl", tmp_path / "shards", to="mds")
    ps.convert(tmp_path / "lines.jsonl", tmp_path / "tars", to="webdataset")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "suffix", "written"),
    [
        ("filter IN/lines.jsonl -o OUT.csv --match a", ".csv", "jsonl"),
        ("shuffle IN/lines.jsonl -o OUT.csv.gz", ".csv", "jsonl"),
        ("merge IN/lines.jsonl IN/lines.jsonl -o OUT.tar", ".tar", "jsonl"),
        ("split IN/lines.jsonl -o OUT.TSV --parts 2 --only 0", ".tsv", "jsonl"),
        ("filter IN/shards -o OUT.jsonl --match a", ".jsonl", "mds"),
        ("shuffle IN/shards -o OUT.pbin", ".pbin", "mds"),
        ("merge IN/shards IN/shards -o OUT.csv", ".csv", "mds"),
        ("shuffle IN/shards -o OUT.tar --dry-run", ".tar", "mds"),
        ("merge IN/tars -o OUT.parquet", ".parquet", "webdataset"),
        ("purge IN/lines.jsonl -o OUT.csv", ".csv", "jsonl"),
    ],
)
def test_a_suffix_of_another_format(line: str, suffix: str, written: str, inputs: Path) -> None:
    ps.exclude(inputs / "lines.jsonl", indices=[0], reason="asked for")
    out = inputs / "new"
    done = called(*line.replace("IN", str(inputs)).replace("OUT", str(out)).split())
    assert done.returncode == ConfigError.exit_status, done.stderr
    said = done.stderr
    assert f"written as {written}" in said
    assert f"found {suffix}, expected a name such as new" in said
    assert "penstock convert" in said
    assert not list(inputs.glob("new*"))


@pytest.mark.parametrize("name", ["new", "new.json", "new.txt", "new.jsonl", "new.ndjson", "new.dat"])
def test_other_names_of_lines(name: str, inputs: Path) -> None:
    ps.shuffle(inputs / "lines.jsonl", inputs / name, seed=0)
    assert (inputs / name).read_text().count("\n") == 2


def test_the_suffix_of_the_source(inputs: Path) -> None:
    with ps.create(inputs / "packed.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
        writer.write({"tokens": [1, 0]})
        writer.write({"tokens": [2, 0]})
    (inputs / "packed.pbin").rename(inputs / "packed.bin")
    parts = ps.split(inputs / "packed.bin", inputs / "parts", ratio=(1, 1))
    assert [Path(one.path).name for one in parts] == ["packed_train.bin", "packed_validation.bin"]
