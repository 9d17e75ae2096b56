"""Read the raw index of Modalities, check it against its file, and find the owner of an existing index.

`a.idx` may be the index of `a.jsonl`, of `a.txt`, of Megatron-LM's `a.bin`, or Energon's index of `a`.

An index belongs to its user: one that leaves lines out on purpose is used as it is. Impossible indexes are rejected:
with an entry outside the file, an entry that isn't a whole line, or valid lines after the last entry.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import xxhash

from penstock._secrets import redact
from penstock.codec.pickles import decode_pairs
from penstock.errors import ConfigError, Corrupt, FormatError, NotFound, UnsafeData
from penstock.formats._findings import Problem
from penstock.formats.jsonl.build import current_index, index_path_for, lines_in_cache, require_several
from penstock.formats.jsonl.energon import energon_index_path
from penstock.formats.jsonl.scan import fault_of
from penstock.store.base import Store
from penstock.store.derived import DerivedCache
from penstock.store.names import NEXT, STAGED
from penstock.store.place import same_file
from penstock.types import IntArray, Severity

MEGATRON_HEAD = b"MMIDIDX\0\0"
_INDEX_VERSION = "jsonl-index-1"
_IN_MEMORY_BYTES = 1 << 22
_HASH_BYTES = 1 << 20
_SAMPLE_LINES = 16
_TAIL_BYTES = 1 << 20
_NEWLINE = b"\n"
_RETURN = b"\r\n"


def problem(
    code: str,
    what: str,
    path: str,
    offset_bytes: int | None = None,
    found: str | None = None,
    fix: str | None = None,
    expected: str | None = None,
    severity: Severity = "error",
) -> Problem:
    return Problem(f"jsonl.{code}", Corrupt, path, what, fix, offset_bytes, found, expected, severity)


def remake(path: str) -> str:
    return f"Rebuild it: `penstock index {path} --overwrite`"


def is_megatrons(store: Store, index_path: str) -> bool:
    """Return true if a file is an index of Megatron-LM's tokens, such as that of `a.bin` next to `a.jsonl`."""
    return store.get(index_path, 0, len(MEGATRON_HEAD)) == MEGATRON_HEAD


def load_lines(store: Store, path: str, index_path: str | None = None, *, skip_faulty: bool = False) -> IntArray:
    """Return int64[k, 2], start and length in bytes of each line in the index.

    The default is the index next to the file. Without one, the file is scanned once per host and the result is cached.
    A large index is decoded once per host, into a mapped file.

    Raises:
        NotFound: the JSONL file or the named index doesn't exist.
        Corrupt: the index doesn't fit the file; or there is no index and a line is invalid.
        FormatError, UnsafeData: the index isn't a plain pickled list of pairs.
    """
    beside = index_path is None
    if index_path is None:
        index_path = current_index(store, path, index_path_for(path))
        if not store.exists(index_path):
            return lines_in_cache(store, path, skip_faulty=skip_faulty)
    size_bytes = store.size(path)
    try:
        lines = _read_index(store, path, index_path, size_bytes)
    except FormatError:
        if beside and is_megatrons(store, index_path):
            return lines_in_cache(store, path, skip_faulty=skip_faulty)
        raise
    _require_none(misfits(store, path, spread(lines, _SAMPLE_LINES), size_bytes), index_path)
    require_several(store, path, lines)
    return lines


def spread(lines: IntArray, most: int) -> IntArray:
    """Return up to `most` evenly spaced entries, including the first and the last."""
    return lines[np.linspace(0, max(0, len(lines) - 1), min(most, len(lines)), dtype=np.int64)]


def decode_index(store: Store, index_path: str) -> IntArray:
    """Return int64[k, 2], the stored entries, unchecked.

    Raises:
        FormatError, UnsafeData: the index isn't a plain pickled list of pairs.
    """
    return decode_pairs(store.view(index_path), path=index_path)


