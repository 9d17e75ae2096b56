"""Optional capabilities of stores, sources, streams and writers, each with its gain.

Callers check for them by `isinstance`, or by the attribute. A method that is None means "not supported", so that a
wrapper can disable capabilities that the wrapped object lacks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock.types import Batch, IntArray, MediaMetadata, Place


@runtime_checkable
class SupportsMmap(Protocol):
    """Store with files that can be mapped.

    Gain: arrays are views of a file's pages, which the processes of a host share.

    Examples:
        >>> from penstock.abc import SupportsMmap
        >>> from penstock.store import LocalStore
        >>> store = LocalStore()
        >>> isinstance(store, SupportsMmap)
        True
        >>> store.mmap("corpus.pbin")[:4]
        array([90,  0,  0,  0], dtype=uint8)
    """

    def mmap(self, path: str) -> NDArray[np.uint8]:
        """Return the file as uint8[size_bytes], mapped read-only; empty for an empty file."""
        ...


@runtime_checkable
class SupportsKeys(Protocol):
    """Source of samples with keys.

    Gain: joins, and keys in `explain`.

    Examples:
        >>> import penstock as ps
        >>> from penstock.abc import SupportsKeys
        >>> pictures = ps.open("pictures")
        >>> isinstance(pictures, SupportsKeys)
        True
        >>> pictures.key_of(2), pictures.index_of("004")
        ('002', 4)
    """

    def index_of(self, key: str, /) -> int:
        """Return the index of the sample with this key, or raise `NotFound`."""
        ...

    def key_of(self, index: int, /) -> str:
        """Return the key of sample `index`."""
        ...


@runtime_checkable
class SupportsPlaces(Protocol):
    """Source that can name the files, documents and keys of its samples.

    Gain: `explain`, `verify` and `plan` name files and offsets; windows, and sources made of others, also name
    documents.

    Examples:
        >>> import penstock as ps
        >>> place = ps.open("corpus.pbin").place_of(1)
        >>> [(extent.offset_bytes, extent.length_bytes) for extent in place.extents]
        [(22, 12)]
        >>> ps.Chunk(8)(ps.open("corpus.pbin")).place_of(0).documents
        ((0, 0, 5), (1, 0, 3))
    """

    def place_of(self, index: int, /) -> Place:
        """Return key, documents and file ranges of sample `index`, as far as they are known.

        Reads only indexes.

        Raises:
            FormatError: the sample is damaged; callers continue without its place.
        """
        ...


class SupportsBlocks(Protocol):
    """Source with storage blocks: samples that are cheap to read together.

    Gain: `Shuffle(..., mode="blocks")` reads each block about once per epoch.

    Examples:
        >>> import penstock as ps
        >>> ps.open("pictures").block_starts
        array([0, 2, 4, 6])
    """

    @property
    def block_starts(self) -> IntArray:
        """First sample of each storage block (shard, tar, chunk), and `len`: int64[n_blocks + 1]."""
        ...


@runtime_checkable
class SupportsFiles(Protocol):
    """Source of samples that consist of named files.

    A WebDataset, a directory, or a JSONL file in Energon's flavor.

    Gain: `WithAux` and cook functions can read its files by name.

    Examples:
        >>> import penstock as ps
        >>> ps.open("pictures").get("002.txt")
        b'picture 2'
    """

    def get(self, name: str, /) -> bytes:
        """Return the stored bytes of one file by its full name, or raise `NotFound`."""
        ...

    def get_media_metadata(self, name: str, /) -> MediaMetadata:
        """Return the indexed metadata of one media file, or raise `NotFound`."""
        ...


@runtime_checkable
class SupportsDocumentFlags(Protocol):
    """Token source that finds document starts inside a window without an EOS id.

    It reads them from start bits or an index.

    Gain: windows with labels for data without an EOS id.

    Examples:
        >>> import numpy as np
        >>> import penstock as ps
        >>> both = ps.Concat([ps.open("corpus.pbin"), ps.open("code.pbin")])
        >>> both.gather_starts(np.array([3]), 6)
        array([[False, False,  True, False, False, False]])
    """

    def gather_starts(self, starts: IntArray, length: int) -> NDArray[np.bool_]:
        """Return bool[len(starts), length]: whether each token of the windows starts a document."""
        ...


@runtime_checkable
class SupportsPrefetch(Protocol):
    """Stream that resolves thousands of positions in one call, and accepts hints about the next reads.

    Gain: the arithmetic of an order costs nothing per batch, and remote files are fetched whole if that is cheaper.

    Contract: `get_resolved(resolve(positions))` equals `get_batch(positions)`, however the positions are divided. A
    hint changes no sample. It may be wrong, and the samples may never be read.

    A source has only `prefetch`, which takes its own indices.

    Examples:
        >>> import numpy as np
        >>> import penstock as ps
        >>> stream = ps.Shuffle(ps.open("corpus.pbin"), seed=0)
        >>> resolved = stream.resolve(np.arange(6))
        >>> len(stream.get_resolved(resolved[:2])["tokens"])
        2
    """

    @property
    def prefetch(self) -> Callable[..., None] | None:
        """Function `prefetch(batches, *, whole=False)` that accepts hints about the next reads.

        It may be missing or None if hints have no use.

        Args:
            batches: int64[n, k]: numbers from `resolve`, or indices of a source, in batches that are read one by one.
            whole: for a source: all samples of the storage blocks involved will have been read in the end. For a
                stream: all samples of the lanes involved are read here.
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
    """Stream that can name a substitute for an unreadable sample, drawn from the same child.

    Gain: `on_error="substitute"` of the loader.

    Examples:
        >>> import penstock as ps
        >>> stream = ps.Shuffle(ps.open("corpus.pbin"), seed=0)
        >>> [stream.substitute(0, attempt) for attempt in range(5)]
        [1, 5, 4, 3, 2]
    """

    def substitute(self, position: int, attempt: int, /) -> int:
        """Return another position of the same child: place `attempt` of a permutation keyed by (seed, position)."""
        ...


@runtime_checkable
class SupportsRuns(Protocol):
    """Writer that accepts many items in one call, as they are stored.

    Gain: `convert`, `merge`, `shuffle`, `split` and `filter` pass runs on without dividing them into samples.

    An item is a document of tokens, a line with its line end, or a sample as stored, depending on the format.

    Examples:
        >>> import numpy as np
        >>> import penstock as ps
        >>> with ps.create("new.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
        ...     writer.write_run(np.array([7, 8, 0, 9, 0], np.uint16), np.array([3, 2]))
        >>> [sample["tokens"].tolist() for sample in ps.open("new.pbin")]
        [[7, 8, 0], [9, 0]]
    """

    def write_run(self, data: NDArray[Any], lengths: IntArray, /) -> None:
        """Append items that are stored back to back.

        Args:
            data: any unsigned dtype [n_units]: tokens, or bytes. Not used after the call.
            lengths: int64[n_items], in units; their sum is `len(data)`.

        Raises:
            ConfigError: data and lengths don't match; nothing of this call is written.
        """
        ...
