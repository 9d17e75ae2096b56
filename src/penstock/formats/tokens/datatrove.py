"""datatrove's tokenized files: `X.ds` with token ids, `X.ds.index` with the ends of documents. Read only.

| file | content, little-endian |
|---|---|
| `X.ds` | token ids, uint16 or uint32, without a header |
| `X.ds.index` | u64 for each document: the token after its last one |
| `X.ds.metadata` | text: `tokenizer|token width`, number of tokens, and the same in readable form; may be missing |
| `X.ds.loss` | a byte for each token, whether it counts in the loss; may be missing |

The width is that of the metadata, else `layout="uint16"` or `"uint32"`, else the file's size divided by the last end.

Checked against datatrove 0.10.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from penstock.codec.tokens import dtype_for
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError, Truncated
from penstock.formats._findings import Problem
from penstock.formats._registry import refuse_to_create, repair_nothing
from penstock.formats.tokens.checks import TokenRun, check_options
from penstock.formats.tokens.ids import FileIds
from penstock.formats.tokens.source import IndexBorders, RunSource, TokenLayout
from penstock.store.base import Store
from penstock.types import Depth, Finding, IntArray, OpenOptions, Sniff, Traits

_LAYOUTS = {"uint16": 2, "uint32": 4}
_STEP = 1 << 20
_AGAIN = "Copy both files again, or recreate them"


@dataclass(frozen=True, slots=True)
class Geometry:
    """Facts from the sizes and the metadata of a dataset.

    Attributes:
        token_bytes: width of a token.
        num_tokens: number of tokens in the `.ds`.
        num_documents: number of entries of the index.
        tokenizer: name in the metadata.
    """

    token_bytes: int
    num_tokens: int
    num_documents: int
    tokenizer: str | None


def index_path(path: str) -> str:
    """Return the path of the index of a `.ds` file."""
    return path + ".index"


def find_geometry(store: Store, path: str, layout: str | None) -> Geometry | Problem:
    """Return width and counts, by three small reads.

    Raises:
        NotFound: the file or its index doesn't exist.
        ConfigError: the width or the layout is unknown.
    """
    size_bytes, index_bytes = store.size(path), store.size(index_path(path))
    if index_bytes % 8:
        what = "the index has a partial entry"
        return _problem("index-size", index_path(path), what, index_bytes, f"{index_bytes} bytes", "a multiple of 8")
    last = int.from_bytes(store.get(index_path(path), index_bytes - 8, 8), "little") if index_bytes else 0
    tokenizer, token_bytes = _metadata(store, path)
    if layout is not None:
        if layout not in _LAYOUTS:
            raise ConfigError("unknown layout", path=path, found=repr(layout), expected=" | ".join(_LAYOUTS))
        token_bytes = _LAYOUTS[layout]
    if token_bytes is None:
        token_bytes = next((width for width in (2, 4) if last and size_bytes == width * last), None)
    if token_bytes is None:
        raise ConfigError(
            "the token width is unknown",
            path=path,
            found=f"{size_bytes} bytes, last document ends at token {last}",
            hint='Give --layout uint16 or --layout uint32 (layout="uint16", layout="uint32")',
        )
    if size_bytes != token_bytes * last:
        kind = Truncated if size_bytes < token_bytes * last else Corrupt
        what, expected = "tokens and index don't match", f"{token_bytes * last} bytes, from the end of the index"
        return _problem("size", path, what, size_bytes, f"{size_bytes} bytes", expected, kind)
    return Geometry(token_bytes, last, index_bytes // 8, tokenizer)


def read_starts(store: Store, path: str, geometry: Geometry) -> IntArray:
    """Return the first token of each document, and the number of tokens, int64[n_docs + 1]; raise `Corrupt`."""
    for problem in index_problems(store, path, geometry):
        raise problem.error()
    starts = np.zeros(geometry.num_documents + 1, np.int64)
    starts[1:] = np.frombuffer(store.get(index_path(path)), "<u8")
    return starts


def index_problems(store: Store, path: str, geometry: Geometry) -> Iterator[Problem]:
    """Yield the problem of the first document end that decreases or is outside the tokens."""
    before = np.zeros(1, np.uint64)
    for first in range(0, geometry.num_documents, _STEP):
        ends = np.frombuffer(store.get(index_path(path), 8 * first, 8 * _STEP), "<u8")
        wrong = np.flatnonzero((ends < np.concatenate([before, ends[:-1]])) | (ends > np.uint64(geometry.num_tokens)))
        if len(wrong):
            place = int(wrong[0])
            what, found = f"invalid end of document {first + place}", f"token {ends[place]}"
            expected = f"between the previous end and {geometry.num_tokens}"
            yield _problem("index", index_path(path), what, 8 * (first + place), found, expected)
            return
        before = ends[-1:]


def open_datatrove(store: Store, path: str, options: OpenOptions) -> RunSource:
    """Open a `.ds` file, by a few small reads.

    Raises:
        NotFound: the file or its index doesn't exist.
        ConfigError: the width of the tokens is unknown: pass `layout=`.
        FormatError: the sizes contradict each other.
    """
    found = find_geometry(store, path, options.layout)
    if isinstance(found, Problem):
        raise found.error()
    ids = FileIds(store, path, 0, found.num_tokens, dtype_for(found.token_bytes, "<"), options.read)
    index = index_path(path)
    head = store.size(path).to_bytes(8, "little") + store.size(index).to_bytes(8, "little")
    borders = IndexBorders(partial(read_starts, store, path, found))
    layout = TokenLayout("datatrove", open_datatrove, ids, borders, options.eos_id, head, (("index", index),))
    return RunSource(store, path, options, layout)


def check_datatrove(store: Store, path: str, options: OpenOptions, depth: Depth) -> list[Finding]:
    """Check sizes and the whole index; at `sample` and `full` also ids and document ends, if options name them.

    Raises:
        NotFound: the file doesn't exist.
        ConfigError: the width of the tokens is unknown.
    """
    if store.exists(path) and not store.exists(index_path(path)):
        what = "there is no index next to the tokens"
        return [_problem("missing", index_path(path), what, None, None, None, NotFound).finding()]
    found = find_geometry(store, path, options.layout)
    if isinstance(found, Problem):
        return [found.finding()]
    findings = [problem.finding() for problem in index_problems(store, path, found)]
    if findings or depth == "quick":
        return findings
    source = open_datatrove(store, path, options)
    starts = None if options.eos_id is None else source.doc_starts
    return findings + list(check_options(TokenRun("datatrove", path, source.ids), options, starts, depth))


def _metadata(store: Store, path: str) -> tuple[str | None, int | None]:
    """Return the tokenizer and the token width of the metadata, each None if not recorded."""
    try:
        first = store.get(path + ".metadata", 0, 4096).decode("utf-8", "replace").partition("\n")[0]
    except NotFound:
        return None, None
    tokenizer, _, width = first.rpartition("|")
    return tokenizer or None, int(width) if width.strip() in ("2", "4") else None


def _problem(
    code: str,
    path: str,
    what: str,
    offset_bytes: int | None,
    found: str | None,
    expected: str | None,
    kind: type[PenstockError] = Corrupt,
) -> Problem:
    return Problem(f"datatrove.{code}", kind, path, what, _AGAIN, offset_bytes, found, expected)


class _Datatrove:
    name = "datatrove"
    traits = Traits(tokens=True, layouts=True, remote=True, verify=True, suffixes=(".ds",), made_by="datatrove")

    def sniff(self, store: Store, path: str, /) -> Sniff:
        """Detect the format by the name of the index next to the file, and their sizes."""
        named = path.endswith(self.traits.suffixes)
        try:
            found = find_geometry(store, path, None)
        except NotFound:
            return Sniff(False, "no file with an .index next to it")
        except ConfigError:
            return Sniff(named, "it has an .index, but the token width is unknown")
        if isinstance(found, Problem):
            # Damaged data is accepted here, because `open` and `verify` describe the damage.
            return Sniff(named, found.what)
        return Sniff(True, "it has an .index that ends where the tokens end")

    open = staticmethod(open_datatrove)
    create = refuse_to_create
    check = staticmethod(check_datatrove)
    repair = repair_nothing


FORMAT = _Datatrove()
