"""Parts of tokens in their order → one writer, or token files of their own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from penstock._kinds import ExpectsDigest, TokenParts
from penstock.abc import Writer
from penstock.codec.joined_digest import JoinedDigest
from penstock.engine.parts import PartMeta, PartName, Probe, read_part, require_intact
from penstock.engine.shared import scratch
from penstock.engine.tokens.join import Gathered, PartRange, join_file
from penstock.errors import Unsupported
from penstock.formats import get_format
from penstock.formats.tokens.folder.index import SUFFIXES, TokenFileEntry, token_file_name
from penstock.formats.tokens.joined import JoinsTokens
from penstock.store.local import LocalStore
from penstock.store.place import Place
from penstock.store.put import aborting, put_local_file
from penstock.types import IntArray, Manifest

_STEM = "part"


# --- the cut into files ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileTask:
    """A token file to assemble: its number, and what it holds."""

    number: int
    ranges: tuple[PartRange, ...]

    @property
    def described(self) -> str:
        """What it makes, for errors."""
        return f"token file {self.number}"


def cut_files(
    parts: Sequence[PartName], file_tokens: int, folder: Place, token_bytes: int
) -> list[tuple[PartRange, ...]]:
    """What each token file holds; every one but the last ends at the first border at or after a multiple.

    One part is read for each file. Which parts there are has no influence on where the borders lie.

    Args:
        parts: all of them, in order.
        file_tokens: of this number of tokens.
        folder: where they are.
        token_bytes: width of the tokens.
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
    """Append documents of a part; what the part holds.

    Args:
        writer: takes them.
        folder: where parts are.
        one: the documents.
        token_bytes: width of the tokens.
        digest: takes them too.
    """
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
    """`(path, offset)` of a range of a part as a file of this machine: the part, or a copy for as long."""
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
    """Tell the system that a part, durable and read, need not stay in memory."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


# --- token files -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileJob:
    """What all token files of a run share.

    Attributes:
        output: the folder that they go into.
        parts: where parts are.
        scratch: where files are made, on this machine where the output is.
        to: their format.
        token_bytes: width of the tokens in the parts.
        options: of the writer.
        differs: gives, of texts that parts remember, the number of an input on which engines disagree, and where.
    """

    output: Place
    parts: Place
    scratch: Place
    to: str
    token_bytes: int
    options: Mapping[str, Any]
    differs: Callable[[Sequence[Probe]], tuple[int, str] | None] | None = None


class FileMark(msgspec.Struct, frozen=True):
    """A token file that is there."""

    entry: TokenFileEntry
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FileDone:
    """A token file that was made, and the input of one of its parts of which engines disagree, and where."""

    number: int
    mark: FileMark
    differs: tuple[int, str] | None


def assemble_file(job: FileJob, task: FileTask) -> FileDone:
    """Make a token file under a name that tells its content; one that is there stays.

    Memory: 8 bytes a document of the file, and what its writer takes.
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
    """The same by the format's writer, through which all tokens pass."""
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
    """A writer, as one that takes parts; raises `Unsupported`."""
    if not isinstance(writer, TokenParts):
        raise Unsupported("packing to this format isn't supported", hint="Choose another one: to= (--to)")
    return writer


def _made(folder: str) -> Iterator[tuple[str, str]]:
    """`(name in the folder, path)` of all files and folders in it: side files first, and what the data are last."""
    names = sorted(
        os.listdir(folder), key=lambda name: (not name.endswith(".penstock"), not name.endswith(".idx"), name)
    )
    for name in names:
        yield name, os.path.join(folder, name)
