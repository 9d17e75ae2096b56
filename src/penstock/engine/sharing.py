"""How a run takes part in work that others may do too: alone, by a share, or by its end; the same for all verbs."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable

from penstock._ending import sleep
from penstock.engine.folder import WorkFolder
from penstock.engine.options import RunOptions
from penstock.engine.plan import RESTART, Plan, require_same
from penstock.engine.shared import HEAD_NAME, SharedWork
from penstock.errors import Corrupt, PenstockError, PrepareError
from penstock.store._named import named
from penstock.store.outputs import is_held
from penstock.store.place import Place

_LOOK_S = 0.1
_KEPT = "Finished parts are kept: run the same command again to resume"


def join(work: SharedWork, plan: Plan, tasks: int, sharing: RunOptions, reads: Iterable[Place] = ()) -> None:
    """Take part in the work of a plan, which is cut into so many tasks, or begin it.

    Args:
        work: open.
        plan: what to do.
        tasks: how many there are.
        sharing: what this run does of them.
        reads: the datasets that are read, where plans record no state of their files.

    Raises:
        ConfigError: what is there was asked for otherwise, or is shared by another number; or an input changed since.
        Corrupt: what is there says another number of tasks.
        PrepareError: other work began meanwhile.
        Unsupported: the store can't tell whether a file is new.
    """
    work.reads = tuple(reads)
    work.require_recorded_inputs()
    require_same(work.plan, plan, work.output.path)
    if work.head is not None and work.head.tasks != tasks:
        found, expected = f"{work.head.tasks} tasks", f"{tasks}"
        path = work.folder.file(HEAD_NAME).path
        raise Corrupt("the plan of unfinished work is damaged", path=path, found=found, expected=expected, hint=RESTART)
    work.begin(plan, tasks)
    work.record_inputs()
    if sharing.part is not None:
        work.share_among(sharing.part[1])
    if sharing.is_distributed:
        work.tell_begin(sharing.part)


def wait_for_another(output: Place, folder: WorkFolder, sharing: RunOptions) -> bool:
    """Wait while another finisher of the same plan writes the output, of which this is the first file.

    Returns:
        Whether one did: what it made is there now, or the work goes on without it.
    """
    waited = False
    while sharing.finish and folder.is_there() and is_held(output.store, output.path):
        with folder.tried() as alone:
            if alone and folder.place.is_local and not waited:  # whoever writes does not do so by this plan
                return False
        waited = True
        if sleep(_LOOK_S):
            return False
    return waited


def wait_for_writer(output: Place) -> bool:
    """Wait while another writer holds an output; whether one did."""
    waited = False
    while is_held(output.store, output.path) and not sleep(_LOOK_S):
        waited = True
    return waited


@contextlib.contextmanager
def kept_or_not(work: SharedWork, *, joins: bool) -> Generator[None]:
    """Keep finished parts if the run is interrupted, workers die or the executor breaks; drop them on other errors.

    Parts of a distributed job are always kept.
    """
    try:
        yield
    except (OSError, KeyboardInterrupt, PrepareError):
        raise
    except BaseException:
        if not joins:
            with contextlib.suppress(OSError, PenstockError):
                work.clear()
        raise


@contextlib.contextmanager
def plain_errors(output: Place, folder: WorkFolder) -> Generator[None]:
    """Refusals of the system name a file; these and every `PrepareError` say what is kept."""
    try:
        yield
    except PrepareError as error:
        if folder.is_there() and "--restart" not in (error.hint or ""):
            error.hint = f"{error.hint}. {_KEPT}" if error.hint else _KEPT
        raise
    except PenstockError:
        raise
    except OSError as error:
        told = named(error, output.path)
        if told.errno is not None and folder.is_there():
            told.strerror = f"{told.strerror}. {_KEPT}"
        raise told from None
