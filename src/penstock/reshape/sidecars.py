"""Sidecars of an output: its row map, and the planes and exclude list that are copied from the sources.

All follow from the numbers of the source rows in the order of the output. Samples that are copied although they are
excluded are excluded in the output: its list waits from before the commit until the data is visible, and nobody can
open the data in between.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock._tokens import DROP, Plane, planes_of
from penstock.engine.rows import StoredRows
from penstock.errors import ConfigError, NotFound, Unsupported
from penstock.formats import finish_planes, get_format
from penstock.formats._excluded import put_waiting, settle_waiting, unsettle, waiting_list
from penstock.formats._exclusions import places_in_whole
from penstock.formats._planed_writer import PlaneFiles, drop_unfinished, settle_planes
from penstock.formats._planes import EDGE_TOKENS, INDEX, base_at, require_intact, waiting_index
from penstock.reshape.rows import TokenRows
from penstock.store.exclude_list import Entry, indices_of
from penstock.store.names import NEXT
from penstock.store.outputs import output_path
from penstock.store.place import Place
from penstock.store.row_map import require_own_row_map, row_map_path, settle_row_map, write_row_map
from penstock.store.side_file import move_file
from penstock.store.unfinished import Once, remove_mark
from penstock.types import IntArray, Manifest

_RUN_TOKENS = 1 << 22


def planes_in(sources: Sequence[StoredRows]) -> dict[str, str]:
    """Return name → dtype of the planes that all sources have; raises `ConfigError` if they differ."""
    found = [
        {name: one.dtype.name for name, one in planes_of(rows.source).items()} if isinstance(rows, TokenRows) else {}
        for rows in sources
    ]
    for rows, here in zip(sources, found, strict=True):
        if here != found[0]:
            what = "sources with different planes"
            raise ConfigError(
                what,
                path=rows.place.path,
                found=_shown(here),
                expected=f"{_shown(found[0])}, as in the first",
                hint=DROP,
            )
    return found[0] if found else {}


def require_place_of_planes(place: Place, format: str, planes: dict[str, str]) -> str:
    """Return the file that planes are next to; raises `Unsupported` if the format can't have planes."""
    base = base_at(format, place.store, output_path(place.store, place.path))
    if base is None:
        what = f"the format {format!r} can't have planes"
        raise Unsupported(what, path=place.path, found=_shown(planes), hint=DROP)
    return base


def plane_files(place: Place, format: str, planes: dict[str, str]) -> PlaneFiles:
    require_place_of_planes(place, format, planes)
    return PlaneFiles(get_format(format), place.store, place.path, planes)


def unsettle_planes(place: Place, format: str) -> None:
    """Hide the planes of data that is about to be replaced."""
    base = require_place_of_planes(place, format, {})
    index, waiting = base + INDEX, waiting_index(place.store, base)
    if waiting != index and place.store.exists(index):
        move_file(place.store, index, waiting)


def drop_planes(place: Place, format: str) -> None:
    drop_unfinished(get_format(format), place.store, place.path)


def write_planes(files: PlaneFiles, sources: Sequence[TokenRows], rows: Iterable[IntArray]) -> None:
    """Write the planes of an output. Memory: 4 million values, or those of the longest document.

    Args:
        files: planes of the output.
        sources: sources of the documents.
        rows: int64[k] each: row numbers, counted through all sources, in the order of the output.
    """
    for one in sources:
        require_intact(planes_of(one.source).values())
    begins = np.cumsum([0, *map(len, sources)])
    first = np.empty(0, np.uint32)
    last: list[tuple[TokenRows, int, int]] = []
    total = 0
    for block in rows:
        numbers = np.searchsorted(begins, block, side="right") - 1
        for some in np.split(np.arange(len(block)), np.flatnonzero(np.diff(numbers)) + 1) if len(block) else ():
            number = int(numbers[some[0]])
            source = sources[number]
            starts, lengths = source.ranges(block[some] - begins[number])
            for a, b in _runs(lengths):
                count = int(lengths[a:b].sum())
                taken = {
                    name: _joined(one, starts[a:b], lengths[a:b]) for name, one in planes_of(source.source).items()
                }
                files.write(files.as_stored(taken, count))
                for start, length in zip(starts[a:b].tolist(), lengths[a:b].tolist(), strict=True):
                    if len(first) >= EDGE_TOKENS:
                        break
                    head = source.read(start, start + min(length, EDGE_TOKENS - len(first)))
                    first = np.concatenate([first, head]).astype(np.uint32)
                last = _last([*last, *((source, *one) for one in _ends(starts[a:b], lengths[a:b]))])
                total += count
    ends = [one.read(start + max(0, length - EDGE_TOKENS), start + length) for one, start, length in last]
    files.publish(total, first, np.concatenate([np.empty(0, np.uint32), *ends])[-EDGE_TOKENS:].astype(np.uint32))


