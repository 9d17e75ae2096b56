"""One shard of a preparation: its table and the rows of its media, kept as a part until the index is made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from penstock.abc import Store
from penstock.codec.av_header import MediaDepth
from penstock.engine.parts import PartName, get_part, put_part
from penstock.errors import Corrupt, PrepareError
from penstock.formats.samples.media_index import MediaFilter, MediaRow, decode_metadata, encode_metadata
from penstock.formats.samples.webdataset.ends import require_ended
from penstock.formats.samples.webdataset.members import Rows, linked_rows
from penstock.formats.samples.webdataset.shards import (
    ShardTable,
    require_content,
    require_distinct,
    require_text,
    scan_shard,
)
from penstock.formats.samples.webdataset.sqlite_index import encode_table
from penstock.prepare.media.rows import MediaProblem
from penstock.store.place import Place
from penstock.store.state import state_of


class MediaReader(Protocol):
    """Reads metadata of the media in a shard; picklable."""

    @property
    def filter(self) -> MediaFilter:
        """Which files it looks at."""
        ...

    @property
    def depth(self) -> MediaDepth:
        """How much of each file it reads."""
        ...

    def __call__(self, store: Store, path: str, table: ShardTable, /) -> Iterable[MediaRow | MediaProblem]:
        """Rows of the shard at `path`, by the full names of its parts, and what is wrong with its media."""
        ...


StoredRow = tuple[str, str, str]
"""Name of a file, kind of its metadata, and their JSON."""


class ShardPart(msgspec.Struct, array_like=True):
    """The part of a shard: its table, as `encode_table` gives it, the rows of its media, what is wrong with them, the
    members that are in no index, and what is wrong with its end.

    Its name says how many samples and parts the shard has, and of how many media something is wrong.
    """

    table: bytes
    media: list[StoredRow]
    problems: list[str]
    linked: Rows = []
    ignored: dict[str, int] = {}
    traits: dict[str, int] = {}
    ending: str | None = None

    def rows(self) -> list[MediaRow]:
        """The rows of its media."""
        return [MediaRow(name, decode_metadata(kind, text)) for name, kind, text in self.media]


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One shard to be scanned."""

    number: int
    dataset: Place
    shard: str
    media: MediaReader | None = None

    @property
    def described(self) -> str:
        """Name of the task in errors."""
        return self.dataset.child(self.shard).shown

    @property
    def num_samples(self) -> int:
        """Progress is counted in shards."""
        return 1


def scan_task(parts: Place, task: ShardTask) -> PartName:
    """Scan a shard and write its part; runs in a worker, perhaps in two at once.

    Raises:
        FormatError: the shard is damaged, empty, has a key twice, or data after its end.
        PrepareError: it changed meanwhile.
    """
    file = task.dataset.child(task.shard)
    before = state_of(file)
    table = scan_shard(file.store, file.path)
    _require_good(table, file)
    ending = require_ended(file.store, file.path, table)
    found = [] if task.media is None else list(task.media(file.store, file.path, table))
    rows = [(row.name, *encode_metadata(row.metadata)) for row in found if isinstance(row, MediaRow)]
    problems = [f"{task.shard}: {one.name}: {one.what}" for one in found if isinstance(one, MediaProblem)]
    if state_of(file) != before:
        raise PrepareError(
            "a shard changed while it was being read", path=file.path, hint="Prepare it when it is complete"
        )
    traits = Counter(trait for row in found if isinstance(row, MediaRow) for trait in row.traits)
    linked = linked_rows(table.linked)
    about_end = None if ending is None else ending.what
    part = ShardPart(encode_table(table), rows, problems, linked, dict(table.ignored), dict(traits), about_end)
    data = msgspec.msgpack.encode(part)
    counts = {"documents": table.num_samples, "tokens": len(table.part_names), "num_dropped": len(problems)}
    return put_part(parts, task.number, data, **counts)


def read_shard(parts: Place, name: PartName) -> ShardPart:
    """The part of a shard; raises `Corrupt`."""
    return msgspec.msgpack.decode(get_part(parts, name), type=ShardPart)


def _require_good(table: ShardTable, file: Place) -> None:
    if table.num_samples == 0:
        require_content(table, file.path)
        raise Corrupt(
            "a shard without samples", path=file.path, found="no member with a name like <key>.<part>",
            hint="Remove it, or skip it with exclude (--exclude)",
        )  # fmt: skip
    require_distinct(table, file.path)
    require_content(table, file.path)
    require_text(table, file.path)
