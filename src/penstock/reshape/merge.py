"""`merge`: many datasets → one, in the order in which they are given."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock._kinds import ExpectsDigest
from penstock._secrets import redacted_repr
from penstock.abc import Store, Writer
from penstock.codec.joined_digest import join_digests
from penstock.errors import ConfigError, Unsupported
from penstock.formats.shards.merge import copy_shards
from penstock.reshape.rewrite import (
    Counter,
    Output,
    Progress,
    Written,
    append_rows,
    once_of,
    require_other_dataset,
    write_output,
)
from penstock.reshape.rows import AnyRows, TokenRows, is_tars, open_rows
from penstock.reshape.samples import SampleRows
from penstock.store.place import Given, Place, place_of


@redacted_repr
@dataclass(frozen=True, slots=True)
class MergeReport:
    """What `merge` did.

    Attributes:
        output: what was written.
        inputs: samples of each input, in order.
    """

    output: Written
    inputs: tuple[tuple[str, int], ...]


def merge(
    sources: Sequence[Given],
    target: Given,
    *,
    to: str | None = None,
    format: str | None = None,
    token_bytes: int | None = None,
    mix_tokenizers: bool = False,
    overwrite: bool = False,
    store: Store | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> MergeReport:
    """Write all documents, or all lines, of several datasets as one.

    Tokens go over as they are, by the kernel where formats and widths agree; lines too, and a last line without a line
    end gets one. Document digests of version 2, where the side files of all sources have them, are joined.
    Shards of samples are copied whole and numbered anew. Memory: 64 MiB, and 8 bytes a document.

    Args:
        sources: datasets of documents, of any token formats, or JSONL files.
        target: dataset to make.
        to: its format; by default that of the target's suffix, else that of the first source.
        format: format of the sources; found by sniffing where it is None.
        token_bytes: width of the ids, where it is to be wider than that of the sources.
        mix_tokenizers: take sources of different tokenizers or EOS ids.
        overwrite: replace the target.
        store: where all files are.
        progress: called after each run.
        options: what `penstock.open` takes for the sources; for tars see `penstock.reshape.tars.merge_tars`.

    Raises:
        ConfigError: no source, an output that exists, or sources that don't fit together.
        FormatError: a source is damaged.
    """
    if isinstance(sources, str | os.PathLike | Place):
        raise ConfigError("merge takes a list of datasets", found=str(sources), hint="Put it in brackets: [source]")
    if not sources:
        raise ConfigError("nothing to merge", expected="at least one dataset")
    places, place = [place_of(source, store) for source in sources], place_of(target, store).bare()
    if is_tars(places[0], format):
        from penstock.reshape.tars import merge_tars  # slow

        return MergeReport(*merge_tars(places, place, to=to, overwrite=overwrite, progress=progress, **options))
    opened = [open_rows(one, format=format, **options) for one in places]
    output = Output(place, to, overwrite, token_bytes, mix_tokenizers)
    samples = [rows for rows in opened if isinstance(rows, SampleRows)]
    if len(samples) == len(opened):
        return _merge_samples(samples, output)
    width = token_bytes or opened[0].dtype.itemsize
    counter = Counter(sum(map(len, opened)), progress)

    def fill(writer: Writer) -> None:
        _join_digests(writer, opened)
        for rows in opened:
            append_rows(writer, rows, 0, len(rows), width, counter.add)

    manifest = write_output(output, opened, {"command": "merge"}, fill, sum(map(len, opened)))
    return MergeReport(Written.of(place, manifest), tuple((rows.place.path, len(rows)) for rows in opened))


def _join_digests(writer: Writer, sources: Sequence[AnyRows]) -> None:
    """Tell a writer the digest of all documents, where the side files of all sources have some that join."""
    known = [rows.document_digest() if isinstance(rows, TokenRows) else None for rows in sources]
    if isinstance(writer, ExpectsDigest) and all(known):
        writer.expect_digest(lambda: join_digests(map(str, known)))


def _merge_samples(sources: Sequence[SampleRows], output: Output) -> MergeReport:
    """The shards of all sources in one folder, under one index."""
    place = output.place
    require_other_dataset(sources, place, sources[0].format)
    if output.to not in (None, sources[0].format):
        what = f"shards of {sources[0].format} are copied as they are"
        raise Unsupported(
            what, path=place.path, found=f"--to {output.to}", hint="Use `penstock convert` before or after it"
        )
    made_by = {"command": "merge"}
    once = once_of(output, sources, made_by, sum(map(len, sources)))
    manifest = None if output.overwrite else once.made()
    if manifest is None:
        copy = functools.partial(
            copy_shards,
            [rows.part for rows in sources],
            place.store,
            place.path.rstrip("/") or place.path,
            name=sources[0].format,
            options=made_by,
            overwrite=output.overwrite,
        )
        manifest = once.commit(copy)
    return MergeReport(Written.of(place, manifest), tuple((rows.place.path, len(rows)) for rows in sources))
