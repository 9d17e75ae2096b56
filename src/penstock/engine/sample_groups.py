"""Combine groups of samples into tars or a directory of files.

A group is a dataset that one worker made, see `groups`. Only the files that the output needs are kept of it, with a
part that records what the assembly needs. Each tar is made of ranges of groups.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np
import xxhash

from penstock.abc import Staged
from penstock.engine.folder import bare
from penstock.engine.groups import SHARDS, Assembly, Group, GroupFormat, Records, copy_group, read_group
from penstock.engine.parts import PartName, require_size
from penstock.engine.plan import RESTART
from penstock.engine.work import SCRATCH, scratch
from penstock.errors import ConfigError, Corrupt, PrepareError
from penstock.formats._manifest import FileDigests, Provenance, file_digests
from penstock.formats.samples.folder.files import SIDE_SUFFIX
from penstock.formats.samples.folder.writer import folder_manifest
from penstock.formats.samples.folder.writer import own_files as files_of_folder
from penstock.formats.samples.webdataset.manifest import own_files as files_of_tars
from penstock.formats.samples.webdataset.nvmeta import FOLDER, INFO_JSON
from penstock.formats.samples.webdataset.shards import ShardTable, encode_index, index_path, scan_shard
from penstock.formats.samples.webdataset.tar_write import END
from penstock.formats.samples.webdataset.writer import WebdatasetWriter, WriterOptions, WrittenShard
from penstock.store.base import StagedFolder, StagedView, Store
from penstock.store.local import LocalStaged, LocalStore
from penstock.store.outputs import open_folder
from penstock.store.place import Place
from penstock.store.put import aborting, put, put_local_file
from penstock.store.side_file import encode_manifest
from penstock.types import IntArray, Manifest

_MOST = 1 << 62
_MEMBERS, _TABLE = "members.tar", "table"
_READ_BYTES = 1 << 24
_LIST = f"{FOLDER}/{INFO_JSON}"


# --- tars ------------------------------------------------------------------------------------------------------------


class _Offsets(msgspec.Struct):
    """Record of a group of tars: the offsets of its samples, and the end of the last one."""

    offsets: list[int]


class _Table(msgspec.Struct):
    """Remaining columns of a group's table."""

    keys: list[str]
    part_starts: list[int]
    part_names: list[str]
    contents: list[int]
    sizes: list[int]


class _TarMark(msgspec.Struct):
    """Record of a finished tar."""

    digests: tuple[str, ...]
    binding: str
    size_bytes: int
    index_digest: str = ""


@dataclass(frozen=True, slots=True)
class Range:
    """Samples `[first, stop)` of a group."""

    group: PartName
    first: int
    stop: int


_Tar: TypeAlias = tuple[str, list[Range]]
"""Name and content of a tar."""


