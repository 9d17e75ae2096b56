"""Which data-parallel rank this process is."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from penstock._secrets import logger
from penstock.errors import ConfigError

_log = logger()


def data_parallel(
    rank: int | None,
    world: int | None,
    mesh: Any = None,
    group: Any = None,
    environ: Mapping[str, str] = os.environ,
) -> tuple[int, int]:
    """(rank, world): as given, else of the torch mesh or process group, else from RANK and WORLD_SIZE, else (0, 1).

    Args:
        rank: number of this process among those that read different data.
        world: how many of them there are.
        mesh: one-dimensional torch `DeviceMesh`, such as `mesh["dp"]`.
        group: torch `ProcessGroup`.
        environ: environment variables.

    Raises:
        ConfigError: two of the three are given, one of rank and world is missing, or they don't fit each other.
    """
    given = [name for name, value in (("rank and world", rank), ("mesh", mesh), ("group", group)) if value is not None]
    if len(given) > 1:
        raise ConfigError("the rank is given more than once", found=", ".join(given), expected="one of them")
    if (rank is None) != (world is None):
        raise ConfigError("rank and world must be given together", found=f"rank={rank}, world={world}", expected="both")
    if rank is not None and world is not None:
        return _checked(rank, world)
    if mesh is not None:
        return _of_mesh(mesh)
    if group is not None:
        return _checked(int(group.rank()), int(group.size()))
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return _of_environment(environ["RANK"], environ["WORLD_SIZE"])
    return 0, 1


def _of_mesh(mesh: Any) -> tuple[int, int]:
    if getattr(mesh, "ndim", 1) != 1:
        raise ConfigError(
            "the mesh has more than one dimension",
            found=getattr(mesh, "mesh_dim_names", None) or f"{mesh.ndim} dimensions",
            expected="the data-parallel one",
            hint='Pass only that dimension, such as mesh["dp"]',
        )
    return _checked(int(mesh.get_local_rank()), int(mesh.size()))


def _of_environment(rank_text: str, world_text: str) -> tuple[int, int]:
    try:
        rank, world = int(rank_text), int(world_text)
    except ValueError as error:
        raise ConfigError(
            "RANK and WORLD_SIZE are not numbers",
            found=f"RANK={rank_text!r}, WORLD_SIZE={world_text!r}",
            hint="Pass rank= and world=, or unset them",
        ) from error
    # With one process there is nothing to get wrong; with more, tensor-parallel peers would read different data.
    _log.log(
        logging.WARNING if world > 1 else logging.INFO,
        "data-parallel rank %d of %d, taken from RANK and WORLD_SIZE. If processes share data "
        "(tensor or pipeline parallelism), pass rank= and world=, mesh= or group=",
        rank,
        world,
    )
    return _checked(rank, world)


def _checked(rank: int, world: int) -> tuple[int, int]:
    if world < 1 or not 0 <= rank < world:
        raise ConfigError("no such rank", found=f"rank {rank} of {world}", expected="0 <= rank < world")
    return rank, world
