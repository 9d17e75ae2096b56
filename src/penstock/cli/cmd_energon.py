"""`penstock energon …`: the command lines of Energon, so that a script changes by one word."""

from __future__ import annotations

import importlib
from typing import Any

import click

from penstock import __version__
from penstock._printable import shortened_part
from penstock.cli._energon import fields_of, with_energon_options
from penstock.cli._opening import (
    dataset_argument,
    eos_id_option,
    excludes_option,
    flavor_option,
    layout_option,
    planes_option,
)
from penstock.cli._output import counted, emit, follow_links_option, json_option, note, progress
from penstock.cli._pictures import pictures_option, show_tables, way_of
from penstock.cli._samples import plain_at, require_one, sample_options, warn_of
from penstock.compat import energon

COMMANDS: dict[str, str] = {
    "prepare": "Write metadata for tar shards, or the index of a JSONL file.",
    "prepare-media": "Index the metadata of media files.",
    "info": "Show samples, shards and splits of a dataset.",
    "lint": "Read every sample and report those that can't be read.",
    "preview": "Show samples in the terminal.",
    "mount": "Mount tar shards as a read-only file system.",
    "checkpoint": "Convert saved states to another number of ranks.",
}
INSTEAD: dict[str, str] = {
    "analyze-debug": "Use `penstock explain RECIPE --step N`, or the loader's metrics().",
}
"""Commands of Energon that Penstock lacks → what to use instead."""


