"""Read and decode each sample of each split as training would, for `verify --depth decode` and `energon lint`."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock._access import place_of
from penstock._secrets import redacted_repr
from penstock.abc import Format, Source
from penstock.codec.image_header import read_image_header
from penstock.codec.media_bytes import media_bytes
from penstock.codec.parts import IMAGE_SUFFIXES, suffix_of
from penstock.codec.upright import PIXELS, image_traits, pixel_traits
from penstock.errors import ConfigError, Corrupt, FormatError, NotFound, PenstockError, UnsafeData
from penstock.formats import find_format
from penstock.formats._opening import skipping_invalid_lines
from penstock.formats.jsonl.build import IndexedLines
from penstock.formats.jsonl.text import compression_of
from penstock.formats.samples.folder.source import FolderSource
from penstock.formats.samples.webdataset.dataset_yaml import typed_view
from penstock.formats.samples.webdataset.nvmeta import DATASET_YAML, meta_path, read_splits
from penstock.formats.samples.webdataset.source import open_raw
from penstock.formats.samples.webdataset.typed import TypedSource, wrong_fields
from penstock.store.place import Place, dataset_at
from penstock.types import Finding, OpenOptions, Sample

Progress = Callable[[int, int], None]
"""Called with the number of samples read, and the number of all."""

_STEP = 256
_NUMBER = re.compile(r"(?<![\w./-])\d+(?![\w/-]|\.\w)")
"""A number that isn't part of a file name."""
_MOST_LINES = 10
_FORMAT = "webdataset"


@redacted_repr
@dataclass(frozen=True, slots=True)
class LintReport:
    """The result of `lint`.

    Attributes:
        path: the dataset.
        samples: split → number of samples read; the name is "" if there are no splits.
        findings: problems in the order of the samples; one that many samples share is listed once, with their number.
        traits: property → number of images that have it: 16 bits per channel, an EXIF orientation or an alpha channel.
            Decoders may treat such images differently.
    """

    path: str
    samples: dict[str, int]
    findings: tuple[Finding, ...]
    traits: Mapping[str, int] = field(default_factory=dict[str, int])


def lint(
    path: str | os.PathLike[str],
    *,
    splits: Sequence[str] | None = None,
    dataset_config: str = DATASET_YAML,
    split_config: str | None = None,
    format: str | None = None,
    layout: str | None = None,
    eos_id: int | None = None,
    trust: bool = False,
    follow_links: bool = False,
    progress: Progress | None = None,
) -> LintReport:
    """Read and decode each sample of a dataset; invalid samples never raise. Audio and video are read, but not decoded.

    Args:
        path: a prepared WebDataset, typed or crude, a JSONL file, or any other dataset.
        splits: names of splits; by default all that have samples.
        dataset_config: file in `.nv-meta` that describes the samples.
        split_config: file in `.nv-meta` that lists the shards of each split.
        format: as in `penstock.open`.
        layout: as in `penstock.open`.
        eos_id: as in `penstock.open`.
        trust: as in `penstock.open`.
        follow_links: as in `penstock.open`.
        progress: called with the number of samples read, and the number of all.

    Raises:
        NotFound: the dataset or a file in `.nv-meta` doesn't exist.
        ConfigError: a split doesn't exist, or the dataset has no such files.
        UnsafeData: samples are made by code that comes with the data, and `trust` is false.
    """
    given = OpenOptions(layout=layout, eos_id=eos_id, trust=trust, follow_links=follow_links)
    place = dataset_at(path, follow_links=follow_links)
    chosen = find_format(place, format, given)
    store, checked = place.store, replace(given, trust=False)
    findings = list(chosen.check(store, place.path, checked, "quick")) if chosen.traits.verify else []
    if chosen.name == _FORMAT:
        sources = _open_splits(place.bare(), splits, dataset_config, split_config, given)
    else:
        if dataset_config != DATASET_YAML or split_config is not None:
            found = dataset_config if split_config is None else split_config
            raise ConfigError("only a prepared WebDataset has configs", path=os.fspath(path), found=found)
        named = (splits or (None,)) if chosen.traits.splits else (None,)
        with skipping_invalid_lines() as skipped:
            opened = {name: _open_other(chosen, place, replace(given, split=name)) for name in named}
        findings += [one for path, lines in skipped.items() for one in _of_lines(path, lines, chosen.name)]
        # Without splits, each name means the whole dataset.
        sources = {name or "": opened[name if name in opened else None] for name in splits or (None,)}
    traits: Counter[str] = Counter()
    findings += _read_all(sources, chosen.name, progress, traits)
    samples = {split: len(source) for split, source in sources.items()}
    return LintReport(os.fspath(path), samples, tuple(findings), dict(sorted(traits.items())))


