"""From which row of which input each row of an output is: its row map, and the exclude list that goes along.

Both follow from the numbers of rows in the order of the output. What is copied although it is excluded is excluded in
the output: its list waits from before the commit until the data stand, and meanwhile nobody opens these.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from penstock.errors import ConfigError, NotFound
from penstock.formats import finish_planes, get_format
from penstock.formats._excluded import put_waiting, settle_waiting, unsettle, waiting_list
from penstock.formats._kept import places_in_whole
from penstock.formats._planed_writer import settle_planes
from penstock.reshape.planes import drop_planes, plane_files, planes_in, unsettle_planes, write_planes
from penstock.reshape.rows import AnyRows, TokenRows
from penstock.store.exclude_list import Entry, indices_of
from penstock.store.place import Place
from penstock.store.row_map import require_own_row_map, row_map_path, settle_row_map, write_row_map
from penstock.store.side_file import NEXT
from penstock.store.unfinished import Once, remove_mark
from penstock.types import IntArray, Manifest

RowNumbers = Callable[[], Iterable[IntArray]]
"""int64[k] each: numbers of rows, counted through all sources, in the order of the output."""

ResultT = TypeVar("ResultT")
_STEP = 1 << 20


def recorded(made_by: Mapping[str, Any], sources: Sequence[AnyRows], *, keep_map: bool) -> dict[str, Any]:
    """What a side file says of a verb: command and options, and what goes along."""
    lists = [rows.taken_out.carried.digest for rows in sources if rows.taken_out.carried.entries]
    kept = {"keep_excluded": lists} if lists else {}
    return {**made_by, **({"keep_map": True} if keep_map else {}), **kept}


def refuse_along(options: dict[str, Any], keep_map: bool, why: str) -> None:
    """Raise `ConfigError` if something has to go along that can't, and take `keep_excluded` out of the options.

    Args:
        options: of the command.
        keep_map: a row map is asked for.
        why: the reason that it can't.
    """
    asked = {"keep_map (--keep-map)": keep_map, "keep_excluded (--keep-excluded)": options.pop("keep_excluded", None)}
    named = " and ".join(name for name, is_asked in asked.items() if is_asked)
    if named:
        hint = "Omit it. To copy one dataset with its exclude list, use `penstock convert --keep-excluded`"
        raise ConfigError(f"{why}, so rows can't be tracked", found=named, hint=hint)


def something_goes_along(sources: Sequence[AnyRows], *, keep_map: bool) -> bool:
    """Whether a row map, entries of exclude lists, or planes go along with what is made of sources."""
    return keep_map or any(rows.taken_out.carried.entries for rows in sources) or bool(planes_in(sources))


def all_rows(first: int, stop: int) -> Iterator[IntArray]:
    """The rows `[first, stop)` in their order."""
    for start in range(first, stop, _STEP):
        yield np.arange(start, min(stop, start + _STEP))


def rows_in_order(rows_at: Callable[[int, int], IntArray], count: int) -> Iterator[IntArray]:
    """The rows at all places of an output, by what tells them for a run of places."""
    for start in range(0, count, _STEP):
        yield rows_at(start, min(count, start + _STEP))


@dataclass(frozen=True, slots=True)
class Along:
    """What goes along with one output.

    Attributes:
        place, format: of the output.
        sources: what it is made of.
        options: of its writer, with `inputs` and `options` as its side file has them.
        rows: which of all sources' rows it has.
        keep_map: write the row map.
    """

    place: Place
    format: str
    sources: Sequence[AnyRows]
    options: Mapping[str, Any] = field(repr=False)
    rows: RowNumbers
    keep_map: bool

    @property
    def has_list(self) -> bool:
        """Whether samples are copied that are excluded."""
        return any(rows.taken_out.carried.entries for rows in self.sources)

    @property
    def has_planes(self) -> bool:
        """Whether the sources have planes."""
        return bool(planes_in(self.sources))

    def is_of(self, manifest: Manifest) -> bool:
        """Whether data say that they were made like this, of these inputs: else they are what is to be replaced."""
        said, options = manifest.options, self.options["options"].items()
        return dict(manifest.inputs) == self.options["inputs"] and all(said.get(key) == value for key, value in options)

    def commit(self, once: Once[Manifest], commit: Callable[[], Manifest]) -> Manifest:
        """Make the output visible, with what goes along."""
        try:
            with self.written(once.published):
                return once.commit(lambda: self.settled(commit()), goes_on=self.has_list or self.has_planes)
        except BaseException:
            if not self._is_made(once.published):
                remove_mark(once.store, once.path)
            raise

    @contextlib.contextmanager
    def written(self, published: Callable[[Any], Manifest | None]) -> Generator[None]:
        """Write what goes along, before the block makes the output visible; it goes where the block does not."""
        self.require_possible()
        try:
            self._write()
            yield
        except BaseException:
            if not self._is_made(published):
                self._drop()
            raise

    def _is_made(self, published: Callable[[Any], Manifest | None]) -> bool:
        made = published(None)
        return made is not None and (not self.has_planes or self.is_of(made))

    def settled(self, manifest: Manifest) -> Manifest:
        """Give what goes along its names, beside the output; what was of an older one goes."""
        if self.place.is_local or self.keep_map:
            settle_row_map(self.place, manifest)
        if self.has_list:
            settle_waiting(get_format(self.format), self.place)
        if self.has_planes:
            settle_planes(get_format(self.format), self.place.store, self.place.path)
        return manifest

    def stands(self) -> None:
        """End what a writer of planes had left to do that was killed: its data are not to be replaced."""
        if self.has_planes:
            finish_planes(self.format, self.place.store, self.place.path)

    def waits_again(self) -> None:
        """Let the list and the planes of data that are about to be replaced wait for their successor."""
        if self.has_list:
            unsettle(get_format(self.format), self.place)
        if self.has_planes:
            unsettle_planes(self.place, self.format)

    def require_possible(self) -> None:
        """Refuse what can't go along, before anything is written; raises `ConfigError`."""
        if self.has_list and not self.place.is_local:
            what = "exclude lists next to remote data aren't read"
            hint = "Write locally and copy the result, or omit --keep-excluded (keep_excluded=)"
            raise ConfigError(what, path=self.place.path, hint=hint)
        if not self.keep_map:
            return
        require_own_row_map(self.place)
        if len(self.options["inputs"]) < len(self.sources):
            raise ConfigError("a row map identifies inputs by name, but an input is listed twice", path=self.place.path)

    def _write(self) -> None:
        if self.keep_map:
            path, is_there = row_map_path(self.place.path), self.place.exists()
            inputs = dict(self.options["inputs"])
            whole = [len(rows) + len(rows.taken_out) for rows in self.sources]
            counts = dict(zip(inputs, whole, strict=True))
            write_row_map(self.place.store, path + (NEXT if is_there or self.place.store.exists(path) else ""),
                          self._whole_rows(), [*inputs.items()], counts, self.options, None)  # fmt: skip
        if self.has_list:
            put_waiting(get_format(self.format), self.place, list(self._entries()))
        if planes := planes_in(self.sources):
            files = plane_files(self.place, self.format, planes)
            try:
                write_planes(files, [rows for rows in self.sources if isinstance(rows, TokenRows)], self.rows())
            except BaseException:
                files.abort()
                raise

    def _drop(self) -> None:
        if self.has_planes:
            drop_planes(self.place, self.format)
        path = row_map_path(self.place.path)
        gone = [path + NEXT, *([] if self.place.exists() else [path])] if self.keep_map else []
        gone += [waiting_list(self.format, self.place.path)] if self.has_list else []
        for one in gone:
            with contextlib.suppress(NotFound, OSError):
                self.place.store.delete(one)

    def _whole_rows(self) -> Iterator[IntArray]:
        """The same rows, counted with those that are left out."""
        if not any(len(rows.taken_out) for rows in self.sources):
            yield from self.rows()
            return
        missing, before = list[IntArray](), 0
        for rows in self.sources:
            if rows.taken_out.indices is not None:
                missing.append(rows.taken_out.indices + before)
            before += len(rows) + len(rows.taken_out)
        gone = np.concatenate(missing)
        for some in self.rows():
            yield places_in_whole(some, gone)

    def _entries(self) -> Iterator[Entry]:
        """The entries of the output's list, by its own indices."""
        entries, before = dict[int, Entry](), 0
        for rows in self.sources:
            entries |= {one.index + before: one for one in rows.taken_out.carried.entries}
            before += len(rows)
        gone, place = indices_of(replace(one, index=index) for index, one in entries.items()), 0
        for some in self.rows():
            for at in np.flatnonzero(np.isin(some, gone)).tolist():
                yield replace(entries[int(some[at])], index=place + at)
            place += len(some)
