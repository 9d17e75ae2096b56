"""`get_loader` and `get_savable_loader`: batches, with a state of a few numbers."""

from __future__ import annotations

import faulthandler
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from types import GenericAlias, TracebackType
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from penstock._optional import require
from penstock._secrets import logger
from penstock.compat.energon.build import EnergonDataset
from penstock.compat.energon.encoded import SAMPLE, Encoded
from penstock.compat.energon.failures import Failures
from penstock.compat.energon.passes import BatchMaker, read_key
from penstock.compat.energon.reading import Ahead, Reading
from penstock.compat.energon.stages import Group, Lanes
from penstock.compat.energon.states import join_states, originals_of, samples_read, unknown_place
from penstock.compat.energon.walked import Walked
from penstock.compat.energon.walks import SavableDataset
from penstock.compat.energon.worker import WorkerConfig, batch_index
from penstock.compat.energon.wrapper_samples import EpochizeDataset, GcDataset, LimitDataset, LogSampleDataset
from penstock.compat.unused import say_unused
from penstock.errors import ConfigError, ResumeMismatch
from penstock.load import Loader

_log = logger("penstock.energon")

VERSION = 1
_WITH_WORKERS = float("600")  # distinguished by its identity from a 600 that is passed


def get_savable_loader(dataset: SavableDataset[Any], **options: Any) -> SavableDataLoader:
    """Return a loader with a state that can be saved and restored; see `SavableDataLoader`.

    Examples:
        >>> from penstock.compat.energon import WorkerConfig, get_savable_loader, get_train_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = get_train_dataset("pictures", worker_config=config, batch_size=2)
        >>> loader = get_savable_loader(dataset)
        >>> first = next(iter(loader))
        >>> state = loader.save_state_rank()
        >>> second = next(iter(loader))
        >>> resumed = get_savable_loader(dataset)
        >>> resumed.restore_state_rank(state)
        >>> next(iter(resumed)).__key__ == second.__key__
        True
    """
    return SavableDataLoader(dataset, **options)


def get_loader(dataset: SavableDataset[Any], **options: Any) -> SavableDataLoader:
    """Return the same as `get_savable_loader`: saving costs nothing, so every loader can save.

    Examples:
        >>> from penstock.compat.energon import WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=4)
        >>> loader = get_loader(dataset)
        >>> len(loader), [len(batch.caption) for batch in loader]
        (2, [4, 2])
    """
    return SavableDataLoader(dataset, **options)


