"""The raw index of a JSONL file, made by as many processes as the file is worth."""

from __future__ import annotations

import contextlib
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
from penstock.errors import ConfigError
from penstock.executors import HERE, AnyExecutor, make_executor, require_executor
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
class _Request:
    """What was asked for, all of it checked.

    Attributes:
        data: the JSONL file.
        size_bytes: of it.
        index: where the index goes.
        is_beside: it goes where its flavor has it.
    """

    data: Place
    size_bytes: int
    index: Place
    is_beside: bool
    flavor: str
    skip_faulty: bool
    validate: bool
    overwrite: bool
    workers: int | None
    executor: AnyExecutor
    progress: Callable[[int], None] | None
    dry_run: bool


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

    Killed and called again in the same way, it finishes the index, or finds it complete.

    Memory: 100 MB a process and 16 bytes for each line of 16 MiB, however long a line is.

    Args:
        path: the JSONL file.
        index_path: where the index goes; by default beside the file, as the flavor has it.
        flavor: whose index it is.
        on_error: at a line that is no JSON: `"raise"`, or `"skip"` it and count it.
        validate: False looks for line ends only.
        overwrite: replace an index that is there.
        dry_run: refuse what would be refused, faulty lines too, count what would be written, and write nothing.
        workers: processes, or threads without `validate`; by default one for each 256 MiB, but no more than cores.
        executor: `"processes"`, `"inline"` for none, `"ray"`, another name, or an executor, which gets ranges of the
            file; see `penstock.executors`. Energon's index is made by this process alone.
        progress: called with the bytes done so far.

    Raises:
        NotFound: no such file.
        Corrupt: a faulty line; it names the line, from 1, and its place.
        ConfigError: the index exists, or an option can't be.
        PrepareError: a process was killed, or another writer holds this index.
    """
    data = place_of(path)
    require_checks(data, flavor, on_error, validate=validate)
    index = _index_of(data, None if index_path is None else place_of(index_path), flavor)
    if workers is not None and workers < 1:
        raise ConfigError("at least one process is needed", found=f"workers={workers}", expected="1 or more")
    size_bytes = data.store.size(data.path)
    if data.path.endswith((".gz", ".zst")):  # before what is wrong with the index: `a.jsonl.gz` has that of `a.jsonl`
        require_plain(data.store, data.path)
    if flavor == "energon":
        _require_alone(data, workers, executor)
    if workers is None and executor == "processes":
        workers = max(1, min(len(os.sched_getaffinity(0)), size_bytes // _WORKER_BYTES))
    skips, is_beside = on_error == "skip", index_path is None
    if dry_run:
        require_executor(executor, workers)
        workers, executor = None, "inline"
    how = (workers, executor, progress, dry_run)
    return _build(_Request(data, size_bytes, index, is_beside, flavor, skips, validate, overwrite, *how))


def encode_index(file: Place, flavor: str, *, skip_faulty: bool, validate: bool) -> tuple[bytes, IndexReport]:
    """The index of a small file, in memory, and what `build_index` would say of it; raises what that does of lines."""
    store, path = file.store, file.path
    size_bytes = store.size(path)
    if flavor == "energon":
        starts = scan_energon(store, path)
        index_path, data, counts = energon_index_path(path), encode_energon_index(starts), (len(starts) - 1, 0)
        return data, IndexReport(path, index_path, size_bytes, len(data), *counts, ())
    lines = IndexedLines(store, path, size_bytes, validate, skip_faulty)
    data = b"".join(encode_lines(lines))
    counts = (lines.num_lines, lines.num_dropped)
    return data, IndexReport(path, index_path_for(path), size_bytes, len(data), *counts, tuple(lines.dropped))


def require_checks(data: Place | None, flavor: str, on_error: str, *, validate: bool) -> None:
    """That the flavor is one, and leaves lines out or unread as was asked; raises `ConfigError`."""
    path = None if data is None else data.path
    require_flavor(path, flavor)
    if on_error not in get_args(OnError):
        raise ConfigError("unknown on_error", path=path, found=on_error, expected="raise | skip")
    if flavor == "energon" and not validate:
        what = "Energon's index lists samples, so each line must be validated"
        raise ConfigError(what, path=path, hint="Omit validate=False (--no-validate)")
    if flavor == "energon" and on_error == "skip":
        hint = "Fix the lines, or filter them out"
        raise ConfigError("Energon's index can't skip lines", path=path, hint=hint)


def _require_alone(data: Place, workers: int | None, executor: AnyExecutor) -> None:
    """That Energon's index was not asked of several workers; raises `ConfigError`."""
    what = "Energon's index is built in a single process"
    if not (isinstance(executor, str) and executor in HERE):
        raise ConfigError(what, path=data.path, found=f"executor={executor!r}", hint="Omit executor= (--executor)")
    if workers not in (None, 1):
        hint = "Omit workers= (--workers). Several files are indexed in parallel"
        raise ConfigError(what, path=data.path, found=f"workers={workers}", hint=hint)


