"""The seams of Penstock: every Protocol that a plug-in may implement, with its laws.

Read this file first. Each law is tested by a suite in `penstock.testing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeGuard, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock.types import (
    Action,
    Batch,
    Depth,
    Extent,
    Finding,
    IntArray,
    Location,
    Manifest,
    MediaMetadata,
    OpenOptions,
    Place,
    Sample,
    Schema,
    Sniff,
    TokenArray,
    Traits,
)

Buffer = bytes | bytearray | memoryview | NDArray[Any]

T = TypeVar("T")
R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)


# --- where bytes are ---------------------------------------------------------------------------------------------


class Staged(Protocol):
    """A file that nobody sees until `commit`.

    Laws: invisible before `commit`; durable after it; after `abort`, or if the process dies, the old file
    (or none) is there. `sync` makes the bytes durable and leaves them invisible, so that several files are
    first all synced and then made visible one after another: see `Store.commit`.
    """

    path: str
    """The final path."""

    def write(self, data: Buffer) -> int:
        """Append; returns bytes written (always all of them)."""
        ...

    def write_at(self, offset_bytes: int, data: Buffer) -> None:
        """Overwrite bytes already written, such as a header."""
        ...

    def read_at(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Bytes already written; fewer only at their end."""
        ...

    def append_file(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> int:
        """Append a range of a local file, copied by the kernel where it can; returns bytes appended."""
        ...

    def tell(self) -> int:
        """Bytes appended so far."""
        ...

    def sync(self) -> None:
        """Make the bytes durable, still invisible."""
        ...

    def commit(self) -> None:
        """`sync`, then make visible under the final path, durably."""
        ...

    def abort(self) -> None:
        """Drop it. A second call, or a call after `commit`, does nothing."""
        ...


class Store(Protocol):
    """A place for files. Paths are those of the store: plain paths for the local one."""

    def get(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """Bytes `[start, start + length)`; fewer only at the end of the file.

        Raises:
            NotFound: no such file.
        """
        ...

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """One bytes object for each `(start_bytes, stop_bytes)`; raises `Truncated` where the file is shorter."""
        ...

    def size(self, path: str) -> int:
        """Size in bytes; raises `NotFound`."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or a folder of this name is there."""
        ...

    def is_folder(self, path: str) -> bool:
        """Whether a folder of this name is there."""
        ...

    def list(self, prefix: str) -> Iterator[str]:
        """All files under the folder `prefix`, in byte order of their paths, staged ones left out."""
        ...

    def stage(self, path: str, *, overwrite: bool = False) -> Staged:
        """Begin a file.

        Raises:
            ConfigError: the file exists and `overwrite` is false (asked again at commit).
        """
        ...

    def commit(self, staged: Sequence[Staged]) -> None:
        """Sync all, then make visible in the given order; the last is the one that makes a dataset visible."""
        ...

    def delete(self, path: str) -> None:
        """Remove one file; raises `NotFound`."""
        ...


@runtime_checkable
class SupportsMmap(Protocol):
    """A store whose files can be mapped."""

    def mmap(self, path: str) -> NDArray[np.uint8]:
        """uint8[size_bytes]: the file, mapped read-only; empty for an empty file."""
        ...


@runtime_checkable
class SupportsCopies(Protocol):
    """A remote store that keeps whole, checked local copies of its files.

    Laws: a copy is visible only when its size and hashes are right; a copy that is wrong raises `Corrupt` or
    `Truncated` and is not kept; whoever holds a mapping keeps its bytes though the copy be evicted.
    """

    def mapped_copy(
        self, path: str, *, size_bytes: int | None = None, hashes: Mapping[str, str] | None = None
    ) -> NDArray[np.uint8]:
        """uint8[size_bytes]: the whole file, fetched once a host and mapped read-only.

        Args:
            path: file in this store.
            size_bytes: the size that an index states.
            hashes: algorithm → lower-case hex digest that an index states; checked when the copy is made.
        """
        ...

    def local_copy(self, path: str, *, size_bytes: int | None = None, hashes: Mapping[str, str] | None = None) -> str:
        """Local path of the copy, for libraries that open files by name; it may be evicted after that."""
        ...


class StagedFolder(Protocol):
    """A folder of files that nobody sees until `commit`.

    Laws: as `Staged`, for the folder as a whole; where it replaces a folder, there is one or the other at any time.
    """

    path: str
    """The final path."""

    def stage(self, name: str) -> Staged:
        """Begin a file in it, by its path inside; its own `commit` makes it durable and leaves it hidden."""
        ...

    def commit(self, part: str | None = None, path: str | None = None) -> None:
        """Make it visible, durably; with `part`, that folder in it alone, under `path`.

        Raises:
            ConfigError: something stands there and `overwrite` is false.
        """
        ...

    def abort(self) -> None:
        """Drop it. A second call, or a call after `commit`, does nothing."""
        ...


@runtime_checkable
class SupportsExpectedReads(Protocol):
    """A store that plans by what is going to be read."""

    def expect_reads(self, reads: Mapping[str, tuple[int, int]]) -> None:
        """Say what comes: path → requests that it would take, and bytes of all of them."""
        ...


@runtime_checkable
class SupportsFolders(Protocol):
    """A store that can make whole folders visible at once."""

    def stage_folder(self, path: str, *, overwrite: bool = False, beside: str | None = None) -> StagedFolder:
        """Begin a folder.

        Args:
            path: where it will be; an empty folder there counts as nothing.
            overwrite: replace a folder that is there.
            beside: keep the hidden files next to this path; by default next to `path`.

        Raises:
            ConfigError: something stands at `path` and `overwrite` is false (asked again at commit).
        """
        ...


@runtime_checkable
class SupportsLinks(Protocol):
    """A store whose files can have several names."""

    def link(self, path: str, name: str) -> bool:
        """Give a file a second name, durably and in one step in the place of a file of that name.

        Returns:
            False where the file system has no such names; nothing is changed then.
        """
        ...


class Derived(Protocol):
    """Things computed once a host and mapped: decoded document starts, plans, permutations."""

    def array(self, key: str, dtype: str, build: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """The 1-d array stored under `key`, built under a lock where it is missing; read-only and mapped.

        `key` is a digest of all that the array depends on: fingerprint, parameters, version.
        """
        ...


# --- datasets ----------------------------------------------------------------------------------------------------


class Source(Protocol[T_co]):
    """A finite, ordered, indexed dataset.

    Laws: `self[i]` is a pure function of `i`; `-len <= i < len`, else IndexError; row j of
    `get_batch(indices)` equals `self[indices[j]]`; thread-safe; picklable; usable after fork.
    """

    @property
    def schema(self) -> Schema:
        """What the samples hold."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hex digest of the content; a copy elsewhere has the same one. Computed at first use, in at most 64 reads."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T_co: ...

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Columns of the samples at `indices`: int64[k] (negative ones refused), in that order."""
        ...

    def children(self) -> Mapping[str, Source[Any]]:
        """Sources that this one is made of, by name; empty for data on disk."""
        ...

    def recipe(self) -> dict[str, Any]:
        """Plain JSON that describes how this source was made."""
        ...


class TokenSource(Source[Sample], Protocol):
    """A source of documents that is also one long run of tokens.

    `self[i]` is `{"tokens": array}`, the i-th document as stored (its EOS token included, if any).
    """

    @property
    def dtype(self) -> np.dtype[Any]:
        """Native unsigned dtype of the ids: uint8, uint16 or uint32."""
        ...

    @property
    def num_tokens(self) -> int:
        """Tokens in all."""
        ...

    @property
    def doc_starts(self) -> IntArray:
        """int64[n_docs + 1]: token position of each document's first token, and `num_tokens` at the end.

        May be computed at first use; windows and their labels never need it.
        """
        ...

    @property
    def eos_id(self) -> int | None:
        """Id that ends every document in the data; None where there is none or it is not known."""
        ...

    def tokens(self, start: int, stop: int) -> TokenArray:
        """uint[stop - start]: tokens in `[start, stop)`; zero-copy and read-only where the format allows."""
        ...

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        """uint[len(starts), length]: one window a row, as one vectorised copy; into `out` where given."""
        ...


@runtime_checkable
class SupportsExtents(Protocol):
    """Knows where each sample's bytes are."""

    def extent(self, index: int, /) -> Extent:
        """Place of sample `index`."""
        ...


@runtime_checkable
class SupportsTokenExtents(Protocol):
    """Knows where a range of tokens is."""

    def token_extent(self, start: int, stop: int, /) -> tuple[Extent, ...]:
        """File ranges that hold tokens `[start, stop)`."""
        ...


@runtime_checkable
class SupportsTokenRun(Protocol):
    """A token source whose tokens may lie in one file as a writer of the same width would put them there."""

    def token_run(self) -> Extent | None:
        """File range of all tokens, back to back and little-endian in the width of `dtype`; None where it is not so."""
        ...


@runtime_checkable
class SupportsLines(Protocol):
    """A source of lines in one file, for work on their bytes."""

    def line_ranges(self) -> IntArray:
        """int64[n, 2]: start and length in bytes of each line, without its line end."""
        ...


@runtime_checkable
class SupportsKeys(Protocol):
    """Samples have keys."""

    def index_of(self, key: str, /) -> int:
        """Index of the sample with this key; raises `NotFound`."""
        ...

    def key_of(self, index: int, /) -> str:
        """Key of sample `index`."""
        ...


@runtime_checkable
class SupportsKeyRuns(Protocol):
    """Tells many keys in one call."""

    def key_run(self, start: int, stop: int, /) -> list[str]:
        """Keys of the samples `[start, stop)`."""
        ...


@runtime_checkable
class SupportsPlaces(Protocol):
    """Tells where a sample comes from in one call: windows, and sources that are made of others."""

    def place_of(self, index: int, /) -> Place:
        """Key, documents and file ranges of sample `index`, as far as they are known; reads indexes only."""
        ...


class SupportsBlocks(Protocol):
    """Knows which samples are cheap to read together."""

    @property
    def block_starts(self) -> IntArray:
        """int64[n_blocks + 1]: first sample of each storage block (shard, tar, chunk), and `len` at the end."""
        ...


@runtime_checkable
class SupportsDocumentFlags(Protocol):
    """A token source that knows document starts inside a window without its EOS id (start bits, an index)."""

    def gather_starts(self, starts: IntArray, length: int) -> NDArray[np.bool_]:
        """bool[len(starts), length]: whether each token of each window is the first of a document."""
        ...


@runtime_checkable
class SupportsFlaggedGather(Protocol):
    """A token source whose tokens carry their start flags: windows and flags come for one read."""

    def gather_flagged(
        self, starts: IntArray, length: int, out: TokenArray | None = None
    ) -> tuple[TokenArray, NDArray[np.bool_]]:
        """What `gather(starts, length, out)` and `gather_starts(starts, length)` give."""
        ...


@runtime_checkable
class SupportsFiles(Protocol):
    """A source whose samples are made of named files: a WebDataset, a folder, a JSONL in Energon's flavour."""

    def get(self, name: str, /) -> bytes:
        """The stored bytes of one file, by its full name; raises `NotFound`."""
        ...

    def get_media_metadata(self, name: str, /) -> MediaMetadata:
        """What the media index knows of one file; raises `NotFound`."""
        ...


@runtime_checkable
class SupportsDetails(Protocol):
    """A source that has more to tell of how it is stored than counts and a schema."""

    def details(self) -> dict[str, Any]:
        """What `info` shows: name → number, text, list of texts, or dict of texts."""
        ...


class Stream(Protocol[T_co]):
    """An endless, addressable run of samples.

    Laws: `self[p]` is a pure function of `p >= 0`; position `p` is lane `p mod lanes`, place `p // lanes`
    in it; row j of `get_batch(positions)` equals `self[positions[j]]`.
    """

    @property
    def lanes(self) -> int:
        """Number of sub-streams that positions are dealt to."""
        ...

    @property
    def schema(self) -> Schema:
        """What the samples hold."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hex digest of everything that decides what each position holds: data, order, seed, lanes."""
        ...

    def __getitem__(self, position: int, /) -> T_co: ...

    def get_batch(self, positions: Sequence[int] | IntArray, /) -> Batch:
        """Columns of the samples at `positions`: int64[k], in that order."""
        ...

    def locate(self, position: int, /) -> Location:
        """Where position comes from; reads no data, only indexes."""
        ...

    def children(self) -> Mapping[str, Source[Any] | Stream[Any]]:
        """What the stream draws from, by name."""
        ...

    def recipe(self) -> dict[str, Any]:
        """Plain JSON from which the stream can be made again."""
        ...


@runtime_checkable
class SupportsSubstitutes(Protocol):
    """A stream that can name a stand-in for an unreadable sample, drawn from the same child."""

    def substitute(self, position: int, attempt: int, /) -> int:
        """Another position of the same child: a permutation keyed by (seed, position), at place `attempt`."""
        ...


@runtime_checkable
class SupportsResolve(Protocol):
    """A stream that does its arithmetic ahead: thousands of positions in one call, read later in batches.

    Law: `get_resolved(resolve(positions))` equals `get_batch(positions)`, for any split of the positions.
    """

    def resolve(self, positions: IntArray, /) -> IntArray:
        """int64[k]: one ticket a position, such as the index in the source; reads no data."""
        ...

    def get_resolved(self, tickets: IntArray, /) -> Batch:
        """Columns of the samples that the tickets stand for, in that order."""
        ...


@runtime_checkable
class SupportsExpect(Protocol):
    """A source or stream that may be told what is going to be read: remote files then come whole where that is cheaper.

    Law: what is expected changes no sample; it may be wrong, or never be read.
    """

    def expect(self, batches: IntArray, /, *, whole: bool = False) -> None:
        """Say what comes.

        Args:
            batches: int64[n, k]: indices of a source, or tickets of a stream, in batches that are read one by one.
            whole: to a source: later all of the storage blocks that are touched will have been read; to a stream: all
                samples of its lanes that are touched are read here.
        """
        ...


@runtime_checkable
class SupportsSamples(Protocol):
    """A source that reads many single samples in one call, for functions that take samples as they are."""

    def get_samples(self, indices: IntArray, /) -> list[Any]:
        """The samples at `indices`: int64[k], in that order; each equals `self[index]`."""
        ...


@runtime_checkable
class SupportsResolvedSamples(SupportsResolve, Protocol):
    """A stream that reads single samples by tickets."""

    def get_resolved_samples(self, tickets: IntArray, /) -> list[Any]:
        """The samples that the tickets stand for, in that order; each equals `self[position]`."""
        ...


@runtime_checkable
class SupportsSeed(Protocol):
    """A stream in which a seed may be left open."""

    def seeded(self, seed: int, /) -> Stream[Any]:
        """The stream with `seed` where none was given, in what it draws from too; itself where nothing was open."""
        ...


@runtime_checkable
class SupportsPasses(Protocol):
    """A source whose later passes hold other samples than its first: fractions of what it draws from.

    Place v is sample `v mod len(self)` of pass `v // len(self)`. Law: for `v < len(self)` each method gives what
    its counterpart of `Source` gives.
    """

    def pass_samples(self, places: IntArray, /) -> list[Any]:
        """The samples at `places`: int64[k], in that order."""
        ...

    def pass_batch(self, places: IntArray, /) -> Batch:
        """Columns of the samples at `places`: int64[k], in that order."""
        ...

    def pass_location(self, place: int, /) -> Location:
        """Where the sample at `place` comes from; its `position` is `place`."""
        ...


@runtime_checkable
class SupportsExcluded(Protocol):
    """A source that leaves out samples of its split, whose places subsets count all the same."""

    @property
    def split_size(self) -> int:
        """Samples of the split, those left out included."""
        ...

    def kept_before(self, place: int, /) -> int:
        """How many samples before `place` of the split are in the source; `place` is in `[0, split_size]`."""
        ...


@runtime_checkable
class SupportsHorizon(Protocol):
    """A stream that knows what its first positions depend on: a run may resume where only a later part differs."""

    def horizon(self, stop: int, /) -> tuple[dict[str, Any], Mapping[str, int]]:
        """What decides the positions `[0, stop)`, for `stop >= 1`.

        Returns:
            The stream's own parameters as plain JSON, without its children's recipes, cut down to what matters
            before `stop`; empty where the stream so far hands on one child as it is. And the children read
            there: name → a number that all of the child's positions read so far are below.
        """
        ...


@runtime_checkable
class LaneStream(Protocol[T_co]):
    """An endless run that a stage makes with 0 to n outputs for its inputs: packing on the fly, generators, filters.

    Addressed by lane, window and offset, never by position: a window is a run of inputs of one lane, and a lane's
    outputs are those of its windows one after another. The global order takes one output of each lane in turn.

    Laws: `outputs(lane, window)` is a pure function; lanes never depend on each other.
    """

    @property
    def lanes(self) -> int:
        """Number of lanes; a world size must divide it."""
        ...

    @property
    def schema(self) -> Schema:
        """What the samples hold."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hex digest of everything that decides what each lane holds."""
        ...

    def outputs(self, lane: int, window: int, /) -> Iterator[T_co]:
        """The samples that one window of a lane gives, in order; there may be none."""
        ...

    def children(self) -> Mapping[str, Source[Any] | Stream[Any]]:
        """What it draws from, by name."""
        ...

    def recipe(self) -> dict[str, Any]:
        """Plain JSON from which it can be made again."""
        ...


class Order(Protocol):
    """Position → index, as arithmetic.

    Laws: a bijection on each epoch `[e·n, (e + 1)·n)`; O(1) memory; `order` and `order_one` agree;
    outputs for given parameters never change under one `version`.
    """

    @property
    def version(self) -> str:
        """Name of the arithmetic, such as `"feistel-1"`; part of every fingerprint and state."""
        ...

    def order(self, positions: IntArray, /) -> IntArray:
        """int64[k]: index in `[0, n)` of each position."""
        ...

    def order_one(self, position: int, /) -> int:
        """The same for one position, without arrays."""
        ...

    def inverse(self, indices: IntArray, epoch: int, /) -> IntArray:
        """int64[k]: the positions in that epoch at which `indices` come."""
        ...


class Packing(Protocol):
    """Documents → windows."""

    def __call__(self, source: TokenSource, /) -> Source[Sample]:
        """A source of windows over `source`."""
        ...


def is_token_source(source: object) -> TypeGuard[TokenSource]:
    """Whether `source` is a TokenSource, without evaluating its properties."""
    return callable(getattr(type(source), "gather", None))


def is_stream(source: object) -> TypeGuard[Stream[Any]]:
    """Whether `source` is an endless Stream rather than a finite Source."""
    return callable(getattr(type(source), "locate", None)) and not hasattr(type(source), "__len__")


def is_lane_stream(source: object) -> TypeGuard[LaneStream[Any]]:
    """Whether `source` is a LaneStream, without evaluating its properties."""
    return callable(getattr(type(source), "outputs", None))


# --- formats -----------------------------------------------------------------------------------------------------


class Writer(Protocol):
    """Makes one dataset.

    Laws: bytes depend on (options, samples) alone; nothing is visible before `commit`; leaving the `with`
    block by an exception aborts; `commit` happens once, a write after it is an error.
    """

    def write(self, sample: Sample, /) -> None:
        """Add one sample."""
        ...

    def write_batch(self, batch: Batch, /) -> None:
        """Add k samples given as columns."""
        ...

    def commit(self) -> Manifest:
        """Make the dataset visible, durably."""
        ...

    def abort(self) -> None:
        """Leave nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


@runtime_checkable
class SupportsTokenParts(Protocol):
    """A writer that takes finished runs of tokens from files, without passing them through Python."""

    def write_part(self, path: str, start_bytes: int, doc_lengths: IntArray, max_token_id: int | None) -> None:
        """Append documents whose tokens lie back to back in a file, little-endian in the writer's width.

        Args:
            path: local file.
            start_bytes: where its tokens begin.
            doc_lengths: int64[n_docs], in tokens.
            max_token_id: the largest id in there, -1 when there is no token, or None: the writer looks.
        """
        ...


@runtime_checkable
class SupportsDocumentRuns(Protocol):
    """A writer that takes many documents as one run of tokens: the way of `convert`, `merge` and `shuffle`."""

    def write_documents(self, tokens: NDArray[Any], doc_lengths: IntArray, /) -> None:
        """Append documents that lie back to back.

        Args:
            tokens: uint[n_tokens], any unsigned dtype.
            doc_lengths: int64[n_docs], in tokens; their sum is `len(tokens)`.
        """
        ...


@runtime_checkable
class SupportsLineRuns(Protocol):
    """A writer that takes many lines as they are: the way of `merge` and `shuffle` for files of lines."""

    def write_lines(self, data: NDArray[np.uint8], line_lengths: IntArray, /) -> None:
        """Append lines.

        Args:
            data: uint8[n_bytes]: lines back to back, each with its `\\n`.
            line_lengths: int64[k], in bytes, without the `\\n`.
        """
        ...


@runtime_checkable
class SupportsSampleRuns(Protocol):
    """A writer that takes many samples as they are stored under the same columns: the way of `shuffle` and `split`."""

    def write_samples(self, data: NDArray[np.uint8], lengths: IntArray, /) -> None:
        """Append samples, whose bytes are not looked at.

        Args:
            data: uint8[n_bytes]: stored samples back to back; not used after the call.
            lengths: int64[k], in bytes.
        """
        ...


class Format(Protocol):
    """One on-disk format. A module of `penstock.formats` exposes one as `FORMAT`."""

    name: str
    traits: Traits

    def sniff(self, store: Store, path: str, /) -> Sniff:
        """Whether `path` looks like this format, from at most 64 KiB, and why."""
        ...

    def open(self, store: Store, path: str, options: OpenOptions, /) -> Source[Sample]:
        """The dataset; raises a `FormatError` that says what is wrong."""
        ...

    def create(self, store: Store, path: str, options: Mapping[str, Any], *, overwrite: bool) -> Writer:
        """A writer; unknown options are a `ConfigError` that lists the known ones."""
        ...

    def check(self, store: Store, path: str, options: OpenOptions, depth: Depth, /) -> Iterable[Finding]:
        """Findings; never writes, never raises for bad data."""
        ...

    def repair(
        self, store: Store, path: str, options: OpenOptions, findings: Sequence[Finding], *, write: bool
    ) -> list[Action]:
        """What would be mended, and mends it when `write` is true, keeping a backup."""
        ...


@runtime_checkable
class SupportsManifest(Protocol):
    """A format that can make the side file for data that another tool wrote."""

    def write_manifest(self, store: Store, path: str, options: OpenOptions, /) -> str:
        """Write the side file; returns its path."""
        ...


# --- work --------------------------------------------------------------------------------------------------------


class Executor(Protocol):
    """Runs tasks.

    Laws: results come in task order; the first error stops the work and is raised in the caller; a killed
    worker is an error, never silence.
    """

    def map(self, fn: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """`fn` of each task, in order."""
        ...
