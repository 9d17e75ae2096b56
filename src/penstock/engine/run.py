"""Run a job: inline, with workers, or distributed over many machines.

A job has tasks. Each task makes one or more parts: files of the output, named after their content, in a work folder
next to the output (see `penstock.engine.work`). When all parts exist, a second wave of tasks does what depends on all
of them, such as checksums of blocks or shards. Finally one process makes the output visible and removes the work
folder. Parts are kept if the run is killed, interrupted, or fails through no fault of its input; running the same job
again continues with them.
"""

from __future__ import annotations

import collections
import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock._threads import sleep
from penstock.abc import Executor
from penstock.engine.options import Counter, RunOptions
from penstock.errors import ConfigError, Corrupt, PenstockError, PrepareError
from penstock.formats import files_at, get_format, owned_by
from penstock.store._files import named
from penstock.store._remote_output import forget_claim
from penstock.store.names import NEXT, REPLACED
from penstock.store.outputs import claimed, is_held, sweep_complete
from penstock.store.place import Place
from penstock.types import OpenOptions


def sweep_made(output: Place, format: str) -> None:
    """Remove temporary files, locks and replaced data of a killed run next to a complete output.

    Locks that another run holds stay.
    """
    sweep_complete(output.store, files_at(format, output.path), owned_by(format, output.store))


def end_made(output: Place, format: str, work: str | None) -> None:
    """Complete the remaining steps of a run that was killed after its output became visible.

    Side files get their final names. Replaced data is removed, and so is the claim of the plan with the digest `work`.
    """
    if work is not None:
        for path in files_at(format, output.path):
            forget_claim(output.store, path, work)
    name = re.escape(output.name)
    kept = re.compile(rf"\.{name}{re.escape(REPLACED)}\..*|{name}\..*{re.escape(NEXT)}")
    if any(kept.fullmatch(one) for one in output.folder().names()):
        with claimed(output.store, *files_at(format, output.path)) as held:
            get_format(format).repair(held, output.path, OpenOptions(), [], write=True)


if TYPE_CHECKING:
    from penstock.engine.folder import WorkFolder
    from penstock.engine.parts import PartName
    from penstock.engine.plan import Plan
    from penstock.engine.work import Work

# The work folder is imported at first use: jobs such as `verify` and `index` don't have one.

ReportT = TypeVar("ReportT")

_POLL_SECONDS = 0.1
_KEPT = "Finished parts are kept: run the same command again to resume"


class Wave:
    """Tasks that follow when all parts exist; by default none. Each has a `number`; `fn`, picklable, does one."""

    tasks: Sequence[Any] = ()
    fn: Callable[[Any], object] = staticmethod(id)

    def done(self) -> Mapping[int, object]:
        return {}

    def run(self, pool: Executor, tasks: Sequence[Any]) -> None:
        """Do the unfinished tasks of this run."""
        for _ in pool.map(self.fn, tasks):
            pass


class BaseJob(ABC, Generic[ReportT]):
    """A command that can be run with workers.

    Attributes:
        options: how to run it.
        preload: modules that workers import before their first task.
    """

    options: RunOptions
    preload: Sequence[str] = ()

    def rehearse(self) -> ReportT:
        """Check everything and count what would be written."""
        raise ConfigError("this command has no dry run", found="dry_run (--dry-run)")

    @abstractmethod
    def write(self) -> ReportT: ...

    def write_in_parts(self) -> ReportT:
        """Do the job with workers, or this run's part of a distributed job; by default like `write`."""
        return self.write()


