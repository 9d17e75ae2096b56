"""Processes one raw sample: cooks and encodes it, and counts those that fail."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from types import GeneratorType
from typing import Any, TypeAlias

from penstock.compat.energon.cookers import Cooker, SampleDecoder
from penstock.compat.energon.encoder import TaskEncoder
from penstock.compat.energon.failures import Failures, lost
from penstock.compat.energon.media import MEDIA
from penstock.compat.energon.samples import TYPES, typed
from penstock.compat.energon.worker import NOW, At, Index, OfBatch, WorkerConfig, begin, end
from penstock.compat.unused import refuse_overrides
from penstock.cook.cookers import Cooker as PlainCooker
from penstock.cook.cookers import name_of
from penstock.cook.cooking import RESTORE_KIND
from penstock.cook.crude import CrudeSample, Origin
from penstock.errors import ConfigError

OF_BATCH = "of"
"""Begins the restore key of a sample that is not in the batch which its position would be in."""

AnyEncoder: TypeAlias = TaskEncoder[Any, Any, Any, Any]


class Work:
    """Makes all outputs of the task encoder for a raw sample and its position; see `penstock.cook.cooking.Cooks`.

    Args:
        encoder: task encoder with cookers, decoder, `encode_sample` or `preencode_sample`, and `postencode_sample`.
        config: config with the seed and the error handler.
        batch_size: samples per batch of a rank, used to count `current_batch_index`; None counts samples.
        packs: whether samples are packed: `postencode_sample` is then called for packed samples, and not here.
        encodes: False only cooks, because the task encoder encodes by its own wrappers.

    Raises:
        ConfigError: a hook would never be called, or both `encode_sample` and `preencode_sample` are defined.
    """

    def __init__(
        self,
        encoder: AnyEncoder,
        config: WorkerConfig,
        batch_size: int | None = None,
        packs: bool = False,
        encodes: bool = True,
    ) -> None:
        check_encoder(encoder)
        self.encoder = encoder
        self.packs = packs
        self.batch_size = batch_size
        self._own_batch = batch_size or 1
        self._workers = max(1, config.num_workers)
        self._step = self._own_batch * config.world_size
        self.seed = config.seed_offset
        self.failures = Failures(config)
        self.config = config
        self._steps: list[Any] = []
        self.encodes = encodes
        if not encodes:
            pass
        elif encoder.is_overridden("preencode_sample"):
            self._steps.append(encoder.preencode_sample)
        elif encoder.is_overridden("encode_sample") and not encoder.leaves_samples:
            self._steps.append(encoder.encode_sample)
        if encoder.is_overridden("postencode_sample") and not packs and encodes:
            self._steps.append(encoder.postencode_sample)
        decoder = encoder.decoder
        self._finish = None if decoder is None else decoder.finish
        self._cook_is_own = encoder.is_overridden("cook_crude_sample")
        self._bound: dict[Any, _Bound] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return (Work, (self.encoder, self.config, self.batch_size, self.packs, self.encodes))

    @property
    def identity(self) -> list[Any]:
        kind, decoder = type(self.encoder), self.encoder.decoder
        cookers = [[_name(one), dict(one.has_subflavors or {})] for one in self.encoder.cookers]
        how = None if decoder is None else [decoder.image_decode, decoder.av_decode]
        return [f"{kind.__module__}:{kind.__qualname__}", cookers, how, self.seed]

    @property
    def tolerance(self) -> int | None:
        """Number of consecutive samples that may fail in a function without its own limit."""
        return getattr(self.encoder, "__default_failure_tolerance__", None)

    @property
    def gives_several_batches(self) -> bool:
        """Whether a batch may become any number of batches."""
        return _generates(self.encoder.batch) or _generates(self.encoder.encode_batch)

    @property
    def is_generator(self) -> bool:
        return self.cooks_several or self.encodes_several

    @property
    def encodes_several(self) -> bool:
        return any(map(_generates, self._steps))

    @property
    def cooks_several(self) -> bool:
        cooks = [self.encoder.cook_crude_sample, *(one.cook for one in self.encoder.cookers)]
        return any(map(_generates, cooks))

    def __call__(self, sample: Any, position: int, /) -> tuple[Any, ...]:
        return self.cook_all([sample], [position])[0]

    def cook_all(self, samples: Iterable[Any], positions: Iterable[int], /) -> list[tuple[Any, ...]]:
        before = begin(self.config)
        try:
            return list(map(self._made, samples, positions, repeat(getattr(NOW, "batch", None))))
        finally:
            end(before)

    def _made(self, sample: Any, position: int, batch: OfBatch | None) -> tuple[Any, ...]:
        key: tuple[Any, ...] = (RESTORE_KIND, position)
        if batch is None:
            number = position // self._step
        else:
            number, row = self.place(position, batch)
            key = (OF_BATCH, number, row, key)
        set_restore_key(sample, key)
        NOW.at = self.config, position, number, partial(self._index, position, batch)
        try:
            made = self._cooked(sample)
            outputs: tuple[Any, ...] = tuple(made) if isinstance(made, GeneratorType) else (made,)
        except Exception as error:
            self._lost("cook", error, sample, self.tolerance)
            return ()
        self.failures.passed("cook", sample)
        if made is None:
            return ()
        for step in self._steps:
            if len(outputs) == 1:
                outputs = self.apply(step, outputs[0], key)
            else:
                outputs = tuple(one for output in outputs for one in self.apply(step, output, key))
        if len(outputs) > 1:
            _number_all(outputs, key)
        return outputs

    def place(self, position: int, batch: OfBatch | None = None) -> tuple[int, int]:
        world = self.config.world_size
        if batch is None:
            return divmod(position // world, self._own_batch)
        return batch.number, batch.row if batch.first is None else batch.row + (position - batch.first) // world

    def _index(self, position: int, batch: OfBatch | None) -> int:
        """Return the samples that the original's worker had before this one; see `At.sample`."""
        number, row = self.place(position, batch)
        return (number // self._workers * self._own_batch + row) * self._workers + number % self._workers

    def each(self, sample: Any, position: int, batch: Index, index: Index) -> Iterator[Any]:
        """Yield the outputs of a sample; generator functions resume when their next output is needed.

        Args:
            sample: the raw sample.
            position: position of the sample.
            batch: see `At`; called again for each output.
            index: see `At`.
        """
        key = (RESTORE_KIND, position)
        set_restore_key(sample, key)
        outputs = self._each_cooked(sample, key)
        for step in self._steps:
            outputs = self._each_of(step, outputs, key)
        at: At = self.config, position, batch, index
        while True:
            before, NOW.at = getattr(NOW, "at", None), at
            try:
                one = next(outputs)
            except StopIteration:
                return
            finally:
                NOW.at = before
            yield one

    def _each_cooked(self, sample: Any, key: tuple[Any, ...]) -> Iterator[Any]:
        try:
            made = self._cooked(sample)
            outputs: Iterator[Any] = made if isinstance(made, GeneratorType) else iter(() if made is None else (made,))
            for number, one in enumerate(outputs):
                self.failures.passed("cook", sample)
                if outputs is made:
                    set_restore_key(one, ("output", number, key))
                yield one
        except Exception as error:
            self._lost("cook", error, sample, self.tolerance)

    def _each_of(self, fn: Any, samples: Iterator[Any], key: tuple[Any, ...]) -> Iterator[Any]:
        for sample in samples:
            yield from self.apply_each(fn, sample, key)

    def apply_each(self, fn: Any, sample: Any, key: tuple[Any, ...]) -> Iterator[Any]:
        try:
            found = fn(sample)
            outputs: Iterator[Any] = found if isinstance(found, GeneratorType) else iter((found,))
            for number, one in enumerate(outputs):
                self.failures.passed(fn.__name__, sample)
                if outputs is found:
                    set_restore_key(one, ("output", number, key))
                yield one
        except Exception as error:
            self._lost(fn.__name__, error, sample, getattr(fn, "__failure_tolerance__", self.tolerance))

    def apply(self, fn: Any, sample: Any, key: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a hook's results for a sample; several get their own restore keys."""
        try:
            found = fn(sample)
            made = tuple(found) if isinstance(found, GeneratorType) else (found,)
        except Exception as error:
            self._lost(fn.__name__, error, sample, getattr(fn, "__failure_tolerance__", self.tolerance))
            return ()
        self.failures.passed(fn.__name__, sample)
        if len(made) > 1:
            _number_all(made, key)
        return made

    def _lost(self, stage: str, error: Exception, sample: Any, tolerance: int | None) -> None:
        lost(self.failures, stage, error, sample, tolerance)

    def _cooked(self, sample: Any) -> Any:
        if not isinstance(sample, CrudeSample):
            return sample  # a joiner made it
        origin, subflavors = sample.origin, sample.get("__subflavors__")
        if self._finish is not None:
            for name, value in dict.items(sample):
                if type(value) in MEDIA:
                    sample[name] = self._finish(value)
        if origin.kind is not None:
            cls = origin.sample_class or TYPES.get(origin.kind)
            return sample if cls is None else typed(sample, cls)
        # Of each dataset and choice of subflavors, how samples are cooked is found out once.
        place = (id(origin), repr(subflavors)) if subflavors else id(origin)
        bound = self._bound.get(place)
        if bound is None:
            bound = self._bound[place] = self._chosen(origin, subflavors)
        aux = bound.aux
        if bound.need_primary:
            aux = {**aux, "primary": aux["primary"].of(sample["__key__"])}
        if self._cook_is_own:
            return self.encoder.cook_crude_sample(sample, bound.cooker, aux)
        return bound.cook(sample, **aux)

    def _chosen(self, origin: Origin, subflavors: Any) -> _Bound:
        for cooker in self.encoder.cookers:
            if cooker.is_match(subflavors):
                break
        else:
            known = "; ".join(f"{_name(one)} for {dict(one.has_subflavors or {})}" for one in self.encoder.cookers)
            raise ConfigError(
                "no cooker accepts samples with these subflavors",
                found=dict(subflavors or {}),
                expected=known or "cookers = [Cooker(fn)] in the task encoder, because the data is crude",
            )
        aux: dict[str, Any] = dict(origin.aux)
        if cooker.need_cache:
            if self.encoder.cache is None:
                hint = "Pass cache_pool= to the loader"
                raise ConfigError(f"{_name(cooker)} needs a cache, but there is none", hint=hint)
            aux["cache"] = self.encoder.cache
        if cooker.need_primary:
            if origin.primary is None:
                raise ConfigError(f"{_name(cooker)} needs the store of its dataset, which can't return files by name")
            aux["primary"] = origin.primary
        try:
            inspect.signature(cooker.cook).bind({}, **aux)
        except TypeError as error:
            raise ConfigError(
                f"{_name(cooker)} can't be called with the inputs of this dataset",
                found=str(error),
                expected=f"a parameter for each of: {', '.join(aux) or 'nothing but the sample'}",
            ) from None
        return _Bound(origin, cooker, cooker.cook, aux, cooker.need_primary)


@dataclass(frozen=True, slots=True)
class _Bound:
    """Cooking of a dataset's samples; keeps a reference to `origin`, so that its id stays unique."""

    origin: Origin
    cooker: Cooker
    cook: Callable[..., Any]
    aux: dict[str, Any]
    need_primary: bool


_NEVER_CALLED = ("build_cook_crude_sample", "_load_dataset", "_is_overridden")
"""Methods by which the original puts its datasets together."""
_OF_DECODERS = ("decode", "finish", "options", "config", "__call__")


def check_encoder(encoder: AnyEncoder) -> None:
    """Refuse a task encoder with methods that would never be called.

    Raises:
        ConfigError: the task encoder, or its decoder, has a method that is never called, or hooks that exclude each
            other.
    """
    whose = type(encoder).__name__
    found = [name for name in _NEVER_CALLED if hasattr(encoder, name)]
    if found:
        hint = "Use cook_crude_sample, which is called for each sample, build_encode_sample or build_train_datasets"
        raise ConfigError(f"{whose} overrides a method that is never called here", found=", ".join(found), hint=hint)
    if encoder.encodes and encoder.is_overridden("preencode_sample"):
        raise ConfigError("encode_sample replaces preencode_sample: define one of them", found=whose)
    if _generates(encoder.batch) and encoder.is_overridden("batch_group_criterion"):
        raise ConfigError("batch must return one batch per group", found=f"{whose}.batch, a generator")
    decoder: Any = encoder.decoder
    if decoder is not None and not isinstance(decoder, SampleDecoder):
        raise ConfigError("no decoder", found=type(decoder).__name__, expected="a SampleDecoder, or None for bytes")
    if decoder is not None:
        hint = "Set decoder = None, and decode in a cooker or in encode_sample"
        refuse_overrides(type(decoder), SampleDecoder, _OF_DECODERS, hint)


def _generates(function: Any) -> bool:
    return inspect.isgeneratorfunction(inspect.unwrap(getattr(function, "__func__", function)))


def _number_all(outputs: tuple[Any, ...], key: tuple[Any, ...]) -> None:
    for number, one in enumerate(outputs):
        set_restore_key(one, ("output", number, key))


def set_restore_key(sample: Any, key: tuple[Any, ...]) -> None:
    """Set the restore key of a sample that has a field for it."""
    if isinstance(sample, dict):
        sample["__restore_key__"] = key
    elif hasattr(sample, "__restore_key__"):
        with contextlib.suppress(AttributeError):  # a frozen object stays unchanged
            sample.__restore_key__ = key


def key_of(sample: Any) -> tuple[Any, ...]:
    """Return a sample's restore key; empty if it has none."""
    found = sample.get("__restore_key__") if isinstance(sample, dict) else getattr(sample, "__restore_key__", None)
    return found if isinstance(found, tuple) else ()


def _name(cooker: Cooker) -> str:
    return name_of(PlainCooker(cooker.cook))
