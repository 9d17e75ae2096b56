from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, Corrupt, FormatError, NotFound
from penstock.load.collate import collate_columns
from penstock.load.read import ReadTask, read_batches
from penstock.order import Shuffle


class Failing:
    """Raises an error the first `times` times that an index is read."""

    def __init__(self, error: Exception, times: int, index: int = 0) -> None:
        self.error, self.times, self.index = error, times, index

    def __call__(self, indices: list[int]) -> None:
        if self.index in indices and self.times > 0:
            self.times -= 1
            raise self.error


def one_pass(source: Any, batch_size: int = 4) -> ReadTask:
    length = len(source)
    return ReadTask(source, 0, 1, batch_size, -(-length // batch_size), length, collate_columns, "raise", 0.0)


def endless(stream: Any, *, first: int = 0, stride: int = 1, size: int = 4, limit: float = 0.5) -> ReadTask:
    return ReadTask(stream, first, stride, size, None, None, collate_columns, "substitute", limit)


@given(
    first=st.integers(0, 10**12),
    stride=st.integers(1, 5),
    size=st.integers(1, 9),
    start=st.integers(0, 700),
    step=st.integers(1, 4),
)
def test_batch_u_holds_the_ranks_samples_from_u_times_its_size_on(
    numbers: Any, first: int, stride: int, size: int, start: int, step: int
) -> None:
    stream = Shuffle(numbers(10**9), seed=5)
    batches = read_batches(
        ReadTask(stream, first, stride, size, None, None, collate_columns, "raise", 0.0), start, step
    )
    for place in range(3):
        ranks = (start + place * step) * size + np.arange(size)
        assert next(batches)["id"].tolist() == stream.order(first + stride * ranks).tolist()


def test_orders_ahead_change_nothing_at_their_borders(numbers: Any) -> None:
    stream = Shuffle(numbers(10**9), seed=5)
    task = ReadTask(stream, 0, 1, 256, None, None, collate_columns, "raise", 0.0)
    batches = read_batches(task, 0, 1)
    for start in range(0, 40 * 256, 256):
        assert next(batches)["id"].tolist() == stream.order(np.arange(start, start + 256)).tolist()


@pytest.mark.parametrize(("first", "step"), [(0, 1), (0, 3), (2, 3), (5, 2), (6, 1)])
def test_a_pass_ends_and_says_what_is_valid(numbers: Any, first: int, step: int) -> None:
    batches = list(read_batches(one_pass(numbers(23)), first, step))
    assert len(batches) == len(range(first, 6, step))
    for number, batch in zip(range(first, 6, step), batches, strict=True):
        positions = np.arange(number * 4, number * 4 + 4)
        assert batch["valid"].tolist() == (positions < 23).tolist()
        assert batch["id"].tolist() == (positions % 23).tolist()


@pytest.mark.parametrize("error", [TimeoutError("slow"), ConnectionResetError("gone"), OSError(5, "I/O error")])
def test_input_errors_are_tried_again_and_change_no_data(numbers: Any, error: Exception) -> None:
    waits: list[float] = []
    source = numbers(8, fail=Failing(error, times=3))
    batches = list(read_batches(one_pass(source), 0, 1, waits.append))
    assert [batch["id"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert waits == sorted(waits)
    assert len(waits) == 3


def test_input_errors_are_raised_in_the_end_even_where_substitutes_are_wanted(numbers: Any) -> None:
    waits: list[float] = []
    stream = Shuffle(numbers(100, fail=Failing(TimeoutError("slow"), times=10**9, index=7)), seed=1)
    position = int(stream.inverse(np.array([7]), 0)[0])
    with pytest.raises(TimeoutError, match="slow"):
        next(read_batches(endless(stream, first=position), 0, 1, waits.append))
    assert len(waits) == 3


def test_a_missing_file_and_a_stopped_worker_are_not_tried_again(numbers: Any) -> None:
    waits: list[float] = []
    missing = numbers(8, fail=Failing(NotFound("no such file", path="a.bin"), times=10**9))
    with pytest.raises(NotFound):
        next(read_batches(one_pass(missing), 0, 1, waits.append))
    assert waits == []
    slow = numbers(8, fail=Failing(TimeoutError("slow"), times=1))
    with pytest.raises(TimeoutError):
        next(read_batches(one_pass(slow), 0, 1, lambda _: True))


def bad_from(start: int, error: type[FormatError] = Corrupt) -> Any:
    def fail(indices: list[int]) -> None:
        bad = [index for index in indices if index >= start]
        if bad:
            raise error("bad sample", path="a.bin", offset_bytes=bad[0])

    return fail


@given(stride=st.integers(1, 4), size=st.sampled_from([1, 3, 8]), start=st.integers(0, 500))
def test_a_substitute_depends_on_the_position_alone(numbers: Any, stride: int, size: int, start: int) -> None:
    good, broken = (Shuffle(numbers(100, fail=fail), seed=3) for fail in (None, bad_from(80)))
    batch = next(read_batches(endless(broken, first=start, stride=stride, size=size), 0, 1))
    for place in range(size):
        position = start + stride * place
        index = good[position]["id"]
        assert batch["substituted"][place] == (index >= 80)
        attempts = (good[broken.substitute(position, attempt)]["id"] for attempt in range(64))
        assert batch["id"][place] == (index if index < 80 else next(one for one in attempts if one < 80))


def test_batches_without_a_substitute_say_so(numbers: Any) -> None:
    batch = next(read_batches(endless(Shuffle(numbers(100), seed=3)), 0, 1))
    assert batch["substituted"].tolist() == [False] * 4


def test_more_substitutes_than_their_share_end_the_run(numbers: Any) -> None:
    stream = Shuffle(numbers(100, fail=bad_from(80)), seed=3)
    batches = read_batches(endless(stream, limit=0.05), 0, 1)
    # 20 of 100 positions are bad; up to 50 may be replaced in the first 1,000.
    with pytest.raises(FormatError, match=r"too many samples.*found 51 of about 2\d\d positions.*0\.05.*a\.bin"):
        list(islice(batches, 100))


def test_a_share_of_nothing_allows_nothing(numbers: Any) -> None:
    stream = Shuffle(numbers(100, fail=bad_from(99)), seed=3)
    with pytest.raises(FormatError, match="too many samples"):
        list(islice(read_batches(endless(stream, limit=0.0), 0, 1), 25))


def test_the_own_error_is_raised_where_nothing_can_stand_in(numbers: Any) -> None:
    batches = read_batches(endless(Shuffle(numbers(100, fail=bad_from(0)), seed=3)), 0, 1)
    with pytest.raises(Corrupt, match="bad sample"):
        next(batches)
    alone = read_batches(endless(Shuffle(numbers(1, fail=bad_from(0)), seed=3)), 0, 1)
    with pytest.raises(Corrupt, match="bad sample"):
        next(alone)


def test_other_errors_are_no_reason_for_a_substitute(numbers: Any) -> None:
    stream = Shuffle(numbers(100, fail=Failing(ValueError("a bug"), times=1, index=7)), seed=3)
    with pytest.raises(ValueError, match="a bug"):
        list(islice(read_batches(endless(stream), 0, 1), 25))


def test_a_field_of_the_loaders_own_name_is_refused(numbers: Any) -> None:
    class Named(numbers):
        def get_batch(self, indices: Any, /) -> Any:
            return {"valid": np.asarray(indices)}

    with pytest.raises(ConfigError, match="'valid'"):
        next(read_batches(one_pass(Named(8)), 0, 1))
