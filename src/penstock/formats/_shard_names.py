"""Names of shard files: `shard.00012.mds`, `.meta` behind it, and the compression behind that."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.codec.compress import FAMILIES
from penstock.formats._index_json import FORMATS

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


def numeric_order(path: str) -> list[tuple[int, int, str]]:
    """Sorts paths part by part, numbers in them by value: 2 before 10."""
    return [
        (0, int(piece), piece) if piece.isdigit() else (1, 0, piece)
        for part in path.split("/")
        for piece in (*(one for one in re.split(r"([0-9]+)", part) if one), "")
    ]
