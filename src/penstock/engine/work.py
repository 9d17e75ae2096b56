"""Work folders that many processes and hosts may share: a plan, parts, and one commit; on any store.

The folder is `.work` in an output that is a directory, `.<name>.work` next to one that is a file:

| name | content |
|---|---|
| `plan` | `Head`: the digest of the plan. Created once; a run with another plan finds another digest |
| `<digest>/plan-00000` … | the plan |
| `<digest>/inputs` | the state of each input file when the job began; see `penstock.engine.plan` |
| `<digest>/shares` | number of parts of the distributed job |
| `<digest>/parts/<hh>/…` | files of finished tasks, named by their content |
| `<digest>/files/…` | records of the second wave |
| `<digest>/tmp/…` | temporary files |
| `<digest>/log/…` | runs and their errors, for `status`; nothing depends on them |
| `lock` | local only: exclusive, or shared by workers of one plan |

A name of a part or record stands for one content. So a task may run twice, or at once in two places, and no locks
between hosts are needed.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from penstock._secrets import redact
from penstock._threads import Pool
from penstock.engine.folder import WorkFolder, name_beside
from penstock.engine.parts import PartName, parse_part_name
from penstock.engine.plan import (
    RESTART,
    VERSION,
    InputState,
    Plan,
    decode_input_states,
    decode_plan,
    encode_input_states,
    encode_plan,
    find_changed,
    read_input_states,
)
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError, PrepareError, Unsupported
from penstock.store.base import Store
from penstock.store.compose import OpenUpload, abort_uploads, open_uploads
from penstock.store.derived import upload_folder
from penstock.store.local import LocalStore
from penstock.store.names import OLD_CONVERSION, WORK, is_staged_name
from penstock.store.place import Place
from penstock.store.put import put, put_new

_NAME = re.compile(r"[^A-Za-z0-9.-]+")
_MOST_BYTES = 1 << 14
_MOST_LETTERS = 1000
_READERS = 16
_LAST_S = 1 << 37  # later times have no calendar date


@dataclass(frozen=True, slots=True)
class Entry:
    """The last run of one part of a distributed job on one host.

    Attributes:
        share: `"3/64"` as in `--part`, or `"finish"`.
        host, process: host name and process id.
        began_s, ended_s: seconds since the epoch by the clock of that host; no end for running and killed ones.
        error: the error that ended it.
    """

    share: str
    host: str
    process: int
    began_s: float
    ended_s: float | None = None
    error: str | None = None


def begin_log(folder: Place, part: tuple[int, int] | None) -> Entry:
    """Record the start of a part, or of the finalize step (None)."""
    share = "finish" if part is None else f"{part[0]}/{part[1]}"
    entry = Entry(share, platform.node() or "unknown", os.getpid(), time.time())
    _write_entry(folder, entry)
    return entry


def end_log(folder: Place, entry: Entry, error: BaseException | None) -> None:
    told = None if error is None else redact(str(error) or type(error).__name__)[:_MOST_LETTERS]
    _write_entry(folder, replace(entry, ended_s=time.time(), error=told))


def unfinished_entries(folder: Place) -> list[Entry]:
    """Return the last entry of each part that no later run of it completed, by start time."""
    every = log_entries(folder)
    good = [one for one in every if one.ended_s is not None and one.error is None]
    done_s = {one.share: one.ended_s or 0.0 for one in sorted(good, key=lambda one: one.ended_s or 0.0)}
    return [one for one in every if one.began_s > done_s.get(one.share, 0.0)]


def log_entries(folder: Place) -> list[Entry]:
    """Return all readable entries by start time."""
    with contextlib.suppress(NotFound):
        paths: Sequence[str] = list(folder.store.list(folder.path))
        with Pool(_READERS, "log") as pool:
            found = list(pool.map(lambda path: _read_entry(folder.child(path[len(folder.path) + 1 :])), paths))
        return sorted((one for one in found if one is not None), key=lambda one: (one.began_s, one.share, one.host))
    return []


def _write_entry(folder: Place, entry: Entry) -> None:
    name = _NAME.sub("-", f"{entry.share}-of-{entry.host}"[:200])
    with contextlib.suppress(OSError, PenstockError):
        put(folder.store, folder.child(name).path, msgspec.json.encode(entry))


def _read_entry(file: Place) -> Entry | None:
    with contextlib.suppress(OSError, PenstockError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        entry = msgspec.json.decode(file.store.get(file.path, 0, _MOST_BYTES), type=Entry)
        if all(0 <= at_s < _LAST_S for at_s in (entry.began_s, entry.ended_s or 0)):
            return entry
    return None


HEAD_NAME = "plan"
_OLD_HEAD = "plan.json"
_DIGEST = re.compile(r"[0-9a-f]{16}")
_OLD_PART = re.compile(r"\d+-\d+\.part")
_OLD_SHARD = re.compile(r"[0-9a-f]{32}\.shard")
_OLD_GROUP = re.compile(r"\.?g\d{7}")
_PROBE = "probe-"
_MOST_TASKS = 1 << 22  # of about 64 MiB each
_MOST_HEAD_BYTES = 1 << 16
SCRATCH = "tmp"
"""Name in a plan's folder for the output that is being assembled."""
LOG = "log"
"""Name in a plan's folder for the log of its workers."""


