"""Tasks of `prepare_media`: about 500 files each, whose rows become a part of the work folder."""

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

    number: int
    files: tuple[tuple[Place, tuple[MediaFile, ...]], ...]
    filters: tuple[MediaFilter, ...]
    depth: MediaDepth

    @property
    def described(self) -> str:
        """Name of the task in errors."""
        first, last = self.files[0], self.files[-1]
        return f"{first[0].shown}, {first[1][0].name} to {last[1][-1].name}"

    @property
    def num_samples(self) -> int:
        """Number of members of all files."""
        return sum(len(members) for _, members in self.files)


class Part(msgspec.Struct, array_like=True):
    """The part of a task.

    Attributes:
        stored: the rows, as name, kind and JSON.
        problems: files that are unreadable or seem to be truncated.
        traits: property → number of images that have it; see `upright.pixel_traits`.
    """

    stored: list[tuple[str, str, str]]
    problems: list[MediaProblem]
    traits: dict[str, int] = {}

    def rows(self) -> Iterator[MediaRow]:
        """Return the decoded rows."""
        return (MediaRow(name, decode_metadata(kind, text)) for name, kind, text in self.stored)


def cut_tasks(units: Iterable[Unit], filters: Sequence[MediaFilter], depth: MediaDepth) -> Iterator[Task]:
    """Cut the files that a filter may choose into tasks of about 500 files."""
    waiting: list[tuple[Place, tuple[MediaFile, ...]]] = []
    number = count = 0
    for unit in units:
        files = [file for file in unit.files if may_hold(filters, file.name)]
        for first in range(0, len(files), FILES_A_TASK):
            some = tuple(files[first : first + FILES_A_TASK])
            waiting.append((unit.place, some))
            count += len(some)
            if count >= FILES_A_TASK:
                yield Task(number, tuple(waiting), tuple(filters), depth)
                waiting, count, number = [], 0, number + 1
    if waiting:
        yield Task(number, tuple(waiting), tuple(filters), depth)


def run_task(parts: Place, task: Task) -> PartName:
    """Read the files of a task and write its part; runs in a worker, perhaps in two at once."""
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
    counts = {"documents": len(rows), "tokens": task.num_samples, "num_dropped": len(problems)}
    return put_part(parts, task.number, data, **counts)


def measure_task(task: Task) -> tuple[int, int]:
    """Return number and bytes of the files of a task that `run_task` reads whole to count packets."""
    sizes = [measure_packets(place, files, task.filters) for place, files in task.files]
    return sum(num_files for num_files, _ in sizes), sum(size_bytes for _, size_bytes in sizes)


def read_part(parts: Place, name: PartName) -> Part:
    """Read the part of a task."""
    return msgspec.msgpack.decode(get_part(parts, name), type=Part)
