"""Datasets of many token files of one format, listed in an `index.json` of Penstock or found by name.

| name | content |
|---|---|
| `index.json` | files, their order, and their counts: see `index` |
| `part-NNNNN-<8 hex digits>.pbin` | a packed file of Modalities, and its side file |
| `part-NNNNN-<8 hex digits>.bin`, `.idx` | or a pair of Megatron-LM, and its side file |
| `part-NNNNN-<8 hex digits>.zarr` | or a flat-tokens group, and its side file |
| `.penstock` | the side file of the whole |

All documents are one run, in the order of the index. No document spans two files. If `index.json` exists, only the
files in it are read. A folder without it, but with such names or `.work/`, is unfinished and raises `PrepareError`.

Token files of other tools, in a folder, by a pattern or in a list, are one dataset too: see `found`.

Files: `index` · `files` names on disk, and open files · `side` listed files and their side file · `found` other files ·
`source` · `check` · `repair` · `manifest`. Made by `penstock pack … -o FOLDER/`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.formats._registry import refuse_to_create
from penstock.formats.tokens.folder.check import check_token_files
from penstock.formats.tokens.folder.files import find_unfinished, first_token_file, folder_of, own_files
from penstock.formats.tokens.folder.found import sniff_found
from penstock.formats.tokens.folder.index import INDEX_NAME, SUFFIXES
from penstock.formats.tokens.folder.manifest import write_folder_manifest
from penstock.formats.tokens.folder.repair import repair_token_files
from penstock.formats.tokens.folder.side import NAME
from penstock.formats.tokens.folder.source import TokenFilesSource, open_token_files
from penstock.store.base import Store
from penstock.store.find import one_store
from penstock.store.place import place_of
from penstock.store.put import beginning_of
from penstock.types import OpenOptions, Sniff, Traits

_SNIFF_BYTES = 1 << 16
_WHOSE = re.compile(rb'"(?P<list>files|shards)"\s*:\s*\[|"format"\s*:\s*"(?:%s)"' % "|".join(SUFFIXES).encode())


class _TokenFiles:
    name = NAME
    traits = Traits(
        remote=True, tokens=True, layouts=True, borderless=True, verify=True, repair=True, made_by="Penstock"
    )  # fmt: skip
    instead = (
        "`penstock pack … -o FOLDER/` creates token folders. "
        "Or write one pbin, megatron or flat-tokens file, then `penstock convert FILE FOLDER/ --file-tokens N`"
    )

    def sniff(self, store: Store, path: str, /) -> Sniff:
        """Detect the format by the head of `index.json`; without one, by token files or a `.work` folder."""
        root = folder_of(path)
        head = beginning_of(store, f"{root}/{INDEX_NAME}", _SNIFF_BYTES)
        if head is None:
            found = find_unfinished(store, root) if store.is_folder(root) else None
            return sniff_found(store, path) if found is None else Sniff(True, f"unfinished: {found}")
        whose = _WHOSE.search(head)
        if whose is None and (name := first_token_file(store, root)) is not None:
            # Damaged data is accepted here, because `open` and `verify` describe the damage.
            return Sniff(True, f"{name}, and a damaged {INDEX_NAME}")
        if whose is None or whose["list"] == b"shards":
            return Sniff(False, f"an {INDEX_NAME} that lists no token files")
        return Sniff(True, f"an {INDEX_NAME} of token files")

    def open_list(self, paths: Sequence[str], options: OpenOptions, /) -> TokenFilesSource:
        """Open the documents of several files, folders and patterns, all of one store."""
        # Named paths are trusted, even links; folders are searched under a guard.
        return open_token_files(one_store(paths), [place_of(path).path for path in paths], options)

    create = refuse_to_create
    own_files = staticmethod(own_files)
    open = staticmethod(open_token_files)
    check = check_by_tasks = staticmethod(check_token_files)
    task_depths = share_depths = ("quick", "sample", "full")
    repair = staticmethod(repair_token_files)
    write_manifest = staticmethod(write_folder_manifest)


FORMAT = _TokenFiles()
