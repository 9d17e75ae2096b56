"""Plan of a run of `pack`, and the engine that encodes."""

from __future__ import annotations

from penstock._secrets import logger
from penstock.abc import Executor
from penstock.engine.plan import Plan, PlannedInput
from penstock.errors import ConfigError
from penstock.prepare.tokens.chat.mask import find_mask_difference
from penstock.prepare.tokens.chat.vocabulary import load_vocabulary
from penstock.prepare.tokens.engines import EngineName, TokenizersEngine, load_engine
from penstock.prepare.tokens.oracle import EngineChoice, choose_engine
from penstock.prepare.tokens.rows import keeps_rows
from penstock.prepare.tokens.sample import sample_texts
from penstock.prepare.tokens.tasks import default_task_bytes, text_bytes
from penstock.prepare.tokens.tokenizer import NO_EOS, TokenizerSpec
from penstock.prepare.tokens.understand import Material, Request, filled_in, left_out, split_markers

_log = logger()


def choose(
    request: Request, material: Material, before: Plan | None, executor: Executor
) -> tuple[EngineName, str | None]:
    """The engine, and why it is not gigatoken; that of work that is there, unless it is gigatoken's."""
    if split := split_markers(material):
        what = "%s: %s in the chat template aren't single tokens of this tokenizer. Add them to the tokenizer"
        _log.warning(what, material.spec.path, ", ".join(split))
    spec, is_chat = material.spec, material.selection.chat is not None
    if is_chat and request.engine != "tokenizers" and load_vocabulary(spec).text_bytes is None:
        return _without_gigatoken(request, spec, "it can't map tokens to characters")
    wanted: EngineChoice = "tokenizers" if before is not None and before.engine != "gigatoken" else request.engine
    texts = sample_texts(material.inputs, material.selection, request.oracle_bytes)
    name, note = choose_engine(wanted, spec, material.reference, texts, executor)
    if is_chat and name == "gigatoken" and isinstance(material.reference, TokenizersEngine):
        engine = load_engine("gigatoken", spec)
        differs = find_mask_difference(engine, load_vocabulary(spec), material.reference, texts)
        if differs is not None:
            return _without_gigatoken(request, spec, differs)
    return name, note


def _without_gigatoken(request: Request, spec: TokenizerSpec, reason: str) -> tuple[EngineName, str]:
    """Return the tokenizer's own library and why; raises `ConfigError` if gigatoken was named."""
    if request.engine == "gigatoken":
        hint = "Omit --engine (engine=)"
        raise ConfigError(
            f"gigatoken can't be used for conversations with this tokenizer: {reason}",
            path=spec.path,
            expected=spec.kind,
            hint=hint,
        )
    return spec.kind, reason


def make_plan(request: Request, material: Material, before: Plan | None) -> Plan:
    """Return the plan without its engine. It continues the plan of unfinished work, if there is one."""
    total_bytes = sum(text_bytes(one.name, one.size_bytes) for one in material.inputs)
    kept = before.task_bytes if before is not None else default_task_bytes(total_bytes)
    return Plan(
        options={
            "--to": request.to,
            "--file-tokens": request.file_tokens,
            "--tokenizer": material.spec.digest,
            **material.selection.options(),
            "--eos": material.spec.eos or NO_EOS,
            "--special-tokens": request.special_tokens,
            "--engine": request.engine,
            "--overwrite": request.options.overwrite,
            **{f"--{name}": value for name, value in left_out(material).items()},
            **({} if request.shuffle is None else {"--shuffle": request.shuffle}),
            **filled_in(request),
            **({"--keep-map": True} if keeps_rows(request, material) else {}),
        },
        inputs=tuple(PlannedInput(one.name, one.size_bytes, one.digest, one.mtime_ns) for one in material.inputs),
        task_bytes=request.task_bytes or kept,
        engine="",
    )
