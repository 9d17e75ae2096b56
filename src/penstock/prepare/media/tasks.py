"""Tasks of `prepare_media`: runs of about 500 files, whose rows workers read and leave as parts of shared work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from penstock.codec.av_header import MediaDepth
from penstock.engine.parts import PartName, get_part, put_part
from penstock.formats.samples.media_index import MediaFilter, MediaRow, decode_metadata, encode_metadata
from penstock.prepare.media.rows import MediaFile, MediaProblem, may_hold, measure_packets, read_rows
from penstock.prepare.media.units import Unit
from penstock.store.place import Place

FILES_A_TASK = 500


@dataclass(frozen=True, slots=True)
class Task:
    """Ranges of one or several files: `(file, its members)`."""

    files: tuple[tuple[Place, tuple[MediaFile, ...]], ...]
    filters: tuple[MediaFilter, ...]
    depth: MediaDepth

    @property
    def described(self) -> str:
        """What an error calls it."""
        first, last = self.files[0], self.files[-1]
        return f"{first[0].shown}, {first[1][0].name} to {last[1][-1].name}"

    @property
    def num_files(self) -> int:
        """Members of all its files."""
        return sum(len(members) for _, members in self.files)


@dataclass(frozen=True, slots=True)
class Job:
    """A task, its number, and where its part goes."""

    number: int
    task: Task
    parts: Place

    @property
    def described(self) -> str:
        """What an error calls it."""
        return self.task.described


class Part(msgspec.Struct, array_like=True):
    """The part of a task: its rows, as name, kind and JSON, what is wrong with others of its files, and how many images
    have each of their traits; see `upright.pixel_traits`."""

    stored: list[tuple[str, str, str]]
    problems: list[MediaProblem]
    traits: dict[str, int] = {}

    def rows(self) -> Iterator[MediaRow]:
        """Its rows, decoded."""
        return (MediaRow(name, decode_metadata(kind, text)) for name, kind, text in self.stored)


def cut_tasks(units: Iterable[Unit], filters: Sequence[MediaFilter], depth: MediaDepth) -> Iterator[Task]:
    """Runs of about 500 of those files that a filter may choose."""
    waiting: list[tuple[Place, tuple[MediaFile, ...]]] = []
    count = 0
    for unit in units:
        files = [file for file in unit.files if may_hold(filters, file.name)]
        for first in range(0, len(files), FILES_A_TASK):
            some = tuple(files[first : first + FILES_A_TASK])
            waiting.append((unit.place, some))
            count += len(some)
            if count >= FILES_A_TASK:
                yield Task(tuple(waiting), tuple(filters), depth)
                waiting, count = [], 0
    if waiting:
        yield Task(tuple(waiting), tuple(filters), depth)


def run_job(job: Job) -> PartName:
    """Read the files of one task, and put its part; runs in a worker, perhaps in two at once."""
    task = job.task
    rows: list[tuple[str, str, str]] = []
    problems: list[MediaProblem] = []
    traits: Counter[str] = Counter()
    for place, files in task.files:
        for found in read_rows(place, files, task.filters, depth=task.depth):
            if isinstance(found, MediaRow):
                rows.append((found.name, *encode_metadata(found.metadata)))
                traits.update(found.traits)
            else:
                problems.append(found)
    data = msgspec.msgpack.encode(Part(rows, problems, dict(traits)))
    counts = {"documents": len(rows), "tokens": task.num_files, "num_dropped": len(problems)}
    return put_part(job.parts, job.number, data, **counts)


def measure_job(job: Job) -> tuple[int, int]:
    """Number and bytes of the files of one task that `run_job` reads whole to count packets."""
    task = job.task
    sizes = [measure_packets(place, files, task.filters) for place, files in task.files]
    return sum(num_files for num_files, _ in sizes), sum(size_bytes for _, size_bytes in sizes)


def read_part(parts: Place, name: PartName) -> Part:
    """The part that a job put."""
    return msgspec.msgpack.decode(get_part(parts, name), type=Part)
