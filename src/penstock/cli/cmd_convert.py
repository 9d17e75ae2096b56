"""`penstock convert SRC DST`."""

from __future__ import annotations

from typing import Any

import click

from penstock._printable import shortened_part
from penstock.cli._dry import dry_run_option, foreseen, said
from penstock.cli._executors import executor_options
from penstock.cli._opening import eos_id_option, excludes_option_of, layout_option, planes_option
from penstock.cli._output import counted, emit, follow_links_option, human_bytes, json_option, note, progress
from penstock.cli._sharing import end_unfinished, keeping, missing_text, restart_option, sharing_options
from penstock.cli._whole import drop_planes_option, keep_excluded_option, prefix_keys_option

_WRITERS = ("split", "columns", "compression", "hashes", "size_limit", "token_bytes", "dtype", "vocab_size", "eos_id")
"""Options of writers that have a flag of their own."""

_NO_WRITERS = ("dry_run", "source", "target", "to", "format", "progress", "raw", "trust", "read")


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="SOURCE... TARGET")
@click.option("-o", "--output", metavar="TARGET", help="The target, in place of the last argument.")
@click.option("--to", metavar="FORMAT", show_default="from the target's suffix", help="Format of the target.")
@click.option("--format", "format_name", metavar="NAME", show_default="detected", help="Format of the source.")
@click.option(
    "--eos",
    type=(click.Choice(["add", "strip"]), click.IntRange(min=0)),
    metavar="add|strip ID",
    show_default="keep documents unchanged",
    help="Append this token ID to every document, or remove it.",
)
@eos_id_option
@click.option("--split", metavar="NAME", help="Split of the target to write, or of the source if the target has none.")
@click.option("--source-split", metavar="NAME", help="Split of the source to read.")
@click.option(
    "--separator",
    "source_separator",
    metavar="CHARACTER",
    show_default="a comma for .csv, a tab for .tsv",
    help="Cell separator of CSV and TSV files.",
)
@click.option(
    "--encoding", "source_encoding", metavar="NAME", show_default="utf-8", help="Encoding of CSV and TSV files."
)
@layout_option
@click.option("--tokens-column", metavar="NAME", help="Source column with lists of token IDs, one document per row.")
@click.option("--mask-column", metavar="NAME", help="Source column with the loss mask, or the labels, of these tokens.")
@click.option(
    "--tokens-dtype", metavar="DTYPE", help="Dtype of the token IDs if the column holds bytes, such as int64."
)
@click.option(
    "--one-document",
    is_flag=True,
    help="The source has no document borders: documents end at each --eos-id, or all tokens are one document.",
)
@click.option(
    "--documents",
    type=click.Choice(["rows", "eos"]),
    help="Documents of --tokens-column: one per row, or up to each EOS token, across rows.",
)
@click.option(
    "--columns",
    metavar="NAME=ENCODING,…",
    show_default="all",
    help="Columns of the target (for tars and directories: parts) with their encodings, or only names.",
)
@click.option(
    "--missing",
    type=click.Choice(["error", "skip", "null"]),
    default="error",
    show_default=True,
    help="Samples that lack a column: fail (error), skip and count them, or write null if the target supports it.",
)
@click.option("--compression", metavar="NAME", help="Shard compression: br, bz2, gz, snappy or zstd; level as zstd:3.")
@click.option("--hashes", metavar="NAME,…", help="Digests to store in the shard index, such as sha1.")
@click.option("--size-limit", metavar="SIZE", help="Maximum size of a shard, such as 64mb.")
@click.option(
    "--file-tokens",
    type=click.IntRange(min=1),
    help="Write a directory of token files with about this many tokens each: pbin, or the format of --to.",
)
@executor_options
@click.option("--group-rows", type=click.IntRange(min=1), show_default="about four shards", help="Samples per task.")
@click.option("--token-bytes", type=click.IntRange(1, 4), help="Width of the target's token IDs in bytes.")
@click.option("--dtype", metavar="DTYPE", help="Dtype of the target's token IDs, for megatron.")
@click.option("--vocab-size", type=click.IntRange(min=1), help="Fail on token IDs of this value or more.")
@click.option(
    "-O",
    "--option",
    "more",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any other option of the target's writer; repeatable.",
)
@excludes_option_of("--excludes", "the source")
@prefix_keys_option
@keep_excluded_option
@drop_planes_option
@planes_option
@click.option("--overwrite", is_flag=True, help="Replace an existing target.")
@dry_run_option
@restart_option
@sharing_options
@follow_links_option
@json_option
def command(
    paths: tuple[str, ...],
    output: str | None,
    to: str | None,
    format_name: str | None,
    more: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Convert a dataset to another format or layout, and verify the result by its digest.

    SOURCE can be any dataset, or CSV or TSV files with a header: a file, a directory or a pattern. In Parquet, Hugging
    Face and MDS datasets, a column named "tokens" or "input_ids" is read as documents. Re-run the same command to
    resume.

    To distribute a conversion, run it with --part on each machine, with TARGET on shared storage, then once with
    --finish. Formats of one stream, such as JSONL and CSV, can't be distributed. Tokens are written by one process
    unless --workers or --part is given.
    """
    import msgspec

    from penstock.convert import convert
    from penstock.store.patterns import pattern_of

    *sources, target = paths if output is None else (*paths, output)
    if not sources:
        raise click.UsageError("Missing argument 'TARGET': penstock convert SOURCE TARGET.")
    source = pattern_of(tuple(sources))
    with keeping(target), progress("convert", total=None, unit="samples") as advance:
        asked = _of_writer(options, _parsed(more))
        report = convert(source, target, to=to, format=format_name, progress=advance, **asked)
    for what in report.lost:
        note(f"{source}: {report.to} can't store its {what}")
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
            raise click.BadParameter(f"{name!r} is not an option of the target's writer.", param_hint="--option")
        if more[name] is None:
            raise click.BadParameter(f"{name!r} can't be null; leave it out.", param_hint="--option")
        if flags.get(name) is not None:
            raise click.BadParameter(f"{name!r} is given twice, here and with its own option.", param_hint="--option")
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
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE.", param_hint="--option")
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
        return f"{target}: already complete: {report.samples:,} samples, {human_bytes(report.size_bytes)}"
    if report.part is not None:
        index, count = report.part
        reused = (
            f", {report.reused_groups} of {report.groups} groups kept from an earlier run"
            if report.reused_groups
            else ""
        )
        return f"{target}: part {index} of {count}: {report.samples:,} samples in {report.copy_seconds:.2f} s{reused}"
    tokens = "" if report.tokens is None else f", {report.tokens:,} tokens of {report.token_bytes} bytes"
    lines = [
        f"{shortened_part(source)} → {target} ({report.to})",
        f"  {report.samples:,} samples{tokens}, {human_bytes(report.size_bytes)} in {report.copy_seconds:.2f} s",
    ]
    if report.excluded:
        lines.append(f"  {counted(report.excluded, 'excluded sample')} not copied")
    if report.skipped:
        lines.append(f"  {report.skipped:,} samples skipped, which lack a column")
    if report.field_map:
        fields = ", ".join(f"{name}: {parts}" for name, parts in report.field_map.items())
        lines.append(f"  field map: {fields}")
    if report.kept_bytes:
        lines.append(f"  {human_bytes(report.kept_bytes)} kept from an earlier run")
    if report.reused_groups:
        lines.append(f"  {report.reused_groups} of {report.groups} groups kept from an earlier run")
    if report.digest is not None:
        rule = "" if report.tokens is None else f" (EOS: {report.eos})"
        lines.append(f"  digest {report.digest}{rule}, verified in {report.verify_seconds:.2f} s")
    return "\n".join(lines)