class Head(msgspec.Struct, frozen=True):
    """Content of `plan`: digest and number of pieces of the plan, number of tasks, and start since the epoch."""

    digest: str
    pieces: int
    tasks: int
    began_s: float


@dataclass(slots=True)
class Work:
    """The open work folder of one output; see `open_work`.

    Attributes:
        folder: the work folder.
        output: the output.
        head, plan: the plan in the folder; None for new work.
        entry: log entry of this run of a distributed job.
        reads: the datasets that the job reads.
        reused: number of this run's tasks whose parts existed.
    """

    folder: WorkFolder
    output: Place
    head: Head | None = None
    plan: Plan | None = None
    entry: Entry | None = None
    reads: tuple[Place, ...] = ()
    reused: int = 0
    _all: dict[int, list[PartName]] | None = field(default=None, init=False, repr=False)

    @property
    def digest(self) -> str:
        """Digest of the plan; raises `ValueError` before there is one."""
        if self.head is None:
            raise ValueError("no plan yet")
        return self.head.digest

    @property
    def place(self) -> Place:
        """Directory of the plan."""
        return self.folder.file(self.digest)

    @property
    def parts(self) -> Place:
        """Directory of the parts."""
        return self.place.child("parts")

    def begin(self, plan: Plan, tasks: int) -> None:
        """Write the plan durably, unless it exists.

        Raises:
            PrepareError: other work began in the meantime.
            Unsupported: the store can't create files exclusively.
        """
        digest = plan.digest()
        _prove_new(self.folder)  # also for continued work, as version 0.2 didn't do it
        if self.head is not None and self.head.digest == digest:
            return
        pieces = list(encode_plan(plan))
        head = Head(digest, len(pieces), tasks, time.time())
        for number, piece in enumerate(pieces):
            put(self.folder.store, _plan_piece(self.folder, digest, number).path, piece)
        if not put_new(self.folder.store, self.folder.file(HEAD_NAME).path, msgspec.json.encode(head)):
            found = read_head(self.folder)
            if found is None or found.digest != digest:
                raise PrepareError("another run is writing this output", path=self.output.path, hint="Wait for it")
            head = found
        self.head, self.plan = head, plan

    def require_recorded_inputs(self) -> None:
        """Raise `ConfigError` if an input file changed since unfinished work recorded it."""
        before, now = self._recorded_inputs(), self._input_states()
        if before is not None:
            self._require_inputs(before, now)

    def require_inputs_of(self, digest: str) -> None:
        """Do the same for a plan whose head may be removed already, as its output exists."""
        before = self._inputs_at(self.folder.file(digest).child("inputs"))
        if before is not None:
            self._require_inputs(before, self._input_states())

    def record_inputs(self) -> None:
        """Record the state of the input files, or compare it with that of an earlier part; raises `ConfigError`."""
        if not self.reads:
            return
        if self._recorded_inputs() is None and self.has_parts():
            what = "an earlier version of Penstock started this job without recording the state of its inputs"
            raise ConfigError(what, path=self.output.path, hint=RESTART)
        now, place = self._input_states(), self._inputs
        if not put_new(place.store, place.path, encode_input_states(now)):
            self._require_inputs(self._recorded_inputs() or {}, now)

    def require_unchanged_inputs(self) -> None:
        """Raise `Corrupt` if an input file changed while it was read; its parts are never used then."""
        if not self.reads:
            return
        before, now = self._recorded_inputs(), self._input_states()
        path = find_changed(before or {}, now)
        if before is not None and path is not None:
            # It may be put back later, with its old time of change: the parts that were made of it stay invalid.
            before[path] = InputState(-1, 0, 0, "a file that changed while it was being read")
            put(self.folder.store, self._inputs.path, encode_input_states(before))
            hint = "Discard the finished parts: restart (--restart)"
            raise Corrupt("the input changed while it was being read", path=path, hint=hint)

    @property
    def _inputs(self) -> Place:
        return self.place.child("inputs")

    def _input_states(self) -> dict[str, InputState]:
        return read_input_states(self.reads, [self.output, self.folder.place])

    def _recorded_inputs(self) -> dict[str, InputState] | None:
        return None if self.head is None else self._inputs_at(self._inputs)

    def _inputs_at(self, place: Place) -> dict[str, InputState] | None:
        try:
            data = place.store.get(place.path)
        except NotFound:
            return None
        found = decode_input_states(data)
        if found is None:
            raise Corrupt("the record of inputs of unfinished work is damaged", path=place.path, hint=RESTART)
        return found

    def _require_inputs(self, before: dict[str, InputState], now: dict[str, InputState]) -> None:
        path = find_changed(before, now)
        if path is not None:
            what = f"the input {path} changed after this job started"
            raise ConfigError(
                what, path=self.output.path, found=now[path].shown, expected=before[path].shown, hint=RESTART
            )

    def log_begin(self, part: tuple[int, int] | None) -> None:
        self.entry = begin_log(self.place.child(LOG), part)

    def log_end(self, error: BaseException | None) -> None:
        """Record the end of this run, unless the work is gone."""
        if self.entry is None or self.head is None:
            return
        with contextlib.suppress(OSError, PenstockError):
            found = read_head(self.folder)
            if found is not None and found.digest == self.head.digest:
                end_log(self.place.child(LOG), self.entry, error)

    def record_job_parts(self, shares: int) -> None:
        """Record the number of parts of the distributed job; raises `ConfigError` if others have another number."""
        path = self.place.child("shares").path
        if put_new(self.folder.store, path, str(shares).encode()):
            return
        known = self.num_job_parts()
        if known != shares:
            raise ConfigError(
                "the parts were started with different numbers of parts",
                path=self.output.path,
                found=f"--part I/{shares}",
                expected=f"--part I/{known}, as in the first one",
                hint=f"Use N = {known}, or discard finished work once with --finish --no-work --restart",
            )

    def num_job_parts(self) -> int | None:
        """Return the number of parts of the distributed job, if it is recorded."""
        with contextlib.suppress(NotFound, ValueError):
            return int(self.folder.store.get(self.place.child("shares").path, 0, 20))
        return None

    def listed(self) -> dict[int, list[PartName]]:
        """Return the existing parts of each task in order, by one listing.

        Raises `Corrupt` if two workers made different parts of a task, or the plan has no such task.
        """
        found: dict[int, dict[int, PartName]] = {}
        with contextlib.suppress(NotFound):
            for path in self.folder.store.list(self.parts.path):
                name = parse_part_name(path.rpartition("/")[2])
                if name is None:
                    continue
                if self.head is not None and 0 < self.head.tasks <= name.task:
                    raise _damaged(self.folder)
                pieces = found.setdefault(name.task, {})
                if pieces.setdefault(name.piece, name) != name:
                    raise Corrupt(
                        f"two workers disagree on task {name.task}",
                        path=path,
                        expected=pieces[name.piece].path,
                        hint="Their inputs, tokenizers or versions differ. Fix that and start again (--restart)",
                    )
        return {task: [pieces[piece] for piece in sorted(pieces)] for task, pieces in found.items()}

    def all_parts(self) -> dict[int, list[PartName]]:
        """Return the parts of all tasks, now that all are finished: they are listed once."""
        if self._all is None:
            self._all = self.listed()
        return self._all

    def missing(self) -> list[int]:
        """Return the unfinished tasks."""
        listed, tasks = self.listed(), 0 if self.head is None else self.head.tasks
        return [task for task in range(tasks) if not is_complete(listed.get(task, []))]

    def job_parts_of(self, tasks: Iterable[int]) -> tuple[int, ...]:
        """Return the parts of the distributed job that these tasks belong to."""
        count = self.num_job_parts() or 1
        return tuple(sorted({task % count for task in tasks}))

    def has_parts(self) -> bool:
        """Return whether there is any part or record."""
        if self.head is None:
            return False
        for folder in (self.parts, self.place.child("files")):
            with contextlib.suppress(NotFound):
                if any(not is_staged_name(path.rpartition("/")[2]) for path in self.folder.store.list(folder.path)):
                    return True
        return False

    def clear(self) -> None:
        """Remove all work, the plan first, and unfinished multipart uploads; raises the first error at the end."""
        try:
            self.folder.clear(first=HEAD_NAME)
            abort_uploads(self.folder.store, left_uploads(self.output, self.folder))
        finally:
            self.head = self.plan = self._all = None


