"""What a dataset is, from its index and side file; nothing is looked through without being asked.

Costs the same at any size: at most 64 reads for a fingerprint, 1,000 sizes of files (32 far away), 512 pages of an
index of lengths.
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
from penstock.view.facts.disk import MOST_FILES, Disk, Shards, disk_of, disk_of_listed, shards_of
from penstock.view.facts.figures import Figure, at_hand
from penstock.view.facts.lengths import Lengths, lengths_of
from penstock.view.facts.opening import Opened
from penstock.view.facts.panel import describe_error

MOST_SPLITS = 64
NO_INDEX = "no index"
"""Why something is not known that one pass over the data would tell."""

_SPLIT_MARKS = ("index.json", "state.json", ".zgroup", "zarr.json")


@dataclass(frozen=True, slots=True)
class Split:
    """A split: its name; its samples, None where they are not known; whether it is the one that is open."""

    name: str
    samples: int | None
    is_open: bool


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """What there is to say of tokens.

    Attributes:
        count: of them.
        token_bytes: width of an id.
        max_token_id: the largest, where it is recorded.
        eos_id: that ends documents, where it is known; `eos_rule`: the same in words.
        tokenizer, tokenizer_digest: as recorded.
    """

    count: Figure
    token_bytes: int
    max_token_id: int | None
    eos_id: int | None
    eos_rule: str
    tokenizer: str | None
    tokenizer_digest: str | None


@dataclass(frozen=True, slots=True)
class Overview:
    """What a dataset is.

    Attributes:
        name: where it is, without secrets.
        format: name of its format.
        samples: how many.
        fields: of a sample; `is_open`: there may be others.
        tokens: None for samples that are no documents of tokens.
        lengths: None where nothing tells them.
        splits: none where the format has none.
        shards, disk: None where there are none.
        fingerprint: None where nobody asked for it, or it can't be made.
        excluded: samples that are taken out; `exclude_list`: by which list.
        manifest: what its side file says; None without one.
        details: what its format tells besides: name → number, text, list of texts, dict of texts.
        unknown: what is not known because it takes a long look, with the command that finds it out.
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
    """What a dataset is.

    Args:
        opened: it.
        fingerprint: also its fingerprint, which is up to 64 reads where no side file tells it.
    """
    source: Any = opened.source
    manifest = manifest_of(source)
    size_bytes = None if manifest is None else manifest.size_bytes
    disk = _disk(opened, size_bytes)
    size_bytes = size_bytes if disk is None or disk.size_bytes.value is None else disk.size_bytes.value
    samples = samples_of(opened, size_bytes)
    known = samples.value is not None
    is_local = opened.place is None or opened.place.is_local
    lengths = lengths_of(source, samples.value, size_bytes=size_bytes, is_local=is_local) if known else None
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
    """What lies on disk; of many files what was listed when they were opened: beside them others may lie."""
    if opened.place is None:
        return None
    _, files = opened.text_files or (None, ())
    if len(files) > MOST_FILES:
        return disk_of_listed(opened.place, files, opened.text_stops)
    return disk_of(opened.place, opened.format, opened.source, known_bytes)


def side_file_of(opened: Opened) -> Manifest | None:
    """What the side file of a dataset says; of tars that of all splits."""
    found = manifest_of(opened.source)
    if found is None and opened.format == "webdataset" and opened.place is not None:
        with contextlib.suppress(PenstockError):  # one that is damaged is told by a check
            return manifest_of_tars(opened.place.store, opened.place.path.rstrip("/") or opened.place.path)
    return found


def samples_of(opened: Opened, size_bytes: int | None = None) -> Figure:
    """How many samples there are, as the index says it, else the side file; see `count_of`."""
    found, manifest = count_of(opened, size_bytes), manifest_of(opened.source)
    if found.value is not None or found.how != NO_INDEX or manifest is None:
        return found
    return Figure(manifest.num_samples, "side file")


def count_of(opened: Opened, size_bytes: int | None = None) -> Figure:
    """How many samples can be asked for by number, where finding that out takes no long look.

    Args:
        opened: the dataset.
        size_bytes: of it, where that is known: a small one is looked through.
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
    """How many samples can be asked for by number.

    Raises:
        ConfigError: none, before a long look; or how many there are can't be known, and why.
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
    except PenstockError:  # the number of samples says what is wrong
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
    """How many tokens there are, where that takes no long look.

    Args:
        opened: a dataset of tokens.
        size_bytes: of it, where that is known: a small one is looked through.
    """
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
    """What the format tells, but for prepared tars, whose details ask for the size of each: their facts are here."""
    tell = getattr(stored(opened.source), "details", None)
    if opened.format == "webdataset":
        return {"fields": dict(opened.field_map)} if opened.field_map else {}
    if tell is None:
        return {}
    try:
        return tell()
    except PenstockError:  # what is damaged is told where it is read
        return {}


def splits_of(opened: Opened) -> tuple[Split, ...]:
    """The splits of a dataset; none where its format has none, or far away, where each question is a request."""
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
