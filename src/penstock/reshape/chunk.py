"""Extract the k-th of n contiguous parts of a dataset, for `split`."""

from __future__ import annotations

from typing import Any

from penstock.abc import Store
from penstock.engine.options import Counter, Progress, RunOptions
from penstock.engine.run import run
from penstock.errors import ConfigError
from penstock.reshape.outputs import Output, Written
from penstock.reshape.row_job import Copy, RowJob, range_of
from penstock.reshape.rows import open_rows
from penstock.store._keeping import keeping_nothing
from penstock.store.place import Data, Given, place_of


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
    """Write one of `num_chunks` runs of documents, or of lines, as a dataset of its own; the order is kept.

    All chunks together hold every document once. Memory: 64 MiB, and 8 bytes a document.

    Args:
        source: dataset of documents, or a JSONL file.
        target: dataset to make.
        chunk_id: which chunk, from 0.
        num_chunks: how many there are; see `chunk_range`.
        to: format of the target; by default that of its suffix, else that of the source.
        format: format of the source; found by sniffing where it is None.
        token_bytes: width of the ids, where it is to be wider than that of the source.
        overwrite: replace the target.
        dry_run: refuse what would be refused, count what would be written, and write nothing.
        keep_map: write beside the target from which row of the source each is: 8 bytes each.
        keep_excluded: copy excluded samples too, with their entries: they are excluded in the output.
        store: where all files are.
        progress: called after each run.
        options: what `penstock.open` takes for the source.

    Raises:
        ConfigError: no such chunk, or an output that exists.
        FormatError: the source is damaged.
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
    """(start, stop) of a chunk: the first `num_samples % num_chunks` chunks have one sample more than the others."""
    size, longer = divmod(num_samples, num_chunks)
    start = chunk_id * size + min(chunk_id, longer)
    return start, start + size + (chunk_id < longer)


def require_chunk(chunk_id: int, num_chunks: int) -> None:
    """Refuse a chunk that does not exist; raises `ConfigError`."""
    if num_chunks < 1:
        raise ConfigError(
            "the number of chunks must be positive", found=f"num_chunks={num_chunks}", expected="1 or more"
        )
    if not 0 <= chunk_id < num_chunks:
        raise ConfigError(
            "the chunk number is out of range", found=f"chunk_id={chunk_id}", expected=f"0 to {num_chunks - 1}"
        )
