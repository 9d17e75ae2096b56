"""`split`: one dataset → several, each document or line in exactly one of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Unpack, cast, get_args

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock._arrays import byte_view
from penstock._digest import derive_key
from penstock._keywords import Reshaping
from penstock.engine.options import Counter, Progress, RunOptions
from penstock.engine.rows import StoredRows
from penstock.engine.run import run
from penstock.errors import ConfigError
from penstock.executors import AnyExecutor
from penstock.formats import get_format
from penstock.formats.jsonl.text import Text
from penstock.formats.tables.lines import TableLines
from penstock.order.permutation import unpermute
from penstock.reshape.outputs import Output, Written
from penstock.reshape.row_job import Copy, Deal, RowJob, RowRange, Run, range_of, ranges_of
from penstock.reshape.rows import TokenRows, is_tars, open_rows
from penstock.reshape.sidecars import refuse_sidecars
from penstock.store.base import Store
from penstock.store.derived import keeping_nothing
from penstock.store.patterns import folder_above, is_pattern, last_part
from penstock.store.place import Data, Given, Place, place_of
from penstock.types import IntArray


def chunk(
    source: Data,
    target: Given,
    *,
    chunk_id: int,
    num_chunks: int,
    to: str | None = None,
    format: str | None = None,
    token_bytes: int | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    keep_map: bool = False,
    keep_excluded: bool = False,
    store: Store | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Written:
    """Write one of `num_chunks` contiguous runs of rows as a dataset. Memory: 64 MiB, and 8 bytes per document.

    Arguments as of `split`; raises `ConfigError` for a chunk that doesn't exist, or an output that exists.
    """
    options["keep_excluded"] = keep_excluded
    require_chunk(chunk_id, num_chunks)
    with keeping_nothing(dry_run):
        rows, place = open_rows(source, format=format, store=store, **options), place_of(target, store).bare()
    first, stop = chunk_range(len(rows), chunk_id, num_chunks)
    how = RunOptions(
        dry_run=dry_run, overwrite=overwrite, keep_map=keep_map, keep_excluded=keep_excluded, progress=progress
    )
    (written,) = run(
        RowJob(
            output=place,
            outputs=[Output(place, to, token_bytes)],
            options=how,
            counter=Counter(stop - first, progress),
            sources=[rows],
            opened_with=options,
            command={"command": "chunk", "chunk_id": chunk_id, "num_chunks": num_chunks},
            make=Copy(),
            laid=[range_of(0, rows, first, stop)],
        )
    )
    return written


def chunk_range(num_samples: int, chunk_id: int, num_chunks: int) -> tuple[int, int]:
    """Return (start, stop) of a chunk; the first `num_samples % num_chunks` chunks are one longer."""
    size, longer = divmod(num_samples, num_chunks)
    start = chunk_id * size + min(chunk_id, longer)
    return start, start + size + (chunk_id < longer)


def require_chunk(chunk_id: int, num_chunks: int) -> None:
    if num_chunks < 1:
        raise ConfigError(
            "the number of chunks must be positive", found=f"num_chunks={num_chunks}", expected="1 or more"
        )
    if not 0 <= chunk_id < num_chunks:
        raise ConfigError(
            "the chunk number is out of range", found=f"chunk_id={chunk_id}", expected=f"0 to {num_chunks - 1}"
        )


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
    remainder), and the assignment depends only on the seed, the number of rows and the ratio. By content, identical
    rows (of JSONL: whole lines) go to the same part, also if rows are added later, and the sizes match on average. Each
    part becomes visible as a whole, one after another; if interrupted, repeat the call to resume. Memory: about 50 MB,
    64 MiB per part, and 8 bytes per document.

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
        parts: number of contiguous parts.
        only: number of the part to write, from 0.
        token_bytes: with `parts`, width of the token IDs if wider than in the source.
        to: format of the parts; by default that of the source.
        format: format of the source; detected by default.
        overwrite: replace existing parts.
        dry_run: check everything and count what would be written, without writing.
        keep_map: write a row map next to each part, 8 bytes per row.
        keep_excluded: also copy excluded samples, with their entries: they are excluded in the parts.
        store: store of all files.
        progress: called after each batch of rows.
        executor: how to run the work, as in `penstock.pack`. By default this process. Doesn't affect the output.
        workers: number of workers, as in `penstock.pack`.
        part: `(i, n)`: do part i (from 0) of n parts of a distributed job, as in `penstock.pack`.
        finish: finalize the distributed job, doing missing work first.
        no_work: with `finish`, only commit if nothing is missing.
        restart: discard existing work.
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
    command = {"command": "split", "ratio": shares, "seed": seed, "by": by}
    how = RunOptions(
        executor, workers, part, finish, no_work, restart, dry_run, overwrite, keep_map, keep_excluded, progress
    )
    if is_tars(dataset, format, options.get("layout")):
        refuse_sidecars(cast(dict[str, Any], options), keep_map, "tars are written whole")
        from penstock.reshape.tars import require_tars, split_tars  # slow

        require_tars(to)
        places = [target.child(f"{dataset.name}_{name}") for name in names]

        def deal(count: int) -> _DealtSamples:
            by_position = ByPosition(count, shares, seed)
            return _DealtSamples(by_position if by == "position" else ByContent(shares, seed, is_tokens=False))

        return split_tars(dataset, places, deal, command, how, **options)
    with keeping_nothing(dry_run):
        rows = open_rows(dataset, format=format, **options)
    by_content = ByContent(shares, seed, isinstance(rows, TokenRows))
    to_part = ByPosition(len(rows), shares, seed) if by == "position" else by_content
    return run(
        RowJob(
            output=target.child(rows.place.name),
            outputs=[Output(place, to or rows.format) for place in _places(rows, target, names, to)],
            options=how,
            counter=Counter(len(rows), progress),
            sources=[rows],
            opened_with=options,
            command=command,
            make=Deal(to_part),
            laid=list(ranges_of(0, rows)),
        )
    )


@dataclass(frozen=True, slots=True)
class _DealtSamples:
    """The part of each sample of tars; by content, that is the names and contents of its files."""

    parts: Parts

    @property
    def by_content(self) -> bool:
        return isinstance(self.parts, ByContent)

    def __call__(self, first: int, samples: Sequence[Any], /) -> IntArray:
        if not self.by_content:
            nothing, count = np.empty(0, np.uint8), len(samples)
            return self.parts(first, first + count, nothing, np.zeros(count, np.int64))
        found = [
            b"".join(name.encode() + b"\0" + value for name, value in sample.items() if name != "__key__")
            for sample in samples
        ]
        return self.parts(first, 0, np.frombuffer(b"".join(found), np.uint8), np.array(list(map(len, found)), np.int64))


def part_counts(num_samples: int, shares: Sequence[float]) -> list[int]:
    """Return the samples of each part by largest remainder, ties to the earlier part."""
    exact = [num_samples * share / math.fsum(shares) for share in shares]
    counts = [math.floor(value) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda part: counts[part] - exact[part])
    for part in by_remainder[: num_samples - sum(counts)]:
        counts[part] += 1
    return counts


def _places(rows: StoredRows, folder: Place, names: Sequence[str], to: str | None) -> list[Place]:
    stem, dot, suffix = rows.place.name.rpartition(".")
    stem, suffix = (stem, dot + suffix) if stem else (dot + suffix, "")
    if isinstance(rows.place.store, Text | TableLines):  # several files, compressed ones, or tables
        place = rows.place
        whole = last_part(folder_above(place.absolute)) if is_pattern(place.path) else place.name
        stem, suffix = re.sub(r"(\.jsonl)?(\.\w+)?$", "", whole) or whole, ".jsonl"
    if to not in (None, rows.format):
        suffix = next(iter(get_format(to).traits.suffixes), "")
    return [folder.child(f"{stem}_{name}{suffix}") for name in names]


@dataclass(frozen=True, slots=True)
class ByPosition:
    """Parts by the numbers of rows; see `split`."""

    num_samples: int
    shares: Sequence[float]
    seed: int
    by_content = False

    def assign(self, rows: StoredRows, task: RowRange, run: Run) -> IntArray:
        return self(run.first, run.stop, run.data, run.lengths)

    def __call__(self, first: int, stop: int, _data: NDArray[Any], _lengths: IntArray, /) -> IntArray:
        borders = np.cumsum(part_counts(self.num_samples, self.shares))
        places = unpermute(np.arange(first, stop), self.num_samples, derive_key(self.seed, "split"))
        return np.searchsorted(borders, places, side="right")


@dataclass(frozen=True, slots=True)
class ByContent:
    """Parts by the content of rows; see `split`."""

    shares: Sequence[float]
    seed: int
    is_tokens: bool
    by_content = True

    def assign(self, rows: StoredRows, task: RowRange, run: Run) -> IntArray:
        return self(run.first, run.stop, run.data, run.lengths)

    def __call__(self, _first: int, _stop: int, data: NDArray[Any], lengths: IntArray, /) -> IntArray:
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
    if only is None or parts is None:
        raise ConfigError(
            "specify a ratio or a part", hint="Pass --ratio (ratio=), or both --parts (parts=) and --only (only=)"
        )
    if parts < 1:
        raise ConfigError("the number of parts is too small", found=parts, expected="1 or more")
    if not 0 <= only < parts:
        raise ConfigError("the part is out of range", found=only, expected=f"0 to {parts - 1}")
    return only, parts


def _checked_shares(ratio: Sequence[float], by: str) -> list[float]:
    if by not in get_args(By):
        raise ConfigError("unknown value for by", found=by, expected=" | ".join(get_args(By)))
    shares = list(ratio)
    if len(shares) < 2 or not all(math.isfinite(share) and share >= 0 for share in shares) or not any(shares):
        raise ConfigError(
            "invalid split ratio",
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
