"""`dataframe_to_mds` under the original's name and under ours, from one dataframe of Spark."""

from __future__ import annotations

from pathlib import Path

import peers

SOURCE = str(peers.ROOT / "src")


def test_the_same_dataset(tmp_path: Path) -> None:
    script = peers.SCRIPTS / "spark_mds.py"
    found = []
    for names in ("streaming", "penstock.compat.streaming"):
        (tmp_path / names).mkdir()
        given = {"names": names, "folder": str(tmp_path / names), "source": SOURCE}
        found.append(peers.run_script("spark", script, given))
    theirs, ours = found
    assert [one["id"] for one in theirs["told"]["samples"]] == list(range(500))
    assert ours == theirs
