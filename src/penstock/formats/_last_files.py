"""Files that identify datasets in folders: the last file that is written, and files of other datasets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

from penstock.store.base import Store
from penstock.store.object_folder import require_finished

LAST_FILES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("mds", "csv", "tsv", "xsv", "json-shards"), ("index.json",)),
    "webdataset": (".nv-meta/.info.json",),
    "folder": (".penstock",),
    "flat-tokens": (".zgroup", "zarr.json"),
}
"""Format whose dataset is a folder → files, one of which makes it visible in a store without folders."""

_MOST_LOOKED_AT = 1000
_INDEXES = ("index.json", ".zgroup", "zarr.json", "state.json", "dataset_dict.json")
_PLAIN = (".jsonl", ".ndjson")
_DATA = (
    *(plain + packed for plain in _PLAIN for packed in ("", ".gz", ".zst")),
    *(".parquet", ".pq", ".arrow", ".tar", ".mds", ".pbin", ".bin", ".npy", ".ds", ".zarr"),
)


def last_file(name: str, store: Store, path: str) -> str | None:
    """Return the file that makes the dataset of the format `name` at `path` visible; None if there is none."""
    names = (f"{path.rstrip('/')}/{one}" for one in LAST_FILES.get(name, ()))
    return next((one for one in names if store.exists(one)), None)


def require_no_writer(store: Store, path: str) -> None:
    """Raise `NotFound` if a writer of any format is running on a folder, or was killed."""
    for last in dict.fromkeys(one for names in LAST_FILES.values() for one in names):
        require_finished(store, f"{path.rstrip('/')}/{last}")


def other_data(names: Iterable[str], own: tuple[str, ...]) -> str | None:
    """Return a file of a dataset of another kind, so that the folder isn't mistaken for one dataset.

    Args:
        names: paths of files in the folder.
        own: suffixes of the files that belong to the dataset.
    """
    for path in names:
        name = path.rpartition("/")[2]
        if name.endswith(own):
            continue
        if name in _INDEXES or name.endswith(_DATA) or "/.nv-meta/" in f"/{path}":
            return path
    return None


def first_entries(
    root: str, enters: Callable[[os.DirEntry[str]], bool] = lambda one: not one.name.startswith((".", "_"))
) -> Iterator[os.DirEntry[str]]:
    """Yield the first 1,000 entries of a folder of this machine, and of the folders below it that `enters` accepts."""
    left, folders = _MOST_LOOKED_AT, [root]
    while folders and left > 0:
        with os.scandir(folders.pop(0)) as entries:
            for entry in entries:
                left -= 1
                yield entry
                if left <= 0:
                    break
                if entry.is_dir(follow_symlinks=False) and enters(entry):
                    folders.append(entry.path)