def _open_other(chosen: Format, place: Place, given: OpenOptions) -> Source[Sample]:
    """Open data other than tars. JSONL with invalid lines is opened without them."""
    energon = chosen.name == "jsonl" and compression_of(place.path) is None
    opened = chosen.open(place.store, place.path, replace(given, flavor="energon") if energon else given)
    try:
        len(opened)
    except Corrupt:
        if not energon:
            raise
        opened = chosen.open(place.store, place.path, given)  # Energon's index has no lines that are not objects
        len(opened)
    return opened


def _of_lines(path: str, lines: IndexedLines, format: str) -> Iterator[Finding]:
    """Yield a finding for each invalid line of a file, up to 10, and one for the others."""
    fix = "Fix the lines; `pack --on-error skip` skips them"
    for one in lines.dropped[:_MOST_LINES]:
        at = None if compression_of(path) else one.offset_bytes
        yield Finding(f"{format}.line", "error", path, at, f"line {one.line}: {one.reason}", "JSON", fix)
    if (more := lines.num_dropped - _MOST_LINES) > 0:
        yield Finding(f"{format}.line", "error", path, None, f"{more:,} more invalid lines", "JSON", fix)


def _read_all(
    sources: dict[str, Source[Sample]], format: str, progress: Progress | None, traits: Counter[str]
) -> list[Finding]:
    """Return the findings, one per cause; `traits` counts those of images."""
    total, done = sum(map(len, sources.values())), 0
    causes: dict[str, list[Any]] = {}  # cause → the finding of the first sample, and the number of samples
    for split, source in sources.items():
        for index in range(len(source)):
            fault = _fault_of(source, index, traits)
            if fault is not None:
                cause = _cause(source, index, fault)
                if cause not in causes:
                    causes[cause] = [_finding(source, index, split, format, fault), 0]
                causes[cause][1] += 1
            done += 1
            if progress is not None and (done % _STEP == 0 or done == total):
                progress(done, total)
    return [
        replace(first, found=f"{first.found}; the same in {count - 1:,} more samples") if count > 1 else first
        for first, count in causes.values()
    ]


def _open_splits(
    place: Place,
    wanted: Sequence[str] | None,
    dataset_config: str,
    split_config: str | None,
    given: OpenOptions,
) -> dict[str, Source[Sample]]:
    store, root = place.store, place.path
    if split_config is not None and not store.exists(meta_path(root, split_config)):
        raise NotFound("unknown split file", path=meta_path(root, split_config))
    known = read_splits(store, root) if split_config is None else read_splits(store, root, (split_config,))
    missing = [name for name in wanted or () if name not in known.parts]
    if missing:
        have = ", ".join(known.parts) or "none"
        raise ConfigError("unknown split", path=root, found=", ".join(missing), expected=have)
    names: list[str | None] = list(wanted or [name for name, shards in known.parts.items() if shards]) or [None]
    return {name or "": _open_split(place, name, known, dataset_config, given) for name in names}


def _open_split(place: Place, name: str | None, known: Any, dataset_config: str, given: OpenOptions) -> Source[Sample]:
    store, root, options = place.store, place.path, replace(given, split=name)
    raw = open_raw(store, root, options, known)
    if store.exists(meta_path(root, dataset_config)):
        return typed_view(raw, store, root, options, dataset_config=dataset_config)
    if dataset_config != DATASET_YAML:
        raise NotFound("no such file", path=meta_path(root, dataset_config))
    return raw


