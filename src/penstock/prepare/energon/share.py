"""What a preparation shares with other workers: its plan, and what unfinished work of another plan had found."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping

from penstock._digest import digest
from penstock._printable import recordable
from penstock.engine.folder import WorkFolder
from penstock.engine.plan import Plan, PlannedInput
from penstock.engine.shared import HEAD_NAME, OF_METADATA, SharedWork, open_shared, work_folder
from penstock.errors import NotFound
from penstock.formats.samples.webdataset.key_index import KEYS
from penstock.formats.samples.webdataset.nvmeta import DONE, INFO_JSON, SQLITE, UUID
from penstock.prepare.energon.request import Request
from penstock.store.local import LocalStore
from penstock.store.outputs import claimed
from penstock.store.place import Place
from penstock.store.put import put_new
from penstock.store.side_file import EDGE_BYTES, edge_binding, file_binding
from penstock.store.state import FileState

_VERB = "verb"


def folder_of(dataset: Place) -> WorkFolder:
    """Where unfinished work on the metadata of a dataset lies."""
    return work_folder(dataset, inside=True, name=OF_METADATA)


def forget(dataset: Place, done: Plan | None = None) -> None:
    """Remove what a run left that was killed after the dataset was complete.

    Args:
        dataset: its folder.
        done: a plan of which it is known that it is done.

    Raises:
        PrepareError: another run is at work there.
    """
    folder = folder_of(dataset)
    with claimed(dataset.store, dataset.path):  # whose lock a killed run may have left
        if not folder.is_there():
            return
        with open_shared(dataset, folder, restart=False, shared=False) as work:
            # In an object store nothing tells whether others are still at it, who replace what is there.
            is_live = not dataset.is_local and work.plan is not None and work.plan.options.get("--overwrite")
            is_ours = work.plan is not None and work.plan.options.get(_VERB) == "prepare"
            is_done = done is not None and work.head is not None and work.head.digest == done.digest()
            if work.plan is None or is_done or (is_ours and not is_live):
                work.clear()


def plan_of(request: Request) -> Plan:
    """The plan: a task a shard."""
    found = request.plan
    inputs = (
        planned_input(name, found.dataset.child(name), state)
        for name, state in zip(found.shards, found.states, strict=True)
    )
    return Plan({_VERB: "prepare", **request.options}, tuple(inputs), 1, "")


def planned_input(name: str, file: Place, state: FileState) -> PlannedInput:
    """A file as a plan knows it: by the version that its store gives it, or by its first and last 4 KiB."""
    digest = state.version or file_binding(file.store, file.path)
    return PlannedInput(recordable(name), state.size_bytes, digest, state.mtime_ns)


def done_mark(request: Request, plan: Plan, made: Mapping[str, Place], contents: Mapping[str, bytes]) -> bytes:
    """What `DONE` holds where the work of a plan has replaced what was there: a digest of the plan and its files.

    Args:
        request: what was asked for.
        plan: of it.
        made: files of `.nv-meta` that become visible, by where they are.
        contents: others of them, by what they hold; what is in neither stays as it is.

    Raises:
        NotFound: such a file is not there.
    """

    def binding(name: str) -> str:
        if name in contents:
            data = contents[name]
            return edge_binding(len(data), data[:EDGE_BYTES], data[-EDGE_BYTES:])
        file = made.get(name, request.meta_file(name))
        return file_binding(file.store, file.path)

    names = [KEYS, UUID, INFO_JSON, *request.meta.files, *([SQLITE] if request.how.sqlite else [])]
    times = [one.mtime_ns for one in plan.inputs]
    return digest(plan.digest(), times, {name: binding(name) for name in names}).encode()


def is_done(request: Request) -> bool:
    """Whether what is there is what workers of this plan put in the place of what was there before them."""
    mark = request.meta_file(DONE)
    with contextlib.suppress(NotFound):
        return mark.exists() and mark.store.get(mark.path) == done_mark(request, plan_of(request), {}, {})
    return False


def take_over(work: SharedWork, plan: Plan) -> None:
    """Of unfinished work that was asked for otherwise, go on with what was found in shards that are the same still.

    Only where nobody else can be at work on it, as the lock of a local folder says. Other work stays as it is.
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
        # Shards were touched, as far as can be seen: what was found in them is looked at again.
        for number, one in enumerate(plan.inputs):
            for name in () if one in numbers else listed.get(number, ()):
                work.folder.store.delete(old.child(name.path).path)
        return
    left = work.place
    work.folder.store.delete(work.folder.file(HEAD_NAME).path)
    work.head = work.plan = None
    work.begin(plan, len(plan.inputs))
    if before.options.get("--media-metadata") == plan.options["--media-metadata"]:
        for number, one in enumerate(plan.inputs):
            for name in listed.get(numbers.get(one, -1), ()):
                part = work.parts.child(dataclasses.replace(name, task=number).path)
                put_new(part.store, part.path, part.store.get(old.child(name.path).path))
    work.folder.store.remove_tree(left.path)
