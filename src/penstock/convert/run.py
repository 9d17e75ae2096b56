"""`convert`: write a dataset in another format, and read it back to compare."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack

from penstock._keywords import Converting
from penstock.abc import Source
from penstock.convert.columns import Missing
from penstock.convert.job import ConvertReport
from penstock.convert.request import parse_request
from penstock.convert.samples import make_sample_job
from penstock.convert.tokens import make_token_job
from penstock.engine.options import RunOptions
from penstock.engine.run import run
from penstock.executors import AnyExecutor
from penstock.store.derived import keeping_nothing
from penstock.store.place import dataset_at, is_data, place_of
from penstock.types import Sample


def convert(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Source[Sample] | Iterable[Sample],
    target: str | os.PathLike[str],
    *,
    to: str | None = None,
    format: str | None = None,
    eos: Sequence[Any] | None = None,
    columns: Mapping[str, str] | Sequence[str] | None = None,
    workers: int | None = None,
    executor: AnyExecutor = "processes",
    group_rows: int | None = None,
    overwrite: bool = False,
    keep_excluded: bool = False,
    missing: Missing = "error",
    file_tokens: int | None = None,
    dry_run: bool = False,
    part: tuple[int, int] | None = None,
    finish: bool = False,
    no_work: bool = False,
    restart: bool = False,
    progress: Callable[[int, str], None] | None = None,
    **options: Unpack[Converting],
) -> ConvertReport:
    """Write the samples of `source` as a new dataset in another format, and read it back to check it.

    If interrupted, repeat the call to resume. Token ids keep the source's width; from formats with one fixed width,
    they get the width recorded for the original data, else the smallest width that fits. Several processes can write
    shards; the bytes written depend only on the source and the options.

    Args:
        source: a dataset or a list of its files; CSV or TSV files with a header; a source; or an iterable of dicts,
            which is read once.
        target: path of the dataset to write.
        to: format of the target; by default that of its suffix.
        format: format of the source; detected by default.
        eos: `("add", id)` appends an EOS token to every document, `("strip", id)` removes it. By default documents are
            unchanged.
        columns: columns of the target: name → encoding (tars and directories: part), or names. By default all columns,
            from the schema or 1000 samples.
        workers: number of processes that write; by default one per core for shards, this process for other formats.
        executor: name of an executor (see `penstock.executors`), or an executor.
        group_rows: samples that a process writes as one group. By default four shards' worth, estimated from the first
            samples.
        overwrite: replace an existing target.
        keep_excluded: also copy excluded samples, with their entries.
        missing: for samples that lack a column the target requires: `"error"`; `"skip"` leaves out and counts every
            sample that lacks a column; `"null"` writes null if the target supports it.
        file_tokens: write a directory of token files of this many tokens.
        dry_run: check everything and report what would be written, without writing.
        part: `(i, n)`: do part i (from 0) of n parts of a distributed job.
        finish: finalize the distributed job, doing missing work first.
        no_work: with `finish`, only commit if nothing is missing.
        restart: discard existing work.
        progress: called with the number of samples done and a text.
        options: `layout, eos_id, flavor, raw, trust, follow_links, read, excludes, source_split, source_separator,
            source_encoding, tokens_column, tokens_dtype, one_document, documents` for the source, as in
            `penstock.open`; `prefix_keys` puts the shard's name before each key of tars. All others are options of the
            target, as in `penstock.create`: `token_bytes=`, `size_limit=`. If the target has no splits, `split=`
            applies to the source.

    Returns:
        A report with `samples`, `tokens`, `size_bytes`, `digest`, `lost` and more.

    Raises:
        Unsupported: the target's format can't store these samples; the message says why.
        ConfigError: the target exists, an option is invalid, or unfinished work has other options.
        PrepareError, TooLarge: another run writes the target; a token id doesn't fit.
        Corrupt: reading back gave other samples than were written. The output is removed, and a replaced dataset
            restored.

    Examples:
        >>> import penstock as ps
        >>> report = ps.convert("docs.jsonl", "docs-mds", to="mds", workers=1)
        >>> report.samples
        6
        >>> ps.open("docs-mds")[0]["id"]
        'a1'
        >>> report = ps.convert("corpus.pbin", "corpus.bin", to="megatron")
        >>> ps.diff("corpus.pbin", "corpus.bin").equal
        True
    """
    follow = bool(options.get("follow_links"))
    place: Any = dataset_at(source, follow_links=follow) if is_data(source) else source
    run_options = RunOptions(
        executor, workers, part, finish, no_work, restart, dry_run, overwrite,
        keep_excluded=keep_excluded, progress=progress,
    )  # fmt: skip
    request = parse_request(
        place, place_of(target), to=to, format=format, eos=eos, columns=columns, group_rows=group_rows,
        file_tokens=file_tokens, run_options=run_options, missing=missing, options=options,
    )  # fmt: skip
    with keeping_nothing(dry_run):
        return run(make_token_job(request) if request.to.traits.tokens else make_sample_job(request))
