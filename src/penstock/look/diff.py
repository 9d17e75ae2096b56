"""`diff`: compare the samples of two datasets of any format, by digests.

Digests are in scratch files of the cache folder, 16 bytes per sample. To compare them in order, both files are read
once. To compare them as sets, they are cut by their upper bits into parts of about 2 million digests, and each part is
collected in one pass over both files. Equal digests become one row with counts, so repeated samples take no memory.
About 400 MB are used for any size.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Unpack, get_args

import numpy as np
from numpy.typing import NDArray

from penstock._access import place_of
from penstock._keywords import Opening, with_options
from penstock._secrets import redacted_repr
from penstock._tokens import planes_of
from penstock.convert.rows import KEY
from penstock.engine.options import Counter, Progress, RunOptions
from penstock.engine.run import open_pool
from penstock.errors import ConfigError
from penstock.executors import AnyExecutor
from penstock.look.samples import (
    Dataset,
    Digests,
    Stretch,
    Target,
    content,
    digests_of,
    open_dataset,
    samples_of,
    stretches,
)
from penstock.store.derived import DerivedCache
from penstock.store.place import Given
from penstock.types import IntArray, Manifest, Sample

As = Literal["sequence", "set"]

FIRST = 10
"""Number of differing samples to show."""

_LOOKED_AT = 100
_SHOWN_CHARACTERS = 120
_SHOWN_TOKENS = 16
_PRELOAD = ("penstock.look.diff",)


@redacted_repr
@dataclass(frozen=True, slots=True)
class FirstDifference:
    """Sample without a partner, or a pair of samples that differ.

    Attributes:
        index_a, index_b: index on each side; None if that side has no such sample.
        key_a, key_b: key on each side, if there is one.
        fields: fields that differ, if both sides have a sample.
        a, b: abbreviated content; of a pair, only the fields that differ.
    """

    index_a: int | None
    index_b: int | None
    key_a: str | None = None
    key_b: str | None = None
    fields: tuple[str, ...] = ()
    a: Mapping[str, str] | None = None
    b: Mapping[str, str] | None = None


@redacted_repr
@dataclass(frozen=True, slots=True)
class SchemaDifference:
    """Fields of both datasets: name → kind, from the first 100 samples if the schema is open.

    Attributes:
        equal: whether both have fields of the same names. Kinds differ between formats.
        a, b: the fields.
    """

    equal: bool
    a: Mapping[str, str]
    b: Mapping[str, str]


@redacted_repr
@dataclass(frozen=True, slots=True)
class DiffReport:
    """Result of `diff`.

    Attributes:
        equal: whether both datasets contain the same samples, in the same order unless they were compared as sets.
        schema: fields of both. Only planes of tokens count as a difference.
        only_in_a, only_in_b: number of samples that are missing on the other side, whatever their position. A repeated
            sample is counted each time.
        first_differences: the first differences. If the samples are the same in another order, the first positions that
            differ.
        num_a, num_b: number of samples.
        by: `"samples"` if they were read, or `"side files"` if their digests are equal and no sample was read.
    """

    equal: bool
    schema: SchemaDifference
    only_in_a: int
    only_in_b: int
    first_differences: tuple[FirstDifference, ...]
    num_a: int
    num_b: int
    by: str
    num_reordered: int = 0
    """Positions that differ if both hold the same samples in different orders; 0 otherwise."""
    planes_only_in_a: tuple[str, ...] = ()
    planes_only_in_b: tuple[str, ...] = ()
    """Planes of tokens, such as a loss mask, that the other side lacks, so that both aren't equal. `planes=None`
    compares only the ids."""


@with_options(Opening, strict=True)
def diff(
    a: Target, b: Target, *, compare_as: As = "sequence",
    format: str | None = None,
    excludes_a: Given | Literal[False] | None = None, excludes_b: Given | Literal[False] | None = None,
    progress: Progress | None = None, executor: AnyExecutor | None = None, workers: int | None = None,
    **opening: Unpack[Opening],
) -> DiffReport:  # fmt: skip
    """Compare the samples of two datasets, which may have different formats.

    Each sample is compared by a digest that is independent of the format. Excluded samples are ignored on both sides,
    as if they had been purged. Planes of tokens, such as loss masks, are compared too, unless `planes=None`.

    If the digests in both side files are equal, no sample is read; `penstock.verify` with `depth="full"` checks data
    against its side file. Memory: about 500 MB for any size, and 100 MB per worker. Scratch files in the cache folder
    take 16 bytes per sample.

    Args:
        a: path, URL, list of JSONL files, or source.
        b: the other dataset; both must contain token documents, or both samples.
        compare_as: `"sequence"` compares the order too, `"set"` doesn't. Repeated samples are counted.
        format: format of both; detected by default.
        excludes_a: exclude list of `a`, as `excludes` in `penstock.open`.
        excludes_b: exclude list of `b`.
        progress: called with the number of samples read and the total.
        executor: how to run the work, as in `penstock.pack`. By default this process.
        workers: number of workers, as in `penstock.pack`.
        opening: options of `penstock.open` for both.

    Returns:
        A report with `equal`, `only_in_a`, `only_in_b`, `first_differences` and more.

    Raises:
        ConfigError: one side has token documents and the other samples, or `compare_as` is unknown.
        NotFound: a dataset doesn't exist.
        FormatError: a sample is damaged.
        PenstockError: a sample contains a value that can't be compared.

    Examples:
        >>> import penstock as ps
        >>> ps.diff("corpus.pbin", "corpus.pbin").equal
        True
        >>> report = ps.diff("corpus.pbin", "code.pbin")
        >>> report.equal, report.only_in_a, report.only_in_b
        (False, 6, 4)
    """
    if compare_as not in get_args(As):
        raise ConfigError("unknown way to compare", found=compare_as, expected=" | ".join(get_args(As)))
    if "excludes" in opening:
        raise ConfigError("each dataset has its own exclude list", hint="Pass excludes_a= and excludes_b=")
    options: dict[str, Any] = {"format": format, **opening}
    lists = (a, excludes_a), (b, excludes_b)
    one, other = (open_dataset(side, options | {"excludes": listed}, leave_out=True) for side, listed in lists)
    sides = one, other
    if (sides[0].tokens is None) != (sides[1].tokens is None):
        what = "token documents and samples can't be compared"
        hint = "Pack the samples with the same tokenizer, and compare the documents"
        raise ConfigError(what, path=sides[1].place.path, hint=hint)
    schema = _schemas(*sides)
    counts = len(sides[0]), len(sides[1])
    names = [planes_of(side.tokens) for side in sides]
    common = tuple(sorted(names[0].keys() & names[1].keys()))
    only_a, only_b = sorted(names[0].keys() - names[1].keys()), sorted(names[1].keys() - names[0].keys())
    lacking = tuple(only_a), tuple(only_b)
    if _are_same_by_side_files(*sides, common):
        return DiffReport(not any(lacking), schema, 0, 0, (), *counts, "side files", 0, *lacking)
    with_keys = KEY in schema.a and KEY in schema.b
    digests = _all_digests(sides, with_keys, common, RunOptions(executor, workers, progress=progress))
    ordered = compare_in_order(*digests, FIRST) if compare_as == "sequence" else None
    if ordered is not None and not (ordered.only_in_a or ordered.only_in_b):
        return DiffReport(not any(lacking), schema, 0, 0, (), *counts, "samples", 0, *lacking)
    found = compare_as_sets(*digests, FIRST)
    is_same_set = not (found.only_in_a or found.only_in_b)
    num_missing = found.only_in_a, found.only_in_b
    # Positions are more informative than sets, unless a shift or another order makes most of them differ.
    by_position = ordered is not None and (is_same_set or num_missing == (ordered.only_in_a, ordered.only_in_b))
    listed = ordered if ordered is not None and by_position else found
    pairs = _pairs(listed.first_in_a.tolist(), listed.first_in_b.tolist(), in_order=ordered is not None)
    first = tuple(_shown(*sides, *pair, with_keys=with_keys) for pair in pairs)
    num_reordered = ordered.only_in_a if ordered is not None and is_same_set else 0
    equal = is_same_set and not num_reordered and not any(lacking)
    rest = (first, *counts, "samples", num_reordered, *lacking)
    return DiffReport(equal, schema, found.only_in_a, found.only_in_b, *rest)


def _are_same_by_side_files(a: Dataset, b: Dataset, planes: Collection[str]) -> bool:
    """Return whether both side files record the same documents and planes, or the same bytes of the same format."""
    one, other = (_manifest_of(side) for side in (a, b))
    if one is None or other is None or len(a) != len(b):
        return False
    if a.tokens is not None:
        recorded = [side.planes or {} for side in (one, other)]
        same_planes = all(name in recorded[0] and recorded[0][name] == recorded[1].get(name) for name in planes)
        return one.digest is not None and one.digest == other.digest and same_planes
    blocks = [sorted(side.block_digests.values()) for side in (one, other)]
    names_count = len(blocks[0]) > 1 and one.block_digests != other.block_digests
    same = (one.format, one.size_bytes) == (other.format, other.size_bytes)
    return same and bool(blocks[0]) and blocks[0] == blocks[1] and not names_count


def _manifest_of(dataset: Dataset) -> Manifest | None:
    """Return the side file; None if the source has only some of its samples."""
    manifest = None if dataset.source.children() else getattr(dataset.source, "manifest", None)
    return manifest if isinstance(manifest, Manifest) and manifest.num_samples == len(dataset) else None


def _schemas(a: Dataset, b: Dataset) -> SchemaDifference:
    one, other = _fields_of(a), _fields_of(b)
    return SchemaDifference(one.keys() - {KEY} == other.keys() - {KEY}, one, other)


def _fields_of(dataset: Dataset) -> dict[str, str]:
    schema = dataset.source.schema
    known = {one.name: one.kind for one in schema.fields}
    if schema.open and dataset.tokens is None:
        for _, samples in samples_of(dataset, 0, min(_LOOKED_AT, len(dataset))):
            for sample in samples:
                known |= {name: type(value).__name__ for name, value in sample.items() if name not in known}
    return known


# --- reading -------------------------------------------------------------------------------------------------------


def _digest(sides: tuple[Dataset, Dataset], with_keys: bool, planes: tuple[str, ...], task: Stretch) -> bytes:
    return digests_of(sides[task.side], task.start, task.stop, with_keys=with_keys, planes=planes).tobytes()


def _all_digests(
    sides: tuple[Dataset, Dataset], with_keys: bool, planes: tuple[str, ...], options: RunOptions
) -> tuple[Digests, Digests]:
    scratch = DerivedCache().scratch
    found = [scratch(2 * len(side), "u8").reshape(-1, 2) for side in sides]
    tasks = [one for number, side in enumerate(sides) for one in stretches(side, number)]
    counter = Counter(sum(map(len, sides)), options.progress)
    reads = [*sides[0].reads, *sides[1].reads]
    digest = functools.partial(_digest, sides, with_keys, planes)
    with open_pool(options, _PRELOAD, most=max(1, len(tasks)), reads=reads) as pool:
        for task, data in zip(tasks, pool.map(digest, tasks), strict=True):
            found[task.side][task.start : task.stop] = np.frombuffer(data, np.uint64).reshape(-1, 2)
            counter.add(task.stop - task.start)
    return found[0], found[1]


# --- differences --------------------------------------------------------------------------------------------------


def _pairs(a: list[int], b: list[int], *, in_order: bool) -> list[tuple[int | None, int | None]]:
    """Return indices in A and B; with `in_order`, those of one position together."""
    if not in_order:
        half = FIRST - min(len(b), FIRST // 2)
        pairs: list[tuple[int | None, int | None]] = [(index, None) for index in a[:half]]
        return [*pairs, *((None, index) for index in b[: FIRST - len(pairs)])]
    inside_a, inside_b = set(a), set(b)
    places = sorted(inside_a | inside_b)[:FIRST]
    return [(one if one in inside_a else None, one if one in inside_b else None) for one in places]


def _shown(a: Dataset, b: Dataset, index_a: int | None, index_b: int | None, *, with_keys: bool) -> FirstDifference:
    one, other = _sample(a, index_a, with_keys), _sample(b, index_b, with_keys)
    fields: tuple[str, ...] = ()
    if one is not None and other is not None:
        names = sorted(one.keys() | other.keys())
        fields = tuple(name for name in names if _same(name, one.get(name)) != _same(name, other.get(name)))
    return FirstDifference(
        index_a,
        index_b,
        None if index_a is None else place_of(a.source, index_a).key,
        None if index_b is None else place_of(b.source, index_b).key,
        fields,
        _brief(one, fields),
        _brief(other, fields),
    )


def _sample(dataset: Dataset, index: int | None, with_keys: bool) -> Sample | None:
    if index is None:
        return None
    if dataset.tokens is not None:
        return dataset.source[index]
    [(_, [sample])] = samples_of(dataset, index, index + 1)
    return {name: value for name, value in sample.items() if with_keys or name != KEY}


def _same(name: str, value: Any) -> Any:
    """Return a value that is equal for values of equal digests."""
    return None if value is None else content(name, value)


def _brief(sample: Sample | None, fields: tuple[str, ...]) -> dict[str, str] | None:
    if sample is None:
        return None
    return {name: _short(value) for name, value in sample.items() if not fields or name in fields}


def _short(value: Any) -> str:
    if isinstance(value, bytes):
        value = (
            value.decode("utf-8", "backslashreplace") if value[:_SHOWN_CHARACTERS].isascii() else f"{len(value)} bytes"
        )
    if isinstance(value, np.ndarray):
        more = " …" if value.size > _SHOWN_TOKENS else ""
        return f"{value.dtype.name}{list(value.shape)} {value.ravel()[:_SHOWN_TOKENS].tolist()}{more}"
    value = value.item() if isinstance(value, np.generic) else value
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


# --- comparison of digests -------------------------------------------------------------------------------------------


_RUN = 1 << 20
_PART = 1 << 21
_TABLE_BITS = 16


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of two datasets.

    Attributes:
        only_in_a, only_in_b: number of samples without a partner on the other side.
        first_in_a, first_in_b: int64[k], increasing: indices of the first of them.
    """

    only_in_a: int
    only_in_b: int
    first_in_a: IntArray
    first_in_b: IntArray


