"""The state of input files when a job began: size, inode and time of change, or the version that a store reports.

Fingerprints of datasets are computed from samples of their bytes, so an edit in place may not show in them. The state
of every input file is therefore recorded with the plan and compared by each part, before it reads and after.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from penstock.errors import NotFound, Unsupported
from penstock.store.place import Place
from penstock.store.state import looking_up

_PATTERN = re.compile(r"[*?\[]")


class InputState(msgspec.Struct, frozen=True, array_like=True):
    """The state of one input file.

    Attributes:
        size_bytes: its size.
        inode: its number in its file system; 0 in an object store.
        mtime_ns: time of its last change; 0 in an object store.
        version: what the object store reports, such as an ETag; empty on this machine.
    """

    size_bytes: int
    inode: int
    mtime_ns: int
    version: str

    @property
    def shown(self) -> str:
        """As an error shows it."""
        more = self.version or f"inode {self.inode}, changed at {self.mtime_ns} ns"
        return f"{self.size_bytes} bytes, {more}"


def read_input_states(reads: Iterable[Place], outputs: Sequence[Place]) -> dict[str, InputState]:
    """Return the state of each file of the datasets `reads`, by path; hidden files and `outputs` are left out.

    A web server doesn't list the files of a directory: those have no recorded state.
    """
    files = {place.absolute: place for one in reads for place in _files_of(one) if not _is_below(place, outputs)}
    far = [place for place in files.values() if not place.is_local]
    look_up = looking_up(far)
    found: dict[str, InputState] = {}
    for path, place in files.items():
        try:
            if place.is_local:
                status = os.stat(path)
                found[path] = InputState(status.st_size, status.st_ino, status.st_mtime_ns, "")
            else:
                state = look_up(place)
                found[path] = InputState(state.size_bytes, 0, 0, state.version)
        except (NotFound, FileNotFoundError):
            continue  # whoever reads it reports that
    return found


def find_changed(before: Mapping[str, InputState], now: Mapping[str, InputState]) -> str | None:
    """Return the first path whose state differs; paths in only one of both are compared by plans."""
    return next((path for path in sorted(before.keys() & now.keys()) if before[path] != now[path]), None)


def encode_input_states(states: Mapping[str, InputState]) -> bytes:
    """Return the states as JSON."""
    return msgspec.json.encode({os.fsencode(path).hex(): state for path, state in states.items()})


def decode_input_states(data: bytes) -> dict[str, InputState] | None:
    """Return the states in a file; None if it is damaged."""
    try:
        found = msgspec.json.decode(data, type=dict[str, InputState])
        return {os.fsdecode(bytes.fromhex(path)): state for path, state in found.items()}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _files_of(dataset: Place) -> Iterator[Place]:
    """The files of a dataset: the path itself, a directory's files, or those that a prefix or pattern names."""
    store = dataset.store
    if dataset.is_file():
        yield dataset
    elif dataset.is_folder():
        start = len(dataset.path.rstrip("/")) + 1
        with contextlib.suppress(Unsupported):  # a web server
            for path in store.list(dataset.path):
                if not any(name.startswith(".") for name in path[start:].split("/")):
                    yield Place(store, path)
    else:
        pattern = dataset.path if _PATTERN.search(dataset.path) else f"{dataset.path}.*"
        above = Place(store, _PATTERN.split(pattern)[0]).folder()
        if above.is_folder():
            yield from (Place(store, path) for path in store.list(above.path) if fnmatch.fnmatchcase(path, pattern))


def _is_below(place: Place, outputs: Sequence[Place]) -> bool:
    path = place.absolute
    return any(path == one.absolute or path.startswith(f"{one.absolute.rstrip('/')}/") for one in outputs)
