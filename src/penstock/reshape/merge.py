"""`merge`: many datasets → one, in the order in which they are given."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack, cast

from penstock._keywords import Reshaping
from penstock._kinds import ExpectsDigest
from penstock._paths_as_given import path_as_given
from penstock._secrets import redacted_repr
from penstock.abc import Store, Writer
from penstock.codec.joined_digest import join_digests
from penstock.engine.sharing import Sharing
from penstock.errors import ConfigError, Unsupported
from penstock.executors import AnyExecutor
from penstock.formats.shards.codecs import registered_name
from penstock.formats.shards.merge import copy_shards, merge_parts
from penstock.reshape.in_place import InPlace, in_place
from penstock.reshape.origins import all_rows, refuse_along, something_goes_along
from penstock.reshape.pieces import (
    Copied,
    Range,
    Workers,
    hands_for,
    pieces_for,
    ranges_of,
    sweep_pieces,
)
from penstock.reshape.rewrite import (
    Counter,
    Output,
    Progress,
    Written,
    append_made,
    append_rows,
    excluded_in,
    lineage,
    once_of,
    rehearse,
    require_other_dataset,
    write_output,
)
from penstock.reshape.rows import AnyRows, TokenRows, is_tars, open_rows, rows_at, total_units
from penstock.reshape.samples import SampleRows
from penstock.reshape.share_copies import CopyWork
from penstock.reshape.share_rows import RowWork
from penstock.reshape.shares import How, is_shared, share
from penstock.store._keeping import keeping_nothing
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
        executor, workers: how to run the work, as in `penstock.pack`. By default this process. Doesn't affect the
            output.
        part, finish, no_work, restart: distributed job, as in `penstock.pack`.
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
    places, place = [place_of(source, store) for source in sources], place_of(target, store).bare()
    sharing, hands = Sharing(part, finish, no_work, restart), Workers(executor, workers)
    shares = is_shared(sharing, hands, dry_run=dry_run)
    of_tars = is_tars(places[0], format, options.get("layout"))
    if no_copy or shares or of_tars:
        refuse_along(cast(dict[str, Any], options), keep_map, "shards, tars and distributed outputs are written whole",
                     by_shares=not (no_copy or of_tars))  # fmt: skip
    if no_copy:
        asked = {"to": to, "format": format, "token_bytes": token_bytes, "mix_tokenizers": mix_tokenizers}
        asked |= {"dry_run": dry_run, "part": part, "finish": finish, "restart": restart, **options}
        return _merge_index(places, place, asked, hands, overwrite=overwrite)
    if of_tars:
        from penstock.reshape.tars import merge_tars  # slow

        given: dict[str, Any] = {"overwrite": overwrite, "dry_run": dry_run, "to": to}
        given |= {"token_bytes": token_bytes, "mix_tokenizers": mix_tokenizers or None}
        hands = hands_for(executor, workers, dry_run=dry_run)
        return MergeReport(*merge_tars(places, place, How(sharing, hands, Counter(0, progress)), **given, **options))
    with keeping_nothing(dry_run):
        opened = [open_rows(one, format=format, **options) for one in places]
    output = Output(place, to, overwrite, token_bytes, mix_tokenizers, dry_run=dry_run, keep_map=keep_map)
    samples = [rows for rows in opened if isinstance(rows, SampleRows)]
    hands = hands_for(executor, workers, dry_run=dry_run)
    how = How(sharing, hands, Counter(sum(map(len, opened)), progress))
    goes_along = something_goes_along(opened, keep_map=keep_map)
    if len(samples) == len(opened) and not (excluded_in(opened) or goes_along):  # shards go over whole
        return _merge_samples(samples, output, how)
    if shares or (how.by_parts and not goes_along):
        (written,) = share(_asked(opened, options, output, how))
        return MergeReport(written, tuple((path_as_given(rows.place.path), len(rows)) for rows in opened))
    return _merge_rows(opened, options, output, hands, how.counter)


def _asked(opened: Sequence[AnyRows], options: Mapping[str, Any], output: Output, how: How) -> RowWork:
    """The same by parts: what lies in the output's store as it is to be stored is joined where it lies."""
    width, laid = output.token_bytes or opened[0].dtype.itemsize, list[Range | InPlace]()
    for number, rows in enumerate(opened):
        there = in_place(rows, output.place.store, width)
        laid += ranges_of(number, rows) if there is None else [there]
    at = [rows_at(rows, options) for rows in opened]
    made_by, digest = _made_by(opened), _joined_digest(opened)
    order = [lambda: all_rows(0, sum(map(len, opened)))]
    return RowWork(output.place, [output], opened, at, made_by, Copied(), laid, how, digest, order)


