"""A token file of parts, joined by the store that holds them: their tokens don't come here, on a disk neither.

What is needed of the parts are their ends: lengths, and digests of runs of documents, which join. Only where a token
file, or a run of 2^24 tokens, ends inside such a run are its tokens read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.abc import Store
from penstock.codec.hashes import BlockHasher
from penstock.codec.joined_digest import documents_digest_v2, join_digests
from penstock.codec.tokens import dtype_for
from penstock.engine.parts import PartMeta, PartName, Probe, read_part, require_intact
from penstock.formats.tokens.folder.files import data_names, side_name
from penstock.formats.tokens.folder.index import SUFFIXES, token_file_name
from penstock.formats.tokens.joined import JoinedTokens, JoinsTokens, RunDigests, joined_manifest
from penstock.store.compose import Extent, join_ranges
from penstock.store.local import LocalStore
from penstock.store.place import Place
from penstock.store.put import aborting, put_local_file, put_new
from penstock.store.side_file import EDGE_BYTES, edge_binding, encode_manifest, file_binding
from penstock.types import Buffer, IntArray, Manifest


@dataclass(frozen=True, slots=True)
class PartRange:
    """Documents `[first, stop)` of a part."""

    name: PartName
    first: int
    stop: int


@dataclass(slots=True)
class Gathered:
    """What is known of the documents of a token file. Memory: 4 bytes a document.

    Attributes:
        parts: where parts are.
        token_bytes: width of the tokens.
        ranges: of the parts, where the tokens are.
        probes: texts that the parts remember.
    """

    parts: Place
    token_bytes: int
    ranges: list[Extent] = field(default_factory=list[Extent])
    probes: list[Probe] = field(default_factory=list[Probe])
    _lengths: list[NDArray[Any]] = field(default_factory=list[NDArray[Any]])
    _digests: RunDigests = field(default_factory=RunDigests)
    _highest: int = -1

    def add(self, one: PartRange) -> None:
        """Add documents of a part."""
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
        """All of it."""
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
        """`(digest, tokens, largest id)` of documents `[first, stop)` of a part, in pieces."""
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
    """A token file that was joined: its name in the folder, its documents' digest, and its side file."""

    name: str
    digest: str
    manifest: Manifest


def join_file(
    kind: JoinsTokens, to: str, output: Place, number: int, gathered: Gathered, options: Mapping[str, Any], scratch: str
) -> Joined | None:
    """Make a token file under a name that tells its content; one that is there stays.

    Args:
        kind: its format, which is called `to`.
        output: the folder that it goes into.
        number: of the file.
        gathered: what it holds.
        options: of the writer.
        scratch: a folder of this machine for a time, on the file system of `output` where that is on one.

    Returns:
        The file; None where its format stores these tokens otherwise.
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
    block_digests: dict[str, tuple[str, ...]] = {}
    index = os.path.join(scratch, "index")
    if frame.index is not None:
        index_bytes, block_digests[frame.index_name] = _write(index, frame.index)
        size_bytes += index_bytes
        binding = frame.joint_binding(binding, file_binding(LocalStore(), index))
    manifest = joined_manifest(to, tokens, frame, size_bytes, binding, block_digests)
    put_new(output.store, output.child(side_name(to, name)).path, encode_manifest(manifest))
    if frame.index is not None:
        put_local_file(output.store, index, output.child(data_names(to, name)[1]).path)
    join_ranges(output.store, ranges, output.child(name).path, here=own, scratch=scratch)
    return Joined(name, digest, manifest)


def _write(path: str, pieces: Iterable[Buffer]) -> tuple[int, tuple[str, ...]]:
    """Write a file of this machine; its size, and the digests of its blocks."""
    hasher = BlockHasher()
    with aborting(LocalStore().stage(path)) as staged:
        for piece in pieces:
            staged.write(piece)
            hasher.update(piece)
        size_bytes = staged.tell()
        staged.commit()
    return size_bytes, hasher.finish()


def _binding(parts: Place, ranges: Sequence[Extent], own: str) -> str:
    """The binding of a file of ranges."""
    size_bytes = sum(length for _, _, length in ranges)
    edges = ((0, min(size_bytes, EDGE_BYTES)), (max(0, size_bytes - EDGE_BYTES), size_bytes))
    head, tail = (b"".join(_read(parts, ranges, own, *edge)) for edge in edges)
    return edge_binding(size_bytes, head, tail)


def _read(parts: Place, ranges: Sequence[Extent], own: str, first: int, stop: int) -> Iterator[bytes]:
    """Bytes `[first, stop)` of a file of ranges."""
    place = 0
    for path, start, length in ranges:
        low, high = max(first, place), min(stop, place + length)
        if low < high:
            store: Store = LocalStore() if path == own else parts.store
            yield store.get_ranges(path, [(start + low - place, start + high - place)])[0]
        place += length
