"""Loader that delivers a rank's batches of a stream from any position on, with a state of a few bytes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

import numpy as np

from penstock._kinds import LaneStream, is_lane_stream
from penstock._secrets import logger
from penstock._threads import only_exit_handlers_run
from penstock._tree import html
from penstock.abc import Source, Stream
from penstock.errors import ConfigError
from penstock.load import excluded, lanes
from penstock.load import history as runs
from penstock.load import state as states
from penstock.load.batches import Batches, Cursor, Pipeline, PipelineFactory, ReadAhead, closed
from penstock.load.collate import Collate, collate_columns
from penstock.load.describe import describe
from penstock.load.lanes import LaneBatches, LaneTask
from penstock.load.metrics import Meter, Metrics, sources_so_far
from penstock.load.options import Options, Tail, data_parallel, mixed_border, samples_per_iteration
from penstock.load.read import OnError, ReadTask
from penstock.load.workers import NoWorkers, Producer, ThreadWorkers, WorkerKind, Workers, WorkersFactory
from penstock.mix.repeats import repeats_by_content
from penstock.types import IntArray

_log = logger()

_LONGEST_WAIT_S = 1e6


class Loader:
    """Loader that delivers this rank's batches: endless over a stream, or one pass over a source.

    The global batch of a step is the next `global_batch` positions. Rank r of W gets the positions `p ≡ r (mod W)`, in
    order. Every world size, micro-batch size and number of workers therefore gives the same global batches, and a run
    may change all of them, and its batch size, when it resumes. Nothing is replayed: starting anywhere costs the same.

    Iterators share the loader's position: a second `iter(loader)` continues where the first one stopped. After the end
    of a pass, the next iterator starts over. An iterator's threads end with it, at the latest when the program exits.
    `close()`, or leaving a `with` block of the loader, ends them at once; reading after that is an error.

    A lane stream (packing on the fly) has no global positions. Its state holds a position for each of the rank's lanes,
    `merge_states` joins the states of all ranks, and the world size must divide the number of lanes.

    Memory: `workers * prefetch + 1` batches with threads, `workers * (prefetch + 2)` with processes. Small batches are
    read further ahead, up to 256 KiB per worker. Orders take 1 MiB per worker.

    Args:
        data: a stream or lane stream; or a source, together with `tail`.
        global_batch: samples per step over all ranks; a multiple of world × micro_batch.
        rank: data-parallel rank. By default from `mesh` or `group`, else from the environment variables RANK and
            WORLD_SIZE.
        world: number of data-parallel ranks.
        micro_batch: samples per iteration of this rank. By default all of the rank's samples of a step.
        start: global samples already consumed. The step is counted as if they had all come in batches of this size.
        workers: number of threads or processes that read ahead. 0 reads in the calling thread.
        prefetch: batches that each worker reads ahead; more if they are small, up to 256 KiB.
        worker_kind: `"threads"`, for tokens and for decoding that releases Python's lock; or `"processes"`
            (forkserver), for Python functions. Both give the same batches.
        timeout_seconds: raise an error if a batch takes longer.
        tail: required for a source. `"pad"` fills the last batch with repeats from the start, marked by `valid` False;
            `"drop"` leaves the incomplete batch out. Each batch then has `valid`, bool[k].
        collate: function applied to each batch of columns, in the workers; its result is delivered.
        finish: function applied to each batch in the calling thread, for results that can't be sent between processes.
        on_error: `"substitute"` replaces an unreadable sample (a `FormatError`) by another one of the same child and
            adds `substituted`, bool[k], to each batch. I/O errors are retried and then raised in any case.
        substitute_limit: largest share of a child's positions that may be replaced; see `Substitutions`.
        mesh: one-dimensional torch DeviceMesh that defines rank and world.
        group: torch ProcessGroup that defines rank and world.
        on_metrics: called with the current `Metrics` after every `metrics_every` steps, in the calling thread.
        metrics_every: steps between two calls of `on_metrics`.

    Raises:
        ConfigError: arguments don't match each other.

    Examples:
        >>> import penstock as ps
        >>> windows = ps.Chunk(8, labels="shift")(ps.open("corpus.pbin"))
        >>> loader = ps.Loader(ps.Shuffle(windows, seed=0), global_batch=2)
        >>> batch = next(iter(loader))
        >>> batch["inputs"].shape
        (2, 8)

        Save the state with the checkpoint, and resume from it:

        >>> state = loader.state_dict()
        >>> loader.close()
        >>> resumed = ps.Loader(ps.Shuffle(windows, seed=0), global_batch=2)
        >>> resumed.load_state_dict(state)
        []
        >>> resumed.step
        1
        >>> resumed.close()
    """

    def __init__(
        self,
        data: Stream[Any] | LaneStream[Any] | Source[Any],
        global_batch: int,
        *,
        rank: int | None = None,
        world: int | None = None,
        micro_batch: int | None = None,
        start: int = 0,
        workers: int = 2,
        prefetch: int = 2,
        worker_kind: WorkerKind = "threads",
        timeout_seconds: float | None = 600.0,
        tail: Tail | None = None,
        collate: Collate | None = None,
        finish: Callable[[Any], Any] | None = None,
        on_error: OnError = "raise",
        substitute_limit: float = 0.01,
        mesh: Any = None,
        group: Any = None,
        on_metrics: Callable[[Metrics], object] | None = None,
        metrics_every: int = 100,
    ) -> None:
        rank, world = data_parallel(rank, world, mesh, group)
        global_batch = operator.index(global_batch)
        self._options = Options(
            data=data,
            global_batch=global_batch,
            rank=rank,
            world=world,
            micro_batch=samples_per_iteration(global_batch, world, micro_batch),
            tail=tail,
            collate=collate_columns if collate is None else collate,
            on_error=on_error,
            substitute_limit=substitute_limit,
        )
        self._pipeline = _read_ahead(workers, prefetch, worker_kind, timeout_seconds)
        self._iterators: WeakSet[Batches] = WeakSet()
        self._num_workers = operator.index(workers)
        self._finish = finish
        self._meter = Meter()
        self._on_metrics = on_metrics
        self._metrics_every = operator.index(metrics_every)
        if self._metrics_every < 1:
            raise ConfigError("metrics_every must be a number of steps", found=metrics_every, expected="1 or more")
        self._has_state = False
        self._accepted: tuple[tuple[int, str, str, str], ...] = ()
        self._excluded: excluded.Rows = excluded.begin(data, operator.index(start))
        start = operator.index(start)
        if not 0 <= start < runs.LIMIT:
            raise ConfigError("start must be a number of samples", found=start, expected=f"0 to {runs.LIMIT - 1}")
        self._history = runs.begin(start, global_batch, world)
        self._first_step, self._first_consumed = start // global_batch, start
        if start:
            self._refuse_lanes("start")
        self._cursor = Cursor(self._task_from(start, None))
        if self.left_out:
            _log.info("tail='drop' skips the last %d of %d samples", self.left_out, self._num_samples)

    @property
    def data(self) -> Any:
        """The stream or source that the loader reads."""
        return self._options.data

    @property
    def rank(self) -> int:
        """Data-parallel rank, from 0."""
        return self._options.rank

    @property
    def world(self) -> int:
        """Number of data-parallel ranks."""
        return self._options.world

    @property
    def global_batch(self) -> int:
        """Samples per step over all ranks."""
        return self._options.global_batch

    @property
    def micro_batch(self) -> int:
        """Samples per iteration of this rank."""
        return self._options.micro_batch

    @property
    def step(self) -> int:
        """Number of complete steps delivered, which is the next step, counted from 0."""
        return self._first_step + self._cursor.number // self._options.micro_batches

    @property
    def consumed(self) -> int:
        """Global samples of the complete steps delivered. Samples read ahead don't count."""
        return self._first_consumed + self._cursor.number // self._options.micro_batches * self.global_batch

    @property
    def history(self) -> runs.History:
        """Changes of shape so far, each (first_step, consumed, global_batch, world)."""
        return self._history

    @property
    def left_out(self) -> int:
        """Number of samples at the end that `tail="drop"` leaves out."""
        if self._options.tail != "drop":
            return 0
        return max(0, self._num_samples - self._first_consumed) % self.global_batch

    def __len__(self) -> int:
        """Return the number of steps of the whole pass, the same on every rank.

        Raises TypeError for an endless stream.
        """
        if self._options.tail is None:
            raise TypeError("a loader over an endless stream has no length")
        return self._first_step + self._steps_from(self._first_consumed)

    def __iter__(self) -> Batches:
        if self._cursor.ended:
            self._begin(runs.begin(0, self.global_batch, self.world), 0)
        if self._cursor.closed:
            raise closed()
        batches = Batches(self._cursor, self._pipeline, self._deliver)
        self._iterators.add(batches)
        return batches

    def close(self) -> None:
        """Stop the workers and discard prefetched batches. A second call does nothing.

        Reading from the loader or its iterators after that is an error. `state_dict`, `metrics` and `positions` still
        work.
        """
        self._cursor.closed = True
        for batches in list(self._iterators):
            batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return everything except the running workers: a copy continues from the same position, with new metrics."""
        return {**self.__dict__, "_cursor": self._cursor.copy(), "_meter": Meter(), "_iterators": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._iterators = WeakSet()

    def __repr__(self) -> str:
        return (
            f"<Loader  global_batch={self.global_batch} rank={self.rank}/{self.world} micro_batch={self.micro_batch} "
            f"step={self.step} consumed={self.consumed}>"
        )

    _repr_html_ = html

    def metrics(self) -> Metrics:
        """Return counts and times since the loader was created, and how much of each source was read."""
        meter = self._meter
        return Metrics(
            step=self.step,
            consumed=self.consumed,
            batches=meter.batches,
            samples=meter.samples,
            size_bytes=meter.size_bytes,
            substituted=meter.substituted,
            waiting_seconds=meter.waiting_seconds,
            training_seconds=meter.training_seconds,
            ready=self._cursor.ready(),
            stages=dict(meter.stages),
            workers=self._num_workers,
            sources=sources_so_far(self._options.data, self.consumed),
        )

    def positions(self, step: int) -> IntArray:
        """Return the global positions of `step` (from 0) over all ranks, int64[global_batch], as the run was then."""
        step = self._checked(step)
        stretch = runs.stretch_of(self._history, step)
        start = stretch.consumed_at(step)
        return np.arange(start, start + stretch.global_batch, dtype=np.int64)

    def seek(self, step: int) -> None:
        """Continue with `step` (from 0), with the current batch size and ranks. A running iterator follows at once.

        Raises:
            ConfigError: the step is negative, or beyond the end of the pass.
        """
        step = self._checked(step)
        if step:
            self._refuse_lanes("seek")
        if self._options.tail is not None and step > len(self):
            raise ConfigError("step is out of range for this pass", found=step, expected=f"0 to {len(self)}")
        self._begin(runs.go_on(self._history, step, self.global_batch, self.world), step)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the run as plain JSON: at most 64 bytes per child and 40 per change of shape.

        The state is the same on every rank. Between the micro-batches of a step, it is that of the step's beginning.
        For a lane stream, it contains the positions of this rank's lanes: merge those of all ranks with `merge_states`.
        """
        if not self._has_state:
            self._has_state = True
            for repeat in repeats_by_content(self._options.data):
                _log.warning("%s", repeat)
        consumed = self.consumed
        state = states.encode(describe(self._options.data, consumed), consumed, self._history, self._accepted)
        if self._excluded:
            state["excluded"] = excluded.encode(self._excluded)
        if self._cursor.step_places is not None:
            state["lanes"] = lanes.encode(self._cursor.step_places)
        return state

    def load_state_dict(self, state: dict[str, Any], accept: Iterable[str] = ()) -> list[str]:
        """Resume from `state`, with the current batch size and ranks. A running iterator follows at once.

        Changes to the stream that only affect samples not yet consumed are always accepted.

        Args:
            state: result of `state_dict`, from any rank, world size, batch size and number of workers.
            accept: other differences to accept: a child's path in the tree, `"recipe"`, `"order"`, or a rule that
                changed after version 0.2.0: `"document-borders"`, `"bos-first"`, `"pixels"`.

        Returns:
            One sentence per accepted difference, with the samples skipped or repeated. They are also logged.

        Raises:
            ResumeMismatch: the stream is different and the difference isn't accepted, or this isn't a state.
        """
        saved = states.decode(state)
        description = describe(self._options.data, saved.consumed)
        found = states.check(states.differences(saved, self._options.data, description), accept, description)
        account = [states.account(difference, saved.consumed, description.reads, saved.reads) for difference in found]
        for line in account:
            _log.warning("%s", line)
        taken = tuple((saved.consumed, one.name, one.old, one.new) for one in found)
        self._accepted = (*saved.accepted, *taken)
        self._excluded = excluded.go_on(excluded.decode(state.get("excluded", [])), self._options.data, saved.consumed)
        places = lanes.decode(state.get("lanes", [])) if is_lane_stream(self._options.data) else None
        self._begin(runs.go_on(saved.history, saved.step, self.global_batch, self.world), saved.step, places)
        return account

    def _deliver(self, batch: Any, seconds: Mapping[str, float], asked_at: float) -> Any:
        self._meter.delivered(batch, seconds, self.micro_batch, asked_at)
        whole_step = self._cursor.number % self._options.micro_batches == 0
        if self._on_metrics is not None and whole_step and self.step % self._metrics_every == 0:
            self._on_metrics(self.metrics())
        return batch if self._finish is None else self._finish(batch)

    def _checked(self, step: int) -> int:
        step = operator.index(step)
        if step < 0 or runs.stretch_of(self._history, step).consumed_at(step) >= runs.LIMIT:
            raise ConfigError("step is out of range", found=step, expected=f"0 or more, below {runs.LIMIT} samples")
        return step

    @property
    def _num_samples(self) -> int:
        return len(self._options.data)

    def _steps_from(self, consumed: int) -> int:
        left = max(0, self._num_samples - consumed)
        return left // self.global_batch if self._options.tail == "drop" else -(-left // self.global_batch)

    def _begin(self, history: runs.History, step: int, places: lanes.Places | None = None) -> None:
        consumed = runs.stretch_of(history, step).consumed_at(step)
        task = self._task_from(consumed, places)
        self._history, self._first_step, self._first_consumed = history, step, consumed
        self._cursor.move(task)

    def _task_from(self, consumed: int, places: lanes.Places | None) -> ReadTask | LaneTask:
        """Return this rank's task from `consumed` global samples on; of a lane stream, from `places` on."""
        options = self._options
        # This rank's first position from `consumed` on: p ≡ rank (mod world).
        first = consumed + (options.rank - consumed) % options.world
        if is_lane_stream(options.data):
            own = lanes.own_lanes(options.data.lanes, options.rank, options.world)
            starts = lanes.starts(own) if places is None else lanes.places_of(places, own)
            return LaneTask(
                options.data, first, options.world, options.micro_batch, options.micro_batches, starts, options.collate
            )
        border = mixed_border(options.data, consumed, options.global_batch)
        if border is not None:
            _log.warning(
                "the stage at position %d starts in the middle of a batch, so the batch contains both stages", border
            )
        one_pass = options.tail is not None
        return ReadTask(
            data=options.data,
            first_position=first,
            stride=options.world,
            batch_size=options.micro_batch,
            num_batches=self._steps_from(consumed) * options.micro_batches if one_pass else None,
            num_samples=self._num_samples if one_pass else None,
            collate=options.collate,
            on_error=options.on_error,
            substitute_limit=options.substitute_limit,
        )

    def _refuse_lanes(self, what: str) -> None:
        if is_lane_stream(self._options.data):
            raise ConfigError(
                f"{what} isn't possible for a stream that packs on the fly: the samples per window are only known "
                "once it is read",
                hint="Resume from a state: load_state_dict(merge_states([...]))",
            )


