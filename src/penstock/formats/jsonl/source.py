"""Read a JSONL file by its index."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from penstock._arrays import as_index, as_indices, stack
from penstock._digest import digest
from penstock._limits import require_memory_for
from penstock.abc import SupportsMmap
from penstock.errors import ConfigError, Corrupt, Unsupported
from penstock.formats._manifest import data_fingerprint, side_path
from penstock.formats._proof import Proof, file_proof
from penstock.formats._sources import StoredSource, map_least, preferred_mode, redacted
from penstock.formats.jsonl.build import is_skipping, may_map
from penstock.formats.jsonl.energon import EnergonJsonlSource
from penstock.formats.jsonl.index import load_lines, remake, spread
from penstock.formats.jsonl.scan import fault_of
from penstock.formats.jsonl.text import Text, compression_of
from penstock.store.base import Store
from penstock.store.exclude_list import with_side_files
from penstock.store.fingerprint import once_a_host, sample_fingerprint
from penstock.store.mapped import Held
from penstock.store.side_file import file_facts, fitting_manifest
from penstock.types import Batch, Extent, Field, IntArray, Manifest, OpenOptions, Place, Sample, Schema

FLAVORS = ("modalities", "energon")
"""Rules for the index and for the content of a sample."""

_FINGERPRINT_LINES = 64
_UNREAD: Any = object()


def open_jsonl(
    store: Store, path: str, options: OpenOptions, *, skip_faulty: bool = False
) -> JsonlSource | EnergonJsonlSource:
    """Open a JSONL file, which may be compressed; reads only its size.

    Raises:
        NotFound: the file doesn't exist.
        ConfigError: the flavor is unknown.
        Unsupported: a compressed file with Energon's rules or memory mapping.
    """
    require_flavor(path, options.flavor)
    if isinstance(store, Text):  # reopened in a worker process
        return open_text(store, path, options)
    store.size(path)
    if compression_of(path) is not None:
        return open_text(Text(store, path, [path]), path, options)
    if options.flavor == "energon":
        return EnergonJsonlSource(store, path, options)
    return JsonlSource(store, path, options, skip_faulty=skip_faulty)


def open_text(text: Text, path: str | Sequence[str], options: OpenOptions) -> JsonlSource:
    """Open the lines of several files, or of a compressed one.

    Args:
        text: the content of the files.
        path: the argument of `penstock.open`: a file, a folder, a pattern or a list of these.
        options: see `penstock.formats.open_source`.

    Raises:
        ConfigError: the flavor is unknown.
        Unsupported: Energon's rules or memory mapping.
    """
    require_flavor(text.path, options.flavor)
    if options.flavor == "energon":
        what = "Energon's format needs a single uncompressed JSONL file"
        raise Unsupported(what, path=text.path, hint="Omit flavor= (--flavor), or decompress and join the files")
    if options.read == "mmap":
        hint = 'Open without read="mmap"'
        raise Unsupported("several files or compressed files can't be memory-mapped", path=text.path, hint=hint)
    return JsonlSource(text, text.path, options, path)


def require_flavor(path: str | None, flavor: str) -> None:
    if flavor not in FLAVORS:
        raise ConfigError("unknown flavor of JSONL", path=path, found=flavor, expected=" | ".join(FLAVORS))


class JsonlSource(StoredSource):
    """Lines of one or several JSONL files; see `penstock.abc.Source`. Returned by `penstock.open`.

    A sample is the object of the line, or `{"value": …}` if the line isn't an object. With `raw=True` it is
    `{"line": bytes}`, without the line end. `columns=` keeps only these fields. The index is read, or built if it is
    missing, at the first access to a line.
    """

    title = "jsonl"
    stated = ("flavor", "raw", "columns", "follow_links")

    def __init__(
        self,
        store: Store,
        path: str,
        options: OpenOptions,
        asked_for: str | Sequence[str] | None = None,
        *,
        skip_faulty: bool = False,
    ) -> None:
        super().__init__(store, path, options)
        self._asked_for = path if asked_for is None else asked_for
        self._skip_faulty = skip_faulty or is_skipping()
        self._mapping = _is_mapped(store, path, options)
        self._known_lines: IntArray | None = None
        self._size_bytes = 0
        self._view = Held(self._map)
        self._manifest: Manifest | None = _UNREAD

    def __reduce__(self) -> tuple[object, ...]:
        if isinstance(self._store, Text):
            return (open_text, (self._store, self._asked_for, self._options))
        opening = partial(open_jsonl, skip_faulty=True) if self._skip_faulty else open_jsonl
        return (opening, (self._store, self._path, self._options))

    @property
    def schema(self) -> Schema:
        """Schema of the rows: one field `line` if raw; otherwise the selected fields, open to others."""
        if self._options.raw:
            return Schema((Field("line", "bytes"),))
        return Schema(tuple(Field(name, "json") for name in self._options.columns or ()), open=True)

    @property
    def size_bytes(self) -> int:
        if isinstance(self._store, Text):
            return int(self._store.stored_stops()[-1])
        return self._store.size(self._path)

    @property
    def files(self) -> tuple[Store, Sequence[str]]:
        return (self._store.base, self._store.files) if isinstance(self._store, Text) else (self._store, (self._path,))

    def proof(self) -> Proof | None:
        """Return the digests of one file that its side file records; see `penstock.formats._proof`.

        For several files, only sizes and edges are compared.
        """
        if not isinstance(self._store, Text):
            return file_proof("jsonl", self._store, self._path)
        base = self._store.base
        for path in with_side_files(base, self._store.files):
            file_proof("jsonl", base, path)
        return None

    def _read_files(self) -> tuple[Store, Sequence[str]]:
        return self.files

    @property
    def preferred_mode(self) -> str:
        """Default mode of `Shuffle`: `"blocks"` for remote and compressed files."""
        if isinstance(self._store, Text):
            return preferred_mode(self._store.base, compressed=self._store.count_compressed() > 0)
        return preferred_mode(self._store)

    def _find_fingerprint(self) -> str:
        lines, text = self._lines, self._store
        index = digest(self._options.flavor, len(lines), spread(lines, _FINGERPRINT_LINES).tolist()).encode()
        if not isinstance(text, Text):
            return data_fingerprint(text, "jsonl", index, self._path, self.manifest)

        def find() -> str:
            return sample_fingerprint(text.base, "jsonl", index, text.named())

        return once_a_host(text.base, text.files, f"jsonl {digest(index.hex())}", find)

    @property
    def manifest(self) -> Manifest | None:
        """Content of the side file, or None if there is none or it doesn't belong to this file."""
        if self._manifest is _UNREAD and isinstance(self._store, Text):
            self._manifest = None
        if self._manifest is _UNREAD:
            facts = functools.partial(file_facts, self._store, self._path, "jsonl")
            self._manifest = fitting_manifest(self._store, side_path(self._path), facts)
        return self._manifest

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int, /) -> Sample:
        place = as_index(index, len(self._lines))
        start, length = self._lines[place].tolist()
        return self._sample(self._read([(start, start + length)])[0], place, start)

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the lines at `indices` (int64[k]) as columns; a field that a line lacks is None in its row."""
        chosen = as_indices(indices, len(self._lines))
        lines = self._lines[chosen]
        starts = lines[:, 0].tolist()
        data = self._read(list(zip(starts, lines.sum(1).tolist(), strict=True)))
        return stack(list(map(self._sample, data, chosen.tolist(), starts)))

    def line_ranges(self) -> IntArray:
        """Return int64[k, 2], start and length in bytes of each line in `text`, without its line end."""
        return self._lines

    @property
    def text(self) -> tuple[Store, str]:
        """Store and path of the bytes that hold the lines: the file, or the joined content of several files."""
        return self._store, self._path

    def place_of(self, index: int, /) -> Place:
        """Return the place of line `index` in the file, without its line end."""
        start, length = self._lines[as_index(index, len(self._lines))].tolist()
        if isinstance(self._store, Text):
            return Place(extents=self._store.extents(start, length))
        return Place(extents=(Extent(self._path, start, length),))

    def details(self) -> dict[str, Any]:
        if not isinstance(self._store, Text):
            return {}
        compressed = self._store.count_compressed()
        return {"files": len(self._store.files), **({"compressed files": compressed} if compressed else {})}

    def recipe(self) -> dict[str, Any]:
        several = isinstance(self._store, Text) and self._store.files != (self._path,)
        name = "jsonl-files" if several else "jsonl"
        return {**super().recipe(), "format": name, "path": redacted(self._asked_for)}

    def shown(self) -> dict[str, Any]:
        return {"path": self._path, "lines": None if self._known_lines is None else len(self._known_lines)}

    @property
    def _lines(self) -> IntArray:
        # Two threads may both get here. They read the same index, and one copy is freed.
        if self._known_lines is None:
            self._size_bytes = self._store.size(self._path)
            text = self._store
            self._known_lines = (
                text.lines() if isinstance(text, Text) else load_lines(text, self._path, skip_faulty=self._skip_faulty)
            )
        return self._known_lines

    def _read(self, ranges: list[tuple[int, int]]) -> Sequence[bytes | memoryview]:
        if not self._mapping:
            return self._store.get_ranges(self._path, ranges)
        view = self._view.get()
        return [view[start:stop] for start, stop in ranges]

    def _map(self) -> memoryview:
        what = "the file became shorter after its index was read"
        return map_least(self._store, self._path, self._size_bytes, what).data

    def _sample(self, data: bytes | memoryview, index: int, start: int) -> Sample:
        if self._options.raw:
            return {"line": bytes(data)}
        try:
            value = decode_line(data)
        except (ValueError, RecursionError):
            path, start = self._store.path_at(start) if isinstance(self._store, Text) else (self._path, start)
            raise Corrupt(
                f"the line at index {index} is not valid JSON",
                path=path,
                offset_bytes=start,
                found=fault_of(bytes(data)),
                hint=f"Fix the line. If the file changed after indexing: {remake(path)}",
            ) from None
        sample: Sample = value if isinstance(value, dict) else {"value": value}
        columns = self._options.columns
        return sample if columns is None else {name: sample[name] for name in columns if name in sample}


def _is_mapped(store: Store, path: str, options: OpenOptions) -> bool:
    if options.read == "auto":
        return may_map(store, path)
    if options.read == "mmap" and not isinstance(store, SupportsMmap):
        raise Unsupported("files of this store can't be mapped", path=path, hint='Open with read="pread"')
    return options.read == "mmap"


def decode_line(data: bytes | memoryview) -> Any:
    """Return the value of a line, like `json.loads`; raise `ValueError` or `RecursionError`."""
    require_memory_for(data)
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Python's reader accepts NaN, a byte order mark, lone surrogates and numbers beyond the range of a float.
        return json.loads(bytes(data))
