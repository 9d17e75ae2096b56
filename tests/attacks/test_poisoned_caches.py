"""What is kept in the cache folder of other data than those that are read: alike in every place that is looked at."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import replace

import penstock as ps
from penstock.store import DerivedCache

COUNT = 20_000
FILES = 20
PLACES = range(500, COUNT - 500, 500)
opened: Any = ps.open


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


def lengths(place: int | None) -> np.ndarray[Any, Any]:
    """Of documents; two neighbours may have changed places, which changes no size."""
    found = 5 + np.arange(COUNT) % 2
    if place is not None:
        found[[place, place + 1]] = found[[place + 1, place]]
    return found


def documents(place: int | None) -> list[np.ndarray[Any, Any]]:
    """Each with its EOS, 0."""
    stops = np.cumsum(lengths(place))
    ids = np.random.default_rng(1).integers(1, 60_000, int(stops[-1])).astype(np.uint16)
    ids[stops - 1] = 0
    return np.split(ids, stops[:-1])


def shards(path: Path, place: int | None) -> Any:
    if not path.exists():
        with ps.create(path, format="mds", columns={"tokens": "ndarray:uint16"}) as writer:
            writer.write_batch({"tokens": documents(place)})
    return opened(path, tokens_column="tokens")


def raw(path: Path, place: int | None) -> Any:
    if not path.exists():
        np.concatenate(documents(place)).tofile(path)
    return opened(path, format="raw-tokens", layout="uint16", eos_id=0)


def many_files(path: Path, place: int | None) -> Any:
    """More than a fingerprint looks into."""
    if not path.exists():
        path.mkdir()
        for number, start in enumerate(range(0, COUNT, COUNT // FILES)):
            with ps.create(path / f"{number:02d}.pbin", format="pbin", token_bytes=2) as writer:
                writer.write_batch({"tokens": documents(place)[start : start + COUNT // FILES]})
    return opened(path)


def pbin(path: Path, counts: list[int], values: Any = None) -> Any:
    """Without the side file: its digest would tell two of them apart."""
    with ps.create(path, format="pbin", token_bytes=2) as writer:
        ids = np.ones(sum(counts), np.uint16) if values is None else values
        writer.write_batch({"tokens": np.split(ids, np.cumsum(counts)[:-1])})
    path.with_name(path.name + ".penstock").unlink()
    return opened(path, format="pbin")


@pytest.mark.parametrize("open_it", [shards, raw, many_files])
def test_two_datasets_of_one_fingerprint(open_it: Callable[[Path, int | None], Any], tmp_path: Path) -> None:
    """Where documents begin was that of the one that was opened first."""
    first = open_it(tmp_path / "a.bin", None)
    np.testing.assert_array_equal(np.diff(first.doc_starts), lengths(None))
    place = next(one for one in PLACES if open_it(tmp_path / f"{one}.bin", one).fingerprint == first.fingerprint)
    second = open_it(tmp_path / f"{place}.bin", place)
    np.testing.assert_array_equal(np.diff(second.doc_starts), lengths(place))


def test_plans_of_two_datasets_of_one_fingerprint(tmp_path: Path) -> None:
    def pieces(source: Any) -> list[int]:
        return sorted(ps.BestFit(length=64)(source).plan.piece_lengths.tolist())

    usual = lengths(None).tolist()
    first = pbin(tmp_path / "a.pbin", usual)
    assert pieces(first) == sorted(usual)
    for place in PLACES:
        counts = list(usual)
        counts[place] -= 3  # in the index these two take as many bytes as before
        counts[place + 2] += 3
        second = pbin(tmp_path / f"{place}.pbin", counts)
        if second.fingerprint == first.fingerprint:
            break
    assert second.fingerprint == first.fingerprint
    assert pieces(second) == sorted(counts)


def test_a_file_that_was_given_its_old_time_back(tmp_path: Path) -> None:
    """As archives do that give all files one time; the time of the last change of a file can't be given back."""
    path = tmp_path / "a.jsonl"
    rows = ['{"text": "' + "x" * (40 + number % 2) + '"}\n' for number in range(COUNT)]
    for place in (None, *PLACES[:12]):
        if place is not None:
            rows[place], rows[place + 1] = rows[place + 1], rows[place]
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write("".join(rows).encode())
        os.utime(path, (1_000_000, 1_000_000))
        source = ps.open(path)
        for number in (COUNT - 1, *(() if place is None else (place, place + 1))):
            assert source[number] == {"text": rows[number][10:-3]}


