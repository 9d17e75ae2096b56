"""Megatron-LM's IndexedDataset: `<prefix>.bin` with all tokens, and `<prefix>.idx` with their index.

`.bin`: token ids of all sequences, little-endian, without a header. `.idx`, little-endian, for S sequences and D
documents:

| bytes | content |
|---|---|
| 0 … 9 | `MMIDIDX`, two zero bytes |
| 9 … 17 | u64: version, 1 |
| 17 | u8: dtype code: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 6 float64, 7 float32, 8 uint16 |
| 18 … 26 | u64: S |
| 26 … 34 | u64: D + 1 |
| 34 … 34 + 4·S | i32: length of each sequence in tokens |
| … + 8·S | i64: first byte of each sequence in the `.bin` |
| … + 8·(D + 1) | i64: first sequence of each document, and S |
| … + S | i8: mode of each sequence; multimodal data only |

A document is one or more sequences, or none. Only the size of the file shows whether it has modes. Read:
every dtype code, if its values are whole numbers from 0 that fit uint32, and sequences in any order, with gaps.
Written: one sequence a document, back to back, byte for byte as `IndexedDatasetBuilder` does.

Limits: ids below 2^32 (of int32 2^31, of float32 2^24), sequences below 2^31 tokens. Checked against megatron-core
0.16.1.

Files: `layout` names, header and facts of the side file · `index` arrays · `source` · `writer` · `publish` the commit ·
`kept` interrupted replacements · `check` · `repair`.
"""

from __future__ import annotations

from penstock.formats.tokens.megatron.check import check_megatron
from penstock.formats.tokens.megatron.kept import prefix_of, reading_commit
from penstock.formats.tokens.megatron.layout import bin_path, idx_path, is_index
from penstock.formats.tokens.megatron.repair import repair_megatron
from penstock.formats.tokens.megatron.source import open_megatron
from penstock.formats.tokens.megatron.writer import create_megatron, join_megatron, write_megatron_manifest
from penstock.store.base import Store
from penstock.types import Sniff, Traits


class _Megatron:
    name = "megatron"
    traits = Traits(
        remote=True,
        write=True,
        tokens=True,
        layouts=True,
        verify=True,
        repair=True,
        suffixes=(".idx", ".bin"),
        made_by="Megatron-LM",
    )

    def sniff(self, store: Store, path: str, /) -> Sniff:
        """Detect the format by the first bytes of the index."""
        store = reading_commit(store, path)
        prefix = prefix_of(store, path)
        if is_index(store, idx_path(prefix)):
            return Sniff(True, "a Megatron-LM index")
        if store.exists(idx_path(prefix)):
            return Sniff(False, f"{idx_path(prefix)} doesn't begin like an index")
        if store.exists(bin_path(prefix)):
            return Sniff(False, f"no index: {idx_path(prefix)} doesn't exist")
        return Sniff(False, "no .idx and .bin with this name")

    def files_at(self, path: str, /) -> tuple[str, ...]:
        """Return the files of the dataset that `path` names."""
        prefix = path[:-4] if path.endswith((".bin", ".idx")) else path
        return bin_path(prefix), idx_path(prefix)

    open = staticmethod(open_megatron)
    create = staticmethod(create_megatron)
    join = staticmethod(join_megatron)
    check = check_by_tasks = staticmethod(check_megatron)
    task_depths = share_depths = ("full",)
    repair = staticmethod(repair_megatron)
    write_manifest = staticmethod(write_megatron_manifest)


FORMAT = _Megatron()
