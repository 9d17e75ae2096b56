"""Build the raw indexes of many JSONL files: small files in runs, each large file by all workers.

A valid index next to a file shows that the file is done. That is all a run that was killed, or a part of a distributed
job, needs to know, so the job has no work folder.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock._secrets import logger, redacted_repr
from penstock.engine.options import RunOptions
from penstock.engine.run import BaseJob, run, wait_for_writer
from penstock.errors import ConfigError, PenstockError, PrepareError
from penstock.executors import AnyExecutor, make_executor
from penstock.formats.jsonl.energon import read_energon_index
from penstock.formats.jsonl.index import load_lines
from penstock.prepare.raw import IndexReport, LineOptions, OnError, encode_index, write_index
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
    lines = LineOptions(flavor, on_error, validate)
    inputs = [paths] if isinstance(paths, str | os.PathLike | Place) else list(paths)
    is_single = len(inputs) == 1 and part is None and not finish and not _is_search(inputs[0])
    if is_single:
        lines.require_alone(place_of(inputs[0]), executor, workers)
    options = RunOptions(
        executor, workers, part, finish, no_work, dry_run=dry_run, overwrite=overwrite, progress=progress
    )
    if finish and overwrite:
        hint = "Omit overwrite (--overwrite): the parts applied it already"
        raise ConfigError("the finalize step doesn't replace valid indexes", hint=hint)
    if is_single:
        index = None if index_path is None else place_of(index_path)
        return write_index(place_of(inputs[0]), lines, options, index)
    if index_path is not None:
        what = "index_path (--index-path) only works with one file"
        raise ConfigError(what, found=f"{len(inputs)} inputs", hint="Omit it: each index is written next to its file")
    lines.require_valid()
    named = [os.fspath(one.path if isinstance(one, Place) else one) for one in inputs]
    files, statuses = _files_of(named, follow_links)
    chosen = [file for number, file in enumerate(files) if options.takes(number)]
    sizes = [state.size_bytes for state in states_of(chosen, statuses)]
    return run(IndexJob(files=chosen, sizes_bytes=sizes, lines=lines, options=options))


def _is_search(path: Given) -> bool:
    """Return whether an input is searched: a directory or a pattern."""
    place = place_of(path)
    return place.is_folder() or (is_pattern(place.path) and not place.exists())


def _files_of(inputs: Sequence[str], follow_links: bool) -> tuple[list[Place], Mapping[str, os.stat_result]]:
    """Return the files in byte order of their paths, and their states in directory listings; see `find_files`.

    A search skips compressed files, which can't have an index.
    """
    from penstock.prepare.tokens.inputs import COMPRESSED, find_files  # imports formats of tables

    named = {absolute(one) for one in inputs}
    paths, statuses = find_files(inputs, "jsonl", follow_links=follow_links)
    chosen = [path for path in paths if path in named or not path.endswith(COMPRESSED)]
    if len(chosen) < len(paths):
        _log.warning(
            "%d compressed files are skipped: only uncompressed files can have an index", len(paths) - len(chosen)
        )
    return places_of(chosen), statuses


# --- the job ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _File:
    """A file, and whether its directory lists an index.

    Attributes:
        has_index: whether an index exists; None if unknown, or if another run left or is writing hidden files.
    """

    place: Place
    has_index: bool | None


@dataclass(frozen=True, slots=True)
class _Task:
    """Some small files, or a large one."""

    files: tuple[_File, ...]
    size_bytes: int

    @property
    def is_large(self) -> bool:
        """Whether it is one file that all workers index together."""
        return self.size_bytes > _LARGE_BYTES

    @property
    def described(self) -> str:
        return f"{len(self.files)} files from {self.files[0].place.shown} to {self.files[-1].place.shown}"


@dataclass(frozen=True, slots=True)
class _Done:
    """The index of a file, and whether it existed before."""

    report: IndexReport
    reused: bool = False


@dataclass(frozen=True, slots=True)
class _Missing:
    """A file without an index."""

    path: str


_Result = _Done | _Missing | PenstockError | OSError


@dataclass(frozen=True, kw_only=True)
class IndexJob(BaseJob[IndexSummary]):
    """Indexes of several files. Each task commits its own: a file with a valid index is done, and needs no record.

    Attributes:
        files: the files of this run's part.
        sizes_bytes: their sizes.
        lines: how to index lines.
        options: how to run it.
    """

    files: Sequence[Place]
    sizes_bytes: Sequence[int]
    lines: LineOptions
    options: RunOptions
    preload = (__name__,)

    def rehearse(self) -> IndexSummary:
        return self.write()  # each index is rehearsed

    def write(self) -> IndexSummary:
        options, done_bytes = self.options, 0
        tasks = list(_tasks(_looked_at(self.lines, options, self.files), self.sizes_bytes))
        small, large = ([n for n, one in enumerate(tasks) if one.is_large == is_large] for is_large in (False, True))
        executor, workers = options.executor or "processes", options.workers
        if workers is None and executor == "processes":
            workers = max(1, min(len(os.sched_getaffinity(0)), sum(self.sizes_bytes) // _TASK_BYTES))
        places: dict[str, Any] = {"reads": self.files, "writes": self.files[:1]}
        found: dict[int, list[_Result]] = {}
        inline = replace(options, executor="inline", workers=None, progress=None)
        with make_executor(executor, workers, self.preload, alone=workers == 1, **places) as pool:
            is_alone = self.lines.flavor == "energon" or workers == 1
            by_all = inline if is_alone else replace(inline, executor=pool, workers=workers)
            results = itertools.chain(
                pool.map(functools.partial(_index_some, self.lines, inline), [tasks[n] for n in small]),
                ([_index_one(self.lines, by_all, tasks[n].files[0])] for n in large),
            )
            for number, result in zip((*small, *large), results, strict=True):
                found[number] = result
                done_bytes += tasks[number].size_bytes
                if options.progress is not None:
                    options.progress(done_bytes)
        results = [one for number in range(len(tasks)) for one in found[number]]
        _raise_first([one for one in results if isinstance(one, Exception)], len(results))
        done = [one for one in results if isinstance(one, _Done)]
        missing = tuple(one.path for one in results if isinstance(one, _Missing))
        return IndexSummary(tuple(one.report for one in done), sum(one.reused for one in done), options.part, missing)


def _looked_at(lines: LineOptions, options: RunOptions, files: Sequence[Place]) -> list[_File]:
    """Return the files, with what listings of their directories tell; remove what a killed run left there."""
    names = NamesBeside([file.path for file in files if file.is_local], (".idx", *HIDDEN))

    def known(file: Place) -> bool | None:
        if not (file.is_local and names.is_listed() and file.path.endswith(_PLAIN)):
            return None
        index_path = lines.index_of(file).path
        return None if names.has_unfinished(index_path) else names.has(index_path)

    found = [_File(file, known(file)) for file in files]
    if names.is_listed() and not (options.no_work or options.dry_run):
        for folder in {file.folder().path: file.folder() for file in files}.values():
            if isinstance(folder.store, LocalStore) and names.has_unfinished(folder.child(TOGETHER).path):
                with contextlib.suppress(OSError):  # hidden files of another user, which do no harm
                    folder.store.stage_files(folder.path).abort()
    return found


def _tasks(files: Sequence[_File], sizes: Sequence[int]) -> Iterator[_Task]:
    """Yield runs of small files, and each large file alone, in order."""
    some: list[_File] = []
    some_bytes = 0
    for file, size_bytes in zip(files, sizes, strict=True):
        if some and (some_bytes + size_bytes > _TASK_BYTES or len(some) == _TASK_FILES):
            yield _Task(tuple(some), some_bytes)
            some, some_bytes = [], 0
        some.append(file)
        some_bytes += size_bytes
    if some:
        yield _Task(tuple(some), some_bytes)


def _index_some(lines: LineOptions, options: RunOptions, task: _Task) -> list[_Result]:
    """Index small files; runs in a worker."""
    new: dict[str, list[_File]] = {}
    for file in task.files if not (options.overwrite or options.no_work or options.dry_run) else ():
        if file.has_index is False:
            new.setdefault(file.place.folder().path, []).append(file)
    several = [some for some in new.values() if len(some) >= _TOGETHER_FILES]
    done = {path: one for some in several for path, one in _index_together(lines, some).items()}
    return [done.get(file.place.path) or _index_one(lines, options, file) for file in task.files]


def _index_together(lines: LineOptions, files: Sequence[_File]) -> dict[str, _Result]:
    """Write new indexes of small files of one directory, with one sync for all; files left out are indexed alone."""
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
                with contextlib.suppress(PenstockError, OSError):  # raised again when the file is indexed alone
                    data, report = encode_index(Place(store, file.place.path), lines)
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


def _index_one(lines: LineOptions, options: RunOptions, file: _File) -> _Result:
    """Index a file unless it has a valid index; return the error if that fails."""
    result = _try_index(lines, options, file)
    index = lines.index_of(file.place)
    while options.is_distributed and isinstance(result, PrepareError) and wait_for_writer(index):
        result = _try_index(lines, options, file)
    return result


def _try_index(lines: LineOptions, options: RunOptions, file: _File) -> _Result:
    place = file.place
    try:
        existing = None if options.overwrite else _existing(lines, options, file)
        if existing is not None:
            return _Done(existing, reused=True)
        if options.no_work:
            return _Missing(place.shown)
        return _Done(write_index(place, lines, options))
    except PenstockError as error:
        with contextlib.suppress(PenstockError, OSError):  # another worker may have made it meanwhile
            existing = None if options.overwrite else _existing(lines, options, _File(place, None))
            if existing is not None:
                return _Done(existing, reused=True)
        return error
    except OSError as error:
        return named(error, place.path)


def _existing(lines: LineOptions, options: RunOptions, file: _File) -> IndexReport | None:
    """Return the report of an existing index, which has to match the file; None if there is none."""
    place = file.place
    index = lines.index_of(place)
    if not file.has_index and not index.exists():
        return None
    store = read_small(place.store, place.path, index.path) if file.has_index else place.store
    size_bytes = store.size(place.path)
    if lines.flavor == "energon":
        num_lines = len(read_energon_index(store, place.path, index.path, size_bytes)) - 1
    else:
        num_lines = len(load_lines(store, place.path, index.path))
    if file.has_index is None and not options.dry_run and place.store.exists(mark_path(index.path)):
        sweep_killed(place.store, [index.path])
        remove_mark(place.store, index.path)
    return IndexReport(place.path, index.path, size_bytes, store.size(index.path), num_lines, 0, ())


def _raise_first(errors: Sequence[PenstockError | OSError], num_files: int) -> None:
    """Raise the first error with the number of errors in its hint; log the others before."""
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
