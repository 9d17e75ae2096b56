"""`shard_ledger.json` of levanter: the number of rows of a cache, and their folders."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock._digest import digest
from penstock.errors import Corrupt, NotFound, UnsafeData, Unsupported
from penstock.store.base import Store

LEDGER = "shard_ledger.json"
AGAIN = "Copy it again, or recreate it"

_OLD_LEDGER = "cache_ledger.json"
_MOST_LEDGER_BYTES = 1 << 28
_MOST_ROWS = 1 << 48
_CONSOLIDATED, _SHARDED = "consolidated", "sharded"


class _Stored(msgspec.Struct):
    total_num_rows: int
    shard_rows: dict[str, int]
    is_finished: bool = False
    finished_shards: list[str] = []
    field_counts: dict[str, int] = {}
    field_counts_by_shard: dict[str, dict[str, int]] = {}
    layout: str = _CONSOLIDATED
    metadata: dict[str, Any] | None = None


class Part(msgspec.Struct, frozen=True):
    """Folder of arrays.

    Attributes:
        folder: path of the folder.
        rows: number of rows.
        counts: number of values in all rows, per field; empty if not recorded.
    """

    folder: str
    rows: int
    counts: dict[str, int]


class Ledger(msgspec.Struct, frozen=True):
    """Content of the ledger.

    Attributes:
        path: path of the ledger.
        parts: parts in order: one, or one per shard.
        preprocessor: source of the rows, such as a tokenizer's name; None if not recorded.
        fingerprint: digest of all that.
    """

    path: str
    parts: tuple[Part, ...]
    preprocessor: dict[str, Any] | None
    fingerprint: str

    @property
    def rows(self) -> int:
        """Number of rows in all parts."""
        return sum(part.rows for part in self.parts)


def read_ledger(store: Store, folder: str) -> Ledger:
    """Return the content of the ledger of a finished cache.

    Raises:
        NotFound: the ledger doesn't exist.
        Corrupt: it is damaged, or the cache is unfinished.
        Unsupported: an unknown layout or version.
        UnsafeData: the name of a shard leads out of the folder.
    """
    path = f"{folder}/{LEDGER}"
    found = _parse(store, path)
    if not found.is_finished:
        hint = "Let levanter finish building it"
        raise Corrupt("the cache is unfinished", path=path, found=f"{found.total_num_rows} rows so far", hint=hint)
    if not 0 <= found.total_num_rows < _MOST_ROWS:
        raise damaged(path, "the number of rows is missing", found.total_num_rows)
    if found.layout == _CONSOLIDATED:
        parts = (Part(folder, found.total_num_rows, found.field_counts),)
    elif found.layout == _SHARDED:
        parts = tuple(_shard(found, name, folder, path) for name in found.finished_shards)
        if sum(part.rows for part in parts) != found.total_num_rows or len(set(found.finished_shards)) < len(parts):
            total = sum(part.rows for part in parts)
            raise damaged(
                path, "the rows of the shards don't add up to the rows of the cache", total, found.total_num_rows
            )
    else:
        what, expected = "unknown layout", f"{_CONSOLIDATED} or {_SHARDED}"
        raise Unsupported(what, path=path, found=found.layout[:80], expected=expected)
    told = [[part.folder[len(folder) :], part.rows, sorted(part.counts.items())] for part in parts]
    preprocessor = (found.metadata or {}).get("preprocessor_metadata")
    made = preprocessor if isinstance(preprocessor, dict) else None
    return Ledger(path, parts, made, digest("levanter", told))


def require_ledger(store: Store, folder: str) -> None:
    """Raise `NotFound` for a folder without a ledger."""
    if store.exists(f"{folder}/{LEDGER}"):
        return
    hint = "levanter writes it when it builds a cache"
    if store.exists(f"{folder}/{_OLD_LEDGER}"):
        hint = "Levanter 1.1 and older wrote Parquet files: open them with --tokens-column input_ids"
    raise NotFound("no shard_ledger.json from levanter", path=folder, hint=hint)


def looks_like(head: bytes) -> bool:
    """Return whether a file with this beginning is such a ledger."""
    return head.lstrip().startswith(b"{") and b'"total_num_rows"' in head[:64]


def damaged(path: str, what: str, found: Any, expected: Any = None) -> Corrupt:
    """Return the error for a cache that contradicts itself."""
    return Corrupt(f"the cache is damaged: {what}", path=path, found=f"{found!s:.80}", expected=expected, hint=AGAIN)


def _parse(store: Store, path: str) -> _Stored:
    size_bytes = store.size(path)
    if size_bytes > _MOST_LEDGER_BYTES:
        raise damaged(path, "too large for a ledger", f"{size_bytes} bytes")
    try:
        raw = msgspec.json.decode(store.get(path))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise damaged(path, "the ledger is not JSON", error) from None
    unknown = sorted(set(raw) - set(_Stored.__struct_fields__)) if isinstance(raw, dict) else []
    if unknown:
        hint = "It was written by a newer version of levanter than Penstock supports"
        raise Unsupported("unknown keys in the ledger", path=path, found=f"{unknown}"[:200], hint=hint)
    try:
        return msgspec.convert(raw, _Stored)
    except msgspec.ValidationError as error:
        raise damaged(path, "not a ledger", error) from None


def _shard(found: _Stored, name: str, folder: str, path: str) -> Part:
    if not name or name.startswith("/") or ".." in name.split("/") or "\0" in name or "\\" in name or "://" in name:
        raise UnsafeData("a shard name points outside the cache", path=path, found=repr(name[:200]))
    rows = found.shard_rows.get(name, -1)
    if not 0 <= rows < _MOST_ROWS:
        raise damaged(path, f"the number of rows is missing of the shard {name!r:.80}", rows)
    return Part(f"{folder}/{name}", rows, found.field_counts_by_shard.get(name, {}))
