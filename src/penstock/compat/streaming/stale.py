"""Shared memory that killed runs of the original left on this machine: `NNNNNN_name` in /dev/shm."""

from __future__ import annotations

import contextlib
import os
import re

_FOLDER = "/dev/shm"
_NAMES = "locals|barrier|next_epoch|cache_usage|shard_states|shard_access_times|resume|epoch_shape|epoch_data"
_OWN = re.compile(rf"\d{{6}}_(?:{_NAMES})")


def remove_stale() -> list[str]:
    """Remove segments that no other process has mapped; return their names, sorted."""
    try:
        found = {name for name in os.listdir(_FOLDER) if _OWN.fullmatch(name)}
    except OSError:
        return []
    removed: list[str] = []
    for name in sorted(found - _mapped_elsewhere() if found else found):
        with contextlib.suppress(OSError):
            os.unlink(f"{_FOLDER}/{name}")
            removed.append(name)
    return removed


def _mapped_elsewhere() -> set[str]:
    """Return the names that other processes have mapped, as far as they are visible."""
    names: set[str] = set()
    for process in os.listdir("/proc"):
        if process.isdigit() and int(process) != os.getpid():
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{process}/maps", encoding="utf-8", errors="replace") as file,
            ):
                names.update(line.rstrip().rpartition("/")[2] for line in file if _FOLDER in line)
    return names
