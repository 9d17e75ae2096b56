"""Progress of jobs and leftovers of killed ones, from any machine, by one listing of the parts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.engine.folder import WorkFolder, name_beside
from penstock.engine.plan import CHECK
from penstock.engine.work import (
    HEAD_NAME,
    LOG,
    Entry,
    Work,
    left_uploads,
    open_work,
    peek,
    read_head,
    refuse_old,
    unfinished_entries,
    work_folder,
)
from penstock.errors import NotFound, PenstockError, PrepareError, UnsafeData, Unsupported
from penstock.formats import sniff
from penstock.formats.jsonl.build import index_path_for
from penstock.formats.jsonl.energon import energon_index_path
from penstock.formats.samples.webdataset.nvmeta import INFO_JSON, meta_path
from penstock.formats.tokens.folder.files import SIDE_NAME, is_token_file_name, own_files, unlisted_names
from penstock.formats.tokens.folder.index import INDEX_NAME
from penstock.store.compose import OpenUpload, abort_uploads
from penstock.store.find import find_files
from penstock.store.names import METADATA_WORK, UNFINISHED, WORK, hidden_name, is_staged_name
from penstock.store.outputs import claimed, drop_listed
from penstock.store.place import Place

_COMMITS = (INDEX_NAME, ".zgroup", "zarr.json", meta_path("", INFO_JSON).lstrip("/"))
"""Files that make a folder a dataset in an object store."""
_MOST_LOOKED_AT = 64


@dataclass(frozen=True, slots=True)
class WorkStatus:
    """Progress of a job.

    Attributes:
        output: output of the job.
        complete: the output exists, and nothing is unfinished.
        plan: digest of the unfinished plan. None if there is none, as for the indexes of JSONL files: then each file is
            a task, done if its index exists.
        tasks: number of tasks in the plan; `done` and `missing` are the numbers of finished and unfinished ones. Tasks
            of a killed worker are missing.
        files: number of token files assembled, or groups of shards copied.
        shares: number of parts of a distributed job; `missing_shares` are those with a missing task.
        began_s: start time, in seconds since the epoch.
        rate: tasks per second since then; 0 if unknown.
        running: parts and finalize steps that started and haven't reported an end: running ones, and killed ones.
        failed: those that ended with an error, which each contains, and that no later run has completed.
        left_over: files that neither unfinished work nor a dataset needs; `sweep` removes them.
    """

    output: str
    complete: bool
    plan: str | None = None
    tasks: int = 0
    done: int = 0
    missing: int = 0
    files: int = 0
    shares: int | None = None
    missing_shares: tuple[int, ...] = ()
    began_s: float | None = None
    rate: float = 0.0
    running: tuple[Entry, ...] = ()
    failed: tuple[Entry, ...] = ()
    left_over: tuple[str, ...] = field(default=())


def status_of(output: Place) -> WorkStatus:
    """Return the progress of the work on an output, or on an output in this directory if it isn't a dataset.

    Raises:
        NotFound: there is neither the output nor work on it.
        Corrupt: its plan is damaged.
        ConfigError: another version of Penstock began it.
    """
    if output.path.startswith(("http://", "https://")):  # only read, and nothing is listed there
        if not output.exists() and not _is_dataset(output):
            raise NotFound("no dataset", path=output.path, hint="Check the URL")
        return WorkStatus(output.shown, complete=True)
    refuse_old(output)
    for folder in _folders(output):
        head = read_head(folder)
        if head is None or _is_published(output, folder):
            continue
        work = Work(folder, output, head)
        shares = work.num_job_parts()
        tasks, done, missing = _count_tasks(work, head.tasks)
        seconds = time.time() - head.began_s
        told = unfinished_entries(work.place.child(LOG))
        return WorkStatus(
            output=output.shown,
            complete=False,
            plan=head.digest,
            tasks=tasks,
            done=done,
            missing=tasks - done,
            files=_count(work.place.child("files")),
            shares=shares,
            missing_shares=() if shares is None else work.job_parts_of(missing),
            began_s=head.began_s,
            rate=done / seconds if seconds > 0 else 0.0,  # unknown if this clock is behind the starting host's
            running=tuple(one for one in told if one.ended_s is None),
            failed=tuple(one for one in told if one.error is not None),
            left_over=tuple(_left_over(output, folder, head.digest)),
        )
    if not output.exists() and not _is_dataset(output):
        raise NotFound("neither a dataset nor unfinished work", path=output.path, hint="Check the path")
    inner = _work_in(output)
    if inner is not None:
        return status_of(inner)
    files, done = _indexed(output)
    if 0 < done < files:
        return WorkStatus(output.shown, complete=False, tasks=files, done=done, missing=files - done)
    folder = next(iter(_folders(output)), None)
    left = tuple(_left_over(output, folder, None))
    indexed = not output.is_folder() or output.child(INDEX_NAME).exists()
    unfinished = not indexed and any(map(is_token_file_name, output.names()))
    if output.is_folder() and not unfinished and not left and not _holds_dataset(output):
        raise NotFound("no dataset or unfinished work", path=output.path, hint="Check the path")
    return WorkStatus(output.shown, complete=not unfinished, left_over=left)


def _work_in(output: Place) -> Place | None:
    """Return the unfinished output in a directory, such as one that a dataset is split into."""
    return next(unfinished_in(output), None) if output.is_folder() and not _is_dataset(output) else None


def unfinished_in(output: Place) -> Iterator[Place]:
    """Yield the unfinished outputs in a directory, without those in its subdirectories."""
    for name in sorted(output.names()):
        place = output.child(name.removeprefix(".").removesuffix(WORK))
        if not (name.startswith(".") and name.endswith(WORK) and name_beside(place, WORK).name == name):
            continue
        folder = work_folder(place, inside=False)
        if folder.is_there() and read_head(folder) is not None and not _is_published(place, folder):
            yield place


def require_no_open_commit(output: Place) -> None:
    """Raise `PrepareError` if a command is making an output, or one in this directory, visible, or was killed then."""
    if not output.is_local:
        return  # there, plans are recorded instead
    marks = [name for name in output.names() if name.startswith(".") and name.endswith(UNFINISHED)]
    beside = output.folder().child(hidden_name(output.name, UNFINISHED))
    marks += [beside.name] * beside.exists()
    if marks:
        what = "a command is making this output visible, or was killed meanwhile"
        hint = "If none is running, run the same command again. Until then, it may contain old and new files"
        raise PrepareError(what, path=output.shown, found=", ".join(sorted(marks)), hint=hint)


def is_recorded(folder: Place) -> bool:
    """Return whether a job left a side file, an index or metadata in a directory, next to it, or in a subdirectory."""
    names = sorted(folder.names())
    files, done = _indexed(folder)
    return (
        any(name.endswith(SIDE_NAME) for name in names)
        or 0 < files == done
        or folder.child(meta_path("", INFO_JSON).lstrip("/")).exists()
        or folder.beside(SIDE_NAME).exists()
        or any(folder.child(name).child(SIDE_NAME).exists() for name in names[:_MOST_LOOKED_AT])
    )


def _indexed(output: Place) -> tuple[int, int]:
    """Return the number of JSONL files of a directory or pattern, and how many have an index."""
    try:
        if sniff(output.store, output.path).name != "jsonl-files":
            return 0, 0
        found = set(find_files(output.path, [(".jsonl", ".ndjson", ".idx")], "JSONL"))
        if not output.is_folder():  # a pattern: for its matches
            folders = {Place(output.store, path).folder().path for path in found}
            inside = (Place(output.store, path) for path in folders)
            found |= {one.child(name).path for one in inside for name in one.names() if name.endswith(".idx")}
    except (PenstockError, OSError):
        return 0, 0
    there = {path for path in found if path.endswith(".idx")}
    files = found - there
    return len(files), max(
        sum(index(path) in there for path in files) for index in (index_path_for, energon_index_path)
    )


def _count_tasks(work: Work, tasks: int) -> tuple[int, int, list[int]]:
    """Return the numbers of tasks and finished tasks, and the missing ones; for a check, its missing parts."""
    plan = peek(work.folder)
    if plan is None or plan.engine != CHECK:
        missing = work.missing()
        return tasks, tasks - len(missing), missing
    records = {part: names[0] for part, names in work.listed().items()}
    missing = [part for part in range(work.num_job_parts() or 0) if part not in records]
    num_tasks = max((one.tokens for one in records.values()), default=0)
    return num_tasks, sum(one.documents for one in records.values()), missing


def sweep(output: Place) -> list[str]:
    """Remove the leftovers that `status_of` reports; return their paths.

    Raises `PrepareError` if a run is active, or something can't be removed.
    """
    status_of(output)  # raises if nothing exists
    output = _work_in(output) or output
    with contextlib.ExitStack() as held:
        held.enter_context(claimed(output.store, output.path))
        found = status_of(output)
        folder = next(iter(_folders(output)), None)
        if folder is not None:
            work = held.enter_context(open_work(output, folder, restart=False, shared=False))
            if found.plan is None:
                work.clear()
        uploads = _left_uploads(output, folder, found.plan)
        aborted = {one.path for one in uploads}
        abort_uploads(output.store, uploads)
        for path in found.left_over:
            if path not in aborted:
                _remove(output, folder, Place(output.store, path))
    there = [path for path in found.left_over if path not in aborted and output.store.exists(path)]
    for path in there:
        if _is_ours(output, Place(output.store, path).name):
            raise PrepareError("leftover files can't be removed", path=path, hint="Check its permissions")
    return [path for path in found.left_over if path not in there]


def _is_ours(output: Place, name: str) -> bool:
    """Return whether a leftover holds more than files of others."""
    return not is_token_file_name(name) or unlisted_names(output.store, output.path, name) != []


def _remove(output: Place, folder: WorkFolder | None, left: Place) -> None:
    if is_token_file_name(left.name):
        drop_listed(output.store, output.path, unlisted_names(output.store, output.path, left.name))
    elif folder is not None:
        folder.remove(left.name)


def _is_published(output: Place, folder: WorkFolder) -> bool:
    """Return whether a run was killed between its commit and its end."""
    plan = peek(folder)
    if plan is None or plan.options.get("--overwrite"):
        return False
    for name, commit in ((WORK, INDEX_NAME), (METADATA_WORK, meta_path("", INFO_JSON).lstrip("/"))):
        if folder.path == output.child(name).path:
            return output.child(commit).exists()
    if output.is_local or not output.is_folder():
        return output.exists() or _is_dataset(output)  # of which a path may be the beginning of names
    return any(output.child(name).exists() for name in _COMMITS)  # other files of a folder come before it


def _folders(output: Place) -> list[WorkFolder]:
    every = (*(work_folder(output, inside=True, name=name) for name in (WORK, METADATA_WORK)), None)
    return [one for one in (folder or work_folder(output, inside=False) for folder in every) if one.is_there()]


def _left_over(output: Place, folder: WorkFolder | None, digest: str | None) -> list[str]:
    """Return plans that aren't active and, without unfinished work, token files that the index doesn't list."""
    found: list[str] = []
    if folder is not None:
        ours = (name for name in folder.names() if folder.is_ours(name))
        found += [folder.file(name).path for name in ours if name not in (digest and HEAD_NAME, digest)]
    if digest is None and output.is_folder() and output.child(INDEX_NAME).exists():
        with contextlib.suppress(PenstockError):
            own = {name.partition("/")[0] for name in own_files(output.store, output.path)}
            found += [
                output.child(name).path for name in output.names() if is_token_file_name(name) and name not in own
            ]
    found += [one.path for one in _left_uploads(output, folder, digest) if one.path not in found]
    return found


def _left_uploads(output: Place, folder: WorkFolder | None, digest: str | None) -> list[OpenUpload]:
    """Return unfinished multipart uploads if there is no unfinished work."""
    if digest is not None:
        return []
    folder = folder or work_folder(output, inside=output.is_folder())
    return left_uploads(output, folder, lambda name: is_staged_name(name) or is_token_file_name(name))


def _holds_dataset(output: Place) -> bool:
    """Return whether a directory is a dataset or contains one."""
    return any(map(_is_dataset, (output, *map(output.child, sorted(output.names())[:_MOST_LOOKED_AT]))))


def _is_dataset(place: Place) -> bool:
    try:
        sniff(place.store, place.path)
    except (NotFound, Unsupported, UnsafeData):
        return False
    return True


def _count(folder: Place) -> int:
    with contextlib.suppress(NotFound):
        return sum(1 for _ in folder.store.list(folder.path))
    return 0