class Tars(GroupFormat):
    """Tars, each made of ranges of groups. A group is the members of its samples and their table."""

    last = f"{FOLDER}/{INFO_JSON}"

    def options_of_group(self, options: Mapping[str, Any]) -> dict[str, Any]:
        split = {name: value for name, value in options.items() if name == "split"}
        return split | {"maxcount": _MOST, "maxsize": _MOST}

    def keep(self, place: Place, made: Manifest, number: int) -> tuple[bytes, Mapping[str, tuple[str, ...]], int]:
        if not made.num_samples:
            return b"null", {}, 0
        name = WriterOptions().pattern % 0
        table = scan_shard(place.store, place.child(name).path)
        arrays = (table.part_starts.tolist(), table.part_names, table.contents.tolist(), table.sizes.tolist())
        place.store.rename(place.child(name).path, place.child(_MEMBERS).path)
        put(place.store, place.child(_TABLE).path, msgspec.json.encode(_Table(table.keys, *arrays)))
        for path in list(place.store.list(place.path)):
            if path not in (place.child(_MEMBERS).path, place.child(_TABLE).path):
                place.store.delete(path)
        digests = {one: file_digests(place.store, place.child(one).path) for one in (_MEMBERS, _TABLE)}
        return msgspec.json.encode(_Offsets(table.offsets.tolist())), digests, made.size_bytes

    def second(self, names: Sequence[PartName], job: Assembly) -> list[tuple[Any, str]]:
        tars = [tar for _, some in _cut(names, job) for tar in some]
        return [(tar, f"the tar {tar[0]} of the output") for tar in tars]

    def make(self, what: Any, job: Assembly) -> bytes:
        return _make_tar(what, job)

    def end(
        self, groups: Sequence[Group], records: Records, job: Assembly, noted: Provenance, *, overwrite: bool
    ) -> Manifest:
        """Write the metadata of all tars and make the output visible."""
        given = WriterOptions(**{name: value for name, value in job.options.items() if value is not None})
        tables, by_name, left = _Tables(groups), {group.name: group for group in groups}, records()
        opened = _opened(job.target, self.last, files_of_tars, overwrite=overwrite)
        with opened as (folder, hidden), WebdatasetWriter(job.target.path, folder, given) as writer:
            for split, tars in _cut([group.name for group in groups], job):
                if split is not None:
                    writer.begin_split(split)
                for (name, ranges), data in zip(tars, left, strict=False):
                    mark = msgspec.json.decode(data, type=_TarMark)
                    _require_tar(bare(job.target) if hidden is None else job.work.child(job.tars), name, mark)
                    if hidden is not None:
                        for one in (index_path(name), name):
                            _give(folder, job.work.child(f"{job.tars}/{one}"), hidden, one)
                    table = _joined([tables.part(by_name[one.group], one.first, one.stop) for one in ranges])
                    writer.add_shard(WrittenShard(name, table, mark.digests, mark.binding, mark.size_bytes))
            writer.note(noted)
            return writer.commit()


def cut_tars(sizes: IntArray, maxcount: int, maxsize: int) -> list[int]:
    """Return where tars end: each takes samples until it has `maxcount` or `maxsize` bytes."""
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
    stops, first = list[int](), 0
    while first < len(sizes):
        full = int(np.searchsorted(ends, int(ends[first]) + maxsize))
        stops.append(min(first + maxcount, max(full, first + 1), len(sizes)))
        first = stops[-1]
    return stops


def _cut(names: Sequence[PartName], job: Assembly) -> Iterator[tuple[str | None, list[_Tar]]]:
    """Return the tars of each split, numbered through; the split is None if there are none."""
    given = WriterOptions(**{name: value for name, value in job.options.items() if value is not None})
    count = first = 0
    for split, groups in job.splits or ((None, len(names)),):
        tasks = _cut_split(names[first : first + groups], job, given, count)
        yield split, tasks
        count, first = count + len(tasks), first + groups


def _cut_split(names: Sequence[PartName], job: Assembly, given: WriterOptions, number: int) -> list[_Tar]:
    sizes = [np.diff(_offsets(read_group(name, job.work))) for name in names]
    stops = cut_tars(np.concatenate([*sizes, np.zeros(0, np.int64)]), given.maxcount, given.maxsize)
    borders = np.cumsum([0, *(name.documents for name in names)])
    found: list[_Tar] = []
    for first, stop in zip([0, *stops[:-1]], stops, strict=False):
        groups = range(int(np.searchsorted(borders, first, "right")) - 1, int(np.searchsorted(borders, stop)))
        ranges = [
            Range(names[one], max(first - int(borders[one]), 0), min(stop - int(borders[one]), names[one].documents))
            for one in groups
        ]
        name = given.pattern % (number + len(found))
        found.append((name, [one for one in ranges if one.first < one.stop]))
    return found


def _make_tar(tar: _Tar, job: Assembly) -> bytes:
    """Write a tar of ranges of groups, and its index: in the output or, locally, in the work folder."""
    name, ranges = tar
    offsets: list[IntArray] = []
    with scratch(job.work.child(SCRATCH)) as folder:
        here = Place(LocalStore(), folder)
        with aborting(here.store.stage(here.child("tar").path)) as staged:
            digests, place = FileDigests(staged), 0
            for one in ranges:
                group = read_group(one.group, job.work)
                if one.first == 0:
                    group.require_file(_MEMBERS)
                starts = _offsets(group)[one.first : one.stop + 1]
                offsets.append(starts[:-1] - starts[0] + place)
                place += int(starts[-1] - starts[0])
                _append(staged, digests, group.files.child(_MEMBERS), int(starts[0]), int(starts[-1]))
            staged.write(END)
            digests.update(END)
            index = encode_index(np.concatenate([*offsets, np.array([place], np.int64)]))
            mark = _TarMark(*digests.finish(), staged.tell(), xxhash.xxh3_64_hexdigest(index))
            staged.commit()
        put(here.store, here.child("index").path, index)
        where = job.work.child(job.tars) if job.work.is_local else job.target
        for made, target in (("index", where.child(index_path(name))), ("tar", where.child(name))):
            if not put_local_file(target.store, here.child(made).path, target.path):
                _require_same(target, file_digests(here.store, here.child(made).path))
    return msgspec.json.encode(mark)


