"""Datasets and loaders for torch.

`TorchDataset` works with any `DataLoader`, and with torchdata's `StatefulDataLoader` within its limits: its state
counts what each worker has read, so it resumes only with the same number of workers, batch size and ranks.
`torch_loader` has none of these limits.

Token ids become int64 (int32 on request), because torch computes with no unsigned dtype other than uint8. All other
arrays keep their dtype, such as int32 `cu_seqlens`, which attention kernels require.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast, overload

import numpy as np

from penstock._access import resolves
from penstock._arrays import as_index, as_indices
from penstock._kinds import LaneStream, is_stream
from penstock._optional import require
from penstock._secrets import logger
from penstock.abc import Source, Stream, SupportsPrefetch
from penstock.errors import ConfigError
from penstock.load.collate import Collate, Then, ToSignedIds, collate_columns, may_hold_arrays, signed_ids
from penstock.load.device import ToDevice, arrived
from penstock.load.loader import Loader
from penstock.load.sequence import block_mask, broadcast, context_parallel
from penstock.load.workers import WorkerKind
from penstock.types import Batch, IntArray, Sample

__all__ = ["Rows", "ToTensors", "TorchDataset", "block_mask", "broadcast", "context_parallel", "torch_loader"]

torch: Any = require("torch", extra="torch")

_log = logger()

# Length of a dataset over an endless stream: samplers that iterate over it never reach the end.
ENDLESS = 1 << 62

_AHEAD = 1 << 13


@dataclass(frozen=True, slots=True)
class ToTensors:
    """Function that converts numpy arrays in a batch, also inside lists, to torch tensors.

    Other values stay as they are.

    Attributes:
        ids: converts token ids to a signed dtype.
        pin_memory: put the tensors into pinned memory.

    Examples:
        >>> import numpy as np
        >>> from penstock.load.collate import ToSignedIds
        >>> from penstock.load.torch import ToTensors
        >>> ToTensors(ToSignedIds("int64", frozenset({"tokens"})))({"tokens": np.array([1, 2], np.uint16), "name": "a"})
        {'tokens': tensor([1, 2]), 'name': 'a'}
    """

    ids: ToSignedIds
    pin_memory: bool = False

    def __call__(self, columns: Any) -> Any:
        if not isinstance(columns, dict):
            return columns
        return {name: self._tensor(self.ids.convert(name, value)) for name, value in columns.items()}

    def _tensor(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._tensor(item) for item in value] if may_hold_arrays(value) else value
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
            return value
        # A tensor over a read-only array would be writable.
        tensor = torch.from_numpy(value if value.flags.writeable else value.copy())
        return tensor.pin_memory() if self.pin_memory else tensor


class TorchDataset:
    """Map-style torch dataset over a source or a stream, for `torch.utils.data.DataLoader`.

    It is picklable.

    With a DataLoader's default collate function, batches are stacked from single samples. This gives the same batches
    faster, because it keeps each batch as it was read: `DataLoader(dataset, batch_size=...,
    collate_fn=dataset.collate)`.

    Args:
        data: source or stream; item i is `data[i]`. A stream has its own order: don't set `shuffle`.
        length: number of items. By default all samples of a source, or 2^62 for a stream.
        dtype: dtype of token ids: int64 or int32, as text or torch dtype.

    Raises:
        ConfigError: the dtype isn't supported, or a source has fewer items.

    Examples:
        >>> from torch.utils.data import DataLoader
        >>> import penstock as ps
        >>> from penstock.load.torch import TorchDataset
        >>> dataset = TorchDataset(ps.Chunk(8, labels="shift")(ps.open("corpus.pbin")))
        >>> loader = DataLoader(dataset, batch_size=2, collate_fn=dataset.collate)
        >>> next(iter(loader))["inputs"].shape
        torch.Size([2, 8])
    """

    def __init__(self, data: Stream[Any] | Source[Any], length: int | None = None, *, dtype: Any = "int64") -> None:
        available = ENDLESS if is_stream(data) else len(cast(Source[Any], data))
        if length is not None and not 0 <= length <= available:
            raise ConfigError(
                "the number of samples is out of range", found=f"length={length}", expected=f"0 to {available}"
            )
        self._data = data
        self._resolving = data if resolves(data) else None
        self._length = available if length is None else length
        self._to_tensors = ToTensors(signed_ids(data, dtype))
        # A position, and the resolved indices from there on: orders are computed for many positions at a time.
        self._ahead: tuple[int, IntArray] = (0, np.empty(0, np.int64))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Sample:
        return self._to_tensors(self._data[as_index(index, self._length)])

    def __getitems__(self, indices: Sequence[int]) -> Rows:
        places = as_indices(indices, self._length)
        if self._resolving is not None and len(places):
            columns = self._resolving.get_resolved(self._resolved(self._resolving, places))
        else:
            columns = self._data.get_batch(places)
        return Rows(columns, len(places), self._to_tensors)

    @staticmethod
    def collate(rows: Rows) -> Batch:
        """Convert a batch to tensors as it was read, with `cu_seqlens` joined.

        Pass it to `DataLoader(collate_fn=...)`.
        """
        return rows.to_tensors(collate_columns(rows.columns))

    def _resolved(self, data: SupportsPrefetch, places: IntArray) -> IntArray:
        first, last = int(places.min()), int(places.max())
        start, resolved = self._ahead
        if not start <= first <= last < start + len(resolved):
            if last - first >= _AHEAD:  # no order to read ahead
                return data.resolve(places)
            start, resolved = first, data.resolve(np.arange(first, min(self._length, first + _AHEAD), dtype=np.int64))
            self._ahead = (start, resolved)
        return resolved[places - start]


class Rows(Sequence[Sample]):
    """Batch as columns that also iterates over its samples, for collate functions that expect them.

    A DataLoader passes it to `collate_fn`.

    Examples:
        >>> import penstock as ps
        >>> from penstock.load.torch import TorchDataset
        >>> dataset = TorchDataset(ps.Chunk(8)(ps.open("corpus.pbin")))
        >>> rows = dataset.__getitems__([0, 1])
        >>> len(rows), rows[0]["tokens"].shape
        (2, torch.Size([8]))
    """

    def __init__(self, columns: Batch, count: int, to_tensors: ToTensors) -> None:
        self.columns = columns
        self.to_tensors = to_tensors
        self._count = count
        self._tensors: Any = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        tensors = self._tensors
        if tensors is None:
            tensors = self._tensors = self.to_tensors(self.columns)
        place = as_index(index, self._count)
        return {name: column[place] for name, column in tensors.items()}


def torch_loader(
    data: Stream[Any] | Source[Any] | LaneStream[Any],
    global_batch: int,
    *,
    dtype: Any = "int64",
    pin_memory: bool = False,
    device: Any = None,
    worker_kind: WorkerKind = "threads",
    workers: int = 2,
    prefetch: int = 2,
    collate: Collate | None = None,
    **options: Any,
) -> Loader:
    """Return a `Loader` that delivers dicts of torch tensors.

    State, seeking and elastic resume are those of `Loader`.

    Args:
        data: as for `Loader`, like all arguments not listed here.
        global_batch: as for `Loader`.
        dtype: dtype of token ids: int64 or int32, as text or torch dtype.
        pin_memory: put batches into pinned memory. Without CUDA, a log message says that they aren't.
        device: device for the tensors, such as `"cuda"`; by default they stay on the host. Each batch is one copy from
            pinned memory on its own CUDA stream. The threads that read ahead start it, so it overlaps with the step;
            ids are copied in their stored width. With processes, or without workers, it starts when the batch is
            requested.
        worker_kind: `"threads"`, for tokens; or `"processes"`, for decoding that holds Python's lock. Each process
            reads whole batches; batches and state are the same.
        workers: number of threads or processes. 0 reads in the calling thread.
        prefetch: batches that each worker reads ahead; more if they are small, up to 256 KiB.
        collate: function from columns to a dict of arrays, before tensors are made.
        options: `rank`, `world`, `micro_batch`, `start`, `tail`, `on_error`, `substitute_limit`, `mesh`, `group`.

    Raises:
        ConfigError: arguments don't match each other.

    Examples:
        >>> import penstock as ps
        >>> from penstock.load.torch import torch_loader
        >>> windows = ps.Chunk(8, labels="shift")(ps.open("corpus.pbin"))
        >>> with torch_loader(ps.Shuffle(windows, seed=0), global_batch=2) as loader:
        ...     batch = next(iter(loader))
        >>> batch["inputs"].shape, batch["inputs"].dtype
        (torch.Size([2, 8]), torch.int64)
    """
    ids = signed_ids(data, dtype)
    to_tensors = ToTensors(ids, pin_memory and _can_pin())
    own = collate_columns if collate is None else collate
    if device is not None:
        to_device = ToDevice(ids, device)
        ways: dict[str, Any] = {"collate": Then(own, to_device), "finish": arrived}
        if worker_kind == "processes":  # worker processes have no device
            ways = {"collate": own, "finish": Then(to_device, arrived)}
    elif worker_kind == "processes":
        # Workers don't need torch: they send arrays, which become tensors here without a copy.
        ways = {"collate": Then(own, ids), "finish": to_tensors}
    else:
        ways = {"collate": Then(own, to_tensors)}
    return Loader(data, global_batch, workers=workers, prefetch=prefetch, worker_kind=worker_kind, **ways, **options)


def _can_pin() -> bool:
    if torch.cuda.is_available():
        return True
    _log.warning("pin_memory=True has no effect: torch finds no CUDA device")
    return False
