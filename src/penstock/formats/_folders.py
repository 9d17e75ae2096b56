"""Datasets in folders: the file that makes one visible, files of other datasets, and the default split."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

from penstock._printable import printable
from penstock._secrets import logger, redact
from penstock.errors import ConfigError, Denied, NotFound, Unsupported
from penstock.store.base import Store
from penstock.store.object_folder import require_finished

LAST_FILES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("mds", "csv", "tsv", "xsv", "json-shards"), ("index.json",)),
    "webdataset": (".nv-meta/.info.json",),
    "folder": (".penstock",),
    "flat-tokens": (".zgroup", "zarr.json"),
}
"""Format of datasets in folders → files; one of them makes a dataset visible in a store without folders."""

_MOST_LOOKED_AT = 1000
_INDEXES = ("index.json", ".zgroup", "zarr.json", "state.json", "dataset_dict.json")
_PLAIN = (".jsonl", ".ndjson")
_DATA = (
    *(plain + packed for plain in _PLAIN for packed in ("", ".gz", ".zst")),
    *(".parquet", ".pq", ".arrow", ".tar", ".mds", ".pbin", ".bin", ".npy", ".ds", ".zarr"),
)


def last_file(name: str, store: Store, path: str) -> str | None:
    """Return the file that makes the dataset of the format `name` at `path` visible; None if it doesn't exist."""
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


DEFAULT_SPLIT = "train"
_log = logger(__name__)


def choose_default_split(path: str, names: Sequence[str]) -> str:
    """Return the split to read if none is named: the only one, else `train`, which a log line names.

    Raises:
        ConfigError: there are several splits, and none is called `train`.
    """
    if len(names) == 1:
        return names[0]
    if DEFAULT_SPLIT not in names:
        what, hint = "the dataset has several splits", "Choose one with --split (split=)"
        raise ConfigError(what, path=path, found=", ".join(names) or "none", hint=hint)
    _name_split(path, tuple(names))
    return DEFAULT_SPLIT


def lacks_default_split(store: Store, path: str, names: Sequence[str]) -> bool:
    """Return whether the folder `train` exists but isn't one of the readable splits `names`.

    Takes at most one look or one request. False for web servers, which can't list folders.
    """
    if not names or DEFAULT_SPLIT in names:
        return False
    folder = f"{path}/{DEFAULT_SPLIT}"
    if store.is_local:
        return store.is_folder(folder)
    if store.lists_levels:
        return bool(store.first_names(folder))
    with contextlib.suppress(NotFound, Denied, Unsupported):
        return any(True for _ in store.list(folder))
    return False


def require_default_split(store: Store, path: str, names: Sequence[str], required_file: str) -> None:
    """Raise `NotFound` if a folder `train` without `required_file` is next to the readable splits `names`."""
    if lacks_default_split(store, path, names):
        raise lacks_file(path, DEFAULT_SPLIT, required_file, names)


def lacks_file(path: str, split: str, required_file: str, names: Sequence[str]) -> NotFound:
    """Return the error for a split without the file that makes it readable, next to the readable splits `names`."""
    return NotFound(
        f"the split {split} has no {required_file}",
        path=f"{path}/{split}",
        hint=f"Finish writing or copying it, or choose another split with --split (split=): {', '.join(names)}",
    )


@functools.lru_cache(maxsize=1024)  # a command opens a dataset more than once
def _name_split(path: str, names: tuple[str, ...]) -> None:
    where, listed = redact(printable(path)), printable(", ".join(names))
    _log.warning("%s: reads split %s of %s; choose another with --split (split=)", where, DEFAULT_SPLIT, listed)
