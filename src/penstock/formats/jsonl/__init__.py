"""Raw JSONL: one JSON value per line, located by an index next to the file or by a scan cached once per host.

The file:

| bytes | content |
|---|---|
| line | JSON by Python's rules (`json.loads`), without a line end inside |
| `0a` | ends a line; the last line may lack it; a preceding `0d` is part of the line |

The index of Modalities, `<stem>.idx` (replaces only the last suffix), is a pickled list of `(start, length)` in bytes,
one pair per line, without the `0a`. Its opcodes are documented in `penstock.codec.pickles`. Empty: `80 04 5d 94 2e`.
Until v0.3.2 the length was in characters and excluded a final `0d`. The path of an index opens its JSONL file.

Limits: files below 2^63 bytes. Checked against Modalities 0.5.0.

Files: `scan` finds and validates lines · `build` makes the index · `index` reads it and checks it against its file ·
`source` · `writer` · `check` and repair · `energon` the same by Energon's rules · `several` files as one dataset, with
`text` as their concatenated content · `decompress` gzip and zstd.

Other packages use the registry. Code that indexes, packs or splits lines may import `build`, `decompress`, `energon`,
`index`, `scan`, `source` and `text`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from penstock.errors import NotFound, Unsupported
from penstock.formats._repairs import repaired_by
from penstock.formats.jsonl.build import index_path_for
from penstock.formats.jsonl.check import (
    NO_INDEX,
    REPAIRS,
    check_jsonl,
    write_jsonl_manifest,
)
from penstock.formats.jsonl.energon import (
    EnergonJsonlSource,
    check_energon_index,
    energon_index_path,
)
from penstock.formats.jsonl.source import JsonlSource, open_jsonl
from penstock.formats.jsonl.text import COMPRESSED, compression_of
from penstock.formats.jsonl.writer import create_jsonl
from penstock.store.base import Store
from penstock.types import Action, Depth, Finding, OpenOptions, Sniff, Traits

_SNIFF_BYTES = 1 << 16
_INDEX_HEAD = b"\x80\x04"
_PLAIN = (".jsonl", ".ndjson")
_SUFFIXES = (*_PLAIN, *(plain + suffix for plain in _PLAIN for suffix in COMPRESSED))


class _Jsonl:
    name = "jsonl"
    traits = Traits(
        remote=True,
        write=True,
        verify=True,
        repair=True,
        suffixes=_SUFFIXES,
        made_by="Modalities",
    )

    def sniff(self, store: Store, path: str, /) -> Sniff:
        """Recognize a file by its name or a first line that is a JSON object, and an index by its JSONL file."""
        if store.is_folder(path):
            return Sniff(False, "a folder")
        if _lines_path(store, path) != path:
            return Sniff(True, f"the index of {_lines_path(store, path)}")
        try:
            head = store.get(path, 0, _SNIFF_BYTES)
        except NotFound:
            return Sniff(False, "no such file")
        if path.endswith(self.traits.suffixes):
            return Sniff(True, "a JSONL file name")
        if path.endswith((".json", ".yaml", ".yml")):
            return Sniff(False, "the name of a JSON or YAML document")
        line, newline, _ = head.lstrip().partition(b"\n")
        if not newline and len(head) == _SNIFF_BYTES:
            return Sniff(False, "no line end in the first 64 KiB")
        try:
            is_object = isinstance(json.loads(line), dict)
        except (ValueError, RecursionError):
            is_object = False
        return Sniff(is_object, f"the first line is {'a' if is_object else 'not a'} JSON object")

    def files_at(self, path: str, /) -> tuple[str, ...]:
        """Return the file and its possible indexes, or only `path` if it is an index or compressed."""
        return (
            (path,) if path.endswith((".idx", *COMPRESSED)) else (path, index_path_for(path), energon_index_path(path))
        )

    def open(self, store: Store, path: str, options: OpenOptions, /) -> JsonlSource | EnergonJsonlSource:
        return open_jsonl(store, _lines_path(store, path), options)

    create = staticmethod(create_jsonl)

    def check(self, store: Store, path: str, options: OpenOptions, depth: Depth, /) -> list[Finding]:
        """Return the findings of `check_jsonl`; also check Energon's index if it exists."""
        lines_path = _lines_path(store, path)
        findings = check_jsonl(store, lines_path, options, depth)
        plain = options.flavor != "energon" and compression_of(lines_path) is None
        if plain and store.exists(energon_index_path(lines_path)):
            # A file prepared for Energon doesn't need an index of Modalities.
            findings = [one for one in findings if one.code != NO_INDEX]
            findings += check_energon_index(store, lines_path, depth)
        return findings

    def repair(
        self, store: Store, path: str, options: OpenOptions, findings: Sequence[Finding], *, write: bool
    ) -> list[Action]:
        lines_path = _lines_path(store, path)
        repairs = () if compression_of(lines_path) is not None else REPAIRS
        return repaired_by(*repairs)(store, lines_path, options, findings, write=write)

    def write_manifest(self, store: Store, path: str, options: OpenOptions, /, *, replace: bool = False) -> str:
        if compression_of(path) is not None:
            hint = "Decompress it, or convert it: penstock convert"
            raise Unsupported("a compressed JSONL file can't have a side file", path=path, hint=hint)
        return write_jsonl_manifest(store, _lines_path(store, path), options, replace=replace)


def _lines_path(store: Store, path: str) -> str:
    """Return the JSONL file that an index belongs to, or `path` itself."""
    if not path.endswith(".idx") or not store.exists(path):
        return path
    stem = path.removesuffix(".idx")
    if stem.endswith(_PLAIN) and store.exists(stem):
        return stem  # Energon's index
    # A damaged index may begin with any bytes. Next to a `.bin` it is more likely an index of Megatron-LM.
    if store.exists(stem + ".bin") and store.get(path, 0, len(_INDEX_HEAD)) != _INDEX_HEAD:
        return path
    return next((stem + suffix for suffix in (*_PLAIN, ".json") if store.exists(stem + suffix)), path)


FORMAT = _Jsonl()
