"""The plan of shared work: what it was asked to do, as far as its output depends on it, and a digest of that.

It is a run of JSON lines: the options first, then one input a line. Times of change are noted and not digested: they
tell whether an input has to be read again, never whether it is another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import xxhash

from penstock.errors import ConfigError

VERSION = 3
"""Of the cut into tasks and of the parts: work of another version is not gone on with. 1 is that of Penstock 0.1."""

RESTART = "Re-run the same command as before, or discard the finished work: restart (--restart)"
PIECE_BYTES = 1 << 22
CHECK = "verify"
"""Engine of the plan of a check. Its parts are records whose names hold the numbers of finished and of all tasks."""


@dataclass(frozen=True, slots=True)
class PlannedInput:
    """One input, as a plan knows it.

    Attributes:
        name: path below the folder that all inputs share.
        size_bytes: its size.
        digest: of its bytes, or of a sample of them, or the version that a store gives it.
        mtime_ns: time of its last change, where it is on this machine; not digested.
    """

    name: str
    size_bytes: int
    digest: str
    mtime_ns: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a piece of work was asked to do.

    Attributes:
        options: command-line name of an option → its value, plain JSON.
        inputs: the files.
        task_bytes: size of the pieces.
        engine: what encodes.
        version: see `VERSION`.
    """

    options: dict[str, Any]
    inputs: tuple[PlannedInput, ...]
    task_bytes: int
    engine: str
    version: int = VERSION

    def digest(self) -> str:
        """16 hex digits over all but times."""
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
    """The plan in pieces of whole lines, each of about `PIECE_BYTES` at most."""
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
    """The plan in these pieces; None where they hold none."""
    first, *inputs = b"".join(pieces).splitlines() or [b""]
    try:
        head = msgspec.json.decode(first, type=_Options)
        planned = tuple(msgspec.json.decode(line, type=PlannedInput) for line in inputs)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return Plan(head.options, planned, head.task_bytes, head.engine, head.version)


def require_same(before: Plan | None, plan: Plan, path: str) -> None:
    """Raise `ConfigError` that names the first thing in which a plan differs from that of unfinished work."""
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
