"""The `Format` objects of the shard formats: one for each format name in an index."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from penstock.errors import Unsupported
from penstock.formats import get_format
from penstock.formats.shards.checks import check_shards, dataset_folders
from penstock.formats.shards.find_index import folder_of, has_shards, index_folder, own_files, splits_in
from penstock.formats.shards.index_json import FORMATS, INDEX_NAME
from penstock.formats.shards.index_table import open_index
from penstock.formats.shards.repair import repair_shards
from penstock.formats.shards.side import SIDE_NAME, write_shards_manifest
from penstock.formats.shards.source import CodecMaker, ShardSource, registered_name
from penstock.formats.shards.writer import RowEncoder, ShardWriter, create_shards
from penstock.store.base import Store
from penstock.store.put import beginning_of
from penstock.types import OpenOptions, Sniff, Traits

_SNIFF_BYTES = 1 << 16
_FORMAT_OF_SHARD = re.compile(rb'"format"\s*:\s*"(%s)"' % "|".join(FORMATS).encode())


@dataclass(frozen=True, slots=True)
class ShardFormat:
    """One shard format; see `penstock.abc.Format`.

    Attributes:
        name: name in the registry.
        stored: name in an index.
        traits: capabilities.
        codec: returns the decoder of a layout.
        encoder: returns the encoder for the options of `penstock.create`.
        options: names of these options, in addition to those of all shard formats.
    """

    name: str
    stored: str
    traits: Traits
    codec: CodecMaker
    encoder: Callable[[Mapping[str, Any]], RowEncoder]
    options: tuple[str, ...] = ()

    def sniff(self, store: Store, path: str, /) -> Sniff:
        """Recognize the first shard in `index.json` or in that of a split; without an index, the name of a shard."""
        folder = folder_of(path)
        head = _head(store, folder)
        if b'"shards"' not in head:
            if has_shards(store, folder, self.stored):
                return Sniff(True, f"{self.stored} shards whose index is missing or damaged")
            if self.stored == "mds" and _is_torn(store, folder, head):
                return Sniff(True, f"an {INDEX_NAME} that is empty or truncated")
            return Sniff(False, f"no {INDEX_NAME} of shards in the folder or its subfolders")
        found = _FORMAT_OF_SHARD.search(head)
        first = self.stored if found is None and self.stored == "mds" else found and found[1].decode()
        return Sniff(first == self.stored, f"an {INDEX_NAME} whose first shard is {first}")

    def open(self, store: Store, path: str, options: OpenOptions, /) -> ShardSource:
        folder = index_folder(store, path, options.split)
        index = open_index(store, folder)
        stored = {layout.format for _, layout in index.facts.layouts}
        if stored and self.stored not in stored:
            found, where = ", ".join(sorted(stored)), f"{folder}/{INDEX_NAME}"
            raise Unsupported("no shards in this format", path=where, found=found, expected=self.stored)
        again = (open_again, (self.name, store, path, options))
        return ShardSource(store, folder, self.name, index, options, again)

    def create(self, store: Store, path: str, options: Mapping[str, Any], *, overwrite: bool) -> ShardWriter:
        return create_shards(store, path, self.name, options, self.options, self.encoder, overwrite=overwrite)

    def side_of(self, store: Store, path: str, options: OpenOptions, /) -> str:
        return f"{index_folder(store, path, options.split)}/{SIDE_NAME}"

    own_files = staticmethod(own_files)
    check = check_by_tasks = staticmethod(check_shards)
    task_depths = share_depths = ("quick", "sample", "full")
    repair = staticmethod(repair_shards)

    def write_manifest(self, store: Store, path: str, options: OpenOptions, /, *, replace: bool = False) -> str:
        """Write the side file of each split, or of the selected one; see `side.write_shards_manifest`."""
        folders = dataset_folders(store, folder_of(path), options.split)
        return ", ".join(write_shards_manifest(store, one, self.name, replace=replace) for one in folders)


def open_again(name: str, store: Store, path: str, options: OpenOptions) -> ShardSource:
    """Reopen a source of format `name`, whose index may hold shards of other formats too."""
    return format_of(name).open(store, path, options)


def format_of(stored: str) -> ShardFormat:
    return cast(ShardFormat, get_format(registered_name(stored)))


def _is_torn(store: Store, folder: str, head: bytes) -> bool:
    """Return true if there is an index but it is empty or truncated."""
    if len(head) >= _SNIFF_BYTES or b'"files"' in head:  # an index of token files
        return False
    try:
        msgspec.json.decode(head, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        return (not head.strip() or "truncated" in str(error)) and store.exists(f"{folder}/{INDEX_NAME}")
    return False


def _head(store: Store, folder: str) -> bytes:
    head = beginning_of(store, f"{folder}/{INDEX_NAME}", _SNIFF_BYTES)
    if head is None and (splits := splits_in(store, folder)):
        head = beginning_of(store, f"{folder}/{splits[0]}/{INDEX_NAME}", _SNIFF_BYTES)
    return head or b""
