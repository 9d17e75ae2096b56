"""`--dry-run`: what a command would read, write and replace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import click

from penstock.cli._output import emit, human_bytes

Command = TypeVar("Command", bound=Callable[..., Any])


def dry_run_option(command: Command) -> Command:
    """`--dry-run`."""
    text = "Check everything and print the plan without writing."
    return click.option("--dry-run", is_flag=True, help=text)(command)


def emit_written(
    data: dict[str, Any], lines: list[str], reads: Sequence[str], writes: Sequence[str], options: dict[str, Any], *,
    as_json: bool,
) -> None:  # fmt: skip
    """Say what was written, or with `--dry-run` what would be.

    Args:
        data: the report, for `--json`.
        lines: the same for people, one an output.
        reads: the inputs; `writes`, the outputs.
        options: of the command.
        as_json: print `data`.
    """
    if not options["dry_run"]:
        emit(data, as_json=as_json, text="\n".join(lines))
        return
    found = foreseen(reads, writes, replaces=options["overwrite"])
    emit(data | found, as_json=as_json, text=lambda: said(found, lines))


def foreseen(reads: Sequence[str], writes: Sequence[str], *, replaces: bool) -> dict[str, Any]:
    """What `--json` says of a dry run beside the report.

    Args:
        reads: inputs, as they were named.
        writes: outputs.
        replaces: whether outputs that are there would be replaced.
    """
    return {
        "dry_run": True,
        "reads": [{"path": path, "size_bytes": size} for path in reads for size in sizes_of(path)],
        "replaces": [{"path": path, "size_bytes": size} for path in writes if replaces for size in sizes_of(path)],
    }


def said(found: dict[str, Any], writes: Sequence[str]) -> str:
    """The same for people.

    Args:
        found: what `foreseen` gave.
        writes: a line for each output, without `would write`.
    """
    lines = [f"would read {one['path']}: {_size(one)}" for one in found["reads"]]
    lines += [f"would write {one}" for one in writes]
    lines += [f"would replace {one['path']}: {_size(one)}" for one in found["replaces"]]
    return "\n".join([*lines, "nothing was written (--dry-run)"])


def sizes_of(path: str) -> Iterator[int | None]:
    """The bytes of what is at a path, in a folder of all its files; nothing where nothing is there."""
    from penstock.errors import PenstockError
    from penstock.store.patterns import is_pattern
    from penstock.store.place import place_of

    place = place_of(path).bare()
    with contextlib.suppress(PenstockError, OSError):
        if place.is_folder():
            yield sum(place.store.size(one) for one in place.store.list(place.path))
        elif place.exists():
            yield place.store.size(place.path)
        elif is_pattern(path):
            yield None


def _size(one: dict[str, Any]) -> str:
    return "a pattern" if one["size_bytes"] is None else human_bytes(one["size_bytes"])