class SavableDataLoader:
    """Loader for the batches of this rank.

    Its state is plain JSON of a few hundred bytes, exact at any moment, and restored in the same time at any step;
    nothing is read again. With another world size, number of workers or batch size, it continues with the next sample.

    Args:
        dataset: result of `get_train_dataset` or `get_val_dataset`.
        worker_config: must be the dataset's, if given.
        prefetch_factor: batches that each worker reads ahead; more if they are small, up to 256 KiB.
        cache_pool: for cookers that need a cache.
        watchdog_timeout_seconds: a batch that takes longer is an error, or logged; None waits forever. By default 600 s
            with workers. In the calling thread nothing can interrupt a batch, so it can only be logged.
        watchdog_initial_timeout_seconds: the same for the first batch, which is logged.
        fail_on_timeout: False logs the stacks of all threads and keeps waiting. By default True with workers.
        worker_kind: `"threads"`; or `"processes"`, for picklable task encoders that spend their time in Python.
        pin_memory: put batches into pinned memory if there is a GPU.
        options: `checkpoint_every_sec`, `checkpoint_every_min_n_samples`, `n_checkpoints`, `gc_collect_every_n_steps`
            and `gc_freeze_at_start` are ignored, with a log message.

    Raises:
        ConfigError: an option is unknown, or a time limit can't be enforced.

    Examples:
        >>> from penstock.compat.energon import SavableDataLoader, WorkerConfig, get_train_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> loader = SavableDataLoader(get_train_dataset("pictures", worker_config=config, batch_size=2))
        >>> batch = next(iter(loader))
        >>> loader.restore_sample(batch.__restore_key__[1]).caption == batch.caption[1]
        True
    """

    __class_getitem__ = classmethod(GenericAlias)

    def __init__(
        self,
        dataset: SavableDataset[Any],
        *,
        worker_config: WorkerConfig | None = None,
        prefetch_factor: int = 2,
        cache_pool: Any = None,
        watchdog_timeout_seconds: float | None = _WITH_WORKERS,
        watchdog_initial_timeout_seconds: float | None = None,
        fail_on_timeout: bool | None = None,
        worker_kind: Any = "threads",
        pin_memory: bool | None = None,
        **options: Any,
    ) -> None:
        unknown = [name for name in options if name not in _NOT_NEEDED]
        if unknown:
            raise ConfigError("unknown loader option", found=", ".join(unknown))
        say_unused("the loader", "states are exact at every step", options, _NOT_NEEDED)
        if worker_config is not None and worker_config != dataset.worker_config:
            raise ConfigError("the worker config differs from the one of the dataset")
        require_dataset(dataset)
        self.dataset = dataset
        self.worker_config = dataset.worker_config
        if cache_pool is not None:
            use_cache(dataset, cache_pool)
        self._valid: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._heeded = False
        self._pinned = _pinning(pin_memory)
        threads = dataset.worker_config.num_workers > 0
        limits = (watchdog_timeout_seconds, watchdog_initial_timeout_seconds)
        timeout_seconds, self._watch = _watchdog(threads, *limits, fail_on_timeout)
        self._handed = 0
        ahead = Ahead(prefetch_factor, worker_kind, timeout_seconds)
        self._limit, self._starts_anew, inner = limits_of(dataset)
        if isinstance(dataset, EnergonDataset) and not dataset.walked:
            self._reading: Reading | Walked = Reading(dataset, maker_of(dataset), ahead)
        else:
            self._reading = Walked(inner, ahead)

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Mask of the samples of the last batch that count, bool[k].

        All are True, except if the pass has no sample left for this rank. Every rank gets the same number of batches;
        if a pass has too few samples for all ranks, the others get an earlier sample, which doesn't count.
        """
        self._heeded = True
        return self._valid

    def __iter__(self) -> Iterator[Any]:
        limit = self._limit
        if self._starts_anew and not self._reading.started and (self._handed == limit or self._reading.at_end()):
            self._begin(0)
        while limit is None or self._handed < limit:
            try:
                batch, valid = self._reading.next() if self._watch is None else self._watch(self._reading.next)
            except StopIteration:
                if not self._handed and not isinstance(self._reading, Walked):
                    self._failures.require_any_passed()
                break
            if not len(valid):
                continue  # all of its samples were skipped or failed, and no other rank must get the same batches
            self._handed += 1
            self._valid = valid
            if not self._heeded and not valid.all():
                self._heeded = True
                _log.warning("a batch of this rank has no valid samples; loader.valid marks the valid samples")
            yield batch if self._pinned is None else self._pinned(batch)
        self._ended(limit)

    def _ended(self, limit: int | None) -> None:
        """Finish an iteration: the next one is another epoch, the same one again, or a continuation."""
        whole = limit is None or self._handed < limit or self._reading.at_end()
        if self._starts_anew:
            self._begin(0)
        elif whole:
            self._begin(self._reading.number + 1)
        else:
            self._handed = 0

    def _begin(self, number: int) -> None:
        self._handed = 0
        self._reading.begin(number)

    def __len__(self) -> int:
        """Return the number of batches of an iteration; of one epoch if it is endless. See `EnergonDataset`."""
        return len(self.dataset)

    def close(self) -> None:
        """Stop the workers.

        A second call does nothing. Reading is then an error; the state can still be saved.
        """
        self._reading.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    # --- state ---------------------------------------------------------------------------------------------------

    def save_state_rank(self) -> dict[str, Any]:
        """Return the state of this rank as plain JSON; the same on every rank, except with packing."""
        return {"version": VERSION, "handed": self._handed, **self._reading.state()}

    def restore_state_rank(self, state: Any, accept: Sequence[str] = ()) -> None:
        """Resume from a state of any rank and world size; with packing it must contain this rank's lanes.

        A state that Megatron-Energon's own loader saved, of one rank of a run of this many ranks or of all ranks, is
        accepted with `accept=["order"]` if the data is endless and batches have one size: as many samples are skipped
        as its run had read. The order differs, so the samples skipped in the current pass aren't the ones that were
        read.

        Args:
            state: result of `save_state_rank`; None starts over.
            accept: differences to accept, such as another task encoder; see `penstock.Loader.load_state_dict`.

        Raises:
            ResumeMismatch: the state belongs to other data or another task encoder, or isn't a state.
        """
        if state is None:
            return
        if ranks := originals_of(state):
            whole = ranks if isinstance(state, (list, tuple)) else ranks * self.worker_config.world_size
            if isinstance(self._reading, Walked):
                raise unknown_place()
            self._handed = self._reading.go_on_after(samples_read(whole, accept))
            return
        place = "walk" if isinstance(self._reading, Walked) else "loader"
        if not isinstance(state, Mapping) or state.get("version") != VERSION or not isinstance(state.get(place), dict):
            found = repr(state)[:80]
            raise ResumeMismatch("not a state of this loader", found=found, expected="save_state_rank()")
        handed = int(state["handed"])
        self._reading.restore(state, handed, accept)
        self._handed = handed

    def save_state_global(self, global_dst_rank: int) -> dict[str, Any] | None:
        """Return the state of all ranks on one of them, and None on the others.

        Several ranks require torch.distributed.
        """
        own = self.save_state_rank()
        if self.worker_config.world_size == 1:
            return own
        dist, group = require("torch.distributed", extra="torch"), self.worker_config.data_parallel_group
        at_target = dist.get_rank() == global_dst_rank
        gathered: list[Any] | None = [None] * self.worker_config.world_size if at_target else None
        dist.gather_object(own, gathered, global_dst_rank, group=group)
        return None if gathered is None else join_states(gathered)

    def restore_state_global(self, state: Any, *, src_rank: int | None = None, accept: Sequence[str] = ()) -> None:
        """Resume from a state of all ranks, or a list of their states.

        With `src_rank`, only that rank needs the state.
        """
        if src_rank is not None and self.worker_config.world_size > 1:
            dist = require("torch.distributed", extra="torch")
            sent = [state]
            dist.broadcast_object_list(sent, src_rank, group=self.worker_config.data_parallel_group)
            state = sent[0]
        ranks = cast(list[Any], state) if isinstance(state, list) else []
        if ranks and all(isinstance(one, Mapping) and "version" in one for one in ranks):
            state = join_states(ranks)
        self.restore_state_rank(state, accept)

    # --- single samples ------------------------------------------------------------------------------------------

    def can_restore_sample(self) -> bool:
        """Return True."""
        return True

    def restore_sample(self, restore_key: Any) -> Any:
        """Return the sample or batch with this `__restore_key__`, made again."""
        if isinstance(self._reading, Walked):
            return self._reading.restore_sample(restore_key)
        if isinstance(restore_key, (tuple, list)) and restore_key and isinstance(restore_key[0], (tuple, list)):
            samples = [self._restored(key) for key in restore_key]
            return maker_of(self._plain).batch(samples, self._batch_of(restore_key[0]))
        return self._restored(restore_key)

    @property
    def _plain(self) -> EnergonDataset:
        if not isinstance(self.dataset, EnergonDataset) or self.dataset.walked:
            raise ConfigError(
                "failures aren't counted for datasets built from wrappers",
                found=str(self.dataset)[:120],
                expected="the result of get_train_dataset or get_val_dataset, for a task encoder without wrappers",
            )
        return self.dataset

    def _restored(self, restore_key: Any) -> Any:
        key, data = read_key(restore_key), self._plain.data
        if key.lane is not None:
            lane, window, offset, before = key.lane
            made = next(islice(self._lanes(restore_key).outputs_after(lane, window, before), offset, None))[SAMPLE][0]
            return made.samples[key.output] if isinstance(made, Group) else made
        encoded = cast(Encoded, data.children()["stream"] if isinstance(data, Lanes) else data)
        with nullcontext() if key.of is None else batch_index(*key.of):
            found = encoded[key.position]
        if not found:
            raise ConfigError("this sample is skipped or fails", found=repr(restore_key)[:120])
        return found[key.output]

    def _batch_of(self, restore_key: Any) -> int:
        """Return the rank's batch that a sample was in."""
        key = read_key(restore_key)
        if key.lane is not None:
            lane, _, offset, before = key.lane
            return self._lanes(restore_key).batch(lane, before + offset)
        turns = 1 if self._plain.grouped else self._plain.batch_size or 1
        return key.position // self.worker_config.world_size // turns if key.of is None else key.of[0]

    def _lanes(self, restore_key: Any) -> Lanes:
        if not isinstance(self._plain.data, Lanes):
            raise ConfigError("the key comes from a loader that packs", found=repr(restore_key)[:120])
        return self._plain.data

    def config(self) -> dict[str, Any]:
        """Return the configuration of the datasets as plain JSON."""
        return {"worker_config": self.worker_config.config(), **self.dataset.config()}

    @property
    def failures(self) -> dict[str, int]:
        """Number of skipped (`"skipped"`) and failed samples so far, by stage; unknown for worker processes."""
        return dict(self._failures.counts)

    @property
    def _failures(self) -> Failures:
        data = self._plain.data
        work: Any = data.children()["stream"] if isinstance(data, Lanes) else data
        return work.work.failures

    @property
    def loader(self) -> Loader:
        """Underlying `Loader`, for its metrics and positions."""
        if isinstance(self._reading, Walked):
            raise ConfigError("a dataset that is read lane by lane has no inner loader")
        return self._reading.loader


