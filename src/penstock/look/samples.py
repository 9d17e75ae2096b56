"""Read the samples of any dataset in runs of some MB, and digest them independently of the format.

A digest is xxh3-128 over the fields of a sample in the byte order of their names: the length of the name in 8 bytes,
the name, one byte, the length of the value in 8 bytes, the value. The byte is 0 for bytes and texts, which are equal: a
tar has bytes where JSON has text. It is 1 for everything else, which is JSON with sorted keys, arrays as lists, and
numbers as short as possible: `1.0` is `1`. A JSON part of a tar is its value. Fields that are None or that readers add
(`__restore_key__` and so on) are ignored. Keys count if both sides have keys.

A token document is the bytes of its ids as little-endian uint32. If planes count, the digest is that of these 16 bytes
and the values of each plane as float64, in the order of their names.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock._access import excluded_of
from penstock._arrays import byte_view
from penstock._keywords import were_given
from penstock._kinds import is_token_source
from penstock._secrets import redact
from penstock._tokens import Plane, borders_of, planes_of
from penstock.abc import Source, TokenSource
from penstock.codec.parts import DecodeOptions, decode_part, suffix_of
from penstock.convert.rows import KEY, SourceRows
from penstock.engine.rows import read_run, runs
from penstock.errors import ConfigError, PenstockError
from penstock.formats import find_format, open_source
from penstock.formats._exclusions import kept
from penstock.formats._exclusions import stored as stored_source
from penstock.formats.jsonl.source import decode_line
from penstock.reshape.rows import LineRows, Lines, fields_of
from penstock.store.exclude_list import NO_LIST
from penstock.store.place import Place, dataset_at, place_of
from penstock.types import IntArray, OpenOptions, Sample, TokenArray

Target: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Source[Any]
"""A path, a URL, a list of JSONL files, or an opened source."""

RUN_TOKENS = 1 << 22
_STRETCH_SAMPLES = 1 << 12
_RUN_BYTES = 1 << 24
_MOST_SAMPLES = 1 << 10
_STORED = ("image", "images", "pickle")
_TEXT_PARTS = frozenset(("txt", "text", "transcript", "cls", "cls2", "index", "inx", "id", "json", "jsn"))
_PLAIN = DecodeOptions()


@dataclass(frozen=True, slots=True)
class Dataset:
    """An opened dataset; picklable as its sources are.

    Attributes:
        source: source of its samples.
        readers: sources that read them: the same, or one for its decoded columns and one for its stored columns.
        place: its place, for errors.
        reads: the same if workers must see it.
        excluded: int64[k], increasing: excluded samples, which can be read; None if there is no exclude list.
    """

    source: Source[Any]
    readers: tuple[Source[Any], ...]
    place: Place
    reads: tuple[Place, ...] = ()
    excluded: IntArray | None = None

    def __len__(self) -> int:
        return len(self.source)

    @property
    def tokens(self) -> TokenSource | None:
        """The source if its samples are token documents."""
        return self.source if is_token_source(self.source) else None

    @property
    def lines(self) -> LineRows | None:
        """The lines if its samples are lines of files."""
        if not isinstance(self.source, Lines):
            return None
        return LineRows(self.source.line_ranges(), Place(*self.source.text))


@dataclass(frozen=True, slots=True)
class Stretch:
    """A task: the samples `[start, stop)` of a dataset; `described` is its name in errors."""

    start: int
    stop: int
    described: str
    side: int = 0


def open_dataset(target: Target, options: dict[str, Any], *, leave_out: bool = False, marks: bool = False) -> Dataset:
    """Open a dataset. Parts of tars, files of folders, images and pickles stay as they are stored, undecoded.

    Args:
        target: see `Target`.
        options: opening options; None means that one isn't given.
        leave_out: leave excluded samples out, as if the dataset were purged.
        marks: set `excluded`. Otherwise the exclude list is only read to leave samples out.
    """
    asked = were_given(options)
    if wrong := sorted(asked.keys() & {"raw", "columns"}):
        raise ConfigError("samples are read whole and as stored", found=", ".join(wrong), hint="Leave them out")
    seen = kept if leave_out else stored_source
    options = asked | ({} if leave_out or marks else {"excludes": NO_LIST})
    if not isinstance(target, str | os.PathLike | Sequence):
        if asked:
            raise ConfigError("the source is already open", found=", ".join(asked), hint="Pass them to ps.open")
        return Dataset(seen(target), (seen(target),), place_of(_name_of(target)), (), excluded_of(target))
    if not isinstance(target, str | os.PathLike):
        whole = open_source(target, **options)
        return Dataset(seen(whole), (seen(whole),), place_of(_name_of(whole)), (), excluded_of(whole))
    place = dataset_at(target, follow_links=options.get("follow_links", False))
    options["format"] = find_format(place, options.get("format"), OpenOptions(layout=options.get("layout"))).name
    if options["format"] in ("webdataset", "folder"):
        whole = open_source(target, **options, raw=True)
        return Dataset(seen(whole), (seen(whole),), place, (place,), excluded_of(whole))
    whole = open_source(target, **options)
    source = seen(whole)
    stored = [one.name for one in source.schema.fields if one.kind in _STORED]
    if options["format"] != "mds" or not stored:
        return Dataset(source, (source,), place, (place,), excluded_of(whole))
    decoded = [one.name for one in source.schema.fields if one.name not in stored]
    readers = [seen(open_source(target, **options, columns=stored, raw=True))]
    readers += [seen(open_source(target, **options, columns=decoded))] if decoded else []
    return Dataset(source, tuple(readers), place, (place,), excluded_of(whole))


def stretches(dataset: Dataset, side: int = 0) -> Iterator[Stretch]:
    """Return tasks for all samples in order: some thousands each, or whole blocks if the storage has blocks."""
    starts = getattr(dataset.source, "block_starts", None)
    borders = range(0, len(dataset), _STRETCH_SAMPLES) if starts is None else np.unique(np.asarray(starts)).tolist()
    begin = 0
    for border in (*borders, len(dataset)):
        if border - begin >= _STRETCH_SAMPLES or (border == len(dataset) and border > begin):
            yield Stretch(begin, border, f"{redact(dataset.place.path)}, samples {begin} to {border}", side)
            begin = border


def samples_of(dataset: Dataset, start: int, stop: int) -> Iterator[tuple[int, list[Sample]]]:
    """Read `[start, stop)` in runs of about 16 MiB: `(index of the first, samples)`; not for token documents."""
    lines = dataset.lines
    if lines is None:
        for indices, samples in _rows_at(dataset, np.arange(start, stop)):
            yield int(indices[0]), samples
        return
    for at, end in runs(lines, start, stop):
        data, lengths = read_run(lines, at, end)
        view, ends = data.data, np.cumsum(lengths).tolist()
        begins = [0, *ends[:-1]]
        cut = enumerate(zip(begins, ends, strict=True), at)
        yield at, [dict(fields_of(bytes(view[a : b - 1]), dataset.place, index)) for index, (a, b) in cut]


def samples_at(dataset: Dataset, indices: IntArray) -> Iterator[tuple[int, Sample]]:
    """Read `(index, sample)` of these samples in their order, many per request; not for token documents."""
    lines = dataset.lines
    if lines is None:
        for near, samples in _rows_at(dataset, indices):
            yield from zip(near.tolist(), samples, strict=True)
        return
    for block in np.split(indices, range(_STRETCH_SAMPLES, len(indices), _STRETCH_SAMPLES)):
        starts, lengths = lines.ranges(block)
        totals = np.cumsum(lengths)
        for near in np.split(np.arange(len(block)), np.flatnonzero(np.diff(totals // _RUN_BYTES)) + 1):
            first, stops = starts[near], starts[near] + lengths[near] - 1  # without the line end
            texts = _texts(lines.place, first.tolist(), stops.tolist())
            for index, text in zip(block[near].tolist(), texts, strict=True):
                yield index, dict(fields_of(text, dataset.place, index))


def _texts(place: Place, starts: list[int], stops: list[int]) -> list[bytes]:
    """Read the bytes from each start to its stop, by one request if most of its bytes are wanted."""
    low, high = min(starts), max(stops)
    if high - low > 2 * sum(stops) - 2 * sum(starts):
        return place.store.get_ranges(place.path, list(zip(starts, stops, strict=True)))
    (data,) = place.store.get_ranges(place.path, [(low, high)])
    return [data[start - low : stop - low] for start, stop in zip(starts, stops, strict=True)]


def _rows_at(dataset: Dataset, indices: IntArray) -> Iterator[tuple[IntArray, list[Sample]]]:
    readers, step, start = [SourceRows(one) for one in dataset.readers], 1, 0
    while start < len(indices):
        near = indices[start : start + step]
        columns = [one.read_at(near) for one in readers]
        samples = [{name: value for part in row for name, value in part.items()} for row in zip(*columns, strict=True)]
        yield near, samples
        size_bytes = sum(_size_of(value) for sample in samples for value in sample.values())
        most = _RUN_BYTES * len(near) // max(1, size_bytes)
        step, start = max(1, min(_MOST_SAMPLES, 2 * step, most)), start + len(near)


def documents_of(source: TokenSource, start: int, stop: int) -> Iterator[tuple[int, list[TokenArray]]]:
    """Read the documents `[start, stop)` in runs of about 4 million tokens, or one longer document."""
    while start < stop:
        starts = borders_of(source, start, min(stop, start + _MOST_SAMPLES))
        count = max(1, int(np.searchsorted(starts[1:] - starts[0], RUN_TOKENS, side="right")))
        data = source.tokens(int(starts[0]), int(starts[count]))
        cuts = (starts[: count + 1] - starts[0]).tolist()
        yield start, [data[a:b] for a, b in pairwise(cuts)]
        start += count


def readable(sample: Sample, names: Collection[str] | None = None) -> dict[str, Any]:
    """Return the fields `names` (None: all) for an expression: NumPy numbers as Python's, text parts decoded.

    Parts that can't be decoded stay as they are stored.
    """
    return {name: _readable(name, value) for name, value in sample.items() if names is None or name in names}


def _readable(name: str, value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist() if value.dtype.kind in "biufU" else value
    if isinstance(value, bytes) and suffix_of(name) in _TEXT_PARTS:
        try:
            return decode_part(name, value, _PLAIN)
        except Exception:  # untrusted data
            return value
    return value


def _size_of(value: Any) -> int:
    return value.nbytes if isinstance(value, np.ndarray) else len(value) if hasattr(value, "__len__") else 8


def _name_of(source: Any) -> str:
    path = getattr(source, "path", None)
    return path if isinstance(path, str) else type(source).__name__


# --- digests ---------------------------------------------------------------------------------------------------------


Digests = NDArray[np.uint64]
"""uint64[n, 2]: upper and lower half of the digest of each sample."""


def digests_of(dataset: Dataset, start: int, stop: int, *, with_keys: bool, planes: Sequence[str] = ()) -> Digests:
    """Return uint64[stop - start, 2]: digests of the samples `[start, stop)`.

    Args:
        dataset: the dataset.
        start: first sample.
        stop: end of the range, exclusive.
        with_keys: whether the field `__key__` counts.
        planes: names of the planes of tokens that count.

    Raises:
        FormatError: a sample is damaged.
        PenstockError: a value can't be compared.
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
    """Return the 16-byte digest of a token document."""
    return xxhash.xxh3_128_digest(byte_view(np.ascontiguousarray(ids, "<u4")))


