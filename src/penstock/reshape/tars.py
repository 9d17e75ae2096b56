"""Resharding WebDatasets: the samples of tars go into new tars, prepared, part by part as they are stored.

Folders that were never prepared are read by the headers of their shards: many tiny tars become few larger ones. Splits
stay apart: what is in `val` is in `val` afterwards. What a `split.yaml` excludes is left behind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock._digest import digest
from penstock.codec import energon_yaml
from penstock.errors import ConfigError, Unsupported
from penstock.formats import get_format
from penstock.formats.samples.webdataset.find import find_shards
from penstock.formats.samples.webdataset.manifest import side_path, webdataset_facts
from penstock.formats.samples.webdataset.nvmeta import (
    DATASET_YAML,
    INFO_JSON,
    INFO_YAML,
    meta_path,
    read_info,
    read_splits,
    split_shards,
)
from penstock.formats.samples.webdataset.shards import ShardTable, scan_shard
from penstock.formats.samples.webdataset.writer import WebdatasetWriter
from penstock.reshape.once import once_dataset, once_parts
from penstock.reshape.reorder import SeededOrder
from penstock.reshape.rewrite import Counter, Progress, Written
from penstock.store.outputs import require_other
from penstock.store.place import Place, dataset_at
from penstock.store.side_file import fitting_manifest
from penstock.store.unfinished import Once
from penstock.types import IntArray, Manifest, Sample

_FORMAT = "webdataset"
_TRAIN = "train"
_AT_ONCE = 256
_OPTIONS = ("maxcount", "maxsize", "pattern", "split", "follow_links")
_CODE = ("sample_loader", "part_filter")


@dataclass(frozen=True, slots=True)
class TarSamples:
    """The samples of one split of a dataset, or of all its shards.

    Attributes:
        shards: `(place, table, places of its samples)`.
    """

    shards: tuple[tuple[Place, ShardTable, IntArray], ...]

    def __len__(self) -> int:
        return sum(len(places) for *_, places in self.shards)

    def at(self, rows: IntArray) -> Iterator[Sample]:
        """The samples at `rows`, in that order; read a few hundred at once, shard by shard."""
        borders = np.cumsum([0, *(len(places) for *_, places in self.shards)])
        for first in range(0, len(rows), _AT_ONCE):
            some = rows[first : first + _AT_ONCE]
            numbers = np.searchsorted(borders, some, side="right") - 1
            found: dict[int, Sample] = {}
            for number in np.unique(numbers).tolist():
                chosen = np.flatnonzero(numbers == number)
                places = self.shards[number][2][some[chosen] - borders[number]]
                found.update(zip(chosen.tolist(), self._read(number, places.tolist()), strict=True))
            yield from (found[place] for place in range(len(some)))

    def _read(self, number: int, places: Iterable[int]) -> Iterator[Sample]:
        shard, table, _ = self.shards[number]
        chosen = [(one, range(*table.part_starts[one : one + 2].tolist())) for one in places]
        ranges = [
            (int(table.contents[part]), int(table.contents[part] + table.sizes[part]))
            for _, parts in chosen
            for part in parts
        ]
        contents = iter(shard.store.get_ranges(shard.path, ranges))
        for place, parts in chosen:
            yield {"__key__": table.keys[place]} | {table.part_names[part]: next(contents) for part in parts}


def merge_tars(
    sources: Sequence[Place],
    target: Place,
    *,
    to: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    seed: int | None = None,
    **options: Any,
) -> tuple[Written, tuple[tuple[str, int], ...]]:
    """Write the samples of all sources into new shards, split by split; see `merge` and `shuffle`.

    Memory: about 300 bytes a part, and 256 samples.

    Args:
        sources: folders of tars.
        target: folder to make.
        to: None or `"webdataset"`.
        overwrite: replace the target.
        progress: told of samples.
        seed: mix the samples of each split; None: as they are.
        options: `split` and `follow_links` of `penstock.open`; `maxcount`, `maxsize`, `pattern` of the writer.

    Returns:
        What was written, and the samples of each source.

    Raises:
        ConfigError: a target that exists, a key that comes twice, or sources of different sample types.
        FormatError: a shard is damaged.
    """
    given = _known(options)
    if to not in (None, _FORMAT):
        raise Unsupported("tars become tars", found=f"--to {to}", hint="Use `penstock convert` before or after it")
    split, follow_links = given.pop("split", None), given.pop("follow_links", False)
    opened = [_splits_of(one, split, follow_links) for one in sources]
    require_other([one.path for one, _ in opened], target.path)
    typing = [_typing(one) for one, _ in opened]
    other = next((place for place, one in enumerate(typing) if one != typing[0]), None)
    if other is not None:
        what = "another dataset.yaml than the first dataset has"
        raise ConfigError(what, path=meta_path(opened[other][0].path, DATASET_YAML), hint="Make them say the same")
    counts = [sum(map(len, splits.values())) for _, splits in opened]
    inputs = tuple((one.path, count) for (one, _), count in zip(opened, counts, strict=True))
    what = {"command": "merge", "seed": seed, "sources": [list(one) for one in inputs], "options": options}
    once = _once(target, what, sum(counts))
    made = None if overwrite else once.made()
    if made is not None:
        return Written.of(target, made), inputs
    counter = Counter(sum(counts), progress)
    names = list(dict.fromkeys(name for _, splits in opened for name in splits))
    with _writer(target, given | typing[0], overwrite) as writer:
        for name in names:
            writer.begin_split(name)
            parts = [splits[name] for _, splits in opened if name in splits]
            _write(writer, _joined(parts), seed, counter)
        manifest = once.commit(writer.commit)
    return Written.of(target, manifest), inputs


def split_tars(
    source: Place,
    places: Sequence[Place],
    part_of: Any,
    made_by: Mapping[str, Any],
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> tuple[Written, ...]:
    """Deal the samples of one split, or of a dataset without splits, to datasets; each becomes visible on its own.

    Killed in between, the same work goes on: parts that are visible stay.

    Args:
        source: folder of tars.
        places: of the datasets to be made.
        part_of: number of samples → what tells for rows [first, stop) the parts, int64[stop - first].
        made_by: verb and options, by which the same work is known after a kill.
        overwrite: replace them.
        progress: told of samples.
        options: as of `merge_tars`.

    Raises:
        ConfigError: several splits of which none is named, or an output that exists.
    """
    given = _known(options)
    split, follow_links = given.pop("split", None), given.pop("follow_links", False)
    dataset, splits = _splits_of(source, split, follow_links)
    samples = _one_split(dataset, splits)
    for place in places:
        require_other([dataset.path], place.path)
    writer_options = given | _typing(dataset)
    parts = part_of(len(samples), samples)
    rows = [np.flatnonzero(parts == number) for number in range(len(places))]
    shards = [[one.path, table.num_samples, int(table.sizes.sum())] for one, table, _ in samples.shards]
    what = {**made_by, "options": options, "source": dataset.shown, "shards": digest(shards)}
    known = [_once(place, what, len(some)) for place, some in zip(places, rows, strict=True)]
    once = once_parts(places[0].folder().child(dataset.name), what, known)
    manifests = None if overwrite else once.made()
    if manifests is None:
        # Where the same work was killed, parts that are there are its own.
        own = [one.swept(None) if once.is_begun() and not overwrite else None for one in known]
        counter = Counter(len(samples), progress)
        with contextlib.ExitStack() as stack:
            # All writers begin first: a part that exists is refused before anything is written.
            writers = [
                found or stack.enter_context(_writer(place, writer_options, overwrite))
                for place, found in zip(places, own, strict=True)
            ]
            _fill(writers, samples, rows, counter)
            manifests = once.commit(lambda: tuple(map(_published, writers)), goes_on=True)
    return tuple(map(Written.of, places, manifests))


def _fill(
    writers: Sequence[WebdatasetWriter | Manifest], samples: TarSamples, rows: Sequence[IntArray], counter: Counter
) -> None:
    """Write the rows of each part that is not there yet."""
    for writer, some in zip(writers, rows, strict=True):
        if isinstance(writer, WebdatasetWriter):
            for sample in samples.at(some):
                writer.write(sample)
        counter.add(len(some))


def _one_split(dataset: Place, splits: Mapping[str, TarSamples]) -> TarSamples:
    """The samples of the one split that has any."""
    filled = {name: one for name, one in splits.items() if len(one)}
    if len(filled) > 1:
        raise ConfigError(
            "which split shall be split?", path=dataset.path, found=", ".join(filled), hint="Name it with --split"
        )
    return next(iter(filled.values()), _joined([]))


def _published(part: WebdatasetWriter | Manifest) -> Manifest:
    return part.commit() if isinstance(part, WebdatasetWriter) else part


def _write(writer: WebdatasetWriter, samples: TarSamples, seed: int | None, counter: Counter) -> None:
    order = None if seed is None or not len(samples) else SeededOrder(len(samples), seed)
    for first in range(0, len(samples), _AT_ONCE):
        stop = min(len(samples), first + _AT_ONCE)
        for sample in samples.at(np.arange(first, stop) if order is None else order.rows_at(first, stop)):
            writer.write(sample)
        counter.add(stop - first)


def _once(place: Place, what: dict[str, Any], num_samples: int) -> Once[Manifest]:
    store, root = place.store, place.path.rstrip("/") or place.path

    def side_file() -> Manifest | None:
        return fitting_manifest(
            store, side_path(root), lambda: webdataset_facts(store, root, read_info(store, root).counts)
        )

    return once_dataset(Place(store, root), _FORMAT, what, {}, num_samples, side_file)


def _known(options: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value is not None}
    unknown = sorted(set(given) - set(_OPTIONS))
    if unknown:
        raise ConfigError(f"{', '.join(unknown)} has no meaning for tars", expected=", ".join(_OPTIONS))
    return given


def _writer(place: Place, options: dict[str, Any], overwrite: bool) -> WebdatasetWriter:
    made = get_format(_FORMAT).create(place.store, place.path, options, overwrite=overwrite)
    if not isinstance(made, WebdatasetWriter):
        raise TypeError(f"{_FORMAT} has another writer: {type(made).__name__}")
    return made


def _splits_of(given: Place, split: str | None, follow_links: bool) -> tuple[Place, dict[str, TarSamples]]:
    """The dataset's folder, and its samples by split: `train` where it has no splits, or was never prepared."""
    place = dataset_at(given, follow_links=follow_links)
    store, root = place.store, place.path.rstrip("/") or place.path
    place = Place(store, root)
    if not any(store.exists(meta_path(root, name)) for name in (INFO_JSON, INFO_YAML)):
        if split is not None:
            raise ConfigError("this folder was never prepared: it has no splits", path=root, found=split)
        return place, {_TRAIN: _samples(place, find_shards(store, root), {})}
    info = read_info(store, root)
    known = read_splits(store, root)
    if split is None and not known.parts:
        return place, {_TRAIN: _samples(place, list(info.counts), {})}
    names = [split] if split is not None else list(known.parts)
    return place, {name: _samples(place, *split_shards(info, known, name, root)) for name in names}


