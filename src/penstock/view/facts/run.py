"""Facts of a run: the tree of its mix with requested and exact shares, and the reads of each source over its steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock._kinds import is_finite, is_lane_stream, is_stream
from penstock._printable import recordable
from penstock._secrets import redact
from penstock.errors import ConfigError
from penstock.load.history import History, steps_until, stretch_of
from penstock.load.metrics import SourceMetrics, sources_so_far
from penstock.load.plan import SourcePlan, once, plan
from penstock.mix import Blend, Epochs, Stages
from penstock.view.facts.opening import MOST_NODES, OpenedRun

MOST_POINTS = 200
"""Default number of points of a curve."""

MOST_CURVES = 50


@dataclass(frozen=True, slots=True)
class Node:
    """Stage of a run, or a source.

    Attributes:
        name: name among its siblings; empty for the root.
        path: names from the root, separated by slashes.
        kind: type of the node, such as `"Blend"`.
        about: one-line description, with its parameters.
        asked: its requested share of its parent; None if there isn't one.
        share: its exact share; None without siblings, or if they follow each other.
        until: end position of a stage; None for the last one and other nodes.
        of: number of all children.
    """

    name: str
    path: str
    kind: str
    about: str
    asked: float | None
    share: float | None
    until: int | None
    samples: int | None
    children: tuple[Node, ...]
    of: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Reads of a run.

    Attributes:
        samples: samples of the run; `steps`: None if the batch size is unknown.
        global_batch, world: as requested.
        tokens, padding, size_bytes, requests, cache_bytes: totals; None if unknown.
        estimated: how padding, bytes and requests were estimated, in words; None if all samples were examined.
    """

    samples: int
    steps: int | None
    global_batch: int | None
    world: int | None
    tokens: int | None
    padding: float | None
    size_bytes: int | None
    requests: int
    cache_bytes: int
    estimated: str | None
    sources: tuple[SourcePlan, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """Reads of one source before each of the steps of `Curves`.

    Attributes:
        samples, epochs: so far.
        tokens: so far; None if samples have no fixed number of tokens.
        share: share of the samples since the previous step.
    """

    path: str
    samples: tuple[int, ...]
    epochs: tuple[float, ...]
    tokens: tuple[int, ...] | None
    share: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Curves:
    """Reads over the steps of a run.

    Attributes:
        global_batch: samples per step, the last value if it changed.
        curves: curves of the sources, the most frequently read first; `of`: number of all sources.
        marks: step and name of the beginning of each stage.
    """

    steps: tuple[int, ...]
    global_batch: int
    curves: tuple[Curve, ...]
    of: int
    marks: tuple[tuple[int, str], ...]


def tree(run: OpenedRun) -> Node:
    """Return the tree of the mix, of at most 500 stages and sources."""
    return _node(run.data, "", "", None, None, None, [MOST_NODES])


def plan_of(run: OpenedRun, steps: int | None = None) -> Plan:
    """Return the reads of a run; arguments and errors as of `penstock.load.plan.plan`."""
    return as_plan(plan(run.data, global_batch=run.global_batch, world=run.world, steps=steps))


def as_plan(found: Mapping[str, Any]) -> Plan:
    """Return the result of `penstock.load.plan.plan` as a `Plan`."""
    names = {name: "bytes" if name == "size_bytes" else name for name in SourcePlan.__dataclass_fields__}
    return Plan(
        samples=found["samples"],
        steps=found["steps"],
        global_batch=found["global_batch"],
        world=found["world"],
        tokens=found["tokens"],
        padding=found["padding"],
        size_bytes=found["bytes"],
        requests=found["requests"],
        cache_bytes=found["cache_bytes"],
        estimated=estimated(found["sources"]),
        sources=tuple(SourcePlan(**{name: row[key] for name, key in names.items()}) for row in found["sources"]),
        warnings=tuple(found["warnings"]),
    )


def estimated(sources: Sequence[Mapping[str, Any]]) -> str | None:
    """Describe how much of a plan's sources was examined for its estimates; None if all."""
    some = [one["looked_at"] for one in sources if one["looked_at"] < one["samples"]]
    return f"estimated from {max(some):,} samples per source" if some else None


def curves(run: OpenedRun, steps: int | None = None, points: int = MOST_POINTS) -> Curves:
    """Return the reads of each source over the steps of a run, by arithmetic only.

    Raises:
        ConfigError: the batch size is unknown, or the stream packs on the fly, so that its steps are unknown in
            advance.
    """
    if is_lane_stream(run.data):
        raise ConfigError("the number of samples that a stream packing on the fly reads is only known once it runs")
    history = run.shape().history
    end: int | None = None if is_stream(run.data) else len(run.data)
    if steps is None:
        end = once(run.data)  # as in a plan: the last step may read more
        last = max(1, steps_until(history, end))
    else:
        last = steps
    last = last if end is None else min(last, steps_until(history, end))
    marks = tuple(_marks(run.data, history, last))
    at = np.unique(np.linspace(0, last, min(points, last + 1)).astype(np.int64)).tolist()
    inside = [step for step, _ in marks if 0 < step < last]
    at = sorted({*at, *inside[:points]})
    consumed = [stretch_of(history, step).consumed_at(step) for step in at]
    read = [sources_so_far(run.data, one if end is None else min(one, end)) for one in consumed]
    names = list(dict.fromkeys(name for one in read for name in one))
    names.sort(key=lambda name: -read[-1][name].samples if name in read[-1] else 0)
    made = tuple(_curve(name, read) for name in names[:MOST_CURVES])
    return Curves(tuple(at), history[-1].global_batch, made, len(names), marks)


def _curve(name: str, read: Sequence[Mapping[str, SourceMetrics]]) -> Curve:
    nothing = SourceMetrics(0, 0.0, 0)
    rows = [one.get(name, nothing) for one in read]
    samples = [one.samples for one in rows]
    totals = [sum(one.samples for one in step.values()) for step in read]
    share = [0.0]
    for place in range(1, len(rows)):
        gone = totals[place] - totals[place - 1]
        share.append((samples[place] - samples[place - 1]) / gone if gone else 0.0)
    if len(share) > 1:
        share[0] = share[1]
    tokens = None if any(one.tokens is None for one in rows) else tuple(one.tokens or 0 for one in rows)
    return Curve(_shown(name), tuple(samples), tuple(one.epochs for one in rows), tokens, tuple(share))


def _marks(node: Any, history: History, last: int) -> Iterator[tuple[int, str]]:
    """Yield the beginnings of stages, of the outermost stages."""
    if isinstance(node, Stages):
        for border, name in zip(node.borders, list(node.children())[1:], strict=True):
            step = steps_until(history, border + 1) - 1  # the step that reads the first sample of the stage
            if step <= last:
                yield step, _shown(name)
        return
    children = node.children()
    if len(children) == 1 and is_stream(next(iter(children.values()))):
        yield from _marks(next(iter(children.values())), history, last)


def _node(
    node: Any, name: str, above: str, asked: float | None, share: float | None, until: int | None, left: list[int]
) -> Node:
    left[0] -= 1
    children: Mapping[str, Any] = node.children() if hasattr(type(node), "children") else {}
    shares, ends = _shares(node), _ends(node)
    below: list[Node] = []
    for one, child in children.items():
        if left[0] <= 0:
            break
        place = f"{above}/{one}" if above else one
        below.append(_node(child, one, place, *shares.get(one, (None, None)), ends.get(one), left))
    about = str(node.summary()) if hasattr(type(node), "summary") else type(node).__name__
    samples = len(node) if not children and is_finite(node) else None
    kind = about.partition(" ")[0]
    return Node(
        _shown(name), _shown(above), kind, _shown(about), asked, share, until, samples, tuple(below), len(children)
    )


def _shares(node: Any) -> dict[str, tuple[float | None, float | None]]:
    """Return name of a child → its requested and its exact share."""
    if isinstance(node, Blend):
        total = sum(float(weight) for weight in node.weights.values())
        return {
            name: (float(node.weights[name]) / total, count / node.block_size) for name, count in node.counts.items()
        }
    if isinstance(node, Epochs):
        whole = sum(node.counts.values())
        return {name: (None, count / whole if whole else None) for name, count in node.counts.items()}
    return {}


def _ends(node: Any) -> dict[str, int]:
    return dict(zip(node.children(), node.borders, strict=False)) if isinstance(node, Stages) else {}


def _shown(text: str) -> str:
    return redact(recordable(text))
