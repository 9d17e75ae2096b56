"""Commands that write data: pack, index, convert; and status."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from penstock._printable import shortened_part
from penstock.cli._options import ALL_CORES, BY_SIZE, EXECUTOR, PART_HELP, takes, wants_json
from penstock.cli._output import note, progress
from penstock.cli._reports import array_expression, emit, emit_written, end_unfinished, keeping, missing_text
from penstock.view.draw.words import counted, human_bytes

if TYPE_CHECKING:
    from penstock.engine.status import WorkStatus
    from penstock.engine.work import Entry
    from penstock.prepare import PackReport
    from penstock.prepare.jsonl_index import IndexReport, IndexSummary
    from penstock.store.place import Place

_SHOWN = 10
_UNKNOWN_SHARE = 0.01
_WRITERS = ("split", "columns", "compression", "hashes", "size_limit", "token_bytes", "dtype", "vocab_size", "eos_id")
"""Options of writers that have a flag of their own."""
_NO_WRITERS = ("dry_run", "source", "target", "to", "format", "progress", "raw", "trust", "read")


# --- pack --------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@takes("output", output="Output file, or a directory of token files if it ends in /.")
@takes(
    "tokenizer",
    tokenizer={
        "required": True,
        "help": "A tokenizer.json, .model or .tiktoken file, a Hugging Face directory, or a name in the Hub's local "
        "cache.",
    },
)
@click.option("--chat", is_flag=True, help="Pack conversations with the tokenizer's chat template and a loss mask.")
@click.option(
    "--chat-eos",
    type=click.Choice(["auto", "always", "never"]),
    show_default="auto, or never with --eos none",
    help="When to append EOS to a conversation: if it doesn't end in EOS (auto), always, or never.",
)
@click.option(
    "--chat-format",
    type=click.Choice(["auto", "messages", "sharegpt", "alpaca", "prompt-completion"]),
    show_default="auto",
    help="Layout of a conversation; auto detects it from the fields of each row.",
)
@click.option("--chat-date", metavar="YYYY-MM-DD", help="Date for chat templates that use the current date.")
@click.option(
    "--keep-control-tokens",
    is_flag=True,
    help="Encode special tokens that messages contain, instead of treating the line as invalid.",
)
@click.option("--shuffle", type=int, metavar="SEED", help="Shuffle documents, as `penstock shuffle --seed SEED` does.")
@click.option(
    "--fim-rate",
    type=click.FloatRange(0, 1),
    show_default="0",
    help="Fraction of documents rearranged to fill in the middle.",
)
@click.option(
    "--fim-spm-rate",
    type=click.FloatRange(0, 1),
    show_default="0.5",
    help="Fraction of these that start with the suffix.",
)
@click.option("--fim-seed", type=int, show_default="0", help="Seed that selects the documents and the cuts.")
@click.option(
    "--fim-tokens",
    nargs=3,
    metavar="PRE MID SUF",
    show_default="those of a known tokenizer",
    help="Tokens that mark prefix, middle and suffix.",
)
@takes(
    "to file_tokens",
    to={"show_default": "from the suffix, or pbin for a directory"},
    file_tokens={
        "show_default": "4,000,000,000",
        "help": "Tokens per file of a directory; a file ends at the first document border at or after this size.",
    },
)
@click.option(
    "--field",
    metavar="NAME",
    multiple=True,
    show_default="text",
    help="Field with the text, such as text or meta.title. Given several times, fields are joined in this order.",
)
@click.option(
    "--join",
    metavar="TEXT",
    show_default=r"\n\n",
    help=r"Text between several fields; \n and \t mean newline and tab.",
)
@click.option("--jq", metavar="PROGRAM", help="Extract the text with a jq program instead; its first output is used.")
@click.option(
    "--input-format",
    type=click.Choice(["auto", "jsonl", "parquet", "text"]),
    default="auto",
    show_default=True,
    help="Format of the inputs. auto detects JSONL, Parquet and Arrow.",
)
@click.option(
    "--text-per",
    type=click.Choice(["file", "line"]),
    default="file",
    show_default=True,
    help="With --input-format text: whether a file or a line is a document.",
)
@click.option(
    "--eos",
    metavar="TOKEN",
    show_default="the tokenizer's EOS, or none for flat-tokens",
    help="Token to append to each document, or none.",
)
@click.option(
    "--special-tokens",
    type=click.Choice(["default", "none"]),
    default="default",
    show_default=True,
    help="Special tokens from the tokenizer's post-processor: add them (default), or none.",
)
@click.option(
    "--pretokenizer",
    metavar="NAME",
    help="Pre-tokenizer of a .tiktoken file with an unknown name: gpt2, cl100k, o200k or qwen2.",
)
@takes(EXECUTOR, **ALL_CORES)
@takes("on_error", on_error="What to do with invalid lines: fail (raise), or skip and list.")
@click.option(
    "--engine",
    type=click.Choice(["auto", "gigatoken", "tokenizers"]),
    default="auto",
    show_default=True,
    help="Encoder: gigatoken, or the tokenizer's own library (tokenizers). auto: gigatoken if both give equal results.",
)
@takes(
    "keep_map keep_excluded excludes overwrite dry_run restart part finish no_work follow_links",
    "the one input",
    keep_map="Write a row map next to the output: the file and line of each document, 8 bytes each.",
)
def pack(inputs: tuple[str, ...], output: str, field: tuple[str, ...], join: str | None, **options: Any) -> None:
    """Tokenize and pack JSONL, Parquet or plain text.

    An INPUT is a file, a directory or a glob, optionally compressed (.gz, .zst); - is standard input.

    If a run is killed, re-run the same command to resume; the output is identical. Only --workers, --executor,
    --on-error and --json may differ.

    To distribute the work, run it with --part on each machine, with OUTPUT on shared storage, then once with --finish.
    """
    from penstock.prepare import PackProgress, pack

    if field:
        options["field"] = field
    if join is not None:
        options["join"] = join.replace("\\n", "\n").replace("\\t", "\t")
    started = time.perf_counter()
    with keeping(output), progress("pack", total=None) as advance:

        def report_progress(now: PackProgress) -> None:
            advance(now.input_bytes, f"{now.documents:,} documents, {now.tokens:,} tokens", now.total_bytes)

        report = pack(inputs, output, progress=report_progress, **options)
    seconds = time.perf_counter() - started
    if not wants_json() and options["eos"] is None and report.eos is None:
        _note_no_eos(options["chat"])
    if options["dry_run"]:
        about = f"{counted(report.documents, 'document')}, {counted(report.tokens or 0, 'token')}"
        emit_written(report, [f"{output}: about {about}, by {report.engine}"], inputs, [output], options)
        return
    if not wants_json():
        _list_dropped_documents(report)
        _list_unmasked(report)
        _list_endless(report)
        _warn_unknown(report)
        _list_null_fields(report)
    emit(report, lambda: _packed_text(report, seconds))
    end_unfinished(report.missing)


def _note_no_eos(chat: bool) -> None:
    other = "--eos TOKEN or --chat-eos auto" if chat else "--eos TOKEN"
    note(f"no EOS token is appended to documents, as the format flat-tokens specifies; {other} appends it")


def _list_dropped_documents(report: PackReport) -> None:
    for one in report.dropped[:_SHOWN]:
        note(f"skipped: {one.file} line {one.line}: {one.reason}")
    if report.num_dropped > _SHOWN:
        note(f"… and {report.num_dropped - _SHOWN:,} more; --json lists the first 100")


def _list_unmasked(report: PackReport) -> None:
    for one in report.unmasked:
        note(f"loss mask is all 0: {one.file} line {one.line}: {one.reason}")
    if report.num_unmasked > len(report.unmasked):
        note(f"… and {report.num_unmasked - len(report.unmasked):,} more")


def _list_endless(report: PackReport) -> None:
    if report.num_endless:
        first = ", ".join(f"{one.file} line {one.line}" for one in report.endless)
        more = ", …" if report.num_endless > len(report.endless) else ""
        note(
            f"the last answer of {counted(report.num_endless, 'conversation')} has no end token in the loss mask, so "
            f"a model doesn't learn to stop there: {first}{more}. Mark the end token as generated in the chat "
            "template, or use --chat-eos"
        )


def _list_null_fields(report: PackReport) -> None:
    if report.null_fields:
        names = ", ".join(report.null_fields[:_SHOWN]) + (", …" if len(report.null_fields) > _SHOWN else "")
        note(
            f"null fields of structs were dropped: {names}. In a table, every row has the fields of all rows. "
            "To keep a null, store arguments and schemas as JSON text"
        )


def _warn_unknown(report: PackReport) -> None:
    """Warn if more than 1 % of the text is unknown to the tokenizer."""
    share = report.unknown_tokens / max(1, report.tokens or 0)
    if share > _UNKNOWN_SHARE:
        note(
            f"warning: {report.unknown_tokens:,} tokens ({share:.1%}) are unknown: the tokenizer doesn't cover the text"
        )
    dropped = counted(report.dropped_characters, "character")
    share = report.dropped_characters / max(1, report.dropped_characters + (report.tokens or 0))
    if share > _UNKNOWN_SHARE:
        note(f"warning: the tokenizer has no token for {dropped}, which were dropped")


def _packed_text(report: PackReport, seconds: float) -> str:
    skipped = f"; {counted(report.num_dropped, 'invalid line')} skipped" if report.num_dropped else ""
    skipped += f"; {counted(report.excluded, 'excluded sample')} not packed" if report.excluded else ""
    tokens = "" if report.tokens is None else f"{counted(report.tokens, 'token')}, "
    documents = counted(report.documents, "document")
    if report.was_complete:
        size = human_bytes(report.manifest.size_bytes if report.manifest else 0)
        return f"{report.output}: already complete: {documents}, {tokens}{size}"
    size = "" if report.manifest is None else human_bytes(report.manifest.size_bytes)
    if report.missing:
        return missing_text(report.output, report.missing)
    reused = f", {report.reused_tasks} of {report.tasks} tasks kept from an earlier run" if report.reused_tasks else ""
    if report.part is not None:
        index, count = report.part
        size = f"part {index} of {count}"
    # An earlier run read part of the input, so the rate is unknown.
    rate = "" if report.reused_tasks else f", {human_bytes(report.input_bytes / seconds)}/s"
    return (
        f"{report.output}: {documents}, {tokens}{size}{skipped}\n"
        f"  {human_bytes(report.input_bytes)} in {seconds:.2f} s{rate}, by {report.engine}{reused}"
    )


# --- index -------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="INPUT...")
@click.option("--flavor", default="modalities", show_default=True, help="Index format: modalities or energon.")
@click.option(
    "--index-path", metavar="FILE", show_default="next to the file", help="Path of the index, for a single input file."
)
@takes("on_error", on_error="What to do with invalid lines: fail (raise), or skip and count.")
@click.option("--no-validate", is_flag=True, help="Don't check that lines are valid JSON.")
@takes(f"overwrite {EXECUTOR}", overwrite="Replace an existing index.", **BY_SIZE)
@takes(
    "no_work finish part dry_run follow_links",
    no_work="With --finish: list files without an index and exit with 14.",
    finish="Check existing indexes and create missing ones.",
    part=PART_HELP.format("Index part I (from 0) of N of the files"),
)
def index(paths: tuple[str, ...], no_validate: bool, **options: Any) -> None:
    """Build the raw index of JSONL files: the offset and length of each line.

    An INPUT is a file, a glob, or a directory, which is searched for .jsonl and .ndjson files. With several files,
    valid existing indexes are kept, and an error in one file doesn't stop the others; the first error is reported at
    the end.
    """
    import msgspec

    from penstock.prepare.jsonl_index import IndexReport, index
    from penstock.store.place import place_of

    place = place_of(paths[0])
    total_bytes = place.store.size(place.path) if len(paths) == 1 and place.is_local and place.is_file() else None
    with progress("index", total=total_bytes) as advance:
        made = index(paths, validate=not no_validate, progress=lambda done: advance(done, ""), **options)
    reports = [made] if isinstance(made, IndexReport) else made.indexes
    if not wants_json():
        for report in reports:
            _list_dropped(report)
    totals = {"num_lines": made.num_lines, "num_dropped": made.num_dropped, "size_bytes": made.size_bytes}
    data, indexes = totals | msgspec.to_builtins(made), [one.index_path for one in reports]
    emit_written(data, _index_text(made).split("\n"), paths, indexes, options)
    end_unfinished([] if isinstance(made, IndexReport) else made.missing)


def _list_dropped(report: IndexReport) -> None:
    for one in report.dropped[:_SHOWN]:
        note(f"skipped: line {one.line} at byte {one.offset_bytes}: {one.reason}")
    if report.num_dropped > _SHOWN:
        note(f"… and {report.num_dropped - _SHOWN:,} more; --json lists the first 100")


def _index_text(made: IndexReport | IndexSummary) -> str:
    from penstock.prepare.jsonl_index import IndexReport

    lines = f"{counted(made.num_lines, 'line')}, {human_bytes(made.size_bytes)}"
    dropped = f"; {counted(made.num_dropped, 'invalid line')} skipped" if made.num_dropped else ""
    if isinstance(made, IndexReport):
        return f"{made.index_path}: {lines}{dropped}"
    reused = f"; {made.num_reused:,} existed already" if made.num_reused else ""
    if made.missing:
        names = [f"no index: {path}" for path in made.missing[:_SHOWN]]
        count = len(made.missing) + len(made.indexes)
        return "\n".join([*names, f"{len(made.missing):,} of {count:,} files have no index: run with --finish"])
    part = "" if made.part is None else f"part {made.part[0]} of {made.part[1]}: "
    indexes = f"{len(made.indexes):,} index{'' if len(made.indexes) == 1 else 'es'}"
    return f"{part}{indexes}: {lines}{dropped}{reused}"


# --- convert -----------------------------------------------------------------------------------------------------


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="SOURCE... TARGET")
@click.option("-o", "--output", metavar="TARGET", help="The target, in place of the last argument.")
@takes(
    "to format",
    "the source",
    to={"show_default": "from the target's suffix", "help": "Format of the target."},
)
@click.option(
    "--eos",
    type=(click.Choice(["add", "strip"]), click.IntRange(min=0)),
    metavar="add|strip ID",
    show_default="keep documents unchanged",
    help="Append this token ID to every document, or remove it.",
)
@takes("eos_id split", split="Split of the target to write, or of the source if the target has none.")
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
@takes("layout tokens_column mask_column tokens_dtype one_document documents")
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
@takes(
    f"file_tokens {EXECUTOR}",
    file_tokens="Write a directory of token files with about this many tokens each: pbin, or the format of --to.",
    **ALL_CORES,
)
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
@takes(
    "excludes prefix_keys keep_excluded drop_planes planes overwrite dry_run restart part finish no_work follow_links",
    "the source",
    overwrite="Replace an existing target.",
)
def convert(paths: tuple[str, ...], output: str | None, more: tuple[str, ...], **options: Any) -> None:
    """Convert a dataset to another format or layout, and verify the result by its digest.

    SOURCE can be any dataset, or CSV or TSV files with a header: a file, a directory or a pattern. In Parquet, Hugging
    Face and MDS datasets, a column named "tokens" or "input_ids" is read as documents. Re-run the same command to
    resume.

    To distribute a conversion, run it with --part on each machine, with TARGET on shared storage, then once with
    --finish. Conversions to JSONL can't be distributed. Tokens are written by one process unless --workers or --part is
    given.
    """
    from penstock.convert import convert
    from penstock.store.patterns import pattern_of

    *sources, target = paths if output is None else (*paths, output)
    if not sources:
        raise click.UsageError("Missing argument 'TARGET': penstock convert SOURCE TARGET.")
    source = pattern_of(tuple(sources))
    with keeping(target), progress("convert", total=None, unit="samples") as advance:
        report = convert(source, target, progress=advance, **_with_writer_options(options, _parsed(more)))
    for what in report.lost:
        note(f"{source}: {report.to} can't store its {what}")
    if options["dry_run"]:
        tokens = "" if report.tokens is None else f", {report.tokens:,} tokens"
        size = f"about {human_bytes(report.size_bytes)}"
        line = f"{target} ({report.to}): {counted(report.samples, 'sample')}{tokens}, {size}"
        emit_written(report, [line], (source,), (target,), options)
        return
    emit(report, lambda: _converted_text(source, target, report))
    end_unfinished(report.missing)


def _columns(text: str) -> dict[str, str] | list[str]:
    """`a=str,b=ndarray:uint16:3,4` → name → encoding; only names → a list."""
    pairs = [pair.strip() for pair in re.split(r",(?=\s*[^,=]+=)", text)] if "=" in text else text.split(",")
    if "=" not in text:
        return [name.strip() for name in pairs]
    return {name.strip(): encoding.strip() for name, _, encoding in (pair.partition("=") for pair in pairs)}


def _with_writer_options(flags: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Join flags and `-O`, which accepts only options of the writer."""
    for name in more:
        if name in _NO_WRITERS or (name in flags and name not in _WRITERS):
            raise click.BadParameter(f"{name!r} is not an option of the target's writer.", param_hint="--option")
        if more[name] is None:
            raise click.BadParameter(f"{name!r} can't be null; leave it out.", param_hint="--option")
        if flags.get(name) is not None:
            raise click.BadParameter(f"{name!r} is given twice, here and with its own option.", param_hint="--option")
    options = flags | more
    if isinstance(options["columns"], str):
        options["columns"] = _columns(options["columns"])
    if isinstance(options["hashes"], str):
        options["hashes"] = [name.strip() for name in options["hashes"].split(",")]
    return options


