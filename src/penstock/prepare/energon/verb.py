"""`prepare` as one function: of what the command takes, for tars and for a JSONL file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack, cast

from penstock._keywords import Preparing
from penstock.errors import ConfigError
from penstock.formats.samples.webdataset.nvmeta import DATASET_YAML
from penstock.prepare.energon.guess import CRUDE, check_field_map, dataset_options, sample_type_named
from penstock.prepare.energon.plan import DatasetOptions, peek_webdataset, plan_webdataset
from penstock.prepare.energon.request import PrepareSummary
from penstock.prepare.energon.run import prepare_jsonl, prepare_webdataset
from penstock.prepare.jsonl_index import IndexReport
from penstock.prepare.media.rows import ShardMedia, media_depth, media_filter
from penstock.store.place import Given, place_of

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
        exact, headers_only: how much of each media file to read, as in `penstock.prepare.media.run.prepare_media`.
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
        seen = (options.get("exclude"), options.get("follow_links", False))
        more["dataset"], _ = dataset_of(path, sample_type, field_map, dataset_yaml_name, *seen)
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
    """The contents of `dataset.yaml`, held against the first samples; and field → what it shows of the first one.

    Raises:
        ConfigError: no such type, or a field that is not there.
    """
    kind = sample_type_named(sample_type)
    shards = plan_webdataset(path, exclude=exclude, follow_links=follow_links).shards
    samples = peek_webdataset(path, shards, samples=_PEEKED, follow_links=follow_links)
    shown: dict[str, str] = {}
    if field_map is not None and kind != CRUDE:
        shown = check_field_map(field_map, kind, samples)
    parts = list(dict.fromkeys(part for one in samples for part in one.parts))
    return dataset_options(kind, field_map, parts, name=name), shown
