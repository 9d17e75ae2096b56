"""`penstock energon …`: the command lines of Energon, so that a script changes by one word."""

from __future__ import annotations

import copy
import importlib
import os
import sys
from typing import Any

import click

from penstock import __version__
from penstock._printable import printable, shortened_part
from penstock.cli._help import MODULES
from penstock.cli._options import (
    SAMPLES,
    common,
    common_options,
    copied,
    dataset_argument,
    refuse_given,
    takes,
    wants_json,
)
from penstock.cli._output import note, progress
from penstock.cli._pictures import pictures_option, plain_at, require_one, show_tables, warn_of, way_of
from penstock.cli._reports import emit
from penstock.compat import energon as compat
from penstock.view.draw.words import counted, human_bytes

_FIRST_BYTES = 128


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
    """Group that lists commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in INSTEAD:
            return _not_needed(cmd_name)
        if cmd_name not in COMMANDS or cmd_name in self.commands:
            return self.commands.get(cmd_name)
        module = importlib.import_module(f"penstock.cli.{MODULES[cmd_name]}")
        return _with_energon_options(getattr(module, cmd_name.replace("-", "_")), cmd_name)

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


def _with_energon_options(command: click.Command, name: str) -> click.Command:
    """Return a command of ours with the options and spellings that only Energon's command of this name has."""
    command = copied(command)
    for place, option in enumerate(command.params):
        if option.opts[0] in _SPELLINGS:
            option = command.params[place] = copy.copy(option)
            option.opts = _SPELLINGS[option.opts[0]]
    command.params += [one for one in common_options(hidden=True) if one.name == "json"]  # before the others in help
    command.params += [
        click.Option(list(names), expose_value=False, **_ONLY_ENERGON[names]) for names in _OPTIONS.get(name, ())
    ]
    return command


def _set_progress(_context: click.Context, _option: click.Parameter, shows: bool) -> None:
    if not shows:
        common()["progress"] = "none"


def _set_cache(_context: click.Context, _option: click.Parameter, folder: str | None) -> None:
    if folder is not None:
        os.environ["PENSTOCK_CACHE"] = folder


def _note_duplicates(_context: click.Context, _option: click.Parameter, given: bool) -> None:
    if given:
        note("--fix-duplicates: shards are never changed here; a repeated key is an error that names it")


_SPELLINGS = {
    "--ratio": ["--split-ratio"],
    "--overwrite": ["--overwrite", "--force-overwrite"],
    "--workers": ["--workers", "--num-workers"],
    **{
        f"--media-by-{way}": [f"--media-by-{way}", f"--media-metadata-by-{way}"]
        for way in ("extension", "glob", "header")
    },
}
"""Option → its spellings below `penstock energon`."""


_PROGRESS = ("--progress/--no-progress", "show_progress")


_CACHE = ("--tmp-path",)


_ONLY_ENERGON: dict[tuple[str, ...], dict[str, Any]] = {
    _PROGRESS: {"default": True, "callback": _set_progress, "help": "Show a progress bar on a terminal."},
    _CACHE: {"callback": _set_cache, "help": "Directory for temporary files of remote datasets."},
    ("--fix-duplicates",): {
        "is_flag": True,
        "callback": _note_duplicates,
        "help": "Accepted for Energon; has no effect, as shards are never changed.",
    },
    ("-w", "--allow-slow"): {"is_flag": True, "help": "Accepted for Energon; has no effect."},
}
"""Names of an option → the rest of it."""


_OPTIONS: dict[str, tuple[tuple[str, ...], ...]] = {
    "prepare": (("--fix-duplicates",), _PROGRESS, _CACHE),
    "prepare-media": (_PROGRESS, _CACHE),
    "mount": (("-w", "--allow-slow"),),
}
"""Command of Energon → its options that our command of the same name lacks."""


def _fields_of(source: Any, index: int) -> list[str]:
    """Describe a sample as Energon does, which scripts rely on: a line per field with its name, type and value."""
    from penstock.errors import PenstockError

    try:
        fields = dict(source[index]).items()
    except (PenstockError, OSError):  # the table below shows the error
        return []
    lines = (printable(f" - {name} ({type(value)}): {_in_words(value)}") for name, value in fields)
    return [f"Sample {index}", *lines, ""]


def _in_words(value: Any) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"bytes(length={len(value)}, value={bytes(value[:_FIRST_BYTES])!r})"
    return repr(value)


@click.group(cls=_Commands, invoke_without_command=True)
@click.version_option(
    compat.__version__, "-V", "--version", message=f"megatron-energon %(version)s\nby penstock {__version__}"
)
@click.pass_context
def energon(context: click.Context) -> None:
    """Run the commands of Energon: same options, same files, same exit statuses.

    Wrong usage never exits with 0.
    """
    context.obj = {"as_energon": True}
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@energon.command()
@click.argument("path")
@takes("split_config dataset_config follow_links")
def info(path: str, split_config: str | None, dataset_config: str, follow_links: bool) -> None:
    """Show samples, shards, splits and sample type of a dataset, a JSONL file or a directory of media."""
    from penstock.check.summary import summarise
    from penstock.formats import sniff
    from penstock.formats.samples.webdataset.source import raw_details
    from penstock.store.place import dataset_at

    place = dataset_at(path, follow_links=follow_links).bare()
    chosen = sniff(place.store, place.path)
    if chosen.name == "webdataset":
        found = raw_details(place.store, place.path, split_config=split_config, dataset_config=dataset_config)
    else:
        refuse_given(("split_config", "dataset_config"), "Only a prepared WebDataset has these files")
        options: dict[str, Any] = {"flavor": "energon"} if chosen.name == "jsonl" else {}
        options["follow_links"] = follow_links
        summary = summarise(path, format=chosen.name, **options)
        found = {"format": chosen.name, "samples": summary["samples"], "size_bytes": summary["size_bytes"]}
    emit({"path": path, **found}, lambda: _info_text(path, found))