def _index_of(data: Place, named: Place | None, flavor: str) -> Place:
    """Where the index goes."""
    default = energon_index_path if flavor == "energon" else index_path_for
    index = Place(data.store, default(data.path)) if named is None else named
    if index.absolute == data.absolute:
        raise ConfigError("the index would replace its own file", path=data.path)
    index = Place(index.store, output_path(index.store, index.path))
    require_file_or_none(index.store, index.path)
    require_other([data.path], index.path)
    return index


def _build(request: _Request) -> IndexReport:
    once = _once(request)
    if request.dry_run:
        request = replace(request, index=dry_place(request.index))
    made = None if request.overwrite or request.dry_run else once.made()
    if made is not None:
        return made
    data, index, flavor = request.data, request.index, request.flavor
    held = claim(index.store, index.path)
    try:
        require_own_index(index.store, data.path if request.is_beside else None, index.path, flavor, has_data=True)
        return _index_for_energon(request, once) if flavor == "energon" else _index_for_modalities(request, once)
    finally:
        held.release()


def _index_for_modalities(request: _Request, once: Once[IndexReport]) -> IndexReport:
    data, size_bytes = request.data, request.size_bytes
    with _workers(request) as run:
        checks = (request.validate, request.skip_faulty)
        lines = IndexedLines(data.store, data.path, size_bytes, *checks, run, request.progress)
        with aborting(request.index.store.stage(request.index.path, overwrite=request.overwrite)) as staged:
            fill_index(lines, staged)
            counts = (staged.tell(), lines.num_lines, lines.num_dropped)
            report = IndexReport(data.path, request.index.path, size_bytes, *counts, tuple(lines.dropped))
            return report if request.dry_run else _commit(once, staged, report)


def _index_for_energon(request: _Request, once: Once[IndexReport]) -> IndexReport:
    data = request.data
    with aborting(request.index.store.stage(request.index.path, overwrite=request.overwrite)) as staged:
        starts = scan_energon(data.store, data.path, request.progress)
        staged.write(encode_energon_index(starts))
        counts = (starts.nbytes, len(starts) - 1, 0)
        report = IndexReport(data.path, request.index.path, data.store.size(data.path), *counts, ())
        return report if request.dry_run else _commit(once, staged, report)


def _once(request: _Request) -> Once[IndexReport]:
    """The work that makes an index, known again by the index and what the mark says of it."""
    data, index = request.data, request.index

    def published(told: Any) -> IndexReport | None:
        with contextlib.suppress(msgspec.ValidationError):
            report = msgspec.convert(told, IndexReport)
            if index.exists() and index.store.size(index.path) == report.index_bytes:
                return report
        return None

    source = [data.shown, request.size_bytes, file_binding(data.store, data.path)]
    options = {"on_error": "skip" if request.skip_faulty else "raise", "validate": request.validate}
    what = {"command": "index", "flavor": request.flavor, **options, "source": source}
    return Once(index.store, index.path, what, [index.path], published)


def _commit(once: Once[IndexReport], staged: Staged, report: IndexReport) -> IndexReport:
    def commit() -> IndexReport:
        staged.commit()
        return report

    return once.commit(commit, told=msgspec.to_builtins(report))


@contextlib.contextmanager
def _workers(request: _Request) -> Generator[Run]:
    """A `map` over threads, where numpy does the work, or over an executor, where Python's JSON reader may."""
    count, executor = request.workers, request.executor
    if executor == "processes" and not request.validate and count is not None and count > 1:
        with thread_pool(count) as pool:
            yield functools.partial(_map_ahead, pool, _AHEAD * count)
    else:
        preload = [scan_lines.__module__]
        with make_executor(executor, count, preload, alone=count == 1, reads=[request.data]) as made:
            yield made.map


def _map_ahead(
    pool: ThreadPoolExecutor, most: int, fn: Callable[[LineRange], Lines], tasks: Iterable[LineRange]
) -> Iterator[Lines]:
    """Results in order, with at most so many tasks started ahead."""
    pending: deque[Future[Lines]] = deque()
    for task in tasks:
        pending.append(pool.submit(fn, task))
        if len(pending) > most:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()
