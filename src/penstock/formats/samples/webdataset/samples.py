"""Parse samples from ranges of a shard, and split names of members into the key of a sample and the name of a part.

The result of parsing is `(key, names, parts)`: the sample's key, the full names of its members in order, and part →
content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from penstock.errors import Corrupt
from penstock.formats.samples.leftovers import LEFTOVER_NAMES, is_leftover
from penstock.formats.samples.webdataset.tar import Member, next_member, plain_member, reading, require_plain
from penstock.formats.samples.webdataset.tar_blocks import BLOCK_BYTES
from penstock.store.base import Store

# As in the original, a folder doesn't span a line end; if that prevents a match, an earlier slash may match.
_KEY_AND_PART = re.compile(r"((?:.*/)?[^.]+)\.([^/]*)\Z")
_META = re.compile(r"__[^/]*__(?:/|\n?\Z)")


def split_name(name: str, *, leftovers: bool = False) -> tuple[str, str] | None:
    """Return `(key, part)` of a member's name, or None for a member that isn't part of a sample.

    The key ends before the first dot after the last slash: `d.v2/a.b.txt` is `("d.v2/a", "b.txt")`. Members of a
    top-level folder `__…__` are metadata of the packing tool. Leftovers (see `leftovers`) aren't parts either, except
    with `leftovers`, which is Energon's rule.
    """
    base = name.rfind("/") + 1
    dot = name.find(".", base)
    if dot > base and not name.startswith("__") and "\n" not in name and not name.endswith(LEFTOVER_NAMES):
        return name[:dot], name[dot + 1 :]
    if not leftovers and is_leftover(name):
        return None
    found = _KEY_AND_PART.match(name)
    if found is None or _META.match(name):
        return None
    return found[1], found[2]


Parsed: TypeAlias = tuple[str, tuple[str, ...], dict[str, bytes]]
"""Key, names of the members, and part → content."""

_AGAIN = "If the shard changed after it was prepared, run `penstock prepare` again"


class Range(NamedTuple):
    """Byte range of one sample: `[start, stop)` of the shard at `path`; `view` begins at byte `base` of the shard.

    `linked` holds its parts that are stored as links: part → content.
    """

    path: str
    view: memoryview
    base: int
    start: int
    stop: int
    linked: tuple[tuple[str, bytes], ...] = ()


def parse(found: Range, *, first: bool = False, leftovers: bool = False) -> Parsed:
    """Return the sample in a range; if a part repeats, its last value, or the first one with `first`.

    Indexes made by Energon or version 0.2 include samples of leftovers (see `leftovers`), which are read too.

    Raises:
        FormatError: a header is invalid, or a member leaves the range or belongs to another sample.
    """
    view, base, path = found.view, found.base, found.path
    place, stop = found.start - base, found.stop - base
    dotted: str | None = None  # the key with a dot
    names: list[str] = []
    parts: dict[str, bytes] = {}
    while place < stop:
        plain = plain_member(view, place)
        if plain is not None and plain[3] <= stop:
            name, content, size, place = plain
        else:
            member = _member(found, place + base)
            if member is None:
                break
            place = member.stop_bytes - base
            if not member.is_regular:
                continue
            name, content, size = member.name, member.content_bytes - base, member.size_bytes
        part = name[len(dotted) :] if dotted is not None and name.startswith(dotted) else "/"
        if "/" in part:
            split = split_name(name, leftovers=leftovers)
            if split is None:
                continue
            key, part = split
            if dotted is not None:
                raise _two_keys(path, content + base - BLOCK_BYTES, name, dotted[:-1])
            dotted = f"{key}."
        names.append(name)
        if first and part in parts:
            continue
        parts[part] = bytes(view[content : content + size])
    if dotted is None and not leftovers:
        return parse(found, first=first, leftovers=True)
    if dotted is None:
        raise Corrupt(
            "there is no sample at the offset in the index",
            path=path, offset_bytes=found.start, expected=f"a sample of {found.stop - found.start} bytes", hint=_AGAIN,
        )  # fmt: skip
    for part, content in found.linked:
        if part not in parts:
            names.append(dotted + part)
            parts[part] = content
    return dotted[:-1], tuple(names), parts


def members_between(store: Store, path: str, start_bytes: int, stop_bytes: int) -> Iterator[Member]:
    """Yield the members with headers in a range of a shard, without reading contents. Raises the errors of `parse`."""
    with reading(store, path) as (read, _, _):
        while start_bytes < stop_bytes:
            member = next_member(read, start_bytes, stop_bytes, path)
            if member is None:
                return
            if isinstance(member, dict):  # a global header isn't a member
                start_bytes = int(member["next"])
                continue
            yield member
            start_bytes = member.stop_bytes


def _member(found: Range, offset_bytes: int) -> Member | None:
    view, base = found.view, found.base

    def read(start_bytes: int, stop_bytes: int) -> memoryview:
        return view[start_bytes - base : stop_bytes - base]

    while offset_bytes < found.stop:
        member = next_member(read, offset_bytes, found.stop, found.path)
        if not isinstance(member, dict):
            if member is not None and member.is_regular and split_name(member.name) is not None:
                require_plain(member, found.path)
            return member
        offset_bytes = int(member["next"])  # a global header isn't a member
    return None


def _two_keys(path: str, offset_bytes: int, name: str, key: str) -> Corrupt:
    return Corrupt(
        "the index contradicts the shard: a sample has members with two keys",
        path=path, offset_bytes=offset_bytes, found=repr(name[:200]), expected=f"only parts of {key!r}", hint=_AGAIN,
    )  # fmt: skip
