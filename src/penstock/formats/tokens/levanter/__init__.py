"""levanter: a cache of rows of arrays, such as documents of tokens, as its `TreeCache` has it. Read only.

| file | content |
|---|---|
| `shard_ledger.json` | number of rows, whether it is finished, shards, number of values per field, and origin |
| `<field>/offsets` | int64: number of rows, then where each row ends in the values |
| `<field>/data` | the values of all rows, back to back |
| `<field>/shapes` | int64[rows, axes - 1]: the shape of each row but for its last axis; of rows of more than one axis |

These are zarr arrays, version 3, of 2^54 items in chunks of 2^27, each a shard of Blosc chunks of 2^18 items; items
that are zero need not be stored. The layout `sharded` has a folder of fields for each shard; ledgers inside of it are
ignored.

Files: `ledger` the content of the ledger · `arrays` a field · `rows`.

Limits: only dtypes of NumPy. Checked against marin-levanter 0.2.20.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.abc import Source
from penstock.errors import ConfigError, FormatError, NotFound, PenstockError, UnsafeData
from penstock.formats._findings import Problem
from penstock.formats._registry import refuse_to_create, repair_nothing
from penstock.formats.tokens.levanter.ledger import LEDGER, looks_like, read_ledger, require_ledger
from penstock.formats.tokens.levanter.rows import LevanterRows, check_rows
from penstock.store.base import Store
from penstock.store.put import beginning_of
from penstock.types import Depth, Finding, OpenOptions, Sample, Sniff, Traits

_HEAD_BYTES = 4096


def open_levanter(store: Store, path: str, options: OpenOptions) -> Source[Sample]:
    """Open a cache, by one read of its ledger.

    Raises:
        NotFound: the ledger doesn't exist.
        FormatError: the ledger is damaged, of an unknown version, or of an unfinished cache.
    """
    root = path.rstrip("/") or path
    require_ledger(store, root)
    return LevanterRows(store, root, options, read_ledger(store, root), open_levanter)


def check_levanter(store: Store, path: str, options: OpenOptions, depth: Depth) -> list[Finding]:
    """Check ledger, metadata and offsets; `full`: every row, and ids if options name a column of them.

    Raises:
        NotFound: the ledger doesn't exist.
        ConfigError: unknown column.
    """
    root = path.rstrip("/") or path
    require_ledger(store, root)
    try:
        rows = LevanterRows(store, root, options, read_ledger(store, root), open_levanter)
        found = list(check_rows(rows, depth == "full"))
    except (FormatError, NotFound, UnsafeData) as error:
        return [_finding(error, root)]
    return [_finding(one, root) if isinstance(one, PenstockError) else _absent(one) for one in found]


def _finding(error: PenstockError, root: str) -> Finding:
    if isinstance(error, ConfigError):
        raise error
    return replace(Problem.of_error("levanter.damaged", error, path=root), offset_bytes=None).finding()


def _absent(path: str) -> Finding:
    fix = "Files of only zeros aren't stored. If it had other values, copy it again"
    return Problem.warning("levanter.absent", path, "a file of values is missing", fix).finding()


class _Levanter:
    name = "levanter"
    traits = Traits(remote=True, verify=True, made_by="levanter")

    def sniff(self, store: Store, path: str, /) -> Sniff:
        """Detect the format by the beginning of `shard_ledger.json`."""
        head = beginning_of(store, f"{path.rstrip('/') or path}/{LEDGER}", _HEAD_BYTES)
        if head is None:
            return Sniff(False, "no shard_ledger.json")
        return Sniff(looks_like(head), "a ledger of rows" if looks_like(head) else "a ledger without rows")

    open = staticmethod(open_levanter)
    create = refuse_to_create
    check = staticmethod(check_levanter)
    repair = repair_nothing


FORMAT = _Levanter()
