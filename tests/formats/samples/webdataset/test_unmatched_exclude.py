"""Entries under `exclude:` of a split.yaml that match nothing."""

from __future__ import annotations

import io
import logging
import tarfile
from pathlib import Path

import pytest

import penstock as ps
from penstock.check import summarise


def prepared(folder: Path, exclude: str) -> str:
    """Prepare two shards of two samples, and write the list of what is excluded."""
    folder.mkdir()
    for shard in range(2):
        with tarfile.open(folder / f"s_{shard}.tar", "w") as tar:
            for sample in range(2):
                member = tarfile.TarInfo(f"k{shard}{sample}.txt")
                member.size = 1
                tar.addfile(member, io.BytesIO(b"x"))
    ps.prepare(str(folder), split_parts={"train": "s_{0..1}.tar"})
    (folder / ".nv-meta" / "split.yaml").write_text(f'exclude: {exclude}\nsplit_parts: {{train: ["s_{{0..1}}.tar"]}}\n')
    return str(folder)


@pytest.mark.parametrize(
    ("exclude", "unmatched", "count"),
    [
        ('["s_1.tar", "s_0.tar/k01"]', [], 1),
        ('["s_2.tar"]', ["s_2.tar"], 4),
        ('["s_{1..3}.tar"]', ["s_2.tar", "s_3.tar"], 2),
        ('["s_0.tar/k01.txt", "s_1/k10"]', ["s_1/k10", "s_0.tar/k01.txt"], 4),
        ('["k00"]', ["k00"], 4),
    ],
)
def test_an_entry_that_matches_nothing_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, exclude: str, unmatched: list[str], count: int
) -> None:
    path = prepared(tmp_path / "a", exclude)
    with caplog.at_level(logging.WARNING):
        assert len(ps.open(path)) == count
    said = [one.getMessage() for one in caplog.records if "`exclude` matches" in one.getMessage()]
    assert [name for name in unmatched if any(name in one for one in said)] == unmatched
    assert bool(said) == bool(unmatched)
    findings = [one for one in ps.verify(path) if one.code == "webdataset.exclude"]
    assert [one.severity for one in findings] == ["warning"] * bool(unmatched)
    assert all(name in str(findings[0].found) for name in unmatched)
    shards = [name for name in unmatched if not name.startswith("s_0.tar/")]
    shown = summarise(path)["details"]["exclude"]
    assert all(name in shown for name in shards)
    assert ("matches" in shown) == bool(shards)
