"""Several files on a command line, as a shell makes of a pattern, and lists in Python: one dataset for every verb."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.called import report, run

import penstock as ps
from penstock import lineage
from penstock.errors import NotFound, Unsupported
from penstock.testing import FileServer

ROWS = [{"id": f"k{number}", "text": f"text {number}"} for number in range(12)]


@pytest.fixture(params=["jsonl", "parquet"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    folder = tmp_path / "raw"
    folder.mkdir()
    if request.param == "parquet":
        paths = [folder / f"{number}.parquet" for number in range(3)]
        for number, path in enumerate(paths):
            pq.write_table(pa.Table.from_pylist(ROWS[4 * number : 4 * number + 4]), path)
        return paths
    paths = [folder / "0.jsonl", folder / "1.jsonl.gz", folder / "2.jsonl"]
    for number, path in enumerate(paths):
        data = "".join(json.dumps(row) + "\n" for row in ROWS[4 * number : 4 * number + 4]).encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return paths


def test_every_verb_takes_several_files(files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two, before = files[:2], sorted(files[0].parent.iterdir())
    assert report(capsys, "info", *two)["samples"] == 8
    assert report(capsys, "head", *two, "-n", 1)["samples"][0]["id"] == "k0"
    assert report(capsys, "energon", "preview", *two, "-n", 1)["samples"][0]["id"] == "k0"
    assert report(capsys, "verify", *two)["errors"] == 0
    assert report(capsys, "energon", "lint", *two)["errors"] == 0
    assert report(capsys, "verify", *two, "--depth", "decode")["errors"] == 0
    made: dict[str, tuple[Any, ...]] = {
        "shuffle": ("--seed", 1),
        "filter": ("--where", "len(text) > 0"),
        "split": ("--parts", 1, "--only", 0),
    }
    for verb, options in made.items():
        run(capsys, verb, *two, "-o", tmp_path / f"{verb}.jsonl", *options)
        assert len(ps.open(tmp_path / f"{verb}.jsonl")) == 8
    run(capsys, "split", *two, "-o", tmp_path / "parts", "--ratio", "1,1", "--names", "a,b")
    assert sorted(path.name for path in (tmp_path / "parts").glob("*.jsonl")) == ["raw_a.jsonl", "raw_b.jsonl"]
    run(capsys, "convert", *two, tmp_path / "mds", "--to", "mds")
    assert ps.diff(tmp_path / "mds", two).equal
    run(capsys, "report", *two, "-o", tmp_path / "page.html")
    run(capsys, "exclude", *two, "--key", "k1", "--reason", "r", "--list", tmp_path / "list")
    assert sorted(files[0].parent.iterdir()) == before
    found = lineage(tmp_path / "filter.jsonl").inputs[0]
    assert found.state == "same"
    assert found.path.startswith(f"{tmp_path}/raw/{{")


def test_lists_in_python(files: list[Path], tmp_path: Path) -> None:
    two = files[:2]
    ps.filter(two, tmp_path / "filter.jsonl", where="len(text) > 0")
    ps.shuffle(two, tmp_path / "shuffle.jsonl", seed=1)
    ps.split(two, tmp_path / "parts", ratio=[1, 1])
    ps.convert(two, tmp_path / "mds", to="mds")
    ps.report(two, tmp_path / "page.html")
    assert not ps.verify(two)
    assert ps.diff(tmp_path / "mds", two).equal
    assert ps.diff(tmp_path / "shuffle.jsonl", tmp_path / "filter.jsonl", compare_as="set").equal


def test_what_is_no_dataset(files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, said = run(capsys, "info", files[0], tmp_path / "nowhere.jsonl", status=NotFound.exit_status)
    assert "nowhere.jsonl: no such file" in said
    ps.convert(files, tmp_path / "mds", to="mds")
    _, said = run(capsys, "info", files[0], tmp_path / "mds", status=Unsupported.exit_status)
    assert "only JSONL, Parquet and token files can be combined into one dataset" in said
    _, said = run(
        capsys, "filter", *files, "-o", files[2], "--to", "jsonl", "--where", "len(text) > 0", "--overwrite", status=10
    )
    assert "would replace an input" in said


def test_several_files_of_a_web_server(tmp_path: Path) -> None:
    data = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    with FileServer({"a.jsonl": data, "b.jsonl": data}) as server:
        ps.filter([f"{server.url}/a.jsonl", f"{server.url}/b.jsonl"], tmp_path / "few.jsonl", where="id == 'k3'")
    assert [row["id"] for row in ps.open(tmp_path / "few.jsonl")] == ["k3", "k3"]
