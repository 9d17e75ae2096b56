"""Inputs edited in place, with the same size, between two parts of a distributed job: an error names them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.internals import PartWriter, has_work, replace, work_beside

import penstock as ps
from penstock.testing import FileServer

Cli = Callable[..., tuple[int, str]]
LINES = [json.dumps({"id": number, "text": f"text {number}"}) for number in range(60)]


def jsonl(folder: Path) -> tuple[Path, Path]:
    path = folder / "in.jsonl"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return path, path


def tokens(format: str, suffix: str) -> Callable[[Path], tuple[Path, Path]]:
    def make(folder: Path) -> tuple[Path, Path]:
        path = folder / f"in{suffix}"
        with ps.create(path, format=format, token_bytes=2) as writer:
            for number in range(60):
                writer.write({"tokens": [number + 1] * 20 + [0]})
        data = folder / ("in.bin" if format == "megatron" else f"in{suffix}")
        return path, data

    return make


def shards(folder: Path) -> tuple[Path, Path]:
    with ps.create(folder / "in", format="mds", columns={"id": "int", "text": "str"}, size_limit=700) as writer:
        for line in LINES:
            writer.write(json.loads(line))
    return folder / "in", folder / "in" / "shard.00000.mds"


def tars(folder: Path) -> tuple[Path, Path]:
    with ps.create(folder / "in", format="webdataset", maxcount=25) as writer:
        for number in range(60):
            writer.write({"__key__": f"k{number:03d}", "txt": b"text " * 200})
    return folder / "in", min((folder / "in").glob("*.tar"))


SOURCES = {
    "jsonl": jsonl,
    "pbin": tokens("pbin", ".pbin"),
    "megatron": tokens("megatron", ""),
    "mds": shards,
    "webdataset": tars,
}
CASES = [
    *((verb, format) for verb in ("merge", "shuffle", "split") for format in SOURCES),
    *(("filter", format) for format in SOURCES if format != "webdataset"),
    *(("convert", format) for format in SOURCES),
    ("verify", "mds"),
]


def command(verb: str, format: str, source: Path, out: Path) -> list[str]:
    name = str(out / source.name)
    arguments = {
        "merge": ["-o", name],
        "shuffle": ["-o", name, "--seed", "3"],
        "split": ["-o", str(out / "parts"), "--ratio", "3,1"],
        "filter": ["-o", name, "--indices", str(out.parent / "indices")],
        "convert": [name, "--to", {"pbin": "megatron", "megatron": "pbin"}.get(format, "mds")],
        "verify": ["--depth", "full", "--work", str(out / "marks")],
    }[verb]
    return [verb, str(source), *arguments]


def edit(path: Path) -> None:
    """Change one byte in the middle, as an editor of bytes does."""
    with open(path, "r+b") as file:
        file.seek(path.read_bytes().find(b"text 3") if path.suffix == ".jsonl" else path.stat().st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("last", [["--part", "1/2"], ["--finish"]], ids=["part", "finish"])
@pytest.mark.parametrize(("verb", "format"), CASES)
def test_an_input_edited_between_two_parts_is_named(
    verb: str, format: str, last: list[str], tmp_path: Path, cli: Cli
) -> None:
    source, edited = SOURCES[format](tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "indices").write_text("".join(f"{index}\n" for index in range(0, 60, 2)))
    run = command(verb, format, source, tmp_path / "out")
    status, said = cli(*run, "--part", "0/2")
    assert status == 0, said
    edit(edited)
    status, said = cli(*run, *last)
    assert status != 0
    assert f"the input {edited} changed" in said
    assert "--restart" in said
    visible = [one for one in (tmp_path / "out").rglob("*") if one.is_file() and not has_work(one)]
    assert not [one for one in visible if "marks" not in one.parts]


def test_work_thrown_away_reads_the_edited_input(tmp_path: Path, cli: Cli) -> None:
    source, _ = jsonl(tmp_path)
    run = ["merge", str(source), "-o", str(tmp_path / "out.jsonl")]
    assert cli(*run, "--part", "0/2")[0] == 0
    source.write_text(source.read_text().replace('text 7"', 'TEXT 7"'))
    assert cli(*run, "--finish")[0] != 0
    assert cli(*run, "--finish", "--restart")[0] == 0
    assert (tmp_path / "out.jsonl").read_bytes() == source.read_bytes()


def test_work_of_a_version_without_a_record_names_restart(tmp_path: Path, cli: Cli) -> None:
    source, _ = jsonl(tmp_path)
    run = ["filter", str(source), "-o", str(tmp_path / "out.jsonl"), "--where", "id < 7"]
    assert cli(*run, "--part", "0/2")[0] == 0
    (record,) = work_beside(tmp_path / "out.jsonl").glob("*/inputs")
    record.unlink()
    status, said = cli(*run, "--finish")
    assert status != 0
    assert "--restart" in said


def test_an_input_edited_while_a_part_reads_it_spoils_the_part(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the old bytes come back, with their old time."""

    source, _ = jsonl(tmp_path)
    run = ["filter", str(source), "-o", str(tmp_path / "out.jsonl"), "--where", "id < 7"]
    before, content, make = source.stat(), source.read_bytes(), PartWriter.__call__

    def editing(*arguments: Any) -> Any:
        edit(source)
        return make(*arguments)

    replace(monkeypatch, "write_part_of_rows", editing)
    status, said = cli(*run, "--part", "0/1")
    assert status != 0
    assert "changed while it was being read" in said
    replace(monkeypatch, "write_part_of_rows", make)
    with open(source, "r+b") as file:
        file.write(content)
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    status, said = cli(*run, "--finish")
    assert status != 0
    assert str(source) in said


def test_a_directory_on_a_web_server_whose_files_are_not_listed_is_converted(tmp_path: Path) -> None:
    path, _ = shards(tmp_path)
    with FileServer() as server:
        server.files |= {f"in/{file.name}": file.read_bytes() for file in path.iterdir()}
        ps.convert(f"{server.url}/in", tmp_path / "out.jsonl", to="jsonl")
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [json.loads(line) for line in LINES]
