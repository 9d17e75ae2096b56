"""Rebuild the `index.json` of a folder of token files from their side files, if it is known to be the same.

Token files are never changed: their names contain their digests.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import cast

from penstock.abc import TokenSource
from penstock.codec.joined_digest import JoinedDigest, is_joinable
from penstock.errors import Corrupt, NotFound, PenstockError
from penstock.formats import get_format
from penstock.formats._repairs import Damaged, Repair, Rewrite, repaired_by
from penstock.formats.tokens.common import document_runs
from penstock.formats.tokens.folder.files import SIDE_NAME, folder_of, manifest_of, read_index_bytes
from penstock.formats.tokens.folder.found import find_token_files
from penstock.formats.tokens.folder.index import (
    INDEX_NAME,
    SUFFIXES,
    TOKEN_FILE_NAME,
    TokenFileEntry,
    TokenFileIndex,
    decode_index,
    digest_digits,
    encode_index,
)
from penstock.formats.tokens.folder.side import NAME, folder_digest, folder_facts
from penstock.store.base import Store
from penstock.store.names import NEXT, WORK
from penstock.store.put import put
from penstock.store.side_file import encode_manifest, is_next, load_manifest, sweep_next
from penstock.types import Action, Manifest, OpenOptions

_INDEX_CODES = (f"{NAME}.index", f"{NAME}.unfinished", f"{NAME}.max-token-id")
_AGAIN = "copy it again, or re-run the command that wrote it"
_BY_FORMAT = {suffix: format for format, suffix in SUFFIXES.items()}


def _repair(damaged: Damaged) -> Iterator[Rewrite | Action]:
    """Yield an index that is lost or damaged.

    This needs the side file of each file, no gap in their numbers, and the folder's own side file as a proof that these
    are all files. Otherwise nothing is done, and the action names the reason. Leftovers of a killed writer are
    completed or removed. Without an index, each file is repaired by its own format.
    """
    store, options, findings = damaged.store, damaged.options, damaged.findings
    root = folder_of(damaged.path)
    code = next((one.code for one in findings if one.code in _INDEX_CODES), None)
    if code is None and not store.exists(f"{root}/{INDEX_NAME}"):
        found = find_token_files(store, damaged.path, options)
        for file in map(found.path, range(len(found))):
            own = [one for one in findings if one.path.startswith(file.removesuffix(".bin"))]
            yield from get_format(found.format).repair(store, file, options, own, write=damaged.write)
        return
    yield from _settle(store, root, write=damaged.write)
    if code is not None:
        yield _plan_index(store, root, code, options)
    for one in findings:
        if one.code not in _INDEX_CODES and not one.path.endswith((INDEX_NAME, SIDE_NAME)):
            yield Action(one.code, one.path, f"token files aren't changed: {_AGAIN}", possible=False)


def _plan_index(store: Store, root: str, code: str, options: OpenOptions) -> Rewrite | Action:
    where, side = f"{root}/{INDEX_NAME}", f"{root}/{SIDE_NAME}"
    try:
        index = remade_index(store, root, options)
        data = encode_index(index.format, index.files)
        manifest = _proved(store, side, data, index)
    except PenstockError as error:
        return Action(code, where, f"the index isn't rebuilt: {error}", possible=False)

    def make() -> None:
        put(store, where, data)
        binding = folder_facts(data, index).binding
        if manifest.binding != binding:
            put(store, side, encode_manifest(replace(manifest, binding=binding)))

    num_tokens = sum(one.tokens for one in index.files)
    what = f"list {len(index.files)} files with {num_tokens:,} tokens, from their side files"
    return Rewrite(code, where, what, make, "the old index")


def remade_index(store: Store, root: str, options: OpenOptions) -> TokenFileIndex:
    """Return the index of the files in a folder, from their names and side files.

    Raises:
        NotFound: there are no files, one of them is missing, or one has no side file.
        Corrupt: the files don't belong to one index.
    """
    if store.exists(f"{root}/{WORK}"):
        hint = "Re-run the command that began it to finish it and write the index"
        raise Corrupt("the folder contains unfinished work", path=f"{root}/{WORK}", hint=hint)
    names = sorted(set(_token_files(store, root)), key=_number)
    if not names:
        expected = f"part-00000-….{SUFFIXES['pbin']}"
        raise NotFound("no token files to rebuild an index from", path=root, expected=expected)
    suffixes = {name.rpartition(".")[2] for name in names}
    if len(suffixes) > 1 or not suffixes <= _BY_FORMAT.keys():
        raise Corrupt("token files in several formats", path=root, found=", ".join(sorted(suffixes)), expected="one")
    for place, name in enumerate(names):
        if _number(name) < place:
            raise Corrupt("two files have the same number", path=root, found=name)
        if _number(name) > place:
            raise NotFound("a token file is missing", path=root, expected=f"part-{place:05d}-….{suffixes.copy().pop()}")
    format = _BY_FORMAT[suffixes.pop()]
    return TokenFileIndex(format, tuple(_entry(store, root, format, name, options) for name in names))


def _entry(store: Store, root: str, format: str, name: str, options: OpenOptions) -> TokenFileEntry:
    path = f"{root}/{name}"
    source = get_format(format).open(store, path, replace(options, split=None, vocab_size=None))
    manifest = manifest_of(source)
    if manifest is None or manifest.digest is None or manifest.num_tokens is None:
        raise NotFound("a token file has no matching side file", path=path, hint="Copy both again")
    digest, stated = manifest.digest, name.split("-")[2][:8]
    if digest_digits(digest) != stated and not is_joinable(digest):
        digest = _read_digest(source)
    if digest_digits(digest) != stated:
        expected = f"{stated}…, as in its name"
        raise Corrupt("a token file contains different documents", path=path, found=digest, expected=expected)
    largest = -1 if manifest.max_token_id is None else manifest.max_token_id
    return TokenFileEntry(name, manifest.num_tokens, manifest.num_samples, largest, digest)


def _read_digest(source: object) -> str:
    """Compute the joinable digest of a file that records the older one; reads the whole file."""
    digest = JoinedDigest()
    for tokens, lengths in document_runs(cast(TokenSource, source)):
        digest.update(tokens, lengths)
    return digest.text()


def _proved(store: Store, side: str, data: bytes, index: TokenFileIndex) -> Manifest:
    """Return the folder's side file if it proves that an index is the lost one, or has the same documents.

    Raises:
        NotFound: there is no side file, so the last files may be missing.
        Corrupt: the side file differs.
    """
    known = [one for path in (side, side + NEXT) if (one := load_manifest(store, path)) is not None]
    if not known:
        hint = "`penstock merge` creates one dataset from the existing files"
        raise NotFound("the folder has no side file, so the number of files is unknown", path=side, hint=hint)
    facts, digest = folder_facts(data, index), folder_digest(index)
    for one in known:
        same = (one.format, one.num_samples, one.num_tokens) == (facts.format, facts.num_samples, facts.num_tokens)
        if same and (one.binding == facts.binding if digest is None else one.digest == digest):
            return one
    found = f"{facts.num_tokens} tokens in {facts.num_samples} documents"
    expected = f"{known[0].num_tokens} tokens in {known[0].num_samples} documents, with the digest {known[0].digest}"
    raise Corrupt("the files don't match the side file of the folder", path=side, found=found, expected=expected)


def _token_files(store: Store, root: str) -> Iterator[str]:
    start = len(root.rstrip("/")) + 1
    for path in store.list(root):
        name = path[start:].split("/")[0]
        if TOKEN_FILE_NAME.fullmatch(name) and not name.endswith(".idx"):  # belongs to its `.bin`
            yield name


def _number(name: str) -> int:
    return int(name.split("-")[1])


def _settle(store: Store, root: str, *, write: bool) -> Iterable[Action]:
    """Give a side file that a killed writer left its final name, or remove it."""
    where, side = f"{root}/{INDEX_NAME}", f"{root}/{SIDE_NAME}"
    if not store.exists(side + NEXT) or store.exists(f"{root}/{WORK}"):
        return ()
    try:
        data = read_index_bytes(store, root)
        facts = functools.partial(folder_facts, data, decode_index(data, where))
    except PenstockError:
        return ()  # it may be the proof of the rebuilt index
    return sweep_next(store, f"{NAME}.next", [side], is_next(store, side, facts), write=write)


repair_token_files = repaired_by(Repair(_repair, always=True))
