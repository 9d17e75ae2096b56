"""Records: samples as JSON, one after another, found by an index at the end of the file.

| bytes | what |
|---|---|
| 0–7 | `RECORDS1` |
| 8– | the records, each a JSON object in UTF-8, back to back |
| | uint64[n + 1], little-endian: where each record begins, and where the last one ends |
| last 8 | uint64: n |

Limits: 2^64 bytes. Memory of a source: 8 bytes a record. This format has no other tool.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from penstock.abc import Source, Store, SupportsMmap
from penstock.errors import ConfigError, Corrupt, FormatError, NotFound, Truncated
from penstock.formats import kit
from penstock.types import (
    Action,
    Batch,
    Depth,
    Extent,
    Finding,
    IntArray,
    Manifest,
    OpenOptions,
    Place,
    Sample,
    Schema,
    Sniff,
    Traits,
)

NAME, MAGIC, WORD_BYTES = "records", b"RECORDS1", 8
RESTORE = "Restore the file from a copy"


def encode_record(sample: Sample) -> bytes:
    """The bytes of one record; raises TypeError or ValueError for what JSON can't hold."""
    plain = {name: value.tolist() if isinstance(value, np.generic) else value for name, value in sample.items()}
    return json.dumps(plain, separators=(",", ":")).encode()


def decode_record(data: bytes, path: str, start: int) -> Sample:
    """The sample in a record."""
    try:
        sample = json.loads(data)
    except (ValueError, RecursionError):
        sample = None
    if not isinstance(sample, dict):
        raise Corrupt("a record that is no JSON object", path=path, offset_bytes=start, hint=RESTORE)
    return sample


def read_starts(store: Store, path: str) -> IntArray:
    """int64[n + 1]: the index of a file, held against its size before it is used."""
    size = store.size(path)
    if size < len(MAGIC) + 2 * WORD_BYTES or store.get(path, 0, len(MAGIC)) != MAGIC:
        raise Corrupt(f"no file of {NAME}", path=path, offset_bytes=0, expected=MAGIC, hint=RESTORE)
    count = int.from_bytes(store.get(path, size - WORD_BYTES, WORD_BYTES), "little")
    index_bytes = (count + 1) * WORD_BYTES
    index_start = size - WORD_BYTES - index_bytes
    if index_start < len(MAGIC):
        found, expected = f"{size} bytes", f"an index of {count:,} records"
        raise Truncated("the file is shorter than its index", path=path, found=found, expected=expected, hint=RESTORE)
    starts = np.frombuffer(store.get(path, index_start, index_bytes), "<u8").astype(np.int64)
    if starts[0] != len(MAGIC) or starts[-1] != index_start or (np.diff(starts) < 2).any():
        raise Corrupt("an index that does not fit its records", path=path, offset_bytes=index_start, hint=RESTORE)
    return starts


class RecordsSource:
    """The records of a file; made by `penstock.open`. Memory: 8 bytes a record."""

    def __init__(self, store: Store, path: str, options: OpenOptions) -> None:
        self.path, self._store, self._options = path, store, options
        self._starts = read_starts(store, path)
        self._mapped = store.mmap(path) if options.read == "mmap" and isinstance(store, SupportsMmap) else None
        self.manifest = kit.known_manifest(store, path)

    def __reduce__(self) -> tuple[object, ...]:
        return RecordsSource, (self._store, self.path, self._options)

    @property
    def schema(self) -> Schema:
        return Schema((), open=True)

    @property
    def fingerprint(self) -> str:
        return kit.fingerprint_of(self._store, self.path, NAME, self._starts.tobytes())

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int, /) -> Sample:
        start, stop = self._range(kit.as_index(index, len(self)))
        if self._mapped is not None:
            return decode_record(self._mapped[start:stop].tobytes(), self.path, start)
        return decode_record(self._store.get(self.path, start, stop - start), self.path, start)

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        ranges = [self._range(index) for index in kit.as_indices(indices, len(self)).tolist()]
        stored = self._store.get_ranges(self.path, ranges)  # one call: a remote store joins what lies together
        return kit.stack([decode_record(data, self.path, at) for data, (at, _) in zip(stored, ranges, strict=True)])

    def place_of(self, index: int, /) -> Place:
        start, stop = self._range(kit.as_index(index, len(self)))
        return Place(extents=(Extent(self.path, start, stop - start),))

    def children(self) -> Mapping[str, Source[Any]]:
        return {}

    def recipe(self) -> dict[str, Any]:
        return kit.recipe_of(NAME, self.path, self._options)

    def summary(self) -> str:
        return kit.line("records", {"path": self.path, "samples": len(self)})

    def __str__(self) -> str:
        return kit.tree(self)

    def _range(self, index: int) -> tuple[int, int]:
        return int(self._starts[index]), int(self._starts[index + 1])


