"""Groups of samples: datasets that workers make, and that become one output.

A `GroupFormat` combines the groups of a format: `Shards` here, tars and directories in `sample_groups`. The files of
shards are renumbered under one index. Locally, files are hard-linked into a directory that becomes visible as a whole.
In an object store, workers copy them under their final names, only if nothing has that name, and the index is written
last.
"""

from __future__ import annotations

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import msgspec
import xxhash

import penstock
from penstock._threads import Pool
from penstock.abc import Writer
from penstock.engine.folder import bare, local_store
from penstock.engine.parts import PartName, get_mark, made_of, put_mark, require_size
from penstock.engine.plan import RESTART
from penstock.engine.run import Wave
from penstock.engine.work import SCRATCH, Work, scratch
from penstock.errors import ConfigError, Corrupt, FormatError, NotFound, PenstockError
from penstock.formats import get_format
from penstock.formats._manifest import Provenance, file_digests
from penstock.formats.shards.find_index import own_files
from penstock.formats.shards.index_json import INDEX_NAME, Shard, ShardFile, encode_index, parse_index
from penstock.formats.shards.side import SIDE_NAME, with_fingerprint
from penstock.store._files import is_free
from penstock.store.base import Readable, StagedFolder
from penstock.store.compose import copy_new
from penstock.store.local import LocalStaged
from penstock.store.object_folder import not_replaceable
from penstock.store.outputs import open_folder
from penstock.store.place import Place
from penstock.store.put import aborting, put_local_file, put_new
from penstock.store.side_file import EDGE_BYTES, edge_binding, encode_manifest, publish_beside, stage_side_file
from penstock.types import Manifest

_THREADS = 32


class GroupPart(msgspec.Struct, frozen=True):
    """The record of a finished group, stored as its part.

    Attributes:
        digest: sum of the samples' digests, in decimal.
        index: its `index.json`.
        blocks: name of each file → digests of its blocks.
        sizes: name of each file → its size.
    """

    digest: str
    index: msgspec.Raw
    blocks: dict[str, tuple[str, ...]]
    sizes: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class Group:
    """A finished group; `is_first` if it is the first of its dataset."""

    name: PartName
    part: GroupPart
    files: Place
    is_first: bool

    def require_sizes(self) -> None:
        """Raise `Corrupt` if one of its files is missing or has another size."""
        for name, size_bytes in self.part.sizes.items():
            require_size(self.files.child(name), size_bytes)

    def require_file(self, name: str) -> None:
        """Raise `Corrupt` if one of its files has other bytes; reads all of it."""
        require_size(self.files.child(name), self.part.sizes[name])
        require_digests(self.files.child(name), self.part.blocks[name])

    def names(self, first: int) -> list[tuple[str, str]]:
        """Return the old and new names of its files, if its shards are numbered from `first`."""
        return [pair for _, names in self.moved(first) for pair in names.items()]

    def moved(self, first: int) -> Iterator[tuple[Shard, dict[str, str]]]:
        """Return its shards numbered from `first`, each with the old and new names of its files."""
        for shard in kept_shards(bytes(self.part.index), 0 if self.is_first else 1, self.files):
            moved, names = _renamed(shard, first)
            yield moved, {before: after for before, after in names.items() if before in self.part.blocks}
            first += 1


def kept_shards(index: bytes, number: int, group: Place) -> list[Shard]:
    """Return the shards of a group; only the first group keeps an empty first shard."""
    return [shard for shard in parse_index(index, group.path).shards if shard.samples or not number]


def group_part(digest: str, index: bytes, blocks: Mapping[str, tuple[str, ...]], made: Place) -> GroupPart:
    sizes = {name: made.store.size(made.child(name).path) for name in blocks}
    return GroupPart(digest, msgspec.Raw(index), dict(blocks), sizes)


def require_digests(file: Place, blocks: tuple[str, ...]) -> None:
    if file_digests(file.store, file.path) != blocks:
        raise Corrupt("a part of unfinished work is damaged", path=file.path, hint=RESTART)


def files_of(name: PartName, work: Place) -> Place:
    return work.child(f"groups/{name.task:08d}-{name.digest}")


def encode_group(part: GroupPart) -> bytes:
    """Return the bytes that name a part by its content; files may come in any order."""
    return msgspec.json.encode(part, order="deterministic")


