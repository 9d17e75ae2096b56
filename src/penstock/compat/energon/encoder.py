"""`TaskEncoder`: the hooks between a dataset and its batches."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import random
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from types import MethodType
from typing import Any, Generic, TypeVar, overload

import numpy as np

from penstock._digest import derive_key
from penstock.compat.energon.batching import generic_batch
from penstock.compat.energon.cookers import Cooker, SampleDecoder
from penstock.compat.energon.samples import BASE_FIELDS
from penstock.compat.energon.worker import current, seed_now
from penstock.compat.energon.wrapper_batches import BatchDataset, GroupBatchDataset, PackingDataset
from penstock.compat.energon.wrapper_samples import MapDataset
from penstock.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
T_sample = TypeVar("T_sample")
T_encoded_sample = TypeVar("T_encoded_sample")
T_raw_batch = TypeVar("T_raw_batch")
T_batch = TypeVar("T_batch")

# The global generators of numpy, random and torch belong to the whole process.
_seeding = threading.RLock()


@overload
def stateless(fn: F, /) -> F: ...
@overload
def stateless(*, restore_seeds: bool = False, failure_tolerance: int | None = None) -> Callable[[F], F]: ...
def stateless(fn: Any = None, /, *, restore_seeds: bool = False, failure_tolerance: int | None = None) -> Any:
    """Mark a function that depends only on its arguments.

    Args:
        fn: the function.
        restore_seeds: seed torch, numpy and random from (seed, position) around the call, so that their numbers belong
            to the sample. Such calls run one at a time in a process.
        failure_tolerance: number of consecutive samples that may fail in it; 0 for any number.

    Examples:
        >>> import random
        >>> from penstock.compat.energon import DefaultTaskEncoder, WorkerConfig
        >>> from penstock.compat.energon import get_loader, get_train_dataset, stateless
        >>> class Noisy(DefaultTaskEncoder):
        ...     @stateless(restore_seeds=True)
        ...     def encode_sample(self, sample):
        ...         sample.caption = f"{sample.caption}, {random.randrange(100)}"
        ...         return sample
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = get_train_dataset("pictures", worker_config=config, batch_size=2, task_encoder=Noisy())
        >>> loader = get_loader(dataset)
        >>> batch = next(iter(loader))
        >>> loader.restore_sample(batch.__restore_key__[0]).caption == batch.caption[0]
        True
    """
    if fn is None:
        return functools.partial(_stateless, restore_seeds=restore_seeds, failure_tolerance=failure_tolerance)
    return _stateless(fn, restore_seeds=restore_seeds, failure_tolerance=failure_tolerance)


def _stateless(fn: Any, *, restore_seeds: bool, failure_tolerance: int | None) -> Any:
    made = _seeded(fn) if restore_seeds else fn
    made.__stateless__ = True
    if failure_tolerance is not None:
        made.__failure_tolerance__ = failure_tolerance
    return made


def get_stateless(fn: Any) -> bool:
    """Whether a function is marked as stateless."""
    return bool(getattr(fn, "__stateless__", False))


def get_failure_tolerance(fn: Any, default_failure_tolerance: int | None = None) -> int:
    """Return how many consecutive samples may fail in a function; 0 for any number."""
    return getattr(fn, "__failure_tolerance__", default_failure_tolerance) or 0


def _seeded(fn: Any) -> Any:
    if inspect.isgeneratorfunction(fn):

        @functools.wraps(fn)
        def generates(*args: Any, **kwargs: Any) -> Iterator[Any]:
            made, numbers = fn(*args, **kwargs), None
            while True:
                with _seeds(numbers):
                    try:
                        one = next(made)
                    except StopIteration:
                        return
                    numbers = _numbers()
                yield one

        return generates

    @functools.wraps(fn)
    def returns(*args: Any, **kwargs: Any) -> Any:
        with _seeds():
            return fn(*args, **kwargs)

    return returns


@contextmanager
def _seeds(numbers: tuple[Any, Any, Any] | None = None) -> Generator[None]:
    """Seed the random generators for the current sample, or set them to `numbers`; restore them after the block."""
    seed, number = seed_now()
    with _seeding:
        before = _numbers()
        if numbers is not None:
            _set_numbers(numbers)
        else:
            key = derive_key(seed, "stateless", number)
            random.seed(key)
            np.random.seed(key & 0xFFFFFFFF)
            if (torch := sys.modules.get("torch")) is not None:
                torch.random.default_generator.manual_seed(key >> 1)
        try:
            yield
        finally:
            _set_numbers(before)


def _numbers() -> tuple[Any, Any, Any]:
    """Return the states of the generators of random, numpy and torch."""
    torch = sys.modules.get("torch")
    return random.getstate(), np.random.get_state(), None if torch is None else torch.random.get_rng_state()


def _set_numbers(numbers: tuple[Any, Any, Any]) -> None:
    random.setstate(numbers[0])
    np.random.set_state(numbers[1])
    if numbers[2] is not None:
        sys.modules["torch"].random.set_rng_state(numbers[2])


class TaskEncoder(Generic[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """Base class for task encoders. Override the hooks that you need.

    Attributes:
        cookers: cookers for crude samples, tried in order.
        decoder: how to decode parts; None returns bytes.

    Examples:
        >>> from penstock.compat.energon import TaskEncoder, WorkerConfig, get_loader, get_val_dataset
        >>> class Captions(TaskEncoder):
        ...     def encode_sample(self, sample):
        ...         return sample.caption.upper()
        ...     def batch(self, samples):
        ...         return samples
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> options = {"split_part": "train", "worker_config": config, "batch_size": 2}
        >>> dataset = get_val_dataset("pictures", **options, task_encoder=Captions())
        >>> next(iter(get_loader(dataset)))
        ['PICTURE 0', 'PICTURE 1']
    """

    cookers: Sequence[Cooker] = ()
    decoder: SampleDecoder | None = SampleDecoder()
    cache: Any = None
    __default_failure_tolerance__: int | None = 100

    def cook_crude_sample(self, sample: Any, cooker: Cooker, aux: Mapping[str, Any]) -> Any:
        """Return the cooked sample. `aux` contains all arguments of the function."""
        return cooker.cook(sample, **aux)

    def encode_sample(self, sample: Any) -> Any:
        """Convert one sample to one, or to a generator of any number. May raise `SkipSample`."""
        return sample

    def preencode_sample(self, sample: Any) -> Any:
        """Encode a sample like `encode_sample`, but before packing. Used together with `postencode_sample`."""
        return sample

    def postencode_sample(self, sample: Any) -> Any:
        """Convert one sample of a selected pack to one, or to a generator. Load lazy files here."""
        return sample

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        """Divide the samples of a buffer into packs. Samples in no pack are dropped."""
        return [[one] for one in samples]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        """Convert the samples of a pack to one sample, or to a generator."""
        return samples[0]

    def batch_group_criterion(self, sample: Any) -> tuple[Any, int | None]:
        """Return the group of a sample, and the group's batch size or None for the dataset's."""
        del sample
        return None, None

    def batch(self, samples: list[Any]) -> Any:
        """Make a batch of the samples' type: its fields are tensors, padded with zeros and stacked, or lists."""
        return self._batch(samples, type(samples[0]))

    def _batch(
        self,
        samples: list[Any],
        result_type: Any,
        actions: Mapping[str, Callable[[list[Any]], Any]] | None = None,
        default_action: Callable[[list[Any]], Any] = generic_batch,
    ) -> Any:
        """Return a batch of a type; `actions` maps fields to functions that batch them."""
        return batch_of(samples, result_type, actions, default_action)

    def encode_batch(self, batch: Any) -> Any:
        """Convert a batch to the loader's output: by default a dict of its fields."""
        return batch

    def build_encode_sample(self, dataset: Any, *, worker_config: Any) -> Any:
        """Wrap the dataset of cooked samples to encode them. An override is called once, and may add wrappers."""
        if self.is_overridden("preencode_sample"):
            return _mapped(self, dataset, self.preencode_sample, worker_config)
        if self.is_overridden("encode_sample") and not self.leaves_samples:
            return _mapped(self, dataset, self.encode_sample, worker_config)
        return dataset

    def build_batch(
        self,
        dataset: Any,
        *,
        batch_size: int | None,
        batch_drop_last: bool = False,
        packing_buffer_size: int | None = None,
        worker_config: Any,
    ) -> Any:
        """Wrap the dataset of encoded samples to batch them, after packing if there is a buffer.

        May be overridden.
        """
        tolerance = self.__default_failure_tolerance__ or 0
        if packing_buffer_size is not None:
            dataset = _packed(self, dataset, packing_buffer_size, worker_config, tolerance)
        elif self.is_overridden("postencode_sample"):
            dataset = _mapped(self, dataset, self.postencode_sample, worker_config)
        batching: dict[str, Any] = {"batcher_stateless": get_stateless(self.batch), "drop_last": batch_drop_last}
        batching |= {"failure_tolerance": tolerance, "worker_config": worker_config}
        if self.is_overridden("batch_group_criterion"):
            made: Any = GroupBatchDataset(dataset, batch_size, self.batch_group_criterion, self.batch, **batching)
        elif batch_size is None:
            return dataset
        else:
            made = BatchDataset(dataset, batch_size, self.batch, **batching)
        if not self.is_overridden("encode_batch"):
            return made
        return _mapped(self, made, self.encode_batch, worker_config)

    def build_train_datasets(self, *, datasets: Any, worker_config: Any, batch_size: int | None, **options: Any) -> Any:
        """Combine the datasets of a path to one of batches. An override may change the list, or add wrappers."""
        return _builder(datasets).train(self, datasets, worker_config, batch_size, **options)

    def build_val_datasets(self, *, datasets: Any, worker_config: Any, batch_size: int | None, **options: Any) -> Any:
        """Combine the datasets of a path for validation, like `build_train_datasets`."""
        return _builder(datasets).validation(self, datasets, worker_config, batch_size, **options)

    @property
    def current_sample_index(self) -> int:
        """Number of the worker's earlier samples, times the number of workers, plus the worker's number.

        As in the original, other ranks count the same numbers. In `batch` and `encode_batch`, batches are counted. For
        numbers that belong to the sample on any rank, use `@stateless(restore_seeds=True)`.
        """
        return current("sample", "current_sample_index")

    @property
    def current_batch_index(self) -> int:
        """Number of this rank's current batch, the same after a restore; useful for seeds.

        In `encode_sample`, without packing and grouping, it is the sample's batch. With packing or grouping, buffers
        are filled ahead, so it is an earlier batch.
        """
        return current("batch", "current_batch_index")

    @property
    def leaves_samples(self) -> bool:
        """Whether `encode_sample` returns its argument, so that it needn't be called."""
        return False

    @property
    def encodes(self) -> bool:
        """Whether a subclass or the object defines `encode_sample`."""
        defaults = (TaskEncoder.encode_sample, DefaultTaskEncoder.encode_sample)
        return _own_function(self.encode_sample) not in defaults

    def is_overridden(self, *names: str) -> bool:
        """Return whether a subclass or the object defines one of these hooks."""
        return any(_own_function(getattr(self, name)) is not getattr(TaskEncoder, name) for name in names)


class DefaultTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """Energon's default task encoder: samples unchanged, batches as dicts or as `batch_type`.

    Args:
        encoded_sample_type: dataclass to convert samples to; None leaves them unchanged.
        raw_batch_type: class whose `from_samples` makes batches.
        batch_type: dataclass or dict to which `encode_batch` converts the batch.
        cache: a cache pool.

    Examples:
        >>> from penstock.compat.energon import Cooker, DefaultTaskEncoder, TextSample, WorkerConfig
        >>> from penstock.compat.energon import basic_sample_keys, get_loader, get_val_dataset
        >>> def cook(sample):
        ...     return TextSample(**basic_sample_keys(sample), text=sample["json"]["text"])
        >>> class Texts(DefaultTaskEncoder):
        ...     cookers = [Cooker(cook)]
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = get_val_dataset("docs.jsonl", worker_config=config, batch_size=2, task_encoder=Texts())
        >>> next(iter(get_loader(dataset))).text
        ['A penstock is the pipe that feeds a turbine.', 'Water enters at the top and leaves at the bottom.']
    """

    def __init__(
        self,
        *,
        encoded_sample_type: Any = None,
        raw_batch_type: Any = None,
        batch_type: Any = None,
        cache: Any = None,
    ) -> None:
        self._encoded_sample_type = encoded_sample_type
        self._raw_batch_type = raw_batch_type
        self._batch_type = batch_type
        self.cache = cache

    @property
    def leaves_samples(self) -> bool:
        """Whether `encode_sample` returns its argument, so that it needn't be called."""
        own = _own_function(self.encode_sample) is DefaultTaskEncoder.encode_sample
        return own and self._encoded_sample_type is None

    def encode_sample(self, sample: Any) -> Any:
        """Return the sample, or one of `encoded_sample_type` with its fields."""
        return _as(self._encoded_sample_type, sample)

    def batch(self, samples: list[Any]) -> Any:
        """Return a batch of `raw_batch_type`, by default of the samples' own type."""
        return self._batch(samples, self._raw_batch_type or type(samples[0]))

    def encode_batch(self, batch: Any) -> Any:
        """Return a batch of `batch_type`, if there is one."""
        return _as(self._batch_type, batch)


