"""Files of a directory that hold samples, but aren't read: compressed in another way, or called `.json`."""

from __future__ import annotations

import bz2
import lzma
from pathlib import Path

import pytest

import penstock as ps
from penstock.errors import PenstockError


def test_files_that_are_left_out_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    line = b'{"text": "a"}\n'
    for name, data in {
        "a.jsonl": line, "b.jsonl.bz2": bz2.compress(line), "c.JSONL.xz": lzma.compress(line), "d.JSON": line,
        "dataset_info.json": b"{}",
    }.items():  # fmt: skip
        (tmp_path / name).write_bytes(data)
    assert len(ps.open(str(tmp_path))) == 1
    for name in ("b.jsonl.bz2", "c.JSONL.xz", "d.JSON"):
        assert sum(f"{name}: this file isn't read" in message for message in caplog.messages) == 1
    assert not any("dataset_info.json" in message for message in caplog.messages)


def test_a_directory_of_json_files_says_how_to_make_lines(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"text": "a"}]')
    with pytest.raises(PenstockError, match=r"a directory of JSON files.*jq -c"):
        ps.open(str(tmp_path))