def _runs(lengths: IntArray) -> Iterable[tuple[int, int]]:
    """Return borders of runs of documents, each of about 4 million tokens or one longer document."""
    borders = np.flatnonzero(np.diff(np.cumsum(lengths) // _RUN_TOKENS)) + 1
    return zip([0, *borders.tolist()], [*borders.tolist(), len(lengths)], strict=True)


def _joined(plane: Plane, starts: IntArray, lengths: IntArray) -> NDArray[np.generic]:
    stops = starts + lengths
    if (starts[1:] == stops[:-1]).all():
        return plane.read(int(starts[0]), int(stops[-1]))
    ranges = zip(starts.tolist(), stops.tolist(), strict=True)
    return np.concatenate([plane.read(start, stop) for start, stop in ranges])


def _ends(starts: IntArray, lengths: IntArray) -> list[tuple[int, int]]:
    """Return (first token, tokens) of the last documents of a run that hold the tokens of an edge."""
    enough = int(np.searchsorted(np.cumsum(lengths[::-1]), EDGE_TOKENS)) + 1
    return list(zip(starts[-enough:].tolist(), lengths[-enough:].tolist(), strict=True))


def _last(ends: list[tuple[TokenRows, int, int]]) -> list[tuple[TokenRows, int, int]]:
    held = np.cumsum([length for _, _, length in reversed(ends)])
    return ends[-(int(np.searchsorted(held, EDGE_TOKENS)) + 1) :]


def _shown(planes: dict[str, str]) -> str:
    return ", ".join(f"{name} ({dtype})" for name, dtype in planes.items()) or "none"


RowNumbers = Callable[[], Iterable[IntArray]]
"""int64[k] each: numbers of rows, counted through all sources, in the order of the output."""

ResultT = TypeVar("ResultT")
_STEP = 1 << 20


def recorded(made_by: Mapping[str, Any], sources: Sequence[StoredRows], *, keep_map: bool) -> dict[str, Any]:
    """Return the record for the side file: command and options, and which sidecars are copied."""
    lists = [rows.excluded.carried.digest for rows in sources if rows.excluded.carried.entries]
    kept = {"keep_excluded": lists} if lists else {}
    return {**made_by, **({"keep_map": True} if keep_map else {}), **kept}


def refuse_sidecars(options: dict[str, Any], keep_map: bool, why: str) -> None:
    """Raise `ConfigError` for a row map or excluded samples that can't be copied; `why` is the reason.

    Removes `keep_excluded` from the options.
    """
    asked = {"keep_map (--keep-map)": keep_map, "keep_excluded (--keep-excluded)": options.pop("keep_excluded", None)}
    named = " and ".join(name for name, is_asked in asked.items() if is_asked)
    if named:
        hint = "Omit it. To copy one dataset with its exclude list, use `penstock convert --keep-excluded`"
        raise ConfigError(f"{why}, so rows can't be tracked", found=named, hint=hint)


def has_sidecars(sources: Sequence[StoredRows], *, keep_map: bool) -> bool:
    return keep_map or any(rows.excluded.carried.entries for rows in sources) or bool(planes_in(sources))


def all_rows(first: int, stop: int) -> Iterator[IntArray]:
    for start in range(first, stop, _STEP):
        yield np.arange(start, min(stop, start + _STEP))


def rows_in_order(rows_at: Callable[[int, int], IntArray], count: int) -> Iterator[IntArray]:
    """Return the rows at all places of an output."""
    for start in range(0, count, _STEP):
        yield rows_at(start, min(count, start + _STEP))


@dataclass(frozen=True, slots=True)
class Sidecars:
    """Sidecars of one output.

    Attributes:
        place, format: the output.
        sources: its sources.
        options: `inputs` and `options` as its side file has them, and the tokenizer.
        rows: numbers of its rows, counted through all sources.
        keep_map: write the row map.
    """

    place: Place
    format: str
    sources: Sequence[StoredRows]
    options: Mapping[str, Any] = field(repr=False)
    rows: RowNumbers
    keep_map: bool

    @property
    def has_list(self) -> bool:
        """Whether excluded samples are copied."""
        return any(rows.excluded.carried.entries for rows in self.sources)

    @property
    def has_planes(self) -> bool:
        return bool(planes_in(self.sources))

    def is_of(self, manifest: Manifest) -> bool:
        """Return whether data was made by this job from these inputs; else it is the data to replace."""
        said, options = manifest.options, self.options["options"].items()
        return dict(manifest.inputs) == self.options["inputs"] and all(said.get(key) == value for key, value in options)

    def commit(self, once: Once[Manifest], commit: Callable[[], Manifest]) -> Manifest:
        """Make the output visible with its sidecars."""
        try:
            with self.written(once.published):
                return once.commit(lambda: self.settled(commit()), goes_on=self.has_list or self.has_planes)
        except BaseException:
            if not self._is_made(once.published):
                remove_mark(once.store, once.path)
            raise

    @contextlib.contextmanager
    def written(self, published: Callable[[Any], Manifest | None]) -> Generator[None]:
        """Write sidecars before the block makes the output visible; remove them if it fails."""
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
        """Give sidecars their final names; remove those of replaced data."""
        if self.place.is_local or self.keep_map:
            settle_row_map(self.place, manifest)
        if self.has_list:
            settle_waiting(get_format(self.format), self.place)
        if self.has_planes:
            settle_planes(get_format(self.format), self.place.store, self.place.path)
        return manifest

    def stands(self) -> None:
        """Complete the planes of a killed run whose data is visible."""
        if self.has_planes:
            finish_planes(self.format, self.place.store, self.place.path)

    def waits_again(self) -> None:
        """Hide list and planes of data that is about to be replaced."""
        if self.has_list:
            unsettle(get_format(self.format), self.place)
        if self.has_planes:
            unsettle_planes(self.place, self.format)

    def require_possible(self) -> None:
        """Raise `ConfigError` for sidecars that can't be written."""
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
            whole = [len(rows) + len(rows.excluded) for rows in self.sources]
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
        """Return the rows numbered with the excluded ones."""
        if not any(len(rows.excluded) for rows in self.sources):
            yield from self.rows()
            return
        missing, before = list[IntArray](), 0
        for rows in self.sources:
            if rows.excluded.indices is not None:
                missing.append(rows.excluded.indices + before)
            before += len(rows) + len(rows.excluded)
        gone = np.concatenate(missing)
        for some in self.rows():
            yield places_in_whole(some, gone)

    def _entries(self) -> Iterator[Entry]:
        """Return the entries of the output's exclude list."""
        entries, before = dict[int, Entry](), 0
        for rows in self.sources:
            entries |= {one.index + before: one for one in rows.excluded.carried.entries}
            before += len(rows)
        gone, place = indices_of(replace(one, index=index) for index, one in entries.items()), 0
        for some in self.rows():
            for at in np.flatnonzero(np.isin(some, gone)).tolist():
                yield replace(entries[int(some[at])], index=place + at)
            place += len(some)
