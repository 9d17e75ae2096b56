"""Base classes of Energon's wrappers of datasets: inner datasets, calls of functions, and windows of samples."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from types import GeneratorType
from typing import Any, ClassVar

from penstock._naming import function_name
from penstock.compat.energon.failures import Failures, lost
from penstock.compat.energon.walks import Lane, Place, SavableDataset, Steps, T_sample, Walk
from penstock.compat.energon.worker import Index, WorkerConfig, current_batch, working_on
from penstock.errors import ConfigError


class BaseWrapperDataset(SavableDataset[T_sample]):
    """Dataset made of others.

    Args:
        datasets: one dataset, or several.
        worker_config: config of the datasets.

    Raises:
        ConfigError: an inner dataset isn't a dataset of this package, or has another worker config.
    """

    _begin: Place = None
    """Place at the beginning of a lane."""
    _recorded: ClassVar[tuple[str, ...]] = ()
    """Attributes that determine the samples, for `settings`."""
    _stateless: ClassVar[tuple[str, ...]] = ()
    """Attributes that indicate whether samples can be restored."""
    _changes_samples: ClassVar[bool] = True

    def __init__(self, datasets: Any, *, worker_config: WorkerConfig) -> None:
        super().__init__(worker_config)
        self.datasets = _all(datasets)
        for one in self.datasets:
            if one.worker_config != worker_config:
                found, expected = str(one.worker_config.config()), str(worker_config.config())
                raise ConfigError("an inner dataset has a different worker config", found=found, expected=expected)

    @property
    def dataset(self) -> SavableDataset[Any]:
        """Return the only inner dataset."""
        if len(self.datasets) != 1:
            hint = "Use datasets, which lists all of them"
            raise ConfigError("several inner datasets", found=len(self.datasets), expected=1, hint=hint)
        return self.datasets[0]

    def walk(self, lane: Lane, place: Place) -> Steps:
        return self._steps(lane, self._begin if place is None else place)

    @abstractmethod
    def _steps(self, lane: Lane, place: Place) -> Steps: ...

    def split(self, place: Place, part: int, parts: int) -> Place:
        return self._split(self._begin if place is None else place, part, parts)

    def _split(self, place: Place, part: int, parts: int) -> Place:
        """Split a place whose last item, or all of it if there is only one inner place, is that of the dataset."""
        if self._begin is None:
            return self.dataset.split(place, part, parts)
        return *place[:-1], self.dataset.split(place[-1], part, parts)

    def len_worker(self, worker_idx: int | None = None) -> int:
        return self.dataset.len_worker(worker_idx)

    def worker_has_samples(self) -> bool:
        return any(one.worker_has_samples() for one in self.datasets)

    def can_restore_sample(self) -> bool:
        return all(getattr(self, name) for name in self._stateless) and all(
            one.can_restore_sample() for one in self.datasets
        )

    def identity(self) -> list[Any]:
        if not self._changes_samples:
            return self.dataset.identity()
        return [type(self).__name__, self.settings(), *(one.identity() for one in self.datasets)]

    def settings(self) -> dict[str, Any]:
        """Return the arguments that determine the samples, as plain JSON: functions by name, configs if not empty."""
        found: dict[str, Any] = {}
        for name in self._recorded:
            value = getattr(self, name)
            if name.endswith("_config"):
                said = value() if callable(value) else value
                found |= {name: said} if said else {}
            else:
                found[name] = name_of(value) if callable(value) else list(value) if isinstance(value, tuple) else value
        return found

    def config(self) -> dict[str, Any]:
        below = [one.config() for one in self.datasets]
        inside = {"dataset": below[0]} if len(below) == 1 else {"datasets": below}
        return {"type": type(self).__name__, **self.settings(), **inside}

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value}" for name, value in self.settings().items())
        return f"{type(self).__name__}({given + ', ' if given else ''}{', '.join(map(str, self.datasets))})"


def _all(datasets: Any) -> tuple[SavableDataset[Any], ...]:
    given: Iterable[Any] = (datasets,) if isinstance(datasets, SavableDataset) else datasets
    found = tuple(given)
    for one in found:
        if not isinstance(one, SavableDataset):
            what = "datasets of get_train_dataset, get_val_dataset, a factory's build() or another wrapper"
            raise ConfigError("not a dataset", found=type(one).__name__, expected=what)
    if not found:
        raise ConfigError("a wrapper without datasets", expected="one or more")
    return found


class Calls:
    """Calls of a user's function for samples. Samples that it fails on are skipped and counted.

    Args:
        function: returns one result, or a generator of any number.
        config: config whose handler is called.
        tolerance: number of consecutive failures that end the run; 0 for any number.
    """

    def __init__(self, function: Callable[..., Any], config: WorkerConfig, tolerance: int | None) -> None:
        self._function = function
        self._config = config
        self._tolerance = getattr(function, "__failure_tolerance__", tolerance)
        self._failures = Failures(config)
        self.name = name_of(function)
        self.gives_several = inspect.isgeneratorfunction(inspect.unwrap(getattr(function, "__func__", function)))

    def __call__(self, argument: Any, lane: Lane, number: int) -> tuple[Any, ...]:
        """Return the results for a sample or a list of samples: none if the function skips or fails."""
        return tuple(self.each(argument, lane, number))

    def each(self, argument: Any, lane: Lane, number: int) -> Iterator[Any]:
        """Yield the results of call `number` of a lane; a generator is resumed when its next result is needed."""
        outputs: Iterator[Any] = self._called(argument)
        numbers = self._numbers(argument, lane, number)
        while True:
            with working_on(self._config, *numbers):
                try:
                    one = next(outputs)
                except StopIteration:
                    return
            yield one

    def _numbers(self, argument: Any, lane: Lane, number: int) -> tuple[int, Index, Index]:
        """Return the number that seeds call `number` of a lane, its batch, and its number in the original's worker."""
        del argument
        return number * lane.count + lane.number, current_batch, number * lane.turns + lane.turn

    def _called(self, argument: Any) -> Iterator[Any]:
        sample = argument[0] if isinstance(argument, list) and argument else argument
        try:
            found = self._function(argument)
            for one in found if isinstance(found, GeneratorType) else (found,):
                self._failures.passed(self.name, sample)
                yield one
        except Exception as error:
            lost(self._failures, self.name, error, sample, self._tolerance)