def outside(path: str, lines: IntArray, size_bytes: int) -> Iterator[Problem]:
    starts, lengths = lines[:, 0], lines[:, 1]
    # The sum of the two could overflow int64.
    wrong = np.flatnonzero((starts < 0) | (lengths < 0) | (lengths > size_bytes) | (starts > size_bytes - lengths))
    for entry in wrong.tolist():
        start, length = lines[entry].tolist()
        yield problem(
            "index-outside",
            "an index entry is outside the file",
            path,
            min(max(0, start), size_bytes),
            f"entry {entry} at byte {start}, {length} bytes long",
            remake(path),
            f"{size_bytes} bytes",
        )


def misfits(store: Store, path: str, lines: IntArray, size_bytes: int) -> Iterator[Problem]:
    """Yield a problem for each entry that isn't a whole line. Reads three bytes per entry; all must be inside the file.

    An entry may leave out its carriage return, as in indexes of Modalities before v0.3.3.
    """
    starts, stops = lines[:, 0].tolist(), lines.sum(1).tolist()
    before = store.get_ranges(path, [(max(0, start - 1), start) for start in starts])
    behind = store.get_ranges(path, [(stop, min(size_bytes, stop + 2)) for stop in stops])
    for start, stop, first, last in zip(starts, stops, before, behind, strict=True):
        if first in (b"", _NEWLINE) and (last in (b"", _RETURN) or last.startswith(_NEWLINE)):
            continue
        if first in (b"", _NEWLINE) and _counts_characters(store, path, start, stop - start):
            yield problem(
                "index-counts-characters",
                "the index counts characters instead of bytes, as in Modalities before v0.3.3",
                path,
                start,
                f"a line of {stop - start} characters, which take more bytes",
                remake(path),
            )
            continue
        yield problem(
            "index-misfit",
            "the index doesn't match this file, which changed after indexing",
            path,
            start if first not in (b"", _NEWLINE) else stop,
            f"an entry of {stop - start} bytes at byte {start} that is not a whole line",
            remake(path),
        )


def lines_behind(store: Store, path: str, stop_bytes: int, size_bytes: int) -> Iterator[Problem]:
    place = stop_bytes + 1 if stop_bytes else 0
    tail = store.get(path, place, min(_TAIL_BYTES, max(0, size_bytes - place)))
    for line in tail.split(_NEWLINE):
        if line and fault_of(line) is None:
            yield problem(
                "index-behind",
                "the file has lines after the last one in its index",
                path,
                place,
                f"{size_bytes - place} bytes",
                remake(path),
            )
            return
        place += len(line) + 1


def _read_index(store: Store, path: str, index_path: str, size_bytes: int) -> IntArray:
    """Return the entries, after checking that all are inside the file and that no lines follow them."""

    def build() -> IntArray:
        try:
            lines = decode_index(store, index_path)
        except FormatError as error:
            error.hint = error.hint or remake(path)
            raise
        _require_none(outside(path, lines, size_bytes), index_path)
        # One more row: the end of the last line. Entries may be in any order.
        end = int(lines.sum(1).max(initial=0))
        return np.append(lines.reshape(-1), [end, 0])

    if store.size(index_path) <= _IN_MEMORY_BYTES:
        kept = build()
    else:
        kept = DerivedCache().array(_index_key(store, index_path, size_bytes), "int64", build)
    _require_none(lines_behind(store, path, int(kept[-2]), size_bytes), index_path)
    return kept[:-2].reshape(-1, 2)


def _require_none(problems: Iterator[Problem], index_path: str) -> None:
    """Raise the first problem, naming the index as well: either file may be the wrong one."""
    for problem in problems:
        error = problem.error()
        error.found = f"{error.found}, according to the index {redact(index_path)}"
        raise error


def _index_key(store: Store, index_path: str, size_bytes: int) -> str:
    """Return a cache key for the decoded index: a hash of the index and the size of its file."""
    hasher = xxhash.xxh3_128()
    for start_bytes in range(0, store.size(index_path), _HASH_BYTES):
        hasher.update(store.get(index_path, start_bytes, _HASH_BYTES))
    return f"{_INDEX_VERSION}-{size_bytes}-{hasher.hexdigest()}"


