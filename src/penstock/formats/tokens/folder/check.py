"""Check a folder of token files: its index, its side file, and each file with its own format's check. Never writes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from penstock._secrets import redact
from penstock.abc import TokenSource
from penstock.codec.joined_digest import is_joinable
from penstock.errors import FormatError, NotFound, PenstockError, PrepareError, Unsupported
from penstock.formats import get_format
from penstock.formats._findings import Run
from penstock.formats._side_checks import RESTORE, check_bytes, check_names, check_side_file
from penstock.formats.tokens.checks import digest_like
from penstock.formats.tokens.common import document_runs
from penstock.formats.tokens.folder.files import (
    SIDE_NAME,
    data_names,
    folder_of,
    manifest_of,
    read_finished_index,
    size_of_files,
)
from penstock.formats.tokens.folder.found import find_token_files
from penstock.formats.tokens.folder.index import (
    INDEX_NAME,
    TOKEN_FILE_NAME,
    TokenFileEntry,
    TokenFileIndex,
    decode_index,
)
from penstock.formats.tokens.folder.side import NAME, folder_digest, folder_facts
from penstock.store.base import Store
from penstock.store.names import WORK
from penstock.types import Depth, Finding, IntArray, Manifest, OpenOptions, TokenArray

_RUN_TOKENS = 1 << 22
_COPY = "Copy the file again, or re-run the command that wrote it"


def check_token_files(store: Store, path: str, options: OpenOptions, depth: Depth, run: Run = map) -> Iterator[Finding]:
    """Yield the findings in the order of the index, or of the files. Each file is a task. Memory: one file's check.

    Raises:
        NotFound: there is no index, no work that would make one, and no token file.
        ConfigError: an option contradicts the data.
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
        yield _of_error("index", error, where)
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
    """Compare the side file with the index and the files, which match each other."""
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
    """Yield the findings of each file, and its differences from the first one."""
    first: Sequence[Any] | None = None
    for task, checked in zip(tasks, run(_check_one, tasks), strict=True):
        findings, traits = checked or ((), None)
        yield from findings
        if traits is not None and first is not None:
            yield from _check_alike(first, traits, task.path, tasks[0].path.rpartition("/")[2])
        first = traits if first is None else first


@dataclass(frozen=True, slots=True)
class _FileTask:
    """One file to check, its entry in the index, and the EOS id that is recorded for all files."""

    store: Store
    path: str
    format: str
    entry: TokenFileEntry | None
    options: OpenOptions
    depth: Depth
    recorded_eos_id: int | None = None

    @property
    def described(self) -> str:
        """Name of the task in errors."""
        return redact(self.path)


def _check_one(task: _FileTask) -> tuple[list[Finding], Sequence[Any] | None]:
    """Return the findings of a file, and its width, EOS id and tokenizer if it can be read; runs in a worker."""
    kind, store, path, one = get_format(task.format), task.store, task.path, task.entry
    findings: list[Finding] = []
    try:
        findings += kind.check(store, path, task.options, task.depth)
        eos_id = task.recorded_eos_id if task.options.eos_id is None else task.options.eos_id
        source = cast(TokenSource, kind.open(store, path, replace(task.options, vocab_size=None, eos_id=eos_id)))
    except NotFound:
        expected = None if one is None else f"a file of {one.tokens} tokens"
        return [Finding(f"{NAME}.missing", "error", path, None, "no such file", expected, _COPY)], None
    except FormatError as error:
        return findings or [_of_error("file", error, path)], None
    if one is not None:
        sound = not any(finding.severity == "error" for finding in findings)
        try:
            findings += _check_against_index(source, one, path, task.depth if sound else "quick")
        except FormatError as error:
            findings.append(_of_error("file", error, path))
    return findings, (str(source.dtype), source.eos_id, getattr(source, "tokenizer_digest", None))


def _of_error(what: str, error: PenstockError, path: str) -> Finding:
    found = error.what if error.found is None else f"{error.what}: {error.found}"
    return Finding(f"{NAME}.{what}", "error", path, None, found, None, error.hint)


def _check_vocabulary(where: str, index: TokenFileIndex, options: OpenOptions) -> Iterator[Finding]:
    for number, one in enumerate(index.files):
        if options.vocab_size is not None and one.max_token_id >= options.vocab_size:
            found = f"file {number} holds the id {one.max_token_id}"
            fix = "Pack again with the tokenizer of this vocabulary, or correct --vocab-size"
            yield Finding(f"{NAME}.token-range", "error", where, None, found, f"0 to {options.vocab_size - 1}", fix)


def _check_against_index(source: TokenSource, one: TokenFileEntry, path: str, depth: Depth) -> Iterator[Finding]:
    counts = (source.num_tokens, len(source))
    if counts != (one.tokens, one.documents):
        found = "{} tokens in {} documents".format(*counts)
        expected = f"{one.tokens} tokens in {one.documents} documents, as recorded in {INDEX_NAME}"
        yield Finding(f"{NAME}.counts", "error", path, None, found, expected, _COPY)
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
    """Compare the digest and the largest id of the documents with the index."""
    largest = -1

    def runs() -> Iterator[tuple[TokenArray, IntArray]]:
        nonlocal largest
        for tokens, lengths in document_runs(source, _RUN_TOKENS):
            largest = max(largest, int(tokens.max()) if len(tokens) else -1)
            yield tokens, lengths

    digest = digest_like(one.digest, runs())
    if digest != one.digest:
        found, stated = f"documents with the digest {digest}", f"{one.digest}, as recorded in {INDEX_NAME}"
        yield Finding(f"{NAME}.digest", "error", path, None, found, stated, RESTORE)
    elif largest != one.max_token_id:
        found, stated = f"the largest id {largest}", f"{one.max_token_id}, as recorded in {INDEX_NAME}"
        fix = "The documents are right: `penstock repair` rebuilds the index"
        yield Finding(f"{NAME}.max-token-id", "error", path, None, found, stated, fix)


def _check_alike(first: Sequence[Any], traits: Sequence[Any], path: str, name: str) -> Iterator[Finding]:
    """Yield the differences of a file from the first one."""
    for what, expected, found in zip(("width", "eos", "tokenizer"), first, traits, strict=True):
        if expected != found:
            yield Finding(f"{NAME}.{what}", "error", path, None, str(found), f"{expected}, as in {name}", _COPY)


def _check_others(store: Store, root: str, index: TokenFileIndex) -> Iterator[Finding]:
    """Warn of unused files in the folder: unfinished work, and token files without an entry."""
    if store.exists(f"{root}/{WORK}"):
        fix = f"`penstock status {root} --sweep` removes what no running job needs"
        what = "left by a finished run, or in use by a running one"
        yield Finding(f"{NAME}.work", "warning", f"{root}/{WORK}", None, what, None, fix)
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