def _fault_of(source: Any, index: int, traits: Counter[str]) -> str | None:
    try:
        sample = source[index]
        traits.update(_traits_of(source, index, sample))
        if isinstance(source, TypedSource) and source.is_mapped and source.sample_type is not None:
            for wrong in wrong_fields(source.sample_type, sample):
                raise wrong
    except Exception as error:  # trusted code of the dataset may raise anything
        return str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
    return None


def _traits_of(source: Any, index: int, sample: Mapping[str, Any]) -> Iterator[str]:
    """Yield traits of the images of a sample, from their files: decoding may have converted the images."""
    if not isinstance(source, TypedSource | FolderSource):
        images = (value for value in sample.values() if type(value).__module__.partition(".")[0] == "PIL")
        for image in images:
            yield from image_traits(image)
        return
    key = source.key_of(index)
    files = source.raw[index] if isinstance(source, TypedSource) else {key: source.get(key)}
    for name, data in files.items():
        if suffix_of(name).lower() in IMAGE_SUFFIXES:
            media = media_bytes(data)
            metadata = read_image_header(media)
            if metadata is not None:
                yield from pixel_traits(media, metadata)


def _cause(source: Any, index: int, fault: str) -> str:
    """Return the text of a fault without keys and numbers, so that a torn shard or a missing field is one finding."""
    for key in _keys(source, index):
        fault = fault.replace(repr(key), "KEY")
    return _NUMBER.sub("N", fault)


def _finding(source: Any, index: int, split: str, format: str, fault: str) -> Finding:
    path, offset_bytes = _place(source, index)
    keys = "".join(f", key {key!r}" for key in _keys(source, index))
    where = f"sample {index}" + (f" of {split}" if split else "") + keys
    return Finding(
        f"{format}.sample", "error", path, offset_bytes, f"{where}: {fault}",
        fix="Fix the sample, exclude it (`exclude` in split.yaml), or fix the configuration that decodes it",
    )  # fmt: skip


def _place(source: Any, index: int) -> tuple[str, int | None]:
    try:
        extents = place_of(source, index).extents
    except (PenstockError, OSError):
        extents = None
    return (extents[0].path, extents[0].offset_bytes) if extents else (str(getattr(source, "path", "")), None)


def _keys(source: Any, index: int) -> Iterator[str]:
    try:
        yield source.key_of(index)
    except (PenstockError, AttributeError, OSError):
        return


def decoding_findings(
    path: str | os.PathLike[str], format: str | None, given: OpenOptions, *, is_damaged: bool
) -> list[Finding]:
    """Return what `verify --depth decode` adds: samples that don't decode, images that decoders may treat differently.

    Data that can't be opened is not decoded: that is a finding unless others explain it (`is_damaged`).
    """
    splits = None if given.split is None else (given.split,)
    options: dict[str, Any] = {name: getattr(given, name) for name in ("layout", "eos_id", "trust", "follow_links")}
    try:
        report = lint(path, splits=splits, format=format, **options)
    except (UnsafeData, ConfigError) as error:
        what = f"samples aren't decoded: {error.what}"
        fix = error.hint if isinstance(error, UnsafeData) else "Check one split with split=NAME, or by its own path"
        return [Finding("samples.not-decoded", "error", str(error.path or path), None, what, None, fix)]
    except (FormatError, NotFound) as error:
        if is_damaged:
            return []
        what = f"samples can't be decoded: {error.what}"
        return [Finding("samples.not-decoded", "error", str(error.path or path), None, what, None, error.hint)]
    found = [one for one in report.findings if one.code.endswith(".sample")]
    name = find_format(dataset_at(path, follow_links=given.follow_links), format, OpenOptions()).name
    for trait, count in report.traits.items():
        what = f"{count:,} images have {trait}"
        fix = f'decode="uint8" {PIXELS[trait]}; other decoders may not'
        found.append(Finding(f"{name}.pixels", "warning", os.fspath(path), None, what, fix=fix))
    return found
