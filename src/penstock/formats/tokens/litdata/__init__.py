"""litdata: chunks of samples or of tokens next to an `index.json`, as `litdata.optimize` writes them. Read only.

| file | content |
|---|---|
| `index.json` | chunks: file, bytes, items, tokens; config: compression, formats of values, tree of a sample |
| `chunk-<rank>-<number>[.zstd].bin` | items, see `chunks` |

With `item_loader` `TokensLoader`, items are documents of tokens of any integer dtype. litdata itself reads blocks of a
requested length, across documents. Otherwise, items are samples; see `leaves`.

Files: `index` the content of `index.json` · `chunks` items · `leaves` values · `rows` samples · `ids` tokens.

Limits: no encryption, no pickles, no lists and maps as values besides arrays (`json`), none of `TemporalArrayLoader`.
Checked against litdata 0.2.76.
"""

from __future__ import annotations

import re
from dataclasses import replace

from penstock.abc import Source
from penstock.errors import ConfigError, FormatError, PenstockError, UnsafeData
from penstock.formats._findings import Problem, find_unlisted
from penstock.formats._registry import refuse_to_create, repair_nothing
from penstock.formats.tokens.checks import TokenRun, check_options, sampled_ranges
from penstock.formats.tokens.litdata.chunks import read_items
from penstock.formats.tokens.litdata.ids import ChunkIds
from penstock.formats.tokens.litdata.index import INDEX, Index, looks_like, read_index, require_index, size_problem
from penstock.formats.tokens.litdata.rows import LitdataRows, chunk_files
from penstock.formats.tokens.source import IndexBorders, MarkedBorders, OneDocument, RunSource, TokenLayout
from penstock.store.base import Store
from penstock.store.put import beginning_of
from penstock.types import Depth, Finding, OpenOptions, Sample, Sniff, Traits

_HEAD_BYTES = 4096
_CHUNK = re.compile(r"chunk-\d+-\d+(\.\w+)?\.bin")


def open_litdata(store: Store, path: str, options: OpenOptions) -> Source[Sample]:
    """Open a dataset, by one read of its index.

    Raises:
        NotFound: the index doesn't exist.
        FormatError: the index is damaged, or of an unknown version.
        ConfigError: options for tokens are used for samples.
    """
    root = path.rstrip("/") or path
    require_index(store, root)
    index = read_index(store, root)
    if not index.is_tokens:
        return _rows(store, root, options, index)
    if options.columns is not None:
        raise ConfigError("token datasets have no columns", path=root, hint="Omit --columns (columns=)")
    return _tokens(store, root, options, index)


def _rows(store: Store, root: str, options: OpenOptions, index: Index) -> LitdataRows:
    asked = options.eos_id is not None or options.vocab_size is not None or options.one_document
    if asked and options.tokens_column is None:
        hint = "Specify the column of token ids: tokens_column= (--tokens-column)"
        raise ConfigError("these chunks hold samples, not tokens", path=root, hint=hint)
    return LitdataRows(store, root, options, index, open_litdata)


def _tokens(store: Store, root: str, options: OpenOptions, index: Index) -> RunSource:
    ids = ChunkIds(store, index, options.read)
    borders = IndexBorders(ids.doc_starts)
    if options.one_document:
        marked = options.eos_id is not None
        borders = MarkedBorders(ids, root, options.eos_id, before=False) if marked else OneDocument(ids.num_tokens)
    files, head = tuple(chunk_files(index, root)), index.fingerprint.encode()
    layout = TokenLayout("litdata", open_litdata, ids, borders, options.eos_id, head, files, is_folder=True)
    return RunSource(store, root, options, layout)


def check_litdata(store: Store, path: str, options: OpenOptions, depth: Depth) -> list[Finding]:
    """Check index and sizes; `sample`: the first and the last chunk; `full`: all, and ids if options name them.

    Raises:
        NotFound: the index doesn't exist.
    """
    root = path.rstrip("/") or path
    require_index(store, root)
    try:
        index = read_index(store, root)
        plain = replace(options, vocab_size=None) if index.is_tokens else options  # else it warns, and is checked below
        source = open_litdata(store, root, plain)
        findings = _check_sizes(store, index)
    except (FormatError, UnsafeData) as error:
        return [_finding(error, root)]
    if findings or depth == "quick":
        return findings
    chosen = range(len(index.chunks)) if depth == "full" else sorted({0, len(index.chunks) - 1} if index.chunks else ())
    for number in chosen:
        try:
            read_items(store, index.chunks[number], index.level)
            if isinstance(source, LitdataRows):
                start, stop = source.block_starts[number : number + 2].tolist()
                for row in range(start, stop):
                    _ = source[row]
        except PenstockError as error:
            findings.append(_finding(error, root))
    findings = findings or (_check_tokens(source, options, depth, root) if isinstance(source, RunSource) else [])
    return findings + find_unlisted(store, root, [one.path for one in index.chunks], _CHUNK, "litdata.unlisted")


def _check_sizes(store: Store, index: Index) -> list[Finding]:
    """Return findings of chunks that are missing, or differ from the index in size."""
    found: list[Finding] = []
    for chunk in index.chunks:
        try:
            size_bytes = store.size(chunk.path)
        except FileNotFoundError:
            found.append(Finding("litdata.missing", "error", chunk.path, None, "no such file", None, "Copy it again"))
            continue
        if index.level != "chunk" and size_bytes != chunk.size_bytes:
            found.append(size_problem(chunk, size_bytes).finding())
    return found


def _check_tokens(source: RunSource, options: OpenOptions, depth: Depth, root: str) -> list[Finding]:
    try:
        starts = source.doc_starts
        for start, stop in sampled_ranges(source.num_tokens, depth):
            source.tokens(start, stop)
    except PenstockError as error:
        return [_finding(error, root)]
    run = TokenRun("litdata", root, source.ids)
    return list(check_options(run, options, None if options.one_document else starts, depth))


def _finding(error: PenstockError, root: str) -> Finding:
    return Problem.of_error("litdata.damaged", error, path=root).finding()


class _Litdata:
    name = "litdata"
    traits = Traits(tokens=True, remote=True, verify=True, borderless=True, made_by="litdata")

    def sniff(self, store: Store, path: str, /) -> Sniff:
        """Detect the format by the beginning of `index.json`."""
        root = path.rstrip("/") or path
        head = beginning_of(store, f"{root}/{INDEX}", _HEAD_BYTES)
        if head is None:
            return Sniff(False, "no index.json")
        return Sniff(looks_like(head), "index.json lists chunks" if looks_like(head) else "index.json lists no chunks")

    open = staticmethod(open_litdata)
    create = refuse_to_create
    check = staticmethod(check_litdata)
    repair = repair_nothing


FORMAT = _Litdata()
