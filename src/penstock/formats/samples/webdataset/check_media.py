"""Checking what `index.sqlite` says of media in a shard against their headers."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import numpy as np

from penstock.abc import Store
from penstock.codec.media_bytes import stored_media
from penstock.errors import Corrupt, PenstockError
from penstock.formats._findings import Problem
from penstock.formats.samples.media_index import other_header, read_metadata
from penstock.formats.samples.sqlite import connect
from penstock.formats.samples.webdataset.nvmeta import SQLITE, meta_path
from penstock.formats.samples.webdataset.shards import ShardTable


def check_media(store: Store, root: str, path: str, table: ShardTable) -> Iterator[Problem]:
    """Rows of media whose header says something else.

    Args:
        store: where all are.
        root: the dataset's folder.
        path: the shard.
        table: its headers.
    """
    index = meta_path(root, SQLITE)
    if not store.exists(index):
        return
    of_sample = np.repeat(np.arange(table.num_samples), np.diff(table.part_starts)).tolist()
    try:
        with closing(connect(store, index)) as connection:
            for place, (sample, part) in enumerate(zip(of_sample, table.part_names, strict=True)):
                name = f"{table.keys[sample]}.{part}"
                metadata = read_metadata(connection, name, path=index)
                if metadata is None:
                    continue
                start_bytes = int(table.contents[place])
                media = stored_media(store, path, start_bytes, int(table.sizes[place]))
                found = other_header(media, metadata)
                if found is not None:
                    what = f"the media metadata of {name!r} differs from the header of the file"
                    fix = "Read it again: `penstock prepare-media`"
                    yield Problem(
                        "webdataset.media-differs", Corrupt, path, what, fix, start_bytes, found, str(metadata),
                        severity="warning",
                    )  # fmt: skip
    except sqlite3.Error:
        return  # said already
    except PenstockError as error:
        fix = "Rebuild it: `penstock prepare-media`"
        yield Problem("webdataset.media-index", Corrupt, index, "not a valid media index", fix, found=str(error))