def limits_of(dataset: SavableDataset[Any]) -> tuple[int | None, bool, SavableDataset[Any]]:
    """Return the number of batches per iteration, whether the next one starts anew, and the unlimited dataset."""
    if isinstance(dataset, EnergonDataset):
        inner = replace(dataset, batches=0) if dataset.walked and dataset.batches else dataset
        return dataset.batches or None, dataset.starts_anew, inner
    if isinstance(dataset, (LogSampleDataset, GcDataset)):
        limit, anew, inner = limits_of(dataset.dataset)
        return limit, anew, dataset if inner is dataset.dataset else dataset.around(inner)
    if isinstance(dataset, EpochizeDataset):
        return dataset.length, False, dataset.dataset
    if isinstance(dataset, LimitDataset):
        return dataset.length, True, dataset.dataset
    return None, False, dataset


def require_dataset(dataset: Any) -> None:
    if not isinstance(dataset, SavableDataset):
        what = "one of get_train_dataset, get_val_dataset, a factory's build(), or a wrapper"
        raise ConfigError("not a dataset", found=type(dataset).__name__, expected=what)


def use_cache(dataset: SavableDataset[Any], cache_pool: Any) -> None:
    if isinstance(dataset, EnergonDataset):
        dataset.encoder.cache = cache_pool
    for one in dataset.datasets:
        use_cache(one, cache_pool)


