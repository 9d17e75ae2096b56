"""Check the datasets of a recipe together: repeated datasets, and references to missing files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from penstock._access import place_of
from penstock._kinds import is_lane_stream, is_stream
from penstock._secrets import redact
from penstock.errors import NotFound, PenstockError, UnsafeData
from penstock.formats.samples.folder.files import MEDIA
from penstock.formats.samples.folder.source import FolderSource
from penstock.mix.auxiliary import AuxSource, AuxStream
from penstock.mix.repeats import repeats_by_content
from penstock.types import Depth, Finding

_MOST_SAMPLES = 100_000
"""Number of samples of a source that are checked at depth `sample`."""
_MOST_NAME = 1024


def check_run(data: Any, path: str, depth: Depth) -> list[Finding]:
    """Return findings for repeated datasets and for references to files that no auxiliary store has.

    Args:
        data: the source or stream of a recipe.
        path: the recipe.
        depth: `quick` reads no samples, `sample` up to 100,000 of each source with auxiliary stores, `full` all.
    """
    found = [Finding("recipe.repeated", "warning", path, None, text) for text in repeats_by_content(data)]
    most = None if depth == "full" else 0 if depth == "quick" else _MOST_SAMPLES
    return found + list(_missing_files(data, {}, most))


def _missing_files(node: Any, stores: Mapping[str, Any], most: int | None) -> Iterator[Finding]:
    if isinstance(node, AuxSource | AuxStream):
        yield from _missing_files(node.below, {**stores, **node.aux}, most)
    elif is_stream(node) or is_lane_stream(node) or (not stores and node.children()):
        for child in node.children().values():
            yield from _missing_files(child, stores, most)
    elif stores:
        yield from _missing_in(node, stores, most)


def _missing_in(source: Any, stores: Mapping[str, Any], most: int | None) -> Iterator[Finding]:
    for index in range(len(source) if most is None else min(len(source), most)):
        try:
            sample = source[index]
        except PenstockError:  # the check of the dataset reports it
            continue
        for name in dict.fromkeys(islice(_references(sample), 10_000)):
            if any(_has_file(store, name) for store in stores.values()):
                continue
            place = place_of(source, index)
            extent = None if not place.extents else place.extents[0]
            where = str(source) if extent is None else redact(extent.path)
            label = f"sample {index}" if place.key is None else f"sample {place.key!r}"
            expected = f"a file in {' or '.join(sorted(stores))}"
            fix = "Add the file, or remove the sample: `penstock exclude`"
            offset_bytes = None if extent is None else extent.offset_bytes
            yield Finding(
                "recipe.missing-file", "error", where, offset_bytes, f"{label} refers to {name!r}", expected, fix
            )


def _references(value: Any) -> Iterator[str]:
    """Yield the texts in a sample that are names of media files; JSON that isn't decoded is decoded."""
    if isinstance(value, str):
        if len(value) <= _MOST_NAME and value.lower().endswith(MEDIA) and "\n" not in value and "://" not in value:
            yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            if isinstance(name, str) and name.startswith("__"):
                continue
            if isinstance(inner, bytes) and isinstance(name, str) and name.rpartition(".")[2] == "json":
                try:
                    inner = msgspec.json.decode(inner)
                except (msgspec.DecodeError, RecursionError):  # the check of the dataset reports it
                    continue
            yield from _references(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _references(inner)


def _has_file(store: Any, name: str) -> bool:
    try:
        if isinstance(store, FolderSource):
            return store.has_file(name)
        store.get(name)
    except (NotFound, UnsafeData):
        return False
    return True
