"""Which samples of a dataset were made of which samples of another, as far as side files and row maps tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from penstock._limits import MOST_NODES_DEEP
from penstock._secrets import logger
from penstock.errors import ConfigError, PenstockError
from penstock.formats import open_source
from penstock.formats._excluded import files_of_lines
from penstock.formats._excluding import stored
from penstock.formats.jsonl.scan import line_numbers
from penstock.look.samples import Dataset, open_dataset
from penstock.look.trace import digests_like, is_same, kind_of
from penstock.reshape.rows import Lines
from penstock.store.exclude_list import NO_LIST
from penstock.store.place import Place
from penstock.store.resolve import same_file
from penstock.store.row_map import read_row_map
from penstock.types import IntArray, Manifest

_log = logger()

_IN_ORDER = (None, "convert", "merge")
"""Commands after which samples stand as those of their inputs do, one input after another; None: `pack`."""


Sources: TypeAlias = Sequence[tuple[Dataset, IntArray]]
"""A dataset and samples of it; of several files all as one, and each by itself: data may have been made of either."""


def documents_made_of(made: Dataset, sources: Sources) -> dict[int, str | None]:
    """Index → None, of the samples of `made` that were made of samples of `sources`.

    By row maps, where data were made with `keep_map`. Else a sample is that of the same number among those of all
    inputs, if it was made by what keeps them all in order. What lies between, such as the lines that a filter left of
    the source and that were packed then, is found as `penstock lineage` finds it.

    Args:
        made: a dataset.
        sources: what it was made of, or a part of that, or of what that was made of; at least one.

    Raises:
        ConfigError: side files don't say it.
    """
    found = _made_of(made, sources, ())
    return dict.fromkeys(found.tolist())


def _made_of(made: Dataset, sources: Sources, above: tuple[str, ...]) -> IntArray:
    """int64[k], rising: the samples of `made`."""
    path, manifest = made.place.path, getattr(stored(made.source), "manifest", None)
    if not isinstance(manifest, Manifest) or not manifest.inputs:
        raise _unknown(path, "no side file records its inputs")
    first = sources[0][0].place
    named = _named(manifest, sources)
    places = {
        one: _found(one, digest, made.place, first) for one, digest in manifest.inputs.items() if one not in named
    }
    rows = named | dict(_between(made, places, sources, above))
    if not rows:
        inputs = ", ".join(manifest.inputs)[:200]
        raise _unknown(path, f"its side file records other inputs, or {first.shown} changed: {inputs}")
    if gone := [one for one, place in places.items() if place is None]:
        what = "%s: missing or changed inputs, which may also contain these samples: %s"
        _log.warning(what, path, ", ".join(gone)[:200])
    row_map = read_row_map(made.place, manifest)
    if row_map is None:
        begins = _begins(made, manifest, {name: len(dataset) for name, (dataset, _) in rows.items()}, places)
        return np.unique(np.concatenate([begins[name] + some for name, (_, some) in rows.items()]))
    numbers = {one.name: number for number, one in enumerate(row_map.inputs)}
    found = [
        row_map.samples_of(numbers[name], _rows_of(dataset, some, row_map.inputs[numbers[name]].rows))
        for name, (dataset, some) in rows.items()
    ]
    return np.unique(np.concatenate(found))


def _named(manifest: Manifest, sources: Sources) -> dict[str, tuple[Dataset, IntArray]]:
    """Inputs that are sources; a file of the same content has the same samples, whatever it is called."""
    found: dict[str, tuple[Dataset, IntArray]] = {}
    for source, indices in sources:
        now: dict[str, tuple[str, ...]] = {}
        for name, digest in manifest.inputs.items():
            if kind_of(digest) not in now:
                now[kind_of(digest)] = digests_like(source.place, digest)
            if digest in now[kind_of(digest)]:
                known = found[name][1] if name in found else indices
                found[name] = source, np.union1d(known, indices)
    return found


def _between(
    made: Dataset, places: Mapping[str, Place | None], sources: Sources, above: tuple[str, ...]
) -> Iterator[tuple[str, tuple[Dataset, IntArray]]]:
    """The other inputs that hold sources among their files, or were made of them, and which samples these are."""
    if len(above) >= MOST_NODES_DEEP or made.place.absolute in above:
        return
    for name, place in places.items():
        if place is None:
            continue
        try:
            dataset = open_dataset(place.path, {})
            held = _held(dataset, sources)
            rows = _made_of(dataset, sources, (*above, made.place.absolute)) if held is None else held
            yield name, (dataset, rows)
        except PenstockError:
            continue  # it was made of other data, or it can't be told


def _held(dataset: Dataset, sources: Sources) -> IntArray | None:
    """int64[k], rising: samples of a folder of JSONL files that are those of sources; None where it holds none."""
    found = [
        indices + first
        for path, first, stop in files_of_lines(stored(dataset.source))
        for source, indices in sources
        if same_file(path, source.place.path) and len(source) == stop - first
    ]
    return np.unique(np.concatenate(found)) if found else None


def _rows_of(dataset: Dataset, indices: IntArray, num_rows: int) -> IntArray:
    """int64[k]: the numbers that a row map gives to samples: of lines, where an index leaves some out."""
    source: Any = stored(dataset.source)
    return line_numbers(source, indices) if len(dataset) != num_rows and isinstance(source, Lines) else indices


def _begins(
    made: Dataset, manifest: Manifest, known: Mapping[str, int], places: Mapping[str, Place | None]
) -> dict[str, int]:
    """Input → number of its first sample among those of all; raises `ConfigError` where not all stand in order."""
    path, command = made.place.path, manifest.options.get("command")
    if command not in _IN_ORDER or "excluded" in manifest.options:
        raise _unknown(path, f"it was made by {command or 'pack'}, which changed the order or skipped samples")
    order: Any = manifest.options.get("sources") if command == "merge" else sorted(manifest.inputs)
    if sorted(order or ()) != sorted(manifest.inputs):
        if len(manifest.inputs) > 1:
            raise _unknown(path, "its side file doesn't record the merge order")
        order = list(manifest.inputs)
    counts = dict(known)
    for name, place in places.items():
        if name not in counts:
            if place is None:
                raise _unknown(path, f"its input {name} is missing or changed")
            counts[name] = len(open_source(place.path, excludes=NO_LIST))
    total = sum(counts.values())
    if total != len(made):
        raise _unknown(path, f"{len(made)} samples from {total}: some produced none or several")
    return dict(zip(order, accumulate((counts[name] for name in order), initial=0), strict=False))


def _found(name: str, digest: str, *near: Place) -> Place | None:
    """An input, which lies in one of these places, beside it, or in the folder above."""
    if any(part in ("", ".", "..") for part in name.split("/")):
        return None  # a side file is anybody's: it leads out of no folder
    places = (folder.child(name) for one in near for folder in (one, one.folder(), one.folder().folder()))
    return next((one for one in places if one.exists() and is_same(one, digest)), None)


def _unknown(path: str, why: str) -> ConfigError:
    hint = "Exclude by index there (--indices; see `penstock find --text`), or rebuild it with --keep-map"
    return ConfigError("it is unknown which documents were made from these samples", path=path, found=why, hint=hint)
