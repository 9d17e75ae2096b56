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
    """Write one partition as `out/<index>/`; a partition that is run again replaces what it left.

    Memory: that of the format's writer.

    Args:
        rows: samples; may be none.
        out: folder of the whole dataset, the same for all partitions.
        index: number of this partition.
        columns: name → encoding, the same for all partitions.
        format: mds, csv, tsv, xsv or json-shards.
        overwrite: replace the partition where it is there.
        options: `size_limit=`, `compression=`, `hashes=`, and what the format names itself.

    Returns:
        How many samples it has.

    Raises:
        ConfigError: options that can't be, or a row that does not fit the columns; it is named by its number.
    """
    if format not in GROUPED:
        raise ConfigError("partitions are of shards", found=format, expected=", ".join(GROUPED))
    if index < 0:
        raise ConfigError("a partition has a number", found=index, expected="0 or more")
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
    """One `index.json` over all partitions in `out`, in the order of their numbers; returns the number of shards.

    Raises:
        NotFound: there is no partition.
        ConfigError: an index is there already, and is another one.
    """
    return merge_index(out, overwrite=overwrite)
