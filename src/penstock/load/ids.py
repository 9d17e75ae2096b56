"""Token ids in the signed types that frameworks compute with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError, TooLarge


@dataclass(frozen=True, slots=True)
class ToSignedIds:
    """Token ids among columns, also in lists, → int64 or int32 arrays; everything else stays as it is.

    Attributes:
        dtype: `"int64"` or `"int32"`.
        token_fields: fields that hold token ids, whatever their type; uint16, uint32 and uint64 always do.
    """

    dtype: str
    token_fields: frozenset[str]

    def __call__(self, columns: Any) -> Any:
        """`columns` with signed ids."""
        if not isinstance(columns, dict):
            return columns
        return {name: self.convert(name, value) for name, value in columns.items()}

    def convert(self, name: str, value: Any) -> Any:
        """One column."""
        if isinstance(value, list):
            return [self.convert(name, item) for item in value] if may_hold_arrays(value) else value
        if not isinstance(value, np.ndarray) or value.dtype.kind != "u":
            return value
        if value.dtype.itemsize == 1 and name not in self.token_fields:
            return value
        return _as_int32(name, value) if self.dtype == "int32" else value.astype(np.int64)


def may_hold_arrays(values: list[Any]) -> bool:
    """Whether arrays may be among values or lists in them: one look at the types of a batch of texts is enough."""
    return any(issubclass(one, np.ndarray | list) for one in set(map(type, values)))


def signed_ids(data: Any, dtype: Any) -> ToSignedIds:
    """For the samples of a source or stream, by its schema.

    Raises:
        ConfigError: another dtype than int64 or int32, as text or as a framework's dtype.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in ("int64", "int32"):
        raise ConfigError("unsupported dtype for token ids", found=f"dtype={dtype!r}", expected="int64 or int32")
    return ToSignedIds(name, frozenset(field.name for field in data.schema.fields if field.kind == "tokens"))


def _as_int32(name: str, value: NDArray[Any]) -> NDArray[np.int32]:
    if value.dtype.itemsize >= 4 and value.size and int(value.max()) > np.iinfo(np.int32).max:
        raise TooLarge(
            f"{name} contains an id that doesn't fit in int32", found=int(value.max()), hint="Use dtype='int64'"
        )
    return value.astype(np.int32)