def _counts_characters(store: Store, path: str, start: int, length: int) -> bool:
    line, newline, _ = store.get(path, start, 4 * length + 2).partition(_NEWLINE)
    if not newline and start + len(line) < store.size(path):
        return False
    return len(line.removesuffix(b"\r").decode("utf-8", "replace")) == length < len(line.removesuffix(b"\r"))


_SUFFIXES = (".jsonl", ".ndjson")
_PICKLE_HEAD = b"\x80"
_LINE_END_BYTES = 2
_NEVER_LINES = (".idx", ".penstock", NEXT, ".pbin", STAGED)


def require_own_index(store: Store, path: str | None, index_path: str, flavor: str, *, has_data: bool) -> None:
    """Raise `ConfigError` unless the index to replace is an index of this file: other tools use the same names.

    Args:
        store: the store of both files.
        path: the file of the index, or None if the user named the index too.
        index_path: the index.
        flavor: the flavor of the new index.
        has_data: true if the data file exists.

    Raises:
        ConfigError: the index belongs to another file, or has no data file and isn't an index.
    """
    if not store.exists(index_path):
        return
    head = store.get(index_path, 0, len(MEGATRON_HEAD))
    if flavor == "energon":
        other = head == MEGATRON_HEAD or head.startswith(_PICKLE_HEAD)
        fits = not other and (has_data or store.size(index_path) % 8 == 0)
    else:
        fits = head != MEGATRON_HEAD if has_data else head.startswith(_PICKLE_HEAD)
    hint = "Name another output, or remove it"
    if not fits:
        raise ConfigError("the path of the index is taken by something else", path=index_path, hint=hint)
    owner = None if flavor == "energon" or path is None else _other_owner(store, path, index_path)
    if owner is not None:
        what = "the index at this path belongs to another file"
        raise ConfigError(what, path=index_path, found=owner, hint=hint)


def _other_owner(store: Store, path: str, index_path: str) -> str | None:
    """Return another likely owner of the index: a file with a JSONL name, or a file that the index fits."""
    others = list(_of_this_stem(store, path, index_path))
    # If a writer was killed, the pending index also identifies the file.
    if not others or _fits(store, index_path, path) or _fits(store, index_path + NEXT, path):
        return None
    named = [one for one in others if one.endswith(_SUFFIXES)]
    return next(iter(named), None) or next((one for one in others if _fits(store, index_path, one)), None)


def _of_this_stem(store: Store, path: str, index_path: str) -> Iterator[str]:
    folder, stem = os.path.split(index_path.removesuffix(".idx"))
    names = [stem + suffix for suffix in _SUFFIXES]
    if store.is_local:
        found = (name for name in os.listdir(folder or ".") if os.path.splitext(name)[0] == stem)
        names = sorted(name for name in found if not name.endswith(_NEVER_LINES))
    for name in names:
        other = os.path.join(folder, name)
        is_own = same_file(other, path) if store.is_local else other == path
        if not is_own and store.exists(other) and not store.is_folder(other):
            yield other


def _fits(store: Store, index_path: str, path: str) -> bool:
    if not store.exists(path) or store.is_folder(path):
        return False
    try:
        lines = decode_index(store, index_path)
        return 0 <= store.size(path) - (int(lines[-1].sum()) if len(lines) else 0) <= _LINE_END_BYTES
    except (FormatError, UnsafeData, NotFound):
        return False


def own_index_of_other_flavor(store: Store, path: str, flavor: str) -> str | None:
    """Return the path of the other flavor's index if it can only belong to the file at `path`, or None."""
    for_energon = flavor == "energon"
    try:
        other = index_path_for(path) if for_energon else energon_index_path(path)
        # Next to a `.bin`, an `.idx` may belong to Megatron tokens.
        if store.exists(f"{other.removesuffix('.idx')}.bin"):
            return None
        require_own_index(store, path, other, "modalities" if for_energon else "energon", has_data=False)
    except ConfigError:
        return None
    return other if store.exists(other) else None
