"""Token files of a folder: assembled side by side from parts, marked when they are there, and made one dataset."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from penstock.abc import Executor
from penstock.engine.ended import end_made, sweep_made
from penstock.engine.parts import PartName
from penstock.engine.plan import RESTART
from penstock.engine.run import Wave
from penstock.engine.shared import SharedWork
from penstock.engine.tokens.assemble import FileJob, FileMark, FileTask, assemble_file, cut_files
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError, PrepareError
from penstock.formats._manifest import Provenance
from penstock.formats.tokens.folder.files import (
    SIDE_NAME,
    data_names,
    is_token_file_name,
    is_unfinished_name,
    listed_files,
    own_files,
    read_index_bytes,
    side_name,
)
from penstock.formats.tokens.folder.index import INDEX_NAME, decode_index, encode_index
from penstock.formats.tokens.folder.side import NAME, folder_facts, folder_manifest
from penstock.store.outputs import Filled, drop_listed, filled_folder, sweep_complete
from penstock.store.place import Place
from penstock.store.put import put
from penstock.store.side_file import is_next, load_manifest, publish_beside, stage_side_file, sweep_next
from penstock.types import Manifest

_REPLACED = "replaced.json"
"""In the folder of a plan: what the index that is replaced lists alone, until that is removed."""


@contextlib.contextmanager
def held_folder(output: Place, *, overwrite: bool, shared: bool) -> Generator[None]:
    """Hold the folder of token files that is made, `shared` by workers of one plan; raises as `filled_folder`."""
    with filled_folder(output.store, output.path, _kind(output), overwrite=overwrite, shared=shared):
        yield


def sweep_killed_tokens(output: Place, format: str, *, is_folder: bool) -> None:
    """As `sweep_made`, of a folder of token files too.

    Args:
        output: what was made.
        format: of its token files.
        is_folder: it is a folder of them.
    """
    if is_folder:
        sweep_complete(output.store, [output.path, *(output.child(name).path for name in (INDEX_NAME, SIDE_NAME))])
    else:
        sweep_made(output, format)


def end_killed_commit(work: SharedWork, format: str, *, is_folder: bool) -> None:
    """As `end_made`, of a folder of token files too."""
    if is_folder:
        _end_folder(work)
    else:
        end_made(work.output, format, work.head and work.head.digest)


def _end_folder(work: SharedWork) -> None:
    output = work.output
    store, side, index = output.store, output.child(SIDE_NAME).path, output.child(INDEX_NAME).path
    data = read_index_bytes(store, output.path)
    facts = functools.partial(folder_facts, data, decode_index(data, index))
    sweep_next(store, f"{NAME}.next", [side], is_next(store, side, facts), write=True)
    if work.head is not None:
        listed = set(own_files(store, output.path))
        drop_listed(store, output.path, (name for name in _replaced(work) or () if name not in listed))


def _replaced(work: SharedWork) -> list[str] | None:
    """What a commit noted that the index which it replaces lists alone; None where it replaces none."""
    note = work.place.child(_REPLACED)
    try:
        names = msgspec.json.decode(note.store.get(note.path), type=list[str])
    except (NotFound, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return [name for name in names if is_token_file_name(name.partition("/")[0]) and ".." not in name.split("/")]


def _kind(output: Place) -> Filled:
    return Filled(functools.partial(own_files, output.store), INDEX_NAME, is_unfinished_name)


@dataclass(frozen=True, slots=True)
class TokenFiles:
    """The folder that is made.

    Attributes:
        job: what all its files share.
        file_tokens: tokens of a file.
        overwrite: replace what is there.
        given: what is said of the data, for the side file of the folder.
        work: where it is made.
        executor: assembles.
        refuse: the error for an input on which engines disagree, by its number, and where.
    """

    job: FileJob
    file_tokens: int
    overwrite: bool
    given: Provenance
    work: SharedWork
    executor: Executor
    refuse: Callable[[int, str], PenstockError] | None = None

    def missing_shares(self, parts: Sequence[PartName] | None) -> tuple[int, ...]:
        """The shares of which a token file is missing."""
        marks = self.marks()
        return self.work.shares_of(task.number for task in self.tasks(parts or ()) if task.number not in marks)

    def make(self, parts: Sequence[PartName], share: tuple[int, int] | None = None) -> None:
        """Assemble the token files that are missing, of a share or of all."""
        index, count = share or (0, 1)
        marks = self.marks()
        tasks = (task for task in self.tasks(parts) if task.number % count == index and task.number not in marks)
        self.assemble(self.executor, tasks)

    def assemble(self, pool: Executor, tasks: Iterable[FileTask]) -> None:
        """Make token files and record each; raises as `refuse` if engines disagree on one."""
        for done in pool.map(functools.partial(assemble_file, self.job), tasks):
            if done.differs is not None and self.refuse is not None:
                raise self.refuse(*done.differs)
            put(self.work.folder.store, self._mark(done.number).path, msgspec.json.encode(done.mark))

    def commit(self, parts: Sequence[PartName]) -> Manifest:
        """Make the folder visible: its side file, then its index; then remove what it replaces.

        Raises:
            PrepareError: files that were made of the parts are no longer marked: another finisher was first.
        """
        output, count = self.job.output, len(self.tasks(parts))
        marks = self.marks()
        if marks.keys() != set(range(count)):  # an index of fewer files would take the place of what that one made
            what, hint = "the records of finished token files are missing", "Run it again"
            raise PrepareError(what, path=output.path, found=len(marks), expected=count, hint=hint)
        entries = [marks[number].entry for number in range(count)]
        self._require_sizes(marks.values())
        data = encode_index(self.job.to, entries)
        replaced = self._note_replaced(data)
        size_bytes = sum(mark.size_bytes for mark in marks.values())
        manifest = folder_manifest(data, decode_index(data, output.path), size_bytes, self.given)
        index = output.child(INDEX_NAME)
        staged = output.store.stage(index.path, overwrite=self.overwrite)
        try:
            staged.write(data)
            staged.sync()
            side = stage_side_file(output.store, output.child(SIDE_NAME).path, manifest, replaces=replaced is not None)

            def landed() -> bool:
                return output.store.get(index.path) == data

            publish_beside(output.store, [side], staged.commit, landed)
        except BaseException:
            staged.abort()
            raise
        drop_listed(output.store, output.path, replaced or ())
        return manifest

    def _require_sizes(self, marks: Iterable[FileMark]) -> None:
        """Raise an error if a token file has another size than its mark says.

        Raises:
            ConfigError: the replaced dataset has these documents with ids of another width. Names of token files are
                digests of their documents, so that both can't be in one folder.
            Corrupt: a token file is damaged.
        """
        if self.job.to == "flat-tokens":
            return  # folders, whose ids have one width, and whose files have digests of their own
        if not (self.job.output.is_local or self.overwrite):
            return  # object stores check objects themselves
        for mark in marks:
            some = data_names(self.job.to, mark.entry.path)
            size_bytes = sum(one.store.size(one.path) for one in map(self.job.output.child, some))
            if size_bytes == mark.size_bytes:
                continue
            path, found, expected = self.job.output.child(some[0]).path, f"{size_bytes} bytes", f"{mark.size_bytes}"
            if self._is_of_another_width(mark.entry.path, size_bytes):
                what = "the folder to replace has the same documents with a different id width"
                hint = "Write to another folder, or delete this folder first"
                raise ConfigError(what, path=path, found=found, expected=expected, hint=hint)
            what = "a token file of unfinished work is damaged"
            raise Corrupt(what, path=path, found=found, expected=expected, hint=RESTART)

    def _is_of_another_width(self, name: str, size_bytes: int) -> bool:
        """Return whether a replaced dataset had the same documents under this name, with ids of another width."""
        side_file = self.job.output.child(side_name(self.job.to, name))
        manifest = load_manifest(side_file.store, side_file.path)
        return manifest is not None and manifest.size_bytes == size_bytes

    def _note_replaced(self, data: bytes) -> list[str] | None:
        """What the index that `data` replaces lists alone; where it is replaced, what a killed run noted of it.

        None where no other index was there.
        """
        output, note = self.job.output, self.work.place.child(_REPLACED)
        index = output.child(INDEX_NAME)
        if output.store.exists(index.path) and output.store.get(index.path) != data:
            new = set(listed_files(output.store, output.path, decode_index(data, index.path)))
            old = [name for name in own_files(output.store, output.path) if name not in new]
            put(note.store, note.path, msgspec.json.encode(old))
        return _replaced(self.work)

    def tasks(self, parts: Sequence[PartName]) -> list[FileTask]:
        """Return the token files that consist of these parts, in order."""
        cut = cut_files(parts, self.file_tokens, self.job.parts, self.job.token_bytes)
        return [FileTask(number, ranges) for number, ranges in enumerate(cut)]

    def marks(self) -> dict[int, FileMark]:
        """Return the records of the existing token files, by number."""
        found: dict[int, FileMark] = {}
        there = set(self.job.output.names())
        with contextlib.suppress(NotFound):
            for path in self.work.folder.store.list(self.work.place.child("files").path):
                number = path.rpartition("/")[2].removesuffix(".json")
                with contextlib.suppress(msgspec.MsgspecError, ValueError, NotFound, RecursionError):
                    mark = msgspec.json.decode(self.work.folder.store.get(path), type=FileMark)
                    if mark.entry.path in there:
                        found[int(number)] = mark
        return found

    def _mark(self, number: int) -> Place:
        return self.work.place.child(f"files/{number:05d}.json")


class FileWave(Wave):
    """Second wave: each task makes a token file of a folder."""

    def __init__(self, files: TokenFiles, parts: Sequence[PartName]) -> None:
        self.files = files
        self.tasks = files.tasks(parts)

    def done(self) -> Mapping[int, FileMark]:
        """Return the finished token files by number."""
        return self.files.marks()

    def run(self, pool: Executor, tasks: Sequence[FileTask]) -> None:
        """Make token files and record them."""
        self.files.assemble(pool, tasks)
