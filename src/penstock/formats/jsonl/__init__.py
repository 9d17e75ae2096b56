"""Raw JSONL: one JSON value a line, found by an index beside the file.

The file:

| bytes | content |
|---|---|
| a line | JSON by Python's rules (`json.loads`), without a line end inside |
| `0a` | ends a line; the last one may lack it; a `0d` before it belongs to the line |

The index of Modalities, `<stem>.idx` (only the last suffix gives way), is a pickled list of `(start, length)` in bytes,
one pair a line, the `0a` not counted; its opcodes stand in `penstock.codec.pickles`. Empty: `80 04 5d 94 2e`.

Limits: files below 2^63 bytes. Checked against Modalities 0.5.0.

Files: `scan` lines and their validity · `build` the index made · `index` read and held against its file ·
`source` · `writer` · `check` · `repair`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.abc import Store
from penstock.errors import NotFound
from penstock.formats.jsonl.check import check_jsonl
from penstock.formats.jsonl.repair import repair_jsonl, write_jsonl_manifest
from penstock.formats.jsonl.source import JsonlSource, open_jsonl
from penstock.formats.jsonl.writer import JsonlWriter, create_jsonl
from penstock.types import Action, Depth, Finding, OpenOptions, Sniff, Traits

_SNIFF_BYTES = 1 << 16


class _Jsonl:
    name = "jsonl"
    traits = Traits(
        write=True,
        verify=True,
        repair=True,
        suffixes=(".jsonl", ".ndjson"),
        made_by="Modalities",
    )

    def sniff(self, store: Store, path: str, /) -> Sniff:
        """By name, else by a first line that is a JSON object."""
        if store.is_folder(path):
            return Sniff(False, "a folder")
        try:
            head = store.get(path, 0, _SNIFF_BYTES)
        except NotFound:
            return Sniff(False, "no such file")
        if path.endswith(self.traits.suffixes):
            return Sniff(True, "named as a JSONL file")
        if path.endswith(".json"):
            return Sniff(False, "named as one JSON document")
        line, newline, _ = head.lstrip().partition(b"\n")
        if not newline and len(head) == _SNIFF_BYTES:
            return Sniff(False, "no line ends in the first 64 KiB")
        try:
            is_object = isinstance(json.loads(line), dict)
        except (ValueError, RecursionError):
            is_object = False
        return Sniff(is_object, f"the first line is {'a' if is_object else 'no'} JSON object")

    def open(self, store: Store, path: str, options: OpenOptions, /) -> JsonlSource:
        """See `source.open_jsonl`."""
        return open_jsonl(store, path, options)

    def create(self, store: Store, path: str, options: Mapping[str, Any], *, overwrite: bool) -> JsonlWriter:
        """See `writer.create_jsonl`."""
        return create_jsonl(store, path, options, overwrite=overwrite)

    def check(self, store: Store, path: str, options: OpenOptions, depth: Depth, /) -> list[Finding]:
        """See `check.check_jsonl`."""
        return check_jsonl(store, path, options, depth)

    def repair(
        self, store: Store, path: str, options: OpenOptions, findings: Sequence[Finding], *, write: bool
    ) -> list[Action]:
        """See `repair.repair_jsonl`."""
        return repair_jsonl(store, path, findings, write=write)

    def write_manifest(self, store: Store, path: str, options: OpenOptions, /) -> str:
        """See `repair.write_jsonl_manifest`."""
        return write_jsonl_manifest(store, path, options)


FORMAT = _Jsonl()
