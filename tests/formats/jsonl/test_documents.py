"""Files called .jsonl that hold one JSON document instead of lines."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.called import called

import penstock as ps
from penstock.errors import Unsupported

ROWS: list[Any] = [{"text": "a"}, {"text": "b"}]
DOCUMENTS = {
    "one line": json.dumps(ROWS),
    "one line with an end": json.dumps(ROWS) + "\r\n",
    "a row per line": "[" + ",\n".join(map(json.dumps, ROWS)) + "]\n",
    "brackets on lines": "[\n" + ",\n".join(map(json.dumps, ROWS)) + "\n]\n",
    "indented": json.dumps(ROWS, indent=1),
    "objects over several lines": json.dumps(ROWS[0], indent=2),
}
LINES = {
    "lists": "\n".join(json.dumps([row]) for row in ROWS),
    "one list of numbers": "[1, 2]",
    "one object": json.dumps({"rows": ROWS}),
}


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("kind", ["file", "folder", "gzip"])
def test_one_document_is_an_error(tmp_path: Path, name: str, kind: str) -> None:
    text = DOCUMENTS[name].encode()
    path = tmp_path / "in" / ("x.jsonl.gz" if kind == "gzip" else "x.jsonl")
    path.parent.mkdir()
    path.write_bytes(gzip.compress(text) if kind == "gzip" else text)
    target = path.parent if kind == "folder" else path
    with pytest.raises(Unsupported, match=r"x\.jsonl.*not JSON Lines.*jq -c"):
        len(ps.open(str(target)))
    for command in (("head", target), ("convert", target, tmp_path / "out", "--to", "mds")):
        refused = called(*command)
        assert (refused.returncode, "jq -c" in refused.stderr) == (7, True), command
    checked = called("verify", target)
    assert (checked.returncode, "jsonl.unsupported" in checked.stdout) == (1, True)


def test_an_index_of_one_document_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(DOCUMENTS["one line"])
    assert called("index", path).returncode == called("index", path, "--on-error", "skip").returncode == 7
    assert called("index", path, "--no-validate").returncode == 0
    with pytest.raises(Unsupported, match="one JSON array"):
        len(ps.open(str(path)))


@pytest.mark.parametrize("name", LINES)
def test_lines_of_other_values_are_samples(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(LINES[name])
    values = [json.loads(line) for line in LINES[name].split("\n")]
    expected = [value if isinstance(value, dict) else {"value": value} for value in values]
    assert [dict(sample) for sample in ps.open(str(path))] == expected
