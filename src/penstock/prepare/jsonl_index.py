"""Index JSONL files: the offset and length of each line.

Small files are indexed in runs, and each large file by all workers. A valid index next to its file shows that the file
is done. That is all that a killed run or a part of a distributed job needs to know, so the job has no work folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import msgspec

from penstock._secrets import logger, redacted_repr
from penstock._threads import Pool
from penstock.engine.options import RunOptions
from penstock.engine.run import BaseJob, run, wait_for_writer
from penstock.errors import ConfigError, PenstockError, PrepareError
from penstock.executors import HERE, AnyExecutor, make_executor
from penstock.formats.jsonl.build import (
    DroppedLine,
    IndexedLines,
    Run,
    encode_lines,
    index_path_for,
    require_plain,
)
from penstock.formats.jsonl.energon import (
    encode_energon_index,
    energon_index_path,
    read_energon_index,
    scan_energon,
)
from penstock.formats.jsonl.index import load_lines, require_own_index
from penstock.formats.jsonl.scan import scan_lines
from penstock.formats.jsonl.source import require_flavor
from penstock.store._files import named
from penstock.store.dry import dry_place
from penstock.store.fingerprint import states_of
from penstock.store.names import TOGETHER
from penstock.store.outputs import output_path, require_file_or_none, require_other, sweep_killed
from penstock.store.patterns import is_pattern, require_no_lists
from penstock.store.place import Given, Place, absolute, place_of, places_of
from penstock.store.put import HIDDEN, NamesBeside, aborting, read_small
from penstock.store.side_file import file_binding
from penstock.store.unfinished import Once, mark_path, remove_mark

OnError = Literal["raise", "skip"]

_log = logger()
_WORKER_BYTES = 1 << 28
_LARGE_BYTES = 1 << 28
_TASK_BYTES = 1 << 26
_TASK_FILES = 1 << 10
_TOGETHER_FILES = 4
_PLAIN = (".jsonl", ".ndjson")
_SHOWN = 9


@redacted_repr
@dataclass(frozen=True, slots=True)
class IndexReport:
    """Result of `index` for one file.

    Attributes:
        path: the JSONL file.
        index_path: the index.
        size_bytes: size of the file.
        index_bytes: size of the index.
        num_lines: number of lines in the index.
        num_dropped: number of invalid lines skipped.
        dropped: the first 100 of them.
    """

    path: str
    index_path: str
    size_bytes: int
    index_bytes: int
    num_lines: int
    num_dropped: int
    dropped: tuple[DroppedLine, ...]


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


@dataclass(frozen=True, slots=True)
class LineOptions:
    """How the lines of a file are indexed; see `index`."""

    flavor: str = "modalities"
    on_error: OnError = "raise"
    validate: bool = True

    def require_valid(self, data: Place | None = None) -> None:
        path = None if data is None else data.path
        require_flavor(path, self.flavor)
        if self.on_error not in get_args(OnError):
            raise ConfigError("unknown on_error", path=path, found=self.on_error, expected="raise | skip")
        if self.flavor == "energon" and not self.validate:
            what = "Energon's index lists samples, so each line must be validated"
            raise ConfigError(what, path=path, hint="Omit validate=False (--no-validate)")
        if self.flavor == "energon" and self.on_error == "skip":
            hint = "Fix the lines, or filter them out"
            raise ConfigError("Energon's index can't skip lines", path=path, hint=hint)

    def require_alone(self, data: Place, executor: AnyExecutor, workers: int | None) -> None:
        """Raise `ConfigError` if several workers were to build the Energon index of one file."""
        if self.flavor != "energon":
            return
        error = ConfigError("Energon's index is built in a single process", path=data.path)
        if not (isinstance(executor, str) and executor in HERE):
            error.found, error.hint = f"executor={executor!r}", "Omit executor= (--executor)"
            raise error
        if workers not in (None, 1):
            error.found = f"workers={workers}"
            error.hint = "Omit workers= (--workers). Several files are indexed in parallel"
            raise error

    def index_of(self, data: Place) -> Place:
        return Place(data.store, (energon_index_path if self.flavor == "energon" else index_path_for)(data.path))


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
    the first error is raised at the end. If the process is killed, the same call finishes the indexes, or finds them
    complete. Memory: 100 MB per process, and 16 bytes per line of 16 MiB, however long a line is.

    Args:
        paths: a file; or a directory, a pattern, or a list of files, directories and patterns. Directories are searched
            at any depth for `.jsonl` and `.ndjson`.
        index_path: where to write the index of a single file, instead of next to it.
        flavor: format of the index: `"modalities"` or `"energon"`.
        on_error: for invalid lines: `"raise"`, or `"skip"` and count them.
        validate: False only searches for line ends.
        overwrite: replace existing indexes.
        dry_run: check everything, including the lines, and report what would be written, without writing.
        workers: number of workers, as in `penstock.pack`. By default chosen by the size of the data.
        executor: how to run the work, as in `penstock.pack`.
        part: `(i, n)`: process part i (from 0) of n parts of the files.
        finish: check all indexes and write missing ones.
        no_work: with `finish`, only list missing indexes.
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
        return _write_single(place_of(inputs[0]), None if index_path is None else place_of(index_path), lines, options)
    require_no_lists(inputs)
    if index_path is not None:
        what = "index_path (--index-path) only works with one file"
        raise ConfigError(what, found=f"{len(inputs)} inputs", hint="Omit it: each index is written next to its file")
    lines.require_valid()
    files, statuses = _files_of(
        [os.fspath(one.path if isinstance(one, Place) else one) for one in inputs], follow_links
    )
    chosen = [file for number, file in enumerate(files) if options.takes(number)]
    sizes = [state.size_bytes for state in states_of(chosen, statuses)]
    return run(IndexJob(files=chosen, sizes_bytes=sizes, lines=lines, options=options))


def build_index(
    path: Given,
    index_path: Given | None = None,
    *,
    workers: int | None = None,
    executor: AnyExecutor = "processes",
    overwrite: bool = False,
    dry_run: bool = False,
    progress: Callable[[int], None] | None = None,
    **lines: Any,
) -> IndexReport:
    """Write the index of one file, which is never searched; arguments as of `index`, with `lines` of `LineOptions`."""
    of_lines = LineOptions(**lines)
    of_lines.require_alone(place_of(path), executor, workers)
    options = RunOptions(executor, workers, dry_run=dry_run, overwrite=overwrite, progress=progress)
    return _write_single(place_of(path), None if index_path is None else place_of(index_path), of_lines, options)


def _write_single(data: Place, index: Place | None, lines: LineOptions, options: RunOptions) -> IndexReport:
    job = IndexJob(files=(data,), sizes_bytes=(), lines=lines, options=options, is_single=True, index=index)
    return run(job).indexes[0]


def _is_search(path: Given) -> bool:
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


# --- one file --------------------------------------------------------------------------------------------------------


def _write_index(
    data: Place, lines: LineOptions, options: RunOptions, index: Place | None = None, run: Run | None = None
) -> IndexReport:
    """Write the index of a file; nothing is visible before it is complete.

    `run` maps over ranges of the file; by default on workers as in `options`.
    """
    lines.require_valid(data)
    own, index = data.path if index is None else None, index or lines.index_of(data)
    if index.absolute == data.absolute:
        raise ConfigError("the index would replace its own file", path=data.path)
    index = Place(index.store, output_path(index.store, index.path))
    require_file_or_none(index.store, index.path)
    require_other([data.path], index.path)
    size_bytes = data.store.size(data.path)
    if data.path.endswith((".gz", ".zst")):  # before errors about the index: that of `a.jsonl.gz` is that of `a.jsonl`
        require_plain(data.store, data.path)
    once = _once(data, size_bytes, index, lines)
    if options.dry_run:
        index = dry_place(index)
    elif not options.overwrite and (report := once.made()) is not None:
        return report
    held = index.store.claim(index.path)
    try:
        require_own_index(index.store, own, index.path, lines.flavor, has_data=True)
        with contextlib.ExitStack() as stack:
            run = run or stack.enter_context(_workers(data, size_bytes, lines, options))
            staged = stack.enter_context(aborting(index.store.stage(index.path, overwrite=options.overwrite)))
            counts = _encode_index(data, size_bytes, lines, staged.write, run, options.progress)
            report = IndexReport(data.path, index.path, size_bytes, staged.tell(), *counts)
            if options.dry_run:
                return report

            def commit() -> IndexReport:
                staged.commit()
                return report

            return once.commit(commit, told=msgspec.to_builtins(report))
    finally:
        held.release()


def _encode_index(
    data: Place,
    size_bytes: int,
    lines: LineOptions,
    write: Callable[[bytes], object],
    run: Run = map,
    progress: Callable[[int], None] | None = None,
) -> tuple[int, int, tuple[DroppedLine, ...]]:
    """Write the index with `write`; return the number of lines, that of skipped lines, and the first of these."""
    if lines.flavor == "energon":
        starts = scan_energon(data.store, data.path, progress)
        write(encode_energon_index(starts))
        return len(starts) - 1, 0, ()
    skips = lines.on_error == "skip"
    found = IndexedLines(data.store, data.path, size_bytes, lines.validate, skips, run, progress)
    for piece in encode_lines(found):
        write(piece)
    return found.num_lines, found.num_dropped, tuple(found.dropped)


def _once(data: Place, size_bytes: int, index: Place, lines: LineOptions) -> Once[IndexReport]:
    """Identify the work that makes an index, so that a re-run can detect it by the index and its mark."""

    def published(mark: Any) -> IndexReport | None:
        with contextlib.suppress(msgspec.ValidationError):
            report = msgspec.convert(mark, IndexReport)
            if index.exists() and index.store.size(index.path) == report.index_bytes:
                return report
        return None

    source = [data.shown, size_bytes, file_binding(data.store, data.path)]
    key = {"command": "index", **dataclasses.asdict(lines), "source": source}
    return Once(index.store, index.path, key, [index.path], published)


@contextlib.contextmanager
def _workers(data: Place, size_bytes: int, lines: LineOptions, options: RunOptions) -> Generator[Run]:
    """Yield a `map`: over threads if numpy does the work, over an executor if Python's JSON reader may."""
    executor, count = options.executor or "processes", options.workers
    if options.dry_run or lines.flavor == "energon":
        executor, count = "inline", None
    if executor == "processes" and count is None:
        count = max(1, min(len(os.sched_getaffinity(0)), size_bytes // _WORKER_BYTES))
    if executor == "processes" and not lines.validate and count is not None and count > 1:
        with Pool(count, "penstock-index") as pool:
            yield functools.partial(pool.map, ahead=2 * count)
    else:
        with make_executor(executor, count, [scan_lines.__module__], alone=count == 1, reads=[data]) as made:
            yield made.map


# --- the job ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _File:
    """A file, and whether an index exists; None if unknown, or if another run left or is writing hidden files."""

    place: Place
    has_index: bool | None


@dataclass(frozen=True, slots=True)
class _Task:
    """Some small files, or a large one."""

    files: tuple[_File, ...]
    size_bytes: int

    @property
    def described(self) -> str:
        return f"{len(self.files)} files from {self.files[0].place.shown} to {self.files[-1].place.shown}"


_Result = tuple[IndexReport, bool] | str | PenstockError | OSError
"""An index and whether it existed before, a file without one (with `no_work`), or what is wrong with a file."""


@dataclass(frozen=True, kw_only=True)
class IndexJob(BaseJob[IndexSummary]):
    """Indexes of the files of this run's part. Each task commits its own: a file with a valid index is done.

    With `is_single` there is one file, whose index must be new. An error is that of the file.
    """

    files: Sequence[Place]
    sizes_bytes: Sequence[int]
    lines: LineOptions
    options: RunOptions
    is_single: bool = False
    index: Place | None = None
    preload = (__name__,)

    def rehearse(self) -> IndexSummary:
        return self.write()  # each index is rehearsed

    def write(self) -> IndexSummary:
        if self.is_single:
            return IndexSummary((_write_index(self.files[0], self.lines, self.options, self.index),), 0)
        options = self.options
        tasks = list(_tasks(_looked_at(self.lines, options, self.files), self.sizes_bytes))
        small, large = [], list[int]()
        for number, task in enumerate(tasks):
            (large if task.size_bytes > _LARGE_BYTES else small).append(number)
        executor, workers = options.executor or "processes", options.workers
        if workers is None and executor == "processes":
            workers = max(1, min(len(os.sched_getaffinity(0)), sum(self.sizes_bytes) // _TASK_BYTES))
        places: dict[str, Any] = {"reads": self.files, "writes": self.files[:1]}
        found: dict[int, list[_Result]] = {}
        done_bytes, quiet = 0, replace(options, executor="inline", workers=None, progress=None)
        with make_executor(executor, workers, self.preload, alone=workers == 1, **places) as pool:
            run = map if options.dry_run or workers == 1 else pool.map
            results = itertools.chain(
                pool.map(functools.partial(_index_some, self.lines, quiet), [tasks[n] for n in small]),
                ([_index_one(self.lines, quiet, tasks[n].files[0], run)] for n in large),
            )
            for number, result in zip((*small, *large), results, strict=True):
                found[number] = result
                done_bytes += tasks[number].size_bytes
                if options.progress is not None:
                    options.progress(done_bytes)
        results = [one for number in range(len(tasks)) for one in found[number]]
        _raise_first([one for one in results if isinstance(one, Exception)], len(results))
        done = [one for one in results if isinstance(one, tuple)]
        missing = tuple(one for one in results if isinstance(one, str))
        return IndexSummary(tuple(one for one, _ in done), sum(reused for _, reused in done), options.part, missing)


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
            if folder.is_local and names.has_unfinished(folder.child(TOGETHER).path):
                with contextlib.suppress(OSError):  # hidden files of another user, which do no harm
                    folder.store.stage_files(folder.path).abort()
    return found


def _tasks(files: Sequence[_File], sizes: Sequence[int]) -> Iterator[_Task]:
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
    new: dict[str, list[_File]] = {}
    for file in task.files if not (options.overwrite or options.no_work or options.dry_run) else ():
        if file.has_index is False:
            new.setdefault(file.place.folder().path, []).append(file)
    several = [some for some in new.values() if len(some) >= _TOGETHER_FILES]
    done = {path: one for some in several for path, one in _index_together(lines, some).items()}
    return [done.get(file.place.path) or _index_one(lines, options, file, map) for file in task.files]


def _index_together(lines: LineOptions, files: Sequence[_File]) -> dict[str, _Result]:
    """Write new indexes of small files of one directory, with one sync for all; files left out are indexed alone."""
    done: dict[str, tuple[str, IndexReport]] = {}
    folder = files[0].place.folder()
    with contextlib.ExitStack() as stack:
        try:
            staged = folder.store.stage_files(folder.path)
            stack.callback(staged.abort)
            for file in files:
                path = file.place.path
                store = read_small(file.place.store, path)
                if not store.in_memory:
                    continue
                with contextlib.suppress(PenstockError, OSError):  # raised again when the file is indexed alone
                    data, report = _index_small(Place(store, path), lines)
                    name = Place(folder.store, report.index_path).name
                    staged.write(name, data)
                    done[name] = path, report
        except (PenstockError, OSError):
            return {}
        try:
            left_out = staged.commit()
        except OSError as error:
            return {path: named(error, path) for path, _ in done.values()}
    return {path: (report, False) for name, (path, report) in done.items() if name not in left_out}


def _index_small(file: Place, lines: LineOptions) -> tuple[bytes, IndexReport]:
    size_bytes, index_path = file.store.size(file.path), lines.index_of(file).path
    pieces: list[bytes] = []
    counts = _encode_index(file, size_bytes, lines, pieces.append)
    data = b"".join(pieces)
    return data, IndexReport(file.path, index_path, size_bytes, len(data), *counts)


def _index_one(lines: LineOptions, options: RunOptions, file: _File, run: Run) -> _Result:
    result = _try_index(lines, options, file, run)
    index = lines.index_of(file.place)
    while options.is_distributed and isinstance(result, PrepareError) and wait_for_writer(index):
        result = _try_index(lines, options, file, run)
    return result


def _try_index(lines: LineOptions, options: RunOptions, file: _File, run: Run) -> _Result:
    place = file.place
    try:
        existing = None if options.overwrite else _existing(lines, options, file)
        if existing is not None:
            return existing, True
        return place.shown if options.no_work else (_write_index(place, lines, options, run=run), False)
    except PenstockError as error:
        with contextlib.suppress(PenstockError, OSError):  # another worker may have made it meanwhile
            existing = None if options.overwrite else _existing(lines, options, _File(place, None))
            if existing is not None:
                return existing, True
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