def _made_by(sources: Sequence[AnyRows]) -> dict[str, Any]:
    """For the side file: the order of several sources too, as the digests of inputs stand there by name."""
    names = distinct_names([rows.place for rows in sources])
    return {"command": "merge", "sources": names} if len(names) > 1 else {"command": "merge"}


def _merge_index(
    sources: Sequence[Place], target: Place, asked: dict[str, Any], workers: Workers, *, overwrite: bool
) -> MergeReport:
    """One index over the shards of all sources, which stay where they are."""
    follow_links = asked.pop("follow_links", False)
    named = [name for name, value in asked.items() if value is not None and value is not False]
    refused = ", ".join([*named, *([] if workers.are_alone else ["executor", "workers"])])
    if refused:
        what, hint = "no_copy only writes an index and copies no data", f"Omit {refused} or no_copy (--no-copy)"
        raise ConfigError(what, path=target.path, found=refused, hint=hint)
    given = [one.path for one in sources]
    parts = merge_parts(target.path, given, overwrite=overwrite, follow_links=follow_links, store=target.store)
    shards = list(itertools.chain.from_iterable(parts))
    counts = [sum(one.samples for one in part) for part in parts]
    size_bytes = sum((one.zip_data or one.raw_data).size_bytes for one in shards)
    name = registered_name(shards[0].layout.format) if shards else "mds"
    written = Written(target.path, name, sum(counts), None, size_bytes)
    return MergeReport(written, tuple(zip(given, counts, strict=True)), len(shards))


def _merge_rows(
    opened: Sequence[AnyRows], options: Mapping[str, Any], output: Output, workers: Workers, counter: Counter
) -> MergeReport:
    width = output.token_bytes or opened[0].dtype.itemsize

    def fill(writer: Writer) -> None:
        _join_digests(writer, opened)
        if workers.are_alone:
            for rows in opened:
                append_rows(writer, rows, 0, len(rows), width, counter.add)
            return
        tasks = itertools.chain.from_iterable(ranges_of(number, rows) for number, rows in enumerate(opened))
        with pieces_for(workers, output.place) as pieces:
            made = pieces.made([rows_at(rows, options) for rows in opened], Copied(), tasks, width)
            append_made(made, writer, opened, counter)

    manifest = write_output(output, opened, _made_by(opened), fill, counter.total, lambda: all_rows(0, counter.total))
    written = Written.of(output.place, manifest, excluded_in(opened))
    return MergeReport(written, tuple((path_as_given(rows.place.path), len(rows)) for rows in opened))


def _join_digests(writer: Writer, sources: Sequence[AnyRows]) -> None:
    """Tell a writer the digest of all documents, where it is known."""
    digest = _joined_digest(sources)
    if isinstance(writer, ExpectsDigest) and digest is not None:
        writer.expect_digest(digest)


def _joined_digest(sources: Sequence[AnyRows]) -> Callable[[], str] | None:
    """Gives the digest of all documents, where the side files of all sources have some that join; else None."""
    known = [rows.document_digest() if isinstance(rows, TokenRows) else None for rows in sources]
    return (lambda: join_digests(map(str, known))) if all(known) else None


def _merge_samples(sources: Sequence[SampleRows], output: Output, how: How) -> MergeReport:
    """The shards of all sources in one folder, under one index."""
    place, reports = output.place, tuple((path_as_given(rows.place.path), len(rows)) for rows in sources)
    require_other_dataset(sources, place, sources[0].format)
    if output.to not in (None, sources[0].format):
        what = f"shards of {sources[0].format} are copied unchanged"
        raise Unsupported(
            what, path=place.path, found=f"--to {output.to}", hint="Use `penstock convert` before or after it"
        )
    made_by = _made_by(sources)
    if output.dry_run:
        rehearse(output, sources, made_by)
        counts = (sum(map(len, sources)), None, sum(map(total_units, sources)))
        return MergeReport(Written(place.path, sources[0].format, *counts), reports)
    if how.by_parts:
        return MergeReport(share(CopyWork(output, sources, made_by, how))[0], reports)
    sweep_pieces(place)
    once = once_of(output, sources, made_by, sum(map(len, sources)))
    manifest = None if output.overwrite else once.made()
    if manifest is None:
        copy = functools.partial(
            copy_shards,
            [rows.part for rows in sources],
            place.store,
            place.path.rstrip("/") or place.path,
            name=sources[0].format,
            **lineage(sources, made_by),
            overwrite=output.overwrite,
        )
        manifest = once.commit(copy)
    return MergeReport(Written.of(place, manifest), reports)
