"""What the workers of a shared verb do: parts of the output, which hold rows; see `work/tokens/blocks.py` for the rest.

A part holds the rows of one output that come out of a range, in the form of `work/parts.py`: its units are tokens in
the width of the output, or bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock._buffers import byte_view
from penstock.engine.parts import PartMeta, PartName, encode_end
from penstock.reshape.pieces import Job, Range
from penstock.reshape.rewrite import require_whole
from penstock.store.place import Place
from penstock.store.put import put_new
from penstock.types import IntArray


@dataclass(frozen=True, slots=True)
class PartJob:
    """What every worker gets.

    Attributes:
        job: sources, and what is done with a range of them.
        num_outputs: rows of group g go to output g.
        parts: where parts go.
    """

    job: Job
    num_outputs: int
    parts: Place


def make_parts(job: PartJob, task: tuple[int, Range]) -> list[PartName]:
    """Do one task: a part for each output, an empty one too. Memory: the rows of a range, twice."""
    number, some = task
    rows, stored = job.job.rows(some.source), job.job.stored
    pieces: list[list[NDArray[np.uint8]]] = [[] for _ in range(job.num_outputs)]
    lengths: list[list[IntArray]] = [[np.empty(0, np.int64)] for _ in range(job.num_outputs)]
    for group, data, some_lengths in job.job.make(rows, some):
        require_whole(rows, data, some_lengths)
        pieces[group].append(np.array(data, stored).view(np.uint8))
        lengths[group].append(some_lengths)
    return [_put(job, number, group, pieces[group], np.concatenate(lengths[group])) for group in range(job.num_outputs)]


def _put(job: PartJob, number: int, group: int, pieces: Sequence[NDArray[np.uint8]], lengths: IntArray) -> PartName:
    units = int(lengths.sum())
    data = b"".join([*map(byte_view, pieces), encode_end(lengths, PartMeta((), len(lengths), units, -1, ()))])
    digest, last = xxhash.xxh3_64_hexdigest(data), group == job.num_outputs - 1
    name = PartName(number, group, last, len(lengths), units, 0, digest)
    put_new(job.parts.store, job.parts.child(name.path).path, data)
    return name
