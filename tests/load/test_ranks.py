from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.load.options import data_parallel


class Mesh:
    ndim = 1

    def get_local_rank(self) -> int:
        return 2

    def size(self) -> int:
        return 4


class Group:
    def rank(self) -> int:
        return 1

    def size(self) -> int:
        return 3


class Mesh2d(Mesh):
    ndim = 2
    mesh_dim_names = ("dp", "tp")


def test_given_ranks_win_over_the_environment() -> None:
    environ = {"RANK": "5", "WORLD_SIZE": "8"}
    assert data_parallel(1, 2, environ=environ) == (1, 2)
    assert data_parallel(None, None, mesh=Mesh(), environ=environ) == (2, 4)
    assert data_parallel(None, None, group=Group(), environ=environ) == (1, 3)
    assert data_parallel(None, None, environ={}) == (0, 1)
    assert data_parallel(None, None, environ={"RANK": "3"}) == (0, 1)


def test_the_environment_is_used_with_one_line_that_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock")
    assert data_parallel(None, None, environ={"RANK": "5", "WORLD_SIZE": "8"}) == (5, 8)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "rank 5 of 8" in record.getMessage()
    caplog.clear()
    assert data_parallel(None, None, environ={"RANK": "0", "WORLD_SIZE": "1"}) == (0, 1)
    assert [one.levelno for one in caplog.records] == [logging.INFO]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 1, "world": None}, "must be given together"),
        ({"rank": None, "world": 4}, "must be given together"),
        ({"rank": 4, "world": 4}, "no such rank"),
        ({"rank": -1, "world": 4}, "no such rank"),
        ({"rank": 0, "world": 0}, "no such rank"),
        ({"rank": 0, "world": 1, "mesh": Mesh()}, "more than once"),
        ({"rank": None, "world": None, "mesh": Mesh(), "group": Group()}, "more than once"),
        ({"rank": None, "world": None, "mesh": Mesh2d()}, "more than one dimension"),
        ({"rank": None, "world": None, "environ": {"RANK": "a", "WORLD_SIZE": "2"}}, "not numbers"),
        ({"rank": None, "world": None, "environ": {"RANK": "2", "WORLD_SIZE": "2"}}, "no such rank"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        data_parallel(**arguments)
