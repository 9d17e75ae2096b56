"""Shards written by workers of another framework: one partition each, and one index over all afterwards.

With Spark, for a DataFrame `df` (nothing of Spark is imported here):

    def write(index, rows):
        yield write_partition((row.asDict() for row in rows), "/data/out", index, columns={"text": "str"})

    df.rdd.mapPartitionsWithIndex(write).collect()
    merge_partitions("/data/out")
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.convert.columns import GROUPED
from penstock.errors import ConfigError, PenstockError
from penstock.formats import get_format
from penstock.formats.shards.merge import merge_index
from penstock.store.place import place_of
from penstock.types import Sample


def write_partition(
    rows: Iterable[Mapping[str, Any]],
    out: str | os.PathLike[str],
    index: int,
    *,
    columns: Mapping[str, str],
    format: str = "mds",
    overwrite: bool = True,
    **options: Any,
) -> int:
    """Write one partition of a dataset as `out/<index>/`, for example from a Spark task.

    Writing a partition again replaces the previous attempt. Memory: that of the format's writer.

    Args:
        rows: samples; may be empty.
        out: directory of the whole dataset, the same for all partitions.
        index: number of this partition.
        columns: name → encoding, the same for all partitions.
        format: mds, csv, tsv, xsv or json-shards.
        overwrite: replace an existing partition.
        options: `size_limit=`, `compression=`, `hashes=`, and other options of the format.

    Returns:
        Number of samples written.

    Raises:
        ConfigError: an option is invalid, or a row doesn't match the columns; the message names the row.

    Examples:
        >>> import penstock as ps
        >>> from penstock.convert import merge_partitions, write_partition
        >>> for part in range(2):
        ...     rows = [{"id": 10 * part + number} for number in range(3)]
        ...     num_samples = write_partition(rows, "parts-mds", part, columns={"id": "int"})
        >>> merge_partitions("parts-mds")
        2
        >>> [sample["id"] for sample in ps.open("parts-mds")]
        [0, 1, 2, 10, 11, 12]
    """
    if format not in GROUPED:
        raise ConfigError("partitions are only supported for shards", found=format, expected=", ".join(GROUPED))
    if index < 0:
        raise ConfigError("a partition needs a number", found=index, expected="0 or more")
    place = place_of(out).child(f"{index:05d}")
    chosen = {"columns": dict(columns), **options}
    with get_format(format).create(place.store, place.path, chosen, overwrite=overwrite) as writer:
        for number, row in enumerate(rows):
            sample: Sample = dict(row)
            try:
                writer.write(sample)
            except PenstockError as error:
                error.what = f"partition {index}, row {number}: {error.what}"
                raise
        return writer.commit().num_samples


def merge_partitions(out: str | os.PathLike[str], *, overwrite: bool = False) -> int:
    """Write one `index.json` for all partitions in `out`, ordered by their numbers.

    Args:
        out: directory with the partitions that `write_partition` wrote.
        overwrite: replace a different index.

    Returns:
        Number of shards.

    Raises:
        NotFound: there is no partition.
        ConfigError: a different index exists.

    Examples:
        >>> from penstock.convert import merge_partitions, write_partition
        >>> write_partition([{"id": 1}, {"id": 2}], "parts-mds", 0, columns={"id": "int"})
        2
        >>> merge_partitions("parts-mds")
        1
    """
    return merge_index(out, overwrite=overwrite)
