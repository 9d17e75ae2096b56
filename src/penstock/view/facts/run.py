"""A run: the tree of its mix with asked and exact shares, and what is read of each source over its steps."""

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
"""Steps at which a curve has a point, unless fewer are asked for."""

MOST_CURVES = 50


@dataclass(frozen=True, slots=True)
class Node:
    """A stage of a run, or a source.

    Attributes:
        name: among its siblings; the empty text for the root.
        path: names from the root, with slashes between.
        kind: what it is, such as `"Blend"`.
        about: the same in a line, with its parameters.
        asked: its share of what is above it, as asked for; None where nobody asks.
        share: the exact share; None where it has no siblings, or takes turns with them.
        until: of a stage, the position at which it ends; None for the last one, and elsewhere.
        samples: of a source.
        children: what it draws from.
        of: how many of them there are.
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
    """What a run reads.

    Attributes:
        samples: of the run; `steps`: None where the batch is not known.
        global_batch, world: as asked.
        tokens, padding, size_bytes, requests, cache_bytes: in all; None where they are not known.
        estimated: how padding, bytes and requests were found, in words; None where all samples were looked at.
        sources: each of them.
        warnings: what is odd, in sentences.
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
    """What was read of one source before each of the steps of `Curves`.

    Attributes:
        path: of the source.
        samples, epochs: so far.
        tokens: so far; None where samples hold no fixed number of them.
        share: of the samples since the step before.
    """

    path: str
    samples: tuple[int, ...]
    epochs: tuple[float, ...]
    tokens: tuple[int, ...] | None
    share: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Curves:
    """What is read over the steps of a run.

    Attributes:
        steps: at which there is a point, rising.
        global_batch: samples of a step, of the last ones if that changed.
        curves: of the sources, those that are read most first; `of`: how many sources there are.
        marks: step and name, where a stage begins.
    """

    steps: tuple[int, ...]
    global_batch: int
    curves: tuple[Curve, ...]
    of: int
    marks: tuple[tuple[int, str], ...]


def tree(run: OpenedRun) -> Node:
    """The tree of the mix, of at most 500 stages and sources."""
    return _node(run.data, "", "", None, None, None, [MOST_NODES])


def plan_of(run: OpenedRun, steps: int | None = None) -> Plan:
    """What a run reads; arguments and errors as of `penstock.load.plan.plan`."""
    return as_plan(plan(run.data, global_batch=run.global_batch, world=run.world, steps=steps))


def as_plan(found: Mapping[str, Any]) -> Plan:
    """What `penstock.load.plan.plan` gives, as a value."""
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
    """How much of the sources of a plan was looked at for what it estimates; None where it was all."""
    some = [one["looked_at"] for one in sources if one["looked_at"] < one["samples"]]
    return f"estimated from {max(some):,} samples per source" if some else None


def curves(run: OpenedRun, steps: int | None = None, points: int = MOST_POINTS) -> Curves:
    """What is read of each source over the steps of a run: arithmetic alone, nothing is read.

    Args:
        run: it.
        steps: how many; by default until every source was read once.
        points: at most so many.

    Raises:
        ConfigError: the batch size is unknown, or the stream packs on the fly, so that its steps are known only when
            they are read.
    """
    if is_lane_stream(run.data):
        raise ConfigError("the number of samples that a stream packing on the fly reads is only known once it runs")
    history = run.shape().history
    end: int | None = None if is_stream(run.data) else len(run.data)
    if steps is None:
        end = once(run.data)  # as a plan has it, where the last step may read beyond
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
    """Where stages begin, of the outermost stages that there are."""
    if isinstance(node, Stages):
        for border, name in zip(node.borders, list(node.children())[1:], strict=True):
            step = steps_until(history, border + 1) - 1  # the step that reads the first sample of the stage
            if step <= last:
                yield step, _shown(name)
        return
    children = node.children()
    if len(children) == 1 and is_stream(next(iter(children.values()))):
        yield from _marks(next(iter(children.values())), history, last)


# --- the tree ------------------------------------------------------------------------------------------------------


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
    """Name of a child → its share as asked for, and the exact one."""
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
