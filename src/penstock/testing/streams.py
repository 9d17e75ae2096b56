"""Tests of `penstock.abc.Stream`, as a suite.

class TestMyStream(StreamLaws):
    def make(self):
        return MyStream(…)             # a new one at each call, always with the same arguments
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penstock._kinds import HasHorizon, Seedable, is_stream
from penstock.abc import Source, Stream, SupportsPrefetch, SupportsSubstitutes
from penstock.errors import ConfigError
from penstock.testing.elsewhere import in_a_fork, in_threads, pickled_copy
from penstock.testing.equality import row_matches, same, same_samples
from penstock.testing.sources import FINGERPRINT, SCREEN_LINES
from penstock.testing.strategies import for_all, positions
from penstock.types import Batch, IntArray, Location


def batches_equal(left: Batch, right: Batch) -> bool:
    return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)


def innermost(stream: Any, path: tuple[str, ...]) -> Any:
    """Return the source of a position: by the children named in `path`, and only children."""
    for name in path:
        while name not in stream.children():
            stream = _only_child(stream)
        stream = stream.children()[name]
    while is_stream(stream):
        stream = _only_child(stream)
    return stream


def check_stream(stream: Stream[Any], twin: Stream[Any], seed: int = 0) -> None:
    """Check some random positions, single and as a batch, against an equal stream."""
    asked = np.random.default_rng(seed).integers(0, 10_000, 20)
    batch = stream.get_batch(asked)
    for row, position in enumerate(asked.tolist()):
        sample = twin[position]
        assert same(stream[position], sample)
        assert row_matches(batch, row, sample)


class StreamLaws:
    """Tests of a stream: inherit the class and define `make`.

    Attributes:
        make: function that returns the stream, a new one at each call, with equal arguments.
        maps: the stream changes samples, so that `stream[p]` isn't `source[locate(p).index]`.

    Examples:
        >>> import penstock as ps
        >>> from penstock.testing import MemorySource, StreamLaws
        >>> class TestMyStream(StreamLaws):
        ...     def make(self):
        ...         return ps.Shuffle(MemorySource([{"text": text} for text in "abc"]), seed=1)

        pytest runs all laws. To run one:

        >>> TestMyStream().test_far_positions()
    """

    make: Callable[[], Stream[Any]]
    maps: bool = False

    def test_it_is_a_stream(self) -> None:
        stream = self.make()
        assert is_stream(stream)
        assert stream.lanes >= 1

    def test_positions_are_pure(self) -> None:
        stream, twin = self.make(), self.make()

        @for_all(positions(10**6, max_size=10))
        def law(asked: IntArray) -> None:
            forward = [stream[position] for position in asked.tolist()]
            backward = [twin[position] for position in reversed(asked.tolist())]
            assert all(map(same, forward, reversed(backward)))

    def test_rows_of_a_batch(self) -> None:
        stream = self.make()

        @for_all(positions(10**6, max_size=20))
        def law(asked: IntArray) -> None:
            batch = stream.get_batch(asked)
            for row, position in enumerate(asked.tolist()):
                assert row_matches(batch, row, stream[position])

    def test_far_positions(self) -> None:
        stream = self.make()
        asked = np.array([10**12, 10**12 + 1], dtype=np.int64)
        batch = stream.get_batch(asked)
        assert row_matches(batch, 1, stream[10**12 + 1])
        assert stream.locate(10**12).position == 10**12

    def test_negative_positions(self) -> None:
        stream = self.make()
        for wrong in (lambda: stream[-1], lambda: stream.get_batch([0, -1]), lambda: stream.locate(-1)):
            with pytest.raises(IndexError):
                wrong()

    def test_locate(self) -> None:
        stream = self.make()

        @for_all(positions(10**6, max_size=10))
        def law(asked: IntArray) -> None:
            for position in asked.tolist():
                place: Location = stream.locate(position)
                source: Source[Any] = innermost(stream, place.path)
                assert place.position == position
                assert place.epoch >= 0
                assert 0 <= place.index < len(source)
                assert self.maps or same(stream[position], source[place.index])

    def test_pickled_copy(self) -> None:
        stream = self.make()
        check_stream(pickled_copy(stream), stream)
        assert pickled_copy(stream).fingerprint == stream.fingerprint

    def test_threads(self) -> None:
        stream, twin = self.make(), self.make()
        in_threads(lambda number: check_stream(stream, twin, number))

    def test_fork(self) -> None:
        stream, twin = self.make(), self.make()
        check_stream(stream, twin)
        in_a_fork(lambda: check_stream(stream, twin, 1))

    def test_fingerprint(self) -> None:
        stream = self.make()
        assert FINGERPRINT.match(stream.fingerprint)
        check_stream(stream, self.make())
        assert stream.fingerprint == self.make().fingerprint

    def test_recipe_is_plain_json(self) -> None:
        recipe = self.make().recipe()
        assert json.loads(json.dumps(recipe, allow_nan=False)) == recipe
        assert recipe == self.make().recipe()

    def test_prints_a_screen(self) -> None:
        assert 1 <= len(str(self.make()).splitlines()) <= SCREEN_LINES

    def test_resolve(self) -> None:
        stream = self.make()
        if isinstance(stream, SupportsPrefetch):
            asked = np.random.default_rng(0).integers(0, 10**6, 64)
            resolved = stream.resolve(asked)
            assert resolved.dtype == np.int64
            assert resolved.shape == asked.shape
            for part in (slice(0, 64), slice(0, 1), slice(5, 40)):
                assert batches_equal(stream.get_resolved(resolved[part]), stream.get_batch(asked[part]))

    def test_samples_by_resolved_position(self) -> None:
        stream = self.make()
        if isinstance(stream, SupportsPrefetch):
            asked = np.random.default_rng(1).integers(0, 10**6, 20)
            samples = stream.get_resolved_samples(stream.resolve(asked))
            assert same_samples(samples, [stream[position] for position in asked.tolist()])

    def test_horizon(self) -> None:
        stream = self.make()
        if isinstance(stream, HasHorizon):
            for stop in (1, 2, 1000, 10**6):
                params, children = stream.horizon(stop)
                assert json.loads(json.dumps(params, allow_nan=False)) == params
                assert children.keys() <= stream.children().keys()
                assert all(below >= 0 for below in children.values())

    def test_seeds_that_are_filled_in(self) -> None:
        stream = self.make()
        if isinstance(stream, Seedable):
            filled, other = stream.seeded(5), stream.seeded(6)
            assert filled.fingerprint == stream.seeded(5).fingerprint
            # The copy has no open files.
            again: Any = filled
            assert again.seeded(7).fingerprint == filled.fingerprint
            assert (other.fingerprint == filled.fingerprint) == (filled.fingerprint == stream.fingerprint)

    def test_substitutes(self) -> None:
        stream, twin = self.make(), self.make()
        if isinstance(stream, SupportsSubstitutes) and isinstance(twin, SupportsSubstitutes):
            for position in (0, 17, 10**6):
                try:
                    stands_in = [stream.substitute(position, attempt) for attempt in range(2)]
                except ConfigError:
                    continue  # too few samples are an error of the child
                assert len({position, *stands_in}) == 3
                assert stands_in == [twin.substitute(position, attempt) for attempt in range(2)]
                assert {stream.locate(one).path for one in stands_in} == {stream.locate(position).path}


def _only_child(node: Any) -> Any:
    children = node.children()
    # Next to `stream` or `source` are stores of files, which aren't sources of positions.
    for name in ("stream", "source"):
        if name in children:
            return children[name]
    assert len(children) == 1, f"locate() doesn't return which of {list(children)} a position comes from"
    return next(iter(children.values()))
