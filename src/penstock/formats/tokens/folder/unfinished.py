"""Detection of folders with an unfinished run of `pack`, which are never read as if they were complete."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

from penstock._secrets import redact
from penstock.errors import NotFound, PrepareError
from penstock.formats.tokens.folder.files import read_index_bytes
from penstock.formats.tokens.folder.index import INDEX_NAME, TOKEN_FILE_NAME
from penstock.store._files import is_folder
from penstock.store.base import Store
from penstock.store.names import WORK

_COMMIT_FILES = (
    *(INDEX_NAME, ".nv-meta/.info.json", ".nv-meta/.info.yaml", ".zgroup", ".zarray", "zarr.json"),
    *("state.json", "dataset_dict.json"),
)
"""Files that each make a folder a dataset, even with unfinished work in it."""
_MOST_LOOKED_AT = 1000


def find_unfinished(store: Store, root: str) -> str | None:
    """Return the evidence that a folder without an index holds unfinished work; None without any.

    This takes a few lookups, and a listing of the first 1,000 names.
    """
    if store.exists(f"{root}/{WORK}"):
        return None if any(store.exists(f"{root}/{name}") for name in _COMMIT_FILES) else f"{WORK}/ and no commit file"
    if store.exists(f"{root}/{INDEX_NAME}"):
        return None
    first = first_token_file(store, root)
    return None if first is None else f"{first} and no {INDEX_NAME}"


def first_token_file(store: Store, root: str) -> str | None:
    """Return a token file of Penstock among the first 1,000 names in a folder; None if there is none."""
    return next((name for name in _names(store, root) if TOKEN_FILE_NAME.fullmatch(name)), None)


def read_finished_index(store: Store, root: str) -> bytes:
    """Return the bytes of the index of a folder.

    Raises:
        NotFound: there is no index, nor unfinished work that would make one.
        PrepareError: the run that makes it is unfinished.
    """
    try:
        return read_index_bytes(store, root)
    except NotFound:
        found = find_unfinished(store, root)
        if found is None:
            raise
        raise unfinished(root, found) from None


def unfinished(root: str, found: str) -> PrepareError:
    """Return the error for reading such a folder."""
    return PrepareError(
        "the dataset is unfinished",
        path=root,
        found=found,
        expected=INDEX_NAME,
        hint=f"`penstock status {redact(root)}` shows what is missing; re-run the command that began it to finish",
    )


def _names(store: Store, root: str) -> Iterator[str]:
    if store.is_local and is_folder(root):
        with os.scandir(root) as entries:
            yield from (entry.name for entry in itertools.islice(entries, _MOST_LOOKED_AT))
    first_names = getattr(store, "first_names", None)  # of a remote store: by one request
    for path in first_names(root) if first_names is not None else ():
        yield path.partition("/")[0]