def pair_of_one_fingerprint(make: Callable[[int | None], Any]) -> tuple[Any, Any, int]:
    """Two datasets, and the place in which they differ."""
    first = make(None)
    for place in PLACES:
        second = make(place)
        if second.fingerprint == first.fingerprint:
            return first, second, place
    raise AssertionError("each place is looked at")


def moved(place: int | None) -> list[int]:
    """Lengths of documents that take as many bytes in an index as those of the others."""
    counts = lengths(None).tolist()
    if place is not None:
        counts[place] -= 3
        counts[place + 2] += 3
    return counts


@pytest.mark.parametrize("packing", [ps.BestFit(length=64), ps.MegatronBlocks(length=7, derived=DerivedCache())])
def test_plans_of_more_documents_than_are_digested(packing: Any, tmp_path: Path, monkeypatch: Any) -> None:
    replace(monkeypatch, "hashed_bytes_at_once", 1 << 10)
    first, second, _ = pair_of_one_fingerprint(lambda place: pbin(tmp_path / f"{place}.pbin", moved(place)))
    found = [packing(one) for one in (first, second)]
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "another cache"))
    again = packing(second)
    assert len(found[1]) == len(again)
    plans = [one.plan.piece_lengths if hasattr(one, "plan") else one.starts for one in (*found, again)]
    assert not np.array_equal(plans[0], plans[2])
    np.testing.assert_array_equal(plans[1], plans[2])


def test_where_documents_of_a_concatenation_begin(tmp_path: Path, monkeypatch: Any) -> None:
    replace(monkeypatch, "concat_documents_derived", 1 << 10)
    first, second, _ = pair_of_one_fingerprint(lambda place: pbin(tmp_path / f"{place}.pbin", moved(place)))
    other = pbin(tmp_path / "other.pbin", [1, 2])
    for one in (first, second):
        expected = [*np.diff(one.doc_starts).tolist(), 1, 2]
        np.testing.assert_array_equal(np.diff(ps.Concat([one, other]).doc_starts), expected)


def test_groups_of_samples_by_what_was_measured(tmp_path: Path) -> None:
    """Of each the first id says how long it is."""

    def make(place: int | None) -> Any:
        values = np.ones(COUNT, np.uint16)
        if place is not None:
            values[place] = 9
        return pbin(tmp_path / f"{place}.pbin", [1] * COUNT, values)

    first, second, place = pair_of_one_fingerprint(make)
    packed = [ps.PackByLength(one, 10, lambda sample: int(sample["tokens"][0]), name="ids") for one in (first, second)]
    assert packed[0].costs.sum() == COUNT
    assert packed[1].costs.sum() == COUNT + 8, place


def test_rows_that_belong_together(tmp_path: Path) -> None:
    def make(place: int | None) -> Any:
        numbers = np.arange(COUNT)
        if place is not None:
            numbers[[place, place + 1]] = numbers[[place + 1, place]]
        with ps.create(tmp_path / str(place), format="webdataset") as writer:
            for number in numbers.tolist():
                writer.write({"__key__": f"{number:08d}", "txt": b"same"})
        return opened(tmp_path / str(place), raw=True)

    first, second, place = pair_of_one_fingerprint(make)
    other = make(-1)
    for one in (first, second):
        joined = ps.Join(other, one)
        for at in (place, place + 1):
            sample = joined[at]
            assert sample["0"]["__key__"] == sample["1"]["__key__"]
