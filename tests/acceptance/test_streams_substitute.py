"""An unreadable sample is replaced from its own child, and nothing else moves."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import Corrupt, FormatError
from penstock.testing import MemorySource


class Damaged(MemorySource):
    """Samples in `bad` can't be read."""

    bad: tuple[int, ...] = ()

    def get_batch(self, indices: Any, /) -> Any:
        if set(np.asarray(indices).tolist()) & set(self.bad):
            raise Corrupt("damaged sample", path="web/shard-3.tar")
        return super().get_batch(indices)


def stream(bad: tuple[int, ...], lanes: int = 1) -> ps.Blend:
    web = Damaged([{"n": 1000 + i} for i in range(70)])
    web.bad = bad
    books = MemorySource([{"n": i} for i in range(50)])
    return ps.Blend({"books": books, "web": web}, {"books": 0.3, "web": 0.7}, 7, lanes=lanes)


@pytest.mark.parametrize(("lanes", "workers"), [(1, 0), (1, 2), (4, 0)])
def test_stand_ins_come_from_the_same_child_and_nothing_shifts(lanes: int, workers: int) -> None:
    whole, damaged = stream((), lanes), stream((4, 41), lanes)
    expected = whole.get_batch(range(320))["n"]
    run = ps.Loader(damaged, 16, rank=0, world=1, workers=workers, on_error="substitute", substitute_limit=0.1)
    batches = list(islice(run, 20))
    found = np.concatenate([batch["n"] for batch in batches])
    replaced = np.concatenate([batch["substituted"] for batch in batches])
    assert replaced.tolist() == np.isin(expected, [1004, 1041]).tolist()
    assert replaced.sum() >= 4
    assert (found[~replaced] == expected[~replaced]).all()
    assert (found[replaced] >= 1000).all()
    assert not np.isin(found, [1004, 1041]).any()


def test_the_limit_is_a_share_of_the_child() -> None:
    damaged = stream(tuple(range(40)))
    run = iter(ps.Loader(damaged, 16, rank=0, world=1, workers=0, on_error="substitute", substitute_limit=0.05))
    with pytest.raises(FormatError, match="too many samples of web"):
        list(islice(run, 1000))


def test_far_positions_know_the_share_too() -> None:
    damaged = stream((4,))
    start = 16 * 10**10
    run = iter(ps.Loader(damaged, 16, rank=0, world=1, start=start, workers=0, on_error="substitute"))
    assert sum(next(run)["substituted"].sum() for _ in range(20)) > 0
