"""The raw indexes of many JSONL files: small files in runs, large ones each by all workers.

An index beside its file is its own mark: one that is there and fits is done. So a run that was killed goes on, and the
shares of an array need nothing else.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock._secrets import logger, redacted_repr
from penstock.engine.options import RunOptions
from penstock.engine.sharing import wait_for_writer
from penstock.errors import ConfigError, PenstockError, PrepareError
from penstock.executors import AnyExecutor, make_executor
from penstock.formats.jsonl.build import index_path_for
from penstock.formats.jsonl.energon import energon_index_path, read_energon_index
from penstock.formats.jsonl.index import load_lines
from penstock.prepare.raw import IndexReport, OnError, build_index, encode_index, require_checks
from penstock.prepare.tokens.inputs import COMPRESSED, find_files
from penstock.store._named import named
from penstock.store.local import TOGETHER, LocalStore
from penstock.store.memory import MemoryStore
from penstock.store.outputs import sweep_killed
from penstock.store.patterns import is_pattern
from penstock.store.place import Given, Place, place_of, places_of
from penstock.store.resolve import absolute
from penstock.store.small import HIDDEN, NamesBeside, read_small
from penstock.store.state import states_of
from penstock.store.unfinished import mark_path, remove_mark

_log = logger()
_LARGE_BYTES = 1 << 28
_TASK_BYTES = 1 << 26
_TASK_FILES = 1 << 10
_TOGETHER_FILES = 4
_PLAIN = (".jsonl", ".ndjson")
_SHOWN = 9


@redacted_repr
@dataclass(frozen=True, slots=True)
class IndexSummary:
    """Result of `index` for several files.

    Attributes:
        indexes: one report per file, ordered by path; skipped lines are unknown for existing indexes.
        num_reused: number of existing indexes that matched their file.
        part: `(i, n)` if this was part i of a distributed job.
        missing: files without an index, with `no_work`.
    """

    indexes: tuple[IndexReport, ...]
    num_reused: int
    part: tuple[int, int] | None = None
    missing: tuple[str, ...] = ()

    @property
    def num_lines(self) -> int:
        """Number of lines in all indexes."""
        return sum(one.num_lines for one in self.indexes)

    @property
    def num_dropped(self) -> int:
        """Number of invalid lines skipped."""
        return sum(one.num_dropped for one in self.indexes)

    @property
    def size_bytes(self) -> int:
        """Total size of the files."""
        return sum(one.size_bytes for one in self.indexes)


def index(
    paths: Given | Sequence[Given],
    index_path: Given | None = None,
    *,
    flavor: str = "modalities",
    on_error: OnError = "raise",
    validate: bool = True,
    overwrite: bool = False,
    dry_run: bool = False,
    workers: int | None = None,
    executor: AnyExecutor = "processes",
    part: tuple[int, int] | None = None,
    finish: bool = False,
    no_work: bool = False,
    follow_links: bool = False,
    progress: Callable[[int], None] | None = None,
) -> IndexReport | IndexSummary:
    """Write the index of a JSONL file, or of several files, directories and patterns, also at URLs.

    With several files, existing indexes that match their files are kept. An error in one file doesn't stop the others;
    the first error is raised at the end.

    Args:
        paths: a file; or a directory, a pattern, or a list of files, directories and patterns. Directories are searched
            at any depth for `.jsonl` and `.ndjson`.
        index_path: where to write the index of a single file, instead of next to it.
        flavor: format of the index: `"modalities"` or `"energon"`.
        on_error: for invalid lines: `"raise"`, or `"skip"` and count them.
        validate: False only searches for line ends.
        overwrite: replace existing indexes.
        dry_run: check everything, including the lines, and report what would be written, without writing.
        workers, executor: how to run the work, as in `penstock.pack`. By default chosen by the size of the data.
        part: `(i, n)`: process part i (from 0) of n parts of the files.
        finish, no_work: check all indexes and make the missing ones; with `no_work`, only list them.
        follow_links: allow links that lead out of a searched directory.
        progress: called with the number of bytes done so far.

    Returns:
        An `IndexReport` for a single file, an `IndexSummary` otherwise.

    Raises:
        NotFound: a file doesn't exist, or a directory contains none.
        Corrupt: a line is invalid; the message names the line (from 1) and its place.
        ConfigError: the index of the single file exists, one of several doesn't match its file, or an option is
            invalid.
        PrepareError: a process was killed, or another writer holds an index.

    Examples:
        >>> import penstock as ps
        >>> ps.index("docs.jsonl").num_lines
        6
    """
    sharing = _sharing(part, finish=finish, no_work=no_work, overwrite=overwrite, dry_run=dry_run)
    how: dict[str, Any] = {"flavor": flavor, "on_error": on_error, "validate": validate}
    how |= {"overwrite": overwrite, "dry_run": dry_run}
    given = [paths] if isinstance(paths, str | os.PathLike | Place) else list(paths)
    if len(given) == 1 and not sharing.is_distributed and not _is_search(given[0]):
        return build_index(given[0], index_path, **how, workers=workers, executor=executor, progress=progress)
    if index_path is not None:
        what = "index_path (--index-path) only works with one file"
        raise ConfigError(what, found=f"{len(given)} inputs", hint="Omit it: each index is written next to its file")
    require_checks(None, flavor, on_error, validate=validate)
    named = [os.fspath(one.path if isinstance(one, Place) else one) for one in given]
    files, statuses = _files_of(named, follow_links)
    chosen = [file for number, file in enumerate(files) if sharing.takes(number)]
    sizes = [state.size_bytes for state in states_of(chosen, statuses)]
    job = _Job(**how, no_work=no_work, joins=sharing.is_distributed)
    done = _index_all(job, chosen, sizes, workers, executor, progress or _silent)
    return _summary(done, part)


def _summary(done: Sequence[_Result], part: tuple[int, int] | None) -> IndexSummary:
    """What was done; raises the first error."""
    _raise_first([one for one in done if isinstance(one, Exception)], len(done))
    made = [one for one in done if isinstance(one, _Done)]
    missing = tuple(one.path for one in done if isinstance(one, _Missing))
    return IndexSummary(tuple(one.report for one in made), sum(one.reused for one in made), part, missing)


def _sharing(
    part: tuple[int, int] | None, *, finish: bool, no_work: bool, overwrite: bool, dry_run: bool
) -> RunOptions:
    """What a run does of the work; raises `ConfigError`."""
    sharing = RunOptions(part=part, finish=finish, no_work=no_work, dry_run=dry_run)
    if finish and overwrite:
        hint = "Omit overwrite (--overwrite): the parts applied it already"
        raise ConfigError("the finalize step doesn't replace valid indexes", hint=hint)
    return sharing


def _is_search(given: Given) -> bool:
    """Whether it means whatever is found there: a folder, or a glob."""
    place = place_of(given)
    return place.is_folder() or (is_pattern(place.path) and not place.exists())


def _files_of(given: Sequence[str], follow_links: bool) -> tuple[list[Place], Mapping[str, os.stat_result]]:
    """The files in byte order of their paths, and what their folders' lists tell of them; see `find_files`.

    What is compressed has no index, and is left out of a search.
    """
    named = {absolute(one) for one in given}
    paths, statuses = find_files(given, "jsonl", follow_links=follow_links)
    chosen = [path for path in paths if path in named or not path.endswith(COMPRESSED)]
    if len(chosen) < len(paths):
        _log.warning(
            "%d compressed files are skipped: only uncompressed files can have an index", len(paths) - len(chosen)
        )
    return places_of(chosen), statuses


# --- work ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Job:
    """The arguments of `build_index` that all files share.

    Attributes:
        no_work: it is only asked whether an index is there.
        joins: others may do the same: one who writes an index is waited for, as a share may run twice.
    """

    flavor: str
    on_error: OnError
    validate: bool
    overwrite: bool
    dry_run: bool
    no_work: bool = False
    joins: bool = False


@dataclass(frozen=True, slots=True)
class _File:
    """A file, and what the list of its folder says of its index.

    Attributes:
        has_index: it is there; None: not known, or what a writer has or left hidden is beside it.
    """

    place: Place
    has_index: bool | None


@dataclass(frozen=True, slots=True)
class _Task:
    """Some small files."""

    job: _Job
    files: tuple[_File, ...]
    size_bytes: int

    @property
    def is_large(self) -> bool:
        """Whether it is one file that all workers share."""
        return self.size_bytes > _LARGE_BYTES

    @property
    def described(self) -> str:
        """What an error calls it."""
        return f"{len(self.files)} files from {self.files[0].place.shown} to {self.files[-1].place.shown}"


@dataclass(frozen=True, slots=True)
class _Done:
    """The index of a file, and whether it was there already."""

    report: IndexReport
    reused: bool = False


@dataclass(frozen=True, slots=True)
class _Missing:
    """A file without an index."""

    path: str


_Result = _Done | _Missing | PenstockError | OSError


def _index_all(
    job: _Job,
    files: Sequence[Place],
    sizes: Sequence[int],
    workers: int | None,
    executor: AnyExecutor,
    progress: Callable[[int], None],
) -> list[_Result]:
    """What became of each file: small ones in runs side by side, then each large one by all workers."""
    tasks = list(_tasks(job, _looked_at(job, files), sizes))
    small, large = ([n for n, one in enumerate(tasks) if one.is_large == is_large] for is_large in (False, True))
    if workers is None and executor == "processes":
        workers = max(1, min(len(os.sched_getaffinity(0)), sum(sizes) // _TASK_BYTES))
    found: dict[int, list[_Result]] = {}
    done_bytes = 0
    with make_executor(executor, workers, [__name__], alone=workers == 1, reads=files, writes=files[:1]) as pool:
        by_one = job.flavor == "energon" or workers == 1
        several: tuple[AnyExecutor, int | None] = ("inline", None) if by_one else (pool, workers)
        by_all = ([_index_one(job, tasks[n].files[0], *several)] for n in large)
        results = itertools.chain(pool.map(_index_some, [tasks[n] for n in small]), by_all)
        for number, result in zip((*small, *large), results, strict=True):
            found[number] = result
            done_bytes += tasks[number].size_bytes
            progress(done_bytes)
    return [one for number in range(len(tasks)) for one in found[number]]


def _looked_at(job: _Job, files: Sequence[Place]) -> list[_File]:
    """The files, with what lists of their folders say; what a killed run left in a folder goes."""
    names = NamesBeside([file.path for file in files if file.is_local], (".idx", *HIDDEN))

    def known(file: Place) -> bool | None:
        if not (file.is_local and names.is_listed() and file.path.endswith(_PLAIN)):
            return None
        index_path = _index_of(job, file).path
        return None if names.has_unfinished(index_path) else names.has(index_path)

    found = [_File(file, known(file)) for file in files]
    if names.is_listed() and not (job.no_work or job.dry_run):
        for folder in {file.folder().path: file.folder() for file in files}.values():
            if isinstance(folder.store, LocalStore) and names.has_unfinished(folder.child(TOGETHER).path):
                with contextlib.suppress(OSError):  # of another user: hidden, and harmless
                    folder.store.stage_files(folder.path).abort()
    return found


def _tasks(job: _Job, files: Sequence[_File], sizes: Sequence[int]) -> Iterator[_Task]:
    """Runs of small files, and large files alone, in their order."""
    run: list[_File] = []
    run_bytes = 0
    for file, size_bytes in zip(files, sizes, strict=True):
        if run and (run_bytes + size_bytes > _TASK_BYTES or len(run) == _TASK_FILES):
            yield _Task(job, tuple(run), run_bytes)
            run, run_bytes = [], 0
        run.append(file)
        run_bytes += size_bytes
    if run:
        yield _Task(job, tuple(run), run_bytes)


def _index_some(task: _Task) -> list[_Result]:
    """The indexes of small files; runs in a worker."""
    job = task.job
    new: dict[str, list[_File]] = {}
    for file in task.files if not (job.overwrite or job.no_work or job.dry_run) else ():
        if file.has_index is False:
            new.setdefault(file.place.folder().path, []).append(file)
    several = [some for some in new.values() if len(some) >= _TOGETHER_FILES]
    done = {path: one for some in several for path, one in _index_together(job, some).items()}
    return [done.get(file.place.path) or _index_one(job, file, "inline") for file in task.files]


def _index_together(job: _Job, files: Sequence[_File]) -> dict[str, _Result]:
    """New indexes of small files of one folder, with one sync for all. A file that is not in it is one to do alone."""
    made: dict[str, tuple[str, IndexReport]] = {}
    folder = files[0].place.folder()
    if not isinstance(folder.store, LocalStore):
        return {}
    with contextlib.ExitStack() as stack:
        try:
            staged = folder.store.stage_files(folder.path)
            stack.callback(staged.abort)
            for file in files:
                store = read_small(file.place.store, file.place.path)
                if not isinstance(store, MemoryStore):
                    continue
                with contextlib.suppress(PenstockError, OSError):  # it is told where the file is done alone
                    checks = {"skip_faulty": job.on_error == "skip", "validate": job.validate}
                    data, report = encode_index(Place(store, file.place.path), job.flavor, **checks)
                    name = Place(folder.store, report.index_path).name
                    staged.write(name, data)
                    made[name] = (file.place.path, report)
        except (PenstockError, OSError):
            return {}
        try:
            left = staged.commit()
        except OSError as error:
            return {path: named(error, path) for path, _ in made.values()}
    return {path: _Done(report) for name, (path, report) in made.items() if name not in left}


def _index_one(job: _Job, file: _File, executor: AnyExecutor, workers: int | None = None) -> _Result:
    """The index of a file, made unless it is there and fits; or why there is none."""
    result = _try_index(job, file, executor, workers)
    while job.joins and isinstance(result, PrepareError) and wait_for_writer(_index_of(job, file.place)):
        result = _try_index(job, file, executor, workers)
    return result


def _try_index(job: _Job, file: _File, executor: AnyExecutor, workers: int | None) -> _Result:
    how: dict[str, Any] = {"flavor": job.flavor, "on_error": job.on_error, "validate": job.validate}
    how["dry_run"] = job.dry_run
    place = file.place
    try:
        there = None if job.overwrite else _there(job, file)
        if there is not None:
            return _Done(there, reused=True)
        if job.no_work:
            return _Missing(place.shown)
        return _Done(build_index(place, overwrite=job.overwrite, executor=executor, workers=workers, **how))
    except PenstockError as error:
        with contextlib.suppress(PenstockError, OSError):  # another worker may have made it meanwhile
            there = None if job.overwrite else _there(job, _File(place, None))
            if there is not None:
                return _Done(there, reused=True)
        return error
    except OSError as error:
        return named(error, place.path)


def _there(job: _Job, file: _File) -> IndexReport | None:
    """The index that is there, which has to fit the file; None where there is none."""
    place = file.place
    index = _index_of(job, place)
    if not file.has_index and not index.exists():
        return None
    store = read_small(place.store, place.path, index.path) if file.has_index else place.store
    size_bytes = store.size(place.path)
    if job.flavor == "energon":
        num_lines = len(read_energon_index(store, place.path, index.path, size_bytes)) - 1
    else:
        num_lines = len(load_lines(store, place.path, index.path))
    if file.has_index is None and not job.dry_run and place.store.exists(mark_path(index.path)):
        sweep_killed(place.store, [index.path])
        remove_mark(place.store, index.path)
    return IndexReport(place.path, index.path, size_bytes, store.size(index.path), num_lines, 0, ())


def _index_of(job: _Job, file: Place) -> Place:
    return Place(file.store, (energon_index_path if job.flavor == "energon" else index_path_for)(file.path))


def _raise_first(errors: Sequence[PenstockError | OSError], num_files: int) -> None:
    """Raise the first error, which says how many there are; the others are told before."""
    if not errors:
        return
    first, *others = errors
    for error in others[:_SHOWN]:
        _log.warning("%s", error if isinstance(error, PenstockError) else f"{error.filename}: {error.strerror}")
    rest = f"{len(errors)} of {num_files} files have no index; all others were indexed"
    if isinstance(first, PenstockError):
        first.hint = f"{first.hint}. {rest}" if first.hint else rest
    elif first.errno is not None:
        first.strerror = f"{first.strerror}. {rest}"
    raise first


def _silent(done_bytes: int) -> None:
    """No progress."""
