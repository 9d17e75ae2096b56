"""From JSONL to packed tokens: plan, encode in parts, assemble in order.

The output's bytes follow from inputs, tokenizer and options alone: not from workers, the size of tasks, kills or
restarts. Parts are appended in input order while later ones are encoded, and nothing is visible before the commit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from penstock._kinds import TokenParts
from penstock.abc import Format, Writer
from penstock.errors import ConfigError, PenstockError, PrepareError, Unsupported
from penstock.executors import InlineExecutor, ProcessExecutor, make_executor
from penstock.formats import BUILT_IN, files_at, format_names, get_format
from penstock.prepare.tokens.assemble import Assembly
from penstock.prepare.tokens.columns import COLUMN, ColumnParts
from penstock.prepare.tokens.engines import EngineName, Reference
from penstock.prepare.tokens.inputs import InputFile, InputFormat, changed_since, describe_inputs, find_paths, spooled
from penstock.prepare.tokens.journal import Journal, Plan, PlannedInput, open_journal, require_same, work_folder
from penstock.prepare.tokens.load_tokenizer import load_tokenizer
from penstock.prepare.tokens.oracle import EngineChoice, choose_engine
from penstock.prepare.tokens.parquet import require_columns
from penstock.prepare.tokens.report import PackProgress, PackReport
from penstock.prepare.tokens.sample import sample_texts
from penstock.prepare.tokens.select import DEFAULT_JOIN, Selection, select
from penstock.prepare.tokens.tasks import cut_tasks, default_task_bytes, text_bytes
from penstock.prepare.tokens.tokenize import Job, encode_task
from penstock.prepare.tokens.tokenizer import TokenizerSpec
from penstock.store._named import named
from penstock.store.local import LocalStore, output_exists
from penstock.store.outputs import output_path, require_other, require_outside, sweep_killed
from penstock.store.resolve import absolute, local_path
from penstock.types import Manifest, OpenOptions

OnError = Literal["raise", "skip"]

_PRELOAD = ("penstock.prepare.tokens.tokenize", "gigatoken")
_FOLDERS = ("flat-tokens", "mds")
"""Formats whose datasets are folders, so that one may stand where another comes."""


def pack(
    inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str],
    to: str | None = None,
    field: str | Sequence[str] | None = None,
    join: str = DEFAULT_JOIN,
    jq: str | None = None,
    input_format: InputFormat = "auto",
    text_per: Literal["file", "line"] = "file",
    eos: str | None = None,
    special_tokens: Literal["default", "none"] = "default",
    pretokenizer: str | None = None,
    workers: int | None = None,
    executor: Literal["processes", "inline"] = "processes",
    on_error: OnError = "raise",
    overwrite: bool = False,
    restart: bool = False,
    engine: EngineChoice = "auto",
    task_bytes: int | None = None,
    oracle_bytes: int = 1 << 18,
    follow_links: bool = False,
    store: LocalStore | None = None,
    progress: Callable[[PackProgress], None] | None = None,
) -> PackReport:
    """Tokenise JSONL, Parquet or plain text and pack it. Killed and called again with the same arguments, it goes on.

    Every document ends in the EOS token. Memory: a few MiB, the engine and a few times the longest line in each
    worker; three pieces of a compressed input; 8 bytes a document. Disk: the output's size twice until it is complete.

    Args:
        inputs: files, folders and globs, also `.gz` and `.zst`; taken in byte order of their relative paths. `"-"` is
            standard input, which is copied into a temporary file first.
        output: where the dataset goes.
        tokenizer: a `tokenizer.json`, a Hugging Face folder, a SentencePiece `.model`, or a `.tiktoken` file.
        to: format; by default that of the output's suffix.
        field: key of the text in each line, `"text"` by default; dots lead into objects. Several are joined.
        join: text between several fields.
        jq: a jq program instead, of which the first output counts; a plain path such as `.a.b` needs no jq package.
        input_format: `"jsonl"`, `"parquet"`, whose columns are fields, or `"text"`; `"auto"` tells the first two apart.
        text_per: what of plain text is a document: a file, or a line that is not blank.
        eos: token that ends a document; by default the tokenizer's own.
        special_tokens: `"none"` leaves out what the tokenizer's post-processor adds.
        pretokenizer: how a tiktoken file's text is split, where its name does not tell: `"gpt2"`, `"cl100k"`,
            `"o200k"` or `"qwen2"`.
        workers: processes; by default one a core.
        executor: `"processes"`, or `"inline"` for none.
        on_error: at a line without a document: `"raise"`, or `"skip"` and list it.
        overwrite: replace the output.
        restart: throw away what an unfinished run has finished.
        engine: `"auto"` is gigatoken where the tokenizer's own library confirms it, `"tokenizers"` that library.
        task_bytes: input of one task; it has no influence on the output.
        oracle_bytes: text on which both engines are compared before the work begins.
        follow_links: take files through links that lead out of a folder that is searched.
        store: where all files are.
        progress: called after each part.

    Raises:
        NotFound: an input or the tokenizer is missing.
        ConfigError: an option can't be, the output exists, or unfinished work was asked for otherwise.
        FormatError: an input or the tokenizer is damaged.
        PrepareError: a line without a document, a killed worker, a full disk. What was finished is kept.
    """
    _require("--special-tokens", special_tokens, ("default", "none"))
    _require("--on-error", on_error, ("raise", "skip"))
    _require("--engine", engine, ("auto", "gigatoken", "tokenizers"))
    _require("--input-format", input_format, ("auto", "jsonl", "text", "parquet"))
    _require("--text-per", text_per, ("file", "line"))
    if text_per != "file" and input_format != "text":
        raise ConfigError(
            "only plain text is cut by line or file", hint="Add input_format='text' (--input-format text)"
        )
    selection = select(field, join, jq, text_per if input_format == "text" else "json")
    if task_bytes is not None and task_bytes < 1:
        raise ConfigError("a task needs bytes", found=f"task_bytes={task_bytes}", expected="1 or more")
    path = output_path(store or LocalStore(), absolute(local_path(output, "what pack writes")))
    request = _Request(
        given=[inputs] if isinstance(inputs, str | os.PathLike) else list(inputs),
        output=path,
        to=to or _format_of(path),
        selection=selection,
        input_format=input_format,
        tokenizer=tokenizer,
        eos=eos,
        special_tokens=special_tokens,
        pretokenizer=pretokenizer,
        engine=engine,
        workers=len(os.sched_getaffinity(0)) if workers is None else workers,
        executor=executor,
        skip=on_error == "skip",
        overwrite=overwrite,
        restart=restart,
        task_bytes=task_bytes,
        oracle_bytes=oracle_bytes,
        follow_links=follow_links,
        store=store or LocalStore(),
        progress=progress or _silent,
    )
    with spooled(request.given) as given:
        return _pack(dataclasses.replace(request, given=given))


@dataclass(frozen=True, slots=True)
class _Request:
    """The arguments of `pack`, checked one by one."""

    given: Sequence[str | os.PathLike[str]]
    output: str
    to: str
    selection: Selection
    input_format: InputFormat
    tokenizer: str | os.PathLike[str]
    eos: str | None
    special_tokens: str
    pretokenizer: str | None
    engine: EngineChoice
    workers: int
    executor: str
    skip: bool
    overwrite: bool
    restart: bool
    task_bytes: int | None
    oracle_bytes: int
    follow_links: bool
    store: LocalStore
    progress: Callable[[PackProgress], None]


@dataclass(frozen=True, slots=True)
class _Material:
    """What a request turned out to mean."""

    inputs: list[InputFile]
    spec: TokenizerSpec
    reference: Reference


def _pack(request: _Request) -> PackReport:
    started = time.perf_counter()
    if not request.overwrite:
        published = _published(request)
        if published is not None and not request.restart:
            with _plain_errors(request.output):
                return _complete(request, published, started)
        if request.store.exists(request.output):
            sweep_killed(request.store, files_at(request.to, request.output))
            raise output_exists(request.output)
    if request.store.is_folder(request.output) and request.to not in _FOLDERS:
        raise ConfigError("the output is a folder", path=request.output, hint="Name a file")
    paths = find_paths(request.given, request.input_format, follow_links=request.follow_links)
    require_other([*paths, *_tokenizer_files(request)], request.output, *files_at(request.to, request.output))
    require_outside([os.fspath(one) for one in request.given], request.output)
    with _plain_errors(request.output), _workers_for(request, paths) as executor:
        material = _material(request, paths)
        for one in material.inputs:
            if one.kind == "parquet":
                require_columns(one.path, request.selection)
        # Workers end before the journal does: nothing more comes into its folder then.
        with open_journal(request.store, request.output, restart=request.restart) as journal, executor:
            engine, note = _begin(request, material, journal, executor)
            times = [time.perf_counter()]
            assembly, manifest = _write(request, material, journal, engine, executor, times)
            with contextlib.suppress(OSError, PenstockError):
                journal.clear()  # the output is complete: what can't be removed now is removed by the next run
    stages = zip(("start", "encode", "commit"), [started, *times], [*times, time.perf_counter()], strict=True)
    return PackReport(
        output=request.output,
        documents=assembly.documents,
        tokens=assembly.tokens,
        input_files=len(material.inputs),
        input_bytes=sum(one.size_bytes for one in material.inputs),
        num_dropped=assembly.num_dropped,
        dropped=tuple(assembly.dropped),
        engine=engine,
        engine_note=note,
        tasks=assembly.tasks,
        reused_tasks=assembly.reused_tasks,
        seconds={stage: after - before for stage, before, after in stages},
        manifest=manifest,
    )


def _material(request: _Request, paths: Sequence[str]) -> _Material:
    spec, reference = load_tokenizer(
        request.tokenizer,
        request.store,
        eos=request.eos,
        special_tokens=request.special_tokens == "default",
        pretokenizer=request.pretokenizer,
    )
    whole_files = request.selection.unit == "file"
    return _Material(
        describe_inputs(paths, request.store, request.input_format, whole_files=whole_files), spec, reference
    )


# --- the steps -----------------------------------------------------------------------------------------------------


def _workers_for(request: _Request, paths: Sequence[str]) -> InlineExecutor | ProcessExecutor:
    """Workers start first: their imports then take no time of their own."""
    sizes = [text_bytes(path, os.path.getsize(path)) for path in paths]
    task_bytes = request.task_bytes or default_task_bytes(sum(sizes))
    n_tasks = sum(-(-size_bytes // task_bytes) for size_bytes in sizes)
    alone = n_tasks <= 1 and request.executor == "processes" and request.workers >= 1
    return make_executor("inline" if alone else request.executor, min(request.workers, max(1, n_tasks)), _PRELOAD)


def _begin(
    request: _Request, material: _Material, journal: Journal, executor: InlineExecutor | ProcessExecutor
) -> tuple[EngineName, str | None]:
    """Compare the plan with the one in the journal, choose the engine, and make the plan durable."""
    plan = _plan(request, material, journal)
    require_same(plan, journal, request.output)
    before = journal.plan
    asked: EngineChoice = "tokenizers" if before is not None and before.engine != "gigatoken" else request.engine
    texts = sample_texts(request.store, material.inputs, request.selection, request.oracle_bytes)
    engine, note = choose_engine(asked, material.spec, material.reference, texts, executor)
    if before is None:
        journal.save(_plan(request, material, journal, engine))
    elif engine != before.engine:
        raise PrepareError(
            f"finished tasks were encoded by {before.engine}, which is no longer confirmed: {note}",
            path=request.output,
            hint="Throw the finished work away: restart (--restart)",
        )
    return engine, note


def _plan(request: _Request, material: _Material, journal: Journal, engine: str = "") -> Plan:
    total_bytes = sum(text_bytes(one.path, one.size_bytes) for one in material.inputs)
    kept = journal.plan.task_bytes if journal.plan is not None else default_task_bytes(total_bytes)
    return Plan(
        options={
            "--to": request.to,
            "--tokenizer": material.spec.digest,
            **request.selection.options(),
            "--eos": material.spec.eos,
            "--special-tokens": request.special_tokens,
            "--engine": request.engine,
            "--overwrite": request.overwrite,
        },
        inputs=tuple(PlannedInput(one.name, one.size_bytes, one.digest, one.mtime_ns) for one in material.inputs),
        task_bytes=request.task_bytes or kept,
        engine=engine,
    )


def _write(
    request: _Request,
    material: _Material,
    journal: Journal,
    engine: EngineName,
    executor: InlineExecutor | ProcessExecutor,
    times: list[float],
) -> tuple[Assembly, Manifest]:
    """Encode what is missing, append every part in its turn, and commit. Notes the time before the commit."""
    spec = material.spec
    job = Job(spec, engine, request.selection, request.skip, journal.folder, request.store)
    plan = _plan(request, material, journal)
    tasks = cut_tasks(journal, material.inputs, plan.task_bytes, spec.token_bytes)
    reference = material.reference if engine == "gigatoken" else None
    with _create(request, material) as writer:
        if not isinstance(writer, TokenParts):
            raise Unsupported(f"the format {request.to!r} can't be packed into", path=request.output)
        assembly = Assembly(
            writer, request.store, material.inputs, spec.token_bytes, request.skip, reference, request.progress
        )
        for done in executor.map(functools.partial(encode_task, job), tasks):
            assembly.add(done)
        if not assembly.documents:
            journal.clear()  # whoever mends the inputs begins anew
            found = f"{assembly.num_dropped} lines left out" if assembly.num_dropped else "no line"
            raise PrepareError("the inputs hold no document", path=request.output, found=found)
        changed = changed_since(material.inputs)
        if changed is not None:
            raise PrepareError(
                "the input changed while it was read",
                path=changed.path,
                hint="Leave it alone, and throw the finished work away: restart (--restart)",
            )
        times.append(time.perf_counter())
        return assembly, writer.commit()


def _create(request: _Request, material: _Material) -> Writer:
    spec = material.spec
    options: dict[str, Any] = {"token_bytes": spec.token_bytes, "eos_id": spec.eos_id, "tokenizer": spec.name}
    options |= _recorded(request, material)
    if request.to == "megatron":
        # Its dtype follows from the vocabulary by a rule of its own, not from the width of the parts.
        options["vocab_size"] = spec.num_ids
    if request.to == "mds":
        options["columns"] = {COLUMN: f"ndarray:uint{8 * options.pop('token_bytes')}"}
    chosen = get_format(request.to)
    writer = chosen.create(request.store, request.output, options, overwrite=request.overwrite)
    by_document = request.to == "mds" or (chosen.traits.tokens and not isinstance(writer, TokenParts))
    return ColumnParts(writer, spec.token_bytes) if by_document else writer


def _recorded(request: _Request, material: _Material) -> dict[str, Any]:
    """What the side file says of what was asked for: by this an output is known again."""
    return {
        "tokenizer_digest": material.spec.digest,
        "inputs": {one.name: one.digest for one in material.inputs},
        "options": {
            **{name.removeprefix("--"): value for name, value in request.selection.options().items()},
            "eos": material.spec.eos,
            "special_tokens": request.special_tokens,
        },
    }


# --- after a kill ---------------------------------------------------------------------------------------------------


def _published(request: _Request) -> Manifest | None:
    """The side file of the output that a run left which was killed between its commit and its end."""
    if not os.path.isdir(work_folder(request.output)):
        return None
    try:
        source = get_format(request.to).open(request.store, request.output, OpenOptions())
        manifest = getattr(source, "manifest", None)
    except (PenstockError, OSError):
        return None
    return manifest if isinstance(manifest, Manifest) else None


def _complete(request: _Request, manifest: Manifest, started: float) -> PackReport:
    """Say that an output is what was asked for, and sweep what the killed run left; else raise `ConfigError`."""
    sweep_killed(request.store, files_at(request.to, request.output))
    paths = find_paths(request.given, request.input_format, follow_links=request.follow_links)
    material = _material(request, paths)
    recorded = _recorded(request, material)
    told = {name: manifest.options.get(name) for name in recorded["options"]}
    asked = {"tokenizer_digest": manifest.tokenizer_digest, "inputs": dict(manifest.inputs), "options": told}
    if asked != recorded:
        _forget_complete_work(request, manifest)
        raise output_exists(request.output)
    with open_journal(request.store, request.output, restart=False) as journal:
        engine = "" if journal.plan is None else journal.plan.engine
        journal.clear()
    return PackReport(
        output=request.output,
        documents=manifest.num_samples,
        tokens=manifest.num_tokens,
        input_files=len(material.inputs),
        input_bytes=sum(one.size_bytes for one in material.inputs),
        num_dropped=0,
        dropped=(),
        engine=engine,
        engine_note=None,
        tasks=0,
        reused_tasks=0,
        seconds={"start": time.perf_counter() - started},
        manifest=manifest,
        was_complete=True,
    )


# --- odds and ends -------------------------------------------------------------------------------------------------


def _require(option: str, found: str, allowed: Sequence[str]) -> None:
    if found not in allowed:
        raise ConfigError(f"no such choice for {option}", found=found, expected=" | ".join(allowed))


def _tokenizer_files(request: _Request) -> list[str]:
    """The tokenizer's file, or those of its folder."""
    named = os.fspath(request.tokenizer)
    return [os.path.join(named, name) for name in os.listdir(named)] if os.path.isdir(named) else [named]


