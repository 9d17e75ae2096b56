"""Who encodes in this run: gigatoken where the tokenizer's own library confirms it, else that library itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from penstock._secrets import logger
from penstock.abc import Executor
from penstock.engine.parts import Probe
from penstock.errors import ConfigError, PrepareError
from penstock.prepare.tokens.engines import (
    Encoded,
    EngineName,
    Reference,
    encode_each,
    find_difference,
    odd_texts,
    try_gigatoken,
)
from penstock.prepare.tokens.inputs import InputFile
from penstock.prepare.tokens.tokenizer import TokenizerSpec

EngineChoice = Literal["auto", "gigatoken", "tokenizers"]

_log = logger()


def choose_engine(
    asked: EngineChoice,
    spec: TokenizerSpec,
    reference: Reference,
    texts: Sequence[bytes],
    executor: Executor,
) -> tuple[EngineName, str | None]:
    """`(engine, why not gigatoken)`, after both encoded a sample of the input and odd texts.

    Args:
        asked: the user's choice; `"tokenizers"` is the tokenizer's own library; `"auto"` falls back to it and says so.
        spec: the tokenizer.
        reference: the same, loaded.
        texts: UTF-8 texts of the input.
        executor: gigatoken is loaded in its first worker, and so for all.

    Raises:
        ConfigError: gigatoken was asked for by name, and can't.
    """
    if asked == "tokenizers":
        return spec.kind, None
    sample = [*texts, *odd_texts(reference.added_tokens())]
    begin = getattr(executor, "begin", None)  # where there is no other worker, one after the other
    task = functools.partial(try_gigatoken, spec)
    found: Callable[[], Encoded | str] = begin(task, sample) if begin else lambda: next(executor.map(task, [sample]))
    expected, faults = encode_each(reference, sample)
    reason = _objection(sample, found(), expected)
    if faults and reason is None:
        reason = "the tokenizer's own library can't encode every text"
    if reason is None:
        return "gigatoken", None
    if asked == "gigatoken":
        raise ConfigError(
            f"gigatoken can't be used with this tokenizer: {reason}",
            path=spec.path,
            hint=f"Use --engine auto, which falls back to {spec.kind}",
        )
    _log.warning("%s: encoding with %s, which is slower: %s", spec.path, spec.kind, reason)
    return spec.kind, reason


def check_probes(reference: Reference, probes: Sequence[Probe], inputs: Sequence[InputFile]) -> None:
    """Raise `PrepareError` where the reference gives texts that parts remember other ids."""
    difference = disagreement(reference, probes)
    if difference is not None:
        raise disagreed(inputs[probes[0].file].path, difference)


def disagreement(reference: Reference, probes: Sequence[Probe]) -> str | None:
    """Where the reference gives texts that parts remember other ids; None where it gives the same."""
    if not probes:
        return None
    texts = [probe.text.encode() for probe in probes]
    lengths = np.array([len(probe.ids) for probe in probes], np.int64)
    ids = np.array([token for probe in probes for token in probe.ids], np.uint32)
    difference = find_difference(texts, (ids, lengths), encode_each(reference, texts)[0])
    return None if difference is None else str(difference)


def disagreed(path: str, difference: str) -> PrepareError:
    """The error for an input on which the engines disagree."""
    return PrepareError(
        f"gigatoken and the tokenizer's own library disagree on a text in this input, {difference}",
        path=path,
        hint="Encode everything with the reference: --engine tokenizers --restart",
    )


def _objection(sample: Sequence[bytes], found: Encoded | str, expected: Encoded) -> str | None:
    if isinstance(found, str):
        return f"gigatoken can't load it ({found})"
    difference = find_difference(sample, found, expected)
    return None if difference is None else f"gigatoken differs {difference}"
