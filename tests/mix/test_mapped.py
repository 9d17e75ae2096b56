"""`Map`: a function over sources and over streams."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.internals import is_stream

from penstock.errors import ConfigError
from penstock.mix import Map
from penstock.order import Sequential, Shuffle, Skip
from penstock.testing.memory import MemorySource
from penstock.testing.sources import SourceLaws
from penstock.testing.streams import StreamLaws
from penstock.types import Sample

SAMPLES: list[Sample] = [{"n": n} for n in range(20)]


def squared(sample: Sample) -> Sample:
    return {"n": sample["n"] ** 2, "ones": np.ones(sample["n"] % 2)}


def negated(sample: Sample) -> Sample:
    return {"n": -sample["n"]}


class TestMappedSource(SourceLaws):
    @pytest.fixture
    def source(self) -> Any:
        return Map(MemorySource(SAMPLES), squared)

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return [squared(sample) for sample in SAMPLES]


class TestMappedStream(StreamLaws):
    maps = True

    def make(self) -> Any:
        return Map(Shuffle(MemorySource(SAMPLES), 3, lanes=2), squared)


def test_columns_are_arrays_where_shapes_agree() -> None:
    batch = Map(MemorySource(SAMPLES), squared).get_batch([1, 3, 2])
    assert batch["n"].tolist() == [1, 9, 4]
    assert [len(ones) for ones in batch["ones"]] == [1, 1, 0]
    assert Map(MemorySource(SAMPLES), squared).get_batch([1, 3])["ones"].shape == (2, 1)


def test_kind_follows_what_is_mapped() -> None:
    source = MemorySource(SAMPLES)
    assert not is_stream(Map(source, squared))
    stream = Map(Sequential(source, lanes=3), squared)
    assert is_stream(stream)
    assert stream.lanes == 3
    assert stream[7] == squared(SAMPLES[stream.locate(7).index])


def test_a_function_needs_a_name() -> None:
    source = MemorySource(SAMPLES)
    function = partial(squared)
    with pytest.raises(ConfigError, match="name="):
        Map(source, function)
    assert Map(source, function, name="squared-2").recipe()["fn"] == "squared-2"
    assert Map(source, squared).recipe()["fn"].endswith(":squared")


def test_the_function_decides_the_fingerprint() -> None:
    source = MemorySource(SAMPLES)
    stream = Shuffle(source, 3)
    mapped = [Map(source, squared), Map(source, negated), Map(source, squared, name="v2")]
    mapped += [Map(stream, squared), Map(stream, negated)]
    assert len({each.fingerprint for each in mapped}) == len(mapped)


def test_stand_ins_are_those_of_the_stream() -> None:
    stream = Shuffle(MemorySource(SAMPLES), 3)
    assert Map(stream, squared).substitute(5, 0) == stream.substitute(5, 0)


class NoStandIns:
    """A stream that names no stand-ins."""

    lanes = 1

    def __getitem__(self, position: int, /) -> Sample:
        return {"n": position}

    def locate(self, position: int, /) -> Any:
        return position


@pytest.mark.parametrize("wrap", [lambda stream: Map(stream, squared), lambda stream: Skip(stream, [])])
def test_a_stream_without_stand_ins(wrap: Any) -> None:
    with pytest.raises(ConfigError, match="no substitutes"):
        wrap(NoStandIns()).substitute(0, 0)


def test_horizon_passes_through() -> None:
    stream = Map(Skip(Shuffle(MemorySource(SAMPLES), 3), [(2, 4)]), squared)
    own, children = stream.horizon(10)
    assert own == {"kind": "map", "fn": stream.name}
    assert children == {"stream": 10}
    assert stream.children()["stream"].horizon(10)[1] == {"stream": 12}
