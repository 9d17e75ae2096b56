"""One shard of a preparation: its table and the rows of its media, kept until the index is made of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from penstock.abc import Store
from penstock.errors import Corrupt, PrepareError
from penstock.formats.samples.media_index import MediaFilter, MediaRow, encode_metadata
from penstock.formats.samples.webdataset.shards import ShardTable, require_distinct, require_text, scan_shard
from penstock.formats.samples.webdataset.sqlite_index import decode_table, encode_table
from penstock.prepare.media.rows import MediaProblem
from penstock.store.place import Place
from penstock.work.energon import VERSION, Done, find_done, save_done, stamp_of
from penstock.work.folder import WorkFolder


class MediaReader(Protocol):
    """Reads metadata of the media in a shard; picklable."""

    @property
    def filter(self) -> MediaFilter:
        """Which files it looks at."""
        ...

    @property
    def exact(self) -> bool:
        """Whether it decodes them; what headers say is another answer."""
        ...

    def __call__(self, store: Store, path: str, table: ShardTable, /) -> Iterable[MediaRow | MediaProblem]:
        """Rows of the shard at `path`, by the full names of its parts, and what is wrong with its media."""
        ...


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One shard to be scanned, and where its table goes."""

    dataset: Place
    shard: str
    work: WorkFolder
    media: MediaReader | None = None

    @property
    def described(self) -> str:
        """What an error calls it."""
        return self.dataset.child(self.shard).shown


@dataclass(frozen=True, slots=True)
class ShardDone:
    """The report of a finished shard: how much it holds, whether that was known, odd names and bad media in it."""

    shard: str
    num_samples: int
    num_parts: int
    size_bytes: int
    reused: bool
    unsafe_name: str | None = None
    problems: tuple[str, ...] = ()


def scan_task(task: ShardTask) -> ShardDone:
    """Scan a shard and keep its table, unless that is there; runs in a worker.

    Raises:
        FormatError: the shard is damaged, empty, or has a key twice.
    """
    file = task.dataset.child(task.shard)
    store, path, stamp = file.store, file.path, stamp_of(file)
    before = find_done(task.work, task.shard, stamp)
    if before is not None:
        table, media, problems = decode_table(before.table, path), before.media, before.problems
    else:
        table, media, problems = scan_shard(store, path), None, list[str]()
        _require_good(table, file)
    reused = before is not None
    if task.media is not None and (media is None or media[0] != _key_of(task.media)):
        found = list(task.media(store, path, table))
        rows = [(row.name, *encode_metadata(row.metadata)) for row in found if isinstance(row, MediaRow)]
        problems = [f"{task.shard}: {one.name}: {one.what}" for one in found if isinstance(one, MediaProblem)]
        media, reused = (_key_of(task.media), rows), False
    if not reused:
        if stamp_of(file) != stamp:
            raise PrepareError("a shard changed while it was read", path=path, hint="Prepare it when it is complete")
        save_done(task.work, Done(VERSION, task.shard, *stamp, encode_table(table), media, problems))
    unsafe = next((key for key in table.keys if key.startswith("/") or ".." in key.split("/")), None)
    told = tuple(problems) if task.media is not None else ()
    return ShardDone(task.shard, table.num_samples, len(table.part_names), stamp[0], before is not None, unsafe, told)


def _key_of(media: MediaReader) -> str:
    return f"{media.filter.strategy} {media.filter.patterns}" + (" exact" if media.exact else "")


def _require_good(table: ShardTable, file: Place) -> None:
    if table.num_samples == 0:
        raise Corrupt(
            "a shard without samples", path=file.path, found="no member of the name <key>.<part>",
            hint="Remove it, or leave it out with exclude (--exclude)",
        )  # fmt: skip
    require_distinct(table, file.path)
    require_text(table, file.path)
