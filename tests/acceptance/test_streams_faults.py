"""Faults while a stream runs: reported, bounded, and never an epoch that is silently shorter."""

from __future__ import annotations

import os
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import FormatError, NotFound, PenstockError
from penstock.store import LocalStore
from penstock.testing import LatencyStore
from penstock.types import OpenOptions

COUNT = 60


def tars(folder: Path) -> Path:
    options: Any = {"maxcount": 20, "split": "train"}
    with ps.create(folder, format="webdataset", **options) as writer:
        for number in range(COUNT):
            writer.write({"__key__": f"{number:03}", "bin": bytes([number]) * 3000})
    return folder


def loader(source: Any, **options: Any) -> ps.Loader:
    return ps.Loader(source, 10, rank=0, world=1, tail="pad", **options)


def keys(batches: Any) -> list[str]:
    return [key for batch in batches for key in batch["__key__"]]


def keys_until_an_error(batches: Any) -> tuple[list[str], Exception | None]:
    found: list[str] = []
    try:
        for batch in batches:
            found += batch["__key__"]
    except Exception as error:
        return found, error
    return found, None


@pytest.mark.parametrize("workers", [0, 2])
def test_a_truncated_tar_is_an_error_that_names_it(tmp_path: Path, workers: int) -> None:
    folder = tars(tmp_path / "tars")
    assert len(keys(loader(ps.open(folder, raw=True), workers=workers))) == COUNT
    last = sorted(folder.rglob("*.tar"))[-1]
    os.truncate(last, last.stat().st_size // 2)
    found, error = keys_until_an_error(loader(ps.open(folder, raw=True), workers=workers))
    assert isinstance(error, FormatError)
    assert last.name in str(error)
    assert len(found) >= 40
    assert found == [f"{number:03}" for number in range(len(found))]


def test_a_truncated_tar_in_a_stream_is_replaced_and_counted(tmp_path: Path) -> None:
    folder = tars(tmp_path / "tars")
    last = sorted(folder.rglob("*.tar"))[-1]
    os.truncate(last, last.stat().st_size - 8192)
    stream = ps.Shuffle(ps.open(folder, raw=True), seed=1, mode="global")
    ld = ps.Loader(stream, 10, rank=0, world=1, on_error="substitute", substitute_limit=0.2)
    batches = list(islice(ld, 6))
    assert [len(batch["__key__"]) for batch in batches] == [10] * 6
    replaced = sum(int(batch["substituted"].sum()) for batch in batches)
    assert 0 < replaced < 10
    assert ld.metrics().substituted == replaced


def test_a_missing_auxiliary_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for number in range(COUNT):
        (images / f"{number}.bin").write_bytes(bytes([number]))

    def look_up(sample: Any, images: Any) -> Any:
        return {"__key__": sample["__key__"], "value": images.get(f"{int(sample['__key__'])}.bin")}

    source = ps.WithAux(ps.open(tars(tmp_path / "tars"), raw=True), images=ps.open(images, format="folder", raw=True))
    cooked = ps.Map(source, look_up)
    assert len(keys(loader(cooked))) == COUNT
    (images / "33.bin").unlink()
    with pytest.raises(NotFound, match=r"33\.bin"):
        list(loader(cooked))


def test_a_failing_function_is_the_run_s_error(tmp_path: Path) -> None:
    def cook(sample: Any) -> Any:
        if sample["__key__"] == "033":
            raise ZeroDivisionError("in the cook")
        return sample

    source = ps.open(tars(tmp_path / "tars"), raw=True)
    found, error = keys_until_an_error(loader(ps.Map(source, cook), workers=2))
    assert isinstance(error, ZeroDivisionError)
    assert any("cook" in note and "'033'" in note for note in error.__notes__)
    assert len(found) == 30


def test_a_worker_that_dies_is_told_and_the_run_goes_on(tmp_path: Path, lethal: Any) -> None:
    marker = tmp_path / "dies"
    marker.touch()
    source = ps.Map(ps.open(tars(tmp_path / "tars"), raw=True), lethal.Dies(str(marker)), name="dies")
    ld = loader(source, workers=2, worker_kind="processes")
    batches = iter(ld)
    found = keys(islice(batches, 3))
    with pytest.raises(PenstockError, match="SIGKILL"):
        next(batches)
    marker.unlink()
    assert found + keys(batches) == [f"{number:03}" for number in range(COUNT)]


def test_a_slow_store_makes_it_late_and_nothing_else(tmp_path: Path) -> None:
    folder = tars(tmp_path / "tars")
    store: Any = LatencyStore(LocalStore(), 0.002)
    source = ps.open(folder, raw=True)
    from penstock.formats import get_format

    slow = get_format("webdataset").open(store, str(folder), OpenOptions(raw=True))
    began = time.monotonic()
    assert keys(loader(slow)) == keys(loader(source))
    assert time.monotonic() - began > 0.002
    np.testing.assert_array_equal(slow.get_batch([7])["bin"], source.get_batch([7])["bin"])