def _silent(progress: PackProgress) -> None:
    """No progress."""


def _format_of(output: str) -> str:
    """The token format whose suffix an output has."""
    packed: list[Format] = []
    for names in (BUILT_IN, format_names):  # plug-ins are looked for last: that takes time
        for one in map(get_format, names() if callable(names) else names):
            if one.traits.tokens and one.traits.write:
                packed.append(one)
                if output.endswith(one.traits.suffixes or ("\0",)):
                    return one.name
    raise ConfigError(
        "the output's name does not tell its format",
        path=output,
        expected=", ".join(sorted({suffix for one in packed for suffix in one.traits.suffixes})),
        hint="Name the format with to= (--to): " + ", ".join(sorted({one.name for one in packed} | {"mds"})),
    )


def _forget_complete_work(request: _Request, manifest: Manifest) -> None:
    """Remove what a run that asked for another output left, if it is the one that is there."""
    with (
        contextlib.suppress(PenstockError, OSError),
        open_journal(request.store, request.output, restart=False) as journal,
    ):
        plan = journal.plan
        if plan is None:
            return
        recorded = {f"--{name.replace('_', '-')}": value for name, value in manifest.options.items()}
        recorded["--tokenizer"] = manifest.tokenizer_digest
        same_options = all(plan.options[name] == value for name, value in recorded.items() if name in plan.options)
        if same_options and dict(manifest.inputs) == {one.name: one.digest for one in plan.inputs}:
            journal.clear()


@contextlib.contextmanager
def _plain_errors(output: str) -> Generator[None]:
    """Refusals of the system name a file; these and every `PrepareError` say what is kept."""
    kept = "What is finished is kept, and the same command goes on"
    try:
        yield
    except PrepareError as error:
        if os.path.isdir(work_folder(output)):
            error.hint = f"{error.hint}. {kept}" if error.hint else kept
        raise
    except PenstockError:
        raise
    except OSError as error:
        told = named(error, output)
        if told.errno is not None and os.path.isdir(work_folder(output)):
            told.strerror = f"{told.strerror}. {kept}"
        raise told from None
