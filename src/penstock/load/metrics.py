"""Statistics of a loader: where the time went, and how much of each source was read."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock._kinds import HasHorizon, is_finite, is_token_source

_STARVING = 0.05


@dataclass(frozen=True, slots=True)
class SourceMetrics:
    """How much of one source was read, over all ranks.

    Attributes:
        epochs: passes over the source so far.
        tokens: tokens in these samples, if all samples have equally many; None if unknown.
    """

    samples: int
    epochs: float
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Metrics:
    """Statistics of a loader since it was created, with seconds and bytes of this rank.

    Attributes:
        consumed: global samples of these steps.
        batches: number of iterations.
        size_bytes: bytes of the arrays and byte strings in the batches.
        substituted: unreadable samples that were replaced.
        training_seconds: time between batches.
        ready: batches, or parts of them, that are prefetched and ready now.
        stages: stage → seconds in the workers: `order`, `read`, `collate`, and functions by name.
        sources: path in the tree → how much of the source was read, if that is known without reading data.
    """

    step: int
    consumed: int
    batches: int
    samples: int
    size_bytes: int
    substituted: int
    waiting_seconds: float
    training_seconds: float
    ready: int
    stages: Mapping[str, float]
    workers: int
    sources: Mapping[str, SourceMetrics]

    def profile(self) -> str:
        """Return a table that shows which stage slows down the training, if any."""
        total = self.waiting_seconds + self.training_seconds
        share = self.waiting_seconds / total if total else 0.0
        busy = sum(self.stages.values())
        available = max(busy, total * max(1, self.workers), 1e-9)
        rows = sorted(self.stages.items(), key=lambda item: -item[1])
        rows.append(("idle", max(0.0, available - busy)))
        width = max(len(name) for name, _ in rows)
        lines = [
            f"{self.batches:,} batches in {total:.2f} s: {self.waiting_seconds:.2f} s ({share:.0%}) waiting, "
            f"{self.training_seconds:.2f} s training",
            f"{self.workers} workers:",
            *(
                f"  {name:<{width}}  {seconds:8.2f} s  {seconds / available if available else 0:4.0%}"
                for name, seconds in rows
            ),
        ]
        if share <= _STARVING or not busy:
            lines.append("Training doesn't wait for data.")
        else:
            lines.append(f"Training waits for data. The workers spend most of their time on: {rows[0][0]}")
        return "\n".join(lines)


@dataclass(slots=True)
class Meter:
    batches: int = 0
    samples: int = 0
    size_bytes: int = 0
    substituted: int = 0
    waiting_seconds: float = 0.0
    training_seconds: float = 0.0
    stages: dict[str, float] = field(default_factory=dict[str, float])
    _delivered_at: float | None = None

    def delivered(self, batch: Any, seconds: Mapping[str, float], samples: int, asked_at: float) -> None:
        if self._delivered_at is not None:
            self.training_seconds += asked_at - self._delivered_at
        self._delivered_at = time.perf_counter()
        self.waiting_seconds += self._delivered_at - asked_at
        self.batches += 1
        self.samples += samples
        for stage, spent in seconds.items():
            self.stages[stage] = self.stages.get(stage, 0.0) + spent
        if isinstance(batch, dict):
            columns: dict[str, Any] = batch
            self.size_bytes += sum(map(_size_bytes, columns.values()))
            replaced = columns.get("substituted")
            if replaced is not None:
                self.substituted += int(replaced.sum())


def sources_so_far(data: Any, consumed: int) -> dict[str, SourceMetrics]:
    """Return how much of each source below `data` was read after `consumed` samples, if known."""
    found: dict[str, SourceMetrics] = {}
    _walk(data, "source", consumed, None, found)
    return found


def _walk(node: Any, place: str, reads: int, tokens: int | None, found: dict[str, SourceMetrics]) -> None:
    if tokens is None:
        tokens = _tokens_of_sample(node)
    children: Mapping[str, Any] = node.children()
    if isinstance(node, HasHorizon):
        reached = node.horizon(reads)[1] if reads else dict.fromkeys(children, 0)
        several = len(children) > 1
        for name, count in reached.items():
            _walk(children[name], _below(place, name) if several else place, count, tokens, found)
    elif is_finite(node):
        length = len(node)
        in_all = None if tokens is None else tokens * reads
        found[place] = SourceMetrics(reads, reads / length if length else 0.0, in_all)
    elif len(children) == 1:
        [child] = children.values()
        _walk(child, place, reads, tokens, found)


def _below(place: str, name: str) -> str:
    return name if place == "source" else f"{place}/{name}"


def _tokens_of_sample(node: Any) -> int | None:
    """Return the number of tokens per sample, if it is in the schema."""
    if is_token_source(node):
        return None
    for one in node.schema.fields:
        if one.kind == "tokens" and one.shape is not None and len(one.shape) == 1:
            return one.shape[0]
    return None


def _size_bytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    if hasattr(type(value), "nbytes"):
        with contextlib.suppress(Exception):  # a sparse tensor has the attribute but no value
            return int(value.nbytes)
        return 0
    if isinstance(value, (bytes, bytearray)):
        return len(value)
    if isinstance(value, list):
        items: list[Any] = value
        kinds = set(map(type, items))
        if kinds == {bytes}:
            return sum(map(len, items))
        # Names, numbers and notes have no size: most columns are recognized by their types.
        if not any(hasattr(kind, "nbytes") or issubclass(kind, (bytes, bytearray, list)) for kind in kinds):
            return 0
        return sum(map(_size_bytes, items))
    return 0