class AugmentTaskEncoder(TaskEncoder[Any, Any, Any, Any]):
    """Task encoder that delegates every hook to another one. Override the hooks that you add.

    Examples:
        >>> from penstock.compat.energon import AugmentTaskEncoder, DefaultTaskEncoder, WorkerConfig
        >>> from penstock.compat.energon import get_loader, get_val_dataset
        >>> class Numbered(AugmentTaskEncoder):
        ...     def encode_sample(self, sample):
        ...         sample.caption = f"{self.current_batch_index}: {sample.caption}"
        ...         return sample
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> options = {"split_part": "train", "worker_config": config, "batch_size": 2}
        >>> dataset = get_val_dataset("pictures", **options, task_encoder=Numbered(DefaultTaskEncoder()))
        >>> [batch.caption for batch in get_loader(dataset)]
        [['0: picture 0', '0: picture 1'], ['1: picture 2', '1: picture 3'], ['2: picture 4', '2: picture 5']]
    """

    def __init__(self, task_encoder: TaskEncoder[Any, Any, Any, Any]) -> None:
        self._inner = task_encoder
        for name in ("cookers", "decoder", "__default_failure_tolerance__"):
            if getattr(type(self), name) is getattr(TaskEncoder, name):  # a subclass's own value is kept
                setattr(self, name, getattr(task_encoder, name))
        for name in HOOKS:
            if task_encoder.is_overridden(name) and not self.is_overridden(name):
                setattr(self, name, getattr(task_encoder, name))

    @property
    def cache(self) -> Any:
        """Cache pool of the other task encoder."""
        return self._inner.cache

    @cache.setter
    def cache(self, pool: Any) -> None:
        self._inner.cache = pool


