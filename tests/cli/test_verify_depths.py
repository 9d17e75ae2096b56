"""`penstock verify` at every depth, on sound and on damaged data, as text and as JSON."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.called import called
from tests.internals import lint
from tests.internals import verify_command as command

import penstock as ps

DEPTHS = next(one.type.choices for one in command.params if one.name == "depth")  # pyright: ignore


def _jsonl(folder: Path) -> Path:
    with ps.create(folder / "a.jsonl", format="jsonl") as writer:
        for number in range(3):
            writer.write({"n": number})
    return folder / "a.jsonl"


def _shards(folder: Path, kind: str) -> Path:
    with ps.create(folder, format=kind, columns={"n": "int"}) as writer:
        for number in range(3):
            writer.write({"n": number})
    return folder


def _tokens(path: Path, kind: str) -> Path:
    options: dict[str, Any] = {"token_bytes": 2} if kind == "pbin" else {}
    with ps.create(path, format=kind, eos_id=0, **options) as writer:
        writer.write({"tokens": [1, 2, 0]})
    return path


def _webdataset(folder: Path) -> Path:
    with ps.create(folder, format="webdataset") as writer:
        for number in range(3):
            writer.write({"__key__": f"k{number}", "txt": "text"})
    return folder


WRITERS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "jsonl": (_jsonl, "a.jsonl"),
    "mds": (lambda folder: _shards(folder / "x", "mds"), "x/shard.00000.mds"),
    "json-shards": (lambda folder: _shards(folder / "x", "json-shards"), "x/shard.00000.json"),
    "pbin": (lambda folder: _tokens(folder / "x.pbin", "pbin"), "x.pbin"),
    "flat-tokens": (lambda folder: _tokens(folder / "x.zarr", "flat-tokens"), "x.zarr/encoded_tokens/.zarray"),
    "webdataset": (lambda folder: _webdataset(folder / "x"), "x/**/*.tar"),
}
"""Format → how to write a dataset in a folder, and a pattern of the file to damage."""


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("kind", WRITERS)
def test_verify_at_every_depth(kind: str, depth: str, tmp_path: Path) -> None:
    write, damaged = WRITERS[kind]
    (tmp_path / "d").mkdir()
    path = write(tmp_path / "d")
    text, data = called("verify", path, "--depth", depth), called("verify", path, "--depth", depth, "--json")
    assert (text.returncode, data.returncode) == (0, 0), text.stderr + data.stderr
    assert f"clean at depth {depth}: " in text.stdout
    assert json.loads(data.stdout) == {"path": str(path), "depth": depth, "errors": 0, "findings": []}
    [file] = (tmp_path / "d").glob(damaged)
    file.write_bytes(file.read_bytes()[:-3])
    text, data = called("verify", path, "--depth", depth), called("verify", path, "--depth", depth, "--json")
    assert (text.returncode, data.returncode) == (1, 1), text.stdout + text.stderr + data.stderr
    assert "error: " in text.stdout
    assert json.loads(data.stdout)["errors"] > 0


def test_a_named_split_is_decoded(tmp_path: Path) -> None:
    for name, count in (("train", 1), ("val", 2), ("test", 3)):
        with ps.create(tmp_path / "x" / name, format="mds", columns={"n": "int"}) as writer:
            for number in range(count):
                writer.write({"n": number})
    assert lint(tmp_path / "x", splits=["val", "test"]).samples == {"val": 2, "test": 3}
    shutil.rmtree(tmp_path / "x/train")
    [finding] = ps.verify(tmp_path / "x", depth="decode")
    assert (finding.code, finding.severity) == ("samples.not-decoded", "error")
    assert ps.verify(tmp_path / "x", depth="decode", split="val") == []


def test_files_with_the_same_problem_share_an_entry(tmp_path: Path) -> None:
    folder = tmp_path / "mds"
    with ps.create(folder, format="mds", columns={"n": "int"}, size_limit=100) as writer:
        for number in range(60):
            writer.write({"n": number})
    shards = sorted(folder.glob("*.mds"))
    assert len(shards) > 8
    gone = [*shards[1:3], *shards[4:8]]
    for path in gone:
        path.unlink()
    verified = called("verify", folder)
    shown = [path.name for path in shards if path.name in verified.stdout]
    assert shown == [shards[1].name, shards[2].name, shards[4].name, shards[5].name]
    assert "likewise: 5 more files" in verified.stdout
    assert "6 errors" in verified.stdout
    assert len(json.loads(called("verify", folder, "--json").stdout)["findings"]) == 6
