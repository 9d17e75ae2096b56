"""What a store, source, stream or writer may add to be faster or safer; each says what is gained by it.

Callers check for them by `isinstance`, or by the attribute. A method that is None means "not supported": so a wrapper
declares what the wrapped object can't do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock.types import Batch, IntArray, MediaMetadata, Place


@runtime_checkable
class SupportsMmap(Protocol):
    """A store whose files can be mapped.

    Gain: arrays are views of a file's pages, which processes of a host share.
    """

    def mmap(self, path: str) -> NDArray[np.uint8]:
        """Return the file as uint8[size_bytes], mapped read-only; empty for an empty file."""
        ...


@runtime_checkable
class SupportsKeys(Protocol):
    """Samples have keys.

    Gain: joins, and keys in `explain`.
    """

    def index_of(self, key: str, /) -> int:
        """Return the index of the sample with this key, or raise `NotFound`."""
        ...

    def key_of(self, index: int, /) -> str:
        """Return the key of sample `index`."""
        ...


@runtime_checkable
class SupportsPlaces(Protocol):
    """Knows where its samples are, or come from.

    Gain: `explain`, `verify` and `plan` name files and offsets. Windows, and sources made of others,
    name documents too.
    """

    def place_of(self, index: int, /) -> Place:
        """Key, documents and file ranges of sample `index`, as far as they are known; reads indexes only.

        Raises:
            FormatError: the sample is damaged; callers continue without its place.
        """
        ...


class SupportsBlocks(Protocol):
    """Knows which samples are cheap to read together.

    Gain: `Shuffle(…, mode="blocks")` reads each block about once.
    """

    @property
    def block_starts(self) -> IntArray:
        """First sample of each storage block (shard, tar, chunk), and `len`: int64[n_blocks + 1]."""
        ...


@runtime_checkable
class SupportsFiles(Protocol):
    """A source whose samples are made of named files: a WebDataset, a folder, a JSONL in Energon's flavour.

    Gain: its files are there by name for `WithAux` and for cook functions.
    """

    def get(self, name: str, /) -> bytes:
        """Return the stored bytes of one file by its full name, or raise `NotFound`."""
        ...

    def get_media_metadata(self, name: str, /) -> MediaMetadata:
        """Return the indexed metadata of one media file, or raise `NotFound`."""
        ...


@runtime_checkable
class SupportsDocumentFlags(Protocol):
    """A token source that knows document starts inside a window without its EOS id (start bits, an index).

    Gain: windows with labels of data that have no EOS id.
    """

    def gather_starts(self, starts: IntArray, length: int) -> NDArray[np.bool_]:
        """Return bool[len(starts), length]: whether each token of the windows starts a document."""
        ...


@runtime_checkable
class SupportsPrefetch(Protocol):
    """A stream that knows what will be read next: it resolves thousands of positions in one call, and takes hints.

    Gain: the arithmetic of an order costs nothing a batch, and remote files come whole where that is cheaper.

    Laws: `get_resolved(resolve(positions))` equals `get_batch(positions)` for any split of the positions. A hint
    changes no sample; it may be wrong, or never be read.

    A source has `prefetch` alone, which takes its own indices.
    """

    @property
    def prefetch(self) -> Callable[..., None] | None:
        """`prefetch(batches, *, whole=False)`: a hint at what is read next; None, or not there, where it has no use.

        Args:
            batches: int64[n, k]: what `resolve` gave, or indices of a source, in batches that are read one by one.
            whole: to a source: later all of the storage blocks that are touched will have been read; to a stream: all
                samples of its lanes that are touched are read here.
        """
        ...

    def resolve(self, positions: IntArray, /) -> IntArray:
        """Return int64[k]: what to read each position by, such as its index in the source. Reads no data."""
        ...

    def get_resolved(self, resolved: IntArray, /) -> Batch:
        """Return the samples at the numbers from `resolve` as columns, in that order."""
        ...

    def get_resolved_samples(self, resolved: IntArray, /) -> list[Any]:
        """Return the samples at the numbers from `resolve`, in that order; each equals `self[position]`."""
        ...


@runtime_checkable
class SupportsSubstitutes(Protocol):
    """A stream that can name a substitute for an unreadable sample, drawn from the same child.

    Gain: `on_error="substitute"` of the loader.
    """

    def substitute(self, position: int, attempt: int, /) -> int:
        """Return another position of the same child: place `attempt` of a permutation keyed by (seed, position)."""
        ...


@runtime_checkable
class SupportsRuns(Protocol):
    """A writer that takes many items in one call, as they are stored.

    Gain: `convert`, `merge`, `shuffle`, `split` and `filter` don't split a run into samples to pass it on.

    What an item is follows from the format: a document of tokens, a line with its end, a sample as it is stored.
    """

    def write_run(self, data: NDArray[Any], lengths: IntArray, /) -> None:
        """Append items that lie back to back.

        Args:
            data: any unsigned dtype [n_units]: tokens, or bytes; not used after the call.
            lengths: int64[n_items], in units; their sum is `len(data)`.

        Raises:
            ConfigError: data and lengths differ; nothing of this call is written.
        """
        ...
