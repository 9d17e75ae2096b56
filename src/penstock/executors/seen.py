"""Check that workers on other hosts see the same paths: by one task per node before the work, or when a node joins.

For a file that is read, the size and the first bytes are compared; for a directory, those of one file. For outputs, a
hidden file with random content is created during the check and must be found. The next run removes one that a killed
process left.
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
    """Size and digest of the first 4 KiB of a file as seen by this process."""

    path: str
    size_bytes: int
    digest: str


@contextlib.contextmanager
def to_be_seen(reads: Sequence[Place], writes: Sequence[Place]) -> Generator[list[Seen]]:
    """Yield what every node must see; probe files are removed afterwards."""
    with contextlib.ExitStack() as stack:
        found = [_file_of(place.absolute) for place in _some(reads) if place.is_local]
        found += [stack.enter_context(_probe(place.absolute)) for place in writes if place.is_local]
        yield [_seen(path) for path in found if path is not None]


def looked_at(expected: Seen) -> str | None:
    """Return the difference of a file on this node, if any."""
    try:
        found = _seen(expected.path)
    except OSError as error:
        return f"it can't access {expected.path} ({error.strerror})"
    if found != expected:
        return f"it has a different {expected.path}: {found.size_bytes} bytes instead of {expected.size_bytes}"
    return None


def _some(places: Sequence[Place]) -> list[Place]:
    """Return the first, the last, and some places in between."""
    step = max(1, -(-len(places) // (_MOST_READS - 1)))
    return [*places[:-1:step], *places[-1:]]


def _file_of(path: str) -> str | None:
    """Return the file itself, or one in the directory, or None."""
    if os.path.isfile(path):
        return path
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files = (
            os.path.join(folder, name) for name in sorted(names) if not name.startswith(".")
        )  # hidden files come and go
        first = next(filter(os.path.isfile, files), None)
        if first is not None:
            return first
    return None


@contextlib.contextmanager
def _probe(path: str) -> Generator[str | None]:
    """Create a probe file in the existing part of a path's directory; None if that isn't possible."""
    folder = os.path.dirname(path)
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    probe = None
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, PenstockError):  # the work itself reports it better
            staged = LocalStore().stage(os.path.join(folder, _PROBE), overwrite=True)  # never renamed to this name
            stack.callback(staged.abort)
            staged.write(secrets.token_bytes(64))
            staged.sync()
            probe = staged.hidden_path
        yield probe


def _seen(path: str) -> Seen:
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
        return Seen(path, os.fstat(file.fileno()).st_size, hashlib.sha256(head).hexdigest())
