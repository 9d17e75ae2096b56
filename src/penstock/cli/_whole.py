"""Options, progress and output lines that the commands on whole datasets share."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli._dry import emit_written
from penstock.cli._opening import excludes_option_of, opening_options
from penstock.cli._output import counted, emit, follow_links_option, human_bytes, json_option
from penstock.cli._sharing import end_unfinished, keeping, missing_text, restart_option, sharing_options

if TYPE_CHECKING:
    from penstock.reshape.outputs import Written

Command = TypeVar("Command", bound=Callable[..., Any])


keep_excluded_option = click.option(
    "--keep-excluded", is_flag=True, help="Copy excluded samples too; they stay excluded in the output."
)
drop_planes_option = click.option(
    "--drop-planes", is_flag=True, default=None, help="Don't copy planes such as loss masks."
)
keep_map_option = click.option(
    "--keep-map",
    is_flag=True,
    help="Write a row map next to the output: the source and row of each sample, 8 bytes each.",
)
going_along = (keep_map_option, keep_excluded_option)


to_option = click.option(
    "--to",
    metavar="FORMAT",
    show_default="from the output's suffix, otherwise the source's format",
    help="Format of the output.",
)


def whole_options(command: Command) -> Command:
    """`--to --format --split --layout --excludes --keep-excluded --keep-map --eos-id --overwrite --follow-links …`."""
    for option in (
        json_option,
        follow_links_option,
        click.option("--overwrite", is_flag=True, help="Replace an existing output."),
        *going_along,
        drop_planes_option,
        excludes_option_of("--excludes", "the source"),
        opening_options("the source"),
        to_option,
    ):
        command = option(command)
    return command


prefix_keys_option = click.option(
    "--prefix-keys",
    is_flag=True,
    default=None,
    help="Prefix sample keys with the name of their shard, for tar shards that share keys.",
)


def tar_options(command: Command) -> Command:
    """`--maxcount --maxsize --pattern --prefix-keys`, for tars."""
    for option in (
        prefix_keys_option,
        click.option("--pattern", help="Names of new tars, such as shard_%06d.tar."),
        click.option("--maxsize", type=click.IntRange(min=1), help="Start a new tar at this size in bytes."),
        click.option("--maxcount", type=click.IntRange(min=1), help="Maximum number of samples per new tar."),
    ):
        command = option(command)
    return command


token_bytes_option = click.option(
    "--token-bytes",
    type=click.Choice(["1", "2", "4"]),
    help="Width of the output's token IDs in bytes; IDs are widened, never narrowed.",
)


def shares_options(command: Command) -> Command:
    """`--part --finish --no-work --restart`."""
    shared: Any = sharing_options(command)
    return restart_option(shared)


@contextlib.contextmanager
def kept(output: str, options: dict[str, Any]) -> Generator[None]:
    """Report at an interrupt how much work of a distributed job is kept."""
    is_shared = options["part"] is not None or options["finish"] or options.get("executor") is not None
    with keeping(output) if is_shared else contextlib.nullcontext():
        yield


def known(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given; `token_bytes` as a number, and `--planes none` as `drop_planes`."""
    given = {name: value for name, value in options.items() if value is not None}
    if given.pop("planes", "auto") == "none":
        given["drop_planes"] = True
    if "token_bytes" in given:
        given["token_bytes"] = int(given["token_bytes"])
    return given


def left_out(excluded: int) -> str:
    """Return `; 3 excluded samples not copied`, or nothing."""
    return f"; {counted(excluded, 'excluded sample')} not copied" if excluded else ""


def emit_shared(
    data: dict[str, Any], written: Sequence[Written], lines: list[str], reads: Sequence[str], options: dict[str, Any],
    *, as_json: bool, work: str | None = None,
) -> None:  # fmt: skip
    """Call `emit_written`, or report one part of a distributed job; exit with 14 if parts are missing.

    Args:
        work: path to pass to `penstock status`, if not the output.
    """
    first = written[0]
    if first.missing:
        emit(data, as_json=as_json, text=missing_text(work or first.path, first.missing))
    elif first.part is not None or first.was_complete:
        emit(data, as_json=as_json, text="\n".join(map(describe, written)))
    else:
        emit_written(data, lines, reads, [one.path for one in written], options, as_json=as_json)
    end_unfinished(first.missing)


def describe(written: Written) -> str:
    """Return `out.pbin: 69 documents, 7,123 tokens, 14.3 kB`, or `out.pbin: part 1 of 8: …` for a part."""
    if written.was_complete:
        return "already complete: " + describe(dataclasses.replace(written, was_complete=False, part=None))
    if written.part is not None:
        index, count = written.part
        whole = describe(dataclasses.replace(written, part=None))
        return whole.replace(": ", f": part {index} of {count}: ", 1)
    size = human_bytes(written.size_bytes) + left_out(written.excluded)
    if written.tokens is None:
        unit = "line" if written.format == "jsonl" else "sample"
        return f"{written.path}: {counted(written.samples, unit)}, {size}"
    return f"{written.path}: {counted(written.samples, 'document')}, {counted(written.tokens, 'token')}, {size}"
