"""Find the index for a path and a split, and the files it lists, by names such as `shard.00012.mds.zstd`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection
from dataclasses import dataclass

from penstock.codec.compress import FAMILIES
from penstock.errors import ConfigError, Denied, NotFound, PenstockError, Unsupported
from penstock.formats._folders import (
    DEFAULT_SPLIT,
    choose_default_split,
    lacks_file,
)
from penstock.formats._unrecognised import holds_datasets
from penstock.formats.shards.index_json import FORMATS, INDEX_NAME, Index, parse_index
from penstock.formats.shards.side import SIDE_NAME
from penstock.store.base import Store
from penstock.store.object_folder import GO_ON, UNFINISHED, is_unfinished

_NAME = re.compile(
    rf"(?P<folder>(?:[^/]+/)*)shard\.(?P<number>[0-9]{{5,18}})\.(?P<format>{'|'.join(FORMATS)})"
    rf"(?P<meta>\.meta)?(?:\.(?P<family>{'|'.join(FAMILIES)}))?"
)


@dataclass(frozen=True, slots=True)
class ShardName:
    """Parsed name of a shard file.

    Attributes:
        stem: path of the raw data file inside the dataset's folder, common to the files of one shard.
        format: format name as in an index.
        is_meta: true for a meta file.
        family: compression family; None for a raw file.
    """

    stem: str
    format: str
    is_meta: bool
    family: str | None


def parse_shard_name(name: str) -> ShardName | None:
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    stem = f"{found['folder']}shard.{found['number']}.{found['format']}"
    return ShardName(stem, found["format"], found["meta"] is not None, found["family"])


def shards_in(store: Store, folder: str) -> dict[str, str]:
    """Return path inside the folder → path, of all files with names of shards; empty if the store can't list."""
    try:
        names = {file[len(folder.rstrip("/")) + 1 :]: file for file in store.list(folder)}
    except PenstockError:
        return {}
    return {name: file for name, file in names.items() if parse_shard_name(name) is not None}


def has_shards(store: Store, folder: str, stored: str) -> bool:
    """Return true if a folder has shards of a format, raw or compressed, by one listing or a few requests.

    In an object store, shards become visible one by one, in any order, before their index does.
    """
    if store.lists_levels:
        found = (parse_shard_name(name) for name in store.first_names(folder))
        return any(one is not None and one.format == stored for one in found)
    name = f"{folder}/shard.00000.{stored}"
    return any(store.exists(one) for one in (name, *(f"{name}.{family}" for family in FAMILIES)))