def left_uploads(
    output: Place, folder: WorkFolder, is_ours: Callable[[str], bool] = is_staged_name
) -> list[OpenUpload]:
    """Return unfinished multipart uploads that nothing needs, if no work is unfinished.

    `is_ours` tells whether work may have begun an object of a name that doesn't exist.
    """
    found = open_uploads(folder.store, list(dict.fromkeys((output.path.rstrip("/"), folder.path))))

    def is_left(path: str) -> bool:
        return path.startswith(f"{folder.path}/") or is_ours(path.rpartition("/")[2]) or folder.store.exists(path)

    return [one for one in found if is_left(one.path)]


def is_complete(parts: Sequence[PartName]) -> bool:
    """Return whether these parts of a task, in order, are all of them."""
    return bool(parts) and parts[-1].last and parts[-1].piece == len(parts) - 1


@contextlib.contextmanager
def scratch(place: Place | None = None) -> Generator[str]:
    """Yield the path of a temporary directory: in `place` if it is local, else in the cache folder."""
    above = place.path if place is not None and place.is_local else upload_folder()
    folder = os.path.join(above, secrets.token_hex(8))
    os.makedirs(folder)
    try:
        yield folder
    finally:
        LocalStore().remove_tree(folder)


def work_folder(output: Place, *, inside: bool, name: str = WORK) -> WorkFolder:
    """Return the work folder of an output: `name` in a directory (`inside`), or next to a file."""
    place = output.child(name) if inside else name_beside(output, WORK)
    return WorkFolder(_bare(place), place.path, _is_ours)