def _packed(encoder: Any, dataset: Any, buffer: int, config: Any, tolerance: int) -> PackingDataset[Any]:
    for name in ("select_samples_to_pack", "pack_selected_samples"):
        if not encoder.is_overridden(name):
            hint = "Define both select_samples_to_pack and pack_selected_samples, or omit packing_buffer_size"
            raise ConfigError(f"packing needs {name}", found=type(encoder).__name__, hint=hint)
    encode = encoder.postencode_sample if encoder.is_overridden("postencode_sample") else None
    return PackingDataset(
        dataset,
        buffer,
        encoder.select_samples_to_pack,
        encoder.pack_selected_samples,
        final_packer_stateless=get_stateless(encoder.pack_selected_samples),
        sample_encoder=encode,
        sample_encoder_stateless=get_stateless(encode),
        pre_packer_failure_tolerance=tolerance,
        final_packer_failure_tolerance=tolerance,
        sample_encoder_failure_tolerance=tolerance,
        worker_config=config,
    )


def _mapped(encoder: Any, dataset: Any, function: Callable[[Any], Any], config: Any) -> MapDataset[Any]:
    tolerance = encoder.__default_failure_tolerance__ or 0
    return MapDataset(
        dataset, function, stateless_map_fn=get_stateless(function), failure_tolerance=tolerance, worker_config=config
    )


def _builder(datasets: Any) -> Any:
    """Return the factory that combines the datasets of a path, which is the factory of the first one."""
    if not datasets:
        raise ConfigError("no datasets left", expected="one or more")
    return datasets[0].dataset


HOOKS = (
    "cook_crude_sample", "encode_sample", "preencode_sample", "postencode_sample", "select_samples_to_pack",
    "pack_selected_samples", "batch_group_criterion", "batch", "encode_batch", "build_encode_sample", "build_batch",
    "build_train_datasets", "build_val_datasets",
)  # fmt: skip


def _own_function(method: Any) -> Any:
    return method.__func__ if isinstance(method, MethodType) else method


def batch_of(
    samples: list[Any],
    kind: Any,
    actions: Mapping[str, Callable[[list[Any]], Any]] | None = None,
    default_action: Callable[[list[Any]], Any] = generic_batch,
) -> Any:
    """Return a batch of a type, made by its `from_samples`, or by batching each field of all samples."""
    if hasattr(kind, "from_samples"):
        return kind.from_samples(samples)
    actions = actions or {}
    is_dict = isinstance(kind, type) and issubclass(kind, dict)
    if not (is_dict or dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")):
        return default_action(samples)
    first = samples[0]
    if isinstance(first, dict):
        columns = {name: [one[name] for one in samples] for name in first}
    else:
        names = _names(type(first))
        columns = {name: list(map(attrgetter(name), samples)) for name in names}
    # Fields about the origin of samples aren't batched, because subflavors may differ in their keys.
    how = {name: actions.get(name, list if name in BASE_FIELDS else default_action) for name in columns}
    made = {name: how[name](values) for name, values in columns.items()}
    if "__restore_key__" in made:
        made["__restore_key__"] = tuple(made["__restore_key__"])
    return made if is_dict else kind(**made)


def _as(kind: Any, value: Any) -> Any:
    if kind is None or isinstance(value, kind):
        return value
    fields: dict[str, Any] = _fields(value)
    return dict(fields) if kind is dict else kind(**fields)


def _fields(sample: Any) -> dict[str, Any]:
    return sample if isinstance(sample, dict) else {name: getattr(sample, name) for name in _names(type(sample))}


@functools.cache
def _names(kind: Any) -> tuple[str, ...]:
    """Return the field names of a class."""
    if hasattr(kind, "_fields"):
        return kind._fields
    if not dataclasses.is_dataclass(kind):
        raise ConfigError("only dataclasses, named tuples and dicts have fields", found=kind.__name__)
    return tuple(one.name for one in dataclasses.fields(kind))