def _samples(place: Place, shards: Sequence[str], left_out: dict[str, list[str]]) -> TarSamples:
    made: list[tuple[Place, ShardTable, IntArray]] = []
    for name in shards:
        shard = place.child(name)
        table = scan_shard(shard.store, shard.path)
        gone = set(left_out.get(name, ()))
        places = [place for place, key in enumerate(table.keys) if key not in gone] if gone else table.num_samples
        made.append((shard, table, np.arange(places) if isinstance(places, int) else np.array(places, np.int64)))
    return TarSamples(tuple(made))


def _joined(parts: Sequence[TarSamples]) -> TarSamples:
    return TarSamples(tuple(shard for one in parts for shard in one.shards))


def _typing(place: Place) -> dict[str, Any]:
    """Options of the writer for what `dataset.yaml` says, with the code that it names; none where there is none."""
    store, root = place.store, place.path
    path = meta_path(root, DATASET_YAML)
    if not store.exists(path):
        return {}
    value = energon_yaml.load(store.get(path), path)
    if not isinstance(value, dict):
        return {}
    named = {one.partition(":")[0] for one in map(value.get, _CODE) if isinstance(one, str)}
    code = {name: store.get(meta_path(root, name)) for name in sorted(named) if "/" not in name}
    return {"dataset": value, "code": code}