def peek(folder: WorkFolder) -> Plan | None:
    """Return the plan of unfinished work without locking it; None if there is none.

    Raises `Corrupt` if it is damaged, `ConfigError` if another version of Penstock began it.
    """
    if not folder.is_there():
        return None
    head = read_head(folder)
    return None if head is None else _read_plan(folder, head)


@contextlib.contextmanager
def open_work(output: Place, folder: WorkFolder, *, restart: bool, shared: bool) -> Generator[Work]:
    """Open the work folder of an output. It is removed afterwards unless it holds a part or is shared.

    Args:
        output: the output.
        folder: its work folder.
        restart: discard unfinished work first.
        shared: let other workers of the same plan in; else this run excludes others.

    Raises:
        PrepareError: another run writes this output.
        Corrupt: the plan in the folder is damaged.
        ConfigError: another version of Penstock began this work.
    """
    above = _missing_folders(folder.place.folder())
    refusal = PrepareError(
        "another run is writing this output", path=output.path, hint="Wait for it, or choose another output"
    )
    if restart and shared:
        with contextlib.suppress(Corrupt):
            before = peek(folder)
            if before is not None and before.version != VERSION:  # its parts, which may be running, share the lock
                with folder.held(refusal):
                    Work(folder, output).clear()
    with folder.held(refusal, shared=shared):
        work = Work(folder, output)
        if restart:
            _drop_old(output)
        refuse_old(output)
        try:
            _recover(work, restart=restart, shared=shared)
            try:
                yield work
            except BaseException as error:
                work.log_end(error)
                raise
            work.log_end(None)
        finally:
            # Don't fail because of leftovers: they are hidden, and the next run of this output removes them.
            with contextlib.suppress(OSError):
                if not shared:
                    _clear_staged(work)
                if work.head is None or not (shared or work.has_parts()):
                    _remove(work, above)


def _recover(work: Work, *, restart: bool, shared: bool) -> None:
    """Read the plan. Work without one is removed, unless other runs may be about to write it."""
    folder = work.folder
    if restart:
        work.clear()
        return
    work.head = read_head(folder)
    if work.head is not None:
        work.plan = _read_plan(folder, work.head)
    if not shared:
        _clear_staged(work)
        if work.head is None:
            work.clear()


def refuse_old(output: Place) -> None:
    """Raise `ConfigError` if a conversion of Penstock 0.1, which kept its work elsewhere, is unfinished."""
    folder = _old_conversion(output)
    if output.is_local and folder.is_there() and folder.file(_OLD_HEAD).is_file():
        raise _begun_before(folder)


