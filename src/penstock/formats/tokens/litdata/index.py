"""`index.json` of litdata: the chunks, and the encoding of their content."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

import msgspec

from penstock._digest import digest
from penstock.errors import Corrupt, NotFound, UnsafeData, Unsupported
from penstock.formats._findings import Problem
from penstock.store.base import Store

INDEX = "index.json"
MOST_INDEX_BYTES = 1 << 28
TOKENS, SAMPLES = "TokensLoader", "PyTreeLoader"
AGAIN = "Copy it again, or recreate it"

_LEVELS = (None, "chunk", "batch", "sample")
_KNOWN = {
    *("chunk_bytes", "chunk_size", "compression", "compression_batch_size", "compression_level", "data_format"),
    *("data_spec", "encryption", "ipc_compression", "item_loader", "types"),
}
_MOST_LEAVES = 1 << 12


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk file.

    Attributes:
        path: path of the file.
        size_bytes: size of its content, before the whole file was compressed.
        items: number of items.
        tokens: number of tokens, if recorded.
    """

    path: str
    size_bytes: int
    items: int
    tokens: int | None

    @property
    def header_bytes(self) -> int:
        """Size of the number of items and their offsets."""
        return 4 * (self.items + 2)


@dataclass(frozen=True, slots=True)
class Index:
    """Content of `index.json`.

    Attributes:
        path: path of the index.
        chunks: chunks in order.
        is_tokens: items are runs of tokens, else samples.
        level: unit of zstd compression: `"chunk"`, each whole file; `"batch"` or `"sample"` in it; None: uncompressed.
        leaves: formats of the values of an item, such as `"int"` or `"no_header_numpy:5"`.
        spec: tree with these values as its leaves.
        fingerprint: digest of all that.
    """

    path: str
    chunks: tuple[Chunk, ...]
    is_tokens: bool
    level: str | None
    leaves: tuple[str, ...]
    spec: Any
    fingerprint: str


def read_index(store: Store, folder: str) -> Index:
    """Return the content of `index.json`.

    Raises:
        NotFound: the index doesn't exist.
        Corrupt: it is damaged.
        Unsupported: encrypted chunks, or an unknown version.
        UnsafeData: a name leads out of the folder.
    """
    path = f"{folder}/{INDEX}"
    found = _json(store, path)
    config, listed = found.get("config"), found.get("chunks")
    if not isinstance(config, dict) or not isinstance(listed, list):
        raise _damaged(path, "no chunks, or no config", sorted(found)[:8])
    config = cast(dict[str, Any], config)
    loader = config.get("item_loader") or SAMPLES
    level = _level(config, path)
    if config.get("encryption"):
        raise Unsupported("the chunks are encrypted", path=path, hint="Write them again without encryption")
    if loader not in (TOKENS, SAMPLES):
        hint = "Open the Parquet files directly" if loader == "ParquetLoader" else "Write it again with optimize()"
        raise Unsupported("chunks of this loader aren't supported", path=path, found=str(loader)[:80], hint=hint)
    unknown = sorted(name for name, value in config.items() if name not in _KNOWN and value is not None)
    if unknown:
        hint = "It was written by a newer version of litdata than 0.2.76"
        raise Unsupported("unknown keys in the config", path=path, found=", ".join(unknown)[:200], hint=hint)
    leaves = config.get("data_format")
    if not _are_texts(leaves) or not 0 < len(leaves) <= _MOST_LEAVES:
        raise _damaged(path, "data_format is not a list of names", leaves)
    chunks = tuple(_chunk(one, folder, path) for one in cast(list[Any], listed))
    spec = _spec(config.get("data_spec"), path) if loader == SAMPLES else None
    told = [[one.path[len(folder) :], one.size_bytes, one.items, one.tokens] for one in chunks]
    print_of = digest("litdata", told, list(leaves), config.get("data_spec"), level, loader)
    return Index(path, chunks, loader == TOKENS, level, tuple(leaves), spec, print_of)


