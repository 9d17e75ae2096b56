"""Options, progress and output lines that the commands on whole datasets share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli._dry import foreseen, said
from penstock.cli._opening import opening_options
from penstock.cli._output import emit, follow_links_option, human_bytes, json_option

if TYPE_CHECKING:
    from penstock.reshape.rewrite import Written

Command = TypeVar("Command", bound=Callable[..., Any])


def whole_options(command: Command) -> Command:
    """`--to --format --split --layout --eos-id --overwrite --follow-links --json`."""
    for option in (
        json_option,
        follow_links_option,
        click.option("--overwrite", is_flag=True, help="Replace the output."),
        opening_options("the source"),
        click.option("--to", help="Format of the output; by default as its suffix or the source has it."),
    ):
        command = option(command)
    return command


def tar_options(command: Command) -> Command:
    """`--maxcount --maxsize --pattern`, for tars."""
    for option in (
        click.option("--pattern", help="Names of new tars, such as shard_%06d.tar."),
        click.option(
            "--maxsize", type=click.IntRange(min=1), help="A new tar of this size in bytes gets no more samples."
        ),
        click.option("--maxcount", type=click.IntRange(min=1), help="Most samples of a new tar."),
    ):
        command = option(command)
    return command


token_bytes_option = click.option(
    "--token-bytes",
    type=click.Choice(["1", "2", "4"]),
    help="Widen the ids to this width; they are never made narrower.",
)


def known(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given; `token_bytes` as a number."""
    given = {name: value for name, value in options.items() if value is not None}
    if "token_bytes" in given:
        given["token_bytes"] = int(given["token_bytes"])
    return given


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


def describe(written: Written) -> str:
    """`out.pbin: 69 documents, 7,123 tokens, 14.3 kB`."""
    size = human_bytes(written.size_bytes)
    if written.tokens is None:
        unit = "lines" if written.format == "jsonl" else "samples"
        return f"{written.path}: {written.samples:,} {unit}, {size}"
    return f"{written.path}: {written.samples:,} documents, {written.tokens:,} tokens, {size}"
