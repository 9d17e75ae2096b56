"""Token files made of parts: one writer that takes all, or files of a directory, assembled by workers.

In a store that can join objects, no tokens are read or written here: the ends of parts hold lengths and digests of runs
of documents, which can be joined. Tokens are read only where a file, or a block of 2^24 tokens, ends inside a run.
"""

from __future__ import annotations

import contextlib
import functools
import os
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock._kinds import ExpectsDigest, TokenParts
from penstock.abc import Executor, Writer
from penstock.codec.hashes import BlockHasher
from penstock.codec.joined_digest import JoinedDigest, documents_digest_v2, join_digests
from penstock.codec.tokens import dtype_for
from penstock.engine.folder import WorkFolder
from penstock.engine.parts import PartMeta, PartName, Probe, read_part, require_intact
from penstock.engine.plan import RESTART
from penstock.engine.run import Job, ReportT, Wave, end_made, sweep_made
from penstock.engine.token_blocks import OneFile, joined_file
from penstock.engine.work import Work, scratch, work_folder
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError, PrepareError, Unsupported
from penstock.formats import files_at, get_format
from penstock.formats._manifest import Provenance
from penstock.formats.tokens.folder.files import (
    SIDE_NAME,
    data_names,
    is_token_file_name,
    is_unfinished_name,
    listed_files,
    own_files,
    read_index,
    read_index_bytes,
    side_name,
)
from penstock.formats.tokens.folder.index import (
    INDEX_NAME,
    SUFFIXES,
    TokenFileEntry,
    decode_index,
    encode_index,
    token_file_name,
)
from penstock.formats.tokens.folder.side import NAME, folder_facts, folder_manifest, read_manifest
from penstock.formats.tokens.joined import DOCUMENTS, JoinedTokens, JoinsTokens, RunDigests
from penstock.formats.tokens.writer import token_manifest
from penstock.store.base import Store
from penstock.store.compose import Extent, join_ranges
from penstock.store.local import LocalStore
from penstock.store.outputs import Filled, drop_listed, filled_folder, sweep_complete
from penstock.store.place import Place
from penstock.store.put import aborting, put, put_local_file, put_new
from penstock.store.side_file import (
    EDGE_BYTES,
    edge_binding,
    encode_manifest,
    file_binding,
    is_next,
    load_manifest,
    publish_beside,
    stage_side_file,
    sweep_next,
)
from penstock.types import Buffer, IntArray, Manifest, OpenOptions


@dataclass(frozen=True, slots=True)
class PartRange:
    name: PartName
    first: int
    stop: int


@dataclass(slots=True)
class Gathered:
    """Ranges, lengths and digests of the documents of a token file. Memory: 4 bytes per document."""

    parts: Place
    token_bytes: int
    ranges: list[Extent] = field(default_factory=list[Extent])
    probes: list[Probe] = field(default_factory=list[Probe])
    _lengths: list[NDArray[Any]] = field(default_factory=list[NDArray[Any]])
    _digests: RunDigests = field(default_factory=RunDigests)
    _highest: int = -1

    def add(self, one: PartRange) -> None:
        part = self.parts.child(one.name.path)
        meta, lengths = read_part(part, self.token_bytes)
        if one.first == 0:
            require_intact(self.parts, one.name)
        self.probes += meta.probes
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        chosen = lengths[one.first : one.stop]
        self._lengths.append(chosen.astype(np.uint32 if int(chosen.max(initial=0)) < 1 << 32 else np.int64))
        self.ranges.append(self._extent(part, starts, one.first, one.stop))
        first = one.first
        for stop in self._digests.cut(chosen):
            for digest, num_tokens, highest in self._known(part, meta, starts, first, one.first + stop):
                self._digests.add(digest, num_tokens)
                self._highest = max(self._highest, highest)
            first = one.first + stop

    def tokens(self) -> JoinedTokens:
        num_docs = sum(map(len, self._lengths))
        digests = self._digests.finish()
        return JoinedTokens(self._runs, num_docs, self._digests.num_tokens, self._highest, digests, self.token_bytes)

    def _runs(self) -> Iterator[IntArray]:
        for run in self._lengths:
            for start in range(0, len(run), 1 << 16):
                yield run[start : start + (1 << 16)].astype(np.int64)

    def _known(
        self, part: Place, meta: PartMeta, starts: IntArray, first: int, stop: int
    ) -> Iterator[tuple[str, int, int]]:
        """Return `(digest, tokens, largest id)` of documents `[first, stop)` of a part, in pieces."""
        begin = 0
        for run in meta.runs:
            end = begin + run.documents
            low, high = max(first, begin), min(stop, end)
            if (low, high) == (begin, end):
                yield run.digest, int(starts[end] - starts[begin]), run.max_token_id
            elif low < high:
                path, start_bytes, length_bytes = self._extent(part, starts, low, high)
                (data,) = part.store.get_ranges(path, [(start_bytes, start_bytes + length_bytes)])
                tokens = np.frombuffer(data, dtype_for(self.token_bytes, "<"))
                digest = documents_digest_v2(tokens, np.diff(starts[low : high + 1]))
                yield digest, len(tokens), int(tokens.max(initial=0))
            begin = end

    def _extent(self, part: Place, starts: IntArray, first: int, stop: int) -> Extent:
        start, end = int(starts[first]) * self.token_bytes, int(starts[stop]) * self.token_bytes
        return part.path, start, end - start