class Job(BaseJob[ReportT]):
    """A job whose tasks make parts of an output.

    Attributes:
        output: the dataset. Its work folder is next to it.
        counter: counts finished samples, for the default `make_parts`.
        commits_with_workers: whether the commit has work for workers, too.
    """

    output: Place
    counter: Counter
    commits_with_workers: bool = False

    def write(self) -> ReportT:
        return self.write_in_parts()

    def write_in_parts(self) -> ReportT:
        return _run_in_parts(self)

    @property
    def folder(self) -> WorkFolder:
        from penstock.engine.work import work_folder

        return work_folder(self.output, inside=False)

    @property
    def reads(self) -> Sequence[Place]:
        """Datasets that tasks open; the state of their files is recorded with the plan."""
        return ()

    @property
    def opened(self) -> Sequence[Place]:
        """Files and directories that tasks read, and so must be visible to all workers."""
        return self.reads

    @property
    @abstractmethod
    def tasks(self) -> Iterable[Any]:
        """Tasks in order. Each has `num_samples`, and `described` for errors."""

    @property
    def num_tasks(self) -> int | None:
        """Number of tasks; None if it is unknown before all samples are read."""
        return sum(1 for _ in self.tasks)

    @property
    def most_workers(self) -> int | None:
        return self.num_tasks

    @abstractmethod
    def plan(self) -> Plan:
        """Return the options and inputs that determine the output. Raises what an inline run raises."""

    def first_files(self) -> Sequence[Place]:
        """Return the first file of each output, by which its writer is recognised."""
        return ()

    @property
    def may_be_finished(self) -> bool:
        """Whether `finished` is worth a look before the job starts."""
        return self.options.is_distributed or (self.folder.is_there() and not self.options.overwrite)

    def published(self) -> Any:
        """Return what is recorded with the output if it exists and is exactly this job's; None otherwise."""
        return None

    def settle(self, made: Any) -> None:
        """Complete what a killed run left undone next to an output that it made visible; remove its files."""

    def report_complete(self, made: Any) -> ReportT:
        """Return the report on an output that exists; by default what `published` returned."""
        return made

    def finished(self) -> ReportT | None:
        """Return the report if this job's output exists; remove the rest of its work."""
        made = self.published()
        if made is None:
            return None
        self.settle(made)
        report = self.report_complete(made)  # before the work is discarded, by which a killed run is recognised
        self.discard_work()
        return report

    def discard_work(self) -> None:
        """Remove this job's work, as its output exists; other runs may still work on their parts."""
        from penstock.engine.work import open_work

        if self.folder.is_there():
            self.require_same_inputs()  # before `open_work`, which removes work without a head
            opened = open_work(self.output, self.folder, restart=False, shared=False)
            with contextlib.suppress(PrepareError), opened as work:
                if work.head is None or self.is_own_work(work.head.digest):
                    self.end_killed_commit(work)
                    work.clear()

    def require_same_inputs(self) -> None:
        """Raise `ConfigError` if an input changed since this job recorded it, as the output is of what it was."""
        from penstock.engine.work import Work

        Work(self.folder, self.output, reads=tuple(self.reads)).require_inputs_of(self.plan().digest())

    def is_own_work(self, digest: str) -> bool:
        return digest == self.plan().digest()

    def end_killed_commit(self, work: Work) -> None:
        """Complete a killed commit of this job."""

    def require_free(self) -> None:
        """Raise `ConfigError` if something that must not be replaced is in the place of an output."""

    def hold(self) -> contextlib.AbstractContextManager[object]:
        """Return what keeps other writers of the output out while the job runs; by default only the commit does."""
        return contextlib.nullcontext()

    def adopt(self, work: Work) -> bool:
        """Take over, discard or compare unfinished work, before this job joins it. `plan` and `tasks` are used later.

        Returns:
            Whether parts are kept if this run fails in any way, as other jobs can take them over or they are expensive.
        """
        return False

    def is_current(self, work: Work) -> bool:
        """Return whether the output is still to be made, now that the job has joined the work.

        If another run made it meanwhile, nobody would finish the work: it is discarded, and the run starts again.
        """
        return True

    def start(self, work: Work, pool: Executor) -> None:
        """Prepare for the first task, after the job has joined the work."""

    def require_beginning(self, *, left: bool) -> None:
        """Raise `ConfigError` if new work would collide with existing objects; `left`: discarded work left some."""

    def workers(self) -> contextlib.AbstractContextManager[Executor]:
        """Return the executor that runs the tasks. It is entered once this run has joined the work."""
        if self.options.no_work and not self.commits_with_workers:
            return open_pool(RunOptions(), ())
        places: dict[str, Any] = {"reads": self.opened, "writes": [self.folder.place]}
        return open_pool(self.options, self.preload, most=self.most_workers, **places)

    def make_parts(self, work: Work, pool: Executor) -> None:
        """Make the missing parts of this run. Override it to use parts while later ones are made."""
        _make_parts(self, work, pool)

    def sent(self, number: int, task: Any, parts: Sequence[PartName]) -> Any:
        """Return the argument for a worker, or None if the task is finished. `parts`: its existing parts."""
        from penstock.engine.work import is_complete

        return None if is_complete(parts) else task

    @abstractmethod
    def part_fn(self, work: Work) -> Callable[[Any], object]:
        """Return the picklable function that does a task and writes its parts."""

    def wave(self, work: Work) -> Wave:
        return Wave()

    @abstractmethod
    def commit(self, work: Work, wave: Any) -> ReportT:
        """Make the output visible."""

    @abstractmethod
    def unfinished(self, work: Work, missing: tuple[int, ...] = ()) -> ReportT:
        """Report on one part of a distributed job, or on a job that isn't complete."""

    def announce(self) -> None: ...