def _parsed(more: tuple[str, ...]) -> dict[str, Any]:
    """`NAME=VALUE` pairs; values are JSON if possible, otherwise text."""
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


def _converted_text(source: str, target: str, report: Any) -> str:
    if report.missing:
        return missing_text(target, report.missing)
    samples = counted(report.samples, "sample")
    if report.was_complete:
        return f"{target}: already complete: {samples}, {human_bytes(report.size_bytes)}"
    if report.part is not None:
        index, count = report.part
        reused = (
            f", {report.reused_groups} of {report.groups} groups kept from an earlier run"
            if report.reused_groups
            else ""
        )
        return f"{target}: part {index} of {count}: {samples} in {report.copy_seconds:.2f} s{reused}"
    tokens = "" if report.tokens is None else f", {report.tokens:,} tokens of {report.token_bytes} bytes"
    lines = [
        f"{shortened_part(source)} → {target} ({report.to})",
        f"  {samples}{tokens}, {human_bytes(report.size_bytes)} in {report.copy_seconds:.2f} s",
    ]
    if report.excluded:
        lines.append(f"  {counted(report.excluded, 'excluded sample')} not copied")
    if report.skipped:
        lines.append(f"  {counted(report.skipped, 'sample')} skipped, which lack a column")
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


# --- status ------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("output")
@click.option("--sweep", is_flag=True, help="Remove leftover files that are no longer needed.")
def status(output: str, sweep: bool) -> None:
    """Show progress of an interrupted or distributed job, from any host that can read OUTPUT.

    Exits with 0 if the output is complete, 14 if work is unfinished, and 9 if there is neither.
    """
    from penstock.engine import status
    from penstock.store.place import place_of

    place = place_of(output)
    if sweep:
        for path in status.sweep(place):
            note(f"removed: {path}")
    status.require_no_open_commit(place)
    found = status.status_of(place)
    emit(found, lambda: _status_text(found, place))
    end_unfinished([] if found.complete else [output])


