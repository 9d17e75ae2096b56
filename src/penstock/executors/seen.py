"""Paths that workers on other hosts must see too: looked at by one task a node before the work, or when a node joins.

A file that is read has the same size and the same first bytes there; of a folder one file is looked at. Where
something will be written, a hidden file with random content lies for as long, and must be found; the next run there
removes one that a killed process left.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.store.local import LocalStore
from penstock.store.place import Place

_MOST_READS = 16
_HEAD_BYTES = 1 << 12
_PROBE = "penstock-seen"


@dataclass(frozen=True, slots=True)
class Seen:
    """A file as this process sees it: its size, and a digest of its first 4 KiB."""

    path: str
    size_bytes: int
    digest: str


@contextlib.contextmanager
def to_be_seen(reads: Sequence[Place], writes: Sequence[Place]) -> Generator[list[Seen]]:
    """Yields what every node must see for as long; what was put for that is removed afterwards."""
    with contextlib.ExitStack() as stack:
        found = [_file_of(place.absolute) for place in _some(reads) if place.is_local]
        found += [stack.enter_context(_probe(place.absolute)) for place in writes if place.is_local]
        yield [_seen(path) for path in found if path is not None]


def looked_at(expected: Seen) -> str | None:
    """What is wrong with a file where this runs; None where it is the same."""
    try:
        found = _seen(expected.path)
    except OSError as error:
        return f"it can't access {expected.path} ({error.strerror})"
    if found != expected:
        return f"it has a different {expected.path}: {found.size_bytes} bytes instead of {expected.size_bytes}"
    return None


def _some(places: Sequence[Place]) -> list[Place]:
    """The first, the last, and some between them."""
    step = max(1, -(-len(places) // (_MOST_READS - 1)))
    return [*places[:-1:step], *places[-1:]]


def _file_of(path: str) -> str | None:
    """The file itself, or one in the folder; None where there is none."""
    if os.path.isfile(path):
        return path
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files = (os.path.join(folder, name) for name in sorted(names) if not name.startswith("."))  # others come and go
        first = next(filter(os.path.isfile, files), None)
        if first is not None:
            return first
    return None


@contextlib.contextmanager
def _probe(path: str) -> Generator[str | None]:
    """A file in the folder that a path will lie in, as far as there is one; None where none can be put there."""
    folder = os.path.dirname(path)
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    probe = None
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, PenstockError):  # the work says it better
            staged = LocalStore().stage(os.path.join(folder, _PROBE), overwrite=True)  # which never gets this name
            stack.callback(staged.abort)
            staged.write(secrets.token_bytes(64))
            staged.sync()
            probe = staged.hidden_path
        yield probe


def _seen(path: str) -> Seen:
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
        return Seen(path, os.fstat(file.fileno()).st_size, hashlib.sha256(head).hexdigest())
