"""Hints about a dataset without indexes of its shards, as Energon's documentation shows it."""

from __future__ import annotations

import io
import re
import shlex
import tarfile
from pathlib import Path

import pytest
from tests.cli.called import called


def test_the_command_of_the_hint_makes_the_missing_indexes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "my_dataset"
    (root / "shards").mkdir(parents=True)
    (root / ".nv-meta").mkdir()
    with tarfile.open(root / "shards" / "shard_000.tar", "w") as tar:
        member = tarfile.TarInfo("a.txt")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    (root / ".nv-meta" / ".info.yaml").write_text("shard_counts:\n  shards/shard_000.tar: 1\n")
    (root / ".nv-meta" / "split.yaml").write_text(
        "exclude: []\nsplit_parts:\n  train:\n  - shards/shard_000.tar\n  val: []\n  test: []\n"
    )
    shown = called("head", root)
    assert shown.returncode == 0, shown.stderr
    commands = re.findall(r"Create the index: `penstock (.*?)`", caplog.text + shown.stderr)
    assert commands
    assert called(*shlex.split(commands[0])).returncode == 0
    index = root / "shards" / "shard_000.tar.idx"
    assert index.read_bytes() == (0).to_bytes(8, "little") + (1024).to_bytes(8, "little")
