"""Checking a folder of token files: its index, its side file, each file by its own format's check, and their digests.

Never writes. A file that is missing, torn, another one, or one that no index lists is named.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from penstock._secrets import redact
from penstock.abc import Store, TokenSource
from penstock.codec.hashes import DocumentDigest
from penstock.codec.joined_digest import JoinedDigest, is_joinable
from penstock.errors import FormatError, NotFound, PenstockError, PrepareError, Unsupported
from penstock.formats import get_format
from penstock.formats._findings import Run
from penstock.formats._side_checks import RESTORE, check_bytes, check_names, check_side_file
from penstock.formats.tokens.common import document_runs
from penstock.formats.tokens.folder.files import SIDE_NAME, WORK, data_names, folder_of, manifest_of, size_of_files
from penstock.formats.tokens.folder.found import find_token_files
from penstock.formats.tokens.folder.index import (
    INDEX_NAME,
    TOKEN_FILE_NAME,
    TokenFileEntry,
    TokenFileIndex,
    decode_index,
)
from penstock.formats.tokens.folder.side import NAME, folder_digest, folder_facts
from penstock.formats.tokens.folder.unfinished import read_finished_index
from penstock.types import Depth, Finding, Manifest, OpenOptions

_RUN_TOKENS = 1 << 22
_COPY = "Copy the file again, or re-run the command that wrote it"


def check_token_files(store: Store, path: str, options: OpenOptions, depth: Depth, run: Run = map) -> Iterator[Finding]:
    """Findings in the order of the index, or of the files that are found; each is a task. Memory: one file's check.

    Raises:
        NotFound: no index is there, nor work that would make one, nor a token file.
        ConfigError: an option that can't hold.
    """
    root = folder_of(path)
    where = f"{root}/{INDEX_NAME}"
    try:
        data = read_finished_index(store, root)
    except NotFound:
        found = find_token_files(store, path, options)
        files = map(found.path, range(len(found)))
        yield from _check_files([_FileTask(store, file, found.format, None, options, depth) for file in files], run)
        return
    except PrepareError as error:
        yield Finding(f"{NAME}.unfinished", "error", where, None, str(error.found), INDEX_NAME, error.hint)
        return
    try:
        index = decode_index(data, where)
    except PenstockError as error:
        yield Finding(f"{NAME}.index", "error", where, None, _said(error), None, error.hint)
        return
    facts = functools.partial(folder_facts, data, index)
    manifest, findings = check_side_file(NAME, store, where, f"{root}/{SIDE_NAME}", facts)
    yield from findings
    yield from _check_vocabulary(where, index, options)
    each = replace(options, split=None)
    recorded = manifest.eos_id if manifest is not None and not findings else None
    tasks = [_FileTask(store, f"{root}/{one.path}", index.format, one, each, depth, recorded) for one in index.files]
    sound = not findings
    for one in _check_files(tasks, run):
        sound &= one.severity != "error"
        yield one
    if manifest is not None and depth == "full" and sound:
        yield from _check_stated(store, root, index, manifest)
    yield from _check_others(store, root, index)


def _check_stated(store: Store, root: str, index: TokenFileIndex, manifest: Manifest) -> Iterator[Finding]:
    """What the side file says of the whole, against the index and the files, which fit one another."""
    where, side_path = f"{root}/{INDEX_NAME}", f"{root}/{SIDE_NAME}"
    yield from check_names(NAME, side_path, manifest, ())
    largest = max((one.max_token_id for one in index.files if one.tokens), default=None)
    for what, found in (("digest", folder_digest(index)), ("max_token_id", largest)):
        stated = getattr(manifest, what)
        if None not in (found, stated) and found != stated:
            told = f"{stated}, as recorded in the side file"
            yield Finding(f"{NAME}.changed", "error", where, None, f"{what} {found}", told, RESTORE)
    yield from check_bytes(NAME, where, manifest, size_of_files(store, root, index))


def _check_files(tasks: Sequence[_FileTask], run: Run) -> Iterator[Finding]:
    """Findings of each file, and in what one differs from the first."""
    first: Sequence[Any] | None = None
    for task, checked in zip(tasks, run(_check_one, tasks), strict=True):
        findings, traits = checked or ((), None)
        yield from findings
        if traits is not None and first is not None:
            yield from _check_alike(first, traits, task.path, tasks[0].path.rpartition("/")[2])
        first = traits if first is None else first


@dataclass(frozen=True, slots=True)
class _FileTask:
    """One file to be checked, what an index says of it, and the EOS id that is recorded for all files."""

    store: Store
    path: str
    format: str
    entry: TokenFileEntry | None
    options: OpenOptions
    depth: Depth
    recorded_eos_id: int | None = None

    @property
    def described(self) -> str:
        """What an error calls it."""
        return redact(self.path)


def _check_one(task: _FileTask) -> tuple[list[Finding], Sequence[Any] | None]:
    """What is wrong with a file, and its width, EOS id and tokenizer where it can be read; runs in any worker."""
    findings: list[Finding] = []
    checking = _check_file(task)
    while True:
        try:
            findings.append(next(checking))
        except StopIteration as end:
            source: TokenSource | None = end.value
            break
    if source is None:
        return findings, None
    return findings, (str(source.dtype), source.eos_id, getattr(source, "tokenizer_digest", None))


def _check_vocabulary(where: str, index: TokenFileIndex, options: OpenOptions) -> Iterator[Finding]:
    for number, one in enumerate(index.files):
        if options.vocab_size is not None and one.max_token_id >= options.vocab_size:
            found = f"file {number} holds the id {one.max_token_id}"
            fix = "Pack again with the tokenizer of this vocabulary, or correct --vocab-size"
            yield Finding(f"{NAME}.token-range", "error", where, None, found, f"0 to {options.vocab_size - 1}", fix)


def _check_file(task: _FileTask) -> Generator[Finding, None, TokenSource | None]:
    """Findings of one file; returns its source where it can be read."""
    kind, store, path, one = get_format(task.format), task.store, task.path, task.entry
    findings: list[Finding] = []
    try:
        findings += kind.check(store, path, task.options, task.depth)
        eos_id = task.recorded_eos_id if task.options.eos_id is None else task.options.eos_id
        source = cast(TokenSource, kind.open(store, path, replace(task.options, vocab_size=None, eos_id=eos_id)))
        yield from findings
    except NotFound:
        expected = None if one is None else f"a file of {one.tokens} tokens"
        yield Finding(f"{NAME}.missing", "error", path, None, "no such file", expected, _COPY)
        return None
    except FormatError as error:
        yield from findings or [Finding(f"{NAME}.file", "error", path, None, _said(error), None, error.hint)]
        return None
    if one is not None:
        sound = not any(finding.severity == "error" for finding in findings)
        yield from _check_against_index(source, one, path, task.depth if sound else "quick")
    return source


def _check_against_index(source: TokenSource, one: TokenFileEntry, path: str, depth: Depth) -> Iterator[Finding]:
    try:
        counts = (source.num_tokens, len(source))
    except FormatError as error:
        yield Finding(f"{NAME}.file", "error", path, None, _said(error), None, error.hint)
        return
    if counts != (one.tokens, one.documents):
        found, stated = (
            f"{tokens} tokens in {docs} documents" for tokens, docs in (counts, (one.tokens, one.documents))
        )
        yield Finding(f"{NAME}.counts", "error", path, None, found, f"{stated}, as recorded in {INDEX_NAME}", _COPY)
        return
    if depth == "full":
        yield from _check_documents(source, one, path)
        return
    manifest = manifest_of(source)
    known = None if manifest is None else manifest.digest
    if known not in (None, one.digest) and is_joinable(str(known)) == is_joinable(one.digest):
        found = f"documents with the digest {known}, as recorded in its side file"
        yield Finding(f"{NAME}.digest", "error", path, None, found, f"{one.digest}, as recorded in {INDEX_NAME}", _COPY)


def _check_documents(source: TokenSource, one: TokenFileEntry, path: str) -> Iterator[Finding]:
    """Every document against the digest and the largest id in the index."""
    joined, old, largest = JoinedDigest(), DocumentDigest(), -1
    try:
        for tokens, lengths in document_runs(source, _RUN_TOKENS):
            if is_joinable(one.digest):
                joined.update(tokens, lengths)
            else:
                old.update(tokens, lengths)
            largest = max(largest, int(np.max(tokens, initial=0)) if len(tokens) else -1)
    except FormatError as error:
        yield Finding(f"{NAME}.file", "error", path, None, _said(error), None, error.hint)
        return
    digest = joined.text() if is_joinable(one.digest) else old.hexdigest()
    if digest != one.digest:
        found = f"documents with the digest {digest}"
        yield Finding(
            f"{NAME}.digest", "error", path, None, found, f"{one.digest}, as recorded in {INDEX_NAME}", RESTORE
        )
    elif largest != one.max_token_id:
        found, stated = f"the largest id {largest}", f"{one.max_token_id}, as recorded in {INDEX_NAME}"
        fix = "The documents are right: `penstock repair` rebuilds the index"
        yield Finding(f"{NAME}.max-token-id", "error", path, None, found, stated, fix)


def _check_alike(first: Sequence[Any], traits: Sequence[Any], path: str, name: str) -> Iterator[Finding]:
    """In what a file is of another run than the first one."""
    for what, expected, found in zip(("width", "eos", "tokenizer"), first, traits, strict=True):
        if expected != found:
            yield Finding(f"{NAME}.{what}", "error", path, None, str(found), f"{expected}, as in {name}", _COPY)


def _check_others(store: Store, root: str, index: TokenFileIndex) -> Iterator[Finding]:
    """What lies in the folder and belongs to unfinished work, or to none: warnings, as nothing reads it."""
    if store.exists(f"{root}/{WORK}"):
        fix = f"`penstock status {root} --sweep` removes what no running job needs"
        yield Finding(
            f"{NAME}.work",
            "warning",
            f"{root}/{WORK}",
            None,
            "left by a finished run, or in use by a running one",
            None,
            fix,
        )
    listed = {name for one in index.files for name in data_names(index.format, one.path)}
    try:
        paths = list(store.list(root))
    except Unsupported:  # a web server
        return
    start = len(root.rstrip("/")) + 1
    names = dict.fromkeys(path[start:].split("/")[0] for path in paths)
    for name in names:
        if TOKEN_FILE_NAME.fullmatch(name) and name not in listed:
            found, fix = f"a token file that {INDEX_NAME} does not list", "It isn't read. Remove it or ignore it"
            yield Finding(f"{NAME}.unlisted", "warning", f"{root}/{name}", None, found, None, fix)


def _said(error: PenstockError) -> str:
    """An error without its path and hint, which stand elsewhere in a finding."""
    return error.what if error.found is None else f"{error.what}: {error.found}"