@dataclass(frozen=True, slots=True)
class Joined:
    """A joined token file: its name in the directory, digest, and side file."""

    name: str
    digest: str
    manifest: Manifest


def join_file(
    kind: JoinsTokens, to: str, output: Place, number: int, gathered: Gathered, options: Mapping[str, Any], scratch: str
) -> Joined | None:
    """Join a token file under a name that contains its digest; an existing one stays.

    Args:
        kind: its format.
        to: name of the format.
        output: its directory.
        number: number of the file.
        gathered: its documents.
        options: options of the writer.
        scratch: a local temporary directory, on the same file system as a local output.

    Returns:
        The file; None if its format stores these tokens differently.
    """
    tokens = gathered.tokens()
    digest = join_digests(tokens.digests)
    name = token_file_name(number, digest, SUFFIXES[to])
    frame = kind.join(options, tokens, output.child(name).path)
    if frame is None:
        return None
    own = os.path.join(scratch, "own")
    own_bytes, _ = _write(own, (frame.head, *frame.tail))
    head_bytes = len(frame.head)
    ranges = [(own, 0, head_bytes), *gathered.ranges, (own, head_bytes, own_bytes - head_bytes)]
    size_bytes, binding = sum(length for _, _, length in ranges), _binding(gathered.parts, ranges, own)
    block_digests: dict[str, tuple[str, ...]] = {DOCUMENTS: tokens.digests}
    index = os.path.join(scratch, "index")
    if frame.index is not None:
        index_bytes, block_digests[frame.index_name] = _write(index, frame.index)
        size_bytes += index_bytes
        binding = frame.joint_binding(binding, file_binding(LocalStore(), index))
    manifest = token_manifest(to, tokens, frame, size_bytes=size_bytes, block_digests=block_digests, binding=binding)
    put_new(output.store, output.child(side_name(to, name)).path, encode_manifest(manifest))
    if frame.index is not None:
        put_local_file(output.store, index, output.child(data_names(to, name)[1]).path)
    join_ranges(output.store, ranges, output.child(name).path, here=own, scratch=scratch)
    return Joined(name, digest, manifest)


def _write(path: str, pieces: Iterable[Buffer]) -> tuple[int, tuple[str, ...]]:
    """Write a local file; return its size and the digests of its blocks."""
    hasher = BlockHasher()
    with aborting(LocalStore().stage(path)) as staged:
        for piece in pieces:
            staged.write(piece)
            hasher.update(piece)
        size_bytes = staged.tell()
        staged.commit()
    return size_bytes, hasher.finish()


def _binding(parts: Place, ranges: Sequence[Extent], own: str) -> str:
    size_bytes = sum(length for _, _, length in ranges)
    edges = ((0, min(size_bytes, EDGE_BYTES)), (max(0, size_bytes - EDGE_BYTES), size_bytes))
    head, tail = (b"".join(_read(parts, ranges, own, *edge)) for edge in edges)
    return edge_binding(size_bytes, head, tail)


def _read(parts: Place, ranges: Sequence[Extent], own: str, first: int, stop: int) -> Iterator[bytes]:
    """Read bytes `[first, stop)` of a file that consists of ranges."""
    place = 0
    for path, start, length in ranges:
        low, high = max(first, place), min(stop, place + length)
        if low < high:
            store: Store = LocalStore() if path == own else parts.store
            yield store.get_ranges(path, [(start + low - place, start + high - place)])[0]
        place += length


