"""The first requests of a job's hosts are spread over a window, by the host's number."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from penstock.store import _objects
from penstock.store.remote import RemoteStore
from penstock.testing import FileServer

ENVIRONMENTS: list[tuple[dict[str, str], tuple[int, int]]] = [
    ({}, (0, 1)),
    ({"RANK": "9", "WORLD_SIZE": "16"}, (0, 1)),  # how many of them share a host is not known
    ({"RANK": "9", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, (1, 2)),
    ({"RANK": "9", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "16"}, (0, 1)),
    ({"GROUP_RANK": "3", "GROUP_WORLD_SIZE": "4", "RANK": "30"}, (3, 4)),
    ({"SLURM_NODEID": "5", "SLURM_NNODES": "64"}, (5, 64)),
    ({"SLURM_NODEID": "5", "SLURM_NNODES": "many"}, (0, 1)),
    ({"OMPI_COMM_WORLD_RANK": "7", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, (1, 2)),
]


@pytest.mark.parametrize(("environ", "expected"), ENVIRONMENTS)
def test_host_of(environ: dict[str, str], expected: tuple[int, int]) -> None:
    assert _objects.host_of(environ) == expected


def test_turns_fill_the_window_evenly() -> None:
    turns = [_objects.delay_s(host, 2048, 10.0) for host in range(2048)]
    assert turns[0] == 0
    assert turns == sorted(turns)
    for second in range(10):
        assert 204 <= sum(second <= turn < second + 1 for turn in turns) <= 206
    assert max(_objects.delay_s(host, 8, 10.0) for host in range(8)) < 0.08  # few hosts hardly wait
    assert _objects.delay_s(0, 1, 10.0) == _objects.delay_s(7, 8, 0.0) == 0


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Seconds slept by host 32 of 64.

    The variables are set before the cache is cleared: a thread left by another test may send its request in between,
    and its turn would be remembered.
    """
    found: list[float] = []
    monkeypatch.setattr(_objects.SlowRequests, "waiting", lambda *_: contextlib.nullcontext())  # its thread sleeps too
    monkeypatch.setattr(_objects, "sleep", found.append)
    monkeypatch.setenv("SLURM_NODEID", "32")
    monkeypatch.setenv("SLURM_NNODES", "64")
    _objects.await_turn.cache_clear()
    yield found
    _objects.await_turn.cache_clear()


def test_a_process_waits_once_before_its_first_request(slept: list[float]) -> None:
    with FileServer({"a": b"abc"}) as server:
        for _ in range(2):
            assert RemoteStore(server.url).get(f"{server.url}/a") == b"abc"
    assert slept == [0.32]


@pytest.mark.parametrize("off", [{"PENSTOCK_REMOTE_SPREAD_S": "0"}, {"SLURM_NNODES": "1", "SLURM_NODEID": "0"}])
def test_off(slept: list[float], off: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in off.items():
        monkeypatch.setenv(name, value)
    _objects.await_turn.cache_clear()
    slept.clear()
    with FileServer({"a": b"abc"}) as server:
        assert RemoteStore(server.url).get(f"{server.url}/a") == b"abc"
    assert slept == []
