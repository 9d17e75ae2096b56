"""`Epochs`: exact repetitions, fractions that go on."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.load import Loader
from penstock.mix import Blend, Concat, Epochs, Map
from penstock.order import Sequential, Shuffle
from penstock.testing.memory import MemorySource
from penstock.testing.sources import SourceLaws
from penstock.testing.streams import StreamLaws
from penstock.types import Sample


def numbers(length: int, first: int = 0) -> MemorySource:
    return MemorySource([{"n": first + i} for i in range(length)])


def epochs() -> Epochs:
    return Epochs({"a": (numbers(10), 2), "b": (Shuffle(numbers(9, 100), 3), 0.5), "c": (numbers(0), 3)})


class TestSource(SourceLaws):
    @pytest.fixture
    def source(self) -> Epochs:
        return epochs()

    @pytest.fixture
    def expected(self) -> list[Sample]:
        b = Shuffle(numbers(9, 100), 3)
        return [*({"n": i % 10} for i in range(20)), *(b[place] for place in range(4))]


class TestShuffled(StreamLaws):
    maps = True  # later passes hold what `source[index]` of the first one does not

    def make(self) -> Any:
        return Shuffle(epochs(), 5)


class TestInBlocks(StreamLaws):
    maps = True

    def make(self) -> Any:
        return Shuffle(epochs(), 5, mode="blocks", lanes=2, block_size=3, open_blocks=2)


class TestInOrder(StreamLaws):
    maps = True

    def make(self) -> Any:
        return Sequential(epochs())


def values(source: Any) -> list[int]:
    return [source[index]["n"] for index in range(len(source))]


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.fractions(Fraction(1, 3), 3)), min_size=1, max_size=4),
    st.integers(1, 5),
    st.integers(1, 7),
)
def test_counts_are_exact_for_every_world_size(children: list[tuple[int, Fraction]], world: int, micro: int) -> None:
    usable = {str(i): pair for i, pair in enumerate(children) if pair[0] * pair[1] >= 1}
    if not usable:
        return
    source = Epochs({name: (numbers(size, 100 * int(name)), times) for name, (size, times) in usable.items()})
    assert source.counts == {name: int(size * times) for name, (size, times) in usable.items()}
    seen: Counter[int] = Counter()
    for rank in range(world):
        for batch in Loader(source, world * micro, rank=rank, world=world, tail="pad", workers=0):
            seen.update(batch["n"][batch["valid"]].tolist())
    assert seen == Counter(values(source))


def test_a_second_pass_goes_on_in_the_permutation() -> None:
    child = Shuffle(numbers(10), 7)
    stream = Sequential(Epochs({"a": (child, 0.4)}))
    found = stream.get_batch(range(20))["n"].tolist()
    assert found == child.get_batch(range(20))["n"].tolist()
    assert sorted(found[:10]) == list(range(10))


def test_a_later_pass_as_a_source() -> None:
    source = Epochs({"a": (Shuffle(numbers(10), 7), 0.4), "b": (numbers(3, 100), 1)})
    stream = Sequential(source)
    for number in range(4):
        later = source.of_pass(number)
        assert values(later) == stream.get_batch(range(7 * number, 7 * number + 7))["n"].tolist()
        assert later.fingerprint == Epochs.of_pass(source, number).fingerprint
    assert source.of_pass(1).of_pass(2).fingerprint == source.of_pass(3).fingerprint
    assert len({source.of_pass(number).fingerprint for number in range(4)}) == 4
    assert source.of_pass(2).recipe()["first_pass"] == 2
    with pytest.raises(ConfigError):
        source.of_pass(-1)


def test_each_epoch_of_a_shuffle_is_one_pass() -> None:
    source = Epochs({"a": (numbers(10), 2), "b": (Shuffle(numbers(9, 100), 3), 0.5)})
    stream = Shuffle(source, 1)
    for epoch in range(5):
        held = stream.get_batch(range(24 * epoch, 24 * epoch + 24))["n"].tolist()
        assert sorted(held) == sorted(values(source.of_pass(epoch)))


def test_locate_names_the_child_and_its_own_epoch() -> None:
    child = Shuffle(numbers(9, 100), 3)
    stream = Shuffle(Epochs({"a": (numbers(10), 2), "b": (child, 0.5)}), 1)
    assert isinstance(stream.source, Epochs)
    for position in (0, 7, 100, 10**12):
        at = stream.locate(position)
        inner = {"a": numbers(10), "b": numbers(9, 100)}[at.path[0]]
        assert stream[position] == inner[at.index]
        assert at.position == position
    # 24 places a pass; place 23 is the fourth sample of b in its pass.
    assert Sequential(stream.source).locate(24 * 9 + 23).epoch == (9 * 4 + 3) // 9


def test_blocks_are_those_of_the_children() -> None:
    blocks = Concat([numbers(3), numbers(4, 10)])
    assert Epochs({"a": (blocks, 2), "b": (numbers(5), 1)}).block_starts.tolist() == [0, 3, 7, 10, 14, 19]
    assert Epochs({"a": (blocks, Fraction(9, 7))}).block_starts.tolist() == [0, 3, 7, 9]
    assert Epochs({"a": (blocks, Fraction(9, 7))}).of_pass(1).block_starts.tolist() == [0, 1, 5, 8, 9]


def test_epochs_are_found_through_what_keeps_them() -> None:
    source = Epochs({"a": (Map(Shuffle(numbers(10), 1), _double), 1.5)})
    assert source.counts == {"a": 15}
    with pytest.raises(ConfigError, match="no epochs"):
        Epochs({"a": (Blend({"b": numbers(3)}, {"b": 1}, 1), 1)})


def _double(sample: Sample) -> Sample:
    return {"n": 2 * sample["n"]}


@pytest.mark.parametrize("times", [0, -1, float("nan"), "2", None, 0.01])
def test_repetitions_that_are_none(times: Any) -> None:
    with pytest.raises(ConfigError):
        Epochs({"a": (numbers(10), times)})


def test_nothing_to_read() -> None:
    with pytest.raises(ConfigError):
        Epochs({})
    empty = Epochs({"a": (numbers(0), 2)})
    assert (len(empty), empty.get_batch([]), empty.schema.open) == (0, {}, True)
    assert empty.block_starts.tolist() == [0]
    with pytest.raises(ConfigError):
        Shuffle(empty, 1)


def test_the_tree_shows_repetitions() -> None:
    assert "b (0.5 times = 4 samples): Shuffle" in str(epochs())


def test_it_prefers_what_its_children_do() -> None:
    class Far(MemorySource):
        preferred_mode = "blocks"

    assert Epochs({"a": (Far([{}]), 1), "b": (numbers(3), 1)}).preferred_mode == "blocks"
    assert epochs().preferred_mode == "global"


def test_stand_ins_are_of_the_same_child() -> None:
    stream = Shuffle(Epochs({"a": (numbers(10), 2), "b": (numbers(3, 100), 1)}), 1)
    at_b = next(position for position in range(23) if stream.locate(position).path == ("b",))
    others = {stream[stream.substitute(at_b, attempt)]["n"] for attempt in range(2)}
    assert len(others) == 2
    assert min(others) >= 100
    with pytest.raises(ConfigError):
        stream.substitute(at_b, 2)