class _Commands(click.Group):
    """Lists commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in INSTEAD:
            return _not_needed(cmd_name)
        if cmd_name not in COMMANDS or cmd_name in self.commands:
            return self.commands.get(cmd_name)
        verb = "dataset_info" if cmd_name == "info" else cmd_name.replace("-", "_")
        return with_energon_options(importlib.import_module(f"penstock.cli.cmd_{verb}").command, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _not_needed(name: str) -> click.Command:
    @click.command(name, context_settings={"ignore_unknown_options": True}, help=INSTEAD[name])
    @click.argument("arguments", nargs=-1)
    def refuse(arguments: tuple[str, ...]) -> None:
        del arguments
        raise click.ClickException(f"`energon {name}` isn't available. {INSTEAD[name]}")

    return refuse


@click.group(cls=_Commands, invoke_without_command=True)
@click.version_option(
    energon.__version__, "-V", "--version", message=f"megatron-energon %(version)s\nby penstock {__version__}"
)
@click.pass_context
def command(context: click.Context) -> None:
    """Run the commands of Energon: same options, same files, same exit statuses.

    Wrong usage never exits with 0.
    """
    context.obj = {"as_energon": True}
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@command.command()
@dataset_argument("path")
@click.option("--split-parts", metavar="NAME,…", show_default="all with samples", help="Only read these splits.")
@click.option(
    "--dataset-config",
    metavar="NAME",
    default="dataset.yaml",
    show_default=True,
    help="File that defines the sample type.",
)
@click.option("--split-config", metavar="NAME", show_default="split.yaml", help="File that assigns shards to splits.")
@click.option("--format", "format_name", metavar="NAME", show_default="detected", help="Format of the dataset.")
@layout_option
@eos_id_option
@click.option("--trust", is_flag=True, help="Run code stored with the data, such as a sample_loader.py.")
@click.option("--parallel", type=int, help="Accepted for Energon; has no effect, as one process reads.")
@follow_links_option
@json_option
def lint(
    path: str, split_parts: str | None, format_name: str | None, parallel: int | None, as_json: bool, **options: Any
) -> int:
    """Read and decode every sample, and report those that can't be read.

    Works on every kind of dataset: typed or crude samples in tars, JSONL, directories of media, shards. Audio and
    video are read, but not decoded. Exits with 1 if a sample can't be read.
    """
    import msgspec

    from penstock.check.lint import lint
    from penstock.cli.cmd_verify import describe_findings

    if parallel is not None and parallel > 1:
        note(f"--parallel {parallel}: one process reads")
    splits = None if split_parts is None else [name.strip() for name in split_parts.split(",") if name.strip()]
    with progress("lint", total=None, unit="samples") as advance:
        report = lint(
            path,
            splits=splits,
            format=format_name,
            progress=lambda done, total: advance(done, total=total),
            **options,
        )
    errors = sum(one.severity == "error" for one in report.findings)

    def text() -> str:
        read = ", ".join(
            f"{count:,} samples{' of ' + split if split else ''}" for split, count in report.samples.items()
        )
        found = f"{counted(errors, 'error')}, {counted(len(report.findings) - errors, 'warning')}"
        verdict = found if report.findings else "clean"
        last = f"{shortened_part(path)}: {verdict}; read {read or 'nothing'}"
        return "\n".join([*describe_findings(report.findings), last])

    emit(msgspec.to_builtins(report) | {"errors": errors}, as_json=as_json, text=text)
    return 1 if errors else 0


@command.command()
@dataset_argument("path")
@click.option(
    "--split",
    "--split-parts",
    "split",
    metavar="NAME",
    show_default="train",
    help="Split to show; the first of several.",
)
@click.option(
    "-n",
    "count",
    type=click.IntRange(min=1),
    show_default="1, or ask after each on a terminal",
    help="Number of samples to show.",
)
@sample_options
@pictures_option
@click.option("--dataset-config", metavar="NAME", help="Accepted for Energon; has no effect on stored parts.")
@click.option("--format", metavar="NAME", show_default="detected", help="Format of the dataset.")
@layout_option
@eos_id_option
@flavor_option
@excludes_option
@planes_option
@click.option("--trust", is_flag=True, help="Decode pickled columns and run code stored with the data.")
@follow_links_option
@json_option
def preview(
    path: str, split: str | None, count: int | None, start: int | None, index: int | None, key: str | None,
    tokenizer: str | None, show_all: bool, pictures: str | None, dataset_config: str | None, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Show samples as tables of their parts.

    Shows texts, sizes of images, and small pictures if the terminal supports them.
    """
    import sys

    from penstock.look.head import decoder, first_of

    require_one()
    if dataset_config is not None:
        note(f"--dataset-config {dataset_config}: parts are shown as they are stored")
    if split is not None and "," in split:
        note(f"--split {split}: the first of them is shown")
    opened = _open(path, None if split is None else split.split(",")[0], tokenizer, options)
    first = first_of(opened.source, start, index, key)
    way = way_of(pictures, as_json=as_json)
    asks = count is None and sys.stdout.isatty() and sys.stdin.isatty() and not as_json
    indices = range(first, len(opened) if asks else min(len(opened), first + (count or 1)))
    if as_json:
        decode, source = decoder(tokenizer), opened.source
        samples = [{"index": at} | plain_at(source, at, decode, show_all=show_all) for at in indices]
        emit({"path": path, "samples": samples}, as_json=True, text="")
        return
    show_tables(opened, indices, way, show_all=show_all, above=lambda at: fields_of(opened.source, at), asks=asks)


def _open(path: str, split: str | None, tokenizer: str | None, options: dict[str, Any]) -> Any:
    from penstock.formats import find_format, get_format
    from penstock.store.place import place_of
    from penstock.types import OpenOptions
    from penstock.view.facts.opening import open_target

    if split is not None:
        known = OpenOptions(layout=options["layout"], eos_id=options["eos_id"])
        name = find_format(place_of(path), options["format"], known).name
        if not get_format(name).traits.splits:
            raise click.UsageError(f"{path} has no splits: leave out --split.")
    opened = open_target(path, split=split, tokenizer=tokenizer, **options)
    _ = opened.vocabulary  # a missing one is an error before anything is read
    warn_of(opened.other_tokenizer)
    return opened
