"""Functions of the original's `streaming.base.util` that scripts call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from penstock._secrets import logger
from penstock.compat.unused import say_unused
from penstock.errors import ConfigError
from penstock.formats.shards import merge as shards
from penstock.formats.shards.index_json import INDEX_NAME
from penstock.store.place import local_place, place_of
from penstock.store.put import put

_log = logger()

Where = str | tuple[str, str]

_DEFAULTS = {"download_timeout": 60, "keep_local": True}


@overload
def merge_index(out: Where, /, *, keep_local: bool = True, download_timeout: int = 60) -> None: ...
@overload
def merge_index(
    index_file_urls: Sequence[Where], out: Where, /, keep_local: bool = True, download_timeout: int = 60
) -> None: ...
def merge_index(
    first: Where | Sequence[Where], out: Where | None = None, /, keep_local: bool = True, download_timeout: int = 60
) -> None:
    """Write one `index.json` over the shards of datasets below a folder.

    Without a list, all datasets below it are taken, at any nesting, in numeric order: folder 2 before 10.

    Args:
        first: the list of index files, each a path, a URL, or (path, URL); or else the folder.
        out: with a list: the folder, a path, a URL, or (path, URL), where the index goes to both.
        keep_local: with (path, URL): keep the merged index at the path; nothing else is ever removed.
        download_timeout: changes nothing, which is logged.

    Raises:
        NotFound: a dataset has no index, or there is none.
        ConfigError: a dataset that is not below the folder, or another index is there already.
    """
    say_unused("merge_index", "the store has its own time limits", {"download_timeout": download_timeout}, _DEFAULTS)
    if out is None:
        if not isinstance(first, (str, tuple)):
            raise ConfigError("merge_index takes a folder, or a list of index files and a folder", found=repr(first))
        out, parts = first if isinstance(first, str) else (str(first[0]), str(first[1])), None
    else:
        parts = [_present(part) for part in first]
    if isinstance(out, str):
        say_unused("merge_index", "without a URL the index stays", {"keep_local": keep_local}, _DEFAULTS)
        shards.merge_index(out, parts)
        return
    local, remote = local_place(out[0], "the local folder"), place_of(out[1])
    shards.merge_index(local.path, parts)
    index, copy = local.child(INDEX_NAME), remote.child(INDEX_NAME)
    put(copy.store, copy.path, index.store.get(index.path, 0, None))
    if not keep_local:
        index.store.delete(index.path)


def clean_stale_shared_memory() -> None:
    """Do nothing: datasets here make no shared memory, so a killed run leaves none behind."""
    _log.info("there is no shared memory to clean")


def _present(part: Where) -> str:
    if isinstance(part, str):
        return part
    local, remote = part
    return local if place_of(local).exists() else remote
