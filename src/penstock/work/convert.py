"""The work folder of a conversion in groups: what an unfinished one has finished, and what it was asked to do.

`.<name>.convert` beside the output holds `plan.json`, a dataset for each group, and beside each finished one a file
with its counts and digest. A run that was asked for the same goes on; for another one everything is thrown away.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.errors import NotFound, PenstockError, PrepareError
from penstock.store.place import Place
from penstock.work.folder import WorkFolder, is_real_folder, work_beside

_PLAN = "plan.json"
_GROUP = re.compile(r"^\.?g\d{7}")  # what a group's writer makes begins with its name


@dataclass(frozen=True, slots=True)
class Done:
    """A finished group.

    Attributes:
        number: its place among the groups.
        samples: in it.
        digest: sum of `rows.sample_digest`, as a decimal number.
        size_bytes: of its files.
        reused: an earlier run had finished it.
    """

    number: int
    samples: int
    digest: str
    size_bytes: int
    reused: bool = False


def work_of(target: Place) -> WorkFolder:
    """The work folder of an output."""
    return work_beside(target, "convert", _is_ours)


@contextlib.contextmanager
def open_work(target: Place, plan: dict[str, Any]) -> Generator[WorkFolder]:
    """The locked work folder. It stays for the same command where a run is interrupted, not where it is refused.

    Raises:
        PrepareError: another run writes this output.
    """
    work = work_of(target)
    with work.held(PrepareError("another run is writing this output", path=target.path, hint="Wait for it")):
        data = _encode(plan)
        if _known(work, data) != data:
            work.clear(first=_PLAN)  # what a kill leaves then belongs to nothing
            work.put(_PLAN, data)
        try:
            yield work
        except PenstockError as error:
            if not isinstance(error, OSError) and error.code != "prepare":
                remove_work(target)
            raise
        except (OSError, KeyboardInterrupt):
            raise
        except BaseException:
            remove_work(target)
            raise


def group_at(work: WorkFolder, number: int) -> Place:
    """The dataset of a group."""
    return work.file(_name(number))


def save_done(work: WorkFolder, done: Done) -> None:
    """Note durably that a group is finished."""
    work.put(f"{_name(done.number)}.json", msgspec.json.encode(done))


def is_begun(work: WorkFolder) -> bool:
    """Whether a work folder holds its plan: without it nothing in it counts."""
    return work.file(_PLAN).exists()


def find_done(work: WorkFolder, number: int) -> Done | None:
    """A group that an earlier run finished."""
    return work.read(f"{_name(number)}.json", Done) if is_real_folder(group_at(work, number)) else None


def remove_work(target: Place) -> None:
    """The output is complete, or nothing is to be kept; what can't be removed is hidden and harms nobody."""
    work = work_of(target)
    with contextlib.suppress(OSError, PenstockError):
        if work.is_there():
            work.clear(first=_PLAN)
            work.drop()


def sweep_work(target: Place, plan: dict[str, Any]) -> None:
    """Remove what a run left that was killed when its output was complete: work of the same plan, or of none."""
    work = work_of(target)
    if not work.is_there():
        return
    with work.tried() as had:
        data = _encode(plan)
        if had and _known(work, data) in (b"", data):
            remove_work(target)


def _known(work: WorkFolder, data: bytes) -> bytes:
    """The plan that is there, as far as that tells whether it is `data`."""
    try:
        return work.store.get(work.file(_PLAN).path, 0, len(data) + 1)
    except (NotFound, IsADirectoryError):
        return b""


def _name(number: int) -> str:
    return f"g{number:07d}"


def _is_ours(name: str) -> bool:
    return name == _PLAN or _GROUP.match(name) is not None


def _encode(plan: dict[str, Any]) -> bytes:
    return msgspec.json.encode(plan, order="sorted")
