"""The planes of documents that a verb writes: they go along with the tokens, in the order of the output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock._planes import DROP, Plane, planes_of
from penstock.errors import ConfigError, Unsupported
from penstock.formats import get_format
from penstock.formats._planed_writer import PlaneFiles, drop_unfinished
from penstock.formats._planes import EDGE_TOKENS, INDEX, base_at, require_intact, waiting_index
from penstock.reshape.rows import AnyRows, TokenRows
from penstock.store.outputs import output_path
from penstock.store.place import Place
from penstock.store.side_file import move_file
from penstock.types import IntArray

_RUN_TOKENS = 1 << 22


def planes_in(sources: Sequence[AnyRows]) -> dict[str, str]:
    """Name → dtype of the planes that all sources have.

    Raises:
        ConfigError: they have different ones.
    """
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
    return found[0]


def refuse_planes(sources: Sequence[AnyRows], why: str) -> None:
    """Refuse planes where nothing goes along, which `why` says; raises `ConfigError`."""
    for rows in sources:
        planes = planes_in([rows])
        if planes:
            hint = f"Run it without --part, --finish and --executor (part=, finish=, executor=). {DROP}"
            raise ConfigError(
                f"{why}, so planes can't be copied", path=rows.place.path, found=_shown(planes), hint=hint
            )


def require_place_of_planes(place: Place, format: str, planes: dict[str, str]) -> str:
    """What makes an output visible, beside which its planes lie; raises `Unsupported` for a format that has none."""
    base = base_at(format, place.store, output_path(place.store, place.path))
    if base is None:
        what = f"the format {format!r} can't have planes"
        raise Unsupported(what, path=place.path, found=_shown(planes), hint=DROP)
    return base


def plane_files(place: Place, format: str, planes: dict[str, str]) -> PlaneFiles:
    """The planes of an output, to be written; raises as `require_place_of_planes`."""
    require_place_of_planes(place, format, planes)
    return PlaneFiles(get_format(format), place.store, place.path, planes)


def unsettle_planes(place: Place, format: str) -> None:
    """Let the planes of data that are written again wait for these."""
    base = require_place_of_planes(place, format, {})
    index, waiting = base + INDEX, waiting_index(place.store, base)
    if waiting != index and place.store.exists(index):
        move_file(place.store, index, waiting)


def drop_planes(place: Place, format: str) -> None:
    """Remove those of an output that did not come."""
    drop_unfinished(get_format(format), place.store, place.path)


def write_planes(files: PlaneFiles, sources: Sequence[TokenRows], rows: Iterable[IntArray]) -> None:
    """Write the planes of documents, and put them beside the output.

    Memory: some 4 million values, or those of the longest document.

    Args:
        files: of the output.
        sources: of the documents.
        rows: int64[k] each: their numbers in all sources, one source after another, in the order of the output.
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
    """Borders of runs of documents: each of some 4 million tokens, or one longer document."""
    borders = np.flatnonzero(np.diff(np.cumsum(lengths) // _RUN_TOKENS)) + 1
    return zip([0, *borders.tolist()], [*borders.tolist(), len(lengths)], strict=True)


def _joined(plane: Plane, starts: IntArray, lengths: IntArray) -> NDArray[np.generic]:
    """The values of documents, back to back."""
    stops = starts + lengths
    if (starts[1:] == stops[:-1]).all():
        return plane.read(int(starts[0]), int(stops[-1]))
    ranges = zip(starts.tolist(), stops.tolist(), strict=True)
    return np.concatenate([plane.read(start, stop) for start, stop in ranges])


def _ends(starts: IntArray, lengths: IntArray) -> list[tuple[int, int]]:
    """(first token, tokens) of the last documents of a run: as many as hold the tokens of an edge."""
    enough = int(np.searchsorted(np.cumsum(lengths[::-1]), EDGE_TOKENS)) + 1
    return list(zip(starts[-enough:].tolist(), lengths[-enough:].tolist(), strict=True))


def _last(ends: list[tuple[TokenRows, int, int]]) -> list[tuple[TokenRows, int, int]]:
    """Of these as many of the last ones as hold the tokens of an edge."""
    held = np.cumsum([length for _, _, length in reversed(ends)])
    return ends[-(int(np.searchsorted(held, EDGE_TOKENS)) + 1) :]


def _shown(planes: dict[str, str]) -> str:
    return ", ".join(f"{name} ({dtype})" for name, dtype in planes.items()) or "none"
