"""Table of a shard: its samples and parts, found by their headers, and the `.tar.idx` made from it.

The index of `<name>.tar` is `<name>.tar.idx`: uint64[n_samples + 1] in native byte order, without a header. Entry i is
the offset of sample i's first header, including PAX and GNU headers. The last entry is the end of the last member.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from penstock.errors import ConfigError, Corrupt, Truncated, Unsupported
from penstock.formats._findings import Problem
from penstock.formats.samples.leftovers import is_leftover
from penstock.formats.samples.webdataset.samples import split_name
from penstock.formats.samples.webdataset.tar import (
    MOST_PADDING_BYTES,
    End,
    Member,
    plain_name,
    read_tail,
    require_plain,
    scan_file,
)
from penstock.formats.samples.webdataset.tar_blocks import Run
from penstock.store.base import Store
from penstock.types import IntArray

MOST_REPEATS = 100
PREFIX_KEYS = "Prefix keys with shard names: --prefix-keys (prefix_keys=True) of `penstock merge`, `convert`, `shuffle`"
_MOST_LINKS = 40
"""Longest chain of links, as in Linux."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Key that is repeated in a shard after another key: its samples are `first` and `again`."""

    key: str
    first: int
    again: int


class LinkedPart(NamedTuple):
    """Part that is stored as a link: its name, and the content of the link's target."""

    part: str
    content_bytes: int
    size_bytes: int


LinkedParts = Mapping[int, tuple[LinkedPart, ...]]
"""Place of a sample in its shard → its parts that are links."""


@dataclass(frozen=True, slots=True)
class ShardTable:
    """Content of a shard. Sample i has the parts `[part_starts[i], part_starts[i + 1])`.

    Attributes:
        keys: keys of the samples.
        offsets: int64[n_samples + 1], as in the index.
        part_starts: int64[n_samples + 1].
        part_names: names of all parts.
        contents: int64[n_parts]: offsets of their contents, with `sizes` bytes each.
        sizes: int64[n_parts].
        repeats: the first of the repeated keys.
        num_repeats: number of repeated keys.
        linked: parts that are links; they are in no index, as Energon doesn't read them.
        ignored: number of members outside samples, by kind; see `TableBuilder.ignore`.
        only_links: name of a link whose sample has no other part, if there is one.
        end: end of the shard's members; only after a scan.
    """

    keys: list[str]
    offsets: IntArray
    part_starts: IntArray
    part_names: list[str]
    contents: IntArray
    sizes: IntArray
    repeats: tuple[Repeat, ...] = ()
    num_repeats: int = 0
    linked: LinkedParts = field(default_factory=dict[int, tuple[LinkedPart, ...]])
    ignored: Mapping[str, int] = field(default_factory=dict[str, int])
    only_links: str | None = None
    end: End | None = None

    @property
    def num_samples(self) -> int:
        return len(self.keys)


def key_prefix(shard: str) -> str:
    """Return what `prefix_keys` puts before the keys of a shard: its name without `.tar`, as a folder."""
    return shard.removesuffix(".tar") + "/"


def repeated_key(key: str, first: str, again: str) -> ConfigError:
    return ConfigError(
        f"the key {key!r} is used twice: keys in a dataset must be unique",
        path=again,
        found=f"first in {first}, again in {again}",
        hint=PREFIX_KEYS,
    )


