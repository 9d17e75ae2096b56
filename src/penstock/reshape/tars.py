"""Commands on WebDatasets: samples of tars are written into new tars without decoding.

Directories without metadata are read by the headers of their shards. Splits stay separate, and samples that a
`split.yaml` excludes are left out.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock._access import excluded_of
from penstock._digest import digest
from penstock._keywords import were_given
from penstock._secrets import logger
from penstock.codec import energon_yaml
from penstock.engine.options import Counter, RunOptions
from penstock.engine.run import run
from penstock.errors import ConfigError, PenstockError, Unsupported
from penstock.formats import get_format
from penstock.formats._manifest import Provenance
from penstock.formats._opening import open_at
from penstock.formats.samples.webdataset.find import find_readable_shards
from penstock.formats.samples.webdataset.manifest import require_as_recorded
from penstock.formats.samples.webdataset.nvmeta import (
    DATASET_YAML,
    INFO_JSON,
    INFO_YAML,
    meta_path,
    read_info,
    read_splits,
    split_shards,
)
from penstock.formats.samples.webdataset.shards import (
    ShardTable,
    key_prefix,
    repeated_key,
    require_content,
    require_ended,
    scan_shard,
)
from penstock.reshape.outputs import Output, Written
from penstock.reshape.reorder import Announce, ShuffleCost, cost_of_samples
from penstock.reshape.tar_job import FORMAT, Deal, TarJob, TarSamples
from penstock.store.exclude_list import NO_LIST
from penstock.store.outputs import require_other
from penstock.store.place import Place, dataset_at, distinct_names
from penstock.types import IntArray, OpenOptions

_log = logger()
_TRAIN = "train"
_OPTIONS = ("maxcount", "maxsize", "pattern", "split", "follow_links", "prefix_keys")
_CODE = ("sample_loader", "part_filter")


def merge_tars(
    sources: Sequence[Place], target: Place, how: RunOptions, *, to: str | None = None, seed: int | None = None,
    announce: Announce | None = None, **options: Any,
) -> tuple[Written, tuple[tuple[str, int], ...]]:  # fmt: skip
    """Write the samples of all sources into new shards, split by split. Memory: 300 bytes per part, and 256 samples.

    Args:
        sources: directories of tars.
        target: directory to write.
        how: how to run it.
        to: None or `"webdataset"`.
        seed: shuffle the samples of each split; None keeps their order.
        announce: as in `penstock.shuffle`.
        options: `split` and `follow_links` of `penstock.open`; `maxcount`, `maxsize`, `pattern` of the writer;
            `prefix_keys` puts the name of the shard before each key, after that of the source if there are several.

    Returns:
        What was written, and the samples of each source.

    Raises:
        ConfigError: a target that exists, a key that comes twice, or sources of different sample types.
        FormatError: a shard is damaged.
    """
    given = _known(options)
    require_tars(to)
    split, follow_links = given.pop("split", None), given.pop("follow_links", False)
    prefixes = {"prefix_keys": True} if given.pop("prefix_keys", False) else {}
    opened = [_splits_of(one, split, follow_links) for one in sources]
    if prefixes:
        opened = _with_prefixes(opened)
    require_other([one.path for one, _ in opened], target.path)
    typing = [_typing(one) for one, _ in opened]
    _require_one_typing([one for one, _ in opened], typing)
    counts = [sum(map(len, splits.values())) for _, splits in opened]
    excluded, left = _excluded_in(opened)
    inputs = tuple((one.path, count) for (one, _), count in zip(opened, counts, strict=True))
    splits = {name: _joined([one[name] for _, one in opened if name in one]) for _, one in opened for name in one}
    _require_keys(list(splits.values()))
    command = ({"command": "merge"} if seed is None else {"command": "shuffle", "seed": seed}) | prefixes
    job = TarJob(
        output=target,
        outputs=[Output(target)],
        options=how,
        counter=Counter(sum(counts), how.progress),
        announced=None if announce is None else functools.partial(announce, _cost(list(splits.values()))),
        sources=[one for one, _ in opened],
        writer_options=given | typing[0],
        noted=_lineage(opened, split, command, excluded),
        what={"command": "merge", "seed": seed, "sources": [list(one) for one in inputs], "options": options} | left,
        by_split=splits,
        seed=seed,
    )
    return run(job)[0], inputs


def _lineage(
    opened: Sequence[tuple[Place, Mapping[str, TarSamples]]],
    split: str | None,
    made_by: Mapping[str, Any],
    excluded: int,
) -> Provenance:
    """Return the record of the sources; those without metadata are identified by their tables."""
    inputs: dict[str, str] = {}
    for name, (place, splits) in zip(distinct_names([one for one, _ in opened]), opened, strict=True):
        inputs[name] = digest([_shards_of(samples) for samples in splits.values()])
        with contextlib.suppress(PenstockError):
            options = OpenOptions(split=split, raw=True, excludes=NO_LIST)
            inputs[name] = get_format(FORMAT).open(place.store, place.path, options).fingerprint
    return Provenance(inputs=inputs, options={**made_by, **({"excluded": excluded} if excluded else {})})


def _shards_of(samples: TarSamples) -> list[list[Any]]:
    return [[one.name, table.num_samples, int(table.sizes.sum())] for one, table, _ in samples.shards]


def _excluded_in(opened: Sequence[tuple[Place, dict[str, TarSamples]]]) -> tuple[int, dict[str, str]]:
    """Return the number of excluded samples, and what identifies the exclude lists in a plan."""
    every = [one for _, splits in opened for one in splits.values()]
    count = sum(one.excluded for one in every)
    places = [places.tolist() for one in every for *_, places in one.shards if count]
    return count, {"excluded": digest(places)} if count else {}


def require_tars(to: str | None) -> None:
    if to not in (None, FORMAT):
        raise Unsupported(
            "tar shards can only be rewritten as tar shards",
            found=f"--to {to}",
            hint="Use `penstock convert` before or after it",
        )


def _cost(samples: Sequence[TarSamples]) -> ShuffleCost:
    shards = [shard for one in samples for shard in one.shards]
    total_bytes = sum(one.size_bytes for one in samples)
    is_remote = any(not place.is_local for place, *_ in shards)
    return cost_of_samples(sum(map(len, samples)), total_bytes, is_remote=is_remote)


def _require_one_typing(places: Sequence[Place], typing: Sequence[dict[str, Any]]) -> None:
    for place, one in zip(places, typing, strict=True):
        if one != typing[0]:
            what = "the dataset.yaml differs from the first dataset"
            raise ConfigError(what, path=meta_path(place.path, DATASET_YAML), hint="Make them identical")


def split_tars(
    source: Place, places: Sequence[Place], deal: Callable[[int], Deal], command: Mapping[str, Any], how: RunOptions,
    **options: Any,
) -> tuple[Written, ...]:  # fmt: skip
    """Assign the samples of one split, or of a dataset without splits, to several datasets.

    Args:
        source: dataset of tars.
        places: outputs.
        deal: number of samples → function that assigns them to outputs.
        command: command and options, for the side files.
        how: how to run it.
        options: as in `merge_tars`.
    """
    given = _known(options)
    split, follow_links = given.pop("split", None), given.pop("follow_links", False)
    opened = [_splits_of(source, split, follow_links)]
    if given.pop("prefix_keys", False):
        opened, command = _with_prefixes(opened), {**command, "prefix_keys": True}
    [(dataset, splits)] = opened
    samples = _one_split(dataset, splits)
    for place in places:
        require_other([dataset.path], place.path)
    shards = [[one.path, table.num_samples, int(table.sizes.sum())] for one, table, _ in samples.shards]
    return run(
        TarJob(
            output=places[0].folder().child(dataset.name),
            outputs=[Output(place, FORMAT) for place in places],
            options=how,
            counter=Counter(len(samples), how.progress),
            sources=[dataset],
            writer_options=given | _typing(dataset),
            noted=_lineage([(dataset, splits)], split, command, samples.excluded),
            what={**command, "options": options, "source": dataset.shown, "shards": digest(shards)},
            by_split={"": samples},
            deal=deal(len(samples)),
        )
    )


def _one_split(dataset: Place, splits: Mapping[str, TarSamples]) -> TarSamples:
    filled = {name: one for name, one in splits.items() if len(one)}
    if len(filled) > 1:
        raise ConfigError(
            "the split to divide is not specified",
            path=dataset.path,
            found=", ".join(filled),
            hint="Specify it with --split",
        )
    return next(iter(filled.values()), _joined([]))


def _known(options: dict[str, Any]) -> dict[str, Any]:
    given = were_given(options)
    unknown = sorted(set(given) - set(_OPTIONS))
    if unknown:
        raise ConfigError(f"{', '.join(unknown)} doesn't apply to tar shards", expected=", ".join(_OPTIONS))
    return given


def _with_prefixes(opened: Sequence[tuple[Place, dict[str, TarSamples]]]) -> list[tuple[Place, dict[str, TarSamples]]]:
    """Prefix each key with the name of its shard, and of its source if there are several."""
    names = distinct_names([place for place, _ in opened]) if len(opened) > 1 else [""]
    found: list[tuple[Place, dict[str, TarSamples]]] = []
    for name, (place, splits) in zip(names, opened, strict=True):
        start = len(place.path.rstrip("/") or place.path) + 1
        source = f"{name}/" if name else ""
        prefixed: dict[str, TarSamples] = {}
        for split, one in splits.items():
            prefixed[split] = one.with_prefixes([source + key_prefix(shard.path[start:]) for shard, *_ in one.shards])
        found.append((place, prefixed))
    return found


def _require_keys(all_samples: Sequence[TarSamples]) -> None:
    """Raise `ConfigError` if a key is repeated. Memory: 16 bytes per key."""
    chosen = [(shard, table, places) for one in all_samples for shard, table, places in one.shards]
    count = sum(len(places) for *_, places in chosen)
    keys = (table.keys[place] for _, table, places in chosen for place in places.tolist())
    hashes = np.sort(np.fromiter(map(hash, keys), np.int64, count))
    repeated = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    if not repeated:
        return
    first: dict[str, Place] = {}
    for shard, table, places in chosen:
        for place in places.tolist():
            key = table.keys[place]
            if hash(key) not in repeated:
                continue
            if key in first:
                raise repeated_key(key, first[key].path, shard.path)
            first[key] = shard


def _splits_of(given: Place, split: str | None, follow_links: bool) -> tuple[Place, dict[str, TarSamples]]:
    """Return the dataset's directory, and its samples by split; `train` if it has no splits or metadata."""
    place = dataset_at(given, follow_links=follow_links)
    store, root = place.store, place.path.rstrip("/") or place.path
    place = Place(store, root)
    if not any(store.exists(meta_path(root, name)) for name in (INFO_JSON, INFO_YAML)):
        if split is not None:
            raise ConfigError("this folder isn't prepared: it has no splits", path=root, found=split)
        found = find_readable_shards(store, root)
        for warning in found.warnings:
            _log.warning("%s: %s", place.shown, warning)
        samples = _samples(place, found.names, {})
        for shard, table, _ in samples.shards:
            problem = require_ended(shard.store, shard.path, table)
            if problem is not None:
                _log.warning("%s: %s", shard.shown, problem.what)
        start = len(root) + 1
        counts = {shard.path[start:]: table.num_samples for shard, table, _ in samples.shards}
        require_as_recorded(store, root, counts)
        return place, {_TRAIN: samples}
    info = read_info(store, root)
    require_as_recorded(store, root, info.counts)
    known = read_splits(store, root)
    if split is None and not known.parts:
        return place, {_TRAIN: _samples(place, list(info.counts), {}).without(_excluded(place, None))}
    names = [split] if split is not None else list(known.parts)
    found = {name: _samples(place, *split_shards(info, known, name, root)) for name in names}
    return place, {name: one.without(_excluded(place, name)) for name, one in found.items()}


def _excluded(place: Place, split: str | None) -> IntArray | None:
    return excluded_of(open_at(get_format(FORMAT), place.store, place.path, OpenOptions(split=split, raw=True)))


def _samples(place: Place, shards: Sequence[str], left_out: dict[str, list[str]]) -> TarSamples:
    made: list[tuple[Place, ShardTable, IntArray]] = []
    for name in shards:
        shard = place.child(name)
        table = scan_shard(shard.store, shard.path)
        require_content(table, shard.path)
        gone = set(left_out.get(name, ()))
        places = [place for place, key in enumerate(table.keys) if key not in gone] if gone else table.num_samples
        made.append((shard, table, np.arange(places) if isinstance(places, int) else np.array(places, np.int64)))
    return TarSamples(tuple(made))


def _joined(parts: Sequence[TarSamples]) -> TarSamples:
    return TarSamples(tuple(shard for one in parts for shard in one.shards), sum(one.excluded for one in parts))


def _typing(place: Place) -> dict[str, Any]:
    """Return writer options for `dataset.yaml` and the code that it names, if it exists."""
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