def _drop_old(output: Place) -> None:
    folder = _old_conversion(output)
    if output.is_local and folder.is_there():
        with folder.tried() as had:
            if had:
                folder.clear(first=_OLD_HEAD)
                folder.drop()


def _old_conversion(output: Place) -> WorkFolder:
    place = name_beside(output, OLD_CONVERSION)
    return WorkFolder(_bare(place), place.path, lambda name: name == _OLD_HEAD or _OLD_GROUP.match(name) is not None)


def _begun_before(folder: WorkFolder) -> ConfigError:
    return ConfigError(
        "an earlier version of Penstock left unfinished work for this output",
        path=folder.path,
        hint="Finish it with that version, or discard it: restart (--restart)",
    )


def _clear_staged(work: Work) -> None:
    """Remove temporary files of killed runs."""
    work.folder.clear_staged()
    if work.head is None or not work.folder.store.is_local:
        return
    for root, _, names in os.walk(work.parts.path):
        for name in filter(is_staged_name, names):
            work.folder.store.delete(os.path.join(root, name))
    work.folder.store.remove_tree(work.place.child(SCRATCH).path)


def read_head(folder: WorkFolder) -> Head | None:
    """Return the head of unfinished work, or None; raise like `peek`."""
    try:
        data = folder.store.get(folder.file(HEAD_NAME).path, 0, _MOST_HEAD_BYTES)
    except (NotFound, IsADirectoryError):
        names = folder.names() if folder.place.exists() else []
        if any(name == _OLD_HEAD or _OLD_SHARD.fullmatch(name) for name in names):
            raise _begun_before(folder) from None
        return None
    try:
        head = msgspec.json.decode(data, type=Head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        head = None
    if head is None or not _DIGEST.fullmatch(head.digest):
        raise _damaged(folder)
    if not 0 < head.pieces < 1 << 20 or not 0 <= head.tasks < _MOST_TASKS:
        raise _damaged(folder)
    return head


def _read_plan(folder: WorkFolder, head: Head) -> Plan:
    try:
        pieces = [folder.store.get(_plan_piece(folder, head.digest, number).path) for number in range(head.pieces)]
    except NotFound:
        raise _damaged(folder) from None
    plan = decode_plan(pieces)
    if plan is None or plan.digest() != head.digest:
        raise _damaged(folder)
    return plan


def _damaged(folder: WorkFolder) -> Corrupt:
    return Corrupt("the plan of unfinished work is damaged", path=folder.file(HEAD_NAME).path, hint=RESTART)


def _plan_piece(folder: WorkFolder, digest: str, number: int) -> Place:
    return folder.file(f"{digest}/plan-{number:05d}")


def _prove_new(folder: WorkFolder) -> None:
    """Raise `Unsupported` if the store doesn't create files exclusively; the commit depends on it."""
    if folder.place.is_local:
        return
    path = folder.file(f"{_PROBE}{secrets.token_hex(8)}").path
    try:
        # Not the same bytes: after a lost answer, a store can only tell by them whether the object is ours.
        if not put_new(folder.store, path, b"") or put_new(folder.store, path, b"again"):
            what = "this store can't create files exclusively, so concurrent runs wouldn't detect each other"
            raise Unsupported(what, path=path, hint="Write to a local path, and copy the output there")
    finally:
        with contextlib.suppress(NotFound):
            folder.store.delete(path)


def _bare(place: Place) -> Store:
    """Return a store without a cache that doesn't follow links out of the folder."""
    store = place.store
    if store.is_local:
        return store.within(place.path)
    return store.origin


def _is_ours(name: str) -> bool:
    old = name == _OLD_HEAD or _OLD_PART.fullmatch(name) is not None or _OLD_SHARD.fullmatch(name) is not None
    return old or name == HEAD_NAME or name.startswith(_PROBE) or _DIGEST.fullmatch(name) is not None


def _missing_folders(folder: Place) -> list[Place]:
    """Return the directories that must be created for `folder`, innermost first."""
    missing: list[Place] = []
    while folder.is_local and not folder.is_folder() and folder.path != folder.folder().path:
        missing.append(folder)
        folder = folder.folder()
    return missing


def _remove(work: Work, above: list[Place]) -> None:
    if work.head is not None:
        work.clear()
    work.folder.drop()
    for folder in above:
        if folder.store.is_local:
            folder.store.remove_folder(folder.path)