def compare_in_order(a: Digests, b: Digests, most: int) -> Difference:
    """Compare uint64[n, 2] digests position by position; return at most `most` indices."""
    both, differing = min(len(a), len(b)), 0
    first: list[int] = []
    for start in range(0, both, _RUN):
        stop = min(both, start + _RUN)
        places = np.flatnonzero((a[start:stop] != b[start:stop]).any(1))
        differing += len(places)
        first += (places[: most - len(first)] + start).tolist()
    more = [list(range(both, min(len(one), both + most - len(first)))) for one in (a, b)]
    in_a, in_b = (np.array(first + one, np.int64) for one in more)
    return Difference(differing + len(a) - both, differing + len(b) - both, in_a, in_b)


def compare_as_sets(a: Digests, b: Digests, most: int) -> Difference:
    """Compare digests in any order. Each sample has at most one partner; the index of equal samples is the first."""
    only_in_a = only_in_b = 0
    first_in_a = first_in_b = np.empty(0, np.int64)
    for low, high in _parts(_table(a) + _table(b)):
        part = _gathered(a, b, low, high)
        more, less = part.in_a > part.in_b, part.in_b > part.in_a
        only_in_a += int((part.in_a - part.in_b)[more].sum())
        only_in_b += int((part.in_b - part.in_a)[less].sum())
        first_in_a = np.sort(np.concatenate([first_in_a, part.first_in_a[more]]))[:most]
        first_in_b = np.sort(np.concatenate([first_in_b, part.first_in_b[less]]))[:most]
    return Difference(only_in_a, only_in_b, first_in_a, first_in_b)


