"""Token files of a folder: assembled side by side from parts, marked when they are there, and made one dataset."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from penstock.abc import Executor
from penstock.errors import ConfigError, NotFound, PenstockError
from penstock.formats._manifest import Provenance
from penstock.formats.tokens.folder.files import SIDE_NAME, own_files
from penstock.formats.tokens.folder.index import (
    INDEX_NAME,
    decode_index,
    encode_index,
    is_token_file_index,
)
from penstock.formats.tokens.folder.side import folder_manifest
from penstock.prepare.tokens.assemble import FileJob, FileMark, FileTask, assemble_file, cut_files
from penstock.prepare.tokens.engines import Reference
from penstock.prepare.tokens.oracle import check_probes
from penstock.prepare.tokens.understand import Material, Request, recorded_of
from penstock.store._replaced import is_staged_name
from penstock.store.local import LocalStore, output_exists
from penstock.store.place import Place
from penstock.store.put import put
from penstock.store.side_file import publish_beside, stage_side_file
from penstock.types import Manifest
from penstock.work.parts import PartName
from penstock.work.shared import INSIDE, SCRATCH, SharedWork

_OURS = re.compile(r"part-\d{5,}-[0-9a-f]{8}\.[\w.]+")
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class TokenFiles:
    """The folder that is made.

    Attributes:
        request: what was asked for; `material` and `work` what it turned out to mean, and where it is done.
        executor: assembles.
        reference: is compared with what parts remember; None where it encoded them itself.
    """

    request: Request
    material: Material
    work: SharedWork
    executor: Executor
    reference: Reference | None

    def require_output(self) -> None:
        """That the folder holds nothing but a folder of token files, which may be replaced; raises `ConfigError`."""
        output = self.request.output
        names = output.names()
        known = (INDEX_NAME, f"{INDEX_NAME}.next", SIDE_NAME, f"{SIDE_NAME}.next", INSIDE)
        others = [
            name for name in names if name not in known and not _OURS.fullmatch(name) and not is_staged_name(name)
        ]
        if others:
            more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
            raise ConfigError(
                "the folder holds other files than token files",
                path=output.path,
                found=", ".join(others[:_SHOWN]) + more,
                hint="Name a folder of its own",
            )
        if INDEX_NAME not in names:
            return
        if not self.request.overwrite:
            raise output_exists(output.path)
        if not is_token_file_index(output.store.get(output.child(INDEX_NAME).path)):
            what = "what stands here is another dataset than a folder of token files"
            raise ConfigError(what, path=output.path, hint="Name another output, or remove it")

    def missing_shares(self, parts: Sequence[PartName] | None) -> tuple[int, ...]:
        """The shares of which a token file is missing."""
        marks = self._marks()
        return self.work.shares_of(task.number for task in self._tasks(parts or ()) if task.number not in marks)

    def make(self, parts: Sequence[PartName], share: tuple[int, int] | None = None) -> None:
        """Assemble the token files that are missing, of a share or of all."""
        request, spec = self.request, self.material.spec
        options = recorded_of(request, self.material)
        options = {**options, "inputs": {}}  # the folder's own side file names them
        job = FileJob(request.output, self.work.parts, self.work.place.child(SCRATCH), request.to, spec, options)
        index, count = share or (0, 1)
        marks = self._marks()
        tasks = (task for task in self._tasks(parts) if task.number % count == index and task.number not in marks)
        for done in self.executor.map(functools.partial(assemble_file, job), tasks):
            if self.reference is not None:
                check_probes(self.reference, done.probes, self.material.inputs)
            put(self.work.folder.store, self._mark(done.number).path, msgspec.json.encode(done.mark))

    def commit(self) -> Manifest:
        """Make the folder visible: its side file, then its index; then remove what it replaces."""
        output = self.request.output
        marks = self._marks()
        entries = [marks[number].entry for number in range(len(marks))]
        data = encode_index(self.request.to, entries)
        manifest = self._manifest(sum(mark.size_bytes for mark in marks.values()), data)
        index = output.child(INDEX_NAME)
        before = self._own_files()
        staged = output.store.stage(index.path, overwrite=self.request.overwrite)
        try:
            staged.write(data)
            staged.sync()
            side = stage_side_file(output.store, output.child(SIDE_NAME).path, manifest, replaces=bool(before))

            def landed() -> bool:
                return output.store.get(index.path) == data

            publish_beside(output.store, [side], staged.commit, landed)
        except BaseException:
            staged.abort()
            raise
        self._drop_replaced(before, self._own_files())
        return manifest

    def _own_files(self) -> list[str]:
        """What the index that is there lists; nothing where there is none, or it is damaged."""
        output = self.request.output
        with contextlib.suppress(PenstockError):
            return own_files(output.store, output.path)
        return []

    def _manifest(self, size_bytes: int, data: bytes) -> Manifest:
        spec, recorded = self.material.spec, recorded_of(self.request, self.material)
        options = {**recorded["options"], "file_tokens": self.request.file_tokens, "to": self.request.to}
        given = Provenance(spec.eos_id, spec.name, recorded["tokenizer_digest"], recorded["inputs"], options)
        return folder_manifest(data, decode_index(data, self.request.output.path), size_bytes, given)

    def _drop_replaced(self, before: Sequence[str], after: Sequence[str]) -> None:
        output = self.request.output
        for name in sorted(set(before) - set(after)):
            with contextlib.suppress(PenstockError, OSError):
                output.store.delete(output.child(name).path)
        if isinstance(output.store, LocalStore):
            for group in {name.partition("/")[0] for name in before if "/" in name}:
                if not any(True for _ in output.store.list(output.child(group).path)):
                    output.store.remove_tree(output.child(group).path)

    def _tasks(self, parts: Sequence[PartName]) -> list[FileTask]:
        file_tokens = self.request.file_tokens or 1
        cut = cut_files(parts, file_tokens, self.work.parts, self.material.spec.token_bytes)
        return [FileTask(number, ranges) for number, ranges in enumerate(cut)]

    def _marks(self) -> dict[int, FileMark]:
        """The marks of token files that are there."""
        found: dict[int, FileMark] = {}
        there = set(self.request.output.names())
        with contextlib.suppress(NotFound):
            for path in self.work.folder.store.list(self.work.place.child("files").path):
                number = path.rpartition("/")[2].removesuffix(".json")
                with contextlib.suppress(msgspec.MsgspecError, ValueError, NotFound):
                    mark = msgspec.json.decode(self.work.folder.store.get(path), type=FileMark)
                    if mark.entry.path in there:
                        found[int(number)] = mark
        return found

    def _mark(self, number: int) -> Place:
        return self.work.place.child(f"files/{number:05d}.json")
