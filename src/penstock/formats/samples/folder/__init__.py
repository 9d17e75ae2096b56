"""A folder of media files, each a sample of its own, identified by its path in the folder.

| path | content |
|---|---|
| `**/*` | the files; links are followed, hidden files included |
| `.nv-meta/index.sqlite` | media metadata, if it was prepared: see `penstock.formats.samples.media_index` |

Files are not listed anywhere: samples are the existing files, in the byte order of their paths. Energon uses such a
folder as auxiliary data, by name. Checked against megatron-energon 7.4.1.
"""

from __future__ import annotations

import os

import penstock
from penstock._digest import digest
from penstock.formats._folders import first_entries
from penstock.formats._manifest import file_digests
from penstock.formats.samples.folder.check import check_folder, repair_folder, require_folder
from penstock.formats.samples.folder.files import INDEX, MEDIA, NV_META, SIDE_SUFFIX, is_text, list_files
from penstock.formats.samples.folder.source import open_folder
from penstock.formats.samples.folder.writer import create_folder, own_files
from penstock.store.base import Store
from penstock.store.side_file import replace_side_file
from penstock.types import Manifest, OpenOptions, Sniff, Traits

_TAIL_BYTES = 1 << 12


class _Folder:
    name = "folder"
    traits = Traits(
        write=True, keys=True, remote=True, verify=True, repair=True, images=True, made_by="Megatron-Energon"
    )

    def sniff(self, store: Store, path: str, /) -> Sniff:
        """Recognize a folder by its media index, its side file, or media among its first files."""
        root = path.rstrip("/") or path
        if not store.is_folder(root):
            return Sniff(False, "no folder")
        if any(store.exists(f"{root}/{NV_META}/{name}") for name in (".info.json", ".info.yaml")):
            return Sniff(False, "a WebDataset")
        if store.exists(f"{root}/{INDEX}"):
            return Sniff(True, "it has Energon's media index and no list of shards")
        side = f"{root}/{SIDE_SUFFIX}"
        if store.exists(side):
            start_bytes = max(0, store.size(side) - _TAIL_BYTES)
            if b'"format": "folder"' in store.get(side, start_bytes, _TAIL_BYTES):
                return Sniff(True, "it has a side file for media files")
        far = store.first_names(root)
        is_media = any(name.lower().endswith(MEDIA) for name in far)
        if is_media or (store.is_local and any(map(_is_media, first_entries(root, lambda one: True)))):
            return Sniff(True, "a folder of media files")
        return Sniff(False, "no media index, and no media among the first files")

    open = staticmethod(open_folder)
    create = staticmethod(create_folder)
    own_files = staticmethod(own_files)
    check = staticmethod(check_folder)
    repair = staticmethod(repair_folder)

    def write_manifest(self, store: Store, path: str, options: OpenOptions, /, *, replace: bool = False) -> str:
        root = require_folder(store, path)
        names = list_files(store, root)
        manifest = Manifest(
            format="folder",
            num_samples=len(names),
            size_bytes=sum(store.size(f"{root}/{name}") for name in names),
            block_digests={name: file_digests(store, f"{root}/{name}") for name in names if is_text(name)},
            binding=digest(names),
            tool=f"penstock {penstock.__version__}",
        )
        side = f"{root}/{SIDE_SUFFIX}"
        replace_side_file(store, side, manifest, replace=replace)
        return side


def _is_media(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(MEDIA) and entry.is_file()


FORMAT = _Folder()
