"""Cook functions: choice of the one for a sample, its arguments, and its errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock._digest import derive_key
from penstock._naming import function_name
from penstock.cook.stores import FileStore
from penstock.errors import ConfigError, CookError, NotFound, PenstockError, UnsafeData

CookFn = Callable[..., Any]
"""Raw sample, and stores, `primary`, `rng` by keyword → the cooked sample."""

# These are errors of the program, independent of the sample.
PROGRAM_ERRORS = (
    SystemError, SyntaxError, ImportError, MemoryError, RecursionError, ReferenceError, NameError, StopIteration,
    StopAsyncIteration,
)  # fmt: skip

_GIVEN = ("primary", "rng")


class SkipSample(CookError):
    """Error that a cook function raises to skip a sample.

    A stream can't leave out a position: the loader raises the error, or with `on_error="substitute"` takes another
    sample of the same child. A `PackStream` that cooks samples in `merge` leaves it out.

    Examples:
        >>> import penstock as ps
        >>> from penstock.cook import Cooker, SkipSample, cook
        >>> def short(sample):
        ...     if len(sample["text"]) > 30:
        ...         raise SkipSample("the text is too long")
        ...     return sample
        >>> cooked = cook(ps.open("docs.jsonl"), Cooker(short, name="short-1"))
        >>> cooked[3]["text"]
        'The gate controls the flow.'
        >>> cooked[0]
        Traceback (most recent call last):
        ...
        penstock.cook.cookers.SkipSample: ...
    """

    def __init__(self, what: str = "the cook function skips this sample", **details: Any) -> None:
        super().__init__(what, **details)


@dataclass(frozen=True, slots=True)
class Cooker:
    """Cook function and the samples that it applies to.

    Attributes:
        cook: called as `cook(sample, **stores)`, with each auxiliary store by its name. If it has parameters of these
            names, it also gets `primary`, a store of the sample's own dataset, and `rng`, a numpy Generator for each
            position.
        has_subflavors: pairs that the sample's `__subflavors__` must contain; None accepts every sample.
        name: identifies the function in fingerprints; `module:qualname` by default. Change it when the function's
            results change.

    Examples:
        >>> from penstock.cook import Cooker
        >>> def chat(sample):
        ...     return {"text": sample["text"]}
        >>> cooker = Cooker(chat, has_subflavors={"kind": "chat"}, name="chat-1")
        >>> cooker.is_match({"kind": "chat", "lang": "en"}), cooker.is_match({"kind": "code"})
        (True, False)
    """

    cook: CookFn
    has_subflavors: Mapping[str, Any] | None = None
    name: str | None = None

    def is_match(self, subflavors: Mapping[str, Any] | None) -> bool:
        """Return whether it accepts samples with these subflavors."""
        wanted = self.has_subflavors or {}
        return all(key in (subflavors or {}) and (subflavors or {})[key] == value for key, value in wanted.items())


@dataclass(frozen=True, slots=True)
class Bound:
    cook: CookFn
    name: str
    stores: Mapping[str, Any]
    primary: FileStore | None
    wants_rng: bool

    def __call__(self, sample: Any, seed: int, position: int) -> Any:
        """Return the cooked sample.

        Raises:
            CookError: the function failed on this sample.
        """
        given = self.stores
        if self.primary is not None:
            given = {**given, "primary": self.primary.of(sample.get("__key__", ""))}
        if self.wants_rng:
            given = {**given, "rng": rng_of(seed, position)}
        try:
            return self.cook(sample, **given)
        except Exception as error:
            wrapped = as_cook_error(error, self.name, sample)
            if wrapped is error:
                raise
            raise wrapped from error


def as_cook_error(error: Exception, name: str, sample: Any) -> Exception:
    """Return the `CookError` for an exception of a function over one sample; itself if the sample isn't the cause."""
    if isinstance(error, NotFound) or type(error) is FileNotFoundError:
        pass  # the sample names a missing file; an unreachable store isn't the sample's fault
    elif isinstance(error, UnsafeData):  # not skipped like a bad sample, but the error names the sample
        if repr(_key_of(sample)) not in error.what:
            error.what = f"{name} failed on the sample {_key_of(sample)!r}: {error.what}"
        return error
    elif isinstance(error, (PenstockError, OSError, *PROGRAM_ERRORS)):
        return error
    return CookError(
        f"{name} failed on the sample {_key_of(sample)!r}",
        found=f"{type(error).__name__}: {error}"[:400],
        hint="Fix the sample or the function, or load with on_error='substitute'",
    )


