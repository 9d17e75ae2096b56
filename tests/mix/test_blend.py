"""`Blend`: shares in every block, the children's own order, and where each position comes from."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.internals import BlockPlaces, derive_key

from penstock.abc import SupportsSubstitutes
from penstock.errors import ConfigError
from penstock.formats import open_source
from penstock.mix import Blend, Map
from penstock.order import Sequential, Shuffle, Skip, Take
from penstock.pack import Chunk
from penstock.testing.memory import MemorySource, MemoryTokens
from penstock.testing.streams import StreamLaws

WEIGHTS = {"books": 0.3, "web": 0.7}


def numbers(length: int, first: int = 0) -> MemorySource:
    return MemorySource([{"n": first + i} for i in range(length)])


def two(lanes: int = 1, seed: int = 7) -> Blend:
    children = {"books": Shuffle(numbers(50), 1, lanes=lanes), "web": Shuffle(numbers(70, 1000), 2, lanes=lanes)}
    return Blend(children, WEIGHTS, seed)


class TestTwo(StreamLaws):
    def make(self) -> Blend:
        return two()


class TestLanes(StreamLaws):
    def make(self) -> Blend:
        return two(lanes=8)


class TestSources(StreamLaws):
    def make(self) -> Blend:
        return Blend({"a": numbers(30), "b": numbers(40, 100), "c": numbers(5, 900)}, {"a": 1, "b": 2, "c": 5}, 3)


class TestNested(StreamLaws):
    def make(self) -> Blend:
        web = Blend({"de": numbers(30, 100), "en": Map(Shuffle(numbers(30, 200)), _same)}, {"de": 1, "en": 3})
        return Blend({"books": Skip(Shuffle(numbers(30), 1), [(3, 9)]), "web": web}, WEIGHTS, 5)


class TestHundred(StreamLaws):
    def make(self) -> Blend:
        return Blend({f"c{i}": numbers(20 + i, 1000 * i) for i in range(100)}, {f"c{i}": i + 1 for i in range(100)}, 1)


class TestOne(StreamLaws):
    def make(self) -> Blend:
        return Blend({"only": Sequential(numbers(30))}, {"only": 5}, 1)


def _same(sample: Any) -> Any:
    return sample


GOLDEN = [
    # (counts, seed, lanes, first position) → children and their own positions from there on.
    (([3, 5], 7, 1, 0), [(1, 0), (1, 1), (0, 0), (0, 1), (1, 2), (1, 3), (1, 4), (0, 2)]),
    (
        ([77, 179], 7, 1, 10**12),
        [
            (0, 300781250000),
            (1, 699218750000),
            (1, 699218750001),
            (0, 300781250001),
            (1, 699218750002),
            (0, 300781250002),
            (0, 300781250003),
            (0, 300781250004),
        ],
    ),
    (
        ([1, 2, 13], 3, 8, 10**6),
        [(2, 812488), (2, 812505), (2, 812498), (2, 812499), (1, 125004), (2, 812509), (2, 812510), (2, 812511)],
    ),
    (
        ([21846, 43690], 1, 24, 10**9 + 5),
        [
            (1, 666654357),
            (1, 666657118),
            (1, 666658607),
            (0, 333341808),
            (1, 666654385),
            (0, 333342722),
            (0, 333342747),
            (1, 666656332),
        ],
    ),
]


@pytest.mark.parametrize(("case", "expected"), GOLDEN)
def test_golden(case: tuple[list[int], int, int, int], expected: list[tuple[int, int]]) -> None:
    counts, seed, lanes, first = case
    owner, inner = BlockPlaces(counts, seed, lanes).split(np.arange(first, first + len(expected)))
    assert list(zip(owner.tolist(), inner.tolist(), strict=True)) == expected


def test_version() -> None:
    assert two().recipe()["version"] == "blend-1"


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.sampled_from([1, 2, 3, 8]),
    st.integers(-5, 2**64),
    st.one_of(st.integers(0, 500), st.integers(10**12, 10**12 + 10**6), st.integers(2**60, 2**61)),
)
def test_it_is_what_the_definition_says(slow_blend: Any, weights: list[int], lanes: int, seed: int, first: int) -> None:
    children = {str(i): Sequential(numbers(9, 100 * i), lanes=lanes) for i in range(len(weights))}
    blend = Blend(children, {str(i): weight for i, weight in enumerate(weights)}, seed, lanes=lanes)
    slow = slow_blend(blend.counts, derive_key(seed, "blend"), lanes)
    asked = np.arange(first, first + 12)
    owner, inner = blend.split(asked)
    for row, position in enumerate(asked.tolist()):
        name, place = slow.at(position)
        assert (str(owner[row]), int(inner[row])) == (name, place)
        assert blend.locate(position).path == (name,)
        assert blend[position] == children[name][place]
        assert blend._places.split_one(position) == (int(name), place)
        assert blend.position_of(name, place) == position


def test_each_child_is_read_in_its_own_order() -> None:
    blend = two(lanes=1)
    owner, inner = blend.split(np.arange(5000))
    for child in range(2):
        assert inner[owner == child].tolist() == list(range(int((owner == child).sum())))


def test_each_child_is_shuffled_anew_on_each_of_its_epochs() -> None:
    blend = Blend({"a": numbers(64), "b": numbers(64, 1000)}, {"a": 1, "b": 1}, 3)
    found = blend.get_batch(np.arange(4 * 64))["n"]
    first, second = (found[found < 1000][start : start + 64].tolist() for start in (0, 64))
    assert sorted(first) == sorted(second) == list(range(64))
    assert first != second


def test_sources_take_their_order_from_seed_and_name() -> None:
    source = numbers(64)
    blend = Blend({"a": source, "b": source}, {"a": 1, "b": 1}, 3)
    again = Blend({"a": source, "b": source}, {"a": 1, "b": 1}, 4)
    orders = [blend.children()[name].get_batch(range(64))["n"].tolist() for name in "ab"]
    orders.append(again.children()["a"].get_batch(range(64))["n"].tolist())
    assert len({tuple(order) for order in orders}) == 3


def test_an_open_seed_comes_from_the_blend_around() -> None:
    def blend(seed: int | None, inner: int | None = None) -> Blend:
        web = Blend(
            {"de": numbers(9, 100), "en": Skip(Map(Shuffle(numbers(9, 200)), _same), [])}, {"de": 1, "en": 1}, inner
        )
        return Blend({"books": Shuffle(numbers(9)), "web": web}, WEIGHTS, seed)

    assert blend(5).fingerprint == blend(5).fingerprint
    assert len({blend(seed).children()["web"].fingerprint for seed in (None, 0, 5, 6)}) == 3
    assert blend(5, inner=1).children()["web"].fingerprint == blend(6, inner=1).children()["web"].fingerprint
    given = Shuffle(numbers(9), 4)
    assert Blend({"a": given}, {"a": 1}, 1).children()["a"] is given
    assert Shuffle(numbers(9)).fingerprint == Shuffle(numbers(9), 0).fingerprint


def test_equal_streams_are_refused_and_equal_data_is_not() -> None:
    for children in (
        {"a": Shuffle(numbers(9), 1), "b": Shuffle(numbers(9), 1)},
        {"a": Sequential(numbers(9)), "b": numbers(8), "c": Sequential(numbers(9))},
    ):
        with pytest.raises(ConfigError, match="same stream"):
            Blend(children, dict.fromkeys(children, 1), 1)
    Blend(
        {"a": Shuffle(numbers(9), 1), "b": Shuffle(numbers(9), 2), "c": numbers(9), "d": numbers(9)},
        dict.fromkeys("abcd", 1),
        1,
    )


def test_equal_streams_are_looked_for_without_reading() -> None:
    class Unread(MemorySource):
        @property
        def fingerprint(self) -> str:
            raise AssertionError("read")

    Blend({"a": Unread([{}] * 3), "b": Unread([{}] * 3), "c": Shuffle(Unread([{}] * 3), 1)}, dict.fromkeys("abc", 1), 1)


def test_lanes_must_agree() -> None:
    with pytest.raises(ConfigError, match=r"4 lanes.*'b'"):
        Blend({"a": Shuffle(numbers(9), 1, lanes=4), "b": Shuffle(numbers(9), 2)}, {"a": 1, "b": 1}, 1)
    with pytest.raises(ConfigError, match="lanes=2"):
        Blend({"a": Shuffle(numbers(9), 1)}, {"a": 1}, 1, lanes=2)
    with pytest.raises(ConfigError):
        Blend({"a": numbers(9)}, {"a": 1}, 1, lanes=0)
    assert Blend({"a": numbers(9), "b": Shuffle(numbers(9), 1, lanes=4)}, {"a": 1, "b": 1}, 1).lanes == 4


@pytest.mark.parametrize(
    ("children", "weights"),
    [
        ({}, {}),
        ({"a": numbers(3)}, {}),
        ({"a": numbers(3)}, {"a": 1, "b": 1}),
        ({"": numbers(3)}, {"": 1}),
        ({1: numbers(3)}, {1: 1}),
    ],
)
def test_names_that_do_not_fit(children: Any, weights: Any) -> None:
    with pytest.raises(ConfigError):
        Blend(children, weights, 1)


def test_what_has_no_samples_by_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="'a' is neither"):
        Blend({"a": object()}, {"a": 1}, 1)  # type: ignore[dict-item]


def test_an_empty_child_is_named() -> None:
    empty = Map(Take(numbers(3), 1, 1), lambda sample: sample, name="same")
    with pytest.raises(ConfigError, match=r"the child 'web': an empty source can't be ordered: found 0 samples"):
        Blend({"books": numbers(3), "web": empty}, WEIGHTS, 1)


def test_where_an_empty_child_lies_is_told(tmp_path: Path) -> None:
    (tmp_path / "some.jsonl").write_text('{"n": 1}\n')
    none = Take(open_source(tmp_path / "some.jsonl"), 1, 1)
    with pytest.raises(ConfigError, match=r"some\.jsonl: the child 'web': an empty source"):
        Blend({"books": numbers(3), "web": none}, WEIGHTS, 1)


def test_tokenizers_are_not_mixed_unless_asked() -> None:
    one, other = (Chunk(2)(MemoryTokens([[1, 2, 3, 4]], tokenizer_digest=digest)) for digest in ("t1", "t2"))
    with pytest.raises(ConfigError, match=r"tokenizers.*mixed_tokenizers"):
        Blend({"a": one, "b": Sequential(other)}, {"a": 1, "b": 1}, 1)
    assert Blend({"a": one, "b": other}, {"a": 1, "b": 1}, 1, mixed_tokenizers=True).recipe()["mixed_tokenizers"]


def test_token_ids_come_in_the_widest_width() -> None:
    narrow = Chunk(2)(MemoryTokens([list(range(20))], dtype="uint8"))
    wide = Chunk(2)(MemoryTokens([list(range(20))], dtype="uint32"))
    blend = Blend({"narrow": narrow, "wide": wide}, {"narrow": 1, "wide": 1}, 1)
    assert blend.schema.fields[0].dtype == "uint32"
    batch = blend.get_batch(range(40))["tokens"]
    assert (batch.shape, batch.dtype) == ((40, 2), np.uint32)
    assert {blend[position]["tokens"].dtype for position in range(10)} == {np.dtype(np.uint32)}
    assert {sample["tokens"].dtype for sample in blend.get_resolved_samples(blend.resolve(np.arange(10)))} == {
        np.dtype(np.uint32)
    }


def test_schemas_keep_what_is_common() -> None:
    blend = Blend({"a": Chunk(2)(MemoryTokens([[1] * 9])), "b": numbers(9)}, {"a": 1, "b": 1}, 1)
    assert blend.schema.open
    assert blend.schema.fields == ()
    windows = {"a": Chunk(2)(MemoryTokens([[1] * 9])), "b": Chunk(3)(MemoryTokens([[1] * 9]))}
    schema = Blend(windows, {"a": 1, "b": 1}, 1).schema
    assert not schema.open
    assert schema.fields[0].shape is None


def test_a_batch_of_nothing() -> None:
    assert two().get_batch([]).keys() <= {"n"}
    assert two().resolve(np.empty(0, np.int64)).shape == (0,)


def test_resolved_numbers_that_would_not_fit_are_positions() -> None:
    class Far(MemorySource):
        """A stream whose resolved are huge, or negative."""

        lanes = 1
        sign = 1

        def __len__(self) -> int:
            raise AssertionError

        def resolve(self, positions: Any) -> Any:
            return self.sign * (positions + 2**62)

        def get_resolved(self, resolved: Any) -> Any:
            return {"n": self.sign * resolved - 2**62}

        def get_resolved_samples(self, resolved: Any) -> Any:
            return [{"n": int(number)} for number in self.get_resolved(resolved)["n"]]

        def __getitem__(self, position: int) -> Any:
            return {"n": position}

        def get_batch(self, positions: Any) -> Any:
            return {"n": np.asarray(positions)}

    blend = two()
    for sign in (1, -1):
        far = Far([])
        far.sign = sign
        blend._branches.streams = (far, far)  # type: ignore[assignment]
        blend._branches._ahead = [type(blend._branches._ahead[0])(far)] * 2
        asked = np.arange(100)
        resolved = blend.resolve(asked)
        assert (resolved < 0).all()
        expected = blend.split(asked)[1].tolist()
        assert blend.get_resolved(resolved)["n"].tolist() == expected
        assert [sample["n"] for sample in blend.get_resolved_samples(resolved)] == expected


def test_stand_ins_come_from_the_same_child() -> None:
    blend = two(lanes=4)
    assert isinstance(blend, SupportsSubstitutes)
    for position in (0, 5, 777, 10**9):
        path = blend.locate(position).path
        others = [blend.substitute(position, attempt) for attempt in range(20)]
        assert {blend.locate(other).path for other in others} == {path}
        assert len({blend.locate(other).index for other in (position, *others)}) == 21
    lonely = Blend({"a": numbers(1)}, {"a": 1}, 1)
    with pytest.raises(ConfigError):
        lonely.substitute(0, 0)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3000), st.sampled_from([1, 8, 24]))
def test_reads_are_above_everything_read(stop: int, lanes: int) -> None:
    blend = two(lanes)
    owner, inner = blend.split(np.arange(stop))
    last = {name: int(inner[owner == child].max(initial=-1)) + 1 for child, name in enumerate(blend.counts)}
    assert blend.reads(stop) == last
    _, reached = blend.horizon(stop)
    assert reached == {name: count for name, count in last.items() if count}


def test_reads_of_many_long_lanes_are_a_bound() -> None:
    children = {"a": Sequential(numbers(9), lanes=24), "b": Sequential(numbers(8), lanes=24)}
    blend = Blend(children, {"a": 1, "b": 65535}, 1)
    owner, inner = blend.split(np.arange(100_000))
    for child, bound in enumerate(blend.reads(100_000).values()):
        assert int(inner[owner == child].max(initial=-1)) < bound


def test_memory_is_bounded() -> None:
    blend = Blend({"a": numbers(9), "b": numbers(8)}, {"a": 1, "b": 65535}, 1)
    for position in range(0, 100 * 65536, 65536):
        blend.locate(position)
    assert len(blend._places._pages) <= 17


def test_the_tree_shows_shares_and_counts() -> None:
    blend = two()
    text = str(blend)
    assert "books (77 of 256 = 30.0781%, requested 30.0000%): Shuffle" in text
    assert "[" not in text.splitlines()[0]
    short = blend.fingerprint[:8]
    assert f"[{short}]" in str(blend).splitlines()[0]


def test_what_decides_the_stream_is_in_its_fingerprint() -> None:
    def made(first: float = 0.3, seed: int = 7, lanes: int = 1, name: str = "books", size: int = 50) -> str:
        children = {name: Shuffle(numbers(size), 1, lanes=lanes), "web": Shuffle(numbers(70), 2, lanes=lanes)}
        return Blend(children, {name: first, "web": 0.7}, seed).fingerprint

    others = [made(first=0.4), made(seed=8), made(lanes=2), made(name="tomes"), made(size=51)]
    assert len({made(), *others}) == 6
    # Weights so close that the counts are the same make the same stream.
    assert made(first=0.30001) == made()
    reordered = Blend({"web": Shuffle(numbers(70), 2), "books": Shuffle(numbers(50), 1)}, WEIGHTS, 7)
    assert reordered.fingerprint != made()


def test_weights_stand_in_the_recipe_as_they_were_given() -> None:
    blend = Blend({"a": numbers(3), "b": numbers(4)}, {"a": Fraction(1, 3), "b": 2}, 1)
    assert [child["weight"] for child in blend.recipe()["children"]] == ["1/3", 2]
    assert [child["name"] for child in blend.recipe()["children"]] == ["a", "b"]
