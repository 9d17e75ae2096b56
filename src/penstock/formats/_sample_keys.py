"""Keys of samples: from a source's index of keys, or from a field of the samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from penstock._kinds import is_token_source
from penstock._limits import count_in
from penstock.abc import SupportsKeys
from penstock.errors import NotFound, PenstockError
from penstock.formats._exclusions import stored
from penstock.types import IntArray

KEY_FIELDS = ("__key__", "key", "id", "doc_id", "url")
"""Fields that hold the key of a sample, unless `key_field` is given. The first one that a sample has is used."""

_PROBED = 1 << 10


def key_in(sample: object, field: str | None = None) -> str | None:
    """Return the key of a sample as text: from `field`, a dotted path, or the first of `KEY_FIELDS`."""
    for path in [[name] for name in KEY_FIELDS] if field is None else [field.split(".")]:
        value: Any = sample
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, str | int | np.integer):
            return str(value)
    return None


def key_at(source: Any, index: int) -> str | None:
    """Return the key of sample `index`, or None if it has none or can't be read."""
    source = stored(source)
    try:
        if isinstance(source, SupportsKeys):
            return source.key_of(index)
        return key_in(source[index]) if _may_have_keys(source) else None
    except PenstockError:
        return None


def indices_with_key(source: Any, key: str) -> IntArray:
    """Return the samples with a key, in rising order; the sample of that number if samples have no keys.

    Without an index of keys all samples are read. Samples that can't be read are skipped. Whether a source has keys
    that are numbers is decided by its first 1,024 samples.
    """
    source = stored(source)
    if isinstance(source, SupportsKeys):
        try:
            return np.array([source.index_of(key)], dtype=np.int64)
        except NotFound:
            return np.empty(0, dtype=np.int64)
    number = count_in(key, len(source))
    if not _may_have_keys(source) or (number is not None and not _has_keys(source)):
        return np.array([] if number is None else [number], dtype=np.int64)
    return np.array([index for index, one in _keys(source, len(source)) if one == key], dtype=np.int64)


def _may_have_keys(source: Any) -> bool:
    schema = source.schema
    return not is_token_source(source) and (schema.open or any(one.name in KEY_FIELDS for one in schema.fields))


def _has_keys(source: Any) -> bool:
    return any(key is not None for _, key in _keys(source, min(_PROBED, len(source))))


def _keys(source: Any, stop: int) -> Iterator[tuple[int, str | None]]:
    return ((index, key_at(source, index)) for index in range(stop))
