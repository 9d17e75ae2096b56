"""`verify` by many workers: the same findings in the same order, and a refusal where there is nothing to give away."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.check import verify
from penstock.errors import ConfigError
from penstock.prepare.energon.run import prepare_webdataset


class Counting:
    """Runs tasks here, and counts them."""

    def __init__(self) -> None:
        self.num_tasks = 0

    def map(self, fn: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        for task in tasks:
            self.num_tasks += 1
            yield fn(task)


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0xFF
    path.write_bytes(data)


def mds(folder: Path) -> Path:
    with ps.create(folder / "mds", format="mds", columns={"t": "str"}, size_limit=2000, hashes=["sha1"]) as writer:
        for number in range(200):
            writer.write({"t": f"text {number} " * 8})
    return folder / "mds"


def tars(folder: Path) -> Path:
    (folder / "tars").mkdir()
    for shard in range(3):
        with ps.create(folder / "tars" / f"{shard}.tar", format="webdataset") as writer:
            for number in range(5):
                writer.write({"__key__": f"{shard}{number}", "txt": b"some text"})
    prepare_webdataset(folder / "tars", split_ratio=(1, 0, 0))
    return folder / "tars"


def pbin(folder: Path) -> Path:
    with ps.create(folder / "a.pbin", format="pbin", token_bytes=2) as writer:
        writer.write({"tokens": np.arange(5000, dtype=np.uint16)})
    return folder / "a.pbin"


@pytest.mark.parametrize(
    ("make", "depth", "num_tasks"), [(mds, "full", 9), (mds, "quick", 9), (tars, "full", 3), (pbin, "full", 1)]
)
def test_the_same_findings_by_any_executor(
    make: Callable[[Path], Path], depth: Any, num_tasks: int, tmp_path: Path
) -> None:
    path, own = make(tmp_path), Counting()
    assert verify(path, depth=depth, executor=own) == verify(path, depth=depth) == []
    assert own.num_tasks >= num_tasks
    files = (
        [path]
        if path.is_file()
        else sorted(path.glob("*.mds"))[1:4] + [one for one in sorted(path.rglob("*.tar")) if one.is_file()][1:]
    )
    for file in files:
        flip(file, 130 if file.suffix == ".tar" else 600)
    found = verify(path, depth=depth)
    assert found or depth == "quick"
    assert verify(path, depth=depth, workers=2) == found
    assert verify(path, depth=depth, executor="inline") == found


def test_what_has_no_tasks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ConfigError, match=r"'jsonl' is checked by this process alone at depth full.*Leave executor="):
        verify(tmp_path / "a.jsonl", depth="full", workers=2)
    with pytest.raises(ConfigError, match=r"alone at depth sample.*or check at depth full"):
        verify(pbin(tmp_path), executor=Counting())
    assert verify(tmp_path / "a.pbin", workers=1) == verify(tmp_path / "a.pbin", executor="inline") == []
