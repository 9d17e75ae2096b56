"""Files of a folder that hold lines, but are compressed in a way that is not read."""

from __future__ import annotations

import bz2
import lzma
from pathlib import Path

import pytest

import penstock as ps


def test_files_that_are_left_out_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    line = b'{"text": "a"}\n'
    for name, data in {"a.jsonl": line, "b.jsonl.bz2": bz2.compress(line), "c.JSONL.xz": lzma.compress(line)}.items():
        (tmp_path / name).write_bytes(data)
    assert len(ps.open(str(tmp_path))) == 1
    for name in ("b.jsonl.bz2", "c.JSONL.xz"):
        assert sum(f"{name}: this file isn't read" in message for message in caplog.messages) == 1
