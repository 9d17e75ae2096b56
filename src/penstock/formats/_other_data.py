"""Data of other kinds in a folder that is searched for files: such a folder is not taken for one dataset by guess."""

from __future__ import annotations

from collections.abc import Iterable

_INDEXES = ("index.json", ".zgroup", "zarr.json", "state.json", "dataset_dict.json")
_PLAIN = (".jsonl", ".ndjson")
_DATA = (
    *(plain + packed for plain in _PLAIN for packed in ("", ".gz", ".zst")),
    *(".parquet", ".pq", ".arrow", ".tar", ".mds", ".pbin", ".bin", ".npy", ".ds", ".zarr"),
)


def other_data(names: Iterable[str], own: tuple[str, ...]) -> str | None:
    """A file of a dataset of another kind, if there is one.

    Args:
        names: of files, by their paths in the folder.
        own: what the names of those end in that are looked for.
    """
    for path in names:
        name = path.rpartition("/")[2]
        if name.endswith(own):
            continue
        if name in _INDEXES or name.endswith(_DATA) or "/.nv-meta/" in f"/{path}":
            return path
    return None
