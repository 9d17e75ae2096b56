"""`merge`: many datasets → one, in the order in which they are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.abc import Store
from penstock.errors import ConfigError
from penstock.reshape.rewrite import Counter, Output, Path, Progress, Written, append_rows, open_writer
from penstock.reshape.rows import open_rows
from penstock.store.resolve import resolve


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
    sources: Sequence[Path],
    target: Path,
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
    end gets one. Memory: 64 MiB, and 8 bytes a document.

    Args:
        sources: datasets of documents, of any token formats, or JSONL files.
        target: dataset to make.
        to: its format; by default that of the target's suffix, else that of the first source.
        format: format of the sources; found by sniffing where it is None.
        token_bytes: width of the ids, where it is to be wider than that of the sources.
        mix_tokenizers: take sources of different tokenizers or EOS ids.
        overwrite: replace the target.
        store: where all files are.
        progress: told after each run.
        options: what `penstock.open` takes for the sources.

    Raises:
        ConfigError: no source, an output that exists, or sources that don't fit together.
        FormatError: a source is damaged.
    """
    if not sources:
        raise ConfigError("nothing to merge", expected="at least one dataset")
    opened = [open_rows(path, format=format, store=store, **options) for path in sources]
    output = Output(target, to, overwrite, token_bytes, mix_tokenizers, store)
    width = token_bytes or opened[0].dtype.itemsize
    counter = Counter(sum(map(len, opened)), progress)
    with open_writer(output, opened, {"command": "merge"}) as writer:
        for rows in opened:
            append_rows(writer, rows, 0, len(rows), width, counter.add)
        manifest = writer.commit()
    inputs = tuple((rows.path, len(rows)) for rows in opened)
    return MergeReport(Written.of(resolve(target)[1], manifest), inputs)
