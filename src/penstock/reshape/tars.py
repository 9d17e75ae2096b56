"""Resharding WebDatasets: the samples of tars go into new tars, prepared, part by part as they are stored.

Folders that were never prepared are read by the headers of their shards: many tiny tars become few larger ones. Splits
stay apart: what is in `val` is in `val` afterwards. What a `split.yaml` excludes is left behind.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter as Counts
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock._digest import digest
from penstock._resolved import excluded_of
from penstock._secrets import redact
from penstock.codec import energon_yaml
from penstock.errors import ConfigError, PenstockError, Unsupported
from penstock.formats import create_dry, get_format
from penstock.formats._door import open_at
from penstock.formats._manifest import Provenance
from penstock.formats.samples.webdataset.find import find_shards
from penstock.formats.samples.webdataset.manifest import manifest_of_tars
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
from penstock.reshape.cost import Announce, ShuffleCost, cost_of_samples
from penstock.reshape.once import once_dataset, once_parts
from penstock.reshape.pieces import ALONE, Pieces, Workers, leave, pieces_for, sweep_pieces, whole
from penstock.reshape.reorder import SeededOrder
from penstock.reshape.rewrite import Counter, Progress, Written
from penstock.store.dry import dry_place
from penstock.store.exclude_list import NO_LIST
from penstock.store.outputs import require_other
from penstock.store.place import Place, dataset_at, distinct_names
from penstock.store.unfinished import Once
from penstock.types import IntArray, Manifest, OpenOptions, Sample

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
        excluded: how many the exclude list has taken out.
    """

    shards: tuple[tuple[Place, ShardTable, IntArray], ...]
    excluded: int = 0

    def without(self, indices: IntArray | None) -> TarSamples:
        """The same without the samples at `indices`: int64[k], rising."""
        if indices is None:
            return self
        borders = np.cumsum([0, *(len(places) for *_, places in self.shards)])
        cuts = np.split(indices, np.searchsorted(indices, borders[1:-1]))
        shards = tuple(
            (shard, table, np.delete(places, cut - first))
            for (shard, table, places), cut, first in zip(self.shards, cuts, borders, strict=False)
        )
        return TarSamples(shards, len(indices))

    def __len__(self) -> int:
        return sum(len(places) for *_, places in self.shards)

    @property
    def size_bytes(self) -> int:
        """Bytes of the parts of all samples of its shards."""
        return sum(int(table.sizes.sum()) for _, table, _ in self.shards)

    def at(self, rows: Iterable[IntArray], pieces: Pieces | None = None) -> Iterator[Sample]:
        """The samples at `rows`, runs of at most a few hundred, in that order; by workers where there are `pieces`."""
        borders = np.cumsum([0, *(len(places) for *_, places in self.shards)])
        blocks = (self._block(some, borders) for some in rows)
        if pieces is None:
            for block in blocks:
                yield from block.samples(block.read())
            return
        ahead, tasks = itertools.tee(blocks)  # as many are held as are under way
        folders = list(dict.fromkeys(shard.folder() for shard, *_ in self.shards))
        left = pieces.files(-(-len(self) // _AT_ONCE), folders, _leave_contents, tasks)
        for block, (name, _) in zip(ahead, left, strict=True):
            with pieces.taken(name) as file:
                yield from block.samples(block.cut(file))

    def _block(self, some: IntArray, borders: IntArray) -> _Block:
        """What is to be read of the samples at `some`, shard by shard."""
        numbers = np.searchsorted(borders, some, side="right") - 1
        reads: list[tuple[Place, list[tuple[int, int]]]] = []
        found: dict[int, tuple[str, list[tuple[str, int]]]] = {}
        count = 0
        for number in np.unique(numbers).tolist():
            shard, table, places = self.shards[number]
            ranges: list[tuple[int, int]] = []
            chosen = np.flatnonzero(numbers == number)
            for row, place in zip(chosen.tolist(), places[some[chosen] - borders[number]].tolist(), strict=True):
                parts = range(*table.part_starts[place : place + 2].tolist())
                starts = table.contents[parts.start : parts.stop].tolist()
                sizes = table.sizes[parts.start : parts.stop].tolist()
                ranges += [(start, start + size) for start, size in zip(starts, sizes, strict=True)]
                names = [table.part_names[part] for part in parts]
                found[row] = (table.keys[place], list(zip(names, range(count, count + len(parts)), strict=True)))
                count += len(parts)
            reads.append((shard, ranges))
        return _Block(reads, [found[row] for row in range(len(some))])


@dataclass(frozen=True, slots=True)
class _Block:
    """A few hundred samples.

    Attributes:
        reads: ranges of shards, which hold the parts.
        names: key of each sample; and name of each of its parts, with its number among the ranges.
    """

    reads: list[tuple[Place, list[tuple[int, int]]]]
    names: list[tuple[str, list[tuple[str, int]]]]

    @property
    def described(self) -> str:
        """What an error calls it."""
        return f"{len(self.names)} samples of {redact(self.reads[0][0].path)}" if self.reads else "no sample"

    def read(self) -> Iterator[bytes | memoryview]:
        """The parts, in the order of the ranges."""
        for shard, ranges in self.reads:
            yield from shard.store.get_ranges(shard.path, ranges)

    def cut(self, file: Place) -> Iterator[memoryview]:
        """The same out of a file that holds them back to back."""
        stops = np.cumsum([0, *(stop - start for _, ranges in self.reads for start, stop in ranges)]).tolist()
        data = whole(file, stops[-1]).data if stops[-1] else memoryview(b"")
        yield from (data[start:stop] for start, stop in itertools.pairwise(stops))

    def samples(self, contents: Iterator[bytes | memoryview]) -> Iterator[Sample]:
        """The samples that these contents are the parts of."""
        parts = list(contents)
        for key, names in self.names:
            yield {"__key__": key} | {name: parts[number] for name, number in names}


def _leave_contents(file: Place, block: _Block) -> None:
    """Write the parts of a block to a file, back to back; runs where the executor has it."""
    leave(file, block.read())


def _in_order(count: int, order: SeededOrder | None = None) -> Iterator[IntArray]:
    """All of `count` rows, a few hundred at a time."""
    for first in range(0, count, _AT_ONCE):
        stop = min(count, first + _AT_ONCE)
        yield np.arange(first, stop) if order is None else order.rows_at(first, stop)


def merge_tars(
    sources: Sequence[Place], target: Place, workers: Workers = ALONE, *, to: str | None = None,
    overwrite: bool = False, dry_run: bool = False, progress: Progress | None = None, seed: int | None = None,
    announce: Announce | None = None, **options: Any,
) -> tuple[Written, tuple[tuple[str, int], ...]]:  # fmt: skip
    """Write the samples of all sources into new shards, split by split. Memory: 300 bytes a part, and 256 samples.

    Args:
        sources, target: folders of tars, and the one to make.
        workers: who reads the samples.
        to: None or `"webdataset"`.
        overwrite: replace the target.
        dry_run: write nothing, and say what would be written.
        progress: called with the samples done.
        seed: mix the samples of each split; None: as they are.
        announce: as of `penstock.shuffle`.
        options: `split` and `follow_links` of `penstock.open`; `maxcount`, `maxsize`, `pattern` of the writer.

    Returns:
        What was written, and the samples of each source.

    Raises:
        ConfigError: a target that exists, a key that comes twice, or sources of different sample types.
        FormatError: a shard is damaged.
    """
    given = _known(options)
    require_tars(to)
    split, follow_links = given.pop("split", None), given.pop("follow_links", False)
    opened = [_splits_of(one, split, follow_links) for one in sources]
    require_other([one.path for one, _ in opened], target.path)
    typing = [_typing(one) for one, _ in opened]
    _require_one_typing([one for one, _ in opened], typing)
    counts = [sum(map(len, splits.values())) for _, splits in opened]
    excluded, left = _excluded_in(opened)
    inputs = tuple((one.path, count) for (one, _), count in zip(opened, counts, strict=True))
    if dry_run:
        _rehearse(target, given | typing[0], overwrite)
        _require_keys([samples for _, splits in opened for samples in splits.values()], target)
        size_bytes = sum(one.size_bytes for _, splits in opened for one in splits.values())
        return Written(target.path, _FORMAT, sum(counts), None, size_bytes, excluded=excluded), inputs
    what = {"command": "merge", "seed": seed, "sources": [list(one) for one in inputs], "options": options} | left
    sweep_pieces(target)
    once = _once(target, what, sum(counts))
    made = None if overwrite else once.made()
    if made is not None:
        return Written.of(target, made, excluded), inputs
    counter = Counter(sum(counts), progress)
    made_by = {"command": "merge"} if seed is None else {"command": "shuffle", "seed": seed}
    noted = _lineage([one for one, _ in opened], split, made_by, excluded)
    with _writer(target, given | typing[0], overwrite, noted) as writer:
        if announce is not None:
            announce(_cost([samples for _, splits in opened for samples in splits.values()]))
        with pieces_for(workers, target) as pieces:
            for name in dict.fromkeys(name for _, splits in opened for name in splits):
                writer.begin_split(name)
                samples = _joined([splits[name] for _, splits in opened if name in splits])
                order = None if seed is None or not len(samples) else SeededOrder(len(samples), seed)
                _write(writer, samples, _in_order(len(samples), order), _or_none(pieces), counter)
        manifest = once.commit(writer.commit)
    return Written.of(target, manifest, excluded), inputs


def _lineage(sources: Sequence[Place], split: str | None, made_by: Mapping[str, Any], excluded: int) -> Provenance:
    """What the side file says of where samples come from; of folders that were never prepared, nothing is known."""
    inputs: dict[str, str] = {}
    for name, place in zip(distinct_names(sources), sources, strict=True):
        with contextlib.suppress(PenstockError):
            options = OpenOptions(split=split, raw=True, excludes=NO_LIST)
            inputs[name] = get_format(_FORMAT).open(place.store, place.path, options).fingerprint
    return Provenance(inputs=inputs, options={**made_by, **({"excluded": excluded} if excluded else {})})


def _excluded_in(opened: Sequence[tuple[Place, dict[str, TarSamples]]]) -> tuple[int, dict[str, str]]:
    """How many samples are excluded, and what tells one exclude list from another in a plan."""
    every = [one for _, splits in opened for one in splits.values()]
    count = sum(one.excluded for one in every)
    places = [places.tolist() for one in every for *_, places in one.shards if count]
    return count, {"excluded": digest(places)} if count else {}


def require_tars(to: str | None) -> None:
    """That tars become tars; raises `Unsupported`."""
    if to not in (None, _FORMAT):
        raise Unsupported("tars become tars", found=f"--to {to}", hint="Use `penstock convert` before or after it")


def _cost(samples: Sequence[TarSamples]) -> ShuffleCost:
    shards = [shard for one in samples for shard in one.shards]
    total_bytes = sum(one.size_bytes for one in samples)
    is_remote = any(not place.is_local for place, *_ in shards)
    return cost_of_samples(sum(map(len, samples)), total_bytes, is_remote=is_remote)


def _require_one_typing(places: Sequence[Place], typing: Sequence[dict[str, Any]]) -> None:
    for place, one in zip(places, typing, strict=True):
        if one != typing[0]:
            what = "another dataset.yaml than the first dataset has"
            raise ConfigError(what, path=meta_path(place.path, DATASET_YAML), hint="Make them say the same")


def split_tars(
    source: Place, places: Sequence[Place], part_of: Any, made_by: Mapping[str, Any],
    workers: Workers = ALONE, *, overwrite: bool = False, dry_run: bool = False,
    progress: Progress | None = None, **options: Any,
) -> tuple[Written, ...]:  # fmt: skip
    """Deal the samples of one split, or of a dataset without splits, to datasets; each becomes visible on its own.

    Killed in between, the same work resumes: parts that are visible stay.

    Args:
        source: folder of tars.
        places: of the datasets to be made.
        part_of: number of samples, and what reads them all → int64[n], the part of each.
        made_by: verb and options, by which the same work is known after a kill.
        workers: who reads the samples.
        overwrite: replace them.
        dry_run: write nothing, and say what would be written.
        progress: called with the samples done.
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
    if dry_run:
        return _parts_foreseen(samples, places, part_of, writer_options, overwrite)
    beside = places[0].folder().child(dataset.name)
    sweep_pieces(beside)
    with pieces_for(workers, beside) as pieces:
        parts = part_of(len(samples), lambda: samples.at(_in_order(len(samples)), _or_none(pieces)))
    rows = [np.flatnonzero(parts == number) for number in range(len(places))]
    shards = [[one.path, table.num_samples, int(table.sizes.sum())] for one, table, _ in samples.shards]
    what = {**made_by, "options": options, "source": dataset.shown, "shards": digest(shards)}
    known = [_once(place, what, len(some)) for place, some in zip(places, rows, strict=True)]
    once = once_parts(beside, what, known)
    manifests = None if overwrite else once.made()
    if manifests is None:
        # Where the same work was killed, parts that are there are its own.
        own = [one.swept(None) if once.is_begun() and not overwrite else None for one in known]
        counter = Counter(len(samples), progress)
        with contextlib.ExitStack() as stack:
            # All writers begin first: a part that exists is refused before anything is written.
            noted = _lineage([dataset], split, made_by, samples.excluded)
            writers = [
                found or stack.enter_context(_writer(place, writer_options, overwrite, noted))
                for place, found in zip(places, own, strict=True)
            ]
            with pieces_for(workers, beside) as pieces:
                _fill(writers, samples, rows, _or_none(pieces), counter)
            manifests = once.commit(lambda: tuple(map(_published, writers)), goes_on=True)
    pairs = zip(places, manifests, strict=True)
    return tuple(Written.of(place, manifest, samples.excluded) for place, manifest in pairs)


def _parts_foreseen(
    samples: TarSamples, places: Sequence[Place], part_of: Any, options: dict[str, Any], overwrite: bool
) -> tuple[Written, ...]:
    """What each part would hold, by the mean size of a sample."""
    for place in places:
        _rehearse(place, options, overwrite)
    parts = part_of(len(samples), lambda: samples.at(_in_order(len(samples))))
    counts, mean_bytes = np.bincount(parts, minlength=len(places)), samples.size_bytes // max(1, len(samples))
    found = zip(places, counts.tolist(), strict=True)
    return tuple(Written(place.path, _FORMAT, count, None, count * mean_bytes) for place, count in found)


def _fill(
    writers: Sequence[WebdatasetWriter | Manifest],
    samples: TarSamples,
    rows: Sequence[IntArray],
    pieces: Pieces | None,
    counter: Counter,
) -> None:
    """Write the rows of each part that is not there yet."""
    for writer, some in zip(writers, rows, strict=True):
        if isinstance(writer, WebdatasetWriter):
            blocks = (some[first : first + _AT_ONCE] for first in range(0, len(some), _AT_ONCE))
            for sample in samples.at(blocks, pieces):
                writer.write(sample)
        counter.add(len(some))


def _or_none(pieces: Pieces) -> Pieces | None:
    """None where this process reads by itself."""
    return None if pieces.workers.are_alone else pieces


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


def _write(
    writer: WebdatasetWriter, samples: TarSamples, rows: Iterable[IntArray], pieces: Pieces | None, counter: Counter
) -> None:
    for count, sample in enumerate(samples.at(rows, pieces), 1):
        writer.write(sample)
        if count % _AT_ONCE == 0:
            counter.add(_AT_ONCE)
    counter.add(len(samples) % _AT_ONCE)


def _once(place: Place, what: dict[str, Any], num_samples: int) -> Once[Manifest]:
    store, root = place.store, place.path.rstrip("/") or place.path
    return once_dataset(Place(store, root), _FORMAT, what, {}, num_samples, lambda: manifest_of_tars(store, root))


def _known(options: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value is not None}
    unknown = sorted(set(given) - set(_OPTIONS))
    if unknown:
        raise ConfigError(f"{', '.join(unknown)} has no meaning for tars", expected=", ".join(_OPTIONS))
    return given


def _writer(place: Place, options: dict[str, Any], overwrite: bool, noted: Provenance) -> WebdatasetWriter:
    made = get_format(_FORMAT).create(place.store, place.path, options, overwrite=overwrite)
    if not isinstance(made, WebdatasetWriter):
        raise TypeError(f"{_FORMAT} has another writer: {type(made).__name__}")
    made.note(noted)
    return made


def _require_keys(all_samples: Sequence[TarSamples], target: Place) -> None:
    """That no key comes twice, as the writer finds in a shard or at the end; raises `ConfigError`."""
    tables = [(table, places) for one in all_samples for _, table, places in one.shards]
    keys = Counts(table.keys[place] for table, places in tables for place in places.tolist())
    [(key, count)] = keys.most_common(1) or [("", 0)]
    if count > 1:
        what = f"the key {key!r} comes in two places: keys of a dataset must differ"
        hint = "Pack the shards again with keys of their own, such as with the shard's name before them"
        raise ConfigError(what, path=target.path, found=f"{count} times", hint=hint)


def _rehearse(place: Place, options: dict[str, Any], overwrite: bool) -> None:
    dry = dry_place(place)
    create_dry(_FORMAT, dry.store, dry.path, options, overwrite=overwrite)


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
        return place, {_TRAIN: _samples(place, list(info.counts), {}).without(_excluded(place, None))}
    names = [split] if split is not None else list(known.parts)
    found = {name: _samples(place, *split_shards(info, known, name, root)) for name in names}
    return place, {name: one.without(_excluded(place, name)) for name, one in found.items()}


def _excluded(place: Place, split: str | None) -> IntArray | None:
    """int64[k], rising: the samples of a split that the dataset's exclude list takes out."""
    return excluded_of(open_at(get_format(_FORMAT), place.store, place.path, OpenOptions(split=split, raw=True)))


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
    return TarSamples(tuple(shard for one in parts for shard in one.shards), sum(one.excluded for one in parts))


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
