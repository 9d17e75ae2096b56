"""A loader's arguments."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.load import Loader
from penstock.load.options import mixed_border
from penstock.mix import Stages
from penstock.order import Shuffle


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_batch": 0}, "a number of samples"),
        ({"global_batch": -4}, "a number of samples"),
        ({"workers": 0, "worker_kind": "fibers"}, "unknown worker_kind"),
        ({"timeout_seconds": -1}, "timeout_seconds=-1"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds=nan"),
    ],
)
def test_what_can_not_be(numbers: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Loader(Shuffle(numbers(9), 1), **{"global_batch": 4, "rank": 0, "world": 1, **options})


def test_stages_that_begin_inside_a_batch_are_told(numbers: Any, caplog: pytest.LogCaptureFixture) -> None:
    stages = Stages([(100, Shuffle(numbers(9), 1)), (60, Shuffle(numbers(9), 2)), (None, Shuffle(numbers(9), 3))])
    assert mixed_border(stages, 0, 20) is None
    assert mixed_border(stages, 0, 25) == 160
    assert mixed_border(stages, 4, 20) == 100
    assert mixed_border(stages, 110, 50) is None
    assert mixed_border(stages, 120, 50) == 160
    assert mixed_border(Shuffle(numbers(9), 1), 0, 7) is None
    with caplog.at_level(logging.WARNING, "penstock"):
        Loader(stages, 20, rank=0, world=1)
        assert caplog.messages == []
        Loader(stages, 25, rank=0, world=1)
    assert "the stage at position 160 starts" in caplog.text
