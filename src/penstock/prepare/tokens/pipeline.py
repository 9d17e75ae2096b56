"""From JSONL to packed tokens: understand, plan, work, commit.

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
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

from penstock._kinds import TokenParts
from penstock.abc import Executor, Writer
from penstock.errors import ConfigError, PenstockError, PrepareError, Unsupported
from penstock.executors import AnyExecutor, make_executor
from penstock.formats import files_at, get_format
from penstock.prepare.tokens.assemble import Assembly
from penstock.prepare.tokens.columns import COLUMN, ColumnParts
from penstock.prepare.tokens.engines import EngineName
from penstock.prepare.tokens.inputs import InputFormat, changed_since, spooled
from penstock.prepare.tokens.oracle import EngineChoice, choose_engine
from penstock.prepare.tokens.report import PackProgress, PackReport
from penstock.prepare.tokens.sample import sample_texts
from penstock.prepare.tokens.select import DEFAULT_JOIN, select
from penstock.prepare.tokens.tasks import cut_tasks, default_task_bytes, text_bytes
from penstock.prepare.tokens.tokenize import Job, encode_task
from penstock.prepare.tokens.understand import (
    Material,
    Request,
    find_inputs,
    format_of,
    material_of,
    named_inputs,
    recorded_of,
    understand,
)
from penstock.store._named import named
from penstock.store.local import LocalStore, output_exists
from penstock.store.outputs import output_path, sweep_killed
from penstock.store.place import Given, Place, local_place
from penstock.types import Manifest, OpenOptions
from penstock.work.pack import Journal, Plan, PlannedInput, open_journal, require_same, work_of

OnError = Literal["raise", "skip"]

_PRELOAD = ("penstock.prepare.tokens.tokenize", "gigatoken")


def pack(
    inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    output: Given,
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
    executor: AnyExecutor = "processes",
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
    """Tokenise JSONL, Parquet or plain text and pack it. Killed and called again with the same arguments, it resumes.

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
        input_format: `"jsonl"`, `"parquet"`, whose columns are fields, or `"text"`; `"auto"` detects the first two.
        text_per: what of plain text is a document: a file, or a line that is not blank.
        eos: token that ends a document; by default the tokenizer's own.
        special_tokens: `"none"` leaves out what the tokenizer's post-processor adds.
        pretokenizer: how a tiktoken file's text is split, where its name does not say: `"gpt2"`, `"cl100k"`,
            `"o200k"` or `"qwen2"`.
        workers: processes; by default one a core.
        executor: `"processes"`, `"inline"` for none, `"ray"`, another name, or an executor; see `penstock.executors`.
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
    store = store or LocalStore()
    place = local_place(output, "what pack writes", store)
    place = Place(store, output_path(store, place.absolute))
    request = Request(
        given=[os.fspath(one) for one in ([inputs] if isinstance(inputs, str | os.PathLike) else inputs)],
        output=place,
        to=to or format_of(place),
        selection=selection,
        input_format=input_format,
        tokenizer=os.fspath(tokenizer),
        eos=eos,
        special_tokens=special_tokens,
        pretokenizer=pretokenizer,
        engine=engine,
        workers=workers,
        executor=executor,
        skip=on_error == "skip",
        overwrite=overwrite,
        restart=restart,
        task_bytes=task_bytes,
        oracle_bytes=oracle_bytes,
        follow_links=follow_links,
        progress=progress or _silent,
    )
    with spooled(request.given) as given:
        return _pack(dataclasses.replace(request, given=given, started=time.perf_counter()))


@dataclass(frozen=True, slots=True)
class _Planned:
    """What is to be done: the plan in the journal, and why its engine was chosen."""

    plan: Plan
    engine: EngineName
    note: str | None


def _pack(request: Request) -> PackReport:
    if not request.overwrite:
        done = _complete(request)
        if done is not None:
            return done
    files = find_inputs(request)
    with _plain_errors(request.output), contextlib.ExitStack() as workers:
        executor = workers.enter_context(_workers_for(request, files))
        material = understand(request, files)
        # Workers end before the journal does: nothing more comes into its folder then.
        with open_journal(request.output, restart=request.restart) as journal, workers.pop_all():
            planned = _plan(request, material, journal, executor)
            times = [time.perf_counter()]
            with _create(request, material) as writer:
                assembly = _work(request, material, planned, journal, executor, writer)
                times.append(time.perf_counter())
                manifest = writer.commit()
            with contextlib.suppress(OSError, PenstockError):
                journal.clear()  # the output is complete: what can't be removed now is removed by the next run
    return _report(request, material, planned, assembly, manifest, times)


