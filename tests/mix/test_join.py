"""`Join`: samples that belong together by key."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.mix.join as index
from penstock.cook import Crude
from penstock.errors import ConfigError, NotFound
from penstock.mix import Concat, Join, WithAux
from penstock.order import Shuffle, Take
from penstock.store import DerivedCache
from penstock.testing.memory import KeyedSource, MemorySource
from penstock.testing.sources import SourceLaws
from penstock.testing.streams import StreamLaws
from penstock.types import Extent, Place, Sample


def numbered(keys: Any, name: str = "a") -> list[Sample]:
    return [{"__key__": key, name: number} for number, key in enumerate(keys)]


def keyed(keys: Any, name: str = "a") -> KeyedSource:
    return KeyedSource(numbered(keys, name))


class InRuns(KeyedSource):
    """Tells keys in runs, and counts how often it is asked for single ones."""

    single = 0

    def key_of(self, index: int, /) -> str:
        self.single += 1
        return super().key_of(index)

    def key_run(self, start: int, stop: int, /) -> list[str]:
        return [self[place]["__key__"] for place in range(start, stop)]


A, B = keyed("abcdefgh"), keyed("hxcaf", "b")


class Files(MemorySource):
    """Gives files by name."""

    def __init__(self) -> None:
        super().__init__([])

    def get(self, name: str, /) -> bytes:
        return name.encode()

    def get_media_metadata(self, name: str, /) -> Any:
        raise NotFound(name)


@pytest.fixture
def cache(tmp_path: Path) -> DerivedCache:
    return DerivedCache(str(tmp_path))


def pairs(source: Any) -> list[tuple[int, int | None]]:
    return [(source[i]["0"]["a"], source[i]["1"] and source[i]["1"]["b"]) for i in range(len(source))]


def add(left: Sample, right: Sample | None) -> Sample:
    return {"sum": left["a"] + (0 if right is None else right["b"])}


class TestSkip(SourceLaws):
    @pytest.fixture
    def source(self) -> Any:
        return Join(A, B, how="skip")

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return [{"__key__": key, "0": A[A.index_of(key)], "1": B[B.index_of(key)]} for key in "acfh"]


class TestJoiner(SourceLaws):
    @pytest.fixture
    def source(self) -> Any:
        return Join({"left": A, "right": B}, how={"right": "none"}, joiner=add)

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return [{"sum": total} for total in (0 + 3, 1, 2 + 2, 3, 4, 5 + 4, 6, 7 + 0)]


class TestShuffled(StreamLaws):
    def make(self) -> Any:
        return Shuffle(Join(A, B, how="none"), 3)


def test_rules_for_rows_without_a_partner() -> None:
    assert pairs(Join(A, B, how="skip")) == pairs(Join(A, B, how="inner")) == [(0, 3), (2, 2), (5, 4), (7, 0)]
    assert pairs(Join(A, B, how="none")) == [(0, 3), (1, None), (2, 2), (3, None), (4, None), (5, 4), (6, None), (7, 0)]
    assert pairs(Join(keyed("fac"), B)) == [(0, 4), (1, 3), (2, 2)]
    with pytest.raises(ConfigError, match=r"4 of 8 keys of '0' are not in '1': found 'b', 'd', 'e', 'g'"):
        Join(A, B)


def test_a_list_a_dict_and_many() -> None:
    third = keyed("cfz", "c")
    joined = Join([A, B, third], how=["skip", "none"])
    assert [(sample["__key__"], sample["2"] and sample["2"]["c"]) for sample in map(joined.__getitem__, range(4))] == [
        ("a", None),
        ("c", 0),
        ("f", 1),
        ("h", None),
    ]
    named = Join({"x": A, "y": B, "z": third}, how={"y": "skip", "z": "skip"})
    assert [sorted(named[i]) for i in range(2)] == [["__key__", "x", "y", "z"]] * 2
    assert list(named.children()) == ["x", "y", "z"]


def test_a_failed_join_leaves_nothing_behind(cache: DerivedCache, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        Join(A, B, derived=cache)
    assert os.listdir(tmp_path / "derived") == []
    assert len(Join(A, B, how="skip", derived=cache)) == 4
    with pytest.raises(ConfigError):
        Join(A, B, derived=cache)


def test_an_empty_join_works(cache: DerivedCache) -> None:
    for _ in range(2):
        joined = Join(A, keyed("xyz"), how="skip", derived=cache)
        assert (len(joined), joined.get_batch([]), joined.block_starts.tolist()[-1]) == (0, {}, 0)
        with pytest.raises(IndexError):
            joined[0]
    assert len(Join(keyed(""), B, derived=cache)) == 0
    assert pairs(Join(A, keyed("", "b"), how="none", derived=cache)) == [(number, None) for number in range(8)]


def test_rows_are_worked_out_once_and_mapped(cache: DerivedCache, tmp_path: Path) -> None:
    first = InRuns(numbered("abc")), InRuns(numbered("bca", "b"))
    Join(*first, derived=cache)
    assert [source.single for source in first] == [0, 0]
    files = [name for name in os.listdir(tmp_path / "derived") if name.endswith(".npy")]
    assert len(files) == 1
    again = pickle.loads(pickle.dumps(Join(keyed("abc"), keyed("bca", "b"), derived=cache)))
    assert pairs(again) == [(0, 2), (1, 0), (2, 1)]
    assert isinstance(again._rows().base, np.memmap) or not again._rows().flags.writeable
    assert [name for name in os.listdir(tmp_path / "derived") if name.endswith(".npy")] == files


def test_everything_that_matters_is_in_the_fingerprint(cache: DerivedCache) -> None:
    def made(left: Any = A, right: Any = B, **options: Any) -> str:
        return Join({"x": left, "y": right}, **{"how": "skip", "derived": cache, **options}).fingerprint

    others = [
        made(left=keyed("abcdefg")),
        made(right=keyed("hxca", "b")),
        made(how="none"),
        made(joiner=add),
        made(joiner=add, name="sum-2"),
    ]
    assert len({made(), *others}) == 6
    assert made(how="inner") == made()


def test_keys_that_come_twice() -> None:
    for sources in ((keyed("aba"), B), (A, keyed("xyx", "b"))):
        with pytest.raises(ConfigError, match=r"'[ax]' at 0 and 2"):
            Join(*sources, how="skip")


@pytest.mark.parametrize(
    ("sources", "options"),
    [
        ((), {}),
        ((A,), {}),
        (([A],), {}),
        ((A, MemorySource([{}])), {}),
        ((A, B), {"how": "outer"}),
        ((A, B), {"how": ["skip", "skip"]}),
        (({"x": A, "y": B},), {"how": {"x": "skip"}}),
        ((A, B), {"how": "skip", "joiner": object()}),
    ],
)
def test_joins_that_do_not_work(sources: Any, options: Any) -> None:
    with pytest.raises(ConfigError):
        Join(*sources, **options)


def test_keys_places_and_blocks() -> None:
    class Placed(KeyedSource):
        preferred_mode = "blocks"

        @property
        def block_starts(self) -> Any:
            return np.array([0, 3, 8])

        def place_of(self, index: int, /) -> Place:
            return Place(self.key_of(index), None, (Extent("file", index, 1),))

    joined = Join(Placed(numbered("abcdefgh")), B, how="skip")
    assert [joined.key_of(i) for i in range(4)] == list("acfh")
    assert [joined.index_of(key) for key in "acfh"] == list(range(4))
    for missing in "bz":
        with pytest.raises(NotFound):
            joined.index_of(missing)
    assert joined.place_of(2) == Place("f", None, (Extent("file", 5, 1),))
    assert joined.block_starts.tolist() == [0, 2, 4]
    assert joined.preferred_mode == "blocks"
    assert Shuffle(joined, 1).locate(0).key in set("acfh")
    assert Join(A, B, how="skip").place_of(0).extents is None


class TestOfParts(SourceLaws):
    @pytest.fixture
    def source(self) -> Any:
        return Join(Take(A, 0, 7), Concat([keyed("hx", "b"), keyed("caf", "b")]), how="skip")

    @pytest.fixture
    def expected(self) -> list[Sample]:
        other = [("a", 1), ("c", 0), ("f", 2)]
        return [{"__key__": key, "0": A[A.index_of(key)], "1": {"__key__": key, "b": at}} for key, at in other]


def test_parts_and_concatenations_are_joined() -> None:
    parts = Concat([Take(A, 4, 8), Take(A, 0, 4)])
    assert pairs(Join(parts, B, how="skip")) == [(5, 4), (7, 0), (0, 3), (2, 2)]
    assert pairs(Join(Take(A, 0, 3), B, how="none")) == [(0, 3), (1, None), (2, 2)]
    with pytest.raises(ConfigError, match=r"7 of 8 keys of '0' are not in '1'"):
        Join(A, Take(B, 0, 1))
    with pytest.raises(ConfigError, match=r"repeated in '1'.*'c' at 2 and 7, 5 in total"):
        Join(A, Concat([B, B]))
    joined = Join(Take(A, 0, 3), B, how="skip")
    assert (joined.key_of(1), joined.index_of("c")) == ("c", 1)
    with pytest.raises(NotFound):
        joined.index_of("f")
    aux = Crude(Take(WithAux(A, files=Files()), 0, 3))
    assert [aux[row]["a"] for row in range(3)] == [0, 1, 2]
    assert len(Join(aux, B, how="skip")) == 2
    with pytest.raises(ConfigError, match="no keys"):
        Join(Take(MemorySource([{"n": 1}]), 0, 1), B)


def test_a_part_asks_for_keys_in_runs() -> None:
    source = InRuns(numbered("abcdefgh"))
    assert len(Join(Concat([Take(source, 0, 4), Take(source, 4, 8)]), Take(source, 2, 8), how="skip")) == 6
    assert not source.single


def test_hashes_whose_first_halves_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    real = index.xxhash.xxh3_128_digest
    monkeypatch.setattr(index.xxhash, "xxh3_128_digest", lambda key: bytes(8) + real(key)[8:])
    assert pairs(Join(A, B, how="skip", name="halves")) == [(0, 3), (2, 2), (5, 4), (7, 0)]
    rows = index.join_rows(["x", "y"], [A, B], ["none"]).reshape(-1, 2)
    assert rows[:, 1].tolist() == [3, -1, 2, -1, -1, 4, -1, 0]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(max_size=3), unique=True, max_size=12), st.lists(st.text(max_size=3), unique=True, max_size=12))
def test_rows_are_those_of_a_dict(left: list[str], right: list[str]) -> None:
    rows = index.join_rows(["x", "y"], [keyed(left), keyed(right, "b")], ["none"]).reshape(-1, 2)
    places = {key: place for place, key in enumerate(right)}
    assert rows.tolist() == [[place, places.get(key, -1)] for place, key in enumerate(left)]


def test_many_keys_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "RUN", 7)
    left, right = [f"k{i}" for i in range(40)], [f"k{i}" for i in range(39, 5, -2)]
    rows = index.join_rows(["x", "y"], [keyed(left), InRuns(numbered(right, "b"))], ["skip"]).reshape(-1, 2)
    assert [(left[a], right[b]) for a, b in rows.tolist()] == [(key, key) for key in left if key in right]
