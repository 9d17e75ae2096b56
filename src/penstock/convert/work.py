"""The work folder of a conversion in groups: what an unfinished one has finished, and what it was asked to do.

`.<name>.convert` beside the output holds `plan.json`, a dataset for each group, and beside each finished one a file
with its counts and digest. A run that was asked for the same goes on; for another one everything is thrown away.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.errors import NotFound, PenstockError, PrepareError
from penstock.store._work import drop_work, empty_work, hold_work, is_real_folder, read_note
from penstock.store.local import LocalStore
from penstock.store.put import put
from penstock.store.resolve import absolute

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


def work_folder(target: str) -> str:
    """The work folder of an output."""
    folder, name = os.path.split(absolute(target))
    return os.path.join(folder, f".{os.fsdecode(os.fsencode(name)[:200])}.convert")


def group_path(folder: str, number: int) -> str:
    """The dataset of a group."""
    return os.path.join(folder, f"g{number:07d}")


@contextlib.contextmanager
def open_work(store: LocalStore, target: str, plan: dict[str, Any]) -> Generator[str]:
    """The locked work folder. It stays for the same command where a run is interrupted, not where it is refused.

    Raises:
        PrepareError: another run writes this output.
    """
    folder = work_folder(target)
    with hold_work(folder) as had:
        if not had:
            raise PrepareError("another run is writing this output", path=target, hint="Wait for it")
        path, data = os.path.join(folder, _PLAN), _encode(plan)
        if _known(store, path, data) != data:
            empty_work(store, folder, _is_ours, first=_PLAN)  # what a kill leaves then belongs to nothing
            put(store, path, data)
        try:
            yield folder
        except PenstockError as error:
            if not isinstance(error, OSError) and error.code != "prepare":
                remove_work(store, target)
            raise
        except (OSError, KeyboardInterrupt):
            raise
        except BaseException:
            remove_work(store, target)
            raise


def save_done(store: LocalStore, folder: str, done: Done) -> None:
    """Note durably that a group is finished."""
    put(store, f"{group_path(folder, done.number)}.json", msgspec.json.encode(done))


def is_begun(store: LocalStore, folder: str) -> bool:
    """Whether a work folder holds its plan: without it nothing in it counts."""
    return store.exists(os.path.join(folder, _PLAN))


def find_done(store: LocalStore, folder: str, number: int) -> Done | None:
    """A group that an earlier run finished."""
    path = group_path(folder, number)
    return read_note(store, f"{path}.json", Done) if is_real_folder(path) else None


def remove_work(store: LocalStore, target: str) -> None:
    """The output is complete, or nothing is to be kept; what can't be removed is hidden and harms nobody."""
    folder = work_folder(target)
    with contextlib.suppress(OSError, PenstockError):
        if is_real_folder(folder):
            empty_work(store, folder, _is_ours, first=_PLAN)
            drop_work(store, folder)


def sweep_work(store: LocalStore, target: str, plan: dict[str, Any]) -> None:
    """Remove what a run left that was killed when its output was complete: work of the same plan, or of none."""
    folder = work_folder(target)
    if not is_real_folder(folder):
        return
    with hold_work(folder) as had:
        data = _encode(plan)
        if had and _known(store, os.path.join(folder, _PLAN), data) in (b"", data):
            remove_work(store, target)


def _known(store: LocalStore, path: str, data: bytes) -> bytes:
    """The plan that is there, as far as that tells whether it is `data`."""
    try:
        return store.get(path, 0, len(data) + 1)
    except (NotFound, IsADirectoryError):
        return b""


def _is_ours(name: str) -> bool:
    return name == _PLAN or _GROUP.match(name) is not None


def _encode(plan: dict[str, Any]) -> bytes:
    return msgspec.json.encode(plan, order="sorted")
