"""Cooking of the raw samples of a source or a stream, each determined by its position."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, overload

import numpy as np

from penstock._access import Ahead
from penstock._arrays import as_positions, stack
from penstock._kinds import is_stream
from penstock._threads import report
from penstock.abc import Source, Stream, SupportsFiles
from penstock.cook.cookers import Bound, Cooker, Cookers, CookFn
from penstock.cook.crude import CrudeSample, Origin
from penstock.cook.stores import FileStore, stores_of
from penstock.errors import ConfigError
from penstock.mix.auxiliary import aux_of
from penstock.node.over import ChangedStream, ChangedView, Changes
from penstock.node.walk import UNNAMED, children_of
from penstock.types import Batch, IntArray

RESTORE_KIND = "cook"
SAMPLE = "sample"
_STAGE = "cook"

GivenCookers = CookFn | Cooker | Sequence[CookFn | Cooker] | Cookers


@overload
def cook(x: Stream[Any], cookers: GivenCookers, *, seed: int = 0) -> CookedStream: ...
@overload
def cook(x: Source[Any], cookers: GivenCookers, *, seed: int = 0) -> CookedSource: ...
def cook(x: Source[Any] | Stream[Any], cookers: GivenCookers, *, seed: int = 0) -> CookedSource | CookedStream:
    """Apply cook functions to the samples of a source or a stream, such as crude Energon samples.

    The first cooker with `has_subflavors` that match the sample's `__subflavors__` is used. Its function gets the
    auxiliary stores of the sample's dataset by name, and `primary` and `rng` if it has such parameters. `rng` is a
    numpy Generator made from (seed, position), so a sample is the same after resuming and for any number of workers and
    ranks, and differs between the epochs of a stream. The function's input contains `__restore_key__`, `("cook",
    position)`: the function may copy it, and `restore` makes the cooked sample again from it.

    Args:
        x: source or stream of dicts. A `Crude` source below it defines the dataset and its stores.
        cookers: functions and `Cooker`s, tried in order.
        seed: seed of `rng`.

    Returns:
        A source if `x` is a source, else a stream.

    Raises:
        ConfigError: `cookers` is empty, or one has no name.

    Examples:
        >>> import penstock as ps
        >>> from penstock.cook import Cooker, cook
        >>> def caption_only(sample):
        ...     return {"text": sample["txt"].decode()}
        >>> cooked = cook(ps.open("pictures", raw=True), Cooker(caption_only, name="caption-1"))
        >>> cooked[1]["text"]
        'picture 1'
    """
    chosen = cookers if isinstance(cookers, Cookers) else Cookers.of(cookers)
    cooks = CookerDispatch(chosen, seed, x)
    return CookedStream(x, cooks) if is_stream(x) else CookedSource(x, cooks)  # pyright: ignore[reportArgumentType]


class Cooks(Protocol):
    """Function from a raw sample and its position to a sample: pure, and picklable if sent to other processes."""

    @property
    def identity(self) -> list[Any]:
        """Everything besides the raw sample that determines a cooked one, as plain JSON, for fingerprints."""
        ...

    def __call__(self, sample: Any, position: int, /) -> Any:
        """Return the cooked sample; may change the raw one."""
        ...

    def cook_all(self, samples: Iterable[Any], positions: Iterable[int], /) -> list[Any]: ...


class CookerDispatch:
    """Cooking by the first cooker that matches, bound once per dataset and subflavors."""

    def __init__(self, cookers: Cookers, seed: int, below: Any) -> None:
        self.cookers = cookers
        self.seed = seed
        self._below = below
        self._default = _origin_of(below)
        self._names = cookers.names
        self._bound: dict[tuple[int, str], tuple[Origin, Bound]] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return (CookerDispatch, (self.cookers, self.seed, self._below))

    def __call__(self, sample: Any, position: int, /) -> Any:
        """Return the cooked sample; sets the restore key of the raw one."""
        if not isinstance(sample, dict):
            raise ConfigError("only samples that are dicts can be cooked", found=type(sample).__name__)
        sample["__restore_key__"] = (RESTORE_KIND, position)
        return self.bound(sample)(sample, self.seed, position)

    def cook_all(self, samples: Iterable[Any], positions: Iterable[int], /) -> list[Any]:
        return list(map(self, samples, positions))

    def bound(self, sample: Any) -> Bound:
        origin = sample.origin if isinstance(sample, CrudeSample) else self._default
        subflavors = sample.get("__subflavors__")
        # The origin is stored too, so that its id isn't reused.
        place = (id(origin), repr(subflavors) if subflavors else "")
        found = self._bound.get(place)
        if found is None:
            found = origin, self.cookers.bind(subflavors, origin.aux, origin.primary)
            self._bound[place] = found
        return found[1]

    @property
    def identity(self) -> list[Any]:
        """Everything besides the raw sample that determines a cooked one, as plain JSON."""
        return [self._names, self.seed]


class _Cooked(Changes):
    kind, title = "cook", "Cook"
    cooks: Cooks

    def __reduce__(self) -> tuple[object, ...]:
        [below] = self.children().values()
        return (type(self), (below, self.cooks))

    def own(self) -> dict[str, Any]:
        return {"cookers": self.cooks.identity}

    def shown(self) -> dict[str, Any]:
        first = self.cooks.identity[0]
        return {"fn": ",".join(name for name, _ in first) if isinstance(first, list) else str(first)}

    def change(self, sample: Any, number: int) -> Any:
        return self.cooks(_own(sample), number)

    def change_all(self, samples: list[Any], numbers: IntArray) -> list[Any]:
        """Cook each sample, and report the time separately from reading."""
        began = time.perf_counter()
        # Crude samples are created for every read.
        own = [one if type(one) is CrudeSample else _own(one) for one in samples]
        made = self.cooks.cook_all(own, numbers.tolist())
        report(_STAGE, time.perf_counter() - began)
        return made

    def columns(self, samples: list[Any]) -> Batch:
        """Return cooked samples as columns; non-dict samples form one column, `sample`."""
        return columns_of(samples)

    def restore(self, key: tuple[Any, ...]) -> Any:
        """Return the sample with this `__restore_key__`, or with that of a sample made from it."""
        cooked: Any = self
        return cooked[position_of(key)]


class CookedSource(_Cooked, ChangedView):
    """Source of cooked samples, as returned by `cook`. A sample's position is its index.

    Examples:
        >>> import penstock as ps
        >>> from penstock.cook import Cooker, cook
        >>> def caption_only(sample):
        ...     return {"text": sample["txt"].decode()}
        >>> cooked = cook(ps.open("pictures", raw=True), Cooker(caption_only, name="caption-1"))
        >>> type(cooked).__name__, len(cooked)
        ('CookedSource', 6)
        >>> cooked.restore(("cook", 2))["text"]
        'picture 2'
    """

    def __init__(self, source: Source[Any], cooks: Cooks) -> None:
        super().__init__(source)
        self.cooks = cooks


class CookedStream(_Cooked, ChangedStream):
    """Stream of cooked samples, as returned by `cook`.

    Examples:
        >>> import penstock as ps
        >>> from penstock.cook import Cooker, cook
        >>> def crop(sample, rng):
        ...     return {"offset": int(rng.integers(100))}
        >>> stream = cook(ps.Shuffle(ps.open("pictures", raw=True), seed=0), Cooker(crop, name="crop-1"))
        >>> stream[7]["offset"] == stream[7]["offset"]
        True
    """

    def __init__(self, stream: Stream[Any], cooks: Cooks) -> None:
        super().__init__(stream)
        self.cooks = cooks
        self._held = Held(self._ahead)
        self.prefetch = self._held.prefetch

    def over(self, stream: Any) -> CookedStream:
        return CookedStream(stream, self.cooks)

    def get_batch(self, positions: Sequence[int] | IntArray, /) -> Batch:
        return self.get_resolved(as_positions(positions))

    def resolve(self, positions: IntArray, /) -> IntArray:
        """Return int64[k]: the positions; the stream's own resolution is kept for the calling thread."""
        return self._held.resolve(as_positions(positions))

    def get_resolved_samples(self, resolved: IntArray, /) -> list[Any]:
        return self.change_all(self._held.samples(resolved), resolved)


class Held:
    """Stream read by positions, with its order still computed in advance.

    A stage that needs the positions resolves each to itself. The results of the stream below
    are kept for each thread, from its last `resolve` on; other positions are resolved when they are read.
    """

    def __init__(self, ahead: Ahead) -> None:
        self._ahead = ahead
        self._local = threading.local()
        self.prefetch = self._prefetch if ahead.prefetch is not None else None

    def resolve(self, positions: IntArray) -> IntArray:
        """Return the positions, int64[k], unchanged; memory: 16 bytes each until the next call."""
        if len(positions) > 1 and bool((positions[1:] > positions[:-1]).all()):
            self._local.held = positions, self._ahead.resolve(positions)
            self._local.next = 0
        return positions

    def _prefetch(self, batches: IntArray, /, *, whole: bool = False) -> None:
        if self._ahead.prefetch is None:
            return
        positions = batches.reshape(-1)
        held: tuple[IntArray, IntArray] | None = getattr(self._local, "held", None)
        # Usually they were resolved a moment ago.
        known = held is not None and np.array_equal(held[0], positions)
        resolved = held[1] if held is not None and known else self._ahead.resolve(positions)
        self._ahead.prefetch(resolved.reshape(batches.shape), whole=whole)

    def samples(self, positions: IntArray) -> list[Any]:
        held: tuple[IntArray, IntArray] | None = getattr(self._local, "held", None)
        if held is not None and len(positions):
            known, resolved = held
            first = self._local.next  # usually requested in order
            stop = first + len(positions)
            if known[first:stop].tobytes() == positions.tobytes():  # for a small batch faster than a numpy comparison
                self._local.next = stop
                return self._ahead.samples(resolved[first:stop])
            places = np.minimum(np.searchsorted(known, positions), len(known) - 1)
            if np.array_equal(known[places], positions):
                self._local.next = int(places[-1]) + 1
                return self._ahead.samples(resolved[places])
        return self._ahead.samples(self._ahead.resolve(positions))


def columns_of(samples: list[Any]) -> Batch:
    """Return samples as a batch: by field if they are dicts, else one column, `sample`."""
    return stack(samples) if all(isinstance(one, dict) for one in samples) else {SAMPLE: samples}


def position_of(key: Any) -> int:
    """Return the position in a restore key, which may be wrapped several times.

    Raises:
        ConfigError: the key isn't that of a cooked sample.
    """
    found = key
    while isinstance(found, (tuple, list)) and found:
        if len(found) == 2 and found[0] == RESTORE_KIND and isinstance(found[1], int):
            return found[1]
        found = found[-1]
    raise ConfigError(
        "not a restore key of a cooked sample", found=repr(key)[:120], expected=f"({RESTORE_KIND!r}, number)"
    )


def _own(sample: Any) -> Any:
    """Return a copy of the sample as a dict: a source in memory may return the same object again."""
    if isinstance(sample, CrudeSample):
        return sample  # created for every read
    return dict(sample) if isinstance(sample, dict) else sample


def _origin_of(below: Any) -> Origin:
    """Return the only dataset that a node reads, if there is only one."""
    node = below
    while not isinstance(node, SupportsFiles):
        node = next((child for name, child in children_of(node).items() if name in UNNAMED), None)
        if node is None:
            return Origin({}, stores_of(aux_of(below), None), None)
    return Origin({}, stores_of(aux_of(below), None), FileStore(node))
