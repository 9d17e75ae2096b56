"""`pack`: from JSONL, tables or plain text to packed tokens.

The bytes of the output depend only on inputs, tokenizer and options: not on workers, hosts, the size of tasks, kills or
restarts. Parts of one dataset are appended in input order while later ones are encoded. Token files of a folder are
assembled in parallel when all parts exist. Nothing is visible before the commit.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Literal

from penstock.engine.options import RunOptions
from penstock.engine.run import run
from penstock.errors import ConfigError
from penstock.executors import AnyExecutor
from penstock.formats import get_format
from penstock.formats._planed_writer import replacing_planes
from penstock.prepare.tokens.chat.mask import ChatEos
from penstock.prepare.tokens.chat.rows import CHAT_FORMATS, ChatFormat
from penstock.prepare.tokens.encode import PackProgress, PackReport
from penstock.prepare.tokens.engines import EngineChoice
from penstock.prepare.tokens.fill_in import make_options
from penstock.prepare.tokens.inputs import STDIN, InputFormat, spooled
from penstock.prepare.tokens.job import PackDatasetJob, PackFolderJob
from penstock.prepare.tokens.reading import DEFAULT_JOIN, select
from penstock.prepare.tokens.request import DEFAULT_FILE_TOKENS, Request, understand_output
from penstock.prepare.tokens.sidecars import require_place_of_mask
from penstock.prepare.tokens.tokenizer import NO_EOS
from penstock.store.local import LocalStore
from penstock.store.place import Given, place_of

OnError = Literal["raise", "skip"]


def pack(
    inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    output: Given,
    *,
    tokenizer: str | os.PathLike[str],
    to: str | None = None,
    file_tokens: int | None = None,
    field: str | Sequence[str] | None = None,
    join: str = DEFAULT_JOIN,
    jq: str | None = None,
    input_format: InputFormat = "auto",
    text_per: Literal["file", "line"] = "file",
    eos: str | None = None,
    special_tokens: Literal["default", "none"] = "default",
    pretokenizer: str | None = None,
    workers: int | None = None,
    executor: AnyExecutor = "processes",
    on_error: OnError = "raise",
    overwrite: bool = False,
    restart: bool = False,
    part: tuple[int, int] | None = None,
    finish: bool = False,
    no_work: bool = False,
    engine: EngineChoice = "auto",
    task_bytes: int | None = None,
    oracle_bytes: int = 1 << 18,
    follow_links: bool = False,
    keep_map: bool = False,
    keep_excluded: bool = False,
    excludes: Given | Literal[False] | None = None,
    dry_run: bool = False,
    chat: bool = False,
    chat_date: str | None = None,
    chat_eos: ChatEos | None = None,
    chat_format: ChatFormat | None = None,
    keep_control_tokens: bool = False,
    shuffle: int | None = None,
    fim_rate: float | None = None,
    fim_spm_rate: float | None = None,
    fim_seed: int | None = None,
    fim_tokens: Sequence[str] | None = None,
    store: LocalStore | None = None,
    progress: Callable[[PackProgress], None] | None = None,
) -> PackReport:
    """Tokenize JSONL, Parquet or plain text and pack it into one token dataset. Re-run to resume.

    An interrupted call resumes when it is repeated with the same arguments. Every document ends with the EOS token,
    unless `eos` is `"none"`, the default for flat-tokens.

    Memory: a few MiB; in each worker the tokenizer and a few times the longest line; three pieces of a compressed
    input; 8 bytes per document. Disk: twice the output's size until it is complete.

    Args:
        inputs: files, directories and patterns, also `.gz` and `.zst`; read in byte order of their relative paths.
            `"-"` is standard input, which is copied to a temporary file first.
        output: path of the dataset: a file; or, with `file_tokens`, a trailing slash or an existing directory, a
            directory of token files. A known suffix takes precedence over a slash.
        tokenizer: a `tokenizer.json`, a Hugging Face directory, a SentencePiece `.model`, or a `.tiktoken` file.
        to: output format. By default that of the output's suffix; pbin for a directory.
        file_tokens: split a directory's token files at the first document boundary at or after each multiple of this;
            4·10^9 by default.
        field: key of the text in each line, `"text"` by default. Dots separate nested keys. Several fields are joined.
        join: text between several fields.
        jq: a jq program that extracts the text instead; its first output is used. Plain paths such as `.a.b` don't need
            the jq package.
        input_format: `"jsonl"`, `"parquet"` (columns are fields), or `"text"`. `"auto"` distinguishes the first two.
        text_per: for plain text, what makes a document: each `"file"`, or each non-blank `"line"`.
        eos: token that ends each document, or `"none"`. By default the tokenizer's own; `"none"` for flat-tokens.
        special_tokens: `"none"` omits the tokens that the tokenizer's post-processor adds.
        pretokenizer: how a tiktoken file's text is split, if its name doesn't tell: `"gpt2"`, `"cl100k"`, `"o200k"` or
            `"qwen2"`.
        workers: number of processes; by default one per core.
        executor: `"processes"`, `"inline"` (this process), `"ray"`, another name, or an executor; see
            `penstock.executors`.
        on_error: for lines without a document: `"raise"`, or `"skip"` and list them.
        overwrite: replace an existing output.
        restart: discard the results of an interrupted run.
        part: `(i, n)`: do part i (from 0) of n parts of a distributed job, without committing.
        finish: finalize a distributed job: do the missing work and commit.
        no_work: with `finish`: commit only if nothing is missing, else report the missing parts.
        engine: `"auto"` uses gigatoken if it agrees with the tokenizer's own library; `"tokenizers"` uses that library.
        task_bytes: input size of one task. Doesn't affect the output.
        oracle_bytes: amount of text on which both engines are compared before the work begins.
        follow_links: allow links that lead out of a searched directory.
        keep_map: write a row map next to the output: the input line of each document, 8 bytes per document.
        keep_excluded: also pack excluded lines; their documents are excluded in the output.
        excludes: exclude list of the single input. By default the one next to each input on this machine. False packs
            all samples.
        dry_run: check everything and estimate the size of the output from a sample, without writing.
        chat: lines are conversations. Their `messages` are formatted with the tokenizer's chat template, and the plane
            `loss_mask` marks the tokens of the assistant.
        chat_format: shape of the conversations: `"messages"`, `"sharegpt"`, `"alpaca"` or `"prompt-completion"`.
            `"auto"` chooses the only one that matches a row.
        chat_eos: which conversations get an EOS token at their end: `"auto"`, those that don't end in it; `"always"`,
            those whose last token is another, even white space; `"never"`, the default if `eos` is `"none"`. It is
            trained on if the last answer has no end token of its own. With flat-tokens, `"auto"` and `"always"` append
            the tokenizer's own EOS token if `eos` is omitted.
        chat_date: `YYYY-MM-DD`, for a template that uses the current date.
        shuffle: a seed. Writes documents in the order of `penstock.shuffle` with this seed, once all are encoded.
            Memory: 24 bytes per document in each process. Disk: the output's size once more.
        keep_control_tokens: encode special tokens in messages as such. By default, a line whose messages contain one
            is invalid; see `on_error`.
        fim_rate: share of the documents, 0 to 1, that are split by character and rearranged for fill-in-the-middle
            before they are tokenized. The choice depends only on their text and `fim_seed`.
        fim_spm_rate: share of these that begin with the suffix; 0.5 by default.
        fim_seed: any integer; 0 by default.
        fim_tokens: tokens before prefix, middle and suffix. By default those of a known tokenizer.
        store: store of all files.
        progress: called after each task.

    Returns:
        A report with `documents`, `tokens`, `num_dropped` and more.

    Raises:
        NotFound: an input or the tokenizer doesn't exist.
        ConfigError: an option is invalid, the output exists, or unfinished work has other options.
        FormatError: an input or the tokenizer is damaged.
        PrepareError: a line has no document, a worker was killed, or the disk is full. Finished work is kept.

    Examples:
        >>> import penstock as ps
        >>> report = ps.pack(
        ...     "docs.jsonl", "docs.pbin", tokenizer="tokenizer.json", eos="<|endoftext|>", executor="inline"
        ... )
        >>> report.documents, report.eos
        (6, '<|endoftext|>')
        >>> len(ps.open("docs.pbin"))
        6
    """
    for option, value, allowed in (
        ("--special-tokens", special_tokens, ("default", "none")),
        ("--on-error", on_error, ("raise", "skip")),
        ("--engine", engine, ("auto", "gigatoken", "tokenizers")),
        ("--input-format", input_format, ("auto", "jsonl", "text", "parquet")),
        ("--chat-format", chat_format or "auto", CHAT_FORMATS),
        ("--chat-eos", chat_eos or "auto", ("auto", "always", "never")),
        ("--text-per", text_per, ("file", "line")),
    ):
        if value not in allowed:
            raise ConfigError(f"invalid choice for {option}", found=value, expected=" | ".join(allowed))
    if text_per != "file" and input_format != "text":
        what, hint = "only plain text can be split by line or file", "Add input_format='text' (--input-format text)"
        raise ConfigError(what, hint=hint)
    selection = select(field, join, jq, text_per if input_format == "text" else "json", chat=chat)
    if task_bytes is not None and task_bytes < 1:
        raise ConfigError("task_bytes must be positive", found=f"task_bytes={task_bytes}", expected="1 or more")
    options = RunOptions(
        executor, workers, part, finish, no_work, restart, dry_run, overwrite, keep_map, keep_excluded, progress
    )
    place, to, is_folder = understand_output(output, to, file_tokens, store or LocalStore())
    eos, eos_rule = _resolve_eos(eos, chat_eos, packs_eos=get_format(to).traits.packs_eos)
    request = Request(
        given=[os.fspath(one) for one in ([inputs] if isinstance(inputs, str | os.PathLike) else inputs)],
        output=place,
        to=to,
        file_tokens=(file_tokens or DEFAULT_FILE_TOKENS) if is_folder else None,
        options=options,
        selection=dataclasses.replace(selection, chat_eos=eos_rule, chat_format=chat_format or "auto"),
        input_format=input_format,
        tokenizer=os.fspath(tokenizer),
        eos=eos,
        special_tokens=special_tokens,
        pretokenizer=pretokenizer,
        engine=engine,
        skip=on_error == "skip",
        task_bytes=task_bytes,
        oracle_bytes=oracle_bytes,
        follow_links=follow_links,
        excludes=excludes if excludes is None or excludes is False else place_of(excludes),
        chat=chat,
        chat_date=chat_date,
        keep_control_tokens=keep_control_tokens,
        shuffle=shuffle,
        fill_in=make_options(fim_rate, fim_spm_rate, fim_seed, fim_tokens),
    )
    if shuffle is not None and (keep_map or keep_excluded):
        what, hint = "shuffled documents can't have a row map", "Pack without shuffle= (--shuffle), then"
        found = "keep_map" if keep_map else "keep_excluded"
        raise ConfigError(what, found=found, hint=f"{hint} `penstock shuffle`")
    if chat and request.fill_in is not None:
        raise ConfigError("conversations can't be rearranged", found="fim_rate", hint="Omit chat= or fim_rate=")
    if chat:
        require_place_of_mask(request)
        planed = dataclasses.replace(place, store=replacing_planes(place.store))
        request = dataclasses.replace(request, output=planed)
    elif chat_date is not None or keep_control_tokens or chat_eos is not None or chat_format is not None:
        found = "keep_control_tokens" if chat_date is None else f"chat_date={chat_date}"
        found = found if chat_eos is None else f"chat_eos={chat_eos}"
        found = found if chat_format is None else f"chat_format={chat_format}"
        raise ConfigError("this option only applies to conversations", found=found, hint="Add chat=True (--chat)")
    if STDIN in request.given and options.is_distributed:
        raise ConfigError("standard input can't be distributed", hint="Save it as a file")
    if dry_run and STDIN in request.given:
        what = "standard input must be copied into a file first"
        raise ConfigError(what, found="dry_run (--dry-run)", hint="Name files")
    with spooled(request.given) as given:
        request = dataclasses.replace(request, given=given)
        return run(PackFolderJob(request) if is_folder else PackDatasetJob(request))


def _resolve_eos(eos: str | None, chat_eos: ChatEos | None, *, packs_eos: bool) -> tuple[str | None, ChatEos]:
    """Return `eos` and `chat_eos` with their defaults for a format.

    Raises:
        ConfigError: no EOS token is to be appended, and `chat_eos` appends it.
    """
    appends = chat_eos in ("auto", "always")
    if eos == NO_EOS and appends:
        what, hint = "conversations can't get an EOS token with --eos none", "Omit one of the two options"
        raise ConfigError(what, found=f"--chat-eos {chat_eos}", expected="never", hint=hint)
    if not (eos or packs_eos or appends):
        eos = NO_EOS
    return eos, "never" if eos == NO_EOS else chat_eos or "auto"
