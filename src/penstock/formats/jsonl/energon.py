"""JSONL by the rules of Energon: samples with keys and an index of its own.

The index of `a.jsonl` is `a.jsonl.idx`: uint64[n_samples + 1] in native byte order, without a header. Entry i is the
start of the range of sample i, the last entry is the size of the file. A sample is a line that begins with `{` and ends
with `}` once white space is stripped; Energon doesn't check that it is JSON. Blank lines belong to the previous sample,
those at the beginning of the file to the first one. Checked against megatron-energon 7.4.1.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock._arrays import as_index, as_indices
from penstock._digest import digest
from penstock._limits import count_in
from penstock.errors import Corrupt, NotFound, PenstockError, Truncated
from penstock.formats._manifest import data_fingerprint
from penstock.formats._proof import Proof, file_proof
from penstock.formats._repairs import Damaged, Rewrite
from penstock.formats._sources import StoredSource, map_least, way_to_read
from penstock.formats._unrecognised import LINES_OF_A_LIST
from penstock.formats.jsonl.build import current_index
from penstock.formats.jsonl.scan import LineRange, NewlineFinder, line_pieces, line_runs
from penstock.store.base import Store
from penstock.store.derived import DerivedCache
from penstock.store.fingerprint import file_key
from penstock.store.mapped import Held
from penstock.store.put import put
from penstock.types import (
    Depth,
    Extent,
    Field,
    Finding,
    IntArray,
    MediaMetadata,
    OpenOptions,
    Place,
    Sample,
    Schema,
    SourceInfo,
)

INDEX_CODE = "jsonl.energon-index"
RESTORE_KIND = "Webdataset"

_PART = "json"
_SUFFIX = ".json"
_decoded = msgspec.json.decode
_STOP = itemgetter(1)
_ENTRY_BYTES = 8
_OPEN, _CLOSE, _RETURN, _NEWLINE = b"{}\r\n"
_BLOCK_BYTES = 1 << 19
_STARTS_VERSION = "jsonl-starts-1"
_STEP = 1024
_SHOWN_BYTES = 40
_FINGERPRINT_LINES = 64


def energon_index_path(path: str) -> str:
    return f"{path}.idx"


# --- making the index ----------------------------------------------------------------------------------------------


def scan_energon(store: Store, path: str, progress: Callable[[int], None] | None = None) -> IntArray:
    """Return int64[n_samples + 1], the content of the index of a file.

    Memory: 16 bytes per sample and a few MB.

    Raises:
        NotFound: the file doesn't exist.
        Corrupt: a line isn't an object, or there are no lines. The error names the line.
    """
    size_bytes = store.size(path)
    work = LineRange(store, path, 0, size_bytes, size_bytes)
    runs: list[IntArray] = []
    num_lines = 0
    finder = NewlineFinder()
    for offset_bytes, block, used_bytes in line_runs(work, _BLOCK_BYTES, in_pieces=True):
        if block:
            starts, count = _starts(block, used_bytes, finder, path, offset_bytes, num_lines)
        else:
            starts, count = _start_of_long_line(work, offset_bytes, used_bytes, num_lines), 1
        runs.append(starts + offset_bytes)
        num_lines += count
        if progress is not None:
            progress(offset_bytes + used_bytes)
    found = np.concatenate([*runs, np.array([size_bytes])]) if runs else np.array([size_bytes])
    if len(found) < 2:
        what = "no sample in this file" if size_bytes else "the file is empty"
        raise Corrupt(what, path=path, found=f"{num_lines} blank lines", expected="one JSON object per line")
    found[0] = 0
    return found


def _starts(
    block: bytes, used_bytes: int, finder: NewlineFinder, path: str, offset_bytes: int, lines_before: int
) -> tuple[IntArray, int]:
    """Return int64[k], the starts of samples in a run of whole lines, and the number of all lines."""
    letters = np.frombuffer(block, np.uint8, used_bytes)
    ends = finder.find(letters)
    if letters[-1] != _NEWLINE:
        ends = np.append(ends, used_bytes)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1])
    lasts = np.maximum(ends - 1, starts)
    lasts -= (letters[lasts] == _RETURN) & (lasts > starts)
    is_object = (letters[starts] == _OPEN) & (letters[lasts] == _CLOSE)
    for row in np.flatnonzero(~is_object).tolist():
        text = block[int(starts[row]) : int(ends[row])].strip()
        if not text:
            continue
        if not (text.startswith(b"{") and text.endswith(b"}")):
            raise _no_object(path, lines_before + row + 1, offset_bytes + int(starts[row]), text)
        is_object[row] = True
    return starts[is_object], len(starts)


def _start_of_long_line(work: LineRange, place: int, length_bytes: int, lines_before: int) -> IntArray:
    """Return int64[1], 0, if a line too long for memory is a sample, or int64[0] if it is blank."""
    first = last = b""
    for piece in line_pieces(work, place, place + length_bytes):
        first = first if len(first) > _SHOWN_BYTES else (first + piece).lstrip()
        last = piece.rstrip()[-1:] or last
    if first and not (first.startswith(b"{") and last == b"}"):
        raise _no_object(work.path, lines_before + 1, place, first)
    return np.zeros(1 if first else 0, np.int64)


def _no_object(path: str, line_number: int, offset_bytes: int, text: bytes) -> Corrupt:
    return Corrupt(
        f"line {line_number} is not a JSON object",
        path=path,
        offset_bytes=offset_bytes,
        found=repr(text[:_SHOWN_BYTES]),
        expected="{…}",
        hint=f"Energon's JSONL has one object per line. Fix the line. {LINES_OF_A_LIST}"
        if text.startswith(b"[")
        else "Energon's JSONL has one object per line. Fix the line",
    )


def encode_energon_index(starts: IntArray) -> bytes:
    return starts.astype("=u8").tobytes()


class StartsEncoder:
    """Encodes the index of a file while its lines, all of them samples, are written."""

    def __init__(self) -> None:
        self._stop_bytes = 0

    def encode(self, pairs: IntArray) -> bytes:
        """Encode the entries of consecutive lines: int64[k, 2], start and length without the line end."""
        if len(pairs):
            self._stop_bytes = int(pairs[-1].sum()) + 1
        return encode_energon_index(pairs[:, 0])

    def finish(self) -> bytes:
        return encode_energon_index(np.array([self._stop_bytes], np.int64))


# --- reading it ----------------------------------------------------------------------------------------------------


def load_energon(store: Store, path: str) -> IntArray:
    """Return int64[n_samples + 1], the starts of ranges according to the index next to the file.

    Without an index, the file is scanned once per host and the result is cached.

    Raises:
        NotFound: the file doesn't exist.
        Corrupt: the index doesn't fit the file; or there is no index and a line isn't an object.
    """
    index_path = current_index(store, path, energon_index_path(path))
    if store.exists(index_path):
        return read_energon_index(store, path, index_path, store.size(path))
    key = f"{_STARTS_VERSION}-{file_key(store, 'jsonl', path)}"
    return DerivedCache().array(key, "int64", lambda: scan_energon(store, path))


def read_energon_index(store: Store, path: str, index_path: str, size_bytes: int) -> IntArray:
    """Return int64[n_samples + 1], the entries of an index; raise `Corrupt` if they don't fit the size of the file."""
    data = store.get(index_path)
    if len(data) % _ENTRY_BYTES or len(data) < 2 * _ENTRY_BYTES:
        raise _misfit(path, len(data), f"{len(data)} bytes", "two entries of 8 bytes or more")
    entries: NDArray[np.uint64] = np.frombuffer(data, "=u8")
    if int(entries[-1]) != size_bytes:
        raise _misfit(path, len(data) - _ENTRY_BYTES, f"a file of {int(entries[-1])} bytes", f"{size_bytes} bytes")
    wrong = np.flatnonzero(entries[1:] <= entries[:-1])
    if len(wrong) or entries[0] != 0:
        place = 0 if entries[0] != 0 else int(wrong[0]) + 1
        raise _misfit(
            path, place * _ENTRY_BYTES, f"entry {place} is {int(entries[place])}", "entries increasing from 0"
        )
    return entries.astype(np.int64)


