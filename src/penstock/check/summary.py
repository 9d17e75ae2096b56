"""`info`: describes a dataset from its headers, index and side file; reads at most a few tokens."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import msgspec
import numpy as np

from penstock._access import samples_of
from penstock._kinds import is_token_source
from penstock._tokens import planes_of
from penstock.abc import Source, SupportsPlaces, TokenSource
from penstock.errors import ConfigError, PenstockError, UnsafeData
from penstock.formats import find_format
from penstock.formats._exclusions import excluded_count, excluded_list, stored
from penstock.formats._opening import open_at, open_options, skipping_invalid_lines
from penstock.store.place import Place, dataset_at
from penstock.types import IntArray, Manifest, Sample

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)

_SAMPLED_DOCS = 1024
_MOST_FIELDS = 1000
_FIRST_SAMPLES = 100
_FIRST_BYTES = 1 << 26
_OPEN = {"webdataset": {"raw": True}, "jsonl": {}, "jsonl-files": {}}
"""Formats whose samples differ in their fields → options for reading the first samples."""


@runtime_checkable
class _HasDetails(Protocol):
    """A source with details of its storage."""

    def details(self) -> dict[str, Any]:
        """Return details that `info` shows: name → number, text, list of texts, or dict of texts."""
        ...


@skipping_invalid_lines()
def summarise(path: str | os.PathLike[str], *, format: str | None = None, **options: Any) -> dict[str, Any]:
    """Describe a dataset as plain JSON values.

    Keys: `path, format, size_bytes, samples, schema, fingerprint`; `manifest`, that of the side file, or None; and
    `details`, if the format has any. Token datasets also have `tokens, token_bytes, max_token_id, eos_id, eos_rule`,
    `lengths` (see `length_summary`), and `planes` (name → dtype) if there are any. `samples` and `lengths` are None if
    document boundaries are unknown. Datasets with excluded samples have `excluded` and `exclude_list`.

    If each sample has its own fields, `first_samples` contains how many of the first 100 samples were read, and the
    fraction that has each field, for the 1,000 most frequent fields; `more_fields` is the number of others. Memory: 16
    bytes per document.

    Args:
        path: file, directory or URL.
        format: format name; detected by default.
        options: options of `penstock.open`.

    Raises:
        NotFound: there is nothing at `path`.
        FormatError: the dataset can't be opened.

    Examples:
        >>> from penstock.check import summarise
        >>> summary = summarise("corpus.pbin")
        >>> summary["format"], summary["samples"], summary["tokens"], summary["eos_id"]
        ('pbin', 6, 45, 0)
    """
    given = open_options(options)
    place = dataset_at(path, follow_links=given.follow_links)
    chosen = find_format(place, format, given)
    try:
        source = open_at(chosen, place.store, place.path, given)
    except UnsafeData:
        if chosen.name != "webdataset" or given.raw:
            raise
        # Samples are made by code of the dataset: describe its stored parts instead.
        source = open_at(chosen, place.store, place.path, replace(given, raw=True))
    manifest = manifest_of(source)
    found: dict[str, Any] = {
        "path": os.fspath(path),
        "format": chosen.name,
        "size_bytes": _size_bytes(place, source),
        "samples": None,
        "schema": [msgspec.to_builtins(field) for field in source.schema.fields],
        "fingerprint": source.fingerprint,
    }
    if excluded_count(source):
        found |= {"excluded": excluded_count(source), "exclude_list": excluded_list(source).path}
    if is_token_source(source):
        found |= _tokens(source, manifest, options.get("eos_id"))
        planes = {name: str(one.dtype) for name, one in planes_of(source).items()}
        found |= {"planes": planes} if planes else {}
    else:
        found["samples"] = len(source)
    whole = stored(source)
    if isinstance(whole, _HasDetails):
        found["details"] = whole.details()
    if chosen.name in _OPEN and given.columns is None:
        stored_as = replace(given, **_OPEN[chosen.name])
        as_stored = source if stored_as == given else open_at(chosen, place.store, place.path, stored_as)
        found["first_samples"] = _first_samples(as_stored)
    return found | {"manifest": None if manifest is None else msgspec.to_builtins(manifest)}


def manifest_of(source: Source[Sample]) -> Manifest | None:
    """Return the manifest of a source's side file, if it has one."""
    manifest = getattr(source, "manifest", None)
    return manifest if isinstance(manifest, Manifest) else None