def _key_of(sample: Any) -> Any:
    return sample.get("__key__") if isinstance(sample, Mapping) else getattr(sample, "__key__", None)


def rng_of(seed: int, position: int) -> np.random.Generator:
    """Return the generator of one position: the same for every process and order of cooking."""
    return np.random.Generator(np.random.Philox(key=derive_key(seed, "cook", position)))


@dataclass(frozen=True, slots=True)
class Cookers:
    """Choice of cook functions; the first that matches takes a sample."""

    all: tuple[Cooker, ...]
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @staticmethod
    def of(given: CookFn | Cooker | Sequence[CookFn | Cooker]) -> Cookers:
        several = given if isinstance(given, Sequence) else [given]
        if not several:
            raise ConfigError("no cook function", expected="one or more")
        return Cookers(tuple(one if isinstance(one, Cooker) else Cooker(one) for one in several))

    @property
    def names(self) -> list[list[Any]]:
        """[name, subflavors] of each, as plain JSON."""
        return [[name_of(one), None if one.has_subflavors is None else dict(one.has_subflavors)] for one in self.all]

    def choose(self, subflavors: Mapping[str, Any] | None) -> Cooker:
        """Return the cooker for samples with these subflavors.

        Raises:
            ConfigError: no cooker matches; the message lists them.
        """
        for one in self.all:
            if one.is_match(subflavors):
                return one
        known = "; ".join(f"{name_of(one)} for {dict(one.has_subflavors or {})}" for one in self.all)
        raise ConfigError(
            "no cooker accepts samples with these subflavors",
            found=dict(subflavors or {}),
            expected=known or "one or more cookers",
            hint="Add a Cooker with matching has_subflavors, or one without has_subflavors",
        )

    def bind(self, subflavors: Mapping[str, Any] | None, aux: Mapping[str, Any], primary: FileStore | None) -> Bound:
        """Return the cooker of a dataset, checked against the arguments of its function.

        Raises:
            ConfigError: no cooker takes it; the function lacks a parameter for a store, or requires a missing one.
        """
        one = self.choose(subflavors)
        name = name_of(one)
        taken = [given for given in aux if given in (*_GIVEN, *self.extra)]
        if taken:
            raise ConfigError("the name of an auxiliary store is already in use", found=", ".join(taken))
        parameters = inspect.signature(one.cook).parameters
        wants = {given for given in (*_GIVEN, *self.extra) if given in parameters}
        if "primary" in wants and primary is None:
            raise ConfigError(
                f"{name} needs the store of its dataset, which can't return files by name",
                hint="Omit the parameter primary",
            )
        stores = {**aux, **{given: self.extra[given] for given in wants & self.extra.keys()}}
        _check_call(one.cook, name, {*stores, *(wants & set(_GIVEN))})
        return Bound(one.cook, name, stores, primary if "primary" in wants else None, "rng" in wants)


def name_of(one: Cooker) -> str:
    """Return the name that identifies a cooker; raise `ConfigError` if it has none."""
    if one.name is not None:
        return one.name
    hint = "Pass name= to Cooker, and change it when the function's results change"
    return function_name(one.cook, "the cook function", hint)


def _check_call(fn: CookFn, name: str, given: set[str]) -> None:
    """Raise `ConfigError` for arguments that don't fit `fn`, independent of any sample."""
    try:
        inspect.signature(fn).bind({}, **dict.fromkeys(given))
    except TypeError as error:
        raise ConfigError(
            f"{name} can't be called with the inputs of this dataset",
            found=str(error),
            expected=f"cook(sample, *, {', '.join(sorted(given)) or 'nothing'})",
            hint="Each auxiliary store is a keyword argument; **stores takes them all",
        ) from None
