"""Tests of `penstock.abc.Order`, as a suite.

class TestMyOrder(OrderLaws):
    golden = {(10, 7, 0): [3, 1, …]}

    def make(self, n, seed):
        return MyOrder(n, seed)
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import strategies as st

from penstock.abc import Order
from penstock.testing.elsewhere import pickled_copy
from penstock.testing.strategies import for_all, positions
from penstock.types import IntArray


def epoch_positions(n: int, epoch: int) -> IntArray:
    """Return int64[n]: all positions of one epoch."""
    return np.arange(epoch * n, (epoch + 1) * n, dtype=np.int64)


class OrderLaws:
    """Tests of an order: inherit the class and define `make` and `golden`.

    Attributes:
        make: `make(n, seed)` returns the order of `n` samples.
        golden: (n, seed, first position) → the indices from there. They never change under one `version`.
        version: version name of the order in `golden`.
        shuffles: whether seeds and epochs change the order.
        largest: largest `n` to test; memory must not depend on it. 0 if the order's memory is tested otherwise.

    Examples:
        >>> from penstock.order import SequentialOrder
        >>> from penstock.testing import OrderLaws
        >>> class TestMyOrder(OrderLaws):
        ...     version = "sequential-1"
        ...     golden = {(3, 0, 2): [2, 0, 1]}
        ...     shuffles = False
        ...
        ...     def make(self, n, seed):
        ...         return SequentialOrder(n)

        pytest runs all laws. To run one:

        >>> TestMyOrder().test_golden()
    """

    make: Callable[[int, int], Order]
    golden: Mapping[tuple[int, int, int], list[int]]
    version: str
    shuffles: bool = True
    largest: int = 10**12

    def test_every_epoch_is_a_bijection(self) -> None:
        @for_all(st.integers(1, 300), st.integers(0, 2**63), st.one_of(st.integers(0, 5), st.integers(0, 10**9)))
        def law(n: int, seed: int, epoch: int) -> None:
            indices = self.make(n, seed).order(epoch_positions(n, epoch))
            assert indices.dtype == np.int64
            assert np.array_equal(np.sort(indices), np.arange(n))

    def test_an_epoch_of_many(self) -> None:
        n = 100_003
        indices = self.make(n, 1).order(epoch_positions(n, 2))
        assert np.array_equal(np.sort(indices), np.arange(n))

    def test_one_equals_many(self) -> None:
        @for_all(st.integers(1, 300), st.integers(0, 2**63), positions(5000, max_size=20))
        def law(n: int, seed: int, asked: IntArray) -> None:
            order = self.make(n, seed)
            assert order.order(asked).tolist() == [order.order_one(position) for position in asked.tolist()]

    def test_the_split_of_a_question_does_not_matter(self) -> None:
        order = self.make(257, 3)
        asked = np.random.default_rng(0).integers(0, 2000, 500)
        whole = order.order(asked)
        assert np.array_equal(whole, np.concatenate([order.order(part) for part in np.array_split(asked, 7)]))
        assert order.order(asked[:0]).tolist() == []

    def test_inverse(self) -> None:
        @for_all(st.integers(1, 300), st.integers(0, 2**63), st.one_of(st.integers(0, 5), st.integers(0, 10**9)))
        def law(n: int, seed: int, epoch: int) -> None:
            order = self.make(n, seed)
            indices = np.arange(n, dtype=np.int64)
            found = order.inverse(indices, epoch)
            assert found.dtype == np.int64
            assert ((found >= epoch * n) & (found < (epoch + 1) * n)).all()
            assert np.array_equal(order.order(found), indices)

    def test_bounds(self) -> None:
        order = self.make(10, 0)
        for wrong in (lambda: order.order(np.array([-1])), lambda: order.order_one(-1)):
            with pytest.raises(IndexError):
                wrong()
        for index in (-1, 10):
            with pytest.raises(IndexError):
                order.inverse(np.array([index]), 0)

    def test_huge(self) -> None:
        if not self.largest:
            return
        n = self.largest
        order = self.make(n, 5)
        asked = np.array([0, 1, n - 1, n, 3 * n - 1, 999 * n + n // 2], dtype=np.int64)
        indices = order.order(asked)
        assert ((indices >= 0) & (indices < n)).all()
        assert indices.tolist() == [order.order_one(position) for position in asked.tolist()]
        for position, index in zip(asked.tolist(), indices.tolist(), strict=True):
            assert order.inverse(np.array([index]), position // n).tolist() == [position]

    def test_memory_does_not_grow_with_the_dataset(self) -> None:
        if not self.largest:
            return
        asked = np.arange(1000, dtype=np.int64)
        self.make(1000, 5).order(asked)
        tracemalloc.start()
        try:
            self.make(self.largest, 5).order(asked)
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()

    def test_seeds_and_epochs(self) -> None:
        n = 1000
        # Seed 1 in epoch 0 and seed 0 in epoch 1 must differ too: seeds are hashed, not added.
        asked = [(0, 0), (1, 0), (2**64, 0), (0, 1), (1, 1), (-1, 2)]
        orders = [self.make(n, seed).order(epoch_positions(n, epoch)).tobytes() for seed, epoch in asked]
        if self.shuffles:
            assert len(set(orders)) == len(orders)
        else:
            assert len(set(orders[:3])) == len(set(orders[3:5])) == 1

    def test_equal_parameters_make_equal_orders(self) -> None:
        asked = np.arange(500, dtype=np.int64)
        order = self.make(77, 9)
        expected = order.order(asked)
        assert np.array_equal(order.order(asked), expected)
        assert np.array_equal(self.make(77, 9).order(asked), expected)
        assert np.array_equal(pickled_copy(order).order(asked), expected)

    def test_golden(self) -> None:
        assert self.golden
        assert self.make(5, 1).version == self.version
        for (n, seed, start), expected in self.golden.items():
            asked = np.arange(start, start + len(expected), dtype=np.int64)
            assert self.make(n, seed).order(asked).tolist() == expected, (n, seed, start)
