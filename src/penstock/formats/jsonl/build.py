"""Build the raw index of Modalities by scanning ranges of the file in any number of processes."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from penstock._printable import printable
from penstock._secrets import logger, redact
from penstock.abc import SupportsMmap
from penstock.codec.pickles import PairListEncoder
from penstock.errors import ConfigError, Corrupt, Unsupported
from penstock.formats._manifest import side_path
from penstock.formats._opening import SKIPPING
from penstock.formats._unrecognised import UNKNOWN, of_binary, of_document
from penstock.formats.jsonl.scan import MOST_FAULTS, Fault, LineRange, Lines, scan_lines
from penstock.store._files import on_network
from penstock.store.base import Store
from penstock.store.derived import DerivedCache, Put
from penstock.store.fingerprint import file_key
from penstock.store.names import NEXT
from penstock.store.put import aborting
from penstock.store.side_file import file_facts, is_next
from penstock.types import IntArray

Run = Callable[[Callable[[LineRange], Lines], Iterable[LineRange]], Iterable[Lines]]
"""Function like `map` or `Executor.map`: applies a function to all ranges and yields the results in order."""

RANGE_BYTES = 1 << 24
_LINES_VERSION = "jsonl-lines-1"
_log = logger()


@dataclass(frozen=True, slots=True)
class DroppedLine:
    """Invalid line missing from the index: its line number from 1, its offset and the reason."""

    line: int
    offset_bytes: int
    length_bytes: int
    reason: str


@dataclass(slots=True)
class IndexedLines:
    """Lines of a file in order, as runs of int64[k, 2]: start and length in bytes. Iterate once.

    Memory: 16 bytes per line of each range in progress, and a few MB.

    Attributes:
        validate: check that each line is JSON.
        skip_faulty: skip invalid lines instead of raising `Corrupt`.
        run: applies the scan to all ranges.
        progress: called with the number of bytes done so far.
        is_whole: the file has no other lines after these.
        num_lines: valid lines so far.
        num_dropped: invalid lines so far; `dropped` holds the first of them.
    """

    store: Store
    path: str
    size_bytes: int
    validate: bool = True
    skip_faulty: bool = False
    run: Run = map
    progress: Callable[[int], None] | None = None
    is_whole: bool = True
    num_lines: int = 0
    num_dropped: int = 0
    dropped: list[DroppedLine] = field(default_factory=list[DroppedLine])

    def __iter__(self) -> Iterator[IntArray]:
        if self.size_bytes == 0 and self.validate:
            self._take_faults(Lines(np.empty((0, 2), np.int64), 1, 1, (Fault(0, 0, 0, "the file is empty"),)))
        whole = LineRange(
            self.store, self.path, 0, self.size_bytes, self.size_bytes, self.validate, not self.skip_faulty
        )
        for number, lines in enumerate(self.run(scan_lines, cut(whole))):
            self._take_faults(lines)
            self.num_lines += len(lines.pairs)
            if self.progress is not None:
                self.progress(min(self.size_bytes, (number + 1) * RANGE_BYTES))
            if self.is_whole and self.validate and self.size_bytes <= (number + 1) * RANGE_BYTES:
                self.require_separate()
            yield lines.pairs

    def require_separate(self) -> None:
        """Raise `Unsupported` if the only line is a JSON array of objects."""
        if self.num_lines == 1 and not self.num_dropped:
            require_separate_lines(self.store, self.path, one_line=True)

    def _take_faults(self, lines: Lines) -> None:
        before = self.num_lines + self.num_dropped
        for fault in lines.faults:
            line = before + fault.line + 1
            if line == 1 and self.size_bytes:
                require_separate_lines(self.store, self.path)
            if not self.skip_faulty:
                if self.size_bytes == 0:
                    accepting = f"`penstock index {self.path} --on-error skip` accepts it"
                    hint = f"Omit the file or write it again. {accepting}"
                    raise Corrupt(fault.reason, path=self.path, hint=hint)
                if line == 1:
                    require_plain(self.store, self.path)
                _require_lines(self.store, self.path)
                raise Corrupt(
                    f"line {line} is not valid JSON",
                    path=self.path,
                    offset_bytes=fault.offset_bytes,
                    found=fault.reason,
                    hint=f"Fix it, or skip invalid lines: `penstock index {self.path} --on-error skip`",
                )
            if len(self.dropped) < MOST_FAULTS:
                self.dropped.append(DroppedLine(line, fault.offset_bytes, fault.length_bytes, fault.reason))
        self.num_dropped += lines.num_faults


def require_plain(store: Store, path: str) -> None:
    """Raise `Unsupported` if a file begins like a compressed one."""
    if store.get(path, 0, 4).startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")):
        what, hint = (
            "a compressed file can't have an index",
            "Every command reads it without one. Otherwise decompress it first",
        )
        raise Unsupported(what, path=path, found="gzip or zstd", hint=hint)


def require_separate_lines(store: Store, path: str, *, one_line: bool = False) -> None:
    """Raise `Unsupported` if a file is one JSON document: an array of objects, or an object over several lines.

    Args:
        store: the store of the file.
        path: a file with an invalid first line.
        one_line: the file has a single line instead, which is valid.
    """
    cause = of_document(store.get(path, 0, 1 << 12), one_line=one_line)
    if cause is not None:
        raise Unsupported("not JSON Lines", path=path, found=cause[0], expected="one object per line", hint=cause[1])


def require_several(store: Store, path: str, lines: IntArray) -> None:
    """Raise `Unsupported` if the only line of a file is an array of objects."""
    if len(lines) == 1 and lines[0, 0] == 0:
        require_separate_lines(store, path, one_line=True)


def _require_lines(store: Store, path: str) -> None:
    """Raise `Unsupported` if the beginning of a file can't be JSON Lines."""
    head = store.get(path, 0, 1 << 12)
    cause = of_binary(head)
    if cause is not None:
        found, hint = cause
        if cause is UNKNOWN:  # `info` takes a file with such a name for JSONL too
            named = path.endswith((".jsonl", ".ndjson"))
            hint = "Copy it again, or check the program that wrote it" if named else "`penstock info` identifies it"
        raise Unsupported("no lines of JSON", path=path, found=found, hint=hint)
    if path.endswith((".csv", ".tsv")):
        hint = f"`penstock convert {path} OUT/ --to mds` reads a table with a header"
        raise Unsupported("no lines of JSON", path=path, found="a text table", hint=hint)