def run(job: BaseJob[ReportT]) -> ReportT:
    """Run a job, or this run's part of it.

    Raises:
        ConfigError: an output exists, or unfinished work has other options.
        PrepareError: another run writes the output, or workers died.
    """
    if job.options.dry_run:
        return job.rehearse()
    return job.write() if job.options.is_inline else job.write_in_parts()


def _run_in_parts(job: Job[ReportT]) -> ReportT:
    report = _finished(job)
    while report is None:
        try:
            job.require_free()
            with _explain_errors(job.output, job.folder), job.hold():
                report = _run_once(job)
        except (PenstockError, OSError) as error:
            # Another finisher of the same plan may have been first. An error while looking must not hide this one.
            with contextlib.suppress(PenstockError, OSError):
                report = _finished(job) if job.options.is_distributed else None
            waited = isinstance(error, PrepareError) and any(
                _wait_for_finisher(file, job) for file in job.first_files()
            )
            if report is None and not waited:
                raise
        report = report or _finished(job)
    return report


def _finished(job: Job[ReportT]) -> ReportT | None:
    return job.finished() if not job.options.restart and job.may_be_finished else None


def _run_once(job: Job[ReportT]) -> ReportT | None:
    """Run a job; return None if another run made the output after this one looked for it."""
    from penstock.engine.work import HEAD_NAME, open_work

    options, folder = job.options, job.folder
    with contextlib.ExitStack() as stack:
        had = options.restart and folder.file(HEAD_NAME).exists()
        work = stack.enter_context(
            open_work(job.output, folder, restart=options.restart, shared=options.is_distributed)
        )
        if work.head is None:
            job.require_beginning(left=had)
        keeps = job.adopt(work)
        _join(work, job)
        if not job.is_current(work):
            work.clear()
            return None
        stack.enter_context(_keep_parts(work, always=options.is_distributed or keeps))
        if options.no_work and (missing := work.missing()):
            return job.unfinished(work, work.job_parts_of(missing))
        pool = stack.enter_context(job.workers())
        job.start(work, pool)
        job.make_parts(work, pool)
        work.require_unchanged_inputs()
        if options.part is not None and work.missing():
            return job.unfinished(work)
        wave = job.wave(work)
        missing = _run_wave(wave, options, pool)
        if wave.tasks:  # they may have read inputs, too
            work.require_unchanged_inputs()
        if options.part is not None or missing:
            return job.unfinished(work, work.job_parts_of(missing))
        report = job.commit(work, wave)
        with contextlib.suppress(OSError, PenstockError):
            work.clear()  # the output is complete; the next run removes the rest
        return report


def open_pool(
    options: RunOptions,
    preload: Sequence[str],
    *,
    most: int | None = None,
    reads: Sequence[Place] = (),
    writes: Sequence[Place] = (),
) -> contextlib.AbstractContextManager[Executor]:
    """Return the executor that the options name; arguments as of `penstock.executors.make_executor`."""
    from penstock.executors import make_executor  # not needed by inline jobs

    if not options.has_workers:
        return make_executor("inline", None)
    alone, executor = options.workers == 1 or most in (0, 1), options.executor or "processes"
    return make_executor(executor, options.workers, preload, alone=alone, most=most, reads=reads, writes=writes)


