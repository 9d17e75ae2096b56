"""Planes: per-token arrays stored next to the tokens, such as loss masks, and their columns in token windows.

A value belongs to its token. In windows with labels a plane called `loss_mask` is that of the target, and is multiplied
with the window's own. Every other plane is that of the input, 0 if the input is artificial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.types import Batch, Field, IntArray

LOSS_MASK = "loss_mask"
DROP = "Drop the planes: planes=None (--planes none)"
"""Hint for operations that don't support planes."""


class Plane(Protocol):
    """One value per token of a source."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return [stop - start]: the values of the tokens `[start, stop)`."""
        ...

    def gather(self, starts: IntArray, length: int) -> NDArray[Any]:
        """Return [len(starts), length]: one window per row."""
        ...


def planes_of(source: Any) -> Mapping[str, Plane]:
    """Return the planes of a token source by name; empty without planes."""
    return getattr(source, "planes", None) or {}


def require_no_planes(source: Any, what: str, path: str | None = None) -> None:
    """Raise `ConfigError` if a source has planes, which would be lost silently."""
    found = planes_of(source)
    if found:
        raise ConfigError(f"{what} can't have planes", path=path, found=", ".join(found), hint=DROP)


def plane_fields(source: Any, length: int | None, *, labels: bool = False) -> tuple[Field, ...]:
    """Return the fields of planes in windows of `length` tokens, or documents; labels already contain a `loss_mask`."""
    planes = planes_of(source).items()
    return tuple(
        Field(name, "ndarray", one.dtype.name, (length,)) for name, one in planes if not (labels and name == LOSS_MASK)
    )


def has_input_planes(source: Any) -> bool:
    """Return whether windows with labels contain planes of the inputs."""
    return not {*planes_of(source)} <= {LOSS_MASK}


def add_planes(
    batch: Batch, source: Any, take: Callable[[Plane, bool], NDArray[Any]], *, labels: bool = False
) -> Batch:
    """Return a batch of windows with the planes of their source.

    Args:
        batch: columns.
        source: token source of the windows.
        take: returns [k, length] of a plane: of the targets if its second argument is true, else of the inputs.
        labels: whether the batch has labels: a `loss_mask` plane is only used if they have one.
    """
    for name, plane in planes_of(source).items():
        if not labels or name != LOSS_MASK:
            batch[name] = take(plane, False)
        elif LOSS_MASK in batch:
            batch[name] = batch[name] & (take(plane, True) != 0)
    return batch


def of_inputs(values: NDArray[Any], starts: NDArray[np.bool_]) -> NDArray[Any]:
    """Return [k, L]: values of the previous token, as inputs of `labels="start-zero"`: 0 at the start of a document."""
    moved = np.zeros_like(values)
    np.copyto(moved[:, 1:], values[:, :-1], where=~starts[:, 1:])
    return moved