@dataclass(frozen=True, slots=True)
class _Counted:
    """Distinct digests uint64[n, 2] with int64[n] counts and first indices, which are valid if the count isn't 0."""

    digests: Digests
    in_a: IntArray
    in_b: IntArray
    first_in_a: IntArray
    first_in_b: IntArray


_NEVER = np.iinfo(np.int64).max


def _gathered(a: Digests, b: Digests, low: int, high: int) -> _Counted:
    """Return the rows whose upper bits are in `[low, high)`."""
    parts: list[_Counted] = []
    held = 0
    for side, digests in enumerate((a, b)):
        for start in range(0, len(digests), _RUN):
            run = digests[start : start + _RUN]
            upper = run[:, 0] >> np.uint64(64 - _TABLE_BITS)
            places = np.flatnonzero((upper >= low) & (upper < high))
            if not len(places):
                continue
            ones, none = np.ones(len(places), np.int64), np.zeros(len(places), np.int64)
            here, nowhere = places + start, np.full(len(places), _NEVER)
            counts = (ones, none, here, nowhere) if side == 0 else (none, ones, nowhere, here)
            parts.append(_Counted(run[places], *counts))
            held += len(places)
            if held > _PART:  # this many rows must be repeats of one sample
                parts = [_reduced(parts)]
                held = len(parts[0].digests)
    return _reduced(parts)


