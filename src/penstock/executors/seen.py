"""Paths that workers on other hosts must see too: looked at by one task a node before the work begins.

A file that is read has the same size and the same first bytes there; of a folder one file is looked at. Where
something will be written, a file with random content is put for a moment, and must be found.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from penstock.store.place import Place

_MOST_READS = 16
_HEAD_BYTES = 1 << 12
_PROBE = ".penstock-seen-"


@dataclass(frozen=True, slots=True)
class Seen:
    """A file as this process sees it: its size, and a digest of its first 4 KiB."""

    path: str
    size_bytes: int
    digest: str


@contextlib.contextmanager
def to_be_seen(reads: Sequence[Place], writes: Sequence[Place]) -> Generator[list[Seen]]:
    """Yields what every node must see; what was put for that is removed afterwards."""
    with contextlib.ExitStack() as stack:
        found = [_file_of(place.absolute) for place in _some(reads) if place.is_local]
        found += [stack.enter_context(_probe(place.absolute)) for place in writes if place.is_local]
        yield [_seen(path) for path in found if path is not None]


def looked_at(expected: Seen) -> str | None:
    """What is wrong with a file where this runs; None where it is the same."""
    try:
        found = _seen(expected.path)
    except OSError as error:
        return f"it sees no {expected.path} ({error.strerror})"
    if found != expected:
        return f"it sees another {expected.path}: {found.size_bytes} bytes, and here are {expected.size_bytes}"
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
        folders.sort()
        files = (os.path.join(folder, name) for name in sorted(names))
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
    probe = os.path.join(folder, _PROBE + secrets.token_hex(8))
    try:
        with open(probe, "xb") as file:
            file.write(secrets.token_bytes(64))
    except OSError:  # the work says it better
        yield None
        return
    try:
        yield probe
    finally:
        with contextlib.suppress(OSError):
            os.remove(probe)


def _seen(path: str) -> Seen:
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
        return Seen(path, os.fstat(file.fileno()).st_size, hashlib.sha256(head).hexdigest())
