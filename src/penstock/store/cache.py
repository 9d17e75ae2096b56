"""A remote store that keeps local copies of whole files when these are cheaper than reading ranges.

A file is read by ranges first. Their cost is summed up: their bytes, and `REQUEST_BYTES` for each request. As soon as
the sum and the next ranges would cost as much as the whole file, the whole file is fetched, and later reads are
answered from the copy. So a file costs at most about twice as much as the cheaper of both ways, whatever is read later;
a small file is fetched whole at its second read. Callers can announce future reads (`prefetch`), which are added to the
sum in advance. Each process has its own sums.

Copies are shared by the processes of a host; see `penstock.store._copies`. Size and version of a file are requested
once per opened store: a copy of another version is not used, and a file that changes while it is read by ranges is an
error. If a server reports no version, the hashes of an index are the version; without hashes, a copy is only used by
one run.

If the cache folder can't store a copy, ranges are read by requests, and files that are needed whole are read into
memory.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock._secrets import logger
from penstock._threads import Pool
from penstock.abc import Staged
from penstock.errors import NotFound, Truncated
from penstock.store._copies import RUN, Copies, NoCopy, copy_name, in_memory, share_run
from penstock.store._heads import Heads, deciding_path, drop_lock
from penstock.store._requests import REQUEST_BYTES, Beginnings, Costs, Traffic, whole_number
from penstock.store.base import Head, Range, RangesIgnored, StagedView, Store, require_inside
from penstock.store.derived import InUse, Published
from penstock.store.lock import hold_lock
from penstock.store.remote import Remote
from penstock.types import Buffer

_MOST_SURVEYED = 1 << 16
_BEGIN_BYTES = 1 << 16
_AT_ONCE_BYTES = 1 << 26
_AGAIN_S = 60.0  # wait before retrying a cache folder that couldn't store a copy
_IN_MEMORY_BYTES = 1 << 30  # limit for files read into memory because the cache folder can't store them
_log = logger()


class CachedStore(Store):
    """A view of `remote` with local copies; see the module. Picklable, thread-safe, usable after fork.

    Memory: 64 MiB per file that is being copied, plus the data returned.

    Args:
        remote: store of the files.
        folder: cache folder; by default `PENSTOCK_CACHE`, or the user's.
        budget_bytes: limit on all copies in the folder; by default `PENSTOCK_CACHE_BYTES`, or 95 % of the disk.
    """

    __slots__ = (
        *("_args", "_begun", "_checking", "_copies", "_costs", "_first", "_heads", "_in_use", "_no_copies"),
        *("_ranges_ignored", "_run", "_stated", "_versionless", "remote"),
    )

    keeps_copies = lists_levels = True

    def __init__(self, remote: Remote, folder: str | None = None, budget_bytes: int | None = None) -> None:
        self.remote = remote
        self._args = (remote, folder, budget_bytes)
        self._copies: Copies | None = None
        self._heads = Heads(remote.head, lambda: self._folder.folder, self._forget_all)
        self._costs = Costs()
        self._stated: dict[str, Mapping[str, str]] = {}
        self._checking = False
        self._no_copies = 0.0
        self._in_use = InUse()
        self._ranges_ignored = False
        self._run = RUN
        self._first: dict[str, bytes] = {}
        self._begun = Beginnings()
        self._versionless = False

    def __reduce__(self) -> tuple[object, ...]:
        run = share_run(self._args[1]) if self._run == RUN else self._run
        return (_of_run, (run, os.getpid(), *self._args))

    def __repr__(self) -> str:
        return f"CachedStore({self.remote!r})"

    def stats(self) -> Traffic:
        """Return the bytes that callers requested, and how many came from the remote store, in this process."""
        return self.remote.counters.total()

    # --- reading -------------------------------------------------------------------------------------------------

    def get(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        if length_bytes is None and path not in self._heads and path not in self._heads.sizes:
            self._learn(path)
        size_bytes = self.size(path)
        stop_bytes = size_bytes if length_bytes is None else min(size_bytes, start_bytes + length_bytes)
        return self.get_ranges(path, [(start_bytes, stop_bytes)])[0] if start_bytes < stop_bytes else b""

    def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        asked_bytes = sum(max(0, stop - start) for start, stop in ranges)
        self.remote.counters.mine.asked_bytes += asked_bytes
        if (begun := self._begun.get_ranges(path, ranges)) is not None:
            return begun
        if path not in self._heads and asked_bytes > 0:
            if not self._ranges_ignored and (path in self._heads.sizes or path in self._heads.guesses):
                first = self._unseen_ranges(path, ranges)
            else:
                small = not self._costs.is_hinted(path) and asked_bytes <= REQUEST_BYTES
                first = self._first_look(path, ranges) if small and self._heads.seen(path) is None else None
            if first is not None:
                return first
        head = self.head(path)
        require_inside(path, ranges, head.size_bytes)
        known = self._known_copy(path, head)
        copy = None if known is None else known.data
        if copy is None and self._ranges_ignored:
            copy = self._copy(path, head, whole=False).data
        if copy is None and self._is_whole_cheaper(path, head, ranges):
            copy = self._copy_if_any(path, head)
        if copy is None:
            try:
                found, now = self.remote.fetch(path, ranges)
            except RangesIgnored:
                self._ranges_ignored = True
                copy = self._copy(path, head, whole=False).data
            else:
                self._heads.require_same(path, head, now)
                return found
        view = copy.data
        return [bytes(view[start:stop]) for start, stop in ranges]

    def mapped_copy(
        self, path: str, *, size_bytes: int | None = None, hashes: Mapping[str, str] | None = None
    ) -> NDArray[np.uint8]:
        if hashes:
            self.expect_hashes(path, hashes)
        try:
            return self._copy_of_size(path, size_bytes).data
        except NoCopy as error:
            head = self._heads.of_size(path, size_bytes)
            if head.size_bytes > _IN_MEMORY_BYTES:
                raise
            self._note_no_copies(error)
            return in_memory(path, head.size_bytes, self._stated.get(path, {}), lambda: self._parts(path, head))

    def local_copy(self, path: str, *, size_bytes: int | None = None, hashes: Mapping[str, str] | None = None) -> str:
        if hashes:
            self.expect_hashes(path, hashes)
        return self._copy_of_size(path, size_bytes, again=True).path

    def expect_size(self, path: str, size_bytes: int, *, exact: bool = True) -> None:
        (self._heads.sizes if exact else self._heads.guesses)[path] = size_bytes

    def expect_hashes(self, path: str, hashes: Mapping[str, str]) -> None:
        known = self._stated.get(path, {})
        if not hashes.items() <= known.items():
            self._stated[path] = {**known, **hashes}
            self._in_use.forget(path)  # its copy wasn't checked against these hashes

    def check_copies(self) -> None:
        self._checking = True
        self._in_use.clear()

    def survey(self, folder: str, most: int) -> None:
        if self._heads.is_folder(folder) is None:
            found = self.remote.heads_under(folder, min(most, _MOST_SURVEYED))
            if found is not None:
                self._heads.survey(folder, found)

    def head(self, path: str) -> Head:
        self._begin(path)
        return self._heads.head(path)

    def prefetch(self, reads: Mapping[str, tuple[int, int]]) -> None:
        self._costs.hint(reads)

    def peek(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        if self._ranges_ignored or not ranges or self.copied_to(path):
            return self.get_ranges(path, ranges)
        self.remote.counters.mine.asked_bytes += sum(stop - start for start, stop in ranges)
        span_bytes = max(stop for _, stop in ranges) - min(start for start, _ in ranges)
        near = span_bytes <= 2 * sum(stop - start for start, stop in ranges)
        asked = [ranges] if near else [[one] for one in ranges]  # one request would also fetch large gaps
        try:
            with Pool(len(asked), "penstock-peek") as pool:
                answers = list(pool.map(lambda some: self.remote.fetch(path, some), asked))
        except RangesIgnored:
            self._ranges_ignored = True
            return self.get_ranges(path, ranges)
        for _, now in answers:
            self._heads.answered(path, now)
        return [data for found, _ in answers for data in found]

    def version(self, path: str) -> str:
        return self._heads.version(path)

    def capacity_bytes(self) -> int:
        return self._folder.capacity_bytes()

    @property
    def folder(self) -> str | None:
        return self._args[1]

    def size(self, path: str) -> int:
        if path not in self._heads.sizes:
            self._begin(path)
        return self._heads.size(path)

    def exists(self, path: str) -> bool:
        with contextlib.suppress(NotFound):
            self._begin(path)
        return self._heads.is_there(path, self.remote)

    def is_folder(self, path: str) -> bool:
        return self._heads.is_folder_of(path, self.remote)

    @property
    def origin(self) -> Remote:
        return self.remote

    def list(self, prefix: str) -> Iterator[str]:
        return self.remote.list(prefix)

    def first_names(self, path: str) -> list[str]:
        return self.remote.first_names(path)

    def level(self, folder: str) -> tuple[list[str], list[str]]:
        return self.remote.level(folder)

    # --- writing -------------------------------------------------------------------------------------------------

    def stage(self, path: str, *, overwrite: bool = False) -> Staged:
        return _Forgetting(self, self.remote.stage(path, overwrite=overwrite))

    def stage_new(self, path: str) -> Staged:
        return _Forgetting(self, self.remote.stage_new(path))

    def commit(self, staged: Sequence[Staged]) -> None:
        self.remote.commit([one.staged if isinstance(one, _Forgetting) else one for one in staged])
        for one in staged:
            self.forget(one.path)

    def delete(self, path: str) -> None:
        self.forget(path)
        self.remote.delete(path)

    def sweep(self, path: str) -> None:
        self.remote.sweep(path)

    def sweep_folder(self, path: str) -> None:
        self.remote.sweep_folder(path)

    def forget(self, path: str) -> None:
        self._heads.forget(path)
        for known in (self._stated, self._first):
            known.pop(path, None)
        for kept in (self._in_use, self._costs, self._begun):
            kept.forget(path)

    def _forget_all(self) -> None:
        self._costs.clear()
        self._in_use.look_again()

    # --- inside --------------------------------------------------------------------------------------------------

    @property
    def _folder(self) -> Copies:
        # Created lazily: opening a dataset doesn't access the cache folder.
        if self._copies is None:
            _, folder, budget_bytes = self._args
            most_bytes = whole_number("PENSTOCK_CACHE_BYTES") if budget_bytes is None else budget_bytes
            self._copies = Copies(most_bytes, folder)
        return self._copies

    def _first_look(self, path: str, ranges: Sequence[Range]) -> list[bytes] | None:
        """Read a few ranges of an unknown file; the answer includes size and version."""
        if self._ranges_ignored:
            return None
        if (found := self._fetched(path, ranges)) is not None:
            self._costs.add(path, ranges)
        return found

    def _fetched(self, path: str, ranges: Sequence[Range]) -> list[bytes] | None:
        """Read ranges from the store, and keep size and version; return None if the server ignores ranges."""
        try:
            found, head = self.remote.fetch(path, ranges)
        except RangesIgnored:
            self._ranges_ignored = True
            return None
        self._heads.remember(path, head)
        return found

    def _begin(self, path: str) -> None:
        """Read the beginning of an indexed file, which is read first anyway, instead of requesting its size."""
        guess_bytes = self._heads.guesses.get(path)
        if guess_bytes is None or path in self._heads or self._ranges_ignored:
            return
        if guess_bytes <= _BEGIN_BYTES:  # fetch the whole file, for all processes of the host
            self._learn(path)
        elif self._heads.seen(path) is None:
            with contextlib.suppress(RangesIgnored):
                start = self.remote.fetch_start(path, _BEGIN_BYTES)
                if start is not None:
                    self._heads.remember(path, start[1])
                    self._begun.put(path, start[0])

    def _learn(self, path: str) -> None:
        """Read the beginning of an unknown file instead of requesting its size; its copy starts with it."""
        if not self._ranges_ignored and self._heads.seen(path) is None:
            with contextlib.suppress(NoCopy), self._looked_at(path, None) as head:
                if self._fits(head):
                    self._copy(path, head, whole=False)

    def _unseen_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes] | None:
        """Read ranges of a file of which only the size is known or guessed; return None if its version is known."""
        if self._heads.seen(path) is not None:
            return None
        size_bytes = self._heads.sizes.get(path)
        require_inside(path, ranges, 1 << 62 if size_bytes is None else size_bytes)
        if self._is_whole_cheaper(path, Head(size_bytes or self._heads.guesses[path], ""), ranges):
            try:
                view = self._copy_of_size(path, size_bytes, whole=False).data
                require_inside(path, ranges, len(view))
                return [bytes(view[start:stop]) for start, stop in ranges]
            except NoCopy as error:
                self._note_no_copies(error)
        found = self._fetched(path, ranges)
        if found is not None:
            self._heads.of_size(path, size_bytes)
        return found

    def _copy_of_size(self, path: str, size_bytes: int | None, *, whole: bool = True, again: bool = False) -> Published:
        """Return the copy of a file; with `again`, always look for it on the disk."""
        with self._looked_at(path, size_bytes) as head:
            return self._copy_on_disk(path, head, whole=whole) if again else self._copy(path, head, whole=whole)

    @contextlib.contextmanager
    def _looked_at(self, path: str, size_bytes: int | None) -> Generator[Head]:
        """Yield size and version; for a new file, from a request for its first bytes, which are kept for a copy."""
        if size_bytes:
            self._heads.sizes.setdefault(path, size_bytes)
        with contextlib.ExitStack() as stack:
            unseen = path not in self._heads and not self._versionless
            known = size_bytes is None and path in self._stated  # its copy may exist, which needs no transfer
            if unseen and size_bytes != 0 and not known and self._heads.seen(path) is None:
                try:
                    stack.enter_context(hold_lock(deciding_path(self._folder.folder, path)))
                except OSError:
                    self.head(path)  # the caller reports that the folder can't store anything
                else:
                    stack.callback(drop_lock, self._folder.folder, path)
                    stack.callback(self._first.pop, path, None)
                    self._first_bytes(path, size_bytes)
            yield self._heads.of_size(path, size_bytes)

    def _first_bytes(self, path: str, size_bytes: int | None) -> None:
        """Fetch the beginning, size and version of a file."""
        if self._heads.seen(path) is not None:  # another process fetched it meanwhile
            return
        try:
            if size_bytes is not None:
                (found,), head = self.remote.fetch(path, [(0, min(size_bytes, _AT_ONCE_BYTES))])
            else:
                found, head = self.remote.fetch_start(path) or (b"", self.remote.head(path))
        except RangesIgnored:
            self._ranges_ignored = True
        except Truncated:
            self._heads.remember(path, self.remote.head(path))
        else:
            self._heads.remember(path, head)
            self._first[path] = found
            self._versionless = not head.identity  # then copies belong to this run, and must be looked for

    def _known_copy(self, path: str, head: Head) -> Published | None:
        known = self._in_use.used(path)
        if known is not None or not self._in_use.is_first_look(path):
            return known
        return self._find(path, self._heads.identified(path, head), whole=False)

    def copied_to(self, path: str) -> str | None:
        if path not in self._heads:
            self._heads.seen(path)
        known = self._known_copy(path, self._heads.head(path)) if path in self._heads else None
        return None if known is None else known.path

    def _is_whole_cheaper(self, path: str, head: Head, ranges: Sequence[Range]) -> bool:
        spent_bytes = self._costs.add(path, ranges)
        fits = self._fits(head) and time.monotonic() >= self._no_copies
        return fits and spent_bytes >= head.size_bytes + REQUEST_BYTES

    def _fits(self, head: Head) -> bool:
        budget_bytes = self._folder.budget_bytes
        return budget_bytes is None or head.size_bytes <= budget_bytes // 2

    def _copy(self, path: str, head: Head, *, whole: bool) -> Published:
        """Return the copy, fetched if necessary, or raise `NoCopy`."""
        known = self._in_use.get(path, whole=whole)
        if known is not None:
            return known
        return self._copy_on_disk(path, head, whole=whole)

    def _copy_on_disk(self, path: str, head: Head, *, whole: bool) -> Published:
        head = self._heads.identified(path, head)
        found = self._find(path, head, whole=whole)
        if found is None:
            name, hashes = self._name(path, head), self._stated.get(path, {})
            made = self._folder.make(name, path, head.size_bytes, hashes, lambda: self._parts(path, head))
            found = self._in_use.keep(path, made, whole=True)
        self._heads.note_seen(path, head)
        return found

    def _find(self, path: str, head: Head, *, whole: bool) -> Published | None:
        whole = whole or self._checking
        hashes = self._stated.get(path, {})
        found = self._folder.find(self._name(path, head), path, head.size_bytes, hashes, whole=whole)
        return None if found is None else self._in_use.keep(path, found, whole=whole)

    def _name(self, path: str, head: Head) -> str:
        """Return the name of the copy, derived from the version or the hashes of an index."""
        stated = self._stated.get(path)
        version = head.identity or ("" if stated is None else json.dumps(sorted(stated.items())))
        return copy_name(path, version, head.size_bytes, self._run)

    def _copy_if_any(self, path: str, head: Head) -> NDArray[np.uint8] | None:
        """Return the copy, or None if the cache folder can't store it, which is retried after a while."""
        try:
            return self._copy(path, head, whole=False).data
        except NoCopy as error:
            self._note_no_copies(error)
            return None

    def _note_no_copies(self, error: NoCopy) -> None:
        if not self._no_copies:
            _log.warning("%s; reading without local copies", error)
        self._no_copies = time.monotonic() + _AGAIN_S

    def _parts(self, path: str, head: Head) -> Iterator[Buffer]:
        self.remote.counters.mine.copies += 1
        self._costs.forget(path)
        first = self._first.pop(path, None)
        if first is not None:
            yield first
        for start in range(0 if first is None else len(first), head.size_bytes, _AT_ONCE_BYTES):
            try:
                found, now = self.remote.fetch(path, [(start, min(start + _AT_ONCE_BYTES, head.size_bytes))])
            except RangesIgnored:
                self._ranges_ignored = True
                yield self.remote.get(path)
                return
            self._heads.require_same(path, head, now)
            yield found[0]


class _Forgetting(StagedView):
    """A staged file whose commit makes the store forget the old file."""

    __slots__ = ("_store",)

    def __init__(self, store: CachedStore, staged: Staged) -> None:
        super().__init__(staged)
        self._store = store

    def commit(self) -> None:
        super().commit()
        self._store.forget(self.path)


def _of_run(run: str, pid: int, remote: Remote, folder: str | None, budget_bytes: int | None) -> CachedStore:
    """Return an unpickled store; a worker of the pickling process uses that process's copies."""
    store = CachedStore(remote, folder, budget_bytes)
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid == pid:
        store._run = run  # pyright: ignore[reportPrivateUsage]
    return store
