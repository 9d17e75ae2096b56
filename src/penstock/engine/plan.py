"""The plan of a job: the options and inputs that determine its output, and a digest of them.

It is stored as JSON lines: the options, then one line per input. Modification times are stored but not digested; they
only show whether an input must be read again.

Fingerprints of datasets sample their bytes, so an edit in place may not change them. The state of every input file
(size, inode and modification time, or the version in an object store) is therefore recorded with the plan. Each part
compares it before and after it reads.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import xxhash

from penstock.errors import ConfigError, NotFound, Unsupported
from penstock.store.fingerprint import looking_up
from penstock.store.place import Place

VERSION = 3
"""Version of the division into tasks and of the parts. Work of another version isn't resumed. Penstock 0.1 had 1."""

RESTART = "Re-run the same command as before, or discard the finished work: restart (--restart)"
PIECE_BYTES = 1 << 22
CHECK = "verify"
"""Engine in the plan of a check. Its parts are records whose names contain the numbers of finished and of all tasks."""


@dataclass(frozen=True, slots=True)
class PlannedInput:
    """One input of a plan.

    Attributes:
        name: path below the directory that all inputs share.
        size_bytes: its size.
        digest: digest of its bytes or of a sample of them, or its version in an object store.
        mtime_ns: time of its last change if it is local; not digested.
    """

    name: str
    size_bytes: int
    digest: str
    mtime_ns: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Request of a job: options by command-line name, as plain JSON, inputs, size of tasks, and engine."""

    options: dict[str, Any]
    inputs: tuple[PlannedInput, ...]
    task_bytes: int
    engine: str
    version: int = VERSION

    def digest(self) -> str:
        hasher = xxhash.xxh3_64(_encode_options(self))
        for one in self.inputs:
            hasher.update(msgspec.json.encode((one.name, one.size_bytes, one.digest)))
        return hasher.hexdigest()


class _Options(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    options: dict[str, Any]
    task_bytes: int
    engine: str


def encode_plan(plan: Plan) -> Iterator[bytes]:
    """Return the plan in pieces of whole lines, about `PIECE_BYTES` each."""
    held, held_bytes = [_encode_options(plan)], 0
    for one in plan.inputs:
        line = msgspec.json.encode(one)
        held.append(line)
        held_bytes += len(line)
        if held_bytes >= PIECE_BYTES:
            yield b"\n".join([*held, b""])
            held, held_bytes = [], 0
    if held:
        yield b"\n".join([*held, b""])


def decode_plan(pieces: Sequence[bytes]) -> Plan | None:
    """Return the plan; None if the pieces are damaged."""
    first, *inputs = b"".join(pieces).splitlines() or [b""]
    try:
        head = msgspec.json.decode(first, type=_Options)
        planned = tuple(msgspec.json.decode(line, type=PlannedInput) for line in inputs)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return Plan(head.options, planned, head.task_bytes, head.engine, head.version)


def require_same(before: Plan | None, plan: Plan, path: str) -> None:
    """Raise `ConfigError` with the first difference from the plan of unfinished work."""
    difference = None if before is None else _difference(before, plan)
    if difference is not None:
        what, was, now = difference
        raise ConfigError(
            f"unfinished work for this output differs: {what}", path=path, found=now, expected=was, hint=RESTART
        )


def _encode_options(plan: Plan) -> bytes:
    return msgspec.json.encode(_Options(plan.version, plan.options, plan.task_bytes, plan.engine), order="sorted")


def _difference(before: Plan, plan: Plan) -> tuple[str, Any, Any] | None:
    if before.version != plan.version:
        return "the version of Penstock that started it", before.version, plan.version
    for name in sorted(before.options.keys() | plan.options.keys()):
        was, now = before.options.get(name), plan.options.get(name)
        if was != now:
            return name, was, now
    was_named = {one.name: one for one in before.inputs}
    for one in plan.inputs:
        was_one = was_named.pop(one.name, None)
        if was_one is None:
            return f"the input {one.name} is new", _count(before.inputs), _count(plan.inputs)
        if (was_one.size_bytes, was_one.digest) != (one.size_bytes, one.digest):
            what = f"the input {one.name} has changed"
            return what, f"{was_one.size_bytes} bytes, {was_one.digest}", f"{one.size_bytes} bytes, {one.digest}"
    for name in was_named:
        return f"the input {name} is missing", _count(before.inputs), _count(plan.inputs)
    if before.task_bytes != plan.task_bytes:
        return "task_bytes", before.task_bytes, plan.task_bytes
    return None


def _count(inputs: Sequence[PlannedInput]) -> str:
    return f"{len(inputs)} input file{'s' * (len(inputs) != 1)}"


_PATTERN = re.compile(r"[*?\[]")


class InputState(msgspec.Struct, frozen=True, array_like=True):
    """State of one input file. Local files have an inode and a modification time, objects a version such as an ETag."""

    size_bytes: int
    inode: int
    mtime_ns: int
    version: str

    @property
    def shown(self) -> str:
        more = self.version or f"inode {self.inode}, changed at {self.mtime_ns} ns"
        return f"{self.size_bytes} bytes, {more}"


def read_input_states(reads: Iterable[Place], outputs: Sequence[Place]) -> dict[str, InputState]:
    """Return the state of each file of the datasets `reads`, by path, without hidden files and `outputs`.

    Files of a directory on a web server can't be listed, and have no state.
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
            continue  # the reader reports the error
    return found


def inputs_digest(reads: Iterable[Place]) -> str:
    """Return a digest of the states of local inputs, for marks of unfinished work: fingerprints only sample bytes."""
    states = read_input_states([one for one in reads if one.is_local], ())
    return xxhash.xxh3_128_hexdigest(encode_input_states(dict(sorted(states.items()))))


def find_changed(before: Mapping[str, InputState], now: Mapping[str, InputState]) -> str | None:
    """Return the first path whose state differs; plans compare paths that are only in one of both."""
    return next((path for path in sorted(before.keys() & now.keys()) if before[path] != now[path]), None)


def encode_input_states(states: Mapping[str, InputState]) -> bytes:
    return msgspec.json.encode({os.fsencode(path).hex(): state for path, state in states.items()})


def decode_input_states(data: bytes) -> dict[str, InputState] | None:
    """Return the recorded states; None if they are damaged."""
    try:
        found = msgspec.json.decode(data, type=dict[str, InputState])
        return {os.fsdecode(bytes.fromhex(path)): state for path, state in found.items()}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _files_of(dataset: Place) -> Iterator[Place]:
    """Return the files of a dataset: a file, a directory's files, or those that a prefix or pattern names."""
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
