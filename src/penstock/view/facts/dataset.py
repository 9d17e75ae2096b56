"""Overview of a dataset, from its index and side file; the data is only scanned on request.

Costs the same at any size: at most 64 reads for a fingerprint, 1,000 file sizes (32 if remote), 512 pages of an index
of lengths.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from penstock.check.summary import eos_rule, manifest_of
from penstock.errors import ConfigError, PenstockError
from penstock.formats import get_format
from penstock.formats._exclusions import excluded_count, excluded_list, stored
from penstock.formats.samples.webdataset.manifest import manifest_of_tars
from penstock.formats.samples.webdataset.nvmeta import read_info, read_splits, split_shards
from penstock.store.place import Place
from penstock.types import Field, Manifest
from penstock.view.facts.bounds import Figure, at_hand
from penstock.view.facts.disk import MOST_FILES, Disk, Shards, disk_of, disk_of_listed, shards_of
from penstock.view.facts.lengths import Lengths, lengths_of
from penstock.view.facts.opening import Opened
from penstock.view.facts.panel import describe_error

MOST_SPLITS = 64
NO_INDEX = "no index"
"""Reason for an unknown value that one pass over the data would provide."""

_SPLIT_MARKS = ("index.json", "state.json", ".zgroup", "zarr.json")


@dataclass(frozen=True, slots=True)
class Split:
    """A split: its name, its samples (None if unknown), and whether it is open."""

    name: str
    samples: int | None
    is_open: bool


@dataclass(frozen=True, slots=True)
class TokenFacts:
    count: Figure
    token_bytes: int
    max_token_id: int | None
    eos_id: int | None
    eos_rule: str
    tokenizer: str | None
    tokenizer_digest: str | None


@dataclass(frozen=True, slots=True)
class Overview:
    """Overview of a dataset.

    Attributes:
        name: its location, without secrets.
        fields: fields of a sample; `is_open`: whether there may be others.
        tokens: None if samples aren't token documents.
        lengths: None if unknown.
        splits: empty if the format has no splits.
        shards, disk: None if not applicable.
        fingerprint: None if not requested or impossible.
        excluded: number of excluded samples; `exclude_list`: the list.
        manifest: its side file; None without one.
        details: further facts of its format: name → number, text, list of texts, dict of texts.
        unknown: facts that take a scan, with the command that determines them.
    """

    name: str
    format: str
    samples: Figure
    fields: tuple[Field, ...]
    is_open: bool
    tokens: TokenFacts | None
    lengths: Lengths | None
    splits: tuple[Split, ...]
    shards: Shards | None
    disk: Disk | None
    fingerprint: Figure
    excluded: int
    exclude_list: str | None
    manifest: Manifest | None
    details: Mapping[str, Any]
    unknown: tuple[str, ...]


def overview(opened: Opened, *, fingerprint: bool = True) -> Overview:
    source: Any = opened.source
    manifest = manifest_of(source)
    size_bytes = None if manifest is None else manifest.size_bytes
    disk = _disk(opened, size_bytes)
    size_bytes = size_bytes if disk is None or disk.size_bytes.value is None else disk.size_bytes.value
    samples = samples_of(opened, size_bytes)
    known = samples.value is not None
    is_local = opened.place is None or opened.place.is_local
    lengths = lengths_of(source, samples.value, size_bytes=size_bytes, is_local=is_local, fine=True) if known else None
    return Overview(
        name=opened.name,
        format=opened.format,
        samples=samples,
        fields=source.schema.fields,
        is_open=source.schema.open,
        tokens=_tokens(opened, manifest, size_bytes) if opened.is_tokens else None,
        lengths=lengths,
        splits=splits_of(opened),
        shards=at_hand(lambda: shards_of(source), size_bytes) if known else None,
        disk=disk,
        fingerprint=_fingerprint(source, size_bytes) if fingerprint else Figure(None, "not requested"),
        excluded=excluded_count(source),
        exclude_list=excluded_list(source).path if excluded_count(source) else None,
        manifest=side_file_of(opened),
        details=_details(opened),
        unknown=tuple(_unknown(opened, samples, lengths)),
    )


def _disk(opened: Opened, known_bytes: int | None) -> Disk | None:
    """Return the files on disk; for many files, those listed at opening."""
    if opened.place is None:
        return None
    _, files = opened.text_files or (None, ())
    if len(files) > MOST_FILES:
        return disk_of_listed(opened.place, files, opened.text_stops)
    return disk_of(opened.place, opened.format, opened.source, known_bytes)


def side_file_of(opened: Opened) -> Manifest | None:
    """Return the side file of a dataset; for tars, that of all splits."""
    found = manifest_of(opened.source)
    if found is None and opened.format == "webdataset" and opened.place is not None:
        with contextlib.suppress(PenstockError):  # a damaged one is reported by a check
            return manifest_of_tars(opened.place.store, opened.place.path.rstrip("/") or opened.place.path)
    return found


def samples_of(opened: Opened, size_bytes: int | None = None) -> Figure:
    """Return the number of samples from the index, else the side file; see `count_of`."""
    found, manifest = count_of(opened, size_bytes), manifest_of(opened.source)
    if found.value is not None or found.how != NO_INDEX or manifest is None:
        return found
    return Figure(manifest.num_samples, "side file")


def count_of(opened: Opened, size_bytes: int | None = None) -> Figure:
    """Return how many samples are addressable by number, unless that takes a scan.

    Args:
        opened: the dataset.
        size_bytes: its size, if known: small datasets are scanned.
    """
    manifest = manifest_of(opened.source)
    try:
        found = at_hand(lambda: len(opened.source), size_bytes)
    except ConfigError:
        return Figure(None, "not stored in the data: specify the id that ends documents")
    except PenstockError as error:
        return Figure(None, describe_error(error))
    if found is None:
        return Figure(None, NO_INDEX)
    return Figure(found, "side file" if manifest is not None and manifest.num_samples == found else "index")


def numbered(opened: Opened) -> int:
    """Return how many samples are addressable by number.

    Raises:
        ConfigError: a scan would be necessary, or the number can't be determined.
    """
    found = count_of(opened, opened.size_bytes)
    if found.value is not None:
        return int(found.value)
    if found.how != NO_INDEX:
        raise ConfigError("the number of samples is unknown", path=opened.name, found=found.how)
    verb = "index" if opened.format.startswith("jsonl") else "info"
    hint = f"`penstock {verb} {opened.shell_name}` creates it in one pass over the data"
    raise ConfigError("these samples have no indices, because there is no index file", path=opened.name, hint=hint)


def _tokens(opened: Opened, manifest: Manifest | None, size_bytes: int | None) -> TokenFacts:
    source: Any = opened.source
    largest = getattr(source, "max_token_id", None)
    if largest is None and manifest is not None:
        largest = manifest.max_token_id
    try:
        rule = at_hand(lambda: eos_rule(source, source.doc_starts, opened.options.get("eos_id")), size_bytes)
    except ConfigError:
        rule = "unknown: specify an id with --eos-id"
    except PenstockError:  # the number of samples reports the error
        rule = "unknown: the document index can't be read"
    return TokenFacts(
        count=tokens_of(opened, size_bytes),
        token_bytes=source.dtype.itemsize,
        max_token_id=largest,
        eos_id=source.eos_id,
        eos_rule=rule or "unknown: the document index isn't decoded yet",
        tokenizer=None if manifest is None else manifest.tokenizer,
        tokenizer_digest=None if manifest is None else manifest.tokenizer_digest,
    )


def tokens_of(opened: Opened, size_bytes: int | None) -> Figure:
    """Return the number of tokens, unless that takes a scan."""
    source: Any = opened.source
    try:
        found = at_hand(lambda: int(source.num_tokens), size_bytes)
    except PenstockError as error:
        return Figure(None, describe_error(error))
    if found is not None:
        return Figure(found, "index")
    most = getattr(source, "most_tokens", None)
    return Figure(most, "the index isn't decoded yet" if most is None else "number of ids in the file")


def _fingerprint(source: Any, size_bytes: int | None) -> Figure:
    try:
        found = at_hand(lambda: source.fingerprint, size_bytes)
        return Figure(found, NO_INDEX if found is None else "index and samples of the bytes")
    except PenstockError as error:
        return Figure(None, describe_error(error))


def _details(opened: Opened) -> dict[str, Any]:
    """Return the details of the format, except for prepared tars, whose details need every file size."""
    tell = getattr(stored(opened.source), "details", None)
    if opened.format == "webdataset":
        return {"fields": dict(opened.field_map)} if opened.field_map else {}
    if tell is None:
        return {}
    try:
        return tell()
    except PenstockError:  # damage is reported where the data is read
        return {}


def splits_of(opened: Opened) -> tuple[Split, ...]:
    """Return the splits of a dataset; empty if its format has none, or if it is remote, to save requests."""
    place = opened.place
    if place is None or not get_format(opened.format).traits.splits:
        return ()
    current = getattr(stored(opened.source), "split", None) or opened.options.get("split")
    if opened.format == "webdataset":
        return _splits_of_tars(opened, place, current)
    if not place.is_local or not place.is_folder():
        return ()
    found: list[Split] = []
    for name in islice(sorted(place.names()), 10 * MOST_SPLITS):
        child = place.child(name)
        if not name.startswith(".") and child.is_folder() and any(child.child(one).exists() for one in _SPLIT_MARKS):
            found.append(Split(name, len(opened) if name == current else None, name == current))
    return tuple(found[:MOST_SPLITS])


def _splits_of_tars(opened: Opened, place: Place, current: str | None) -> tuple[Split, ...]:
    root = place.path.rstrip("/") or place.path
    try:
        info, splits = read_info(place.store, root), read_splits(place.store, root)
    except PenstockError:
        return ()
    found: list[Split] = []
    for name in islice(splits.parts, MOST_SPLITS):
        try:
            shards, left_out = split_shards(info, splits, name, root)
            samples = None if left_out else sum(info.counts[one] for one in shards)
        except PenstockError:
            samples = None
        found.append(Split(name, len(opened) if name == current and samples is None else samples, name == current))
    return tuple(found)


def _unknown(opened: Opened, samples: Figure, lengths: Lengths | None) -> list[str]:
    path = opened.shell_name
    if samples.value is None and samples.how != NO_INDEX:
        return []
    if samples.value is None and opened.format.startswith("jsonl"):
        return [f"number of samples: `penstock index {path}` counts them in one pass over the data"]
    if samples.value is None:
        return ["number of samples: `penstock info` counts them"]
    return [] if lengths is not None or not samples.value else ["sample lengths: unknown without an index"]
