"""Pickled columns: the only place that unpickles, and only after `trust=True`."""

from __future__ import annotations

import pickle
import pickletools
from typing import Any

from penstock.codec.fields._codec import damaged
from penstock.errors import ConfigError, UnsafeData
from penstock.types import Buffer

_PROTOCOL = 4  # the same bytes with every version of Python


def encode_pickle(value: Any) -> bytes:
    try:
        return pickle.dumps(value, _PROTOCOL)
    except Exception as error:  # an object's own code may raise anything
        raise ConfigError("an object can't be pickled", found=type(value).__qualname__, hint=str(error)) from error


def check_pickle(data: Buffer) -> None:
    """Raise `Corrupt` unless `data` is exactly one pickle. Doesn't run it."""
    try:
        last = max(place or 0 for _, _, place in pickletools.genops(bytes(data)))
    except ValueError as error:
        raise damaged("pkl", str(error), "a pickle") from None
    if last != len(data) - 1:
        raise damaged("pkl", f"a pickle of {last + 1} in {len(data)} bytes", "one pickle")


def refuse_pickle(data: Buffer) -> Any:
    raise UnsafeData(
        "a 'pkl' column runs code when it is decoded",
        hint="Open with --trust (trust=True) if you trust its source, or select other columns: --columns (columns=)",
    )


def decode_trusted_pickle(data: Buffer) -> Any:
    """Unpickle, which may run code: only after `trust=True`."""
    try:
        return pickle.loads(data)  # noqa: S301  # pyright: ignore[reportArgumentType]
    except Exception as error:  # the pickle's own code may raise anything
        raise damaged("pkl", f"{type(error).__name__}: {error}") from error
