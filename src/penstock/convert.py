"""`convert`: any format to any that can hold it, verified by a digest that the format does not change.

Token sources go over in runs of documents, so that no document passes through Python alone; memory is bounded by one
run of `RUN_TOKENS` tokens, or by the longest document.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.abc import Source, SupportsDocumentRuns, TokenSource, Writer, is_token_source
from penstock.codec.hashes import DocumentDigest
from penstock.errors import ConfigError, Corrupt, Unsupported
from penstock.formats import create, format_names, get_format, open_source
from penstock.types import IntArray, Sample, TokenArray

RUN_TOKENS = 1 << 24
_BATCH_SAMPLES = 1024
_WRITER_OPTIONS = ("tokenizer", "tokenizer_digest")


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """What `convert` did: counts, sizes, seconds, and the digest on both sides (tokens only)."""

    to: str
    samples: int
    size_bytes: int
    digest: str | None
    copy_seconds: float
    verify_seconds: float


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    to: str | None = None,
    format: str | None = None,
    overwrite: bool = False,
    progress: Callable[[int, str], None] | None = None,
    **options: Any,
) -> ConvertReport:
    """Write the samples of `source` as a new dataset.

    Args:
        source: dataset to read.
        target: dataset to make.
        to: its format; found from the suffix of `target` where it is None.
        format: format of the source; found by sniffing where it is None.
        overwrite: replace the target.
        progress: called with samples done and a text.
        options: what `penstock.open` takes for the source, such as `layout=`.

    Raises:
        Unsupported: the target's format can't hold these samples.
        Corrupt: what was written does not read back as what was read; the target must not be used.
    """
    to = to or _format_of_suffix(os.fspath(target))
    opened = open_source(source, format=format, **options)
    advance = progress or _ignore
    if is_token_source(opened) != get_format(to).traits.tokens:
        raise Unsupported(
            f"{to} can't hold these samples", path=source, hint="Tokens go to token formats: use pack first"
        )
    started = time.monotonic()
    if is_token_source(opened):
        digest = _convert_tokens(opened, target, to, overwrite, advance)
    else:
        digest = None
        _convert_samples(opened, target, to, overwrite, advance)
    copied = time.monotonic()
    written = open_source(target, format=to)
    if is_token_source(written) and (found := token_digest(written)) != digest:
        raise Corrupt("the converted dataset reads back differently", path=target, found=found, expected=digest)
    size_bytes = os.path.getsize(target) if os.path.isfile(target) else 0
    return ConvertReport(to, len(opened), size_bytes, digest, copied - started, time.monotonic() - copied)


def token_digest(source: TokenSource) -> str:
    """The document digest of a token source: 32 hex digits, the same in every format."""
    digest = DocumentDigest()
    for tokens, doc_lengths in document_runs(source):
        digest.update(tokens, doc_lengths)
    return digest.hexdigest()


def document_runs(source: TokenSource, run_tokens: int = RUN_TOKENS) -> Iterator[tuple[TokenArray, IntArray]]:
    """Whole documents in order, in runs of about `run_tokens`: (uint[n_tokens], their int64[n_docs] lengths)."""
    doc_starts = source.doc_starts
    first, n_docs = 0, len(doc_starts) - 1
    while first < n_docs:
        stop = int(np.searchsorted(doc_starts, doc_starts[first] + run_tokens, side="right")) - 1
        stop = min(max(stop, first + 1), n_docs)
        run = np.asarray(doc_starts[first : stop + 1], np.int64)
        yield source.tokens(int(run[0]), int(run[-1])), np.diff(run)
        first = stop


def _convert_tokens(
    source: TokenSource, target: str | os.PathLike[str], to: str, overwrite: bool, advance: Callable[[int, str], None]
) -> str:
    known = {name: getattr(source, name, None) for name in _WRITER_OPTIONS}
    options = {name: value for name, value in known.items() if value is not None}
    digest = DocumentDigest()
    done = 0
    with create(
        target, format=to, overwrite=overwrite, token_bytes=source.dtype.itemsize, eos_id=source.eos_id, **options
    ) as writer:
        for tokens, doc_lengths in document_runs(source):
            _write_run(writer, tokens, doc_lengths)
            digest.update(tokens, doc_lengths)
            done += len(doc_lengths)
            advance(done, "")
    return digest.hexdigest()


def _write_run(writer: Writer, tokens: TokenArray, doc_lengths: IntArray) -> None:
    if isinstance(writer, SupportsDocumentRuns):
        writer.write_documents(tokens, doc_lengths)
    else:
        writer.write_batch({"tokens": np.split(tokens, np.cumsum(doc_lengths)[:-1])})


def _convert_samples(
    source: Source[Sample],
    target: str | os.PathLike[str],
    to: str,
    overwrite: bool,
    advance: Callable[[int, str], None],
) -> None:
    with create(target, format=to, overwrite=overwrite) as writer:
        for first in range(0, len(source), _BATCH_SAMPLES):
            for index in range(first, min(first + _BATCH_SAMPLES, len(source))):
                writer.write(source[index])
            advance(min(first + _BATCH_SAMPLES, len(source)), "")


def _ignore(done: int, text: str) -> None:
    """No progress asked for."""


def _format_of_suffix(target: str) -> str:
    fitting = [name for name in format_names() if target.endswith(get_format(name).traits.suffixes or ("\0",))]
    if len(fitting) != 1:
        raise ConfigError("the target's format is not clear from its name", path=target, hint="Name it with --to (to=)")
    return fitting[0]
