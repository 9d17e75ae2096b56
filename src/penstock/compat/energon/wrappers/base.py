"""What all wrappers of datasets share: the datasets below them, and how functions are called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from types import GeneratorType
from typing import Any

from penstock._naming import function_name
from penstock.compat.energon.failures import Failures, lost
from penstock.compat.energon.walks import Lane, Place, SavableDataset, T_sample
from penstock.compat.energon.worker import WorkerConfig, current_batch, working_on
from penstock.errors import ConfigError


class BaseWrapperDataset(SavableDataset[T_sample]):
    """A dataset made of others.

    Args:
        datasets: one, or several.
        worker_config: must be theirs.

    Attributes:
        datasets: those below.

    Raises:
        ConfigError: one of them is no dataset of this package, or of another worker config.
    """

    def __init__(self, datasets: Any, *, worker_config: WorkerConfig) -> None:
        super().__init__(worker_config)
        self.datasets: tuple[SavableDataset[Any], ...] = _all(datasets)
        for one in self.datasets:
            if one.worker_config != worker_config:
                found, expected = str(one.worker_config.config()), str(worker_config.config())
                raise ConfigError("an inner dataset has a different worker config", found=found, expected=expected)

    @property
    def dataset(self) -> SavableDataset[Any]:
        """The only dataset below."""
        if len(self.datasets) != 1:
            raise ConfigError("there are several inner datasets", found=len(self.datasets), expected="datasets")
        return self.datasets[0]

    def len_worker(self, worker_idx: int | None = None) -> int:
        """As the dataset below."""
        return self.dataset.len_worker(worker_idx)

    def worker_has_samples(self) -> bool:
        """Whether one below has any."""
        return any(one.worker_has_samples() for one in self.datasets)

    def can_restore_sample(self) -> bool:
        """Whether all below can."""
        return all(one.can_restore_sample() for one in self.datasets)

    def identity(self) -> list[Any]:
        """Name, what was given, and the datasets below."""
        return [type(self).__name__, self.settings(), *(one.identity() for one in self.datasets)]

    def settings(self) -> dict[str, Any]:
        """What was given, as plain JSON."""
        return {}

    def config(self) -> dict[str, Any]:
        """What is loaded, as plain JSON."""
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
    """Calls a function of the user's for samples; those that it fails on are left out, and counted.

    Args:
        function: gives one result for one, or a generator of any number.
        config: whose handler is called.
        tolerance: failures in a row that end the run; 0 for any number.
    """

    def __init__(self, function: Callable[..., Any], config: WorkerConfig, tolerance: int | None) -> None:
        self._function = function
        self._config = config
        self._tolerance = getattr(function, "__failure_tolerance__", tolerance)
        self._failures = Failures(config)
        self.name = name_of(function)
        self.gives_several = inspect.isgeneratorfunction(inspect.unwrap(getattr(function, "__func__", function)))

    def __call__(self, argument: Any, lane: Lane, number: int) -> tuple[Any, ...]:
        """The results: none where it skips or fails.

        Args:
            argument: a sample, or a list of them.
            lane: that it is of.
            number: of the call in its lane.
        """
        return tuple(self.each(argument, lane, number))

    def each(self, argument: Any, lane: Lane, number: int) -> Iterator[Any]:
        """The results one by one: a generator goes on when its next one is asked for."""
        outputs: Iterator[Any] = self._called(argument)
        seed, index = number * lane.count + lane.number, number * lane.turns + lane.turn
        while True:
            with working_on(self._config, seed, current_batch, index):
                try:
                    one = next(outputs)
                except StopIteration:
                    return
            yield one

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
    """A name for states and messages: of what has none of its own, that of its class."""
    try:
        return function_name(function, hint="")
    except ConfigError:
        return getattr(function, "__qualname__", type(function).__qualname__)


def given(name: str, config: Any) -> dict[str, Any]:
    """What a function's config says, for `settings`; a function gives it only then. Nothing where it is empty."""
    said = config() if callable(config) else config
    return {name: said} if said else {}


# --- places of what calls a function again and again -----------------------------------------------------------------

START: Place = (0, None, 0)
"""Calls so far, the place below before the call, and how many of its results were delivered."""


def results(calls: Calls, argument: Any, lane: Lane, place: Place, after: Place) -> Iterator[tuple[Any, Place]]:
    """The results of one call that were not delivered yet, each with the place behind it.

    Args:
        calls: the function.
        argument: a sample, or a list of them.
        lane: that it is of.
        place: see `START`.
        after: the place below after the call.
    """
    number, below, done = place
    for count, one in enumerate(calls.each(argument, lane, number), 1):
        if count > done:
            yield one, (number, below, count) if calls.gives_several else (number + 1, after, 0)


def split_call(dataset: SavableDataset[Any], place: Place, part: int, parts: int) -> Place:
    """Only the first part goes on inside the results of a call."""
    number, below, done = START if place is None else place
    return number, dataset.split(below, part, parts), 0 if part else done


def split_all(datasets: Iterable[SavableDataset[Any]], places: Place, part: int, parts: int) -> tuple[Place, ...]:
    """The places of several datasets, split."""
    return tuple(one.split(place, part, parts) for one, place in zip(datasets, places, strict=True))
