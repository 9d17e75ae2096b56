"""`penstock convert SRC DST`."""

from __future__ import annotations

from typing import Any

import click

from penstock._printable import shortened_part
from penstock.cli._dry import dry_run_option, foreseen, said
from penstock.cli._executors import executor_options
from penstock.cli._opening import dataset_argument, excludes_option_of, planes_option
from penstock.cli._output import emit, follow_links_option, human_bytes, json_option, note, progress
from penstock.cli._sharing import end_unfinished, keeping, missing_text, restart_option, sharing_options
from penstock.cli._whole import drop_planes_option, keep_excluded_option, prefix_keys_option

_WRITERS = ("split", "columns", "compression", "hashes", "size_limit", "token_bytes", "dtype", "vocab_size", "eos_id")
"""Options of writers that have a flag of their own."""

_NO_WRITERS = ("dry_run", "source", "target", "to", "format", "progress", "raw", "trust", "read")


@click.command()
@dataset_argument("source")
@click.argument("target")
@click.option("--to", help="Format of the target; found from its suffix where it is not given.")
@click.option("--format", "format_name", help="Format of the source, instead of finding it out.")
@click.option(
    "--eos",
    type=(click.Choice(["add", "strip"]), click.IntRange(min=0)),
    metavar="add|strip ID",
    help="Append this id to every document, or remove it; without it documents stay as they are.",
)
@click.option("--eos-id", type=int, help="Id that ends each document of the source, where its data do not say.")
@click.option("--split", help="Split of the target to write; of the source, where the target has none.")
@click.option("--source-split", help="Split of the source to read.")
@click.option(
    "--separator",
    "source_separator",
    metavar="CHARACTER",
    help="Separator of the cells of CSV and TSV files; by default , for .csv and a tab for .tsv.",
)
@click.option("--encoding", "source_encoding", help="Encoding of CSV and TSV files. [default: utf-8]")
@click.option("--layout", help="Layout of the source: a historical one, or the width of raw tokens, such as uint16.")
@click.option("--tokens-column", metavar="NAME", help="Column of the source with lists of ids, a document each.")
@click.option("--mask-column", metavar="NAME", help="Column with the loss mask, or the labels, of these ids.")
@click.option("--tokens-dtype", metavar="DTYPE", help="Dtype of the ids where that column holds bytes, such as int64.")
@click.option(
    "--one-document",
    is_flag=True,
    help="Rows or raw tokens tell no borders: documents end at each --eos-id, or all is one.",
)
@click.option(
    "--documents",
    type=click.Choice(["rows", "eos"]),
    help="Documents of --tokens-column: one per row, or up to each EOS id, across rows.",
)
@click.option(
    "--columns",
    metavar="NAME=ENCODING,…",
    help="Columns of the target with their encodings (tars and folders: their parts), or names alone; else all.",
)
@click.option(
    "--missing",
    type=click.Choice(["error", "skip", "null"]),
    default="error",
    show_default=True,
    help="What to do with samples that lack a column: fail, skip and count them, or write null if the target can.",
)
@click.option("--compression", help="Of shards: br, bz2, gz, snappy or zstd, with a level: zstd:3.")
@click.option("--hashes", metavar="NAME,…", help="Digests in the index of shards, such as sha1.")
@click.option("--size-limit", help="Size of a shard, such as 64mb.")
@click.option(
    "--file-tokens",
    type=click.IntRange(min=1),
    help="Make a folder of token files of this size: pbin, or as --to says.",
)
@executor_options
@click.option("--group-rows", type=click.IntRange(min=1), help="Samples that a process writes as a group.")
@click.option("--token-bytes", type=click.IntRange(1, 4), help="Width of the target's tokens.")
@click.option("--dtype", help="Dtype of the target's tokens, for megatron.")
@click.option("--vocab-size", type=click.IntRange(min=1), help="Refuse ids from here on.")
@click.option("-O", "--option", "more", multiple=True, metavar="NAME=VALUE", help="Any option of the target's writer.")
@excludes_option_of("--excludes", "the source")
@prefix_keys_option
@keep_excluded_option
@drop_planes_option
@planes_option
@click.option("--overwrite", is_flag=True, help="Replace the target.")
@dry_run_option
@restart_option
@sharing_options
@follow_links_option
@json_option
def command(
    source: str,
    target: str,
    to: str | None,
    format_name: str | None,
    more: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Convert a dataset to another format or layout, and verify the result by its digest.

    SOURCE may also be CSV or TSV files with a header: a file, a directory or a pattern. Of Parquet, Hugging Face and
    MDS the columns "tokens" and "input_ids" are documents without being named. Killed and run again with the same
    options, it resumes.

    Many machines share a conversion by --part, with TARGET where all of them see it; --finish commits it. Lines are one
    stream, and are not shared; tokens are written by this process alone, unless shared, or --workers says more.
    """
    import msgspec

    from penstock.convert import convert

    with keeping(target), progress("convert", total=None, unit="samples") as advance:
        asked = _of_writer(options, _parsed(more))
        report = convert(source, target, to=to, format=format_name, progress=advance, **asked)
    for what in report.lost:
        note(f"{source}: {report.to} has no place for its {what}")
    data = msgspec.to_builtins(report)
    if options["dry_run"]:
        found = foreseen((source,), (target,), replaces=options["overwrite"])
        emit(data | found, as_json=as_json, text=lambda: said(found, [_foreseen(target, report)]))
        return
    emit(data, as_json=as_json, text=lambda: _text(source, target, report))
    end_unfinished(report.missing)


def _columns(text: str) -> dict[str, str] | list[str]:
    """`a=str,b=ndarray:uint16:3,4` → name → encoding; names alone → a list."""
    import re

    pairs = [pair.strip() for pair in re.split(r",(?=\s*[^,=]+=)", text)] if "=" in text else text.split(",")
    if "=" not in text:
        return [name.strip() for name in pairs]
    return {name.strip(): encoding.strip() for name, _, encoding in (pair.partition("=") for pair in pairs)}


def _of_writer(flags: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Flags and `-O` as one: an option of the writer may be said by either, what is none by its flag alone."""
    for name in more:
        if name in _NO_WRITERS or (name in flags and name not in _WRITERS):
            raise click.BadParameter(f"{name!r} is no option of a writer", param_hint="--option")
        if more[name] is None:
            raise click.BadParameter(f"{name!r}: null says nothing; leave it out", param_hint="--option")
        if flags.get(name) is not None:
            raise click.BadParameter(f"{name!r} is said twice, here and by its own flag", param_hint="--option")
    asked = flags | more
    if isinstance(asked["columns"], str):
        asked["columns"] = _columns(asked["columns"])
    if isinstance(asked["hashes"], str):
        asked["hashes"] = [name.strip() for name in asked["hashes"].split(",")]
    return asked


def _parsed(more: tuple[str, ...]) -> dict[str, Any]:
    """`NAME=VALUE` pairs; a value that is JSON is taken as such, anything else as text."""
    import json

    found: dict[str, Any] = {}
    for pair in more:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--option")
        try:
            found[name.replace("-", "_")] = json.loads(value)
        except (ValueError, RecursionError):
            found[name.replace("-", "_")] = value
    return found


def _foreseen(target: str, report: Any) -> str:
    tokens = "" if report.tokens is None else f", {report.tokens:,} tokens"
    return f"{target} ({report.to}): {report.samples:,} samples{tokens}, about {human_bytes(report.size_bytes)}"


def _text(source: str, target: str, report: Any) -> str:
    if report.missing:
        return missing_text(target, report.missing)
    if report.was_complete:
        return f"{target}: complete already: {report.samples:,} samples, {human_bytes(report.size_bytes)}"
    if report.part is not None:
        index, count = report.part
        reused = (
            f", {report.reused_groups} of {report.groups} groups were written before" if report.reused_groups else ""
        )
        return f"{target}: part {index} of {count}: {report.samples:,} samples in {report.copy_seconds:.2f} s{reused}"
    tokens = "" if report.tokens is None else f", {report.tokens:,} tokens of {report.token_bytes} bytes"
    lines = [
        f"{shortened_part(source)} → {target} ({report.to})",
        f"  {report.samples:,} samples{tokens}, {human_bytes(report.size_bytes)} in {report.copy_seconds:.2f} s",
    ]
    if report.excluded:
        lines.append(f"  {report.excluded:,} excluded left out")
    if report.skipped:
        lines.append(f"  {report.skipped:,} samples that lack a column skipped")
    if report.field_map:
        fields = ", ".join(f"{name}: {parts}" for name, parts in report.field_map.items())
        lines.append(f"  field map that reads it: {fields}")
    if report.kept_bytes:
        lines.append(f"  {human_bytes(report.kept_bytes)} were written by an earlier run")
    if report.reused_groups:
        lines.append(f"  {report.reused_groups} of {report.groups} groups were written before")
    if report.digest is not None:
        rule = "" if report.tokens is None else f" (EOS: {report.eos})"
        lines.append(f"  digest {report.digest}{rule}, verified in {report.verify_seconds:.2f} s")
    return "\n".join(lines)
