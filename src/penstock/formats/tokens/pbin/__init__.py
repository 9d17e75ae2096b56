"""Packed tokens of Modalities: one file of token ids followed by a document index.

Today's layout (`h12le`), little-endian:

| bytes | content |
|---|---|
| 0 … 8 | u64: L, length of the tokens in bytes |
| 8 … 12 | u32: width of a token: 1, 2 or 4 bytes |
| 12 … 12 + L | token ids of all documents, back to back, an EOS id after each |
| 12 + L … end | pickled list of `(offset, length)` in bytes, offsets from the first token |

Older ones, read: `h12le-abs` (offsets from the file's start), `h12be` (the same in big-endian), `h8` (8-byte
big-endian length, 4-byte big-endian tokens), `h8le` (the same in little-endian, as the format's first description
may be read), `h4` (as `h8`, with a 4-byte length).

Limits: ids below 2^32, files below 2^63 bytes. Checked against Modalities 0.5.0; older layouts against files written
by the code of their time.

Files: `layout` which of them a file has · `index` its documents · `source` · `writer` · `check` ·
`repair`.
"""

from __future__ import annotations

from penstock.errors import NotFound
from penstock.formats._findings import Problem
from penstock.formats.tokens.pbin.check import check_pbin
from penstock.formats.tokens.pbin.layout import find_layout
from penstock.formats.tokens.pbin.repair import repair_pbin
from penstock.formats.tokens.pbin.source import open_pbin
from penstock.formats.tokens.pbin.writer import create_pbin, join_pbin, write_pbin_manifest
from penstock.store.base import Store
from penstock.types import Sniff, Traits


class _Pbin:
    name = "pbin"
    traits = Traits(
        remote=True,
        write=True,
        tokens=True,
        layouts=True,
        verify=True,
        repair=True,
        suffixes=(".pbin", ".packed.bin"),
        made_by="Modalities",
    )

    def sniff(self, store: Store, path: str, /) -> Sniff:
        """Detect the format by name, else by header, first index entry and last bytes."""
        if store.is_folder(path):
            return Sniff(False, "a folder")
        try:
            found = find_layout(store, path)
        except NotFound:
            return Sniff(False, "no such file")
        if not isinstance(found, Problem):
            return Sniff(True, f"header and index of the layout {found.layout.name}")
        # Damaged data is accepted here, because `open` and `verify` describe the damage.
        return Sniff(path.endswith(self.traits.suffixes) and found.code != "pbin.header", found.what)

    open = staticmethod(open_pbin)
    create = staticmethod(create_pbin)
    join = staticmethod(join_pbin)
    check = check_by_tasks = staticmethod(check_pbin)
    task_depths = share_depths = ("full",)
    repair = staticmethod(repair_pbin)
    write_manifest = staticmethod(write_pbin_manifest)


FORMAT = _Pbin()