def _reduced(parts: list[_Counted]) -> _Counted:
    """Merge rows with equal digests."""
    digests = np.concatenate([np.empty((0, 2), np.uint64), *(one.digests for one in parts)])
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    digests = digests[order]
    is_first = np.ones(len(digests), np.bool_)
    is_first[1:] = (digests[1:] != digests[:-1]).any(1)
    groups = np.flatnonzero(is_first)

    def each(columns: list[IntArray], function: np.ufunc) -> NDArray[np.int64]:
        if not len(groups):
            return np.empty(0, np.int64)
        return function.reduceat(np.concatenate(columns)[order], groups)

    return _Counted(
        digests[groups],
        each([one.in_a for one in parts], np.add),
        each([one.in_b for one in parts], np.add),
        each([one.first_in_a for one in parts], np.minimum),
        each([one.first_in_b for one in parts], np.minimum),
    )


def _table(digests: Digests) -> IntArray:
    """Return int64[2^16]: number of digests by their upper bits."""
    table = np.zeros(1 << _TABLE_BITS, np.int64)
    for start in range(0, len(digests), _RUN):
        upper = (digests[start : start + _RUN, 0] >> np.uint64(64 - _TABLE_BITS)).astype(np.int64)
        table += np.bincount(upper, minlength=len(table))
    return table


def _parts(table: IntArray) -> Iterator[tuple[int, int]]:
    """Return ranges of the upper bits, each with at most `_PART` digests or one value."""
    ends = np.cumsum(table)
    low, before = 0, 0
    while low < len(table):
        high = max(low + 1, int(np.searchsorted(ends, before + _PART, side="right")))
        yield low, high
        low, before = high, int(ends[high - 1])