class RecordsWriter:
    """Writes a file of records; made by `penstock.create`. Memory: 32 bytes a record, and 1 MiB."""

    def __init__(self, store: Store, path: str, *, overwrite: bool) -> None:
        self._file = kit.OutputFile(store, path, overwrite=overwrite)
        self._file.write(MAGIC)
        self._starts = [self._file.size_bytes]

    def write(self, sample: Sample, /) -> None:
        self._file.require_open()
        try:
            record = encode_record(sample)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"a sample that JSON can't hold: {error}", path=self._file.path) from None
        self._file.write(record)
        self._starts.append(self._file.size_bytes)

    def write_batch(self, batch: Batch, /) -> None:
        for values in zip(*batch.values(), strict=True):
            self.write(dict(zip(batch, values, strict=True)))

    def commit(self) -> Manifest:
        self._file.require_open()
        count = len(self._starts) - 1
        self._file.write(np.array([*self._starts, count], "<u8").tobytes())
        return self._file.commit(NAME, count, tool="penstock-example-format 1.0")

    def abort(self) -> None:
        self._file.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if kind is not None:
            self.abort()
        elif self._file.is_open:
            self.commit()


class Records:
    """See `penstock.abc.Format`."""

    name = NAME
    traits = Traits(write=True, remote=True, verify=True, suffixes=(".records",), made_by="this example")

    def sniff(self, store: Store, path: str, /) -> Sniff:
        try:
            matches = not store.is_folder(path) and store.get(path, 0, len(MAGIC)) == MAGIC
        except NotFound:
            return Sniff(False, "no such file")
        return Sniff(matches, f"it {'begins' if matches else 'does not begin'} with {MAGIC.decode()}")

    def open(self, store: Store, path: str, options: OpenOptions, /) -> RecordsSource:
        return RecordsSource(store, path, options)

    def create(self, store: Store, path: str, options: Mapping[str, Any], *, overwrite: bool) -> RecordsWriter:
        kit.refuse_unknown(path, options)
        return RecordsWriter(store, path, overwrite=overwrite)

    def check(self, store: Store, path: str, options: OpenOptions, depth: Depth, /) -> list[Finding]:
        """`quick` looks at the index and a record, `sample` at 1,024 records, `full` at every record and byte."""
        try:
            source = self.open(store, path, options)
        except FormatError as error:
            return [kit.finding_of(NAME, error), *kit.check_side(store, path, NAME, None, depth)]
        findings = kit.check_side(store, path, NAME, len(source), depth)
        for index in range(
            0, 0 if depth == "quick" else len(source), 1 if depth == "full" else len(source) // 1024 + 1
        ):
            try:
                source[index]
            except FormatError as error:
                findings.append(kit.finding_of(NAME, error))
        return findings

    def repair(
        self, store: Store, path: str, options: OpenOptions, findings: Sequence[Finding], *, write: bool
    ) -> list[Action]:
        """Nothing can be mended: there is one index, and no second copy of a record."""
        return []


FORMAT = Records()
