"""`penstock pack INPUT… -o OUT --tokenizer T`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli._dry import dry_run_option, foreseen, said
from penstock.cli._executors import executor_options
from penstock.cli._opening import excludes_option_of
from penstock.cli._output import counted, emit, follow_links_option, human_bytes, json_option, note, progress
from penstock.cli._sharing import end_unfinished, keeping, missing_text, restart_option, sharing_options
from penstock.cli._whole import keep_excluded_option

if TYPE_CHECKING:
    from penstock.prepare import PackReport

_SHOWN = 10
_UNKNOWN_SHARE = 0.01


@click.command()
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option(
    "-o", "--output", required=True, metavar="PATH", help="Output file, or a directory of token files if it ends in /."
)
@click.option(
    "--tokenizer",
    required=True,
    metavar="NAME",
    help="A tokenizer.json, .model or .tiktoken file, a Hugging Face directory, or a name in the Hub's local cache.",
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
@click.option(
    "--to", metavar="FORMAT", show_default="from the suffix, or pbin for a directory", help="Format of the output."
)
@click.option(
    "--file-tokens",
    type=click.IntRange(min=1),
    show_default="4,000,000,000",
    help="Tokens per file of a directory; a file ends at the first document border at or after this size.",
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
@executor_options
@click.option(
    "--on-error",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="What to do with invalid lines: fail (raise), or skip and list.",
)
@click.option(
    "--engine",
    type=click.Choice(["auto", "gigatoken", "tokenizers"]),
    default="auto",
    show_default=True,
    help="Encoder: gigatoken, or the tokenizer's own library (tokenizers). auto: gigatoken if both give equal results.",
)
@click.option(
    "--keep-map",
    is_flag=True,
    help="Write a row map next to the output: the file and line of each document, 8 bytes each.",
)
@keep_excluded_option
@excludes_option_of("--excludes", "the one input")
@click.option("--overwrite", is_flag=True, help="Replace an existing output.")
@dry_run_option
@restart_option
@sharing_options
@follow_links_option
@json_option
def command(
    inputs: tuple[str, ...], output: str, field: tuple[str, ...], join: str | None, as_json: bool, **options: Any
) -> None:
    """Tokenize and pack JSONL, Parquet or plain text.

    An INPUT is a file, a directory or a glob, optionally compressed (.gz, .zst); - is standard input.

    If a run is killed, re-run the same command to resume; the output is identical. Only --workers, --executor,
    --on-error and --json may differ.

    To distribute the work, run it with --part on each machine, with OUTPUT on shared storage, then once with --finish.
    """
    import time

    import msgspec

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
    if not as_json and options["eos"] is None and report.eos is None:
        _note_no_eos(options["chat"])
    if options["dry_run"]:
        found = foreseen(inputs, [output], replaces=options["overwrite"])
        about = f"{counted(report.documents, 'document')}, {counted(report.tokens or 0, 'token')}"
        line = f"{output}: about {about}, by {report.engine}"
        emit(msgspec.to_builtins(report) | found, as_json=as_json, text=lambda: said(found, [line]))
        return
    if not as_json:
        _list_dropped(report)
        _list_unmasked(report)
        _list_endless(report)
        _warn_unknown(report)
        _list_null_fields(report)
    emit(msgspec.to_builtins(report), as_json=as_json, text=lambda: _summary(report, seconds))
    end_unfinished(report.missing)


def _note_no_eos(chat: bool) -> None:
    other = "--eos TOKEN or --chat-eos auto" if chat else "--eos TOKEN"
    note(f"no EOS token is appended to documents, as the format flat-tokens specifies; {other} appends it")


def _list_dropped(report: PackReport) -> None:
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
    """Say how much of the text the tokenizer doesn't know, if it is more than 1 %."""
    share = report.unknown_tokens / max(1, report.tokens or 0)
    if share > _UNKNOWN_SHARE:
        note(
            f"warning: {report.unknown_tokens:,} tokens ({share:.1%}) are unknown: the tokenizer doesn't cover the text"
        )
    dropped = counted(report.dropped_characters, "character")
    share = report.dropped_characters / max(1, report.dropped_characters + (report.tokens or 0))
    if share > _UNKNOWN_SHARE:
        note(f"warning: the tokenizer has no token for {dropped}, which were dropped")


def _summary(report: PackReport, seconds: float) -> str:
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
    # An earlier run read part of the input, so there is no rate.
    rate = "" if report.reused_tasks else f", {human_bytes(report.input_bytes / seconds)}/s"
    return (
        f"{report.output}: {documents}, {tokens}{size}{skipped}\n"
        f"  {human_bytes(report.input_bytes)} in {seconds:.2f} s{rate}, by {report.engine}{reused}"
    )