def name_of(function: Callable[..., Any]) -> str:
    """Return a name for states and messages: that of the class if a function has none."""
    try:
        found = function_name(function, hint="")
        # States of 0.2.0 name our own functions by the module in which they were.
        return found.replace("energon.wrapper_batches:", "energon.wrappers.mix_batch_dataset:")
    except ConfigError:
        return getattr(function, "__qualname__", type(function).__qualname__)


def split_all(datasets: Iterable[SavableDataset[Any]], places: Place, part: int, parts: int) -> tuple[Place, ...]:
    """Split the places of several datasets."""
    return tuple(one.split(place, part, parts) for one, place in zip(datasets, places, strict=True))


def results(calls: Calls, argument: Any, lane: Lane, place: Place, after: Place) -> Iterator[tuple[Any, Place]]:
    """Yield the results of one call that were not delivered yet, each with the place after it.

    Args:
        calls: the function.
        argument: a sample, or a list of samples.
        lane: lane of the samples.
        place: see `CallingDataset`.
        after: the inner place after the call.
    """
    number, below, done = place
    for count, one in enumerate(calls.each(argument, lane, number), 1):
        if count > done:
            yield one, (number, below, count) if calls.gives_several else (number + 1, after, 0)


class CallingDataset(BaseWrapperDataset[T_sample]):
    """Wrapper that calls a function again and again.

    A place is the number of calls so far, the inner place before the call, and the number of delivered results.
    """

    _begin = (0, None, 0)

    def _split(self, place: Place, part: int, parts: int) -> Place:
        number, below, done = place  # only the first part continues inside the results of a call
        return number, self.dataset.split(below, part, parts), 0 if part else done


class WindowedDataset(BaseWrapperDataset[T_sample]):
    """Wrapper that takes windows of samples of a lane, and delivers them one by one.

    A place is the number of the window, the inner place at its start, the number of delivered samples, and the inner
    place at its end, which is None if nothing was delivered.
    """

    _begin = (0, None, 0, None)

    def _split(self, place: Place, part: int, parts: int) -> Place:
        number, below, done, after, *more = place  # the first part finishes the window; the others begin after it
        if not done:
            return number, self.dataset.split(below, part, parts), 0, None, *more
        rest = self.dataset.split(after, part, parts)
        return (number, rest, 0, None, *more) if part else (number, below, done, rest, *more)


class Taking:
    """Samples of a lane, taken as they are needed.

    Attributes:
        samples: samples that were read and not taken.
    """

    def __init__(self, dataset: SavableDataset[Any], lane: Lane, below: Place) -> None:
        self._walk = Walk(dataset, lane, below)
        self.samples: list[Any] = []

    @property
    def place(self) -> Place:
        return self._walk.place

    @property
    def end(self) -> Place:
        return self._walk.end

    def read_up_to(self, size: int) -> None:
        """Read until there are `size` samples, or to the end of the lane."""
        self.samples += islice(self._walk, max(0, size - len(self.samples)))

    def take(self, size: int) -> list[Any]:
        """Return the next `size` samples, or those up to the end of the lane."""
        self.read_up_to(size)
        samples, self.samples = self.samples, []
        return samples
