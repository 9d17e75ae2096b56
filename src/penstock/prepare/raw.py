"""Build the raw index of one JSONL file with as many processes as its size justifies."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from penstock._pool import thread_pool
from penstock._secrets import redacted_repr
from penstock.abc import Staged
from penstock.engine.options import RunOptions
from penstock.errors import ConfigError
from penstock.executors import HERE, AnyExecutor, make_executor
from penstock.formats.jsonl.build import (
    DroppedLine,
    IndexedLines,
    Run,
    encode_lines,
    fill_index,
    index_path_for,
    require_plain,
)
from penstock.formats.jsonl.energon import encode_energon_index, energon_index_path, scan_energon
from penstock.formats.jsonl.owner import require_own_index
from penstock.formats.jsonl.scan import LineRange, Lines, scan_lines
from penstock.formats.jsonl.source import require_flavor
from penstock.store.dry import dry_place
from penstock.store.outputs import claim, output_path, require_file_or_none, require_other
from penstock.store.place import Given, Place, place_of
from penstock.store.put import aborting
from penstock.store.side_file import file_binding
from penstock.store.unfinished import Once

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

OnError = Literal["raise", "skip"]

_WORKER_BYTES = 1 << 28
_AHEAD = 2


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


@dataclass(frozen=True, slots=True)
class LineOptions:
    """How the lines of a file are indexed.

    Attributes:
        flavor: format of the index.
        on_error: what to do with invalid lines.
        validate: check that lines are valid JSON.
    """

    flavor: str
    on_error: OnError
    validate: bool

    @property
    def skips(self) -> bool:
        """Whether invalid lines are skipped."""
        return self.on_error == "skip"

    def require_valid(self, data: Place | None = None) -> None:
        """Raise `ConfigError` if the flavor doesn't exist or doesn't support the other options."""
        path = None if data is None else data.path
        require_flavor(path, self.flavor)
        if self.on_error not in get_args(OnError):
            raise ConfigError("unknown on_error", path=path, found=self.on_error, expected="raise | skip")
        if self.flavor == "energon" and not self.validate:
            what = "Energon's index lists samples, so each line must be validated"
            raise ConfigError(what, path=path, hint="Omit validate=False (--no-validate)")
        if self.flavor == "energon" and self.skips:
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
        """Return the default place of the index of a file."""
        return Place(data.store, (energon_index_path if self.flavor == "energon" else index_path_for)(data.path))


@dataclass(frozen=True, slots=True)
class _Request:
    """A checked request for one index.

    Attributes:
        data: the JSONL file.
        size_bytes: its size.
        index: where the index goes.
        is_beside: whether that is the default path.
        lines: how to index lines.
        options: how to run.
    """

    data: Place
    size_bytes: int
    index: Place
    is_beside: bool
    lines: LineOptions
    options: RunOptions


def build_index(
    path: Given,
    index_path: Given | None = None,
    *,
    flavor: str = "modalities",
    on_error: OnError = "raise",
    validate: bool = True,
    overwrite: bool = False,
    dry_run: bool = False,
    workers: int | None = None,
    executor: AnyExecutor = "processes",
    progress: Callable[[int], None] | None = None,
) -> IndexReport:
    """Write the index of a JSONL file; nothing is visible before it is complete.

    If the process is killed, the same call finishes the index, or finds it complete.

    Memory: 100 MB per process, and 16 bytes per line of 16 MiB, however long a line is.

    Args:
        path: the JSONL file.
        index_path: path of the index; by default next to the file, with the flavor's suffix.
        flavor: format of the index.
        on_error: for invalid lines: `"raise"`, or `"skip"` and count them.
        validate: False only searches for line ends.
        overwrite: replace an existing index.
        dry_run: check everything, including the lines, and count what would be written, without writing.
        workers: processes, or threads without `validate`; by default one per 256 MiB, at most one per core.
        executor: `"processes"`, `"inline"` for none, `"ray"`, another name, or an executor, which gets ranges of the
            file; see `penstock.executors`. Energon's index is always built by this process alone.
        progress: called with the number of bytes done so far.

    Raises:
        NotFound: the file doesn't exist.
        Corrupt: a line is invalid; the message names the line, from 1, and its offset.
        ConfigError: the index exists, or an option is invalid.
        PrepareError: a process was killed, or another run writes this index.
    """
    data, lines = place_of(path), LineOptions(flavor, on_error, validate)
    lines.require_alone(data, executor, workers)
    options = RunOptions(executor, workers, dry_run=dry_run, overwrite=overwrite, progress=progress)
    return write_index(data, lines, options, None if index_path is None else place_of(index_path))


def write_index(data: Place, lines: LineOptions, options: RunOptions, index: Place | None = None) -> IndexReport:
    """Write the index of a file, by default at its default path; see `build_index`."""
    lines.require_valid(data)
    is_beside, index = index is None, _index_of(data, index, lines)
    size_bytes = data.store.size(data.path)
    if data.path.endswith((".gz", ".zst")):  # before errors about the index: that of `a.jsonl.gz` is that of `a.jsonl`
        require_plain(data.store, data.path)
    if options.dry_run:
        options = replace(options, workers=None, executor="inline")
    if options.workers is None and options.executor == "processes":
        workers = max(1, min(len(os.sched_getaffinity(0)), size_bytes // _WORKER_BYTES))
        options = replace(options, workers=workers)
    return _build(_Request(data, size_bytes, index, is_beside, lines, options))


def encode_index(file: Place, options: LineOptions) -> tuple[bytes, IndexReport]:
    """Return the index of a small file, and the report of `build_index`; raises what that does for invalid lines."""
    store, path = file.store, file.path
    size_bytes, index_path = store.size(path), options.index_of(file).path
    if options.flavor == "energon":
        starts = scan_energon(store, path)
        data = encode_energon_index(starts)
        return data, IndexReport(path, index_path, size_bytes, len(data), len(starts) - 1, 0, ())
    lines = IndexedLines(store, path, size_bytes, options.validate, options.skips)
    data = b"".join(encode_lines(lines))
    counts = (lines.num_lines, lines.num_dropped)
    return data, IndexReport(path, index_path, size_bytes, len(data), *counts, tuple(lines.dropped))


def _index_of(data: Place, index: Place | None, lines: LineOptions) -> Place:
    """Return where the index goes."""
    index = index or lines.index_of(data)
    if index.absolute == data.absolute:
        raise ConfigError("the index would replace its own file", path=data.path)
    index = Place(index.store, output_path(index.store, index.path))
    require_file_or_none(index.store, index.path)
    require_other([data.path], index.path)
    return index


def _build(request: _Request) -> IndexReport:
    once = _once(request)
    options, data, flavor = request.options, request.data, request.lines.flavor
    if options.dry_run:
        request = replace(request, index=dry_place(request.index))
    report = None if options.overwrite or options.dry_run else once.made()
    if report is not None:
        return report
    index = request.index
    held = claim(index.store, index.path)
    try:
        require_own_index(index.store, data.path if request.is_beside else None, index.path, flavor, has_data=True)
        return _index_for_energon(request, once) if flavor == "energon" else _index_for_modalities(request, once)
    finally:
        held.release()


def _index_for_modalities(request: _Request, once: Once[IndexReport]) -> IndexReport:
    data, size_bytes = request.data, request.size_bytes
    with _workers(request) as run:
        checks = (request.lines.validate, request.lines.skips)
        lines = IndexedLines(data.store, data.path, size_bytes, *checks, run, request.options.progress)
        with _stage(request) as staged:
            fill_index(lines, staged)
            counts = (staged.tell(), lines.num_lines, lines.num_dropped)
            report = IndexReport(data.path, request.index.path, size_bytes, *counts, tuple(lines.dropped))
            return report if request.options.dry_run else _commit(once, staged, report)


def _index_for_energon(request: _Request, once: Once[IndexReport]) -> IndexReport:
    data = request.data
    with _stage(request) as staged:
        starts = scan_energon(data.store, data.path, request.options.progress)
        staged.write(encode_energon_index(starts))
        counts = (starts.nbytes, len(starts) - 1, 0)
        report = IndexReport(data.path, request.index.path, data.store.size(data.path), *counts, ())
        return report if request.options.dry_run else _commit(once, staged, report)


def _stage(request: _Request) -> contextlib.AbstractContextManager[Staged]:
    return aborting(request.index.store.stage(request.index.path, overwrite=request.options.overwrite))


def _once(request: _Request) -> Once[IndexReport]:
    """Identify the work that makes an index, so that a re-run can detect it by the index and its mark."""
    data, index = request.data, request.index

    def published(mark: Any) -> IndexReport | None:
        with contextlib.suppress(msgspec.ValidationError):
            report = msgspec.convert(mark, IndexReport)
            if index.exists() and index.store.size(index.path) == report.index_bytes:
                return report
        return None

    source = [data.shown, request.size_bytes, file_binding(data.store, data.path)]
    key = {"command": "index", **dataclasses.asdict(request.lines), "source": source}
    return Once(index.store, index.path, key, [index.path], published)


def _commit(once: Once[IndexReport], staged: Staged, report: IndexReport) -> IndexReport:
    def commit() -> IndexReport:
        staged.commit()
        return report

    return once.commit(commit, told=msgspec.to_builtins(report))


@contextlib.contextmanager
def _workers(request: _Request) -> Generator[Run]:
    """Yield a `map`: over threads if numpy does the work, over an executor if Python's JSON reader may."""
    count, executor = request.options.workers, request.options.executor or "processes"
    if executor == "processes" and not request.lines.validate and count is not None and count > 1:
        with thread_pool(count) as pool:
            yield functools.partial(_map_ahead, pool, _AHEAD * count)
    else:
        preload = [scan_lines.__module__]
        with make_executor(executor, count, preload, alone=count == 1, reads=[request.data]) as made:
            yield made.map


def _map_ahead(
    pool: ThreadPoolExecutor, most: int, fn: Callable[[LineRange], Lines], tasks: Iterable[LineRange]
) -> Iterator[Lines]:
    """Yield results in order, with at most `most` tasks started ahead."""
    pending: deque[Future[Lines]] = deque()
    for task in tasks:
        pending.append(pool.submit(fn, task))
        if len(pending) > most:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()