_STEM = "part"


# --- the cut into files ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileTask:
    number: int
    ranges: tuple[PartRange, ...]

    @property
    def described(self) -> str:
        return f"token file {self.number}"


def cut_files(
    parts: Sequence[PartName], file_tokens: int, folder: Place, token_bytes: int
) -> list[tuple[PartRange, ...]]:
    """Return the contents of each token file: each ends at the first border at or after a multiple of `file_tokens`.

    The cut doesn't depend on how documents are divided into parts. One part is read per file.
    """
    files: list[tuple[PartRange, ...]] = []
    ranges: list[PartRange] = []
    tokens, goal = 0, file_tokens
    for name in parts:
        first, after = 0, tokens + name.tokens
        if goal <= after and name.documents:
            ends = tokens + np.cumsum(read_part(folder.child(name.path), token_bytes)[1])
            while goal <= after:
                stop = int(np.searchsorted(ends, goal)) + 1
                ranges.append(PartRange(name, first, stop))
                files.append(tuple(ranges))
                ranges, first = [], stop
                goal = (int(ends[stop - 1]) // file_tokens + 1) * file_tokens
        if first < name.documents:
            ranges.append(PartRange(name, first, name.documents))
        tokens = after
    if ranges:
        files.append(tuple(ranges))
    return files


# --- appending -------------------------------------------------------------------------------------------------------


def append_range(
    writer: TokenParts, folder: Place, one: PartRange, token_bytes: int, digest: JoinedDigest | None = None
) -> PartMeta:
    """Append documents of a part to a writer, and to `digest` if given; return the part's record."""
    if digest is not None and isinstance(writer, ExpectsDigest):
        writer.expect_digest(digest.text)
    part = folder.child(one.name.path)
    meta, lengths = read_part(part, token_bytes)
    if one.first == 0:
        require_intact(folder, one.name)
    chosen = lengths[one.first : one.stop]
    start_bytes = int(lengths[: one.first].sum()) * token_bytes
    if len(chosen):
        with _as_local(part, start_bytes, int(chosen.sum()) * token_bytes) as (path, offset_bytes):
            whole = len(chosen) == len(lengths)
            writer.write_part(path, offset_bytes, chosen, meta.max_token_id if whole else None)
            if digest is not None:
                digest.update(_mapped(path, offset_bytes, chosen, token_bytes), chosen)
    return meta


@contextlib.contextmanager
def _as_local(part: Place, start_bytes: int, length_bytes: int) -> Generator[tuple[str, int]]:
    """Yield `(path, offset)` of a range of a part in a local file: the part itself, or a temporary copy."""
    if part.is_local:
        yield part.path, start_bytes
        _drop_cache(part.path)
        return
    with scratch() as folder:
        path = os.path.join(folder, "part")
        with aborting(LocalStore().stage(path)) as staged:
            staged.write(part.store.get(part.path, start_bytes, length_bytes))
            staged.commit()
        yield path, 0


def _mapped(path: str, offset_bytes: int, lengths: IntArray, token_bytes: int) -> Any:
    stored = LocalStore().mmap(path)[offset_bytes : offset_bytes + int(lengths.sum()) * token_bytes]
    return stored.view(np.dtype(f"<u{token_bytes}"))


def _drop_cache(path: str) -> None:
    """Drop a part from the page cache after it was read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


# --- token files -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileJob:
    """Parameters of all token files of a run.

    Attributes:
        output: their directory.
        parts: directory of the parts.
        scratch: directory for temporary files, local if the output is.
        to: their format.
        token_bytes: width of the tokens in the parts.
        options: options of the writer.
        differs: returns the number of an input on which tokenizers disagree, and where, given probes of parts.
    """

    output: Place
    parts: Place
    scratch: Place
    to: str
    token_bytes: int
    options: Mapping[str, Any]
    differs: Callable[[Sequence[Probe]], tuple[int, str] | None] | None = None


class FileMark(msgspec.Struct, frozen=True):
    """Record of a finished token file."""

    entry: TokenFileEntry
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FileDone:
    """A finished token file, and the input on which tokenizers disagree, if any, and where."""

    number: int
    mark: FileMark
    differs: tuple[int, str] | None


def assemble_file(job: FileJob, task: FileTask) -> FileDone:
    """Make a token file under a name that contains its digest; an existing one stays.

    Memory: 8 bytes per document, and that of the writer.
    """
    kind = get_format(job.to)
    with scratch(job.scratch) as folder:
        if isinstance(kind, JoinsTokens):
            gathered = Gathered(job.parts, job.token_bytes)
            for one in task.ranges:
                gathered.add(one)
            made = join_file(kind, job.to, job.output, task.number, gathered, job.options, folder)
            if made is not None:
                return _done(job, task.number, made.name, made.digest, made.manifest, gathered.probes)
        return _write_file(job, task, folder)


def _write_file(job: FileJob, task: FileTask, folder: str) -> FileDone:
    """Make it with the format's writer, which encodes all tokens."""
    probes, digest, suffix = list[Probe](), JoinedDigest(), SUFFIXES[job.to]
    kind = get_format(job.to)
    with kind.create(LocalStore(), f"{folder}/{_STEM}.{suffix}", job.options, overwrite=False) as writer:
        for one in task.ranges:
            probes += append_range(as_parts(writer), job.parts, one, job.token_bytes, digest).probes
        manifest = writer.commit()
    name = token_file_name(task.number, digest.text(), suffix)
    for entry, path in _made(folder):
        final = name.removesuffix(f".{suffix}") + entry.removeprefix(_STEM)
        put_local_file(job.output.store, path, job.output.child(final).path)
    return _done(job, task.number, name, digest.text(), manifest, probes)


def _done(job: FileJob, number: int, name: str, digest: str, manifest: Manifest, probes: Sequence[Probe]) -> FileDone:
    highest = -1 if manifest.max_token_id is None else manifest.max_token_id
    entry = TokenFileEntry(name, manifest.num_tokens or 0, manifest.num_samples, highest, digest)
    return FileDone(number, FileMark(entry, manifest.size_bytes), job.differs and job.differs(probes))


def as_parts(writer: Writer) -> TokenParts:
    if not isinstance(writer, TokenParts):
        raise Unsupported("packing to this format isn't supported", hint="Choose another one: to= (--to)")
    return writer


def _made(folder: str) -> Iterator[tuple[str, str]]:
    """Return `(name, path)` of all files in a directory: side files first, the data last."""
    names = sorted(
        os.listdir(folder), key=lambda name: (not name.endswith(".penstock"), not name.endswith(".idx"), name)
    )
    for name in names:
        yield name, os.path.join(folder, name)


_REPLACED = "replaced.json"
"""Name in a plan's folder for the list of files that only the replaced index lists, until they are removed."""


@contextlib.contextmanager
def held_folder(output: Place, *, overwrite: bool, shared: bool) -> Generator[None]:
    """Lock the directory of token files, `shared` by workers of one plan; raises as `filled_folder`."""
    with filled_folder(output.store, output.path, _kind(output), overwrite=overwrite, shared=shared):
        yield


def _end_folder(work: Work) -> None:
    output = work.output
    store, side, index = output.store, output.child(SIDE_NAME).path, output.child(INDEX_NAME).path
    data = read_index_bytes(store, output.path)
    facts = functools.partial(folder_facts, data, decode_index(data, index))
    sweep_next(store, f"{NAME}.next", [side], is_next(store, side, facts), write=True)
    if work.head is not None:
        listed = set(own_files(store, output.path))
        drop_listed(store, output.path, (name for name in _replaced(work) or () if name not in listed))


def _replaced(work: Work) -> list[str] | None:
    """Return the files that only the replaced index lists, as a commit noted them; None if it replaces none."""
    note = work.place.child(_REPLACED)
    try:
        names = msgspec.json.decode(note.store.get(note.path), type=list[str])
    except (NotFound, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return [name for name in names if is_token_file_name(name.partition("/")[0]) and ".." not in name.split("/")]


def _kind(output: Place) -> Filled:
    return Filled(functools.partial(own_files, output.store), INDEX_NAME, is_unfinished_name)


@dataclass(frozen=True, slots=True)
class TokenFiles:
    """A directory of token files to be made.

    Attributes:
        job: parameters of its files.
        file_tokens: tokens per file.
        overwrite: replace an existing dataset.
        given: provenance for the side file of the directory.
        work: the work folder.
        refuse: returns the error for an input on which tokenizers disagree, given its number and the place.
    """

    job: FileJob
    file_tokens: int
    overwrite: bool
    given: Provenance
    work: Work
    refuse: Callable[[int, str], PenstockError] | None = None

    def make(self, pool: Executor, parts: Sequence[PartName]) -> None:
        """Make the missing token files."""
        marks = self.marks()
        self.assemble(pool, [task for task in self.tasks(parts) if task.number not in marks])

    def assemble(self, pool: Executor, tasks: Iterable[FileTask]) -> None:
        """Make token files and record each; raises as `refuse` if tokenizers disagree on one."""
        for done in pool.map(functools.partial(assemble_file, self.job), tasks):
            if done.differs is not None and self.refuse is not None:
                raise self.refuse(*done.differs)
            put(self.work.folder.store, self._mark(done.number).path, msgspec.json.encode(done.mark))

    def commit(self, parts: Sequence[PartName]) -> Manifest:
        """Write the side file and index of the directory; then remove the files that it replaces.

        Raises `PrepareError` if another run has removed the records of finished files.
        """
        output, count = self.job.output, len(self.tasks(parts))
        marks = self.marks()
        if marks.keys() != set(range(count)):  # an index of fewer files would take the place of what that one made
            what, hint = "the records of finished token files are missing", "Run it again"
            raise PrepareError(what, path=output.path, found=len(marks), expected=count, hint=hint)
        entries = [marks[number].entry for number in range(count)]
        self._require_sizes(marks.values())
        data = encode_index(self.job.to, entries)
        replaced = self._note_replaced(data)
        size_bytes = sum(mark.size_bytes for mark in marks.values())
        manifest = folder_manifest(data, decode_index(data, output.path), size_bytes, self.given)
        index = output.child(INDEX_NAME)
        staged = output.store.stage(index.path, overwrite=self.overwrite)
        try:
            staged.write(data)
            staged.sync()
            side = stage_side_file(output.store, output.child(SIDE_NAME).path, manifest, replaces=replaced is not None)

            def landed() -> bool:
                return output.store.get(index.path) == data

            publish_beside(output.store, [side], staged.commit, landed)
        except BaseException:
            staged.abort()
            raise
        drop_listed(output.store, output.path, replaced or ())
        return manifest

    def _require_sizes(self, marks: Iterable[FileMark]) -> None:
        """Raise an error if a token file has another size than recorded.

        Raises:
            ConfigError: the replaced dataset has the same documents with ids of another width. Names of token files are
                digests of documents, so both can't be in one directory.
            Corrupt: a token file is damaged.
        """
        if self.job.to == "flat-tokens":
            return  # in folders, ids have one width, and files have their own digests
        if not (self.job.output.is_local or self.overwrite):
            return  # object stores check objects themselves
        for mark in marks:
            some = data_names(self.job.to, mark.entry.path)
            size_bytes = sum(one.store.size(one.path) for one in map(self.job.output.child, some))
            if size_bytes == mark.size_bytes:
                continue
            path, found, expected = self.job.output.child(some[0]).path, f"{size_bytes} bytes", f"{mark.size_bytes}"
            if self._is_of_another_width(mark.entry.path, size_bytes):
                what = "the folder to replace has the same documents with a different id width"
                hint = "Write to another folder, or delete this folder first"
                raise ConfigError(what, path=path, found=found, expected=expected, hint=hint)
            what = "a token file of unfinished work is damaged"
            raise Corrupt(what, path=path, found=found, expected=expected, hint=RESTART)

    def _is_of_another_width(self, name: str, size_bytes: int) -> bool:
        side_file = self.job.output.child(side_name(self.job.to, name))
        manifest = load_manifest(side_file.store, side_file.path)
        return manifest is not None and manifest.size_bytes == size_bytes

    def _note_replaced(self, data: bytes) -> list[str] | None:
        """Record and return the files that only the replaced index lists; None if it replaces none."""
        output, note = self.job.output, self.work.place.child(_REPLACED)
        index = output.child(INDEX_NAME)
        if output.store.exists(index.path) and output.store.get(index.path) != data:
            new = set(listed_files(output.store, output.path, decode_index(data, index.path)))
            old = [name for name in own_files(output.store, output.path) if name not in new]
            put(note.store, note.path, msgspec.json.encode(old))
        return _replaced(self.work)

    def tasks(self, parts: Sequence[PartName]) -> list[FileTask]:
        cut = cut_files(parts, self.file_tokens, self.job.parts, self.job.token_bytes)
        return [FileTask(number, ranges) for number, ranges in enumerate(cut)]

    def marks(self) -> dict[int, FileMark]:
        found: dict[int, FileMark] = {}
        there = set(self.job.output.names())
        with contextlib.suppress(NotFound):
            for path in self.work.folder.store.list(self.work.place.child("files").path):
                number = path.rpartition("/")[2].removesuffix(".json")
                with contextlib.suppress(msgspec.MsgspecError, ValueError, NotFound, RecursionError):
                    mark = msgspec.json.decode(self.work.folder.store.get(path), type=FileMark)
                    if mark.entry.path in there:
                        found[int(number)] = mark
        return found

    def _mark(self, number: int) -> Place:
        return self.work.place.child(f"files/{number:05d}.json")


class FileWave(Wave):
    """Second wave: each task makes a token file of a folder."""

    def __init__(self, files: TokenFiles, parts: Sequence[PartName]) -> None:
        self.files = files
        self.tasks = files.tasks(parts)

    def done(self) -> Mapping[int, FileMark]:
        return self.files.marks()

    def run(self, pool: Executor, tasks: Sequence[FileTask]) -> None:
        self.files.assemble(pool, tasks)


class TokenOutputJob(Job[ReportT]):
    """A job whose parts hold tokens, which become one dataset or a directory of token files.

    Attributes:
        pool: executor of the tasks; known once they start.
    """

    pool: Executor

    @property
    @abstractmethod
    def to(self) -> str:
        """Format of the dataset or of the token files."""

    @property
    @abstractmethod
    def is_folder(self) -> bool:
        """Whether the output is a directory of token files, which are written independently."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Bytes of each token in parts."""

    @property
    @abstractmethod
    def file_options(self) -> dict[str, Any]:
        """Writer options of one dataset."""

    @abstractmethod
    def files(self, work: Work) -> TokenFiles:
        """Return the token files of a directory."""

    @abstractmethod
    def all_parts(self, work: Work) -> Sequence[PartName]:
        """Return all parts in order."""

    def open_output(self) -> Any:
        return get_format(self.to).open(self.output.store, self.output.path, OpenOptions())

    @property
    def folder(self) -> WorkFolder:
        return work_folder(self.output, inside=self.is_folder)

    def first_files(self) -> list[Place]:
        # All runs make token files at once, and none waits for another one.
        return [] if self.is_folder else [Place(self.output.store, files_at(self.to, self.output.path)[0])]

    def held(self, output: Place | None = None) -> contextlib.AbstractContextManager[None]:
        """Return the lock of a directory, by default of the output; one dataset is held by its writer."""
        if not self.is_folder:
            return contextlib.nullcontext()
        return held_folder(output or self.output, overwrite=self.options.overwrite, shared=self.options.is_distributed)

    def manifest(self) -> Manifest | None:
        """Return the side file of the output if it exists and can be read."""
        store, path = self.output.store, self.output.path
        with contextlib.suppress(PenstockError, OSError):
            if self.is_folder:
                return read_manifest(store, path, read_index_bytes(store, path), read_index(store, path))
            found = getattr(self.open_output(), "manifest", None)
            return found if isinstance(found, Manifest) else None
        return None

    def settle(self, made: Manifest) -> None:
        output = self.output
        if self.is_folder:
            sweep_complete(output.store, [output.path, *(output.child(name).path for name in (INDEX_NAME, SIDE_NAME))])
        else:
            sweep_made(output, self.to)

    def end_killed_commit(self, work: Work) -> None:
        if self.is_folder:
            _end_folder(work)
        else:
            end_made(work.output, self.to, work.head and work.head.digest)

    def joined(self, work: Work) -> OneFile | None:
        """Return the dataset if its store can join it from parts; None if a writer must encode each part."""
        options, overwrite = self.file_options, self.options.overwrite
        return joined_file(self.to, self.output, options, self.width, work, overwrite=overwrite)

    def wave(self, work: Work) -> Wave:
        if self.is_folder:
            return FileWave(self.files(work), self.all_parts(work))
        joined = self.joined(work)
        if joined is None:
            return Wave()
        # With no_work, the digests that are missing are still computed, by the commit.
        return joined.wave(self.all_parts(work), self.pool if self.options.no_work else None)
