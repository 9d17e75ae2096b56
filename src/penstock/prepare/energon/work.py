"""The work folder of a dataset that is prepared: its plan, and what killed runs and runs with other options left."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from penstock._digest import digest
from penstock._printable import recordable
from penstock.engine.folder import WorkFolder
from penstock.engine.plan import Plan, PlannedInput
from penstock.engine.work import HEAD_NAME, OF_METADATA, Work, open_work, work_folder
from penstock.formats.samples.webdataset.key_index import KEYS
from penstock.formats.samples.webdataset.nvmeta import INFO_JSON, SQLITE, UUID
from penstock.prepare.energon.request import Request
from penstock.store.local import LocalStore
from penstock.store.outputs import claimed
from penstock.store.place import Place
from penstock.store.put import put_new
from penstock.store.side_file import EDGE_BYTES, edge_binding, file_binding
from penstock.store.state import FileState

_VERB = "verb"


def folder_of(dataset: Place) -> WorkFolder:
    """Return the work folder for the metadata of a dataset."""
    return work_folder(dataset, inside=True, name=OF_METADATA)


def forget(dataset: Place, done: Plan | None = None) -> None:
    """Remove what a run left that was killed after its commit.

    Args:
        dataset: directory of the dataset.
        done: a plan that is known to be done.

    Raises:
        PrepareError: another run is preparing the dataset.
    """
    folder = folder_of(dataset)
    with claimed(dataset.store, dataset.path):  # whose lock a killed run may have left
        if not folder.is_there():
            return
        with open_work(dataset, folder, restart=False, shared=False) as work:
            # In an object store nothing tells whether others are still at it, who replace what is there.
            is_live = not dataset.is_local and work.plan is not None and work.plan.options.get("--overwrite")
            is_ours = work.plan is not None and work.plan.options.get(_VERB) == "prepare"
            is_done = done is not None and work.head is not None and work.head.digest == done.digest()
            if work.plan is None or is_done or (is_ours and not is_live):
                work.clear()


def plan_of(request: Request) -> Plan:
    """Return the plan, with one task per shard."""
    source = request.source
    inputs = (
        planned_input(name, source.dataset.child(name), state)
        for name, state in zip(source.shards, source.states, strict=True)
    )
    options = {_VERB: "prepare", **request.metadata.recorded(), "--overwrite": request.run.overwrite}
    return Plan(options, tuple(inputs), 1, "")


def planned_input(name: str, file: Place, state: FileState) -> PlannedInput:
    """Identify a file by the version that its store reports, or else by its first and last 4 KiB."""
    digest = state.version or file_binding(file.store, file.path)
    return PlannedInput(recordable(name), state.size_bytes, digest, state.mtime_ns)


def done_mark(request: Request, plan: Plan, made: Mapping[str, Place], contents: Mapping[str, bytes]) -> bytes:
    """Return the content of `DONE` after a distributed job with `overwrite`: a digest of its plan and its files.

    Args:
        request: the request.
        plan: its plan.
        made: new files of `.nv-meta` that are not in place yet.
        contents: contents of other new files. Files in neither stay as they are.

    Raises:
        NotFound: a file doesn't exist.
    """

    def binding(name: str) -> str:
        if name in contents:
            data = contents[name]
            return edge_binding(len(data), data[:EDGE_BYTES], data[-EDGE_BYTES:])
        file = made.get(name, request.meta_file(name))
        return file_binding(file.store, file.path)

    names = [KEYS, UUID, INFO_JSON, *request.meta.files, *([SQLITE] if request.metadata.sqlite else [])]
    times = [one.mtime_ns for one in plan.inputs]
    return digest(plan.digest(), times, {name: binding(name) for name in names}).encode()


def take_over(work: Work, plan: Plan) -> None:
    """Take over parts of unchanged shards from unfinished work with other options or shards.

    Only if the lock of a local folder proves that no other run is at it. Other work stays as it is.
    """
    before = work.plan
    is_same = before is None or (before.inputs, before.options) == (plan.inputs, plan.options)
    if before is None or is_same or not isinstance(work.folder.store, LocalStore):
        return
    if (before.version, before.options.get(_VERB)) != (plan.version, plan.options[_VERB]):
        return
    listed, old = work.listed(), work.parts
    numbers = {one: number for number, one in enumerate(before.inputs)}
    if before.digest() == plan.digest():
        # Only times of change differ: those shards are scanned again.
        for number, one in enumerate(plan.inputs):
            for name in () if one in numbers else listed.get(number, ()):
                work.folder.store.delete(old.child(name.path).path)
        return
    old_plan = work.place
    work.folder.store.delete(work.folder.file(HEAD_NAME).path)
    work.head = work.plan = None
    work.begin(plan, len(plan.inputs))
    if before.options.get("--media-metadata") == plan.options["--media-metadata"]:
        for number, one in enumerate(plan.inputs):
            for name in listed.get(numbers.get(one, -1), ()):
                part = work.parts.child(dataclasses.replace(name, task=number).path)
                put_new(part.store, part.path, part.store.get(old.child(name.path).path))
    work.folder.store.remove_tree(old_plan.path)