def looks_like(head: bytes) -> bool:
    """Return whether a file with this beginning is such an index."""
    return head.lstrip().startswith(b"{") and b'"chunks"' in head[:32] and b'"chunk_bytes"' in head


def damaged(path: str, what: str, found: Any, expected: Any = None, offset_bytes: int | None = None) -> Corrupt:
    """Return the error for a file that contradicts the index or itself."""
    shown = f"{found!s:.80}"
    return Corrupt(what, path=path, found=shown, expected=expected, offset_bytes=offset_bytes, hint=AGAIN)


def size_problem(chunk: Chunk, found_bytes: int) -> Problem:
    """Return the problem of a chunk with another file size than in the index."""
    what, expected = "the chunk has a different size than recorded in the index", f"{chunk.size_bytes} bytes"
    return Problem("litdata.size", Corrupt, chunk.path, what, AGAIN, None, f"{found_bytes} bytes", expected)


def _json(store: Store, path: str) -> dict[str, Any]:
    size_bytes = store.size(path)
    if size_bytes > MOST_INDEX_BYTES:
        raise _damaged(path, "the index is too large", size_bytes)
    try:
        found = msgspec.json.decode(store.get(path))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _damaged(path, "not JSON", error) from None
    if not isinstance(found, dict):
        raise _damaged(path, "not a JSON object", type(found).__name__)
    return cast(dict[str, Any], found)


def _level(config: Mapping[str, Any], path: str) -> str | None:
    """Return the unit of compression."""
    compression, level = config.get("compression"), config.get("compression_level")
    if compression is None:
        return None
    if not isinstance(compression, str) or compression.partition(":")[0] != "zstd" or level not in _LEVELS:
        found = f"compression {compression!s:.40}, level {level!s:.40}"
        raise Unsupported("unknown compression", path=path, found=found, expected="zstd")
    return level or "chunk"


def _chunk(one: Any, folder: str, path: str) -> Chunk:
    if not isinstance(one, dict):
        raise _damaged(path, "a chunk is not an object", one)
    told = cast(dict[str, Any], one)
    name, size_bytes, items = told.get("filename"), told.get("chunk_bytes"), told.get("chunk_size")
    tokens = told.get("dim")
    if not isinstance(name, str) or not name:
        raise _damaged(path, "a chunk has no file name", name)
    if name.startswith("/") or ".." in name.split("/") or "\0" in name or "\\" in name:
        raise UnsafeData("a file name points outside the dataset", path=path, found=repr(name[:200]))
    for number in (size_bytes, items, *(() if tokens is None else (tokens,))):
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 48:
            raise _damaged(path, f"the sizes of {name!r:.80} are not numbers", told)
    return Chunk(f"{folder}/{name}", cast(int, size_bytes), cast(int, items), tokens)


def _spec(text: Any, path: str) -> Any:
    """Return the tree of `data_spec`: JSON of `[1, {type, context, children_spec}]`."""
    hint = "Write it again with litdata 0.2 or later"
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        found = None
    pair = cast(list[Any], found) if isinstance(found, list) else []
    if len(pair) != 2 or not isinstance(pair[1], dict):
        raise Unsupported("the tree of a sample is not JSON", path=path, found=f"{text!r:.80}", hint=hint)
    if pair[0] != 1:
        raise Unsupported("unknown version of the tree", path=path, found=f"{pair[0]!r:.40}", expected=1)
    return cast(dict[str, Any], pair[1])


def _are_texts(value: Any) -> TypeGuard[Sequence[str]]:
    return isinstance(value, Sequence) and all(isinstance(one, str) for one in cast(list[Any], value))


def _damaged(path: str, what: str, found: Any) -> Corrupt:
    return damaged(path, f"the index is damaged: {what}", found)


def require_index(store: Store, folder: str) -> None:
    """Raise `NotFound` for a folder without an index."""
    if not store.exists(f"{folder}/{INDEX}"):
        hint = "merge() writes it last: run optimize() until it finishes"
        raise NotFound("no index.json from litdata", path=folder, hint=hint)