def read_group(name: PartName, work: Place, parts: Place | None = None, is_first: bool | None = None) -> Group:
    """Read a finished group, by default from the parts of the work; raises `Corrupt` if its part is damaged."""
    place = (parts or work.child("parts")).child(name.path)
    data = place.store.get(place.path)
    if xxhash.xxh3_64_hexdigest(data) != name.digest:
        raise Corrupt("a part of unfinished work is damaged", path=place.path, hint=RESTART)
    first = name.task == 0 if is_first is None else is_first
    return Group(name, msgspec.json.decode(data, type=GroupPart), files_of(name, work), first)


@dataclass(frozen=True, slots=True)
class Assembly:
    """An output to be made of groups.

    Attributes:
        to: its format.
        target: the output; for workers in a store without a cache.
        work: directory of the plan.
        options: options of the writer.
        splits: name and number of groups of each split of tars, if there are several.
        tars: directory in `work` for finished tars.
    """

    to: str
    target: Place
    work: Place
    options: Mapping[str, Any]
    splits: tuple[tuple[str, int], ...] = ()
    tars: str = "tars"


@dataclass(frozen=True, slots=True)
class GroupTask:
    """A task of the second wave: a tar, or in an object store the files of a group."""

    number: int
    output: int
    what: Any = field(repr=False)
    described: str


Records = Callable[[], Iterator[bytes]]


