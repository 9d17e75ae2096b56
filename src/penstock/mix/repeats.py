"""Find datasets that a mix reads under two names, so that their samples count twice."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from penstock._printable import path_as_given
from penstock._secrets import redact
from penstock.errors import PenstockError
from penstock.mix.auxiliary import AuxSource, AuxStream
from penstock.mix.join import JoinedSource
from penstock.mix.stages import Stages
from penstock.node.walk import UNNAMED
from penstock.order.take import TakenSource
from penstock.store.place import is_url


@dataclass(frozen=True, slots=True)
class _Reading:
    """One node that reads a dataset, or its rows `[start, stop)`.

    `stages` maps the id of each `Stages` node above to the number of the stage in which this node reads.
    """

    name: str = ""
    source: Any = None
    start: int = 0
    stop: int | None = None
    stages: Mapping[int, int] = field(default_factory=dict[int, int])

    def meets(self, other: _Reading) -> bool:
        """Return whether both may read the same row, at one time of the run."""
        starts, stops = max(self.start, other.start), [one for one in (self.stop, other.stop) if one is not None]
        is_same_time = all(other.stages.get(node, stage) == stage for node, stage in self.stages.items())
        return self.name != other.name and is_same_time and (not stops or starts < min(stops))


def repeats_by_path(data: Any) -> list[str]:
    """Describe each dataset that is read under two names, by its path with links resolved; reads no data."""
    return list(_repeats(data, _location))


def repeats_by_content(data: Any) -> list[str]:
    """Describe the same by fingerprints, which also detect copies of a dataset."""
    return list(_repeats(data, lambda source: source.fingerprint))


def _repeats(data: Any, identify: Callable[[Any], str]) -> Iterator[str]:
    readings: dict[str, list[_Reading]] = {}
    for one in _readings(data, _Reading()):
        recipe = _recipe_of(one.source)
        if "path" in recipe:  # other options are a different use, such as for another task: not a repetition
            options = {key: value for key, value in recipe.items() if key != "path"}
            key = json.dumps([identify(one.source), options], sort_keys=True, default=str)
            readings.setdefault(key, []).append(one)
    for several in readings.values():
        pairs = ((first, second) for first, second in combinations(several, 2) if first.meets(second))
        for first, second in {(first.name, second.name): (first, second) for first, second in pairs}.values():
            paths = " and ".join(dict.fromkeys(_path_of(one) for one in (first, second)))
            yield (
                f"{first.name or 'source'} and {second.name or 'source'} read the same samples ({paths}): "
                "each counts twice. Use the dataset once with the sum of both weights, or use parts that don't overlap"
            )


def _readings(node: Any, above: _Reading) -> Iterator[_Reading]:
    children: Mapping[str, Any] = node.children()
    if isinstance(node, AuxSource | AuxStream):
        yield from _readings(node.below, above)
    elif isinstance(node, TakenSource):
        stop = node.stop if above.stop is None else min(node.stop, node.start + above.stop)
        yield from _readings(node.source, replace(above, start=node.start + above.start, stop=stop))
    elif not children:
        yield replace(above, source=node)
    elif isinstance(node, JoinedSource):  # its members are read together, under one name
        for child in children.values():
            yield from _readings(child, replace(above, start=0, stop=None))
    else:
        is_single = len(children) == 1
        for number, (name, child) in enumerate(children.items()):
            below = above if is_single else replace(above, start=0, stop=None)
            if isinstance(node, Stages):
                below = replace(below, stages={**below.stages, id(node): number})
            if name not in UNNAMED:
                below = replace(below, name=f"{below.name}/{name}" if below.name else name)
            yield from _readings(child, below)


def _recipe_of(source: Any) -> dict[str, Any]:
    try:
        return source.recipe()
    except PenstockError:  # made of a function that no recipe can name
        return {}


def _location(source: Any) -> str:
    return json.dumps([one if is_url(one) else os.path.realpath(one) for one in _listed(source.recipe()["path"])])


def _path_of(reading: _Reading) -> str:
    return redact(", ".join(map(path_as_given, _listed(reading.source.recipe()["path"]))))


def _listed(path: str | list[str]) -> list[str]:
    return [path] if isinstance(path, str) else path
