"""Which file makes a dataset of a folder visible, in a store that can't make folders visible at once."""

from __future__ import annotations

from penstock.abc import Store
from penstock.store.object_folder import require_finished

LAST_FILES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("mds", "csv", "tsv", "xsv", "json-shards"), ("index.json",)),
    "webdataset": (".nv-meta/.info.json",),
    "folder": (".penstock",),
    "flat-tokens": (".zgroup", "zarr.json"),
}
"""Format whose dataset is a folder → the file that makes it visible in a store without folders; one of them is."""


def last_file(name: str, store: Store, path: str) -> str | None:
    """The file that makes the dataset of the format `name` at `path` visible; None where none is there."""
    names = (f"{path.rstrip('/')}/{one}" for one in LAST_FILES.get(name, ()))
    return next((one for one in names if store.exists(one)), None)


def require_no_writer(store: Store, path: str) -> None:
    """Raise `NotFound` where a writer of any format is at work on a folder, or was killed."""
    for last in dict.fromkeys(one for names in LAST_FILES.values() for one in names):
        require_finished(store, f"{path.rstrip('/')}/{last}")
