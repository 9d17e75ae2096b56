"""`penstock energon …`: the command lines of Energon, so that a script changes by one word."""

from __future__ import annotations

import importlib

import click

from penstock import __version__
from penstock.compat import energon

COMMANDS: dict[str, str] = {
    "prepare": "Metadata for tar shards; the index of a JSONL file.",
    "prepare-media": "What the headers of media say, as an index.",
    "info": "Samples, shards and splits of a dataset.",
    "lint": "Read every sample; say where one can't be, and why.",
    "preview": "Show samples in the terminal.",
    "mount": "The parts of samples as files of a folder.",
    "checkpoint": "States of a run, for another number of ranks.",
}
INSTEAD: dict[str, str] = {
    "analyze-debug": "What a run has read is computed: `penstock explain RECIPE --step N`, and the loader's metrics().",
}
"""Commands of Energon's that are not needed → what there is instead."""


class _Commands(click.Group):
    """Lists commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in INSTEAD:
            return _not_needed(cmd_name)
        if cmd_name not in COMMANDS:
            return None
        verb = "dataset_info" if cmd_name == "info" else cmd_name.replace("-", "_")
        return importlib.import_module(f"penstock.cli.cmd_{verb}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _not_needed(name: str) -> click.Command:
    @click.command(name, context_settings={"ignore_unknown_options": True}, help=INSTEAD[name])
    @click.argument("arguments", nargs=-1)
    def refuse(arguments: tuple[str, ...]) -> None:
        del arguments
        raise click.ClickException(f"`energon {name}` is not needed here. {INSTEAD[name]}")

    return refuse


@click.group(cls=_Commands, invoke_without_command=True)
@click.version_option(
    energon.__version__, "-V", "--version", message=f"megatron-energon %(version)s\nby penstock {__version__}"
)
@click.pass_context
def command(context: click.Context) -> None:
    """The commands of Energon: same options, same files, same statuses. Wrong usage never ends with 0."""
    context.obj = {"as_energon": True}
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