def may_map(store: Store, path: str) -> bool:
    """Return true unless the file is on a network file system: a failed read of a mapping kills the process."""
    return isinstance(store, SupportsMmap) and not (store.is_local and on_network(path))


def cut(work: LineRange) -> Iterator[LineRange]:
    for start_bytes in range(work.start_bytes, work.stop_bytes, RANGE_BYTES):
        stop_bytes = min(work.stop_bytes, start_bytes + RANGE_BYTES)
        yield dataclasses.replace(work, start_bytes=start_bytes, stop_bytes=stop_bytes)


def index_path_for(path: str) -> str:
    """Return the path at which Modalities looks for the index: the last suffix is replaced with `.idx`.

    Raises:
        ConfigError: `path` itself ends in `.idx`.
    """
    index_path = os.path.splitext(path)[0] + ".idx"
    if index_path == path:
        raise ConfigError("this is the name of an index, not a JSONL file", path=path)
    return index_path


def current_index(store: Store, path: str, index_path: str) -> str:
    """Return the path of the current index: `.next` if a writer was killed right after it replaced the file."""
    waiting = store.exists(index_path + NEXT)
    facts = functools.partial(file_facts, store, path, "jsonl")
    return index_path + NEXT if waiting and is_next(store, side_path(path), facts) else index_path


def write_index(lines: IndexedLines, store: Store, index_path: str, *, overwrite: bool) -> int:
    """Write the index of a file while its lines are read, and return its size in bytes.

    Raises:
        Corrupt: a line is invalid; no index is written.
        ConfigError: the index exists and `overwrite` is false.
    """
    with aborting(store.stage(index_path, overwrite=overwrite)) as staged:
        for data in encode_lines(lines):
            staged.write(data)
        size_bytes = staged.tell()
        staged.commit()
    return size_bytes


def encode_lines(lines: Iterable[IntArray]) -> Iterator[bytes]:
    encoder = PairListEncoder()
    yield from map(encoder.encode, lines)
    yield encoder.finish()


def is_skipping() -> bool:
    return SKIPPING.get() is not None


def warn_of_dropped(path: str, lines: IndexedLines) -> None:
    """Log how many invalid lines of a file were skipped, and name the first of them."""
    skipped = SKIPPING.get()
    if lines.num_dropped and (skipped is None or path not in skipped):
        if skipped is not None:
            skipped[path] = lines
        numbers = ", ".join(str(one.line) for one in lines.dropped[:3]) + (", …" if lines.num_dropped > 3 else "")
        name, first = ("line", "") if lines.num_dropped == 1 else ("lines", "the first is ")
        what = f"%s: skipped %d invalid {name} (%s): {first}%s"
        _log.warning(what, printable(redact(path)), lines.num_dropped, numbers, lines.dropped[0].reason)


def lines_in_cache(store: Store, path: str, *, skip_faulty: bool = False) -> IntArray:
    """Return int64[k, 2], start and length in bytes of each line, cached once per host and memory-mapped.

    The cache entry depends on the state of the file; see `penstock.store.fingerprint.file_key`. With `skip_faulty`, a
    file with invalid lines is scanned every time and isn't cached.

    Raises:
        Corrupt: a line is invalid.
    """
    size_bytes = store.size(path)
    if skip_faulty:
        try:
            return lines_in_cache(store, path)
        except Corrupt:
            if not size_bytes:
                raise  # raise an error without skippable lines
            lines = IndexedLines(store, path, size_bytes, skip_faulty=True)
            found = np.concatenate([np.empty((0, 2), np.int64), *lines])
            warn_of_dropped(path, lines)
            return found

    def feed(put: Put) -> None:
        _log.info("%s: scanning for lines; the result is kept in the cache folder", path)
        for pairs in IndexedLines(store, path, size_bytes):
            put(pairs.reshape(-1))

    kept = DerivedCache().fed(f"{_LINES_VERSION}-{file_key(store, 'jsonl', path)}", "int64", feed).reshape(-1, 2)
    require_several(store, path, kept)
    return kept
