"""The media index: the one that is there, and a new one, which is made elsewhere and takes its place at once."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterable, Sequence, Set
from contextlib import closing
from dataclasses import dataclass

import xxhash

from penstock._regular import open_regular
from penstock.codec.av_header import MediaDepth
from penstock.formats.samples import media_index
from penstock.formats.samples.folder.files import INDEX
from penstock.formats.samples.media_index import MediaFilter
from penstock.formats.samples.sqlite import connect_to_write, system_errors
from penstock.prepare.media.rows import MediaProblem
from penstock.prepare.media.seen import DEPTHS, Seen, open_seen, seen_path, write_seen
from penstock.prepare.media.tasks import Part
from penstock.prepare.media.units import Unit
from penstock.store._files import named
from penstock.store.local import LocalStore
from penstock.store.place import Place

_BLOCK_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class MediaIndex:
    """The index of a dataset, which may not be there yet.

    Attributes:
        place: where it is.
        binding: digest of its file; None where there is none.
        filters: that its rows were chosen by, each with the time of its newest file.
        seen: what was looked at for it.
    """

    place: Place
    binding: str | None
    filters: tuple[tuple[MediaFilter, str], ...]
    seen: Seen

    def unchanged(self, units: Sequence[Unit], filters: Iterable[MediaFilter], *, depth: MediaDepth) -> frozenset[str]:
        """Names of the units that an earlier run looked at in the same way, and that are the same since."""
        if not set(filters) <= set(self.seen.filters) or DEPTHS.index(depth) > DEPTHS.index(self.seen.depth):
            return frozenset()
        return frozenset(unit.name for unit in units if self.seen.stamps.get(unit.name) == unit.stamp)


def read_index(root: Place) -> MediaIndex:
    """The index of a dataset; raises `FormatError` where it is damaged."""
    place = root.child(INDEX)
    if not place.exists():
        return MediaIndex(place, None, (), Seen({}, (), "headers"))
    with closing(media_index.connect_media(place.store, place.path)) as old:
        filters = tuple(media_index.read_filters(old, path=place.path))
    binding = content_digest(place)
    return MediaIndex(place, binding, filters, open_seen(place.store, place.path, binding))


def content_digest(index: Place) -> str:
    """Digest of all of an index: one of other rows may have the same size, and the same pages at both ends."""
    hasher, size_bytes = xxhash.xxh3_128(), index.store.size(index.path)
    for start_bytes in range(0, size_bytes, _BLOCK_BYTES):
        hasher.update(index.store.get(index.path, start_bytes, min(_BLOCK_BYTES, size_bytes - start_bytes)))
    return hasher.hexdigest()


def make_index(
    old: MediaIndex,
    new: Place,
    kept: Set[str],
    filters: Iterable[tuple[MediaFilter, str]],
    parts: Iterable[Part],
    *,
    is_tars: bool,
) -> tuple[int, tuple[MediaProblem, ...]]:
    """Make a new index of what was read and what is known.

    Args:
        old: the one that is there.
        new: where the new one is made, on this machine.
        kept: files whose rows in the old one still hold.
        filters: of all runs.
        parts: what was read, in order.
        is_tars: the old one holds the samples too, and is copied.

    Returns:
        How many rows it has, and what is wrong with files that were read.
    """
    problems: list[MediaProblem] = []
    if is_tars:
        _copy(old.place, new)
    with system_errors(new.path), closing(connect_to_write(new.path)) as made:
        # What was written ahead of old indexes is in them: leaving that mode first makes a plain file of one.
        for pragma in ("journal_mode=DELETE", "journal_mode=OFF", "synchronous=OFF"):
            made.execute(f"PRAGMA {pragma}").fetchall()
        made.execute("BEGIN")
        media_index.create_tables(made)
        if is_tars:
            _drop_others(made, kept)
        elif old.binding is not None:
            _put_known(made, old.place, kept)
        for part in parts:
            media_index.put_rows(made, part.rows())
            problems += part.problems
        media_index.add_filters(made, list(filters))
        num_rows = int(made.execute("SELECT COUNT(entry_key) FROM media_metadata").fetchone()[0])
        made.execute("COMMIT")
    return num_rows, tuple(problems)


def publish(old: MediaIndex, new: Place, seen: Seen) -> None:
    """Put a new index, and what was looked at for it, in the place of the old one."""
    store, path = old.place.store, old.place.path
    index = store.stage(path, overwrite=True)
    side = None
    try:
        index.append_file(new.path)
        side = store.stage(seen_path(path), overwrite=True)
        side.write(write_seen(seen, content_digest(new)))
        # The index first: without its side file the next run only reads more than it had to.
        store.commit([index, side])
    except BaseException:
        index.abort()
        if side is not None:
            side.abort()
        raise


def _drop_others(made: sqlite3.Connection, kept: Set[str]) -> None:
    """Remove the rows of all files but these."""
    rows: list[tuple[str]] = made.execute("SELECT entry_key FROM media_metadata").fetchall()
    made.executemany("DELETE FROM media_metadata WHERE entry_key = ?", [row for row in rows if row[0] not in kept])


def _put_known(made: sqlite3.Connection, old: Place, kept: Set[str]) -> None:
    """Take the rows of these files from the old index."""
    with closing(media_index.connect_media(old.store, old.path)) as found:
        rows = media_index.read_rows(found, path=old.path)
        media_index.put_rows(made, (row for row in rows if row.name in kept))


def _copy(index: Place, new: Place) -> None:
    store = index.store
    try:
        with open(new.path, "wb") as file:
            if isinstance(store, LocalStore):
                with open_regular(store.real_path(index.path)) as source:
                    shutil.copyfileobj(source, file, _BLOCK_BYTES)
            else:
                file.write(store.get(index.path))
    except OSError as error:
        raise named(error, new.path) from None
