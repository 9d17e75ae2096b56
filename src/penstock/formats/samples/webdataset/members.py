"""`index.members`: members missing from other indexes. Penstock's own; `prepare` only writes it if there are any.

```
{"uuid": "…", "ignored": {"links": 1, "leftovers": 3}, "linked": {"a.tar": [[12, "jpg", 5120, 30112], …]}}
```
`ignored` counts members that aren't part of a sample, by kind. `linked` lists parts stored as links: place of the
sample in its shard, name of the part, and offset and size of the link's content. Energon drops such parts. The file is
only valid for the `index.uuid` that it contains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from penstock.errors import Corrupt, NotFound
from penstock.formats.samples.webdataset.nvmeta import MEMBERS, meta_path, prepare_command, read_uuid
from penstock.formats.samples.webdataset.shards import LinkedPart, LinkedParts
from penstock.store.base import Store

Rows: TypeAlias = list[tuple[int, str, int, int]]


class _Stored(msgspec.Struct):
    uuid: str
    ignored: dict[str, int] = {}
    linked: dict[str, Rows] = {}


@dataclass(frozen=True, slots=True)
class Members:
    """Members of a dataset's shards that aren't in its indexes.

    Attributes:
        ignored: number of members outside samples, by kind.
        linked: shard → its parts that are links.
    """

    ignored: Mapping[str, int] = field(default_factory=dict[str, int])
    linked: Mapping[str, LinkedParts] = field(default_factory=dict[str, LinkedParts])

    @property
    def ignored_text(self) -> str | None:
        """Text such as `"3 leftovers, 1 links"`, or None if no member is ignored."""
        return ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.ignored.items())) or None

    @property
    def num_linked(self) -> int:
        return sum(len(parts) for of_shard in self.linked.values() for parts in of_shard.values())


def linked_rows(linked: LinkedParts) -> Rows:
    rows = ((place, part) for place, parts in sorted(linked.items()) for part in parts)
    return [(place, part.part, part.content_bytes, part.size_bytes) for place, part in rows]


def encode_members(uuid: str, ignored: Iterable[Mapping[str, int]], linked: Mapping[str, Rows]) -> bytes | None:
    """Return the bytes of the file, or None if there is nothing to record."""
    total: Counter[str] = Counter()
    for one in ignored:
        total.update(one)
    linked = {shard: rows for shard, rows in linked.items() if rows}
    if not total and not linked:
        return None
    return msgspec.json.encode(_Stored(uuid, dict(sorted(total.items())), linked))


def read_members(store: Store, root: str) -> Members:
    """Return the members missing from the indexes of a dataset; empty if the file doesn't exist or is outdated.

    Raises:
        Corrupt: the file is damaged.
    """
    path = meta_path(root, MEMBERS)
    try:
        data = store.get(path)
        uuid = read_uuid(store, root)
    except NotFound:
        return Members()
    try:
        stored = msgspec.json.decode(data, type=_Stored)
    except (msgspec.MsgspecError, RecursionError) as error:
        hint = f"Rebuild it: {prepare_command(root, '--tar-index-only')}"
        raise Corrupt("the list of linked members is damaged", path=path, found=str(error), hint=hint) from None
    if stored.uuid != uuid:
        return Members()
    linked: dict[str, LinkedParts] = {}
    for shard, rows in stored.linked.items():
        parts: dict[int, tuple[LinkedPart, ...]] = {}
        for place, part, content_bytes, size_bytes in rows:
            parts[place] = (*parts.get(place, ()), LinkedPart(part, content_bytes, size_bytes))
        linked[shard] = parts
    return Members(stored.ignored, linked)