class GroupFormat(ABC):
    """How the groups of a format become an output.

    Attributes:
        last: the file that makes the output visible.
    """

    last: str

    def options_of_group(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the writer options for a group."""
        return dict(options)

    @abstractmethod
    def keep(self, place: Place, made: Manifest, number: int) -> tuple[bytes, Mapping[str, tuple[str, ...]], int]:
        """Remove the files of a group that aren't needed.

        Returns:
            Its index, the digests of its files, and a count for its name.
        """

    def second(self, names: Sequence[PartName], job: Assembly) -> list[tuple[Any, str]]:
        """Return the tasks of the second wave, each with its description: in an object store, to copy each group."""
        if job.target.is_local:
            return []
        # The names of a group's shards depend on how many precede them.
        firsts = itertools.accumulate((name.tokens for name in names), initial=0)
        return [((name, first), f"the files of group {name.task}") for name, first in zip(names, firsts, strict=False)]

    @abstractmethod
    def make(self, what: Any, job: Assembly) -> bytes:
        """Do one of these tasks; return its record."""

    @abstractmethod
    def end(
        self, groups: Sequence[Group], records: Records, job: Assembly, noted: Provenance, *, overwrite: bool
    ) -> Manifest:
        """Make the output visible. `records` reads those of the second wave."""


class Shards(GroupFormat):
    """Shards with an index: each group has some."""

    last = INDEX_NAME

    def keep(self, place: Place, made: Manifest, number: int) -> tuple[bytes, Mapping[str, tuple[str, ...]], int]:
        index = place.store.get(place.child(INDEX_NAME).path)
        return index, made.block_digests, len(kept_shards(index, number, place))

    def make(self, what: Any, job: Assembly) -> bytes:
        name, first = what
        group = read_group(name, job.work)
        copy_group(group, job.target, group.names(first))
        return b""

    def end(
        self, groups: Sequence[Group], records: Records, job: Assembly, noted: Provenance, *, overwrite: bool
    ) -> Manifest:
        if job.target.is_local:
            return _link_shards(groups, job, noted, overwrite=overwrite)
        return _index_shards(groups, job, noted)


SHARDS = Shards()


def make_group(
    kind: GroupFormat,
    job: Assembly,
    name: tuple[int, int, bool],
    fill: Callable[[Writer], tuple[int, int]],
    check: Callable[[Place, int], None] | None = None,
) -> PartName:
    """Write a group as a dataset of its own, and its part. Errors name the output, not the directory of the group.

    Args:
        kind: how its format combines groups.
        job: the output.
        name: task, piece, and whether that is the last of its task.
        fill: writes the samples; returns their number and the sum of their digests.
        check: reads the group back, given that sum.
    """
    with scratch(job.work.child(SCRATCH)) as folder:
        place = Place(local_store(job.work), f"{folder}/group")
        try:
            options = kind.options_of_group(job.options)
            with get_format(job.to).create(place.store, place.path, options, overwrite=False) as writer:
                count, digest = fill(writer)
                made = writer.commit()
            if check is not None:
                check(place, digest)
        except PenstockError as error:
            if error.path is not None and error.path.startswith(place.path):
                error.path = job.target.path
            raise
        index, blocks, other = kind.keep(place, made, name[0])
        data = encode_group(group_part(str(digest), index, blocks, place))
        known = PartName(*name, count, other, 0, xxhash.xxh3_64_hexdigest(data))
        files = files_of(known, job.work)
        put_local_file(files.store, place.path, files.path)
        put_new(job.work.store, job.work.child(f"parts/{known.path}").path, data)
    return known


class GroupWave(Wave):
    """The second wave of outputs that are made of groups.

    Args:
        kind: how their format combines groups.
        work: the open work folder.
        jobs: the outputs.
        names: the groups of each output, in order.
    """

    def __init__(
        self, kind: GroupFormat, work: Work, jobs: Sequence[Assembly], names: Sequence[Sequence[PartName]]
    ) -> None:
        self.names = names
        self._kind, self._jobs, self._marks = kind, jobs, work.place.child("files")
        tasks = list[GroupTask]()
        for output, job in enumerate(jobs):
            for what, described in kind.second(names[output], job):
                tasks.append(GroupTask(len(tasks), output, what, described))
        self.tasks: Sequence[GroupTask] = tasks
        without_cache = tuple(replace(job, target=bare(job.target)) for job in jobs)
        self.fn = partial(_make_second, kind, without_cache, self._marks)

    def done(self) -> Mapping[int, str]:
        with contextlib.suppress(NotFound):
            return {int(path.rpartition("/")[2]): path for path in self._marks.store.list(self._marks.path)}
        return {}

    def groups(self, output: int) -> list[Group]:
        work = self._jobs[output].work
        with Pool(1 if work.is_local else _THREADS, "groups") as pool:
            return list(pool.map(partial(read_group, work=work), self.names[output]))

    def end(self, output: int, groups: Sequence[Group], noted: Provenance, *, overwrite: bool) -> Manifest:
        """Make an output visible."""

        def records() -> Iterator[bytes]:
            done = self.done()
            for task in self.tasks:
                if task.output == output:
                    yield get_mark(Place(self._marks.store, made_of(done, task.number, self._marks)))

        return self._kind.end(groups, records, self._jobs[output], noted, overwrite=overwrite)


def _make_second(kind: GroupFormat, jobs: Sequence[Assembly], marks: Place, task: GroupTask) -> int:
    """Do a task of the second wave, record it, and return its number."""
    put_mark(marks.child(f"{task.number:08d}"), kind.make(task.what, jobs[task.output]))
    return task.number


def copy_group(group: Group, target: Place, names: Iterable[tuple[str, str]]) -> None:
    """Copy files of a group, by their old and new names, into an object store."""
    try:
        for before, after in names:
            path = group.files.child(before).path
            copy_new(target.store, path, target.child(after).path, group.part.sizes[before])
    except (FormatError, NotFound):
        group.require_sizes()
        raise


def _link_shards(groups: Iterable[Group], job: Assembly, noted: Provenance, *, overwrite: bool) -> Manifest:
    """Combine finished local groups, in order, into one dataset. Memory: the indexes."""
    target, store = job.target, job.target.store
    folder = open_folder(store, target.path, partial(own_files, store), overwrite=overwrite, held=(INDEX_NAME,))
    try:
        index = folder.stage(INDEX_NAME)
        hidden = Place(store, cast(LocalStaged, index).hidden_path).folder()
        made = _Made()
        for group in groups:
            group.require_sizes()
            for before, after in made.add(group):
                _give(folder, group.files.child(before), hidden.child(after), group.part.blocks[before])
        data, manifest = made.described(job.to, noted, folder)
        side = folder.stage(SIDE_NAME)
        for staged, content in ((side, encode_manifest(manifest)), (index, data)):
            staged.write(content)
            staged.commit()
        folder.commit()
    except BaseException:
        folder.abort()
        raise
    return manifest


def _index_shards(groups: Iterable[Group], job: Assembly, noted: Provenance) -> Manifest:
    """Write the index of a dataset in an object store whose shards exist."""
    target, store = job.target, job.target.store
    made, index = _Made(), target.child(INDEX_NAME).path
    for group in groups:
        made.add(group)
    data, manifest = made.described(job.to, noted, store, f"{target.path}/")
    with aborting(store.stage(index)) as staged:
        staged.write(data)
        side = stage_side_file(store, target.child(SIDE_NAME).path, manifest, replaces=False)
        publish_beside(store, [side], staged.commit, lambda: store.get(index) == data)
    return manifest


def is_free_place(place: Place, last: str = INDEX_NAME) -> bool:
    """Return whether nothing exists here locally, or no dataset whose last file is `last` in an object store."""
    return is_free(place.path) if place.is_local else not place.child(last).exists()


def require_no_object(place: Place, last: str = INDEX_NAME, *, left: bool) -> None:
    """Raise `ConfigError` if an object store has a dataset or other files where new work would write.

    `left`: shards of discarded work may remain, and are removed.
    """
    if place.is_local:
        return
    remote = Place(place.store.origin, place.path)
    if place.child(last).exists():
        raise not_replaceable(place.path)
    if left and last == INDEX_NAME:
        for name in remote.names():
            if name.startswith("shard.") or name == SIDE_NAME:
                remote.store.delete(remote.child(name).path)
    if there := remote.names():
        what, hint = f"files exist, but no {last}", "Choose another output, or delete them if they aren't needed"
        raise ConfigError(what, path=place.path, found=", ".join(there[:3]), hint=hint)


class _Made:
    """Index and counts of the dataset being combined."""

    def __init__(self) -> None:
        self._shards: list[Shard] = []
        self._digests: dict[str, tuple[str, ...]] = {}
        self._size_bytes = 0

    def add(self, group: Group) -> list[tuple[str, str]]:
        """Add a group; return the old and new names of its files."""
        found: list[tuple[str, str]] = []
        for shard, names in group.moved(len(self._shards)):
            self._shards.append(shard)
            found += names.items()
            files = (shard.raw_data, shard.zip_data, shard.raw_meta, shard.zip_meta)
            self._size_bytes += sum(file.size_bytes for file in files if file and file.basename in names.values())
        self._digests |= {after: group.part.blocks[before] for before, after in found}
        return found

    def described(self, name: str, noted: Provenance, files: Readable, above: str = "") -> tuple[bytes, Manifest]:
        """Return the index and side file; the shards are in `files` below `above`."""
        data = encode_index(self._shards)
        manifest = Manifest(
            format=name,
            num_samples=sum(shard.samples for shard in self._shards),
            size_bytes=self._size_bytes + len(data),
            block_digests=self._digests,
            binding=edge_binding(len(data), data[:EDGE_BYTES], data[-EDGE_BYTES:]),
            tool=f"penstock {penstock.__version__}",
            eos_id=noted.eos_id,
            tokenizer=noted.tokenizer,
            tokenizer_digest=noted.tokenizer_digest,
            inputs=noted.inputs,
            options=noted.options,
        )
        return data, with_fingerprint(manifest, files, data, self._shards, above)


def _renamed(shard: Shard, number: int) -> tuple[Shard, dict[str, str]]:
    """Return a shard with another number, and the old and new names of its files."""
    stem = f"shard.{number:05d}.{shard.layout.format}"
    family = (shard.layout.compression or "").partition(":")[0]
    files: list[ShardFile | None] = []
    names: dict[str, str] = {}
    ends = (("", shard.raw_data), (f".{family}", shard.zip_data))
    ends += ((".meta", shard.raw_meta), (f".meta.{family}", shard.zip_meta))
    for end, one in ends:
        files.append(one and ShardFile(f"{stem}{end}", one.size_bytes, one.hashes))
        if one is not None:
            names[one.basename] = f"{stem}{end}"
    return Shard(shard.layout, shard.samples, files[0] or shard.raw_data, *files[1:]), names


def _give(folder: StagedFolder, file: Place, hidden: Place, blocks: tuple[str, ...]) -> None:
    """Link a file into the folder. A file that must be copied is compared with its digests."""
    if not file.store.link(file.path, hidden.path):
        require_digests(file, blocks)
        with aborting(folder.stage(hidden.name)) as staged:
            staged.append_file(file.path)
            staged.commit()
