"""`merge`: many datasets → one, in the order in which they are given."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack, cast

from penstock._keywords import Reshaping
from penstock._printable import path_as_given
from penstock._secrets import redacted_repr
from penstock.codec.joined_digest import join_digests
from penstock.engine.options import Counter, Progress, RunOptions
from penstock.engine.rows import InPlace, StoredRows
from penstock.engine.run import run
from penstock.errors import ConfigError
from penstock.executors import AnyExecutor
from penstock.formats.shards.merge import merge_parts
from penstock.formats.shards.source import registered_name
from penstock.reshape.dataset_job import DatasetJob
from penstock.reshape.outputs import Output, Written, excluded_in
from penstock.reshape.row_job import Copy, RowJob, RowRange, range_of, ranges_of
from penstock.reshape.rows import SampleRows, TokenRows, in_place, is_tars, open_rows
from penstock.reshape.shards import ShardCopyJob
from penstock.reshape.sidecars import has_sidecars, refuse_sidecars
from penstock.store.base import Store
from penstock.store.derived import keeping_nothing
from penstock.store.patterns import require_no_lists
from penstock.store.place import Given, Place, distinct_names, place_of


@redacted_repr
@dataclass(frozen=True, slots=True)
class MergeReport:
    """Result of `merge`.

    Attributes:
        output: the dataset written.
        inputs: number of samples of each input, in order.
        shards: number of shards in the index, with `no_copy`; else None.
    """

    output: Written
    inputs: tuple[tuple[str, int], ...]
    shards: int | None = None


def merge(
    sources: Sequence[Given], target: Given, *, to: str | None = None, format: str | None = None,
    token_bytes: int | None = None, mix_tokenizers: bool = False, no_copy: bool = False,
    overwrite: bool = False, dry_run: bool = False, keep_map: bool = False, keep_excluded: bool = False,
    store: Store | None = None,
    progress: Progress | None = None, executor: AnyExecutor | None = None, workers: int | None = None,
    part: tuple[int, int] | None = None, finish: bool = False, no_work: bool = False, restart: bool = False,
    **options: Unpack[Reshaping],
) -> MergeReport:  # fmt: skip
    """Write all documents, lines or samples of several datasets as one dataset.

    Tokens and lines are copied unchanged; if formats and token widths agree, the kernel copies them. A last line
    without a line end gets one. Shards of samples are copied whole and renumbered. If the side files of all sources
    contain version-2 document digests, the digests are merged too. Memory: 64 MiB, and 8 bytes per document.

    Args:
        sources: token datasets of any formats, or JSONL files, or datasets of shards.
        target: path of the dataset to write.
        to: its format. By default that of the target's suffix, else that of the first source.
        format: format of the sources; detected by default.
        token_bytes: bytes per token id, if wider than in the sources.
        mix_tokenizers: accept sources with different tokenizers or EOS ids.
        no_copy: leave the shards where they are, below the target, and only write one index of all of them.
        overwrite: replace an existing target.
        dry_run: check everything and count what would be written, without writing.
        keep_map: write a row map next to the target, 8 bytes per row.
        keep_excluded: also copy excluded samples, with their entries: they are excluded in the target.
        store: store of all files.
        progress: called after each batch of rows.
        executor: how to run the work, as in `penstock.pack`. By default this process. Doesn't affect the output.
        workers: number of workers, as in `penstock.pack`.
        part: `(i, n)`: do part i (from 0) of n parts of a distributed job, as in `penstock.pack`.
        finish: finalize the distributed job, doing missing work first.
        no_work: with `finish`, only commit if nothing is missing.
        restart: discard existing work.
        options: options of `penstock.open` for the sources; for tars see `penstock.reshape.tars.merge_tars`.

    Returns:
        A report on the dataset written.

    Raises:
        ConfigError: there is no source, the output exists, or the sources don't match each other.
        FormatError: a source is damaged.

    Examples:
        >>> import penstock as ps
        >>> report = ps.merge(["corpus.pbin", "code.pbin"], "all.pbin")
        >>> len(ps.open("all.pbin"))
        10
    """
    cast(dict[str, Any], options)["keep_excluded"] = keep_excluded
    if isinstance(sources, str | os.PathLike | Place):
        raise ConfigError("merge needs a list of datasets", found=str(sources), hint="Pass a list: [source]")
    if not sources:
        raise ConfigError("nothing to merge", expected="at least one dataset")
    require_no_lists(sources)
    places, place = [place_of(source, store) for source in sources], place_of(target, store).bare()
    how = RunOptions(
        executor, workers, part, finish, no_work, restart, dry_run, overwrite, keep_map, keep_excluded, progress
    )
    of_tars = is_tars(places[0], format, options.get("layout"))
    if no_copy or of_tars:
        refuse_sidecars(cast(dict[str, Any], options), keep_map, "shards and tars are written whole")
    if no_copy:
        asked = {"to": to, "format": format, "token_bytes": token_bytes, "mix_tokenizers": mix_tokenizers, **options}
        return _merge_index(places, place, asked, how)
    if of_tars:
        from penstock.reshape.tars import merge_tars  # slow

        given: dict[str, Any] = {"to": to, "token_bytes": token_bytes, "mix_tokenizers": mix_tokenizers or None}
        return MergeReport(*merge_tars(places, place, how, **given, **options))
    with keeping_nothing(dry_run):
        opened = [open_rows(one, format=format, **options) for one in places]
    (written,) = run(_job(opened, Output(place, to, token_bytes, mix_tokenizers), how, options))
    return MergeReport(written, tuple((path_as_given(rows.place.path), len(rows)) for rows in opened))


def _job(opened: Sequence[StoredRows], output: Output, how: RunOptions, options: Mapping[str, Any]) -> DatasetJob:
    counter = Counter(sum(map(len, opened)), how.progress)
    common: dict[str, Any] = {"output": output.place, "outputs": [output], "options": how, "counter": counter}
    common |= {"sources": opened, "command": _made_by(opened)}
    samples = all(isinstance(rows, SampleRows) for rows in opened)
    if samples and not (excluded_in(opened) or has_sidecars(opened, keep_map=how.keep_map)):
        return ShardCopyJob(**common)  # shards are copied whole
    return RowJob(
        **common, opened_with=options, make=Copy(), laid=list(_laid(opened, output, how)), digest=_joined_digest(opened)
    )


def _laid(opened: Sequence[StoredRows], output: Output, how: RunOptions) -> Iterator[RowRange | InPlace]:
    """Return the rows of all sources. Rows that the output's store already holds in that form are joined in place."""
    width = output.token_bytes or opened[0].dtype.itemsize
    for number, rows in enumerate(opened):
        if how.is_inline:
            yield range_of(number, rows, 0, len(rows))
        elif (there := in_place(number, rows, output.place.store, width)) is not None:
            yield there
        else:
            yield from ranges_of(number, rows)