def _info_text(path: str, found: dict[str, Any]) -> str:
    rows: list[tuple[str, str]] = []
    for name, value in found.items():
        if isinstance(value, dict):
            rows += [(f"  split {split}", text) for split, text in value.items()]
        elif name.endswith("_bytes"):
            rows.append((f"  {name.removesuffix('_bytes').replace('_', ' ')}", human_bytes(value)))
        else:
            rows.append((f"  {name.replace('_', ' ')}", f"{value:,}" if isinstance(value, int) else str(value)))
    width = max(len(label) for label, _ in rows)
    return "\n".join([path, *(f"{label.ljust(width)}  {value}" for label, value in rows)])


@energon.command()
@dataset_argument("path")
@click.option("--split-parts", metavar="NAME,…", show_default="all with samples", help="Only read these splits.")
@takes(
    "dataset_config split_config format layout eos_id trust",
    trust="Run code stored with the data, such as a sample_loader.py.",
)
@click.option("--parallel", type=int, help="Accepted for Energon; has no effect, as one process reads.")
@takes("follow_links")
def lint(path: str, split_parts: str | None, parallel: int | None, **options: Any) -> int:
    """Read and decode every sample, and report those that can't be read.

    Works on every kind of dataset: typed or crude samples in tars, JSONL, directories of media, shards. Audio and
    video are read, but not decoded. Exits with 1 if a sample can't be read.
    """
    from penstock.check.lint import lint
    from penstock.cli.check import describe_findings

    if parallel is not None and parallel > 1:
        note(f"--parallel {parallel}: one process reads")
    splits = None if split_parts is None else [name.strip() for name in split_parts.split(",") if name.strip()]
    with progress("lint", total=None, unit="samples") as advance:
        report = lint(
            path,
            splits=splits,
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

    emit(report, text, errors=errors)
    return 1 if errors else 0


@energon.command()
@dataset_argument("path")
@takes(
    "split",
    split={
        "names": ("--split", "--split-parts", "split"),
        "show_default": "train",
        "help": "Split to show; the first of several.",
    },
)
@click.option(
    "-n",
    "count",
    type=click.IntRange(min=1),
    show_default="1, or ask after each on a terminal",
    help="Number of samples to show.",
)
@takes(SAMPLES)
@pictures_option
@click.option("--dataset-config", metavar="NAME", help="Accepted for Energon; has no effect on stored parts.")
@takes(
    "format layout eos_id flavor excludes planes trust follow_links",
    trust="Decode pickled columns and run code stored with the data.",
)
def preview(
    path: str, split: str | None, count: int | None, start: int | None, index: int | None, key: str | None,
    tokenizer: str | None, show_all: bool, pictures: str | None, dataset_config: str | None, **options: Any,
) -> None:  # fmt: skip
    """Show samples as tables of their parts.

    Shows texts, sizes of images, and small pictures if the terminal supports them.
    """
    from penstock.look.head import decoder, first_of

    require_one()
    if dataset_config is not None:
        note(f"--dataset-config {dataset_config}: parts are shown as they are stored")
    if split is not None and "," in split:
        note(f"--split {split}: the first of them is shown")
    opened = _open(path, None if split is None else split.split(",")[0], tokenizer, options)
    first = first_of(opened.source, start, index, key)
    way = way_of(pictures)
    asks = count is None and sys.stdout.isatty() and sys.stdin.isatty() and not wants_json()
    indices = range(first, len(opened) if asks else min(len(opened), first + (count or 1)))
    if wants_json():
        decode, source = decoder(tokenizer), opened.source
        samples = [{"index": at} | plain_at(source, at, decode, show_all=show_all) for at in indices]
        emit({"path": path, "samples": samples}, "")
        return
    show_tables(opened, indices, way, show_all=show_all, above=lambda at: _fields_of(opened.source, at), asks=asks)


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


@energon.group(invoke_without_command=True)
@click.pass_context
def checkpoint(context: click.Context) -> None:
    """Convert states saved by penstock.compat.energon to another number of ranks."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@checkpoint.command()
@click.argument("input_files", nargs=-1, required=True)
@click.argument("output_path")
@click.option("--new-world-size", type=click.IntRange(1), help="Number of ranks of the resumed run.")
def redist(input_files: tuple[str, ...], output_path: str, new_world_size: int | None) -> None:
    """Merge the states of all ranks, and write one state to OUTPUT_PATH for each rank of the resumed run."""
    from penstock.compat.energon.states import redistribute
    from penstock.store.place import place_of

    if new_world_size is None:
        new_world_size = click.prompt("Please enter the new DP world size", type=click.IntRange(1), err=wants_json())
    names = redistribute([place_of(file) for file in input_files], place_of(output_path), new_world_size)
    text = f"Processing {len(input_files)} checkpoint files\nSaved {len(names)} rank checkpoint files to {output_path}"
    emit({"output": output_path, "files": names}, text)
