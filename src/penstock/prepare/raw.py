"""The raw index of a JSONL file, made by as many processes as the file is worth."""

from __future__ import annotations

import contextlib
import functools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, get_args

import msgspec

from penstock._secrets import redact, redacted_repr
from penstock.abc import Staged, Store
from penstock.errors import ConfigError
from penstock.executors.processes import ProcessExecutor
from penstock.formats.jsonl.build import DroppedLine, IndexedLines, Run, fill_index, index_path_for
from penstock.formats.jsonl.energon import encode_energon_index, energon_index_path, scan_energon
from penstock.formats.jsonl.owner import require_own_index
from penstock.formats.jsonl.scan import LineRange, Lines, scan_lines
from penstock.formats.jsonl.source import require_flavor
from penstock.store.outputs import claim, output_path, require_file_or_none, require_other
from penstock.store.put import aborting
from penstock.store.resolve import absolute, resolve
from penstock.store.side_file import file_binding
from penstock.store.unfinished import Once

OnError = Literal["raise", "skip"]

_WORKER_BYTES = 1 << 28
_AHEAD = 2


@redacted_repr
@dataclass(frozen=True, slots=True)
class IndexReport:
    """What `build_index` did.

    Attributes:
        path: the JSONL file.
        index_path: the index.
        size_bytes: size of the file.
        index_bytes: size of the index.
        num_lines: lines in the index.
        num_dropped: faulty lines left out.
        dropped: the first 100 of them.
    """

    path: str
    index_path: str
    size_bytes: int
    index_bytes: int
    num_lines: int
    num_dropped: int
    dropped: tuple[DroppedLine, ...]


def build_index(
    path: str | os.PathLike[str],
    index_path: str | os.PathLike[str] | None = None,
    *,
    flavor: str = "modalities",
    on_error: OnError = "raise",
    validate: bool = True,
    overwrite: bool = False,
    workers: int | None = None,
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
        workers: processes, or threads without `validate`; by default one for each 256 MiB, but no more than cores.
        progress: told the bytes done so far.

    Raises:
        NotFound: no such file.
        Corrupt: a faulty line; it names the line, from 1, and its place.
        ConfigError: the index exists, or an option can't be.
        PrepareError: a process was killed, or somebody else writes this index.
    """
    store, root = resolve(path)
    require_flavor(root, flavor)
    default = energon_index_path if flavor == "energon" else index_path_for
    target_store, target = (store, default(root)) if index_path is None else resolve(index_path)
    if absolute(target) == absolute(root):
        raise ConfigError("the index would replace its own file", path=root)
    target = output_path(target_store, target)
    require_file_or_none(target_store, target)
    require_other([root], target)
    if on_error not in get_args(OnError):
        raise ConfigError("no such way to treat a faulty line", found=on_error, expected="raise | skip")
    if workers is not None and workers < 1:
        raise ConfigError("the work needs a process", found=f"workers={workers}", expected="1 or more")
    size_bytes = store.size(root)
    once = _once(store, root, target_store, target, {"flavor": flavor, "on_error": on_error, "validate": validate})
    made = None if overwrite else once.made()
    if made is not None:
        return made
    held = claim(target_store, target)
    try:
        require_own_index(target_store, root if index_path is None else None, target, flavor, has_data=True)
        if flavor == "energon":
            return _index_for_energon(store, root, once, on_error, overwrite, progress)
        if workers is None:
            workers = max(1, min(len(os.sched_getaffinity(0)), size_bytes // _WORKER_BYTES))
        with _workers(workers, threads=not validate) as run:
            skip_faulty = on_error == "skip"
            lines = IndexedLines(store, root, size_bytes, validate, skip_faulty, run, progress)
            with aborting(target_store.stage(target, overwrite=overwrite)) as staged:
                fill_index(lines, staged)
                counts = (staged.tell(), lines.num_lines, lines.num_dropped)
                return _commit(once, staged, IndexReport(root, target, size_bytes, *counts, tuple(lines.dropped)))
    finally:
        held.release()


def _index_for_energon(
    store: Store,
    root: str,
    once: Once[IndexReport],
    on_error: OnError,
    overwrite: bool,
    progress: Callable[[int], None] | None,
) -> IndexReport:
    if on_error == "skip":
        raise ConfigError("Energon's index leaves no line out", path=root, hint="Mend the lines, or filter them out")
    with aborting(once.store.stage(once.path, overwrite=overwrite)) as staged:
        starts = scan_energon(store, root, progress)
        staged.write(encode_energon_index(starts))
        report = IndexReport(root, once.path, store.size(root), starts.nbytes, len(starts) - 1, 0, ())
        return _commit(once, staged, report)


def _once(store: Store, root: str, target_store: Store, target: str, options: dict[str, Any]) -> Once[IndexReport]:
    """The work that makes an index, known again by the index and what the mark says of it."""

    def published(told: Any) -> IndexReport | None:
        with contextlib.suppress(msgspec.ValidationError):
            report = msgspec.convert(told, IndexReport)
            if target_store.exists(target) and target_store.size(target) == report.index_bytes:
                return report
        return None

    source = [redact(absolute(root)), store.size(root), file_binding(store, root)]
    what = {"command": "index", **options, "source": source}
    return Once(target_store, target, what, [target], published)


def _commit(once: Once[IndexReport], staged: Staged, report: IndexReport) -> IndexReport:
    def commit() -> IndexReport:
        staged.commit()
        return report

    return once.commit(commit, told=msgspec.to_builtins(report))


@contextlib.contextmanager
def _workers(count: int, *, threads: bool) -> Generator[Run]:
    """A `map` over threads, where numpy does the work, or over processes, where Python's JSON reader may."""
    if count == 1:
        yield map
    elif threads:
        with ThreadPoolExecutor(count) as pool:
            yield functools.partial(_map_ahead, pool, _AHEAD * count)
    else:
        with ProcessExecutor(count, preload=[scan_lines.__module__]) as processes:
            yield processes.map


def _map_ahead(
    pool: ThreadPoolExecutor, most: int, fn: Callable[[LineRange], Lines], tasks: Iterable[LineRange]
) -> Iterator[Lines]:
    """Results in order, with at most so many tasks begun ahead."""
    pending: deque[Future[Lines]] = deque()
    for task in tasks:
        pending.append(pool.submit(fn, task))
        if len(pending) > most:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()
