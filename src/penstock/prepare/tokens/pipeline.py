"""From JSONL to packed tokens: understand, plan, work, commit.

The output's bytes follow from inputs, tokenizer and options alone: not from workers, hosts, the size of tasks, kills or
restarts. Work is a plan, parts that are facts of it, and a commit; who does it never changes a byte. Of one dataset
parts are appended in input order while later ones are encoded; of a folder, token files are assembled side by side when
all parts are there. Nothing is visible before the commit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

from penstock._kinds import JoinsRows
from penstock.abc import Executor
from penstock.engine.options import RunOptions
from penstock.engine.parts import PartName
from penstock.engine.plan import require_same
from penstock.engine.shared import SharedWork, is_complete, open_shared, peek, work_folder
from penstock.engine.sharing import plain_errors, wait_for_another
from penstock.engine.tokens.assemble import as_parts
from penstock.engine.tokens.files import held_folder
from penstock.engine.tokens.one import joined_file
from penstock.errors import ConfigError, PenstockError, PrepareError
from penstock.executors import AnyExecutor, make_executor
from penstock.formats import get_format
from penstock.formats._planed_writer import replacing_planes
from penstock.formats._planes import base_at, side_path_of
from penstock.formats.tokens.folder.index import INDEX_NAME
from penstock.formats.tokens.folder.side import NAME as FOLDER
from penstock.prepare.tokens.assemble import create_writer, writer_options
from penstock.prepare.tokens.chat.ends import ChatEos
from penstock.prepare.tokens.chat.rows import CHAT_FORMATS, ChatFormat
from penstock.prepare.tokens.complete import find_complete, made_by_another, require_unmade
from penstock.prepare.tokens.encode import Books, Encoding
from penstock.prepare.tokens.engines import encode_each
from penstock.prepare.tokens.files import held_output, token_files
from penstock.prepare.tokens.fill_in import asked_of
from penstock.prepare.tokens.inputs import STDIN, InputFormat, changed_since, spooled, with_digests
from penstock.prepare.tokens.one_file import append_shuffled, parts_in_order, take_parts
from penstock.prepare.tokens.oracle import EngineChoice
from penstock.prepare.tokens.output import DEFAULT_FILE_TOKENS, understand_output
from penstock.prepare.tokens.planes import kept_mask, require_place_of_mask
from penstock.prepare.tokens.planned import Planned, asked_for, choose, make_plan
from penstock.prepare.tokens.report import PackProgress, PackReport
from penstock.prepare.tokens.rows import kept_rows, settle_rows
from penstock.prepare.tokens.sample import estimate
from penstock.prepare.tokens.select import DEFAULT_JOIN, select
from penstock.prepare.tokens.tasks import cut_tasks, default_task_bytes, text_bytes
from penstock.prepare.tokens.tokenizer import NO_EOS
from penstock.prepare.tokens.understand import Found, Material, Request, find_inputs, recorded_of, understand
from penstock.prepare.tokens.unknown import count_in_parts
from penstock.store._keeping import keeping_nothing
from penstock.store.dry import dry_place
from penstock.store.local import LocalStore, output_exists
from penstock.store.object_folder import require_no_writer
from penstock.store.outputs import output_path
from penstock.store.place import Given, Place, place_of
from penstock.store.side_file import record_in_side_file
from penstock.types import Manifest

OnError = Literal["raise", "skip"]

_PRELOAD = ("penstock.prepare.tokens.tokenize", "gigatoken")


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
    _require("--special-tokens", special_tokens, ("default", "none"))
    _require("--on-error", on_error, ("raise", "skip"))
    _require("--engine", engine, ("auto", "gigatoken", "tokenizers"))
    _require("--input-format", input_format, ("auto", "jsonl", "text", "parquet"))
    _require("--chat-format", chat_format or "auto", CHAT_FORMATS)
    _require("--chat-eos", chat_eos or "auto", ("auto", "always", "never"))
    _require("--text-per", text_per, ("file", "line"))
    if text_per != "file" and input_format != "text":
        raise ConfigError(
            "only plain text can be split by line or file", hint="Add input_format='text' (--input-format text)"
        )
    selection = select(field, join, jq, text_per if input_format == "text" else "json", chat=chat)
    if task_bytes is not None and task_bytes < 1:
        raise ConfigError("task_bytes must be positive", found=f"task_bytes={task_bytes}", expected="1 or more")
    store = store or LocalStore()
    options = RunOptions(
        executor, workers, part, finish, no_work, restart, dry_run, overwrite, keep_map, keep_excluded, progress
    )
    place, to, is_folder = understand_output(output, to, file_tokens, store)
    eos, eos_rule = _resolve_eos(eos, chat_eos, packs_eos=get_format(to).traits.packs_eos)
    selection = dataclasses.replace(selection, chat_eos=eos_rule, chat_format=chat_format or "auto")
    request = Request(
        given=[os.fspath(one) for one in ([inputs] if isinstance(inputs, str | os.PathLike) else inputs)],
        output=place,
        to=to,
        file_tokens=(file_tokens or DEFAULT_FILE_TOKENS) if is_folder else None,
        options=options,
        selection=selection,
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
        fill_in=asked_of(fim_rate, fim_spm_rate, fim_seed, fim_tokens),
    )
    if shuffle is not None and (keep_map or keep_excluded):
        what, hint = (
            "shuffled documents can't have a row map",
            "Pack without shuffle= (--shuffle), then `penstock shuffle`",
        )
        raise ConfigError(what, found="keep_map" if keep_map else "keep_excluded", hint=hint)
    if chat and request.fill_in is not None:
        raise ConfigError("conversations can't be rearranged", found="fim_rate", hint="Omit chat= or fim_rate=")
    if chat:
        require_place_of_mask(request)
        output_store = replacing_planes(place.store)
        request = dataclasses.replace(request, output=dataclasses.replace(place, store=output_store))
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
        return _pack(dataclasses.replace(request, given=given, started=time.perf_counter()))


def _pack(request: Request) -> PackReport:
    if request.options.dry_run:
        with keeping_nothing():
            return _rehearsed(request)
    done = made_by_another(request) if request.options.overwrite else find_complete(request)
    while done is None:
        try:
            return _run(request)
        except (PenstockError, OSError) as error:
            # Another finisher of the same plan may have been first, and then there is nothing left to read or to write.
            done = made_by_another(request)
            if done is None and not (isinstance(error, PrepareError) and _waited(request)):
                raise
            done = done or made_by_another(request)
    return done


def _waited(request: Request) -> bool:
    """Whether another finisher of the same plan wrote the output meanwhile; token files are made side by side."""
    folder = work_folder(request.output, inside=request.is_folder)
    first = Place(request.output.store, request.outputs[0])
    return not request.is_folder and wait_for_another(first, folder, request.options)


def _run(request: Request) -> PackReport:
    found = find_inputs(request)
    folder = work_folder(request.output, inside=request.is_folder)
    options = request.options
    with plain_errors(request.output, folder), contextlib.ExitStack() as workers:
        executor = workers.enter_context(_workers_for(request, found))
        material = understand(request, found, None if options.restart else peek(folder))
        held = held_output(request)
        opened = open_shared(request.output, folder, restart=options.restart, shared=options.is_distributed)
        # Workers end before the work folder is left: nothing more comes into it then.
        with held, opened as work, workers.pop_all():
            engine = choose(request, material, work.plan, executor)
            inputs = with_digests(material.inputs, executor.map)  # workers are there: what they share is loaded
            material = dataclasses.replace(material, inputs=inputs)
            planned = make_plan(request, material, work, *engine)
            require_unmade(request, material, work)
            pass_ = _Pass(request, material, planned, work, executor)
            if request.is_folder:
                return _into_files(pass_)
            return _into_one(pass_)


def _rehearsed(request: Request) -> PackReport:
    """About what would be written; the output is opened in a store that writes nothing."""
    if not (request.options.overwrite or request.is_folder) and request.output.exists():
        raise output_exists(request.output.path)
    before = None if request.options.restart else peek(work_folder(request.output, inside=request.is_folder))
    material = understand(request, find_inputs(request), before)
    if before is not None:
        material = dataclasses.replace(material, inputs=with_digests(material.inputs))
        require_same(before, asked_for(request, material, before), request.output.path)
    dry, recorded = dry_place(request.output), recorded_of(request, material)
    if request.is_folder:
        with held_folder(dry, overwrite=request.options.overwrite, shared=False):
            pass
    else:
        writer = create_writer(request.to, dry, material.spec, recorded, overwrite=request.options.overwrite)
        as_parts(writer)
        writer.abort()
    with make_executor("inline", None) as executor:
        engine, note = choose(request, material, None, executor)
    documents, tokens = estimate(
        material.inputs,
        material.selection,
        lambda texts: encode_each(material.reference, texts)[0],
        with_eos=material.spec.eos is not None,
    )
    return PackReport(
        output=request.output.path, documents=documents, tokens=tokens, input_files=len(material.inputs),
        input_bytes=sum(one.size_bytes for one in material.inputs), num_dropped=0, dropped=(), engine=engine,
        engine_note=note, tasks=0, reused_tasks=0, seconds={"start": time.perf_counter() - request.started},
        eos=material.spec.eos,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Pass:
    """What a run works with, once all is understood and planned."""

    request: Request
    material: Material
    planned: Planned
    work: SharedWork
    executor: Executor

    def books(self) -> Books:
        """The account of it, where nothing is booked yet."""
        options, inputs = self.request.options, self.material.inputs
        sizes = (one.size_bytes for one in inputs)
        if options.part is not None:
            tasks = cut_tasks(inputs, self.planned.plan.task_bytes)
            sizes = (one.size_bytes for one in tasks if options.takes(one.number))
        return Books(self.request, self.material, self.work, sum(sizes))

    def encoding(self, *, only_share: bool = False) -> Encoding:
        """What is to be encoded: all, or a share."""
        planned, takes = self.planned, self.request.options.takes
        return Encoding(
            self.request,
            self.material,
            planned.plan,
            self.work,
            self.executor,
            planned.engine,
            takes if only_share else lambda task: True,
        )


# --- work ------------------------------------------------------------------------------------------------------------


def _workers_for(request: Request, found: Found) -> AbstractContextManager[Executor]:
    """Workers start first: their imports then take no time of their own."""
    files, sizes = found.files, [text_bytes(*one) for one in found.sizes()]
    task_bytes = request.task_bytes or default_task_bytes(sum(sizes))
    n_tasks = sum(-(-size_bytes // task_bytes) for size_bytes in sizes)
    options = request.options
    alone, executor = n_tasks <= 1 or options.no_work, options.executor or "processes"
    places = {"reads": files, "writes": [request.output]}
    return make_executor(executor, options.workers, _PRELOAD, alone=alone, most=n_tasks, **places)


def _into_one(run: _Pass) -> PackReport:
    """Encode what is missing, append every part in its turn, and make the dataset visible."""
    request, material, work = run.request, run.material, run.work
    books, times = run.books(), [time.perf_counter()]
    recorded, spec = recorded_of(request, material), material.spec
    about = (request.output, writer_options(request.to, spec, recorded), spec.token_bytes, work, run.executor)
    joined = joined_file(request.to, *about, request.options.takes, overwrite=request.options.overwrite)
    if request.options.part is not None:
        for _ in run.encoding(only_share=True).run(books):
            pass
        if joined is not None and request.shuffle is None and (all_parts := _all_parts(run)):
            joined.digest(all_parts)
        return _unfinished(run, books, [*times, time.perf_counter()], ())
    if request.options.no_work and (missing := work.shares_of(work.missing())):
        return _unfinished(run, books, times, missing)
    joined = joined if request.shuffle is None else None
    place = request.output if joined is None else joined.output
    with create_writer(request.to, place, spec, recorded, overwrite=request.options.overwrite) as writer:
        parts = take_parts(run.encoding(), books, writer, joined)
        _require_documents(run, books)
        if request.shuffle is not None:
            append_shuffled(run.encoding(), writer, parts)
        if joined is not None and isinstance(writer, JoinsRows):
            joined.write(writer, parts)
        times.append(time.perf_counter())
        books.unknown_tokens, books.dropped_characters = count_in_parts(spec, work.parts, parts)
        with kept_rows(request, material, work, parts), kept_mask(request, material, work, parts, books):
            manifest = writer.commit()
    return _finished(run, books, manifest, times)


def _into_files(run: _Pass) -> PackReport:
    """Encode what is missing, then assemble the token files that are, and make the folder visible."""
    request, work = run.request, run.work
    books, times = run.books(), [time.perf_counter()]
    about = (request, run.material, work, run.executor, run.planned.engine, books)
    files = token_files(*about)
    require_no_writer(request.output.store, request.output.child(INDEX_NAME).path)  # now our plan is there to be seen
    if request.options.no_work:
        missing = work.shares_of(work.missing())
        if not missing and request.shuffle is None:  # else who finishes makes all files
            missing = files.missing_shares(_all_parts(run))
        if missing:
            return _unfinished(run, books, times, missing)
    for _ in run.encoding(only_share=True).run(books):  # of what is there it tells what was left out
        pass
    times.append(time.perf_counter())
    parts, files = _all_parts(run), token_files(*about)  # whose parts are of others is known now
    if request.options.part is not None:
        if parts is not None and request.shuffle is None:
            files.make(parts, request.options.part)
        return _unfinished(run, books, [*times, time.perf_counter()], ())
    _require_documents(run, books, parts)
    in_order = parts_in_order(run.encoding(), parts or [])
    files.make(in_order)
    times.append(time.perf_counter())
    of_run = (request, run.material, work, parts or [])
    books.unknown_tokens, books.dropped_characters = count_in_parts(run.material.spec, work.parts, parts or [])
    with kept_rows(*of_run), kept_mask(*of_run, books):
        manifest = files.commit(in_order)
    return _finished(run, books, manifest, times)


def _all_parts(run: _Pass) -> list[PartName] | None:
    """All parts in order; None where some are missing."""
    listed, found = run.work.listed(), list[PartName]()
    for task in cut_tasks(run.material.inputs, run.planned.plan.task_bytes):
        parts = listed.get(task.number, [])
        if not is_complete(parts):
            return None
        found += parts
    return found


def _require_documents(run: _Pass, books: Books, parts: Sequence[PartName] | None = None) -> None:
    """That there is something to commit, and that its inputs are still what they were."""
    request = run.request
    documents = books.documents if parts is None else sum(part.documents for part in parts)
    if not documents:
        run.work.clear()  # whoever mends the inputs begins anew
        found = f"{books.num_dropped} lines skipped" if books.num_dropped else "no line"
        inputs = run.material.inputs
        path = inputs[0].path if len(inputs) == 1 else request.output.path
        raise PrepareError("the inputs contain no documents", path=path, found=found)
    changed = changed_since(run.material.inputs)
    if changed is not None:
        raise PrepareError(
            "the input changed while it was being read",
            path=changed.path,
            hint="Don't change inputs during a run. Discard the finished work: restart (--restart)",
        )


# --- commit ----------------------------------------------------------------------------------------------------------


def _finished(run: _Pass, books: Books, manifest: Manifest, times: Sequence[float]) -> PackReport:
    settle_rows(run.request, manifest)
    manifest = _record_unknown(run.request, books, manifest)
    with contextlib.suppress(OSError, PenstockError):
        run.work.clear()  # the output is complete: what can't be removed now is removed by the next run
    report = _unfinished(run, books, times, ())
    return dataclasses.replace(
        report, manifest=manifest, documents=manifest.num_samples, tokens=manifest.num_tokens or books.tokens
    )


def _record_unknown(request: Request, books: Books, manifest: Manifest) -> Manifest:
    """Record in the side file how much text the tokenizer doesn't know, if there is any."""
    if not books.unknown_tokens and not books.dropped_characters:
        return manifest
    counts = {"unknown_tokens": books.unknown_tokens, "dropped_characters": books.dropped_characters}
    output, name = request.output, FOLDER if request.is_folder else request.to
    base = base_at(name, output.store, output_path(output.store, output.path))
    side_path = output.child(".penstock").path if base is None else side_path_of(name, base)
    record_in_side_file(output.store, side_path, unknown_text=counts)
    return dataclasses.replace(manifest, unknown_text=counts)