def _status_text(found: WorkStatus, output: Place) -> str:
    left = "".join(f"\n  leftover: {path}" for path in found.left_over)
    if found.plan is None and found.tasks:
        files = f"{found.done:,} of {found.tasks:,} files have an index"
        finish = f"`penstock index {found.output} --finish`"
        return f"{found.output}: {files}\n  next: {finish}; --no-work lists files without an index"
    if found.plan is None:
        return f"{found.output}: {_unplanned(found, output)}{left}"
    rate = f", {found.rate:.2g} tasks per second" if found.rate else ""
    shares = ""
    if found.shares is not None:
        missing = array_expression(found.missing_shares) or "none"
        shares = f"\n  unfinished parts: {missing} (of 0 to {found.shares - 1})"
    files = f", {found.files:,} {'file' if found.files == 1 else 'files'} assembled" if found.files else ""
    done = f"{found.done:,} of {found.tasks:,} tasks done" if found.tasks else "no tasks, and not committed yet"
    runs = "".join(map(_run_text, found.failed)) + "".join(map(_run_text, found.running))
    return f"{found.output}: {done}{files}{rate}{shares}{runs}{left}\n  next: {_next(found)}"


def _unplanned(found: WorkStatus, output: Place) -> str:
    """Return the state of an output without a plan, and other unfinished outputs in it."""
    from penstock.engine.status import is_recorded, unfinished_in

    if not found.complete:
        return "unfinished, without a plan"
    if output.path.startswith(("http://", "https://")) or not output.is_folder():  # nothing is listed at web servers
        return "complete"
    others = "".join(f"\n  unfinished: {one.shown}" for one in unfinished_in(output))
    is_known = bool(found.left_over) or is_recorded(output)
    return ("complete" if is_known else "a dataset; no Penstock job is recorded here") + others


def _next(found: WorkStatus) -> str:
    """Return the next step. Files that a part didn't assemble aren't tasks; the finalize step lists them."""
    if found.shares is None:
        return "re-run the same command to resume"
    if found.missing_shares:
        parts, only = array_expression(found.missing_shares), len(found.missing_shares) == 1
        again = f"--part {parts}/{found.shares}" if only else f"--part I/{found.shares} for I in {parts}"
        unless = f"unless {'it is' if only else 'they are'} running"
        return f"re-run the same command with {again} {unless}, then with --finish, which also runs missing parts"
    return "re-run the same command with --finish; --no-work lists parts with unassembled files"


def _run_text(one: Entry) -> str:
    what = "finalize step" if one.share == "finish" else f"part {one.share}"
    at = datetime.fromtimestamp(one.ended_s or one.began_s, UTC).isoformat(" ", "seconds")
    if one.ended_s is None:
        return f"\n  {what} on {one.host}, process {one.process}: running since {at}, or killed"
    return f"\n  {what} on {one.host}: failed at {at}: {' '.join((one.error or '').split())}"
