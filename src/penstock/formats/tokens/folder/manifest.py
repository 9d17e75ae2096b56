"""Making the side file of a folder of token files anew, from what was found in every byte of them."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from penstock.errors import Corrupt, NotFound
from penstock.formats import get_format
from penstock.formats._manifest import Provenance
from penstock.formats.tokens.folder.check import check_token_files
from penstock.formats.tokens.folder.files import SIDE_NAME, folder_of, manifest_of, read_index_bytes, size_of_files
from penstock.formats.tokens.folder.found import find_token_files
from penstock.formats.tokens.folder.index import INDEX_NAME, TokenFileIndex, decode_index
from penstock.formats.tokens.folder.side import folder_manifest, read_manifest
from penstock.store.base import Store
from penstock.store.side_file import replace_side_file
from penstock.types import Manifest, OpenOptions


@runtime_checkable
class _WritesManifests(Protocol):
    """A format that makes side files of foreign data."""

    def write_manifest(self, store: Store, path: str, options: OpenOptions, /, *, replace: bool = False) -> str: ...


def write_folder_manifest(store: Store, path: str, options: OpenOptions, *, replace: bool = False) -> str:
    """Check every document against the index, and write the folder's side file; returns its path.

    Where no index lists the files, each gets its own, and the folder's path is returned.

    What a side file that fits already says of tokenizer, inputs and options is kept; else it is what the first file's
    says, with which all others agree.

    Raises:
        Corrupt: the files are not those that the index lists; or the side file that is there says otherwise, and
            `replace` is false.
    """
    root = folder_of(path)
    where, side = f"{root}/{INDEX_NAME}", f"{root}/{SIDE_NAME}"
    try:
        data = read_index_bytes(store, root)
    except NotFound:
        return _of_each(store, path, options, replace=replace)
    index = decode_index(data, where)
    for one in check_token_files(store, path, options, "full"):
        if one.severity == "error" and one.path not in (where, side):
            what = f"{one.code}: {one.found}"
            raise Corrupt("the folder doesn't match its index", path=one.path, found=what, expected=one.expected)
    known = read_manifest(store, root, data, index) or _of_first(store, root, index, options)
    said = Provenance() if known is None else _said(known)
    made = folder_manifest(data, index, size_of_files(store, root, index), said)
    replace_side_file(store, side, made, replace=replace)
    return side


def _of_each(store: Store, path: str, options: OpenOptions, *, replace: bool) -> str:
    found = find_token_files(store, path, options)
    kind = get_format(found.format)
    if isinstance(kind, _WritesManifests):
        for number in range(len(found)):
            kind.write_manifest(store, found.path(number), options, replace=replace)
    return path


def _of_first(store: Store, root: str, index: TokenFileIndex, options: OpenOptions) -> Manifest | None:
    if not index.files:
        return None
    return manifest_of(get_format(index.format).open(store, f"{root}/{index.files[0].path}", options))


def _said(known: Manifest) -> Provenance:
    return Provenance(known.eos_id, known.tokenizer, known.tokenizer_digest, known.inputs, known.options)