def _unfinished(run: _Pass, books: Books, times: Sequence[float], missing: tuple[int, ...]) -> PackReport:
    """What there is to say; of a share, about that share."""
    request = run.request
    names = ("start", "encode", "assemble", "commit") if request.is_folder else ("start", "encode", "commit")
    stages = zip(names, [request.started, *times], [*times, time.perf_counter()], strict=False)
    return PackReport(
        output=request.output.path,
        documents=books.documents,
        tokens=books.tokens,
        input_files=len(run.material.inputs),
        input_bytes=books.total_bytes,
        excluded=sum(len(one.excluded) for one in run.material.inputs),
        num_dropped=books.num_dropped,
        dropped=tuple(books.dropped),
        num_unmasked=books.num_unmasked,
        unknown_tokens=books.unknown_tokens,
        dropped_characters=books.dropped_characters,
        unmasked=tuple(books.unmasked),
        num_endless=books.num_endless,
        endless=tuple(books.endless),
        null_fields=tuple(sorted(books.null_fields)),
        eos=run.material.spec.eos,
        engine=run.planned.engine,
        engine_note=run.planned.note,
        tasks=books.tasks,
        reused_tasks=books.reused_tasks,
        seconds={stage: after - before for stage, before, after in stages},
        part=request.options.part,
        missing=missing,
    )


# --- odds and ends -------------------------------------------------------------------------------------------------


def _require(option: str, found: str, allowed: Sequence[str]) -> None:
    if found not in allowed:
        raise ConfigError(f"invalid choice for {option}", found=found, expected=" | ".join(allowed))


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
