"""Compressed lines at each depth of a check."""

from __future__ import annotations

import gzip
from pathlib import Path

from tests.cli.called import called


def test_a_broken_small_file_is_found_by_default_and_the_verdict_names_what_was_read(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(b'{"text": "%d"}\n' % number for number in range(500)))
    for number in range(3):
        (tmp_path / f"{number}.jsonl.gz").write_bytes(whole)
    sound = called("verify", tmp_path)
    assert (sound.returncode, "clean at depth sample: indexes, sizes and some contents" in sound.stdout) == (0, True)
    assert "every byte read" in called("verify", tmp_path, "--depth", "full").stdout
    (tmp_path / "1.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    broken = called("verify", tmp_path)
    assert broken.returncode == 1
    assert "1.jsonl.gz" in broken.stdout
    assert "contents not read" in called("verify", tmp_path, "--depth", "quick").stdout
