"""`split`: one dataset → several, each document or line in exactly one of them."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack, cast, get_args

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock._buffers import byte_view
from penstock._digest import derive_key
from penstock._keywords import Reshaping
from penstock.abc import Store
from penstock.engine.sharing import Sharing
from penstock.errors import ConfigError
from penstock.executors import AnyExecutor
from penstock.formats import get_format
from penstock.formats._last_files import last_file
from penstock.formats.jsonl.text import Text
from penstock.formats.tables.lines import TableLines
from penstock.order.permutation import unpermute
from penstock.reshape.chunk import chunk
from penstock.reshape.once import once_parts
from penstock.reshape.origins import Along, Seen, all_rows, recorded, refuse_along, something_goes_along
from penstock.reshape.pieces import Groups, Range, Workers, hands_for, pieces_for, ranges_of, sweep_pieces
from penstock.reshape.planes import refuse_planes
from penstock.reshape.reorder import grouped
from penstock.reshape.rewrite import (
    Counter,
    Output,
    Progress,
    Written,
    along_with,
    append_made,
    numbered,
    once_of,
    open_writer,
    rehearse,
    write_rows,
)
from penstock.reshape.rows import (
    AnyRows,
    RowsAt,
    TokenRows,
    is_tars,
    open_rows,
    read_run,
    rows_at,
    runs,
    total_units,
)
from penstock.reshape.share_rows import RowWork
from penstock.reshape.shares import How, is_shared, share
from penstock.reshape.tally import Tally
from penstock.store._keeping import keeping_nothing
from penstock.store.object_folder import take_back
from penstock.store.patterns import folder_above, is_pattern, last_part
from penstock.store.place import Data, Given, Place, place_of
from penstock.store.powers import FolderStore
from penstock.store.unfinished import Once
from penstock.types import IntArray, Manifest

By = Literal["position", "content"]

_USUAL_NAMES = {2: ("train", "validation"), 3: ("train", "validation", "test")}
_HASH_SPACE = 1 << 64

Parts = Callable[[int, int, NDArray[Any], IntArray], IntArray]
"""(first, stop, rows back to back, lengths) → int64[stop - first]: the part of each row."""


def split(
    source: Data, folder: Given, *, ratio: Sequence[float] | None = None, names: Sequence[str] | None = None,
    seed: int = 0, by: By = "position", parts: int | None = None, only: int | None = None,
    token_bytes: int | None = None, to: str | None = None, format: str | None = None,
    overwrite: bool = False, dry_run: bool = False, keep_map: bool = False, keep_excluded: bool = False,
    store: Store | None = None,
    progress: Progress | None = None, executor: AnyExecutor | None = None, workers: int | None = None,
    part: tuple[int, int] | None = None, finish: bool = False, no_work: bool = False, restart: bool = False,
    **options: Unpack[Reshaping],
) -> tuple[Written, ...]:  # fmt: skip
    """Split a dataset into parts such as train and validation, written as `folder/<stem>_<name><suffix>`.

    Each row is in exactly one part, and rows keep their order. By position, the sizes match `ratio` exactly (largest
    remainder), and the assignment depends only on the seed, the number of rows and the ratio. By content, equal
    documents go to the same part, also if documents are added later, and the sizes match on average. Each part becomes
    visible as a whole, one after another; if interrupted, repeat the call to resume. Memory: about 50 MB, 64 MiB per
    part, and 8 bytes per document.

    With `parts` and `only` in place of `ratio`, extract one of `parts` contiguous parts of equal length. The first
    parts are one longer if the length isn't divisible. `names`, `seed`, `by`, executors and distributed jobs don't
    apply.

    Args:
        source: token dataset or JSONL file.
        folder: directory for the parts. With `only`, path of the extracted part.
        ratio: relative size of each part, such as `(8, 1, 1)`.
        names: names of the parts. By default train, validation, test for two or three parts, else numbers from 0.
        seed: any integer.
        by: `"position"` or `"content"`.
        parts, only: number of contiguous parts, and the one to write, counted from 0.
        token_bytes: with `parts`, width of the token IDs if wider than in the source.
        to, format: formats of the parts and the source. By default that of the source, which is detected.
        overwrite: replace existing parts.
        dry_run: check everything and count what would be written, without writing.
        keep_map: write a row map next to each part, 8 bytes per row.
        keep_excluded: also copy excluded samples, with their entries: they are excluded in the parts.
        store: store of all files.
        progress: called after each batch of rows.
        executor, workers: how to run the work, as in `penstock.pack`. By default this process. Doesn't affect the
            output.
        part, finish, no_work, restart: distributed job, as in `penstock.pack`.
        options: options of `penstock.open` for the source.

    Returns:
        A report on each part, in the order of `ratio`.

    Raises:
        ConfigError: the ratio or names are invalid, or a part exists; then no part is written.
        FormatError: the source is damaged.

    Examples:
        >>> import penstock as ps
        >>> parts = ps.split("docs.jsonl", "parts", ratio=(2, 1))
        >>> len(ps.open("parts/docs_train.jsonl")), len(ps.open("parts/docs_validation.jsonl"))
        (4, 2)
    """
    if ratio is None:
        number, count = _checked_part(only, parts)
        assigns = (names is not None, seed != 0, by != "position", executor is not None, workers is not None)
        if any(assigns) or part is not None or finish or no_work or restart:
            raise ConfigError(
                "contiguous parts are cut by one process, without seed or names",
                hint="Leave out names=, seed=, by=, executor=, workers=, part=, finish=, no_work= and restart=",
            )
        return (
            chunk(
                source, folder, chunk_id=number, num_chunks=count, to=to, format=format, token_bytes=token_bytes,
                overwrite=overwrite, dry_run=dry_run, keep_map=keep_map, keep_excluded=keep_excluded, store=store,
                progress=progress, **options,
            ),
        )  # fmt: skip
    if parts is not None or only is not None or token_bytes is not None:
        hint = "Leave out parts=, only= and token_bytes=, or ratio="
        raise ConfigError("ratio assigns samples to parts at random, and parts cuts contiguous ones", hint=hint)
    cast(dict[str, Any], options)["keep_excluded"] = keep_excluded
    shares = _checked_shares(ratio, by)
    names = _checked_names(names, len(shares))
    dataset, target = place_of(source, store), place_of(folder, store)
    made_by = {"command": "split", "ratio": shares, "seed": seed, "by": by}
    sharing, hands = Sharing(part, finish, no_work, restart), hands_for(executor, workers, dry_run=dry_run)
    in_shares = is_shared(sharing, hands, dry_run=dry_run)
    of_tars = is_tars(dataset, format, options.get("layout"))
    if in_shares or of_tars:
        refuse_along(
            cast(dict[str, Any], options),
            keep_map,
            "tars and distributed outputs are written whole",
            by_shares=not of_tars,
        )
    if of_tars:
        from penstock.reshape.tars import require_tars, split_tars  # slow

        require_tars(to)
        places = [target.child(f"{dataset.name}_{name}") for name in names]

        def deal(count: int) -> _DealtSamples:
            by_position = ByPosition(count, shares, seed)
            return _DealtSamples(by_position if by == "position" else ByContent(shares, seed, is_tokens=False))

        told = How(sharing, hands, Counter(0, progress))
        return split_tars(dataset, places, deal, made_by, told, overwrite=overwrite, dry_run=dry_run, **options)
    with keeping_nothing(dry_run):
        rows = open_rows(dataset, format=format, **options)
    if in_shares and by == "content":
        refuse_planes([rows], "a distributed split by content doesn't keep row numbers")
    by_content = ByContent(shares, seed, isinstance(rows, TokenRows))
    assign = ByPosition(len(rows), shares, seed) if by == "position" else by_content
    work = _Work(rows, rows_at(rows, options), assign, hands, target.child(rows.place.name))
    outputs = [
        Output(place, to or rows.format, overwrite, keep_map=keep_map) for place in _places(rows, target, names, to)
    ]
    if dry_run:
        return _rehearsed(work, outputs, made_by, Counter(len(rows), progress))
    how = How(sharing, hands, Counter(len(rows), progress))
    if in_shares or (how.by_parts and not something_goes_along([rows], keep_map=keep_map)):
        laid, order = list(ranges_of(0, rows)), list[Callable[[], Iterator[IntArray]]]()
        if isinstance(assign, ByPosition):
            order = [functools.partial(assign.rows, number) for number in range(len(outputs))]
        about = ([rows], [work.rows_at], made_by, _Dealt(assign), laid, how)
        return share(RowWork(work.beside, outputs, *about, rows=order))
    return _written(work, outputs, made_by, how.counter)


@dataclass(frozen=True, slots=True)
class _Work:
    """What is dealt, how, by whom, and where what they share stands: beside the parts, under the name of the source."""

    rows: AnyRows
    rows_at: RowsAt
    parts: Parts
    workers: Workers
    beside: Place


def _written(work: _Work, outputs: Sequence[Output], made_by: dict[str, Any], counter: Counter) -> tuple[Written, ...]:
    """All parts, which a run of the same work may have made, all or some, before it was killed."""
    rows, seen = work.rows, Seen.of(len(outputs))
    made_by = recorded(made_by, [rows], keep_map=outputs[0].keep_map)
    along = [along_with(output, [rows], made_by, seen.rows(part)) for part, output in enumerate(outputs)]
    for one in along:
        one.require_possible()
    sweep_pieces(work.beside)
    known = [once_of(output, [rows], made_by) for output in outputs]
    what = made_by | {"source": rows.place.shown, "rows": len(rows), "units": total_units(rows)}
    once = once_parts(work.beside, what, known)
    there = [part.published(None) for part in known] if once.is_begun() else []
    if outputs[0].overwrite:
        pairs = zip(there, along, strict=False)
        there = [None if one is None or not goes_along.is_of(one) else one for one, goes_along in pairs]
    if all(there):
        for one, manifest in zip(along, there, strict=False):
            one.stands()
            one.settled(cast(Manifest, manifest))
    fresh = outputs[0].overwrite and not (along[0].has_list or along[0].has_planes)
    manifests = None if fresh or not all(there) else once.made()
    if manifests is None:
        for one, manifest in itertools.zip_longest(along, there):
            if manifest is not None:
                one.waits_again()
            else:
                one.stands()
        if once.is_begun():
            outputs = [_goes_on(output, part, rows) for output, part in zip(outputs, known, strict=True)]
        manifests = _deal(work, outputs, made_by, _Outputs(once, known, along, seen), counter)
    pairs = zip(outputs, manifests, strict=True)
    return tuple(Written.of(output.place, manifest, len(rows.taken_out)) for output, manifest in pairs)


def _rehearsed(
    work: _Work, outputs: Sequence[Output], made_by: dict[str, Any], counter: Counter
) -> tuple[Written, ...]:
    """What each part would hold; by position no row is read for it."""
    rows, by_position = work.rows, isinstance(work.parts, ByPosition)
    made_by = recorded(made_by, [rows], keep_map=outputs[0].keep_map)
    for output in outputs:
        along_with(output, [rows], made_by, None).require_possible()
    for output in outputs:
        rehearse(output, [rows], made_by)
    width, is_tokens = rows.dtype.itemsize, isinstance(rows, TokenRows)
    tallies = [Tally(one.to or rows.format, width, is_tokens=is_tokens) for one in outputs]
    for first, stop in runs(rows):
        nothing = np.empty(0, rows.dtype)
        data, lengths = (nothing, rows.ranges(slice(first, stop))[1]) if by_position else read_run(rows, first, stop)
        parts = work.parts(first, stop, data, lengths)
        for number, tally in enumerate(tallies):
            tally.take(lengths[parts == number])
        counter.add(stop - first)
    return tuple(Written.of(output.place, tally.commit()) for output, tally in zip(outputs, tallies, strict=True))


def _goes_on(output: Output, part: Once[Manifest], rows: AnyRows) -> Output:
    """The same output, in the place of a part that this work made before."""
    own = part.published(None) is not None
    last = last_file(output.to or rows.format, part.store, part.path)
    if own and last is not None and not isinstance(part.store, FolderStore):
        take_back(part.store, last)  # it can't be replaced in one step there
        return output
    return replace(output, overwrite=output.overwrite or own)


@dataclass(frozen=True, slots=True)
class _DealtSamples:
    """The part of each sample of tars; by content, that is the names and contents of its parts."""

    parts: Parts

    @property
    def by_content(self) -> bool:
        """Whether samples are looked at."""
        return isinstance(self.parts, ByContent)

    def __call__(self, first: int, samples: Sequence[Any], /) -> IntArray:
        """See `penstock.reshape.share_tars.Deal`."""
        if not self.by_content:
            nothing, count = np.empty(0, np.uint8), len(samples)
            return self.parts(first, first + count, nothing, np.zeros(count, np.int64))
        found = [
            b"".join(name.encode() + b"\0" + value for name, value in sample.items() if name != "__key__")
            for sample in samples
        ]
        return self.parts(first, 0, np.frombuffer(b"".join(found), np.uint8), np.array(list(map(len, found)), np.int64))


def part_counts(num_samples: int, shares: Sequence[float]) -> list[int]:
    """Samples of each part: whole numbers nearest to the shares, by largest remainder, ties to the earlier part."""
    exact = [num_samples * share / math.fsum(shares) for share in shares]
    counts = [math.floor(value) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda part: counts[part] - exact[part])
    for part in by_remainder[: num_samples - sum(counts)]:
        counts[part] += 1
    return counts


def _places(rows: AnyRows, folder: Place, names: Sequence[str], to: str | None) -> list[Place]:
    stem, dot, suffix = rows.place.name.rpartition(".")
    stem, suffix = (stem, dot + suffix) if stem else (dot + suffix, "")
    if isinstance(rows.place.store, Text | TableLines):  # several files, compressed ones, or tables
        place = rows.place
        whole = last_part(folder_above(place.absolute)) if is_pattern(place.path) else place.name
        stem, suffix = re.sub(r"(\.jsonl)?(\.\w+)?$", "", whole) or whole, ".jsonl"
    if to not in (None, rows.format):
        suffix = next(iter(get_format(to).traits.suffixes), "")
    return [folder.child(f"{stem}_{name}{suffix}") for name in names]


def _deal(
    work: _Work,
    outputs: Sequence[Output],
    made_by: dict[str, Any],
    parts: _Outputs,
    counter: Counter,
) -> tuple[Manifest, ...]:
    numbers, seen = something_goes_along([work.rows], keep_map=outputs[0].keep_map), parts.seen
    with contextlib.ExitStack() as stack:
        # All writers begin first: a part that exists is refused before anything is written.
        rows = work.rows
        writers = [stack.enter_context(open_writer(output, [rows], made_by)) for output in outputs]
        if not work.workers.are_alone:
            with pieces_for(work.workers, work.beside) as pieces:
                deal = _Dealt(work.parts, len(outputs) if numbers else 0)
                made = pieces.made([work.rows_at], deal, ranges_of(0, rows), rows.dtype.itemsize)
                append_made(made, writers, [rows], counter, seen)
        for first, stop in runs(rows) if work.workers.are_alone else ():
            for part, data, lengths in _dealt(rows, work.parts, first, stop, len(outputs) if numbers else 0):
                if part < len(outputs):
                    write_rows(writers[part], rows, data, lengths)
                else:
                    seen.parts[part - len(outputs)].append(lengths)
            counter.add(stop - first)
        for one, known in zip(parts.along, parts.known, strict=True):
            stack.enter_context(one.written(known.published))
        pairs = list(zip(parts.along, writers, strict=True))
        return parts.once.commit(lambda: tuple(one.settled(writer.commit()) for one, writer in pairs), goes_on=True)


@dataclass(frozen=True, slots=True)
class _Outputs:
    """All parts as one piece of work, each by itself, what goes along with each, and its rows."""

    once: Once[tuple[Manifest, ...]]
    known: Sequence[Once[Manifest]]
    along: Sequence[Along]
    seen: Seen


def _dealt(rows: AnyRows, parts: Parts, first: int, stop: int, count: int) -> Groups:
    """The rows of one run by part; where their numbers are wanted, `count` is that of the parts, else 0."""
    data, lengths = read_run(rows, first, stop)
    groups = parts(first, stop, data, lengths)
    found = grouped(data, lengths, groups)
    return numbered(found, first, groups, count) if count else found


@dataclass(frozen=True, slots=True)
class _Dealt:
    """What a worker does: gives the rows of a range by part."""

    parts: Parts
    count: int = 0

    def __call__(self, rows: AnyRows, task: Range, /) -> Groups:
        for first, stop in runs(rows, task.first, task.stop):
            yield from _dealt(rows, self.parts, first, stop, self.count)


@dataclass(frozen=True, slots=True)
class ByPosition:
    """Parts by the numbers of rows; see `split`."""

    num_samples: int
    shares: Sequence[float]
    seed: int

    def __call__(self, first: int, stop: int, _data: NDArray[Any], _lengths: IntArray, /) -> IntArray:
        """int64[stop - first]: the part of each row."""
        borders = np.cumsum(part_counts(self.num_samples, self.shares))
        places = unpermute(np.arange(first, stop), self.num_samples, derive_key(self.seed, "split"))
        return np.searchsorted(borders, places, side="right")

    def rows(self, part: int) -> Iterator[IntArray]:
        """int64[k] each: the rows of a part, in order."""
        nothing = np.empty(0, np.int64)
        for run in all_rows(0, self.num_samples):
            yield run[self(int(run[0]), int(run[-1]) + 1, nothing, nothing) == part]


@dataclass(frozen=True, slots=True)
class ByContent:
    """Parts by what is in rows; see `split`."""

    shares: Sequence[float]
    seed: int
    is_tokens: bool

    def __call__(self, _first: int, _stop: int, data: NDArray[Any], lengths: IntArray, /) -> IntArray:
        """int64[k]: the part of each row."""
        shares, key = self.shares, derive_key(self.seed, "split by content")
        total = math.fsum(shares)
        sums = [math.fsum(shares[: part + 1]) for part in range(len(shares) - 1)]
        borders = np.array([min(int(one / total * _HASH_SPACE), _HASH_SPACE - 1) for one in sums], np.uint64)
        # As 4-byte ids, so that the width of the tokens decides nothing.
        hashed = "<u4" if self.is_tokens else "<u1"
        view = byte_view(data.astype(hashed, copy=False))
        stops = np.cumsum(lengths) * np.dtype(hashed).itemsize
        digests = np.empty(len(lengths), np.uint64)
        start = 0
        for row, end in enumerate(stops.tolist()):
            digests[row] = xxhash.xxh3_64_intdigest(view[start:end], key)
            start = end
        return np.searchsorted(borders, digests, side="right")


def _checked_part(only: int | None, parts: int | None) -> tuple[int, int]:
    """Return which of how many contiguous parts is asked for; raises `ConfigError` if there is no such part."""
    if only is None or parts is None:
        raise ConfigError("unknown how to split", hint="Give ratio=, or both parts= and only=")
    if parts < 1:
        raise ConfigError("no parts at all", found=parts, expected="1 or more")
    if not 0 <= only < parts:
        raise ConfigError("no such part", found=only, expected=f"0 to {parts - 1}")
    return only, parts


def _checked_shares(ratio: Sequence[float], by: str) -> list[float]:
    if by not in get_args(By):
        raise ConfigError("unknown way to split", found=by, expected=" | ".join(get_args(By)))
    shares = list(ratio)
    if len(shares) < 2 or not all(math.isfinite(share) and share >= 0 for share in shares) or not any(shares):
        raise ConfigError(
            "not a split ratio",
            found=",".join(f"{share:g}" for share in shares) or "none",
            expected="two or more numbers, none negative, such as 8,1,1",
        )
    return shares


def _checked_names(names: Sequence[str] | None, count: int) -> Sequence[str]:
    if names is None:
        return _USUAL_NAMES.get(count) or [str(part) for part in range(count)]
    wrong = [name for name in names if not name or "/" in name or name in (".", "..")]
    if len(names) != count or len(set(names)) != count or wrong:
        raise ConfigError(
            "invalid names of the parts", found=", ".join(names), expected=f"{count} different file names"
        )
    return names
