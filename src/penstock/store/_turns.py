"""Spreads the first requests of many hosts: all of them begin a run at the same moment, with the same index."""

from __future__ import annotations

import functools
import multiprocessing
import os
from collections.abc import Mapping

from penstock._ending import sleep
from penstock._numbers import count_in

_HOST_S = 0.01


def host_of(environ: Mapping[str, str]) -> tuple[int, int]:
    """(host, number of hosts) of this job, as torchrun, SLURM or Open MPI say; (0, 1) where nobody says it."""
    for host, hosts in (("GROUP_RANK", "GROUP_WORLD_SIZE"), ("SLURM_NODEID", "SLURM_NNODES")):
        found = _number(environ, host), _number(environ, hosts)
        if 0 <= found[0] < found[1]:
            return found
    of_ranks = (
        ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    )
    for names in of_ranks:
        rank, world, local = (_number(environ, name) for name in names)
        if 0 <= rank < world and local > 0:
            return rank // local, -(-world // local)
    return 0, 1


def delay_s(host: int, hosts: int, window_s: float) -> float:
    """When the turn of a host comes: at `host / hosts` of the window, which is 10 ms a host where that is less."""
    return min(window_s, _HOST_S * hosts) * host / hosts


@functools.cache
def await_turn(window_s: float) -> None:
    """Wait for this host's turn, once a process; not in a worker, whose parent has waited, and not on one host."""
    wait_s = delay_s(*host_of(os.environ), window_s)
    if wait_s > 0 and multiprocessing.parent_process() is None:
        sleep(wait_s)


def _number(environ: Mapping[str, str], name: str) -> int:
    number = count_in(environ.get(name, ""))
    return -1 if number is None else number
