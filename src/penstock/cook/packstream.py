"""Packing on the fly: groups of samples whose length is only known after cooking.

A window is a run of inputs of one lane. `select` cuts a window into groups, `merge` makes each group into samples. An
output is addressed by (lane, window, offset), and a resumed run repeats at most one window per lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import GeneratorType
from typing import Any, Literal, TypeAlias

import numpy as np

from penstock._access import Ahead
from penstock._kinds import is_stream
from penstock._naming import function_name
from penstock.abc import Stream
from penstock.errors import ConfigError
from penstock.node.over import OPEN, Node
from penstock.types import Schema

Select: TypeAlias = Callable[[list[Any]], Iterable[Sequence[Any]]]
"""Samples of a window → groups, each a list of positions in the window, or of the samples themselves."""

Merge: TypeAlias = Callable[[list[Any]], Any]
"""Group of samples → one sample; a list or a generator of samples; or None for nothing."""


class PackStream(Node):
    """Lane stream that packs samples on the fly.

    `select` divides the samples of a window into groups, and `merge` turns each group into samples.

    Without `select`, each sample is a group of its own. Without `merge`, groups must have one sample, which is returned
    as it is. `PackStream(stream, 1, merge=fn)` is therefore a filter or a generator: `fn([sample])` returns None, one
    sample, or many.

    Memory: one window of samples per lane.

    Args:
        stream: stream to pack. The result has the same lanes; any world size that divides them can run and resume it.
        window: samples of a lane that are passed to `select` together.
        select: pure function, samples of a window → groups, each a list of samples or of their numbers in the window.
        merge: pure function, samples of a group → one sample, a list or generator of samples, or None.
        leftover: what to do with samples that are in no group: `"error"` or `"drop"`.
        name: identifies the functions in fingerprints and recipes; `module:qualname` of both by default. Change it when
            their results change.

    Raises:
        ConfigError: `stream` isn't a stream, `window` is below 1, or a function has no name and `name` is missing.

    Examples:
        >>> import numpy as np
        >>> import penstock as ps
        >>> def pairs(samples):
        ...     return [[0, 1], [2, 3]]
        >>> def join(group):
        ...     return {"tokens": np.concatenate([sample["tokens"] for sample in group])}
        >>> stream = ps.Shuffle(ps.open("corpus.pbin"), seed=0, lanes=2)
        >>> packed = ps.PackStream(stream, window=4, select=pairs, merge=join, name="pairs-1")
        >>> with ps.Loader(packed, global_batch=2) as loader:
        ...     batch = next(iter(loader))
        >>> len(batch["tokens"])
        2
    """

    kind = "pack-stream"

    def __init__(
        self,
        stream: Stream[Any],
        window: int,
        select: Select | None = None,
        merge: Merge | None = None,
        *,
        leftover: Literal["error", "drop"] = "error",
        name: str | None = None,
    ) -> None:
        if not is_stream(stream):
            raise ConfigError(
                "packing on the fly needs an endless stream of addressable samples",
                found=type(stream).__name__,
                hint="Use a stream such as Shuffle(source, seed, lanes=8)",
            )
        if window < 1:
            raise ConfigError("a window needs at least one sample", found=window)
        if leftover not in ("error", "drop"):
            raise ConfigError("unknown leftover", found=repr(leftover), expected="'error' or 'drop'")
        self.stream = stream
        self.window = window
        self.select = select
        self.merge = merge
        self.leftover = leftover
        self.name = " ".join(_name(fn) for fn in (select, merge)) if name is None else name
        self._ahead = Ahead(stream)

    @property
    def lanes(self) -> int:
        """That of the stream."""
        return self.stream.lanes

    @property
    def schema(self) -> Schema:
        """Open schema: the fields that `merge` returns are unknown."""
        return OPEN

    def outputs(self, lane: int, window: int, /) -> Iterator[Any]:
        """Yield the output samples of window number `window` of a lane.

        Raises:
            ConfigError: `select` returns a sample twice or one that isn't in the window, or leaves samples out.
        """
        for _, made in self._packs(lane, window):
            yield from made

    def origins(self, lane: int, window: int, /) -> list[tuple[int, ...]]:
        """Return, per output of a window, the positions of its group in `stream`. Reads the samples."""
        first = window * self.window
        found: list[tuple[int, ...]] = []
        for places, made in self._packs(lane, window):
            positions = tuple((first + place) * self.lanes + lane for place in places)
            found += [positions for _ in made]
        return found

    def samples_of(self, lane: int, window: int) -> list[Any]:
        """Return the input samples of one window, in order."""
        places = np.arange(window * self.window, (window + 1) * self.window, dtype=np.int64)
        return self._ahead.samples(self._ahead.resolve(places * self.lanes + lane))

    def children(self) -> Mapping[str, Stream[Any]]:
        """Return the stream, under the name `stream`."""
        return {"stream": self.stream}

    def own(self) -> dict[str, Any]:
        return {"window": self.window, "fn": self.name, "leftover": self.leftover}

    def shown(self) -> dict[str, Any]:
        return {"window": self.window, "fn": self.name, "lanes": self.lanes}

    def _packs(self, lane: int, window: int) -> Iterator[tuple[list[int], Iterable[Any]]]:
        """Yield the groups of a window as positions in it, with the result of each."""
        samples = self.samples_of(lane, window)
        groups = [[place] for place in range(len(samples))] if self.select is None else self.select(samples)
        for places in self._checked(groups, samples):
            group = [samples[place] for place in places]
            yield places, _several(_only(group) if self.merge is None else self.merge(group))

    def _checked(self, groups: Iterable[Sequence[Any]], samples: list[Any]) -> list[list[int]]:
        """Return the positions of each group, after checking all groups."""
        by_identity = {id(sample): place for place, sample in enumerate(samples)}
        found = [[_place(one, by_identity, len(samples)) for one in group] for group in groups]
        used = [place for group in found for place in group]
        if len(set(used)) < len(used):
            raise ConfigError("select puts a sample into two groups", found=sorted(used))
        if self.leftover == "error" and len(used) < len(samples):
            raise ConfigError(
                "select omits samples",
                found=f"{len(samples) - len(used)} from a window of {len(samples)}",
                hint="Put each into a group, or use leftover='drop'",
            )
        return found


def _place(one: Any, by_identity: Mapping[int, int], count: int) -> int:
    place = by_identity.get(id(one))
    if place is None and isinstance(one, (int, np.integer)) and 0 <= one < count:
        return int(one)
    if place is None:
        raise ConfigError(
            "select refers to samples outside the window",
            found=repr(one)[:80],
            expected=f"indices 0 to {count - 1}, or the samples passed to it",
        )
    return place


def _only(group: list[Any]) -> Any:
    if len(group) != 1:
        raise ConfigError("a group of several samples needs merge=", found=f"{len(group)} samples")
    return group[0]


def _several(made: Any) -> Iterable[Any]:
    if made is None:
        return ()
    return made if isinstance(made, (list, tuple, GeneratorType)) else (made,)


def _name(fn: Callable[..., Any] | None) -> str:
    hint = "Pass name=, and change it when the functions' results change"
    return "-" if fn is None else function_name(fn, hint=hint)
