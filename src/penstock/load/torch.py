"""Torch side of the loader: a map-style dataset for any DataLoader, and a loader of tensors that resumes elastically.

A plain `DataLoader` over `TorchDataset` works as over any dataset, and so does torchdata's `StatefulDataLoader`, with
its own limits: its state counts what its workers have done, so it resumes only with as many workers, and with the
same batch size and ranks. `torch_loader` has none of these limits.

Token ids become int64 (int32 on request): torch computes with no other unsigned type than uint8. All other arrays
keep their type, such as int32 `cu_seqlens`, which attention kernels ask for.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, cast, overload

import numpy as np
from numpy.typing import NDArray

from penstock._index import as_index, as_indices
from penstock._optional import require
from penstock.abc import Source, Stream, is_stream
from penstock.errors import ConfigError, PenstockError, TooLarge
from penstock.load.collate import Collate, collate_columns
from penstock.load.loader import Loader
from penstock.load.read import ReadTask, read_batches
from penstock.types import Batch, Sample

torch: Any = require("torch", extra="torch")
_data: Any = require("torch.utils.data", extra="torch")

_log = logging.getLogger("penstock")

WorkerKind: TypeAlias = Literal["threads", "processes"]

# What a dataset over an endless stream gives as its length: samplers that walk it never come to the end.
ENDLESS = 1 << 62


@dataclass(frozen=True, slots=True)
class ToTensors:
    """Numpy arrays among columns, also in lists, → torch tensors; everything else stays as it is.

    Attributes:
        dtype: of token ids: `"int64"` or `"int32"`.
        token_fields: fields that hold token ids, whatever their type; uint16, uint32 and uint64 always do.
        pin_memory: put the tensors into pinned memory.
    """

    dtype: str
    token_fields: frozenset[str]
    pin_memory: bool = False

    def __call__(self, columns: Any) -> Any:
        """`columns` with tensors for arrays."""
        if not isinstance(columns, dict):
            return columns
        return {name: self._convert(name, value) for name, value in columns.items()}

    def _convert(self, name: str, value: Any) -> Any:
        if isinstance(value, list):
            return [self._convert(name, item) for item in value]
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
            return value
        kind = value.dtype.kind
        if kind == "u" and (value.dtype.itemsize > 1 or name in self.token_fields):
            array = _as_int32(name, value) if self.dtype == "int32" else value.astype(np.int64)
        else:
            # A tensor over a read-only array could be written to.
            array = value if value.flags.writeable else value.copy()
        tensor = torch.from_numpy(array)
        return tensor.pin_memory() if self.pin_memory else tensor


class TorchDataset:
    """A map-style torch dataset over a source or a stream; picklable, for DataLoader workers by fork or spawn.

    With a DataLoader's own collate function, batches are stacked from single samples. The same batches, faster:
    `DataLoader(dataset, batch_size=…, collate_fn=dataset.collate)` takes each as it was read.

    Args:
        data: what to read: item i is `data[i]`. A stream has its order in itself: leave `shuffle` off.
        length: number of items; by default all of a source, and 2^62 of a stream, which is without end.
        dtype: of token ids: int64 or int32, as text or as torch dtype.

    Raises:
        ConfigError: another dtype, or more items than a source has.
    """

    def __init__(self, data: Stream[Any] | Source[Any], length: int | None = None, *, dtype: Any = "int64") -> None:
        available = ENDLESS if is_stream(data) else len(cast(Source[Any], data))
        if length is not None and not 0 <= length <= available:
            raise ConfigError("there are not so many samples", found=f"length={length}", expected=f"0 to {available}")
        self._data = data
        self._length = available if length is None else length
        self._to_tensors = ToTensors(_dtype_name(dtype), _token_fields(data))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Sample:
        return self._to_tensors(self._data[as_index(index, self._length)])

    def __getitems__(self, indices: Sequence[int]) -> Rows:
        """The samples at `indices`, read in one go."""
        places = as_indices(indices, self._length)
        return Rows(self._data.get_batch(places), len(places), self._to_tensors)

    @staticmethod
    def collate(rows: Rows) -> Batch:
        """For `DataLoader(collate_fn=…)`: the batch as it was read, in tensors, with `cu_seqlens` joined."""
        return rows.to_tensors(collate_columns(rows.columns))


class Rows(Sequence[Sample]):
    """A batch that is still columns, and gives its samples one by one to a collate function that asks for them."""

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
    data: Stream[Any] | Source[Any],
    global_batch: int,
    *,
    dtype: Any = "int64",
    pin_memory: bool = False,
    worker_kind: WorkerKind = "threads",
    start_method: str | None = None,
    workers: int = 2,
    prefetch: int = 2,
    collate: Collate | None = None,
    **options: Any,
) -> Loader:
    """A `Loader` whose batches are dicts of torch tensors. State, seeking and elastic resume are the Loader's.

    Args:
        data: as for `Loader`, and so are all arguments not named here.
        global_batch: as for `Loader`.
        dtype: of token ids: int64 or int32, as text or as torch dtype.
        pin_memory: batches in pinned memory; without CUDA one log line says that they are not.
        worker_kind: `"threads"`, which is right for tokens, or `"processes"`, for decoding that holds Python's lock.
            Each process reads whole batches, so batches and state are the same.
        start_method: `"fork"`, `"spawn"` or `"forkserver"`, for processes.
        workers: threads or processes; 0 reads in the calling thread.
        prefetch: batches that each of them may be ahead.
        collate: makes a dict of arrays from a batch of columns; tensors are made after it.
        options: `rank`, `world`, `micro_batch`, `start`, `tail`, `on_error`, `substitute_limit`, `mesh`, `group`.

    Raises:
        ConfigError: arguments that don't fit each other.
    """
    if worker_kind not in ("threads", "processes"):
        raise ConfigError("no such worker_kind", found=repr(worker_kind), expected="'threads' or 'processes'")
    pinned = pin_memory and _can_pin()
    in_processes = worker_kind == "processes" and workers > 0
    # Processes send batches through shared memory: they are pinned after that, by torch.
    to_tensors = ToTensors(_dtype_name(dtype), _token_fields(data), pinned and not in_processes)
    options["collate"] = _Then(collate_columns if collate is None else collate, to_tensors)
    if in_processes:
        options["pipeline"] = partial(
            Processes, workers=workers, prefetch=prefetch, start_method=start_method, pin_memory=pinned
        )
    return Loader(data, global_batch, workers=workers, prefetch=prefetch, **options)


class Processes:
    """Batches read ahead by torch's DataLoader workers, handed out in order: a `Pipeline`.

    Worker w of W reads the batches `first + w, first + w + W, …`. Memory: `workers · prefetch` batches, shared.
    """

    def __init__(
        self, task: ReadTask, first: int, *, workers: int, prefetch: int, start_method: str | None, pin_memory: bool
    ) -> None:
        self._batches: Iterator[tuple[Any, BaseException | None]] | None = iter(
            _data.DataLoader(
                _Share(task, first),
                batch_size=None,
                num_workers=workers,
                prefetch_factor=prefetch,
                multiprocessing_context=start_method,
                collate_fn=_as_it_is,
                pin_memory=pin_memory,
            )
        )

    def __next__(self) -> Any:
        if self._batches is None:
            raise ValueError("the pipeline is closed")
        batch, error = next(self._batches)
        if error is not None:
            raise error
        return batch

    def close(self) -> None:
        """End the processes: torch does so when its iterator goes."""
        self._batches = None


class _Share(_data.IterableDataset):
    """The batches of one worker process, each with the error that stands in its place."""

    def __init__(self, task: ReadTask, first: int) -> None:
        super().__init__()
        self._task = task
        self._first = first

    def __iter__(self) -> Generator[tuple[Any, BaseException | None]]:
        worker = _data.get_worker_info()
        batches = read_batches(self._task, self._first + worker.id, worker.num_workers)
        while True:
            try:
                item = (next(batches), None)
            except StopIteration:
                return
            except Exception as error:
                # Torch would rebuild it in its own iterator from text alone, without path and place.
                yield None, _portable(error, f"in loader process {worker.id}:\n{traceback.format_exc()}")
                return
            yield item


@dataclass(frozen=True, slots=True)
class _Then:
    """One collate step after the other; picklable."""

    first: Collate
    second: Collate

    def __call__(self, batch: Batch) -> Any:
        return self.second(self.first(batch))


def _portable(error: Exception, note: str) -> Exception:
    """The error where it is known to survive pickling, else its text; with a note that says where it was raised."""
    if not isinstance(error, PenstockError) and type(error).__module__ != "builtins":
        error = RuntimeError(f"{type(error).__qualname__}: {error}")
    error.add_note(note)
    return error


def _as_it_is(item: Any) -> Any:
    return item


def _dtype_name(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in ("int64", "int32"):
        raise ConfigError("token ids can't be that here", found=f"dtype={dtype!r}", expected="int64 or int32")
    return name


def _token_fields(data: Stream[Any] | Source[Any]) -> frozenset[str]:
    return frozenset(field.name for field in data.schema.fields if field.kind == "tokens")


def _as_int32(name: str, value: NDArray[Any]) -> NDArray[np.int32]:
    if value.dtype.itemsize >= 4 and value.size and int(value.max()) > np.iinfo(np.int32).max:
        raise TooLarge(f"{name} holds an id that int32 does not", found=int(value.max()), hint="Use dtype='int64'")
    return value.astype(np.int32)


def _can_pin() -> bool:
    if torch.cuda.is_available():
        return True
    _log.warning("pin_memory=True has no effect: torch finds no CUDA device")
    return False
