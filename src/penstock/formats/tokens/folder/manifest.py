"""Creation of the side file of a folder of token files, from every byte of the files."""

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
    """Format that makes side files of foreign data."""

    def write_manifest(self, store: Store, path: str, options: OpenOptions, /, *, replace: bool = False) -> str: ...


def write_folder_manifest(store: Store, path: str, options: OpenOptions, *, replace: bool = False) -> str:
    """Check every document against the index, and write the folder's side file; return its path.

    Without an index, each file gets its own side file, and the folder's path is returned. Tokenizer, inputs and options
    of a side file that fits are kept; without one, those of the first file, with which all others agree, are used.

    Raises:
        Corrupt: the files aren't those in the index, or the existing side file contradicts them and `replace` is false.
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
    given = Provenance.recorded(known, None if known is None else known.eos_id)
    made = folder_manifest(data, index, size_of_files(store, root, index), given)
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