def _made_by(sources: Sequence[StoredRows]) -> dict[str, Any]:
    """Return the record for the side file, with the order of several sources."""
    names = distinct_names([rows.place for rows in sources])
    return {"command": "merge", "sources": names} if len(names) > 1 else {"command": "merge"}


def _merge_index(sources: Sequence[Place], target: Place, asked: dict[str, Any], how: RunOptions) -> MergeReport:
    """Write one index for the shards of all sources, which stay in place."""
    follow_links = asked.pop("follow_links", False)
    asked |= {"dry_run": how.dry_run, "part": how.part, "finish": how.finish, "restart": how.restart}
    named = [name for name, value in asked.items() if value is not None and value is not False]
    refused = ", ".join([*named, *(["executor", "workers"] if how.has_workers else [])])
    if refused:
        what, hint = "no_copy only writes an index and copies no data", f"Omit {refused} or no_copy (--no-copy)"
        raise ConfigError(what, path=target.path, found=refused, hint=hint)
    given = [one.path for one in sources]
    parts = merge_parts(target.path, given, overwrite=how.overwrite, follow_links=follow_links, store=target.store)
    shards = list(itertools.chain.from_iterable(parts))
    counts = [sum(one.samples for one in part) for part in parts]
    size_bytes = sum((one.zip_data or one.raw_data).size_bytes for one in shards)
    name = registered_name(shards[0].layout.format) if shards else "mds"
    written = Written(target.path, name, sum(counts), None, size_bytes)
    return MergeReport(written, tuple(zip(given, counts, strict=True)), len(shards))


def _joined_digest(sources: Sequence[StoredRows]) -> Callable[[], str] | None:
    """Return a function for the digest of all documents if all sources have a joinable one."""
    known = [rows.document_digest() if isinstance(rows, TokenRows) else None for rows in sources]
    return (lambda: join_digests(map(str, known))) if all(known) else None