def numeric_order(path: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts paths part by part, with numbers in them by value: 2 before 10."""
    key: list[tuple[int, int, str]] = []
    for part in path.split("/"):
        for piece in filter(None, re.split(r"([0-9]+)", part)):
            number = piece.lstrip("0")  # of any length, which `int` rejects
            key.append((0, len(number), f"{number} {piece}") if piece.isascii() and piece.isdigit() else (1, 0, piece))
        key.append((-1, 0, ""))
    return key


_SPLITS = ("train", "val", "test", "dev", "eval")  # prefixes of names of splits; other names are those of datasets
_NO_INDEX = (
    "Re-run the interrupted command to finish it (see `penstock status`). "
    "`penstock repair` rebuilds a lost index from its shards"
)


def index_folder(store: Store, path: str, split: str | None) -> str:
    """Return the folder of the index for `path` and `split`: `path` itself, or one of its splits.

    Without `split`: `path` if it has an index, else its only split if it has the name of a split, else `train`.

    Raises:
        NotFound: there is no index; the error lists the splits. Or the default is `train`, which has no index.
        ConfigError: there are several splits to choose from, or the split is outside the folder.
        Unsupported: the folder holds several datasets.
    """
    path = folder_of(path)
    if split is not None:
        if split.startswith("/") or ".." in split.split("/"):
            raise ConfigError("a split is a folder inside the dataset", path=path, found=repr(split))
        if _has_index(store, f"{path}/{split}"):
            return f"{path}/{split}"
    elif _has_index(store, path):
        return path
    splits = splits_in(store, path)
    if split is None and splits:
        if DEFAULT_SPLIT not in splits:
            _require_no_lost_split(store, path, splits)
        return f"{path}/{choose_default_split(path, require_splits(store, path, splits))}"
    where = f"{path}/{INDEX_NAME}" if split is None else f"{path}/{split}/{INDEX_NAME}"
    if is_unfinished(store, where):
        raise NotFound(f"no index yet: {UNFINISHED}", path=where, hint=GO_ON)
    hint = f"Splits here: {', '.join(splits)}" if splits else _NO_INDEX
    raise NotFound("no index", path=where, hint=hint)


def _has_index(store: Store, folder: str) -> bool:
    try:
        store.size(f"{folder}/{INDEX_NAME}")  # a remote store caches this answer, unlike that of `exists`
    except NotFound:
        return False
    return True


def folder_of(path: str) -> str:
    """Return `path`, or its folder if `path` is the index itself."""
    path = path.rstrip("/") or path
    if path == INDEX_NAME:
        return "."
    return path.removesuffix(f"/{INDEX_NAME}")


def splits_in(store: Store, path: str) -> list[str]:
    """Return the names of folders directly below `path` that have an index, sorted; empty if `path` isn't a folder."""
    if store.is_local:
        if not store.is_folder(path):
            return []
        with os.scandir(path) as entries:  # doesn't stat the entries, of which there may be a million
            names = sorted(one.name for one in entries if one.is_symlink() or one.is_dir())
        return [name for name in names if store.exists(f"{path}/{name}/{INDEX_NAME}")]
    try:
        files = list(store.list(path))
    except (NotFound, Unsupported, Denied):
        return []  # the folder doesn't exist, or the store can't list
    inner = (file[len(path.rstrip("/")) + 1 :].split("/") for file in files)
    return sorted(parts[0] for parts in inner if len(parts) == 2 and parts[1] == INDEX_NAME)


def lost_splits(store: Store, path: str, names: Collection[str]) -> list[str]:
    """Return the folders next to the readable splits `names` that are splits without an index, sorted.

    These are `train`, and those with another name of a split that are empty or hold shards. There are none if no split
    is readable, or the store can't list.
    """
    if not names:
        return []
    files: dict[str, list[str]] = {}
    if store.is_local:
        with os.scandir(path) as entries:
            folders = [one.name for one in entries if _is_split(one.name) and one.is_dir()]
        for name in set(folders).difference(names):
            with os.scandir(f"{path}/{name}") as entries:
                files[name] = [one.name for one in entries]
    elif store.lists_levels:  # one request per folder, however many files it holds
        with contextlib.suppress(NotFound, Unsupported, Denied):
            folders, _ = store.level(path)
            for name in set(filter(_is_split, folders)).difference(names):
                inner_folders, inner_files = store.level(f"{path}/{name}")
                files[name] = [*inner_files, *inner_folders]
    else:
        with contextlib.suppress(NotFound, Unsupported, Denied):
            for file in store.list(path):
                name, _, inner = file[len(path.rstrip("/")) + 1 :].partition("/")
                if inner and _is_split(name) and name not in names:
                    files.setdefault(name, []).append(inner)
    return sorted(name for name, inner in files.items() if name == DEFAULT_SPLIT or _may_be_shards(inner))


def _is_split(name: str) -> bool:
    return name.lower().startswith(_SPLITS)


def _may_be_shards(names: Collection[str]) -> bool:
    shown = [name for name in names if not name.startswith(".")]
    return not shown or any(parse_shard_name(name) is not None for name in shown)


def _require_no_lost_split(store: Store, path: str, names: list[str]) -> None:
    """Raise `NotFound` if splits without an index are next to `names`, of which none is `train`."""
    lost = lost_splits(store, path, names)
    if DEFAULT_SPLIT not in lost:
        require_splits(store, path, names)  # otherwise these are independent datasets
    if lost:
        name = DEFAULT_SPLIT if DEFAULT_SPLIT in lost else lost[0]
        raise lacks_file(path, name, INDEX_NAME, names)


def split_folders(store: Store, path: str) -> list[str]:
    names = splits_in(store, path)
    return [
        f"{path}/{name}" for name in require_splits(store, path, sorted([*names, *lost_splits(store, path, names)]))
    ]


def require_splits(store: Store, path: str, names: list[str]) -> list[str]:
    """Return `names`; raises `Unsupported` if they are datasets: none is `train`, and not all are names of splits."""
    if DEFAULT_SPLIT not in names and not all(map(_is_split, names)):
        raise holds_datasets(store, path)
    return names


def own_files(store: Store, folder: str) -> list[str]:
    """Return the names of the files that a folder's index lists; the index last. Raises the errors of `read_index`."""
    shards = read_index(store, folder).shards
    return [*(file.basename for shard in shards for file in shard.files()), SIDE_NAME, INDEX_NAME]


def unlisted_shards(store: Store, folder: str, listed: Collection[str]) -> list[str]:
    """Return the shards in a folder, at any level, that neither `listed` nor an index next to or above them lists.

    Args:
        store: the store of the folder.
        folder: folder of the dataset.
        listed: known files, by their paths in the folder.
    """
    known: set[str] = set(listed)
    indexes = {""}  # folders with a parsed index; `listed` covers that of the dataset
    found: list[str] = []
    for name, path in shards_in(store, folder).items():
        above = name.split("/")[:-1]
        for inner in ("/".join(above[:depth]) for depth in range(1, len(above) + 1)):
            if inner not in indexes:
                indexes.add(inner)
                with contextlib.suppress(PenstockError):
                    index = read_index(store, f"{folder}/{inner}")
                    known |= {f"{inner}/{file.basename}" for shard in index.shards for file in shard.files()}
        if name not in known:
            found.append(path)
    return found


def read_index(store: Store, folder: str) -> Index:
    path = f"{folder}/{INDEX_NAME}"
    return parse_index(store.get(path), path)
