"""Comparison of data with the digests in its side file, as the data is copied.

A copy gets a side file of its own, made of the bytes that were read. So data is compared with the old digests first;
otherwise the new side file would confirm bytes that changed on the disk. Each run with a digest, such as a block of 64
MiB or a chunk, is read once for this, right before a part of it is copied. Files of remote stores are compared only in
facts read at opening, such as counts, sizes and edges: their blocks would be fetched twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from penstock.abc import Format
from penstock.codec.hashes import BLOCK_BYTES
from penstock.errors import Corrupt
from penstock.formats._excluded import place_of_list
from penstock.formats._exclusions import KeptTokens, places_in_whole, stored, whole_of
from penstock.formats._manifest import side_path
from penstock.formats._side_checks import RESTORE, BlockTask, block_digest, check_bytes, check_side_file
from penstock.formats._token_column import ColumnTokens
from penstock.store.base import Store
from penstock.store.exclude_list import SUFFIX
from penstock.store.side_file import DATA, Facts, file_facts
from penstock.types import Finding, Manifest, OpenOptions


@dataclass(frozen=True, slots=True)
class ProvedRun:
    """Units `[start, stop)` of data, such as tokens, that are verified together.

    Attributes:
        start: first unit.
        stop: end of the units, exclusive.
        require: raises `Corrupt` if the units differ from the side file.
    """

    start: int
    stop: int
    require: Callable[[], None]


@runtime_checkable
class Provable(Protocol):
    """Source whose side file has digests of its content."""

    def proof(self) -> AnyProof | None:
        """Return the proof of its units; None without digests, or if the data isn't on this machine.

        Raises:
            Corrupt: the data contradicts its side file at first sight.
        """
        ...


class AnyProof(Protocol):
    """Proof of the units of a source."""

    def require(self, start: int, stop: int) -> None:
        """Raise `Corrupt` if the units `[start, stop)` differ from the side file."""
        ...


class Proof:
    """Verifiable runs, each of which is read once. Thread-safe.

    Args:
        runs: in any order; they may overlap.
    """

    def __init__(self, runs: Iterable[ProvedRun]) -> None:
        given = list(runs)
        self._starts = np.array([one.start for one in given], np.int64)
        self._stops = np.array([one.stop for one in given], np.int64)
        # Remaining runs. Verified runs are dropped, as each may hold a source with all of its borders.
        self._left = dict(enumerate(given))
        self._known = (0, 0)
        self._lock = threading.Lock()

    def require(self, start: int, stop: int) -> None:
        with self._lock:
            low, high = self._known
            if start >= stop or low <= start <= stop <= high:
                return
            for number in np.flatnonzero((self._starts < stop) & (self._stops > start)).tolist():
                if number in self._left:
                    self._left[number].require()
                    del self._left[number]
            touches = low <= stop and start <= high
            self._known = (min(low, start), max(high, stop)) if touches else (start, stop)


class DocumentsProof:
    """Proof of the documents of a token source, some of which may be excluded.

    Args:
        source: as it is copied.
    """

    def __init__(self, source: Any) -> None:
        self._whole = stored(whole_of(source))
        self._left_out = source.source.exclusions.indices if isinstance(source, KeptTokens) else None
        self._proof = self._whole.proof() if isinstance(self._whole, Provable) else None

    def require(self, first: int, stop: int) -> None:
        """Raise `Corrupt` if the documents `[first, stop)` differ from the side file."""
        if self._proof is None or first >= stop:
            return
        ends = np.array([first, stop - 1])
        if self._left_out is not None:
            ends = places_in_whole(ends, self._left_out)
        starts = self._whole.doc_starts
        self._proof.require(int(starts[ends[0]]), int(starts[ends[1] + 1]))


def require_as_recorded(chosen: Format, store: Store, path: str, options: OpenOptions, source: Any) -> None:
    """Raise `Corrupt` if data contradicts its side file at first sight, before it is copied.

    Sources that aren't `Provable`, such as those of plug-ins, are compared by their number of samples.
    """
    if not require_provable_as_recorded(source) and chosen.traits.write:
        whole = _rows_of(source)
        side_path = place_of_list(chosen, store, path, options, whole)[0].removesuffix(SUFFIX)
        known_manifest(chosen.name, store, path, side_path, lambda: Facts(num_samples=len(whole)))


def require_provable_as_recorded(source: Any) -> bool:
    """Do the same for a source that may be `Provable`; return whether it is."""
    whole = _rows_of(source)
    if isinstance(whole, Provable):
        whole.proof()
        return True
    return False


def _rows_of(source: Any) -> Any:
    whole = stored(whole_of(source))
    return stored(whole.rows) if isinstance(whole, ColumnTokens) else whole


def known_manifest(
    format: str, store: Store, data_path: str, side_path: str, facts: Callable[[], Facts], part: str | None = None
) -> Manifest | None:
    """Return the manifest whose digests are to be compared with data as it is copied.

    None if there is no side file, or the data is remote: its blocks would be fetched twice. For arguments and errors,
    see `require_fitting`.
    """
    manifest = require_fitting(format, store, data_path, side_path, facts, part)
    return manifest if store.is_local else None


def require_fitting(
    format: str, store: Store, data_path: str, side_path: str, facts: Callable[[], Facts], part: str | None = None
) -> Manifest | None:
    """Return the manifest of a side file, None if there is none; arguments as of `check_side_file`.

    Raises:
        Corrupt: the data contradicts it at first sight, or it is damaged.
    """
    manifest, findings = check_side_file(format, store, data_path, side_path, facts, part)
    require_none(findings)
    return manifest


def require_size(format: str, store: Store, root: str, manifest: Manifest, names: Sequence[str]) -> None:
    """Raise `Corrupt` if files of a folder have other bytes in all than their side file says.

    Remote files are compared if their sizes are known, as from a listing: this takes no request.
    """
    paths = [f"{root}/{name}" for name in names]
    if store.keeps_copies and not all(map(store.version, paths)):
        return
    require_none(check_bytes(format, root, manifest, sum(map(store.size, paths))))


def require_none(findings: Iterable[Finding]) -> None:
    """Raise the first finding as `Corrupt`."""
    for one in findings:
        what = "the data to copy differs from its side file"
        found = f"{one.found} [{one.code}]"
        place = one.offset_bytes
        raise Corrupt(what, path=one.path, offset_bytes=place, found=found, expected=one.expected, hint=RESTORE)


def file_proof(format: str, store: Store, path: str) -> Proof | None:
    """Return what the side file of one file proves of its bytes; for errors, see `known_manifest`."""
    manifest = known_manifest(format, store, path, side_path(path), partial(file_facts, store, path, format))
    digests = () if manifest is None else manifest.block_digests.get(DATA, ())
    return Proof(file_runs(store, path, digests, 0, store.size(path), 1)) if digests else None


def file_runs(
    store: Store, path: str, digests: Sequence[str], start_bytes: int, num_units: int, unit_bytes: int
) -> Iterator[ProvedRun]:
    """Yield the blocks of a file.

    Blocks that contain anything else than units, such as an index, are verified in equal parts with all units: copying
    everything verifies everything, however the work is divided among workers.

    Args:
        store: store of the file.
        path: path of the file.
        digests: digests of its blocks.
        start_bytes: offset of its units.
        num_units: number of units, which are stored back to back.
        unit_bytes: size of each unit.
    """
    size_bytes, stop_bytes = store.size(path), start_bytes + num_units * unit_bytes
    others: list[_Block] = []
    for number in range(max(-(-size_bytes // BLOCK_BYTES), len(digests))):
        one = _Block(store, path, number, size_bytes, digests)
        low, high = one.start_bytes - start_bytes, one.stop_bytes - start_bytes
        if low < num_units * unit_bytes and high > 0:
            yield ProvedRun(max(0, low // unit_bytes), min(num_units, -(-high // unit_bytes)), one)
        if one.stop_bytes > stop_bytes:
            others.append(one)
    yield from beside(others, num_units)


def beside(checks: Sequence[Callable[[], None]], num_units: int) -> Iterator[ProvedRun]:
    """Yield runs that spread the checks in equal parts over all units."""
    for number, one in enumerate(checks):
        low = number * num_units // len(checks)
        yield ProvedRun(low, max(low + 1, -(-(number + 1) * num_units // len(checks))), one)


def index_runs(store: Store, path: str, digests: Sequence[str], num_units: int) -> Iterator[ProvedRun]:
    """Yield the blocks of a file that is an index of `num_units` units."""
    size_bytes = store.size(path)
    count = max(-(-size_bytes // BLOCK_BYTES), len(digests))
    return beside([_Block(store, path, number, size_bytes, digests) for number in range(count)], num_units)


@dataclass(frozen=True, slots=True)
class _Block:
    """Block of a file; a call verifies it."""

    store: Store
    path: str
    number: int
    size_bytes: int
    digests: Sequence[str]

    @property
    def start_bytes(self) -> int:
        return self.number * BLOCK_BYTES

    @property
    def stop_bytes(self) -> int:
        return min(self.size_bytes, self.start_bytes + BLOCK_BYTES)

    def __call__(self) -> None:
        require_none(self._findings())

    def _findings(self) -> Iterator[Finding]:
        found = None
        if self.start_bytes < self.stop_bytes:
            found = block_digest(BlockTask(self.store, self.path, self.start_bytes, self.stop_bytes))
        expected = self.digests[self.number] if self.number < len(self.digests) else None
        if found != expected:
            what = f"block {self.number} has the digest {found}"
            yield Finding("digest", "error", self.path, self.start_bytes, what, expected, RESTORE)