# --- plan ------------------------------------------------------------------------------------------------------------


def _plan(request: Request, material: Material, journal: Journal, executor: Executor) -> _Planned:
    """Compare what is asked for with the journal, choose the engine, and make the plan durable."""
    before = journal.plan
    asked = _asked(request, material, before)
    require_same(asked, journal, request.output)
    wanted: EngineChoice = "tokenizers" if before is not None and before.engine != "gigatoken" else request.engine
    texts = sample_texts(material.inputs, request.selection, request.oracle_bytes)
    engine, note = choose_engine(wanted, material.spec, material.reference, texts, executor)
    plan = dataclasses.replace(asked, engine=engine)
    if before is None:
        journal.save(plan)
    elif engine != before.engine:
        raise PrepareError(
            f"finished tasks were encoded by {before.engine}, which is no longer confirmed: {note}",
            path=request.output.path,
            hint="Throw the finished work away: restart (--restart)",
        )
    return _Planned(plan, engine, note)


def _asked(request: Request, material: Material, before: Plan | None) -> Plan:
    """The plan, but for its engine."""
    total_bytes = sum(text_bytes(one.place, one.size_bytes) for one in material.inputs)
    kept = before.task_bytes if before is not None else default_task_bytes(total_bytes)
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
        engine="",
    )


# --- work ------------------------------------------------------------------------------------------------------------


