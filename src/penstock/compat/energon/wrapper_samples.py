"""Energon's wrappers of datasets that give samples one by one."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Literal

from penstock._digest import derive_key
from penstock._secrets import logger
from penstock.compat.energon.failures import Failures, lost
from penstock.compat.energon.walks import Lane, Place, SavableDataset, Steps, T_sample, Unsavable, Walk
from penstock.compat.energon.worker import WorkerConfig, current_batch, working_on
from penstock.compat.energon.wrapper_base import BaseWrapperDataset, CallingDataset, Calls, name_of, results, split_all
from penstock.compat.unused import say_unused
from penstock.errors import ConfigError

_log = logger("penstock.energon")
_TOLERANCE = 100


class MapDataset(CallingDataset[T_sample]):
    """Dataset that applies a function to every sample.

    Args:
        dataset: the samples.
        map_fn: function from one sample to one, or to a generator of any number. May raise `SkipSample`.
        stateless_map_fn: the result depends only on the sample, so samples can be made again by their keys.
        map_fn_config: recorded in `config`.
        failure_tolerance: number of consecutive samples that may fail; 0 for any number.
        worker_config: config of the dataset.

    Examples:
        >>> from penstock.compat.energon import MapDataset, WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> captions = MapDataset(samples, lambda sample: sample.caption, worker_config=config)
        >>> list(get_loader(captions))[:2]
        ['picture 0', 'picture 1']
    """

    _recorded = ("map_fn", "map_fn_config")
    _stateless = ("stateless_map_fn",)

    def __init__(
        self,
        dataset: SavableDataset[Any],
        map_fn: Callable[[Any], Any],
        *,
        stateless_map_fn: bool = False,
        map_fn_config: Any = None,
        failure_tolerance: int = 100,
        worker_config: WorkerConfig,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.map_fn = map_fn
        self.stateless_map_fn = stateless_map_fn
        self.map_fn_config = map_fn_config
        self._calls = Calls(map_fn, worker_config, failure_tolerance)

    def _steps(self, lane: Lane, place: Place) -> Steps:
        calls, below, done = place
        walk = Walk(self.dataset, lane, below)
        before = below
        for sample in walk:
            yield from results(self._calls, sample, lane, (calls, before, done), walk.place)
            calls, before, done = calls + 1, walk.place, 0
        return calls, walk.end, 0


def _same(length: int) -> int:
    return length


class IterMapDataset(BaseWrapperDataset[T_sample]):
    """Dataset that passes its samples through a function of iterators.

    Args:
        dataset: the samples.
        iter_map_fn: function from an iterator to an iterator.
        len_map_fn: function from the length of the input to that of the output.
        stateless_iter_fn: the function makes any number of samples from each input and keeps none. Only then can its
            place be saved.
        iter_map_fn_config: recorded in `config`.
        worker_config: config of the dataset.

    Examples:
        >>> from penstock.compat.energon import IterMapDataset, WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> def pairs(samples):
        ...     for first in samples:
        ...         yield first.caption, next(samples).caption
        >>> halved = IterMapDataset(samples, pairs, len_map_fn=lambda length: length // 2, worker_config=config)
        >>> list(get_loader(halved))
        [('picture 0', 'picture 1'), ('picture 2', 'picture 3'), ('picture 4', 'picture 5')]
    """

    _begin = (None, 0)
    _recorded = ("iter_map_fn", "iter_map_fn_config")
    _stateless = ("stateless_iter_fn",)

    def __init__(
        self,
        dataset: SavableDataset[Any],
        iter_map_fn: Callable[[Iterator[Any]], Iterator[Any]],
        *,
        len_map_fn: Callable[[int], int] = _same,
        stateless_iter_fn: bool = False,
        iter_map_fn_config: Any = None,
        worker_config: WorkerConfig,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.iter_map_fn = iter_map_fn
        self.len_map_fn = len_map_fn
        self.stateless_iter_fn = stateless_iter_fn
        self.iter_map_fn_config = iter_map_fn_config
        self._failures = Failures(worker_config)

    def _steps(self, lane: Lane, place: Place) -> Steps:
        below, done = place
        walk = Walk(self.dataset, lane, below)
        before, made, last, skipping = below, -1, None, done

        def taken() -> Iterator[Any]:
            nonlocal before, made, last, skipping
            while True:
                at = walk.place
                try:
                    last = next(walk)
                except StopIteration:
                    return
                skipping = skipping if made < 0 else 0  # only for the first sample
                before, made = at, 0
                yield last

        while True:
            try:
                for one in self.iter_map_fn(taken()):
                    made += 1
                    if made <= skipping:
                        continue
                    self._failures.passed(name_of(self.iter_map_fn), last)
                    yield one, (before, made) if self.stateless_iter_fn else Unsavable(name_of(self.iter_map_fn))
                break
            except Exception as error:
                lost(self._failures, name_of(self.iter_map_fn), error, last, _TOLERANCE)
                skipping = 0
        return walk.end, 0

    def _split(self, place: Place, part: int, parts: int) -> Place:
        below, done = place
        return self.dataset.split(below, part, parts), 0 if part else done

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Return the number of samples of a worker, by `len_map_fn`."""
        return self.len_map_fn(self.dataset.len_worker(worker_idx))


class FilterDataset(BaseWrapperDataset[T_sample]):
    """Dataset of the samples for which a function returns true.

    Args:
        dataset: the samples.
        filter_fn: function that returns whether to keep a sample.
        filter_fn_config: recorded in `config`.
        worker_config: config of the dataset.

    Examples:
        >>> from penstock.compat.energon import FilterDataset, WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> even = FilterDataset(samples, filter_fn=lambda sample: int(sample.__key__) % 2 == 0, worker_config=config)
        >>> [sample.caption for sample in get_loader(even)]
        ['picture 0', 'picture 2', 'picture 4']
    """

    _begin = (0, None)
    _recorded = ("filter_fn", "filter_fn_config")

    def __init__(
        self,
        dataset: SavableDataset[Any],
        *,
        filter_fn: Callable[[Any], bool],
        filter_fn_config: Any = None,
        worker_config: WorkerConfig,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.filter_fn = filter_fn
        self.filter_fn_config = filter_fn_config

    def _steps(self, lane: Lane, place: Place) -> Steps:
        calls, below = place
        walk = Walk(self.dataset, lane, below)
        for sample in walk:
            number, index = calls * lane.count + lane.number, calls * lane.turns + lane.turn
            with working_on(self.worker_config, number, current_batch(), index):
                taken = self.filter_fn(sample)
            calls += 1
            if taken:
                yield sample, (calls, walk.place)
        return calls, walk.end


def _share(length: int, worker_idx: int | None, config: WorkerConfig) -> int:
    workers = max(1, config.num_workers)
    return length // workers + ((worker_idx or 0) < length % workers)


class LimitDataset(BaseWrapperDataset[T_sample]):
    """Dataset of the first samples of another one, the same in each pass.

    Args:
        dataset: the samples.
        length: number of samples on this rank, divided among its workers.
        reset_after_epoch: no effect: the dataset starts over after each pass in any case.
        worker_config: config of the dataset.

    Examples:
        >>> from penstock.compat.energon import LimitDataset, WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> first = LimitDataset(samples, 2, worker_config=config)
        >>> [sample.caption for sample in get_loader(first)]
        ['picture 0', 'picture 1']
    """

    _recorded = ("length",)

    def __init__(
        self, dataset: SavableDataset[Any], length: int, *, reset_after_epoch: bool = False, worker_config: WorkerConfig
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.length = length
        self.reset_after_epoch = reset_after_epoch

    def _steps(self, lane: Lane, place: Place) -> Steps:
        left, below = (lane.share(self.length), None) if place is None else place
        walk = Walk(self.dataset, lane, below)
        for sample in islice(walk, left):
            left -= 1
            yield sample, (left, walk.place)
        walk.close()
        return None

    def _split(self, place: Place, part: int, parts: int) -> Place:
        if place is None:
            return None
        left, below = place
        return left // parts + (part < left % parts), self.dataset.split(below, part, parts)

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Return the worker's share of the samples."""
        return min(self.dataset.len_worker(worker_idx), _share(self.length, worker_idx, self.worker_config))

    def len_rank(self) -> int:
        """Return the number of samples of this rank in a pass."""
        return min(self.length, self.dataset.len_rank())


class RepeatDataset(BaseWrapperDataset[T_sample]):
    """Dataset that repeats a finite one.

    Args:
        dataset: the samples.
        repeats: number of repetitions; a fraction is a part of a pass. None: endless.
        restart: start over after an iteration has ended; otherwise the next iteration is empty.
        worker_config: config of the dataset.

    Examples:
        >>> from penstock.compat.energon import RepeatDataset, WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> repeated = RepeatDataset(samples, repeats=1.5, worker_config=config)
        >>> [sample.__key__ for sample in get_loader(repeated)]
        ['000', '001', '002', '003', '004', '005', '000', '001', '002']
    """

    _begin = (0, 0, None)
    _recorded = ("repeats",)

    def __init__(
        self,
        dataset: SavableDataset[Any],
        *,
        repeats: float | None = None,
        restart: bool = True,
        worker_config: WorkerConfig,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.repeats = repeats
        self.restart = restart

    def _steps(self, lane: Lane, place: Place) -> Steps:
        passes, taken, below = place
        repeats = math.inf if self.repeats is None else self.repeats
        while passes < repeats:
            length = self.dataset.len_worker(lane.turn)
            most = math.floor(length * (repeats - passes) + 1e-9) if repeats - passes < 1 else None
            walk = Walk(self.dataset, lane, below)
            for sample in walk if most is None else islice(walk, max(0, most - taken)):
                taken += 1
                yield sample, (passes, taken, walk.place)
            if taken == 0 and repeats == math.inf:
                raise ConfigError("a dataset without samples can't be repeated", found=str(self.dataset))
            below = walk.end if most is None or taken < most else walk.place
            walk.close()
            passes, taken = passes + 1, 0
        return 0 if self.restart else math.ceil(repeats), 0, below

    def _split(self, place: Place, part: int, parts: int) -> Place:
        passes, taken, below = place
        return passes, taken // parts, self.dataset.split(below, part, parts)

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Return the number of samples of all passes, or of one pass if endless."""
        length = self.dataset.len_worker(worker_idx)
        return length if self.repeats is None else int(length * self.repeats)


class EpochizeDataset(BaseWrapperDataset[T_sample]):
    """Dataset in epochs of a fixed length.

    An iteration ends after `length` samples, and the next one continues.

    Args:
        dataset: the samples, finite or endless.
        length: samples per iteration on this rank, divided among its workers.
        worker_config: config of the dataset.

    Examples:
        >>> from penstock.compat.energon import EpochizeDataset, RepeatDataset, WorkerConfig
        >>> from penstock.compat.energon import get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> endless = RepeatDataset(samples, worker_config=config)
        >>> loader = get_loader(EpochizeDataset(endless, 4, worker_config=config))
        >>> [sample.__key__ for sample in loader]
        ['000', '001', '002', '003']
        >>> [sample.__key__ for sample in loader]
        ['004', '005', '000', '001']
    """

    _begin = (None, None)
    _recorded = ("length",)

    def __init__(self, dataset: SavableDataset[Any], length: int, worker_config: WorkerConfig) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.length = length

    def _steps(self, lane: Lane, place: Place) -> Steps:
        left, below = place
        left = lane.share(self.length) if left is None else left
        walk = Walk(self.dataset, lane, below)
        for sample in islice(walk, left):
            left -= 1
            yield sample, (left, walk.place)
        place = walk.end if left else walk.place
        walk.close()
        return None, place

    def _split(self, place: Place, part: int, parts: int) -> Place:
        left, below = place
        share = None if left is None else left // parts + (part < left % parts)
        return share, self.dataset.split(below, part, parts)

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Return the worker's share of the samples."""
        return _share(self.length, worker_idx, self.worker_config)


class BlendDataset(BaseWrapperDataset[T_sample]):
    """Dataset that draws samples from several datasets by weight.

    Finite datasets are read until all have ended.

    Args:
        dataset_weights: (dataset, weight) pairs.
        worker_config: config of the datasets.

    Raises:
        ConfigError: a weight isn't above 0.

    Examples:
        >>> from itertools import islice
        >>> from penstock.compat.energon import BlendDataset, MapDataset, WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> captions = MapDataset(samples, lambda sample: sample.caption, worker_config=config)
        >>> keys = MapDataset(samples, lambda sample: sample.__key__, worker_config=config)
        >>> blend = BlendDataset((captions, 0.75), (keys, 0.25), worker_config=config)
        >>> list(islice(get_loader(blend), 5))
        ['000', 'picture 0', '001', '002', 'picture 1']
    """

    _recorded = ("weights",)

    def __init__(self, *dataset_weights: tuple[SavableDataset[Any], float], worker_config: WorkerConfig) -> None:
        super().__init__([one for one, _ in dataset_weights], worker_config=worker_config)
        self.dataset_weights = dataset_weights
        self.weights = tuple(float(weight) for _, weight in dataset_weights)
        self._begin = 0, (1,) * len(self.datasets), (None,) * len(self.datasets)
        if min(self.weights) <= 0:
            raise ConfigError("weights must be positive", found=", ".join(map(str, self.weights)))

    def _steps(self, lane: Lane, place: Place) -> Steps:
        draws, goes_on, places = place
        walks = [Walk(one, lane, at) for one, at in zip(self.datasets, places, strict=True)]
        places, going = list(places), list(goes_on)
        while any(going):
            number = self._drawn(lane, draws, going)
            draws += 1
            try:
                sample = next(walks[number])
            except StopIteration:
                going[number], places[number] = 0, walks[number].end
                continue
            places[number] = walks[number].place
            yield sample, (draws, tuple(going), tuple(places))
        return draws, (1,) * len(self.datasets), tuple(places)

    def _drawn(self, lane: Lane, draws: int, going: list[int]) -> int:
        weights = [weight if goes else 0.0 for weight, goes in zip(self.weights, going, strict=True)]
        left = derive_key(lane.seed, "blend", lane.number, draws) / 2**64 * sum(weights)
        for number, weight in enumerate(weights):
            if left < weight:
                return number
            left -= weight
        return max(number for number, goes in enumerate(going) if goes)

    def _split(self, place: Place, part: int, parts: int) -> Place:
        draws, going, places = place
        return draws, going, split_all(self.datasets, places, part, parts)

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Return the number of samples of all datasets, whatever their weights."""
        return sum(one.len_worker(worker_idx) for one in self.datasets)


class ConcatDataset(BaseWrapperDataset[T_sample]):
    """Concatenation of finite datasets.

    Args:
        datasets: datasets in order.
        worker_config: config of the datasets.

    Examples:
        >>> from penstock.compat.energon import ConcatDataset, LimitDataset, WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> first = LimitDataset(samples, 2, worker_config=config)
        >>> both = ConcatDataset(first, samples, worker_config=config)
        >>> [sample.__key__ for sample in get_loader(both)]
        ['000', '001', '000', '001', '002', '003', '004', '005']
    """

    def __init__(self, *datasets: SavableDataset[Any], worker_config: WorkerConfig) -> None:
        super().__init__(datasets, worker_config=worker_config)
        self._begin = 0, (None,) * len(self.datasets)

    def _steps(self, lane: Lane, place: Place) -> Steps:
        first, places = place
        places = list(places)
        for number in range(first, len(self.datasets)):
            walk = Walk(self.datasets[number], lane, places[number])
            for sample in walk:
                places[number] = walk.place
                yield sample, (number, tuple(places))
            places[number] = walk.end
        return 0, tuple(places)

    def _split(self, place: Place, part: int, parts: int) -> Place:
        first, places = place
        return first, split_all(self.datasets, places, part, parts)

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Return the number of samples of all datasets."""
        return sum(one.len_worker(worker_idx) for one in self.datasets)


def default_get_batch_keys(batch: Any) -> list[str] | None:
    """Return the keys of a batch or sample; None if it has none."""
    found = batch.get("__key__") if isinstance(batch, dict) else getattr(batch, "__key__", None)
    if isinstance(found, str):
        return [found]
    return [str(one) for one in found] if isinstance(found, (list, tuple)) else None


class LogSampleDataset(BaseWrapperDataset[T_sample]):
    """Dataset that logs the keys of every sample, at level INFO of the logger `penstock.energon`.

    Args:
        dataset: the samples.
        mode: `"train"` or `"val"`, for the log.
        worker_config: config of the dataset.
        get_keys_fn: function from a sample to its keys.

    Examples:
        >>> from penstock.compat.energon import LogSampleDataset, WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> logged = LogSampleDataset(samples, "val", config)
        >>> next(iter(get_loader(logged))).caption
        'picture 0'
    """

    _begin = (0, None)
    _changes_samples = False

    def __init__(
        self,
        dataset: SavableDataset[Any],
        mode: Literal["train", "val"],
        worker_config: WorkerConfig,
        get_keys_fn: Callable[[Any], list[str] | None] = default_get_batch_keys,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.mode: Literal["train", "val"] = mode
        self.get_keys_fn = get_keys_fn

    def around(self, dataset: SavableDataset[Any]) -> LogSampleDataset[Any]:
        """Return the same wrapper around another dataset."""
        return LogSampleDataset(dataset, self.mode, self.worker_config, self.get_keys_fn)

    def _steps(self, lane: Lane, place: Place) -> Steps:
        step, below = place
        walk = Walk(self.dataset, lane, below)
        for sample in walk:
            where = (self.mode, self.worker_config.rank, lane.number, step)
            _log.info("%s: rank %d, lane %d, sample %d: %s", *where, self.get_keys_fn(sample))
            step += 1
            yield sample, (step, walk.place)
        return step, walk.end


class GcDataset(BaseWrapperDataset[T_sample]):
    """Dataset that collects garbage after a number of samples.

    Args:
        dataset: the samples.
        worker_config: config of the dataset.
        every_n_iter: samples of a lane between two collections.
        freeze: ignored, with a log message if it is False: workers are threads of the training process, whose objects a
            dataset must not freeze.

    Examples:
        >>> from penstock.compat.energon import GcDataset, WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> collected = GcDataset(samples, worker_config=config, every_n_iter=3)
        >>> [sample.__key__ for sample in get_loader(collected)]
        ['000', '001', '002', '003', '004', '005']
    """

    _changes_samples = False

    def __init__(
        self, dataset: SavableDataset[Any], *, worker_config: WorkerConfig, every_n_iter: int = 10, freeze: bool = True
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        say_unused("GcDataset", "objects are never frozen", {"freeze": freeze}, {"freeze": True})
        self.every_n_iter = every_n_iter
        self.freeze = freeze

    def around(self, dataset: SavableDataset[Any]) -> GcDataset[Any]:
        """Return the same wrapper around another dataset."""
        return GcDataset(dataset, worker_config=self.worker_config, every_n_iter=self.every_n_iter, freeze=self.freeze)

    def _steps(self, lane: Lane, place: Place) -> Steps:
        walk = Walk(self.dataset, lane, place)
        for number, sample in enumerate(walk, 1):
            yield sample, walk.place
            if number % self.every_n_iter == 0:
                gc.collect()
        return walk.end
