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
@click.option("-o", "--output", required=True, help="Where it goes: a file, or with a slash a folder of token files.")
@click.option(
    "--tokenizer",
    required=True,
    help="A tokenizer.json, a Hugging Face folder or a name in the Hub's local cache, a .model, or a .tiktoken file.",
)
@click.option("--chat", is_flag=True, help="Lines are conversations: messages, by the tokenizer's own chat template.")
@click.option(
    "--chat-eos",
    type=click.Choice(["auto", "always", "never"]),
    help="Append EOS to a conversation that doesn't end in it (auto, the default), always, or never (with --eos none).",
)
@click.option(
    "--chat-format",
    type=click.Choice(["auto", "messages", "sharegpt", "alpaca", "prompt-completion"]),
    help="Shape of the conversations; by default auto, the only one that a row can have.",
)
@click.option("--chat-date", metavar="YYYY-MM-DD", help="The day that a chat template may ask for.")
@click.option("--keep-control-tokens", is_flag=True, help="Messages may hold special tokens, which then are such.")
@click.option("--shuffle", type=int, metavar="SEED", help="Documents in the order of `penstock shuffle --seed SEED`.")
@click.option("--fim-rate", type=click.FloatRange(0, 1), help="Share of documents cut to fill in the middle.")
@click.option(
    "--fim-spm-rate", type=click.FloatRange(0, 1), help="Share of these with the suffix first, by default 0.5."
)
@click.option("--fim-seed", type=int, help="Which documents, and where; by default 0.")
@click.option(
    "--fim-tokens", nargs=3, metavar="PRE MID SUF", help="The tokens; by default known ones of the tokenizer."
)
@click.option("--to", help="Format of the output; by default that of its suffix, and pbin for a folder.")
@click.option(
    "--file-tokens",
    type=click.IntRange(min=1),
    help="Cut a folder's token files at the first border at or after each multiple of it, by default 4,000,000,000.",
)
@click.option(
    "--field",
    multiple=True,
    help="Key of the text, by default text; dots lead into objects. Given several times: joined in this order.",
)
@click.option("--join", metavar="TEXT", help=r"Text between several fields, by default \n\n; \n and \t are understood.")
@click.option("--jq", metavar="PROGRAM", help="A jq program instead, of which the first output counts.")
@click.option(
    "--input-format",
    type=click.Choice(["auto", "jsonl", "parquet", "text"]),
    default="auto",
    show_default=True,
    help="Format of the inputs; auto detects JSONL, Parquet and Arrow.",
)
@click.option(
    "--text-per",
    type=click.Choice(["file", "line"]),
    default="file",
    show_default=True,
    help="The unit of plain text that is a document.",
)
@click.option(
    "--eos", help="Token that ends each document, or none; by default the tokenizer's own, and none for flat-tokens."
)
@click.option(
    "--special-tokens",
    type=click.Choice(["default", "none"]),
    default="default",
    show_default=True,
    help="What the tokenizer's post-processor adds: as it says, or nothing.",
)
@click.option(
    "--pretokenizer",
    help="How a tiktoken file's text is split, where its name does not say: gpt2, cl100k, o200k or qwen2.",
)
@executor_options
@click.option(
    "--on-error",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="At a line without a document: stop, or leave it out and list it.",
)
@click.option(
    "--engine",
    type=click.Choice(["auto", "gigatoken", "tokenizers"]),
    default="auto",
    show_default=True,
    help="What encodes: gigatoken, or the tokenizer's own library; auto is gigatoken where that library confirms it.",
)
@click.option("--keep-map", is_flag=True, help="Write beside the output which line each document is: 8 bytes each.")
@keep_excluded_option
@excludes_option_of("--excludes", "the one input")
@click.option("--overwrite", is_flag=True, help="Replace the output.")
@dry_run_option
@restart_option
@sharing_options
@follow_links_option
@json_option
def command(
    inputs: tuple[str, ...], output: str, field: tuple[str, ...], join: str | None, as_json: bool, **options: Any
) -> None:
    """Tokenise JSONL, Parquet or plain text and pack it.

    An INPUT is a file, a folder or a glob, also .gz and .zst; - is standard input.

    With --chat the plane loss_mask beside the tokens tells what an assistant says.

    Killed anywhere and run again with the same options, it resumes and ends in the same bytes. Only --workers,
    --executor, --on-error and --json may differ then.

    Many machines share the work by --part, with OUT where all of them see it; --finish commits it.
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
        note(f"left out: {one.file} line {one.line}: {one.reason}")
    if report.num_dropped > _SHOWN:
        note(f"… and {report.num_dropped - _SHOWN:,} more; --json lists the first 100")


def _list_unmasked(report: PackReport) -> None:
    for one in report.unmasked:
        note(f"loss mask all 0: {one.file} line {one.line}: {one.reason}")
    if report.num_unmasked > len(report.unmasked):
        note(f"… and {report.num_unmasked - len(report.unmasked):,} more")


def _list_endless(report: PackReport) -> None:
    if report.num_endless:
        first = ", ".join(f"{one.file} line {one.line}" for one in report.endless)
        more = ", …" if report.num_endless > len(report.endless) else ""
        note(
            f"no trained token ends the last answer of {counted(report.num_endless, 'conversation')}, so a model "
            f"doesn't learn from them to stop: {first}{more}. Let the template mark its end token as generated, "
            "or see --chat-eos"
        )


def _list_null_fields(report: PackReport) -> None:
    if report.null_fields:
        names = ", ".join(report.null_fields[:_SHOWN]) + (", …" if len(report.null_fields) > _SHOWN else "")
        note(
            f"null fields of structs were dropped: {names}. A table gives every row the fields of all rows: "
            "if a null is meant, store the arguments and schemas as JSON text"
        )


def _warn_unknown(report: PackReport) -> None:
    """Say how much of the text the tokenizer doesn't know, if it is more than 1 %."""
    share = report.unknown_tokens / max(1, report.tokens or 0)
    if share > _UNKNOWN_SHARE:
        note(
            f"warning: the tokenizer doesn't know the text: {report.unknown_tokens:,} tokens ({share:.1%}) are unknown"
        )
    dropped = counted(report.dropped_characters, "character")
    share = report.dropped_characters / max(1, report.dropped_characters + (report.tokens or 0))
    if share > _UNKNOWN_SHARE:
        note(f"warning: the tokenizer has no token for {dropped}, which were dropped")


def _summary(report: PackReport, seconds: float) -> str:
    left_out = f", {counted(report.num_dropped, 'line')} left out" if report.num_dropped else ""
    left_out += f", {report.excluded:,} excluded left out" if report.excluded else ""
    tokens = "" if report.tokens is None else f"{counted(report.tokens, 'token')}, "
    documents = counted(report.documents, "document")
    if report.was_complete:
        size = human_bytes(report.manifest.size_bytes if report.manifest else 0)
        return f"{report.output}: complete already: {documents}, {tokens}{size}"
    size = "" if report.manifest is None else human_bytes(report.manifest.size_bytes)
    if report.missing:
        return missing_text(report.output, report.missing)
    reused = f", {report.reused_tasks} of {report.tasks} tasks were finished before" if report.reused_tasks else ""
    if report.part is not None:
        index, count = report.part
        size = f"part {index} of {count}"
    # What was read before has no rate now.
    rate = "" if report.reused_tasks else f", {human_bytes(report.input_bytes / seconds)}/s"
    return (
        f"{report.output}: {documents}, {tokens}{size}{left_out}\n"
        f"  {human_bytes(report.input_bytes)} in {seconds:.2f} s{rate}, by {report.engine}{reused}"
    )
