"""Modalities' datasets over packed files. Items are plain dicts of arrays, not `BatchEncoding`s as in the original.

Files of all five layouts are read. Files that the original reads wrongly (with a merged file's index, an older layout
or a damaged header) are an error here, with the path and a fix.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock._arrays import as_index, as_indices
from penstock._secrets import logger
from penstock.abc import TokenSource
from penstock.compat.modalities.embedded import IN_RAM
from penstock.compat.modalities.embedded import EmbeddedStreamData as EmbeddedStreamData
from penstock.compat.torch_bases import Dataset
from penstock.compat.unused import refuse_overrides
from penstock.errors import ConfigError
from penstock.formats import get_format
from penstock.formats._opening import open_at
from penstock.formats.tokens.pbin.source import PbinSource
from penstock.pack.chunk import Chunk
from penstock.pack.megatron_blocks import MegatronBlocks
from penstock.store.derived import DerivedCache
from penstock.store.local import LocalStore
from penstock.store.place import fixed_path, local_path
from penstock.types import Batch, IntArray, OpenOptions, Sample

_HEADER_BYTES = 12


class OriginalMegatron:
    """Blocks of `block_size` bytes over a token source, with the original's borders. Memory: 8 bytes per block."""

    def __init__(self, source: TokenSource, block_size: int) -> None:
        width = source.dtype.itemsize
        self._source = source
        self._tokens = block_size // width
        # 12 bytes are whole tokens for every width, and so are all places.
        self._starts = np.array(_starts_bytes(source.doc_starts * width, block_size * width), dtype=np.int64) // width

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int, /) -> Sample:
        return {"tokens": self.get_batch([as_index(index, len(self))])["tokens"][0]}

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """`{"tokens": uint[k, block_size // width]}` at `indices`.

        Raises:
            ConfigError: a block that reaches beyond the tokens; the original fails there, too.
        """
        starts = self._starts[as_indices(indices, len(self))]
        if len(starts) and int(starts.max()) + self._tokens > self._source.num_tokens:
            raise ConfigError("the block of the original extends beyond the last token", found=int(starts.max()))
        return {"tokens": self._source.gather(starts, self._tokens)}


def _starts_bytes(doc_starts_bytes: IntArray, block_bytes: int) -> list[int]:
    starts: list[int] = []
    begin, held = _HEADER_BYTES, 0
    for offset, length in zip(doc_starts_bytes.tolist(), np.diff(doc_starts_bytes).tolist(), strict=False):
        if held + length < block_bytes:
            held += length
            continue
        starts.append(begin)
        if held + length == block_bytes or length > block_bytes:
            begin, held = begin + block_bytes, 0
        else:
            begin, held = offset, length
    return starts


_log = logger()
_NEVER_CALLED = ("_generate_packing_index", "_create_packed_index")
"""Methods by which the original finds blocks."""


class PackedMemMapDatasetBase(Dataset):
    """Documents of a packed file.

    `[i]` is `{sample_key: array}`, `[a:b]` is `{sample_key: list of arrays}`. Arrays are uint8, int32 or int64 for
    tokens of 1, 2 or 4 bytes, and may be modified.

    Attributes:
        token_size_in_bytes: bytes per token in the file.

    Args:
        raw_data_path: the packed file.
        sample_key: key of the tokens in an item.
        load_index: must be true: documents are found with the index.

    Raises:
        NotFound: the file doesn't exist.
        FormatError: the file or its index is damaged.
        ConfigError: `load_index` is false, or a subclass overrides a method that is never called.

    Examples:
        >>> from penstock.compat.modalities import PackedMemMapDatasetBase
        >>> dataset = PackedMemMapDatasetBase("corpus.pbin", sample_key="input_ids")
        >>> len(dataset)
        6
        >>> dataset[1]["input_ids"].tolist()
        [201, 202, 203, 204, 205, 0]
    """

    def __init__(self, raw_data_path: str | os.PathLike[str], sample_key: str, load_index: bool | None = True) -> None:
        hint = "Use penstock's windows (Chunk, MegatronBlocks), or index the documents of this class"
        refuse_overrides(type(self), PackedMemMapDatasetBase, _NEVER_CALLED, hint)
        self.raw_data_path = raw_data_path
        self.sample_key = sample_key
        source = _opened(fixed_path(local_path(raw_data_path, "a Modalities packed file")))
        self.token_size_in_bytes = source.dtype.itemsize
        self._dtype = IN_RAM[self.token_size_in_bytes]
        self._rows: Any = self._make_rows(source, bool(load_index))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, idx: int | slice) -> dict[str, Any]:
        if not isinstance(idx, slice):
            return {self.sample_key: self._rows[idx]["tokens"].astype(self._dtype)}
        if idx.step not in (None, 1):
            raise ConfigError("slices with a step aren't supported", found=f"step {idx.step}", expected="1")
        rows = self._rows.get_batch(range(len(self))[idx])["tokens"]
        return {self.sample_key: [row.astype(self._dtype) for row in rows]}

    def _make_rows(self, source: PbinSource, load_index: bool) -> Any:
        if not load_index:
            raise ConfigError("documents are found by the index", path=self.raw_data_path, hint="Pass load_index=True")
        # A damaged index is an error now rather than in the middle of a run.
        source.doc_starts  # noqa: B018
        return source