def _digests_with_planes(documents: Iterable[TokenArray], planes: Sequence[Plane], start: int) -> Iterator[bytes]:
    """Digest adjacent documents from token `start` on, each with its values in the planes."""
    for ids in documents:
        stop = start + len(ids)
        hasher = xxhash.xxh3_128(document_digest(ids))
        for plane in planes:  # values are equal whatever the dtype they are stored as
            hasher.update(byte_view(np.ascontiguousarray(plane.read(start, stop), np.float64)))
        yield hasher.digest()
        start = stop


def digest_at(dataset: Dataset, index: int, sample: Sample, *, with_keys: bool) -> bytes:
    """Return the 16-byte digest of the sample at `index`, or raise a `PenstockError` that names it."""
    try:
        return sample_digest(sample, with_keys=with_keys)
    except (TypeError, ValueError, RecursionError) as error:
        what = f"the sample at index {index} can't be compared"
        raise PenstockError(what, path=dataset.place.path, found=str(error)) from None


def sample_digest(sample: Sample, *, with_keys: bool) -> bytes:
    """Return the 16-byte digest of a sample, or raise `TypeError` or `ValueError` for a value that isn't data."""
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
    """Return the kind and the bytes of a field, which are equal for equal values."""
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
    """Return the value of a JSON part; the bytes of any other."""
    if suffix_of(name) in ("json", "jsn"):
        with contextlib.suppress(ValueError, RecursionError):
            return decode_line(data)
    return data


def _plain(value: Any) -> Any:
    """Return a value as lists, texts and numbers of JSON."""
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
