"""Parts of tokens in another order of all documents: further parts, which are assembled like any.

A task makes one part of the new order: it copies its documents from the parts that hold them, so every byte is read and
written once more. Memory: in each process 24 bytes per document of all parts, their loss masks as bits, and a part of
the order: about 16 million bytes, or a few documents.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.abc import Executor, SupportsMmap
from penstock.codec.runs import copy_runs
from penstock.codec.tokens import dtype_for
from penstock.engine.parts import DocumentRuns, PartMeta, PartName, encode_end, parse_part_name, put_part, read_part
from penstock.errors import NotFound
from penstock.store.place import Place
from penstock.types import IntArray

Order = Callable[[IntArray], IntArray]

_PART_TOKENS = 1 << 22
_MOST_DOCUMENTS = 1 << 18
_RUN_TOKENS = 1 << 18


@dataclass(frozen=True, slots=True)
class ShuffleJob:
    """Parameters of all tasks.

    Attributes:
        key: identifies the parts that are read.
        order: places → documents.
        token_bytes: width of the tokens.
        parts: directory of the parts that are read.
        names: these parts, in order.
        into: directory of the new parts.
    """

    key: str
    order: Order = field(compare=False)
    token_bytes: int = field(compare=False)
    parts: Place = field(compare=False)
    names: tuple[PartName, ...] = field(compare=False)
    into: Place = field(compare=False)


@dataclass(frozen=True, slots=True)
class PlacesTask:
    """Places `[first, stop)` of the order."""

    number: int
    first: int
    stop: int

    @property
    def described(self) -> str:
        return f"documents {self.first} to {self.stop} of the shuffled output"


def shuffled_parts(
    parts: Place, names: Sequence[PartName], into: Place, order: Order, token_bytes: int, executor: Executor
) -> list[PartName]:
    """Make the missing parts of a new order; return all of them. `order`: int64[k] places → documents; picklable."""
    key = xxhash.xxh3_128_hexdigest("\n".join([parts.path, *(one.path for one in names)]).encode())
    job = ShuffleJob(key, order, token_bytes, parts, tuple(names), into)
    tasks = list(_tasks(names))
    found = {name.task: name for name in _listed(into) if name.task < len(tasks)}
    missing = (task for task in tasks if task.number not in found)
    for name in executor.map(functools.partial(shuffle_part, job), missing):
        found[name.task] = name
    return [found[task.number] for task in tasks]


def in_order(into: Place) -> list[PartName]:
    return sorted(_listed(into), key=lambda name: name.task)


def _tasks(names: Sequence[PartName]) -> Iterator[PlacesTask]:
    """Return the cut into parts, which depends only on counts."""
    documents, tokens = sum(one.documents for one in names), sum(one.tokens for one in names)
    step = min(_MOST_DOCUMENTS, max(1, _PART_TOKENS * documents // max(1, tokens)))
    for number, first in enumerate(range(0, documents, step)):
        yield PlacesTask(number, first, min(first + step, documents))


def _listed(into: Place) -> Iterator[PartName]:
    try:
        paths = list(into.store.list(into.path))
    except NotFound:
        return
    for path in paths:
        name = parse_part_name(path.rpartition("/")[2])
        if name is not None:
            yield name


@dataclass(frozen=True, slots=True)
class _Table:
    """Part, start and length of all documents, and the parts' loss masks."""

    begins: IntArray
    starts: IntArray
    lengths: IntArray
    masks: tuple[bytes, ...]


@functools.lru_cache(maxsize=1)
def _table(job: ShuffleJob) -> _Table:
    begins = np.cumsum([0, *(one.documents for one in job.names)], dtype=np.int64)
    starts, lengths, masks = np.empty(begins[-1], np.int64), np.empty(begins[-1], np.int64), list[bytes]()
    for name, begin, end in zip(job.names, begins[:-1].tolist(), begins[1:].tolist(), strict=True):
        meta, found = read_part(job.parts.child(name.path), job.token_bytes)
        lengths[begin:end] = found
        starts[begin:end] = np.cumsum(found) - found
        masks.append(meta.loss_mask)
    return _Table(begins, starts, lengths, tuple(masks))


def shuffle_part(job: ShuffleJob, task: PlacesTask) -> PartName:
    table = _table(job)
    rows = job.order(np.arange(task.first, task.stop))
    lengths = table.lengths[rows]
    places = np.cumsum(lengths) - lengths
    tokens = np.empty(int(lengths.sum()), dtype_for(job.token_bytes, "<"))
    mask = np.zeros(len(tokens) if any(table.masks) else 0, np.bool_)
    numbers = np.searchsorted(table.begins, rows, side="right") - 1
    by_part = np.argsort(numbers, kind="stable")
    for some in np.split(by_part, np.flatnonzero(np.diff(numbers[by_part])) + 1) if len(rows) else ():
        number = int(numbers[some[0]])
        starts = table.starts[rows[some]]
        _copy(job.parts.child(job.names[number].path), starts, lengths[some], tokens, places[some])
        if len(mask):
            bits = np.unpackbits(np.frombuffer(table.masks[number], np.uint8), bitorder="little").view(np.bool_)
            copy_runs(bits, starts, lengths[some], mask, places[some])
    runs = _runs(tokens, lengths)
    highest = int(tokens.max(initial=0)) if len(tokens) else -1
    bits = np.packbits(mask, bitorder="little").tobytes()
    meta = PartMeta((), len(rows), len(tokens), highest, (), runs.finish(), bits)
    data = tokens.tobytes() + encode_end(lengths, meta)
    return put_part(job.into, task.number, data, documents=len(rows), tokens=len(tokens), num_dropped=0)


def _runs(tokens: NDArray[np.unsignedinteger], lengths: IntArray) -> DocumentRuns:
    found, ends = DocumentRuns(), np.cumsum(lengths)
    borders = [0, *(np.flatnonzero(np.diff(ends // _RUN_TOKENS)) + 1).tolist(), len(lengths)]
    for first, stop in itertools.pairwise(borders):
        if stop > first:
            found.add(tokens[int(ends[first] - lengths[first]) : int(ends[stop - 1])], lengths[first:stop])
    return found


def _copy(
    part: Place, starts: IntArray, lengths: IntArray, tokens: NDArray[np.unsignedinteger], places: IntArray
) -> None:
    store, width = part.store, tokens.itemsize
    if isinstance(store, SupportsMmap):
        stored = store.mmap(part.path)
        whole = stored[: len(stored) // width * width].view(tokens.dtype)
        copy_runs(whole, starts, lengths, tokens, places)
        return
    order = np.argsort(starts, kind="stable")
    ranges = [(int(starts[at]) * width, int(starts[at] + lengths[at]) * width) for at in order.tolist()]
    for at, data in zip(order.tolist(), store.get_ranges(part.path, ranges), strict=True):
        tokens[places[at] : places[at] + lengths[at]] = np.frombuffer(data, tokens.dtype)