class PackedMemMapDatasetContinuous(PackedMemMapDatasetBase):
    """Blocks of `block_size` consecutive tokens.

    Args:
        raw_data_path: the packed file.
        sample_key: key of the tokens in an item.
        block_size: tokens per block, 2 or more.
        reuse_last_target: each block begins with the last token of the previous one.
        load_index: also read the index; blocks don't need it.

    Raises:
        ConfigError: `block_size` is below 2, or larger than the number of tokens.

    Examples:
        >>> from penstock.compat.modalities import PackedMemMapDatasetContinuous
        >>> dataset = PackedMemMapDatasetContinuous("corpus.pbin", "input_ids", block_size=8, reuse_last_target=True)
        >>> dataset[0]["input_ids"].tolist()
        [101, 102, 103, 104, 0, 201, 202, 203]
        >>> dataset[1]["input_ids"].tolist()
        [203, 204, 205, 0, 301, 302, 303, 304]
    """

    def __init__(
        self,
        raw_data_path: str | os.PathLike[str],
        sample_key: str,
        block_size: int,
        reuse_last_target: bool,
        load_index: bool | None = False,
    ) -> None:
        self.block_size = block_size
        self.reuse_last_target = reuse_last_target
        super().__init__(raw_data_path, sample_key, load_index)

    def _make_rows(self, source: PbinSource, load_index: bool) -> Any:
        _check_block_size(self.block_size)
        if load_index:
            source.doc_starts  # noqa: B018
        return Chunk(self.block_size, overlap=int(self.reuse_last_target))(source)


class PackedMemMapDatasetMegatron(PackedMemMapDatasetBase):
    """Blocks of `block_size` tokens that each begin with a document: see `penstock.MegatronBlocks`.

    A block size larger than the number of tokens gives a dataset without samples, with a log message. A block of 1
    token has no target, which is also logged.

    Args:
        raw_data_path: the packed file.
        sample_key: key of the tokens in an item.
        block_size: tokens per block, 2 or more.
        exact: return the blocks of Modalities 0.5.0, which are too short and begin in wrong places.

    Raises:
        ConfigError: `block_size` is below 1.

    Examples:
        >>> from penstock.compat.modalities import PackedMemMapDatasetMegatron
        >>> dataset = PackedMemMapDatasetMegatron("corpus.pbin", "input_ids", block_size=8)
        >>> dataset[0]["input_ids"].tolist()
        [101, 102, 103, 104, 0, 201, 202, 203]
        >>> dataset[1]["input_ids"].tolist()
        [201, 202, 203, 204, 205, 0, 301, 302]
    """

    def __init__(
        self, raw_data_path: str | os.PathLike[str], sample_key: str, block_size: int, *, exact: bool = False
    ) -> None:
        self.block_size = block_size
        self._exact = exact
        super().__init__(raw_data_path, sample_key)

    def _make_rows(self, source: PbinSource, load_index: bool) -> Any:
        if self.block_size == 1:
            _log.warning("%s: blocks of 1 token have no targets", self.raw_data_path)
        else:
            _check_block_size(self.block_size)
        if self._exact:
            return OriginalMegatron(source, self.block_size)
        if self.block_size > source.num_tokens:
            what = "%s: no samples: blocks of %d tokens, but only %d tokens in total"
            _log.warning(what, self.raw_data_path, self.block_size, source.num_tokens)
            return _NoBlocks()
        blocks = MegatronBlocks(self.block_size, derived=DerivedCache())(source)
        blocks.starts  # noqa: B018
        return blocks


class _NoBlocks:
    """Rows of a file that holds less than one block."""

    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: int, /) -> Any:
        as_index(index, 0)

    def get_batch(self, indices: Sequence[int], /) -> dict[str, list[Any]]:
        """No rows."""
        for index in indices:
            as_index(index, 0)
        return {"tokens": []}


class CombinedDataset(Dataset):
    """Concatenation of several datasets. Negative indices count from the end of the last one.

    Attributes:
        datasets: the datasets.
        cumulative_sizes: int64[k]: number of samples up to the end of each dataset.

    Examples:
        >>> from penstock.compat.modalities import CombinedDataset, PackedMemMapDatasetBase
        >>> datasets = [PackedMemMapDatasetBase(path, "input_ids") for path in ("corpus.pbin", "code.pbin")]
        >>> combined = CombinedDataset(datasets)
        >>> len(combined), combined.cumulative_sizes.tolist()
        (10, [6, 10])
        >>> combined[6]["input_ids"].tolist()
        [1101, 1102, 1103, 1104, 0]
    """

    def __init__(self, datasets: Sequence[Any]) -> None:
        self.datasets = datasets
        self.cumulative_sizes = np.cumsum([len(dataset) for dataset in datasets], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.cumulative_sizes[-1]) if len(self.datasets) else 0

    def __getitem__(self, idx: int) -> Any:
        place = as_index(idx, len(self))
        owner = int(np.searchsorted(self.cumulative_sizes, place, side="right"))
        return self.datasets[owner][place - (int(self.cumulative_sizes[owner - 1]) if owner else 0)]


def _opened(path: str) -> Any:
    """Open a packed file; excluded documents are errors, and their tokens are masked."""
    return open_at(get_format("pbin"), LocalStore(), path, OpenOptions(planes=None))


def _check_block_size(block_size: int) -> None:
    if block_size < 2:
        raise ConfigError("a block needs at least a token and its target", found=block_size, expected="2 or more")