def _append(staged: Staged, digests: FileDigests, members: Place, start: int, stop: int) -> None:
    if members.is_local:
        staged.append_file(members.path, start, stop - start)
        digests.update(LocalStore().mmap(members.path)[start:stop])
        return
    for first in range(start, stop, _READ_BYTES):
        (data,) = members.store.get_ranges(members.path, [(first, min(stop, first + _READ_BYTES))])
        staged.write(data)
        digests.update(data)


def _require_same(target: Place, digests: tuple[str, ...]) -> None:
    """Raise `PrepareError` if an existing file differs from this one."""
    if file_digests(target.store, target.path) != digests:
        what = "another run wrote a file with this name"
        raise PrepareError(what, path=target.path, hint="Choose another output, or remove it")


def _require_tar(folder: Place, name: str, mark: _TarMark) -> None:
    """Raise `Corrupt` if a tar has another size than recorded, or its index other bytes."""
    require_size(folder.child(name), mark.size_bytes)
    index = folder.child(index_path(name))
    if not index.exists() or xxhash.xxh3_64_hexdigest(index.store.get(index.path)) != mark.index_digest:
        raise Corrupt("a part of unfinished work is damaged", path=index.path, hint=RESTART)


class _Tables:
    """Tables of groups; keeps the last one in memory."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._known: tuple[PartName, ShardTable] | None = None
        self._groups = groups

    def part(self, group: Group, first: int, stop: int) -> ShardTable:
        """Return the table of samples `[first, stop)` as if they began a tar."""
        if self._known is None or self._known[0] != group.name:
            place = group.files.child(_TABLE)
            group.require_file(_TABLE)
            rest = msgspec.json.decode(place.store.get(place.path), type=_Table)
            arrays = (np.array(rest.part_starts), rest.part_names, np.array(rest.contents), np.array(rest.sizes))
            self._known = group.name, ShardTable(rest.keys, _offsets(group), *arrays)
        whole = self._known[1]
        low, high = int(whole.part_starts[first]), int(whole.part_starts[stop])
        start = int(whole.offsets[first])
        return ShardTable(
            whole.keys[first:stop],
            whole.offsets[first : stop + 1] - start,
            whole.part_starts[first : stop + 1] - low,
            whole.part_names[low:high],
            whole.contents[low:high] - start,
            whole.sizes[low:high],
        )


def _joined(tables: Sequence[ShardTable]) -> ShardTable:
    """Concatenate tables; raises `ConfigError` if a key is repeated."""
    keys, names = [key for one in tables for key in one.keys], [name for one in tables for name in one.part_names]
    if len(set(keys)) < len(keys):
        seen = set[str]()
        again = next(key for key in keys if key in seen or seen.add(key))
        raise ConfigError(f"the key {again!r} is used twice: keys in a dataset must be unique")
    starts = np.cumsum([0, *(int(one.offsets[-1]) for one in tables)])
    firsts = np.cumsum([0, *(len(one.part_names) for one in tables)])
    zero = np.zeros(0, np.int64)
    pairs = list(zip(tables, starts.tolist(), firsts.tolist(), strict=False))
    return ShardTable(
        keys,
        np.concatenate([*(one.offsets[:-1] + start for one, start, _ in pairs), starts[-1:]]),
        np.concatenate([*(one.part_starts[:-1] + first for one, _, first in pairs), firsts[-1:]]),
        names,
        np.concatenate([zero, *(one.contents + start for one, start, _ in pairs)]),
        np.concatenate([zero, *(one.sizes for one in tables)]),
    )


def _offsets(group: Group) -> IntArray:
    return np.array(msgspec.json.decode(bytes(group.part.index), type=_Offsets).offsets, np.int64)


# --- folders ---------------------------------------------------------------------------------------------------------


class Files(GroupFormat):
    """Directories of files."""

    last = SIDE_SUFFIX

    def keep(self, place: Place, made: Manifest, number: int) -> tuple[bytes, Mapping[str, tuple[str, ...]], int]:
        place.store.delete(place.child(SIDE_SUFFIX).path)
        return b"null", made.block_digests, 0

    def make(self, what: Any, job: Assembly) -> bytes:
        group = read_group(what[0], job.work)
        copy_group(group, job.target, ((name, name) for name in group.part.blocks))
        return b""

    def end(
        self, groups: Sequence[Group], records: Records, job: Assembly, noted: Provenance, *, overwrite: bool
    ) -> Manifest:
        digests: dict[str, tuple[str, ...]] = {}
        size_bytes = 0
        with _opened(job.target, SIDE_SUFFIX, files_of_folder, overwrite=overwrite) as (folder, hidden):
            for group in groups:
                for name, blocks in group.part.blocks.items():
                    if name in digests:
                        raise ConfigError("two samples would write the same file", path=job.target.path, found=name)
                    digests[name] = blocks
                    file = group.files.child(name)
                    require_size(file, group.part.sizes[name])
                    size_bytes += file.store.size(file.path)
                    if hidden is not None:
                        _give(folder, file, hidden, name)
            manifest = folder_manifest(digests, size_bytes, noted)
            with aborting(folder.stage(SIDE_SUFFIX)) as staged:
                staged.write(encode_manifest(manifest))
                staged.commit()
            folder.commit()
        return manifest


# --- the folder of the output ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _opened(
    target: Place, last: str, own: Callable[[Store, str], Any], *, overwrite: bool
) -> Generator[tuple[StagedFolder, Place | None]]:
    """Yield the output directory, and its staging directory or None in an object store, which has none."""
    store = target.store
    if not store.is_local:
        yield _Placed(bare(target), last), None
        return
    with aborting(open_folder(store, target.path, partial(own, store), overwrite=overwrite, held=(last,))) as folder:
        with aborting(folder.stage(".here")) as here:
            hidden = Place(store, cast(LocalStaged, here).hidden_path).folder()
        yield folder, hidden


def _give(folder: StagedFolder, file: Place, hidden: Place, name: str) -> None:
    """Link a file of the work into the directory, or copy it if links aren't supported."""
    try:
        if file.store.link(file.path, hidden.child(name).path):
            return
    except FileNotFoundError:
        pass  # its folder is not there yet
    except OSError as error:
        raise ConfigError("a name is both a file and a folder", path=folder.path, found=str(error)) from None
    with aborting(folder.stage(name)) as staged:
        staged.append_file(file.path)
        staged.commit()


class _Placed:
    """A `StagedFolder` in an object store: files get their final names at once, and the last one makes it visible."""

    def __init__(self, target: Place, last: str) -> None:
        self.path = target.path
        self._target = target
        self._last = last
        self._held: list[_Held] = []

    def stage(self, name: str) -> Staged:
        path = self._target.child(name).path
        staged = self._target.store.stage(path, overwrite=name != self._last)
        if name != self._last:
            return staged
        self._held.append(_Held(staged))
        return self._held[-1]

    def size(self, path: str) -> int:
        return self._target.store.size(self._target.child(path).path)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._target.store.get_ranges(self._target.child(path).path, ranges)

    def commit(self, part: str | None = None, path: str | None = None) -> None:
        for one in self._held:
            one.staged.commit()

    def abort(self) -> None:
        """Drop the last file. The others stay, for the next run."""
        for one in self._held:
            one.staged.abort()


class _Held(StagedView):
    """A staged file whose commit is delayed."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...


_FORMATS: Mapping[str, GroupFormat] = {"webdataset": Tars(), "folder": Files()}


def group_format(name: str) -> GroupFormat:
    """Return how the groups of a format become the output."""
    return _FORMATS.get(name, SHARDS)
