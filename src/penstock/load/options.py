"""Arguments of a loader, checked once, and the data-parallel rank of this process."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from penstock._kinds import is_lane_stream, is_stream
from penstock._secrets import logger
from penstock.abc import SupportsSubstitutes
from penstock.errors import ConfigError
from penstock.load.collate import Collate
from penstock.load.read import OnError

Tail = Literal["pad", "drop"]


@dataclass(frozen=True, slots=True)
class Options:
    data: Any
    global_batch: int
    rank: int
    world: int
    micro_batch: int
    tail: Tail | None
    collate: Collate
    on_error: OnError
    substitute_limit: float

    def __post_init__(self) -> None:
        _check_tail(self.data, self.tail)
        if self.on_error not in ("raise", "substitute"):
            raise ConfigError("unknown on_error", found=repr(self.on_error), expected="'raise' or 'substitute'")
        if self.on_error == "substitute" and not isinstance(self.data, SupportsSubstitutes):
            raise ConfigError(
                "unreadable samples can't be replaced here",
                found=f"a {type(self.data).__name__}, which has no substitutes",
                hint="One pass reads each sample once: use on_error='raise', or an endless stream such as Shuffle",
            )
        if not 0 <= self.substitute_limit <= 1:
            raise ConfigError("substitute_limit must be a fraction", found=self.substitute_limit, expected="0 to 1")

    @property
    def micro_batches(self) -> int:
        return self.global_batch // (self.world * self.micro_batch)


def mixed_border(data: Any, consumed: int, global_batch: int) -> int | None:
    """Return the first border of `Stages` inside a batch if batches are cut from `consumed` on, or None."""
    borders: tuple[int, ...] = getattr(data, "borders", ())
    return next((border for border in borders if border > consumed and (border - consumed) % global_batch), None)


def samples_per_iteration(global_batch: int, world: int, micro_batch: int | None) -> int:
    """Return `micro_batch`; by default all of a rank's samples of a step.

    Raises:
        ConfigError: `global_batch` isn't a multiple of world × micro_batch; the nearest multiples are listed.
    """
    if micro_batch is not None and micro_batch < 1:
        raise ConfigError("micro_batch must be a number of samples", found=micro_batch, expected="1 or more")
    if global_batch < 1:
        raise ConfigError("global_batch must be a number of samples", found=global_batch, expected="1 or more")
    unit = world * (micro_batch or 1)
    if global_batch % unit:
        below = global_batch // unit * unit
        name = "world" if micro_batch is None else f"world × micro_batch = {world} × {micro_batch}"
        raise ConfigError(
            f"global_batch must be a multiple of {name} = {unit}",
            found=global_batch,
            expected=" or ".join(str(value) for value in (below, below + unit) if value >= unit),
        )
    return global_batch // world if micro_batch is None else micro_batch


def _check_tail(data: Any, tail: str | None) -> None:
    if tail not in (None, "pad", "drop"):
        raise ConfigError("no such tail", found=repr(tail), expected="'pad' or 'drop'")
    endless = is_stream(data) or is_lane_stream(data)
    if endless and tail is not None:
        raise ConfigError(
            "an endless stream has no tail",
            found=f"tail={tail!r}",
            hint="Pass a source for one pass, or omit tail",
        )
    if not endless and tail is None:
        raise ConfigError(
            "one pass over a source needs a rule for its last, short batch",
            expected="tail='pad' (repeats, marked by valid=False) or tail='drop'",
            hint="For endless training, use a stream such as Shuffle(source, seed) or Sequential(source)",
        )


_log = logger()


def data_parallel(
    rank: int | None,
    world: int | None,
    mesh: Any = None,
    group: Any = None,
    environ: Mapping[str, str] = os.environ,
) -> tuple[int, int]:
    """Return (rank, world): the arguments, else from the torch mesh or group, else from RANK and WORLD_SIZE.

    Raises:
        ConfigError: several of the three are given, one of rank and world is missing, or they contradict each other.
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
    # With one process nothing can go wrong. With more, tensor-parallel peers would read different data.
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
