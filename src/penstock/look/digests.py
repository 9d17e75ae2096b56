"""Digests of samples that do not depend on the format that holds them.

128 bits, xxh3-128, over the fields of a sample in the byte order of their names: the length of a name in 8 bytes, the
name, one byte, the length of a value in 8 bytes, the value. The byte is 0 for bytes and texts, which are alike: a tar
has bytes where a JSON line has a text; it is 1 for everything else, which is JSON with sorted keys, where arrays are
lists and a number is as short as it can be: `1.0` is `1`. A part of a tar that its name says is JSON is its value. A
field that is None is as one that is not there: a table can't tell. Fields that readers add (`__restore_key__` and so
on) don't count, and a key counts where both sides have keys.

A document of tokens is the bytes of its ids as little-endian uint32, whatever their width is. If planes count, the
digest is that of these 16 bytes and the values of each plane as float64, in the order of their names.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock._borders import borders_of
from penstock._buffers import byte_view
from penstock._planes import Plane, planes_of
from penstock.codec.parts import suffix_of
from penstock.convert.rows import KEY
from penstock.errors import PenstockError
from penstock.formats.jsonl.source import decode_line
from penstock.look.samples import Dataset, documents_of, samples_of
from penstock.types import IntArray, Sample, TokenArray

Digests = NDArray[np.uint64]
"""uint64[n, 2]: the upper and the lower half of the digest of each sample."""


def digests_of(dataset: Dataset, start: int, stop: int, *, with_keys: bool, planes: Sequence[str] = ()) -> Digests:
    """uint64[stop - start, 2]: digests of the samples `[start, stop)`.

    Args:
        dataset: where.
        start, stop: which.
        with_keys: whether the field `__key__` counts.
        planes: names of planes of tokens that count; without them a document is its ids.

    Raises:
        FormatError: a sample is damaged.
        PenstockError: a value that nothing can be compared with.
    """
    tokens = dataset.tokens
    found = bytearray()
    if tokens is not None:
        values = [planes_of(tokens)[name] for name in planes]
        for at, documents in documents_of(tokens, start, stop):
            if values:
                begin = int(borders_of(tokens, at, at + 1)[0])
                found += b"".join(_digests_with_planes(documents, values, begin))
            else:
                found += b"".join(map(document_digest, documents))
    else:
        for at, samples in samples_of(dataset, start, stop):
            found += b"".join(
                digest_at(dataset, index, row, with_keys=with_keys) for index, row in enumerate(samples, at)
            )
    return np.frombuffer(bytes(found), ">u8").astype(np.uint64).reshape(-1, 2)


def document_digest(ids: TokenArray | IntArray) -> bytes:
    """16 bytes: the digest of one document of tokens."""
    return xxhash.xxh3_128_digest(byte_view(np.ascontiguousarray(ids, "<u4")))


def _digests_with_planes(documents: Iterable[TokenArray], planes: Sequence[Plane], start: int) -> Iterator[bytes]:
    """Digests of documents that follow one another from token `start`, each with its values in the planes."""
    for ids in documents:
        stop = start + len(ids)
        hasher = xxhash.xxh3_128(document_digest(ids))
        for plane in planes:  # values are equal whatever the dtype they are stored as
            hasher.update(byte_view(np.ascontiguousarray(plane.read(start, stop), np.float64)))
        yield hasher.digest()
        start = stop


def digest_at(dataset: Dataset, index: int, sample: Sample, *, with_keys: bool) -> bytes:
    """16 bytes: the digest of the sample at `index`; raises `PenstockError`, which names it, as `digests_of`."""
    try:
        return sample_digest(sample, with_keys=with_keys)
    except (TypeError, ValueError, RecursionError) as error:
        what = f"the sample at index {index} can't be compared"
        raise PenstockError(what, path=dataset.place.path, found=str(error)) from None


def sample_digest(sample: Sample, *, with_keys: bool) -> bytes:
    """16 bytes: the digest of one sample; raises `TypeError` or `ValueError` for a value that is no data."""
    hasher = xxhash.xxh3_128()
    for name in sorted(sample):
        value = sample[name]
        if value is None or (name == KEY and not with_keys):
            continue
        kind, data = content(name, value)
        encoded = name.encode("utf-8", "surrogatepass")
        hasher.update(len(encoded).to_bytes(8, "little") + encoded + bytes([kind]))
        hasher.update(len(data).to_bytes(8, "little"))
        hasher.update(data)
    return hasher.digest()


def content(name: str, value: Any) -> tuple[int, bytes]:
    """The kind and the bytes of a field: equal for equal values; raises as `sample_digest`."""
    if isinstance(value, bytes | bytearray | memoryview):
        value = json_part(name, bytes(value))
    if isinstance(value, bytes):
        return 0, value
    if isinstance(value, str):
        return 0, value.encode("utf-8", "surrogatepass")
    if isinstance(value, date | time):  # as `convert` writes them, where they are text
        return 0, value.isoformat().encode()
    text = json.dumps(_plain(value), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return 1, text.encode("utf-8", "surrogatepass")


def json_part(name: str, data: bytes) -> Any:
    """The value of a part that its name says is JSON; any other is its bytes."""
    if suffix_of(name) in ("json", "jsn"):
        with contextlib.suppress(ValueError, RecursionError):
            return decode_line(data)
    return data


def _plain(value: Any) -> Any:
    """The same as lists, texts and numbers of JSON."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Decimal):
        return {"\0decimal": str(value)}
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return {"\0duration": str(value)}
    if isinstance(value, bytes | bytearray | memoryview):
        return {"\0bytes": bytes(value).hex()}
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"a value of type {type(value).__name__}")
