"""Planes: arrays beside tokens, one value a token, such as loss masks; and how windows of tokens take them along.

A value belongs to its token. In windows with labels a plane called `loss_mask` is that of the target, and is multiplied
into the window's own; every other plane is that of the input, 0 where the input is made up.
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
"""What to do where they can't go along."""


class Plane(Protocol):
    """One value for each token of a source."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""
        ...

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """[stop - start]: the values of tokens `[start, stop)`."""
        ...

    def gather(self, starts: IntArray, length: int) -> NDArray[Any]:
        """[len(starts), length]: one window a row."""
        ...


def planes_of(source: Any) -> Mapping[str, Plane]:
    """The planes of a token source by name; empty where it has none."""
    return getattr(source, "planes", None) or {}


def require_no_planes(source: Any, what: str, path: str | None = None) -> None:
    """Refuse a source whose planes would be lost without a word; raises `ConfigError`."""
    found = planes_of(source)
    if found:
        raise ConfigError(f"{what} can't have planes", path=path, found=", ".join(found), hint=DROP)


def plane_fields(source: Any, length: int | None, *, labels: bool = False) -> tuple[Field, ...]:
    """The fields of planes in windows of `length` tokens, or documents; a `loss_mask` is in the labels already."""
    planes = planes_of(source).items()
    return tuple(
        Field(name, "ndarray", one.dtype.name, (length,)) for name, one in planes if not (labels and name == LOSS_MASK)
    )


def has_input_planes(source: Any) -> bool:
    """Whether windows with labels take a plane of the inputs along."""
    return not {*planes_of(source)} <= {LOSS_MASK}


def add_planes(
    batch: Batch, source: Any, take: Callable[[Plane, bool], NDArray[Any]], *, labels: bool = False
) -> Batch:
    """A batch of windows with the planes of their source.

    Args:
        batch: columns.
        source: of the tokens.
        take: gives [k, length] of a plane: of the targets where it is asked so, else of the inputs.
        labels: whether the batch has labels: a `loss_mask` then counts where they hold one, and is left out else.
    """
    for name, plane in planes_of(source).items():
        if not labels or name != LOSS_MASK:
            batch[name] = take(plane, False)
        elif LOSS_MASK in batch:
            batch[name] = batch[name] & (take(plane, True) != 0)
    return batch


def of_inputs(values: NDArray[Any], starts: NDArray[np.bool_]) -> NDArray[Any]:
    """[k, L]: of the tokens one earlier, as inputs are of `labels="start-zero"`: 0 where a document begins."""
    moved = np.zeros_like(values)
    np.copyto(moved[:, 1:], values[:, :-1], where=~starts[:, 1:])
    return moved