def maker_of(dataset: EnergonDataset) -> BatchMaker:
    turns = 1 if dataset.grouped else dataset.batch_size or 1  # a group is a batch already
    return BatchMaker(dataset.encoder, dataset.worker_config, dataset.batch_size is not None, turns)


def _watchdog(
    threads: bool, seconds: float | None, first_seconds: float | None, fails: bool | None
) -> tuple[float | None, Watchdog | None]:
    """Return the seconds after which a batch is an error (None: never), or the watchdog of slow batches."""
    unasked = seconds is _WITH_WORKERS and first_seconds is None and fails is None
    if seconds is None or (unasked and not threads):
        return None, None
    if not threads and fails:
        hint = "Use num_workers=1, or fail_on_timeout=False, which logs"
        raise ConfigError("a batch that is built in the calling thread can't be interrupted", hint=hint)
    if not threads or fails is False:
        return None, Watchdog(seconds, first_seconds)
    if first_seconds is not None and first_seconds != seconds:
        hint = "Omit watchdog_initial_timeout_seconds, or pass fail_on_timeout=False, which logs"
        raise ConfigError("all batches share one time limit", found=f"{first_seconds} and {seconds} s", hint=hint)
    return seconds, None


_NOT_NEEDED: dict[str, Any] = {
    "checkpoint_every_sec": 60, "checkpoint_every_min_n_samples": None, "n_checkpoints": None,
    "gc_collect_every_n_steps": 10, "gc_freeze_at_start": True,
}  # fmt: skip
"""Options without effect → their default in the original."""


def _pinning(pin_memory: bool | None) -> Callable[[Any], Any] | None:
    """Return the function that pins a batch, or None without a device."""
    if not pin_memory:
        return None
    if not require("torch", extra="torch").cuda.is_available():
        return None
    from penstock.compat.energon.samples import pinned

    return pinned


class Watchdog:
    """Runs calls however long they take, and logs those that are slow.

    Args:
        timeout_seconds: a call that takes longer is slow.
        initial_timeout_seconds: the same for the first call; None for no difference.
    """

    def __init__(self, timeout_seconds: float, initial_timeout_seconds: float | None) -> None:
        self._timeout_seconds = timeout_seconds
        self._next = timeout_seconds if initial_timeout_seconds is None else initial_timeout_seconds

    def __call__(self, call: Callable[[], Any]) -> Any:
        timer = threading.Timer(self._next, _log_stacks, (self._next,))
        timer.daemon = True
        timer.start()
        self._next = self._timeout_seconds
        try:
            return call()
        finally:
            timer.cancel()


def _log_stacks(seconds: float) -> None:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        stacks = file.read()
    _log.warning("no batch for %g s; still waiting. Threads are at:\n%s", seconds, stacks)