def _read_ahead(workers: int, prefetch: int, kind: WorkerKind, timeout_seconds: float | None) -> PipelineFactory:
    workers, prefetch = operator.index(workers), operator.index(prefetch)
    if workers < 0 or prefetch < 1:
        raise ConfigError(
            "invalid workers or prefetch",
            found=f"workers={workers}, prefetch={prefetch}",
            expected="workers of 0 or more, prefetch of 1 or more",
        )
    if timeout_seconds is not None and not timeout_seconds > 0:
        raise ConfigError(
            "timeout_seconds is too short", found=f"timeout_seconds={timeout_seconds}", expected="above 0"
        )
    if timeout_seconds is not None and timeout_seconds > _LONGEST_WAIT_S:
        timeout_seconds = None  # longer than the system supports
    if kind not in ("threads", "processes"):
        raise ConfigError("unknown worker_kind", found=repr(kind), expected="'threads' or 'processes'")
    return _ReadAhead(workers, prefetch, kind, timeout_seconds)


@dataclass(frozen=True, slots=True)
class _ReadAhead:
    workers: int
    prefetch: int
    kind: WorkerKind
    timeout_seconds: float | None

    def __call__(self, task: ReadTask | LaneTask, first: int, /) -> Pipeline:
        workers = 0 if only_exit_handlers_run() else self.workers
        start = _starter(self.kind, self.prefetch, self.timeout_seconds) if workers else _in_the_calling_thread
        workers = max(1, workers)
        return (
            LaneBatches(task, first, workers, start)
            if isinstance(task, LaneTask)
            else ReadAhead(task, first, workers, start)
        )


def _starter(kind: WorkerKind, prefetch: int, timeout_seconds: float | None) -> WorkersFactory:
    if kind == "threads":
        return lambda producer, workers: ThreadWorkers(producer, workers, prefetch, timeout_seconds)
    from penstock.load.processes import ProcessWorkers  # most runs need no processes

    return lambda producer, workers: ProcessWorkers(producer, workers, prefetch, timeout_seconds)


def _in_the_calling_thread(producer: Producer, _workers: int, /) -> Workers:
    return NoWorkers(producer)
