"""`prepare` of tar shards and of JSONL files, by its Python arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack, cast

from penstock._keywords import Preparing
from penstock.engine.options import RunOptions
from penstock.engine.run import run
from penstock.errors import ConfigError
from penstock.executors import AnyExecutor
from penstock.formats.samples.webdataset.nvmeta import DATASET_YAML
from penstock.formats.samples.webdataset.splits import parse_ratio
from penstock.prepare.energon.guess import CRUDE, check_field_map, dataset_options, sample_type_named
from penstock.prepare.energon.job import PrepareJob, PrepareSummary, Progress
from penstock.prepare.energon.plan import (
    DatasetOptions,
    MetadataOptions,
    peek_webdataset,
    plan_webdataset,
    require_room,
)
from penstock.prepare.jsonl_index import IndexReport, build_index
from penstock.prepare.media.rows import ShardMedia, media_depth, media_filter
from penstock.store.place import Given, dataset_at, place_of
from penstock.store.put import require_writable

_PEEKED = 2
_OF_LINES = {"workers", "overwrite"}


def prepare(
    path: Given,
    *,
    sample_type: str | None = None,
    field_map: Mapping[str, str] | None = None,
    dataset_yaml_name: str = DATASET_YAML,
    media: str | None = None,
    media_patterns: str | Sequence[str] | None = None,
    exact: bool = False,
    headers_only: bool = False,
    **options: Unpack[Preparing],
) -> PrepareSummary | IndexReport:
    """Write Energon's metadata for a directory of tar shards, or the index of a JSONL file.

    Shards are only read.

    Args:
        path: the directory, or a file that ends with `.jsonl`.
        sample_type: type of the samples: one of Energon's, or CrudeWebdataset. By default `dataset.yaml` is kept.
        field_map: field → part of the sample that it comes from; checked against the first samples.
        dataset_yaml_name: name of the `dataset.yaml` to write.
        media: also index the metadata of media files, found by `"extension"`, `"glob"` or `"header"`.
        media_patterns: patterns for `"glob"`.
        exact: as in `penstock.prepare.media.run.prepare_media`.
        headers_only: as in `penstock.prepare.media.run.prepare_media`.
        options: the other options of `penstock.prepare.energon.run.prepare_webdataset`: `split_ratio, split_parts,
            exclude, shuffle_tars, tar_index_only, sqlite, workers, executor, part, finish, no_work, restart, overwrite,
            follow_links, progress`. A JSONL file takes only `workers` and `overwrite`.

    Returns:
        A summary with the number of shards and samples of each split, or the report on the index of a JSONL file.

    Raises:
        NotFound: the directory or file doesn't exist, or contains no shards.
        ConfigError: the dataset is already prepared, or an option is invalid.
        FormatError: a shard or a line is damaged.
        PrepareError: another run is preparing it, or a process was killed.

    Examples:
        >>> import penstock as ps
        >>> summary = ps.prepare(
        ...     "tars",
        ...     sample_type="CaptioningSample",
        ...     field_map={"image": "png", "caption": "txt"},
        ...     split_ratio="1,0,0",
        ... )
        >>> ps.open("tars")[0]["caption"]
        'picture 0'
    """
    place, more = place_of(path), cast(dict[str, Any], options)
    if place.name.endswith(".jsonl"):
        if any((sample_type, field_map, media, media_patterns, exact, headers_only)) or not options.keys() <= _OF_LINES:
            expected = ", ".join(sorted(_OF_LINES))
            raise ConfigError("a JSONL file has no shards or dataset.yaml", path=place.path, expected=expected)
        return prepare_jsonl(path, **more)
    if sample_type is None and field_map is not None:
        raise ConfigError("field_map needs a sample_type", path=place.path)
    if media is None and (media_patterns or exact or headers_only):
        raise ConfigError("no media metadata is requested", path=place.path, hint="Pass media=")
    if sample_type is not None:
        shards = (options.get("exclude"), options.get("follow_links", False))
        more["dataset"], _ = dataset_of(path, sample_type, field_map, dataset_yaml_name, *shards)
    if media is not None:
        more["media"] = ShardMedia(
            media_filter(media, media_patterns), media_depth(exact=exact, headers_only=headers_only)
        )
    return prepare_webdataset(path, **more)


def dataset_of(
    path: Given,
    sample_type: str,
    field_map: Mapping[str, str] | None,
    name: str,
    exclude: str | None,
    follow_links: bool,
) -> tuple[DatasetOptions, dict[str, str]]:
    """Return the contents of `dataset.yaml`, checked against the first samples, and field → its text in the first one.

    Raises:
        ConfigError: the type doesn't exist, or a field doesn't.
    """
    kind = sample_type_named(sample_type)
    shards = plan_webdataset(path, exclude=exclude, follow_links=follow_links).shards
    samples = peek_webdataset(path, shards, samples=_PEEKED, follow_links=follow_links)
    shown: dict[str, str] = {}
    if field_map is not None and kind != CRUDE:
        shown = check_field_map(field_map, kind, samples)
    parts = list(dict.fromkeys(part for one in samples for part in one.parts))
    return dataset_options(kind, field_map, parts, name=name), shown


def prepare_webdataset(
    path: Given,
    *,
    split_ratio: Mapping[str, float] | Sequence[float] | str | None = None,
    split_parts: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
    exclude: str | None = None,
    workers: int | None = None,
    tar_index_only: bool = False,
    shuffle_tars: bool = False,
    overwrite: bool = False,
    dataset: DatasetOptions | None = None,
    sqlite: bool = True,
    media: ShardMedia | None = None,
    executor: AnyExecutor = "processes",
    follow_links: bool = False,
    part: tuple[int, int] | None = None,
    finish: bool = False,
    no_work: bool = False,
    restart: bool = False,
    progress: Progress | None = None,
) -> PrepareSummary:
    """Write the metadata of a directory of tar shards, for Energon and for Penstock.

    Memory: a few times the names in the largest shard, and about 100 MiB, for any number of samples.

    Args:
        path: the directory.
        split_ratio: shares of train, val and test, such as `[8, 1, 1]` or `"8,1,1"`, or split → share. If this and
            `split_parts` are omitted, an existing `split.yaml` is kept.
        split_parts: split → regular expression for the names of its shards.
        exclude: leave out shards whose path matches this regular expression anywhere.
        workers: number of processes; by default one per core, or one for little data.
        tar_index_only: only write the indexes of the listed shards again.
        shuffle_tars: shuffle the shards before a ratio splits them.
        overwrite: prepare a prepared dataset again, and replace the files that the options write.
        dataset: content of `dataset.yaml`; None: an existing one is kept.
        sqlite: write `index.sqlite`, by which Energon finds samples and parts by name. `index.keys` is always written.
        media: reads metadata of media; None: metadata of unchanged shards is kept.
        executor: `"processes"`, `"inline"` (this process), another name, or an executor; see `penstock.executors`.
        follow_links: allow links that lead out of the dataset's directory.
        part: `(i, n)`: do part i (from 0) of n parts of a distributed job. A part consists of shards.
        finish: finalize the distributed job, doing missing work first.
        no_work: with `finish`, only commit if nothing is missing.
        restart: discard existing work.
        progress: called with the number of finished shards, and the number of all.

    Raises:
        NotFound: the directory doesn't exist, or contains no shards.
        ConfigError: the dataset is already prepared, an option is invalid, or a user's file is in the way.
        FormatError: a shard is damaged, empty or compressed, or repeats a key.
        PrepareError: another run is preparing the dataset, or a process was killed.
    """
    how = (executor, workers, part, finish, no_work, restart)
    options = RunOptions(*how, overwrite=overwrite or tar_index_only, progress=progress)
    ratio = parse_ratio(split_ratio) if isinstance(split_ratio, str) else split_ratio
    metadata = MetadataOptions(
        ratio, split_parts, exclude, dataset, shuffle_tars=shuffle_tars, tar_index_only=tar_index_only, sqlite=sqlite,
        media=media,
    )  # fmt: skip
    folder = dataset_at(path, follow_links=follow_links).bare()
    require_writable(folder.store, folder.path)
    require_room(folder)
    if tar_index_only and (exclude, ratio, split_parts, dataset) != (None, None, None, None):
        raise ConfigError("tar_index_only doesn't change the list of shards", hint="Omit exclude, splits and dataset")
    return run(PrepareJob(folder, metadata, options))


def prepare_jsonl(path: Given, *, workers: int | None = None, overwrite: bool = False) -> IndexReport:
    """Write the index `<path>.idx` of a JSONL file, as Energon does; see `penstock.index`."""
    return build_index(path, flavor="energon", workers=workers, overwrite=overwrite)
