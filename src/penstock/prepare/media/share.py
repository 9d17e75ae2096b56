"""How the work of a media index is shared: what an earlier run left of it, and who takes part."""

from __future__ import annotations

import contextlib

from penstock.engine.folder import WorkFolder
from penstock.engine.options import RunOptions
from penstock.engine.plan import Plan
from penstock.engine.shared import SharedWork, open_shared, peek
from penstock.engine.sharing import join
from penstock.errors import PrepareError
from penstock.store.local import LocalStore
from penstock.store.place import Place


def drop_outdated(root: Place, folder: WorkFolder, plan: Plan) -> None:
    """Remove work for an index in whose place another is now, or for files that it has: who made it was killed then."""
    if not folder.is_there():
        return
    before = peek(folder)
    options = {} if before is None else before.options
    is_ours = options.get("verb") == plan.options["verb"]
    # Indexes of one size may have the same edges.
    is_done = options == plan.options and not plan.inputs
    if is_done or (is_ours and options.get("index") != plan.options["index"]) or (before is None and root.is_local):
        with contextlib.suppress(PrepareError), open_shared(root, folder, restart=False, shared=False) as work:
            work.clear()


def take_part(work: SharedWork, plan: Plan, tasks: int, sharing: RunOptions) -> None:
    """Take part in the work; alone, that on other files is thrown away, where a lock says that nobody is at it."""
    before = work.plan
    is_same = before is None or (before.inputs, before.options) == (plan.inputs, plan.options)
    is_ours = before is not None and before.options.get("verb") == plan.options["verb"]
    if is_ours and not is_same and not sharing.is_distributed and isinstance(work.folder.store, LocalStore):
        work.clear()
    join(work, plan, tasks, sharing)
    if work.plan is not None and work.plan.inputs != plan.inputs:
        known = set(work.plan.inputs)
        changed = next((one.name for one in plan.inputs if one not in known), work.plan.inputs[0].name)
        what, hint = (
            f"the input {changed} changed after the job started",
            "Discard the finished parts: restart (--restart)",
        )
        raise PrepareError(what, path=work.output.path, hint=hint)
