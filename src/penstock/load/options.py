"""A loader's arguments, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from penstock._kinds import is_lane_stream, is_stream
from penstock.abc import SupportsSubstitutes
from penstock.errors import ConfigError
from penstock.load.collate import Collate
from penstock.load.read import OnError

Tail = Literal["pad", "drop"]


@dataclass(frozen=True, slots=True)
class Options:
    """The checked arguments of a loader.

    Attributes:
        data: a stream or a lane stream, or a source where `tail` is given.
        global_batch: samples of a step, all ranks together.
        rank: data-parallel rank.
        world: number of data-parallel ranks.
        micro_batch: samples of an iteration of this rank.
        tail: what happens to the last, short batch of a pass.
        collate: makes what is delivered from columns.
        on_error: what happens to a sample that can't be read.
        substitute_limit: share of a child's positions that may be replaced.
    """

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
        """Iterations of this rank in a step."""
        return self.global_batch // (self.world * self.micro_batch)


def mixed_border(data: Any, consumed: int, global_batch: int) -> int | None:
    """The first border of `Stages` that lies inside a batch when batches are cut from `consumed` on; None for none."""
    borders: tuple[int, ...] = getattr(data, "borders", ())
    return next((border for border in borders if border > consumed and (border - consumed) % global_batch), None)


def samples_per_iteration(global_batch: int, world: int, micro_batch: int | None) -> int:
    """`micro_batch`, or all of a rank's samples of a step where it is None.

    Raises:
        ConfigError: `global_batch` is no multiple of world × micro_batch; it lists the nearest that are.
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
