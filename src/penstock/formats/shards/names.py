"""Names of shard files: `shard.00012.mds`, `.meta` behind it, and the compression behind that."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.codec.compress import FAMILIES
from penstock.errors import PenstockError
from penstock.formats.shards.index_json import FORMATS
from penstock.store.base import Store

_NAME = re.compile(
    rf"(?P<folder>(?:[^/]+/)*)shard\.(?P<number>[0-9]{{5,18}})\.(?P<format>{'|'.join(FORMATS)})"
    rf"(?P<meta>\.meta)?(?:\.(?P<family>{'|'.join(FAMILIES)}))?"
)


@dataclass(frozen=True, slots=True)
class ShardName:
    """A name, taken apart.

    Attributes:
        stem: path of the raw data file inside the dataset's folder: what the files of one shard share.
        format: as in an index.
        is_meta: of the meta file.
        family: of the compression; None for a raw file.
    """

    stem: str
    format: str
    is_meta: bool
    family: str | None


def parse_shard_name(name: str) -> ShardName | None:
    """The parts of a path inside a dataset's folder; None where it is not called like a shard."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    stem = f"{found['folder']}shard.{found['number']}.{found['format']}"
    return ShardName(stem, found["format"], found["meta"] is not None, found["family"])


def shards_in(store: Store, folder: str) -> dict[str, str]:
    """Path inside the folder → path, of all files called like shards; none where the store can't list."""
    try:
        names = {file[len(folder.rstrip("/")) + 1 :]: file for file in store.list(folder)}
    except PenstockError:
        return {}
    return {name: file for name, file in names.items() if parse_shard_name(name) is not None}


def has_shards(store: Store, folder: str, stored: str) -> bool:
    """Whether shards of a format are in a folder, raw or compressed: by a few questions for the first, or by one.

    In an object store shards are visible one by one, in any order, before their index is.
    """
    if store.lists_levels:
        found = (parse_shard_name(name) for name in store.first_names(folder))
        return any(one is not None and one.format == stored for one in found)
    name = f"{folder}/shard.00000.{stored}"
    return any(store.exists(one) for one in (name, *(f"{name}.{family}" for family in FAMILIES)))


def numeric_order(path: str) -> list[tuple[int, int, str]]:
    """Sorts paths part by part, numbers in them by value: 2 before 10."""
    key: list[tuple[int, int, str]] = []
    for part in path.split("/"):
        for piece in filter(None, re.split(r"([0-9]+)", part)):
            number = piece.lstrip("0")  # of any length, which `int` does not take
            key.append((0, len(number), f"{number} {piece}") if piece.isascii() and piece.isdigit() else (1, 0, piece))
        key.append((-1, 0, ""))
    return key