def length_summary(lengths: IntArray) -> dict[str, Any]:
    """Summarize lengths of documents in tokens, int64[n_docs], as plain JSON values; empty without documents.

    Keys: `mean`; `quantiles`, the text of each of `QUANTILES` → tokens; `histogram`, a list of
    `(from, to, documents)` for lengths of 0, 1, 2 to 3, 4 to 7, …
    """
    if not len(lengths):
        return {}
    found = np.quantile(lengths, QUANTILES, method="lower").tolist()
    bits = np.frexp(lengths.astype(np.float64))[1]  # 0 for 0, 1 for 1, 2 for 2 and 3, …
    counts = np.bincount(bits).tolist()
    first = next(place for place, count in enumerate(counts) if count)
    return {
        "mean": float(lengths.mean()),
        "quantiles": {f"{q:g}": int(value) for q, value in zip(QUANTILES, found, strict=True)},
        "histogram": [
            ((1 << bit) // 2, max((1 << bit) - 1, 0), count) for bit, count in enumerate(counts) if bit >= first
        ],
    }


def _first_samples(source: Source[Sample]) -> dict[str, Any]:
    """Return the fraction of the first samples that has each field. Unreadable samples are skipped."""
    stop, size_bytes = 0, 0
    while stop < min(len(source), _FIRST_SAMPLES) and size_bytes < _FIRST_BYTES:
        size_bytes += _size_of(source, stop)
        stop += 1
    try:
        samples = samples_of(source, np.arange(stop))
    except (PenstockError, ValueError):
        samples = [sample for index in range(stop) for sample in _readable(source, index)]
    counts = Counter(name for sample in samples for name in sample if not name.startswith("__"))
    fields = {name: count / len(samples) for name, count in counts.most_common(_MOST_FIELDS)}
    more = {"more_fields": len(counts) - len(fields)} if len(counts) > len(fields) else {}
    return {"samples": len(samples), "fields": fields, **more}


def _size_of(source: Source[Sample], index: int) -> int:
    with contextlib.suppress(PenstockError):
        if isinstance(source, SupportsPlaces):
            return sum(one.length_bytes for one in source.place_of(index).extents or ())
    return 0


def _readable(source: Source[Sample], index: int) -> Iterator[Sample]:
    with contextlib.suppress(PenstockError, ValueError):
        yield source[index]


def _tokens(source: TokenSource, manifest: Manifest | None, given_eos_id: int | None) -> dict[str, Any]:
    largest = getattr(source, "max_token_id", None)
    if largest is None and manifest is not None:
        largest = manifest.max_token_id
    found: dict[str, Any] = {
        "tokens": source.num_tokens,
        "token_bytes": source.dtype.itemsize,
        "max_token_id": largest,
        "eos_id": source.eos_id,
    }
    try:
        doc_starts = source.doc_starts
    except ConfigError:
        return found | {"samples": None, "lengths": None, "eos_rule": "unknown: specify an id with --eos-id"}
    rule = eos_rule(source, doc_starts, given_eos_id)
    return found | {"samples": len(doc_starts) - 1, "lengths": length_summary(np.diff(doc_starts)), "eos_rule": rule}


def eos_rule(source: TokenSource, doc_starts: IntArray, given: int | None) -> str:
    """Describe how documents end: as recorded, or else as up to 1,024 of them do."""
    if source.eos_id is not None:
        source_of_id = "as given" if given is not None else "as recorded in the side file"
        return f"documents end with id {source.eos_id}, {source_of_id}"
    manifest = manifest_of(source)
    if manifest is not None and manifest.options.get("eos") == "none":
        return "documents have no EOS token, as recorded in the side file"
    docs = np.unique(np.linspace(0, len(doc_starts) - 2, _SAMPLED_DOCS).astype(np.int64)) if len(doc_starts) > 1 else []
    ends = doc_starts[np.asarray(docs, np.int64) + 1] - 1
    ends = ends[ends >= doc_starts[docs]] if len(docs) else ends
    if not len(ends):
        return "no documents to inspect"
    last = np.unique(source.gather(ends, 1))
    if len(last) == 1 and len(ends) > 1:
        return f"not recorded; all {len(ends):,} checked documents end with id {int(last[0])}"
    return "not recorded; documents end with different ids" if len(ends) > 1 else "not recorded"


def _size_bytes(place: Place, source: Source[Sample]) -> int:
    size_bytes = getattr(source, "size_bytes", None)  # datasets that aren't one file or directory have it
    if isinstance(size_bytes, int):
        return size_bytes
    store = place.store
    return sum(map(store.size, store.list(place.path))) if place.is_folder() else store.size(place.path)