def _make_parts(job: Job[Any], work: Work, pool: Executor) -> None:
    from penstock.engine.work import is_complete

    if job.num_tasks == 0:
        return
    listed, at_work = work.listed(), collections.deque[Any]()
    is_new = True

    def missing() -> Iterator[Any]:
        nonlocal is_new
        for number, task in enumerate(job.tasks):
            parts = listed.get(number, ())
            sent = job.sent(number, task, parts)
            if is_complete(parts):
                work.reused += job.options.takes(number)
            if sent is None:
                job.counter.add(task.num_samples)
            elif job.options.takes(number):
                if is_new:
                    job.announce()
                    is_new = False
                at_work.append(task)
                yield sent

    for _ in pool.map(job.part_fn(work), missing()):
        job.counter.add(at_work.popleft().num_samples)


def _run_wave(wave: Wave, options: RunOptions, pool: Executor) -> list[int]:
    """Do this run's tasks of the second wave; return the numbers of missing tasks."""
    done = wave.done()
    missing = [task for task in wave.tasks if task.number not in done]
    if options.no_work and missing:
        return [task.number for task in missing]
    wave.run(pool, [task for task in missing if options.takes(task.number)])
    return []


# --- other runs and errors ----------------------------------------------------------------------


def _join(work: Work, job: Job[Any]) -> None:
    """Join the unfinished work of a job, or start it.

    Raises:
        ConfigError: unfinished work has other options or another number of parts, or an input has changed since.
        Corrupt: unfinished work has another number of tasks.
    """
    from penstock.engine.plan import RESTART, require_same
    from penstock.engine.work import HEAD_NAME

    plan, num_tasks, options = job.plan(), job.num_tasks or 0, job.options
    work.reads = tuple(job.reads)
    work.require_recorded_inputs()
    require_same(work.plan, plan, work.output.path)
    if work.head is not None and work.head.tasks != num_tasks:
        what, found = "the plan of unfinished work is damaged", f"{work.head.tasks} tasks"
        path = work.folder.file(HEAD_NAME).path
        raise Corrupt(what, path=path, found=found, expected=str(num_tasks), hint=RESTART)
    work.begin(plan, num_tasks)
    work.record_inputs()
    if options.part is not None:
        work.record_job_parts(options.part[1])
    if options.is_distributed:
        work.log_begin(options.part)


def _wait_for_finisher(file: Place, job: Job[Any]) -> bool:
    """Wait while another run finishes the same job; return whether one did. `file`: first file of an output."""
    waited, folder = False, job.folder
    while job.options.finish and folder.is_there() and is_held(file.store, file.path):
        with folder.tried() as alone:
            if alone and folder.place.is_local and not waited:  # the writer isn't a run of this job
                return False
        waited = True
        if sleep(_POLL_SECONDS):
            return False
    return waited


def wait_for_writer(output: Place) -> bool:
    """Wait while another run writes an output; return whether one did."""
    waited = False
    while is_held(output.store, output.path) and not sleep(_POLL_SECONDS):
        waited = True
    return waited


@contextlib.contextmanager
def _keep_parts(work: Work, *, always: bool) -> Generator[None]:
    """Keep finished parts if the run is interrupted or workers die; discard them on other errors unless `always`."""
    try:
        yield
    except (OSError, KeyboardInterrupt, PrepareError):
        raise
    except BaseException:
        if not always:
            with contextlib.suppress(OSError, PenstockError):
                work.clear()
        raise


@contextlib.contextmanager
def _explain_errors(output: Place, folder: WorkFolder) -> Generator[None]:
    """Add the file to operating system errors, and to these and each `PrepareError` that parts are kept."""
    try:
        yield
    except PrepareError as error:
        if folder.is_there() and "--restart" not in (error.hint or ""):
            error.hint = f"{error.hint}. {_KEPT}" if error.hint else _KEPT
        raise
    except PenstockError:
        raise
    except OSError as error:
        explained = named(error, output.path)
        if explained.errno is not None and folder.is_there():
            explained.strerror = f"{explained.strerror}. {_KEPT}"
        raise explained from None