def _workers_for(request: Request, files: Sequence[Place]) -> AbstractContextManager[Executor]:
    """Workers start first: their imports then take no time of their own."""
    sizes = [text_bytes(file, request.store.size(file.path)) for file in files]
    task_bytes = request.task_bytes or default_task_bytes(sum(sizes))
    n_tasks = sum(-(-size_bytes // task_bytes) for size_bytes in sizes)
    executor, workers, alone = request.executor, request.workers, n_tasks <= 1
    return make_executor(executor, workers, _PRELOAD, alone=alone, most=n_tasks, reads=files, writes=[request.output])


def _work(
    request: Request,
    material: Material,
    planned: _Planned,
    journal: Journal,
    executor: Executor,
    writer: Writer,
) -> Assembly:
    """Encode what is missing, and append every part in its turn."""
    if not isinstance(writer, TokenParts):
        raise Unsupported(f"the format {request.to!r} can't be packed into", path=request.output.path)
    spec = material.spec
    job = Job(spec, planned.engine, request.selection, request.skip, journal.folder.place)
    reference = material.reference if planned.engine == "gigatoken" else None
    assembly = Assembly(writer, material.inputs, spec.token_bytes, request.skip, reference, request.progress)
    tasks = cut_tasks(journal, material.inputs, planned.plan.task_bytes, spec.token_bytes)
    for done in executor.map(functools.partial(encode_task, job), tasks):
        assembly.add(done)
    if not assembly.documents:
        journal.clear()  # whoever mends the inputs begins anew
        found = f"{assembly.num_dropped} lines left out" if assembly.num_dropped else "no line"
        raise PrepareError("the inputs hold no document", path=request.output.path, found=found)
    changed = changed_since(material.inputs)
    if changed is not None:
        raise PrepareError(
            "the input changed while it was read",
            path=changed.path,
            hint="Leave it alone, and throw the finished work away: restart (--restart)",
        )
    return assembly


# --- commit ----------------------------------------------------------------------------------------------------------


def _create(request: Request, material: Material) -> Writer:
    spec = material.spec
    options: dict[str, Any] = {"token_bytes": spec.token_bytes, "eos_id": spec.eos_id, "tokenizer": spec.name}
    options |= recorded_of(request, material)
    if request.to == "megatron":
        # Its dtype follows from the vocabulary by a rule of its own, not from the width of the parts.
        options["vocab_size"] = spec.num_ids
    if request.to == "mds":
        options["columns"] = {COLUMN: f"ndarray:uint{8 * options.pop('token_bytes')}"}
    chosen = get_format(request.to)
    writer = chosen.create(request.store, request.output.path, options, overwrite=request.overwrite)
    by_document = request.to == "mds" or (chosen.traits.tokens and not isinstance(writer, TokenParts))
    return ColumnParts(writer, spec.token_bytes) if by_document else writer


def _report(
    request: Request,
    material: Material,
    planned: _Planned,
    assembly: Assembly,
    manifest: Manifest,
    times: Sequence[float],
) -> PackReport:
    stages = zip(("start", "encode", "commit"), [request.started, *times], [*times, time.perf_counter()], strict=True)
    return PackReport(
        output=request.output.path,
        documents=assembly.documents,
        tokens=assembly.tokens,
        input_files=len(material.inputs),
        input_bytes=sum(one.size_bytes for one in material.inputs),
        num_dropped=assembly.num_dropped,
        dropped=tuple(assembly.dropped),
        engine=planned.engine,
        engine_note=planned.note,
        tasks=assembly.tasks,
        reused_tasks=assembly.reused_tasks,
        seconds={stage: after - before for stage, before, after in stages},
        manifest=manifest,
    )


# --- after a kill ---------------------------------------------------------------------------------------------------


def _complete(request: Request) -> PackReport | None:
    """What there is to say where a killed run had made the output; raises `ConfigError` where it is another."""
    output = request.output
    published = _published(request)
    if published is not None and not request.restart:
        with _plain_errors(output):
            return _known_again(request, published)
    if output.exists():
        sweep_killed(output.store, files_at(request.to, output.path))
        raise output_exists(output.path)
    return None


def _published(request: Request) -> Manifest | None:
    """The side file of the output that a run left which was killed between its commit and its end."""
    if not work_of(request.output).place.is_folder():
        return None
    try:
        source = get_format(request.to).open(request.store, request.output.path, OpenOptions())
        manifest = getattr(source, "manifest", None)
    except (PenstockError, OSError):
        return None
    return manifest if isinstance(manifest, Manifest) else None


def _known_again(request: Request, manifest: Manifest) -> PackReport:
    """Say that an output is what was asked for, and sweep what the killed run left; else raise `ConfigError`."""
    output = request.output
    sweep_killed(output.store, files_at(request.to, output.path))
    material = material_of(request, named_inputs(request))
    recorded = recorded_of(request, material)
    told = {name: manifest.options.get(name) for name in recorded["options"]}
    asked = {"tokenizer_digest": manifest.tokenizer_digest, "inputs": dict(manifest.inputs), "options": told}
    if asked != recorded:
        _forget_complete_work(output, manifest)
        raise output_exists(output.path)
    with open_journal(output, restart=False) as journal:
        engine = "" if journal.plan is None else journal.plan.engine
        journal.clear()
    return PackReport(
        output=output.path,
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
        seconds={"start": time.perf_counter() - request.started},
        manifest=manifest,
        was_complete=True,
    )


# --- odds and ends -------------------------------------------------------------------------------------------------


def _require(option: str, found: str, allowed: Sequence[str]) -> None:
    if found not in allowed:
        raise ConfigError(f"no such choice for {option}", found=found, expected=" | ".join(allowed))


def _silent(progress: PackProgress) -> None:
    """No progress."""


def _forget_complete_work(output: Place, manifest: Manifest) -> None:
    """Remove what a run that asked for another output left, if it is the one that is there."""
    with (
        contextlib.suppress(PenstockError, OSError),
        open_journal(output, restart=False) as journal,
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
def _plain_errors(output: Place) -> Generator[None]:
    """Refusals of the system name a file; these and every `PrepareError` say what is kept."""
    kept = "What is finished is kept, and the same command goes on"
    try:
        yield
    except PrepareError as error:
        if work_of(output).place.is_folder():
            error.hint = f"{error.hint}. {kept}" if error.hint else kept
        raise
    except PenstockError:
        raise
    except OSError as error:
        told = named(error, output.path)
        if told.errno is not None and work_of(output).place.is_folder():
            told.strerror = f"{told.strerror}. {kept}"
        raise told from None