def _misfit(path: str, offset_bytes: int, found: str, expected: str) -> Corrupt:
    return Corrupt(
        "the index doesn't match its file",
        path=energon_index_path(path),
        offset_bytes=offset_bytes,
        found=found,
        expected=expected,
        hint=f"Rebuild it: `penstock index {path} --flavor energon --overwrite`",
    )


class EnergonJsonlSource(StoredSource):
    """Samples of one JSONL file; see `penstock.abc.Source`. Returned by `penstock.open` with `flavor="energon"`.

    A sample is `{"__key__": its number as text, "__restore_key__", "__sources__", "json", "__subflavors__"}`. The part
    `json` is the value of the line, or with `raw=True` its bytes without surrounding white space.
    """

    title = "jsonl"
    stated = ("flavor", "raw", "columns", "follow_links")

    def __init__(self, store: Store, path: str, options: OpenOptions) -> None:
        super().__init__(store, path, options)
        self.path = path
        self._name = os.path.basename(path)
        self._maps = way_to_read(store, path, options.read) == "mmap"
        self._held_view = Held(self._map)
        self._known_starts: IntArray | None = None

    @property
    def schema(self) -> Schema:
        fields = (Field("__key__", "text"), Field(_PART, "bytes" if self._options.raw else "json"))
        chosen = self._options.columns
        return Schema(tuple(one for one in fields if chosen is None or one.name in chosen), open=True)

    def _find_fingerprint(self) -> str:
        starts = self._starts
        places = starts[np.linspace(0, len(starts) - 1, min(len(starts), _FINGERPRINT_LINES), dtype=np.int64)]
        index = digest("energon", len(starts) - 1, places.tolist()).encode()
        return data_fingerprint(self._store, "jsonl", index, self.path, None)

    def _read_files(self) -> tuple[Store, Sequence[str]]:
        return self._store, (self.path, energon_index_path(self.path))

    def proof(self) -> Proof | None:
        """Return the digests of the file that its side file records; see `penstock.formats._proof`."""
        return file_proof("jsonl", self._store, self.path)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int, /) -> Sample:
        place = as_index(index, len(self))
        return self._samples(self._read([self._range(place)]), [place])[0]

    def get_samples(self, indices: IntArray, /) -> list[Sample]:
        """Return the samples at `indices` (int64[k]), in that order."""
        # numpy's own indexing releases the GIL, which threads then compete for at every batch.
        starts = self._starts.data
        places = as_indices(indices, len(starts) - 1).tolist()
        return self._samples(self._read([(starts[one], starts[one + 1]) for one in places]), places)

    def __iter__(self) -> Iterator[Sample]:
        for first in range(0, len(self), _STEP):
            yield from self.get_samples(np.arange(first, min(first + _STEP, len(self))))

    def place_of(self, index: int, /) -> Place:
        """Return the byte range of sample `index`: its line and the blank lines after it."""
        start, stop = self._range(as_index(index, len(self)))
        return Place(extents=(Extent(self.path, start, stop - start),))

    def key_of(self, index: int, /) -> str:
        return str(as_index(index, len(self)))

    def index_of(self, key: str, /) -> int:
        place = count_in(key, len(self))
        if place is None or key != str(place):
            raise NotFound(f"no sample with the key {key!r}", path=self.path, found=f"{len(self)} samples")
        return place

    def get(self, name: str, /) -> bytes:
        """Return the bytes of sample N, with line ends, by the name `"N.json"`; raise `NotFound` for other names."""
        key, dot, part = name.partition(".")
        if not dot or part != _PART:
            raise NotFound(f"no file named {name!r}", path=self.path, hint='Names are "0.json", "1.json", …')
        return bytes(self._read([self._range(self.index_of(key))])[0])

    def get_with_shard(self, name: str, /) -> tuple[bytes, str]:
        return self.get(name), self._name

    def get_media_metadata(self, name: str, /) -> MediaMetadata:
        """Raise `NotFound`: JSONL files hold no media."""
        raise NotFound(f"no media metadata for {name!r}", path=self.path, hint="A JSONL file holds no media")

    def shown(self) -> dict[str, Any]:
        samples = None if self._known_starts is None else len(self._known_starts) - 1
        return {"path": self.path, "flavor": "energon", "samples": samples}

    @property
    def _starts(self) -> IntArray:
        # Two threads may both get here. They read the same index, and one copy is freed.
        if self._known_starts is None:
            self._known_starts = load_energon(self._store, self.path)
        return self._known_starts

    def _range(self, place: int) -> tuple[int, int]:
        start, stop = self._starts[place : place + 2].tolist()
        return start, stop

    def _read(self, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes | memoryview]:
        view = self._view()
        if view is None or max(map(_STOP, ranges), default=0) > len(view):
            return self._store.get_ranges(self.path, ranges)  # raises an error if the file is shorter
        return [view[start:stop] for start, stop in ranges]

    def _view(self) -> memoryview | None:
        return self._held_view.get() if self._maps else None

    def _map(self) -> memoryview:
        return map_least(self._store, self.path, 0).data

    def _samples(self, lines: Sequence[bytes | memoryview], places: list[int]) -> list[Sample]:
        path, name, raw = self.path, self._name, self._options.raw
        made: list[Sample] = []
        for data, place in zip(lines, places, strict=True):
            try:
                value = bytes(data).strip() if raw else _decoded(data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                value = self._decode(bytes(data).strip(), place)
            key = str(place)
            sample: Sample = {
                "__key__": key,
                "__restore_key__": (RESTORE_KIND, place),
                "__sources__": (SourceInfo(path, place, name, (key + _SUFFIX,)),),
                _PART: value,
                "__subflavors__": {},
            }
            made.append(sample)
        columns = self._options.columns
        if columns is None:
            return made
        return [{one: sample[one] for one in columns if one in sample} for sample in made]

    def _decode(self, text: bytes, place: int) -> Any:
        """Return the value of a line that only Python accepts as JSON."""
        from penstock.codec.parts import DecodeOptions, decode_part  # imports decoders of all media

        try:
            return decode_part(_PART, text, DecodeOptions())
        except PenstockError as error:
            error.path, error.offset_bytes = self.path, self._range(place)[0]
            error.what = f"sample {place}: {error.what}"
            raise


# --- check and repair ----------------------------------------------------------------------------------------------


def check_energon_index(store: Store, path: str, depth: Depth) -> list[Finding]:
    """Return the findings of only the index and of the lines it points to."""
    index_path = current_index(store, path, energon_index_path(path))
    fix = f"Create it with `penstock index {path} --flavor energon`"
    if not store.exists(index_path):
        return [Finding("jsonl.no-index", "warning", index_path, None, "there is no index", None, fix)]
    try:
        known = read_energon_index(store, path, index_path, store.size(path))
    except Corrupt as error:
        told = f"{error.what}: {error.found}"
        return [Finding(INDEX_CODE, "error", index_path, error.offset_bytes, told, str(error.expected), error.hint)]
    if depth == "quick":
        return []
    try:
        if depth == "full":
            return _compare(path, known, scan_energon(store, path))
        source = EnergonJsonlSource(store, path, OpenOptions(flavor="energon"))
        for place in np.linspace(0, len(known) - 2, min(len(known) - 1, _STEP), dtype=np.int64).tolist():
            source[place]
    except (Corrupt, Truncated) as error:
        found = f"{error.what}: {error.found}"
        return [Finding("jsonl.invalid-line", "error", path, error.offset_bytes, found, "{…}", error.hint)]
    return []


def _compare(path: str, known: IntArray, found: IntArray) -> list[Finding]:
    if np.array_equal(known, found):
        return []
    same = min(len(known), len(found))
    differ = np.flatnonzero(known[:same] != found[:same])
    place = int(differ[0]) if len(differ) else same
    what = f"{len(known) - 1} samples, but the file has {len(found) - 1}; entry {place} is the first that differs"
    fix = f"`penstock repair {path} --write`, or `penstock index {path} --flavor energon --overwrite`"
    return [Finding(INDEX_CODE, "error", energon_index_path(path), place * _ENTRY_BYTES, what, None, fix)]


def plan_energon_index(damaged: Damaged) -> Iterator[Rewrite]:
    """Yield a new index in place of a wrong one."""
    store, path = damaged.store, damaged.path
    index_path = energon_index_path(path)
    starts = scan_energon(store, path) if damaged.write else np.empty(0, np.int64)
    make = functools.partial(put, store, index_path, encode_energon_index(starts))
    yield Rewrite(INDEX_CODE, index_path, "rebuild the index; the old one is kept next to it", make, old=None)