@dataclass(slots=True)
class TableBuilder:
    """Builder of a table from members in order.

    `stop_bytes` is the end of the last member, `dotted` the last key with a dot.
    """

    keys: list[str] = field(default_factory=list[str])
    offsets: list[int] = field(default_factory=list[int])
    part_starts: list[int] = field(default_factory=list[int])
    part_names: list[str] = field(default_factory=list[str])
    contents: list[int] = field(default_factory=list[int])
    sizes: list[int] = field(default_factory=list[int])
    stop_bytes: int = 0
    dotted: str = "\0"
    links: dict[str, str] = field(default_factory=dict[str, str])
    others: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    ignored: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, names: Iterable[str], starts: Iterable[int], contents: Iterable[int], sizes: Iterable[int]) -> None:
        """Add members in order; those outside samples are skipped."""
        dotted, part_names = self.dotted, self.part_names
        for name, start, content, size in zip(names, starts, contents, sizes, strict=True):
            # Most names are the previous key, a dot, and no folder, and needn't be split again.
            part = name[len(dotted) :] if name.startswith(dotted) else "/"
            if "/" in part:
                found = split_name(name)
                if found is None:
                    self.ignore("leftovers" if is_leftover(name) else "files without a key")
                    self.others[name] = content, size
                    continue
                key, part = found
                if f"{key}." != dotted:
                    self.keys.append(key)
                    self.offsets.append(start)
                    self.part_starts.append(len(part_names))
                    dotted = f"{key}."
            part_names.append(part)
            self.contents.append(content)
            self.sizes.append(size)
        self.dotted = dotted

    def ignore(self, kind: str) -> None:
        """Count a member outside samples: a link, a special file, a leftover or a file without a key."""
        self.ignored[kind] = self.ignored.get(kind, 0) + 1

    def add_other(self, member: Member) -> None:
        if member.target is not None and split_name(member.name) is not None:
            self.links[member.name] = member.target
        elif not member.is_folder:
            leftover = "leftovers" if is_leftover(member.name) else None
            self.ignore(leftover or ("links" if member.target is not None else "special files"))

    def _linked(self) -> tuple[LinkedParts, str | None]:
        """Return the parts that are links, by sample; and the name of a link whose sample has no other part."""
        if not self.links:
            return {}, None
        contents = {plain_name(name): place for name, place in self.others.items()}
        places: dict[str, int] = {}
        starts = [*self.part_starts, len(self.part_names)]
        for place, key in enumerate(self.keys):
            places.setdefault(key, place)
            for number in range(starts[place], starts[place + 1]):
                name = plain_name(f"{key}.{self.part_names[number]}")
                contents[name] = self.contents[number], self.sizes[number]
        targets = {plain_name(name): target for name, target in self.links.items()}
        linked: dict[int, tuple[LinkedPart, ...]] = {}
        only_links: str | None = None
        for name, target in self.links.items():
            key, part = split_name(name) or ("", "")
            for _ in range(_MOST_LINKS):
                if target in contents or target not in targets:
                    break
                target = targets[target]
            if key not in places:
                only_links = only_links or name
            elif target in contents:
                linked[places[key]] = (*linked.get(places[key], ()), LinkedPart(part, *contents[target]))
            else:
                self.ignore("links")
        return linked, only_links

    def finish(self, end: End | None = None) -> ShardTable:
        repeats, num_repeats = _repeats(self.keys)
        linked, only_links = self._linked()
        return ShardTable(
            self.keys,
            np.array([*self.offsets, self.stop_bytes], np.int64),
            np.array([*self.part_starts, len(self.part_names)], np.int64),
            self.part_names,
            np.array(self.contents, np.int64),
            np.array(self.sizes, np.int64),
            repeats,
            num_repeats,
            linked,
            self.ignored,
            only_links,
            end,
        )


def scan_shard(store: Store, path: str) -> ShardTable:
    """Return the table of a shard, from only its headers. Memory: about 300 bytes per part.

    Raises:
        FormatError: the shard is damaged, at the given offset, or has a sparse member.
    """
    return table_of(scan_file(store, path), path)


def table_of(members: Iterator[Run | Member | End], path: str) -> ShardTable:
    made = TableBuilder()
    end: End | None = None
    for found in members:
        if isinstance(found, Run):
            made.add(found.names, found.starts, found.contents, found.sizes)
        elif isinstance(found, End):
            end = found
            break
        elif found.is_regular:
            if found.is_sparse and split_name(found.name) is not None:
                require_plain(found, path)
            made.add([found.name], [found.start_bytes], [found.content_bytes], [found.size_bytes])
        else:
            made.add_other(found)
        made.stop_bytes = found.stop_bytes
    return made.finish(end)


def _repeats(keys: list[str]) -> tuple[tuple[Repeat, ...], int]:
    if len(set(keys)) == len(keys):
        return (), 0
    first: dict[str, int] = {}
    found = [Repeat(key, first[key], place) for place, key in enumerate(keys) if first.setdefault(key, place) != place]
    return tuple(found[:MOST_REPEATS]), len(found)


