"""Check a packed file: header and index, the side file, the tokens, and the digest of every byte. Never writes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from penstock.codec.pickles import MARKED_PAIRS
from penstock.codec.tokens import dtype_for
from penstock.errors import PenstockError
from penstock.formats._findings import Problem, Run, by_place
from penstock.formats._manifest import DATA, side_path
from penstock.formats._side_checks import check_side_file
from penstock.formats.tokens.checks import TokenRun, check_options, stored_too_narrow, stored_too_wide
from penstock.formats.tokens.common import TokenFile, require_eos
from penstock.formats.tokens.joined import check_recorded
from penstock.formats.tokens.pbin.index import doc_starts, index_problems, read_marked
from penstock.formats.tokens.pbin.layout import LAYOUTS, TODAY, Geometry, find_layout
from penstock.formats.tokens.pbin.source import pbin_facts
from penstock.formats.tokens.pbin.starts import stated_starts
from penstock.store.base import Store
from penstock.store.side_file import REPLACE
from penstock.types import Depth, Finding, IntArray, Manifest, OpenOptions

_WIDTH_TOKENS = 1 << 16


def check_pbin(store: Store, path: str, options: OpenOptions, depth: Depth, run: Run = map) -> list[Finding]:
    """Return the findings by place. Memory: 64 bytes per document and 64 MiB.

    Raises:
        NotFound: there is no such file.
        ConfigError: an option contradicts the data.
    """
    geometry = find_layout(store, path, options.layout)
    findings: list[Finding] = []
    if isinstance(geometry, Problem):
        findings.append(geometry.at(path).finding())
        found = _by_whole_index(store, path) if geometry.code == "pbin.ambiguous" else None
        if found is None:
            return findings
        geometry = found
        fix = f"Open it with layout={geometry.layout.name!r}"
        findings = [replace(findings[0], severity="warning", expected=geometry.layout.name, fix=fix)]
    require_eos(path, dtype_for(geometry.token_bytes), options.eos_id)
    findings += _check_header(geometry, path)
    starts, marks, index_findings = _check_index(store, path, geometry)
    num_docs = None if starts is None else len(starts) - 1
    facts = functools.partial(pbin_facts, store, path, geometry, num_docs)
    manifest, side_findings = check_side_file("pbin", store, path, side_path(path), facts)
    if manifest is not None and not side_findings and starts is not None:
        side_findings += _check_starts(manifest, geometry, path, starts, marks)
    findings += index_findings + side_findings
    stored = dtype_for(geometry.token_bytes, geometry.layout.byte_order)
    file = TokenFile(store, path, geometry.layout.header_bytes, geometry.num_tokens, stored, options.read)
    tokens = TokenRun("pbin", path, file)
    if depth != "quick":
        recorded = None if side_findings else manifest
        # A recorded width need not be guessed.
        known = recorded is not None and recorded.options.get("token_bytes") == geometry.token_bytes
        if starts is not None and not known:
            findings += _check_width(tokens, np.diff(starts))
        limit = None if recorded is None or recorded.max_token_id is None else recorded.max_token_id + 1
        findings += check_options(tokens, options, starts, depth, run if depth == "full" else map, limit)
    if depth == "full" and manifest is not None:
        documents = None if starts is None else (tokens, starts)
        findings += check_recorded(store, "pbin", side_path(path), manifest, {DATA: path}, documents, run)
    return by_place(findings)


def _by_whole_index(store: Store, path: str) -> Geometry | None:
    """Return the one layout whose index has no fault, None if there are several or none."""
    named = [find_layout(store, path, name) for name in LAYOUTS]
    sound = [one for one in named if isinstance(one, Geometry) and _check_index(store, path, one)[0] is not None]
    return sound[0] if len(sound) == 1 else None


def _check_header(geometry: Geometry, path: str) -> Iterator[Finding]:
    if geometry.layout is not TODAY:
        what = f"{geometry.layout.name}, which current versions of Modalities can't read"
        fix = "`penstock convert` writes the current layout"
        yield Finding("pbin.old-layout", "warning", path, 0, what, TODAY.name, fix)
    if geometry.num_tokens == 0:
        yield Finding("pbin.empty", "warning", path, 0, "no tokens", None, "Check the input of the packing")


def _check_index(store: Store, path: str, geometry: Geometry) -> tuple[IntArray | None, IntArray | None, list[Finding]]:
    """Return the document starts, None if the index is wrong, its marks, and its findings."""
    try:
        pairs, marks = read_marked(store, path, geometry)
    except PenstockError as error:
        code = "pbin.unsafe-index" if error.code == "unsafe-data" else "pbin.index"
        fix = "`penstock repair PATH --eos-id ID` rebuilds the index from the EOS tokens"
        return None, None, [Problem.of_error(code, error, fix).at(path).finding()]
    findings = [problem.at(path).finding() for problem in index_problems(pairs, geometry)]
    return (None if findings else doc_starts(pairs, geometry, path)), marks, findings


def _check_starts(
    manifest: Manifest, geometry: Geometry, path: str, starts: IntArray, marks: IntArray | None
) -> Iterator[Finding]:
    """Compare the side file's table of documents with the index."""
    if manifest.starts is None:
        return
    stated = stated_starts(manifest, geometry)
    if stated is None or marks is None:
        differs = "a document table that doesn't belong to this file"
    elif len(wrong := np.flatnonzero((stated.places[:-1] != marks) | (stated.tokens[:-1] != starts[:-1:MARKED_PAIRS]))):
        differs = f"a document table that is wrong starting at document {int(wrong[0]) * MARKED_PAIRS}"
    else:
        return
    expected, fix = "every 4,096th document, as in the index", f"If the data is right, {REPLACE}"
    yield Finding("pbin.side-file", "error", side_path(path), None, differs, expected, fix)


def _check_width(run: TokenRun, doc_lengths: IntArray) -> Iterator[Finding]:
    tokens = run.file.tokens(0, min(_WIDTH_TOKENS, run.file.num_tokens))
    narrow = stored_too_narrow(tokens, doc_lengths)
    if narrow or stored_too_wide(tokens):
        width = tokens.dtype.itemsize
        what = f"{width}-byte tokens that look like {'halves of wider' if narrow else 'pairs of narrower'} ones"
        expected, fix = f"{2 * width if narrow else width // 2}", "Correct the width at byte 8, or pack again"
        yield Finding("pbin.token-bytes", "error", run.path, 8, what, expected, fix)