def require_distinct(table: ShardTable, path: str) -> None:
    """Raise `Corrupt` with both places if a key is repeated in a shard."""
    for repeat in table.repeats:
        first, again = int(table.offsets[repeat.first]), int(table.offsets[repeat.again])
        raise Corrupt(
            f"the key {repeat.key!r} is repeated after other samples: keys must be unique and parts contiguous",
            path=path,
            offset_bytes=again,
            found=f"first at byte {first}, again at byte {again}; {table.num_repeats} such keys",
            hint="Pack the shard again, sorted by name or with unique keys",
        )


def require_content(table: ShardTable, path: str) -> None:
    """Raise `Corrupt` if a sample consists only of links, which no index can hold."""
    if table.only_links is not None:
        raise Corrupt(
            "a sample consists only of links",
            path=path,
            found=repr(table.only_links),
            expected="a regular file",
            hint="Pack the shard again with `tar --hard-dereference`, and with --dereference for symbolic links",
        )


def require_text(table: ShardTable, path: str) -> None:
    """Raise `Unsupported` for names that aren't UTF-8, which no index can hold."""
    for place, key in enumerate(table.keys):
        if not _is_text(key):
            raise _no_text(path, int(table.offsets[place]), key)
    for part in set(table.part_names):
        if not _is_text(part):
            place = int(np.searchsorted(table.part_starts, table.part_names.index(part), "right")) - 1
            raise _no_text(path, int(table.offsets[place]), f"{table.keys[place]}.{part}")


def _is_text(name: str) -> bool:
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_text(path: str, offset_bytes: int, name: str) -> Unsupported:
    return Unsupported(
        "a member name is not UTF-8, so it can't be indexed",
        path=path,
        offset_bytes=offset_bytes,
        found=repr(name.encode("utf-8", "surrogateescape")),
        hint="Pack the shard again, with names in UTF-8",
    )


# --- the index ---------------------------------------------------------------------------------------------------


def index_path(shard: str) -> str:
    """Return the path of a shard's index: its last suffix is replaced with `.tar.idx`."""
    return os.path.splitext(shard)[0] + ".tar.idx"


def encode_index(offsets: IntArray) -> bytes:
    return offsets.astype("=u8").tobytes()


_FETCH = "Download or pack this shard again"


def end_problem(store: Store, path: str, table: ShardTable) -> Problem | None:
    """Return the problem with the end of a scanned shard, or None; one small read unless there is a problem.

    Only data after the mark is an error: tars of other tools without a mark may be complete.
    """
    if table.end is None:
        return None
    end_bytes = table.end.offset_bytes
    if not table.end.is_marked:
        what = "no end-of-archive mark: the shard may be truncated"
        return Problem("webdataset.no-end", Truncated, path, what, _FETCH, end_bytes, severity="warning")
    size_bytes, first_bytes = read_tail(store, path, end_bytes)
    if first_bytes is not None:
        what = "data after the end-of-archive mark, where tar readers stop"
        fix = f"{_FETCH} (`tar -A` joins tars, `cat` doesn't), or omit the shard: `penstock prepare --exclude`"
        found = f"the mark at byte {end_bytes}, data starting at byte {first_bytes}"
        return Problem(
            "webdataset.after-end", Corrupt, path, what, fix, first_bytes, found, "zeros to the end of the file"
        )
    if size_bytes > MOST_PADDING_BYTES:
        what = "too many zeros after the end-of-archive mark: the shard may be damaged"
        found, expected = f"{size_bytes} bytes", f"at most {MOST_PADDING_BYTES}"
        return Problem(
            "webdataset.after-end", Corrupt, path, what, _FETCH, end_bytes, found, expected, severity="warning"
        )
    return None


def require_ended(store: Store, path: str, table: ShardTable) -> Problem | None:
    """Raise `Corrupt` for data after the end-of-archive mark; return any other problem with the end."""
    problem = end_problem(store, path, table)
    if problem is not None and problem.severity == "error":
        raise problem.error()
    return problem
