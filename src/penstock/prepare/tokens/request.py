"""What a request for packing means: its inputs, its tokenizer, and its format.

Plan of a run of `pack`, and the engine that encodes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from penstock._secrets import logger
from penstock.engine.folder import local_store
from penstock.engine.options import RunOptions
from penstock.engine.plan import Plan, PlannedInput
from penstock.errors import ConfigError, Corrupt, FormatError
from penstock.executors import HERE
from penstock.formats import SUFFIXES, files_at
from penstock.formats._unrecognised import UNKNOWN, is_tokenizer, of_binary, of_text
from penstock.formats.jsonl.build import index_path_for
from penstock.formats.jsonl.index import is_megatrons, load_lines
from penstock.prepare.tokens.chat.render import ChatTemplate, load_template, missing_markers
from penstock.prepare.tokens.engines import (
    EngineChoice,
    Reference,
    load_tokenizer,
    tokenizer_files,
)
from penstock.prepare.tokens.fill_in import FillIn, FillInAsked, fill_in_of
from penstock.prepare.tokens.inputs import TABLES, InputFile, InputFormat, describe_inputs, find_files, without_excluded
from penstock.prepare.tokens.reading import Selection, make_reader, require_columns
from penstock.prepare.tokens.tasks import default_task_bytes, text_bytes
from penstock.prepare.tokens.tokenizer import NO_EOS, TokenizerSpec
from penstock.store.find import survey_all
from penstock.store.local import LocalStore
from penstock.store.outputs import require_other, require_outside
from penstock.store.place import Place, places_of
from penstock.store.resolve import is_url
from penstock.store.row_map import require_own_row_map

_HELD_BYTES = 1 << 27
"""Of small inputs that are kept from the reading that digests them, and go to a worker of this machine."""
_HEAD_BYTES = 1 << 16
_VALUES = (b"{", b"[", b'"')
_READ_AS_THEY_ARE = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1", b"ARRO", b"\xff\xff\xff\xff")
"""How compressed files and tables begin."""
_INDEXED = (".jsonl", ".ndjson")
_FIRST_LINES = 3
_FOLDERS = ("flat-tokens", "mds")
"""Formats whose datasets are folders, so that one may stand where another comes."""


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of `pack`, checked one by one.

    `file_tokens` is None for an output of one dataset; else that is a folder of token files.
    """

    given: Sequence[str]
    output: Place
    to: str
    file_tokens: int | None
    options: RunOptions
    selection: Selection
    input_format: InputFormat
    tokenizer: str
    eos: str | None
    special_tokens: str
    pretokenizer: str | None
    engine: EngineChoice
    skip: bool
    task_bytes: int | None
    oracle_bytes: int
    follow_links: bool
    excludes: Place | Literal[False] | None
    chat: bool
    chat_date: str | None
    keep_control_tokens: bool
    shuffle: int | None
    fill_in: FillInAsked | None

    @property
    def store(self) -> LocalStore:
        """Where the tokenizer is, and inputs on this machine."""
        return local_store(self.output)

    @property
    def is_folder(self) -> bool:
        """Whether the output is a folder of token files."""
        return self.file_tokens is not None

    @property
    def outputs(self) -> tuple[str, ...]:
        """The files, or the folder, that the output is, side files left out."""
        return (self.output.path,) if self.is_folder else files_at(self.to, self.output.path)


@dataclass(frozen=True, slots=True)
class Material:
    """What a request turned out to mean."""

    inputs: list[InputFile]
    spec: TokenizerSpec
    reference: Reference
    selection: Selection
    fill_in: FillIn | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """Inputs in their order, and what their folders' listing said of them."""

    files: list[Place]
    statuses: dict[str, os.stat_result]

    def sizes(self) -> list[tuple[str, int]]:
        """`(path, bytes)` of those on this machine."""
        here = [file for file in self.files if file.is_local]
        known = self.statuses
        return [(one.path, known[one.path].st_size if one.path in known else one.store.size(one.path)) for one in here]


def find_inputs(request: Request) -> Found:
    """The inputs, none of which is the output."""
    if not request.is_folder and request.to not in _FOLDERS and request.output.is_folder():
        hint = "Give a file name. For a folder of token files, end it with a slash or use --file-tokens"
        raise ConfigError("the output is a folder", path=request.output.path, hint=hint)
    found = named_inputs(request)
    output, paths = request.output.path, [file.path for file in found.files]
    others = (output, *request.outputs)
    require_other([*paths, *tokenizer_files(request.tokenizer)], *others, statuses=found.statuses)
    require_outside(request.given, output)
    is_table = paths[0].endswith((".parquet", ".arrow"))
    if request.input_format != "parquet" and not request.skip and not is_table:
        _require_text(found.files, request.input_format)
    if request.input_format in ("auto", "jsonl") and not is_table:
        _require_fitting_indexes(found.files)
    return found


def _require_text(files: Sequence[Place], input_format: InputFormat) -> None:
    """That files may be what is asked for, before anything is loaded for them; the first tells what all of them are.

    Raises:
        Corrupt: all of them are empty.
        FormatError: it is binary; or no JSONL, but text, a tokenizer, or one JSON document over several lines.
    """
    file = files[0]
    head = file.store.get(file.path, 0, _HEAD_BYTES)
    if not head and not any(one.store.size(one.path) for one in files[1:]):
        hint = "Omit it, or write it again" if len(files) == 1 else "The other inputs are empty too. Write them again"
        raise Corrupt("the file is empty", path=file.path, hint=hint)
    if head.startswith(_READ_AS_THEY_ARE):
        return
    cause = None if head.lstrip()[:1] in _VALUES else of_binary(head)
    if cause is UNKNOWN:
        cause = UNKNOWN[0], "Copy it again, or check the program that wrote it"
        if file.path.endswith((*SUFFIXES["pbin"], *SUFFIXES["datatrove"])):
            cause = "packed tokens", "`penstock convert` changes their format, and `penstock merge` joins them"
    if cause is None and input_format != "text" and (not _has_json_line(head, file) or is_tokenizer(head, file.path)):
        cause = of_text(head, file.path)
    if cause is not None:
        what = "no text" if input_format == "text" else "no JSONL"
        raise FormatError(what, path=file.path, found=cause[0], hint=cause[1].replace("FILE", "…"))


def _require_fitting_indexes(files: Sequence[Place]) -> None:
    """That an index beside a file is of its lines, though it is not read here: else one of the two is not what it was.

    Raises:
        Corrupt: an index does not fit its file.
    """
    here = (one for one in files if one.is_local and one.path.endswith(_INDEXED))
    for _, group in itertools.groupby(here, lambda one: one.folder().path):
        some = list(group)
        names = set(some[0].folder().names()) if len(some) > 1 else None  # a folder of many is listed once
        for one in some:
            index = Place(one.store, index_path_for(one.path))
            is_there = index.exists() if names is None else index.name in names
            if is_there and not is_megatrons(one.store, index.path):
                load_lines(one.store, one.path)


def _has_json_line(head: bytes, file: Place) -> bool:
    """Whether one of the first lines is a JSON value by itself; one line alone may be cut, or damaged in a JSONL."""
    lines = [line for line in head.split(b"\n") if line.strip()]
    is_named = file.path.endswith(SUFFIXES["jsonl"])
    if len(lines) < 2 and (is_named or head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"", *_VALUES)):
        return True
    for line in lines[:_FIRST_LINES]:
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(line)
            if isinstance(value, dict | list | str):
                return True
    return False


def named_inputs(request: Request) -> Found:
    """The inputs in their order."""
    paths, statuses = find_files(request.given, request.input_format, follow_links=request.follow_links)
    far = places_of(path for path in paths if is_url(path))
    survey_all(far)
    there = iter(far)
    return Found([next(there) if is_url(path) else Place(request.store, path) for path in paths], statuses)


def understand(request: Request, found: Found, before: Plan | None = None) -> Material:
    """The tokenizer, and what there is to know about the inputs; what a plan knows of unchanged ones is believed.

    Digests for which a file is read whole are left out: workers make them.
    """
    alone = request.options.executor in HERE and request.options.part is None and not request.options.no_work
    material = material_of(request, found, before, hold_bytes=_HELD_BYTES if alone else 0, digests=False)
    for one in material.inputs:
        if one.kind in TABLES:
            require_columns(one.place, one.kind, material.selection)
    return material


def material_of(
    request: Request, found: Found, before: Plan | None = None, *, hold_bytes: int = 0, digests: bool = True
) -> Material:
    """The same, without a look into tables; of small files so many bytes are kept, and `digests` are made."""
    spec, reference = load_tokenizer(
        request.tokenizer,
        request.store,
        eos=request.eos,
        special_tokens=request.special_tokens == "default" and not request.chat,
        pretokenizer=request.pretokenizer,
    )
    selection = request.selection
    if request.chat:
        selection = replace(selection, chat=_template_of(request, spec))
        make_reader(selection)  # a template that can't be is refused before any work
    whole_files = request.selection.unit == "file"
    known = {} if before is None else {one.name: one for one in before.inputs}
    inputs = describe_inputs(
        found.files,
        request.input_format,
        whole_files=whole_files,
        known=known,
        statuses=found.statuses,
        hold_bytes=hold_bytes,
        digests=digests,
    )
    inputs = without_excluded(inputs, request.excludes, keep=request.options.keep_excluded, known=found.statuses)
    fill_in = None if request.fill_in is None else fill_in_of(request.fill_in, spec, reference)
    return Material(inputs, spec, reference, selection, fill_in)


def _template_of(request: Request, spec: TokenizerSpec) -> ChatTemplate:
    keep = request.keep_control_tokens
    return load_template(spec, request.store, request.chat_date, keep_control_tokens=keep)


def recorded_of(request: Request, material: Material) -> dict[str, Any]:
    """What the side file says of what was asked for: by this an output is known again."""
    return {
        "tokenizer_digest": material.spec.digest,
        "inputs": {one.name: one.digest for one in material.inputs},
        "options": {
            **{name.removeprefix("--"): value for name, value in material.selection.options().items()},
            "eos": material.spec.eos or NO_EOS,
            "special_tokens": request.special_tokens,
            **({"chat-split-markers": split} if (split := split_markers(material)) else {}),
            **left_out(material),
            **({} if request.shuffle is None else {"shuffle": request.shuffle}),
            **{name.removeprefix("--"): value for name, value in filled_in(request).items()},
            **({"keep_map": True} if request.options.keep_map else {}),
        },
    }


def split_markers(material: Material) -> list[str]:
    """Return the markers of the chat template that are not tokens of the tokenizer."""
    chat = material.selection.chat
    return [] if chat is None else missing_markers(chat, material.reference)


def filled_in(request: Request) -> dict[str, Any]:
    """How documents are rearranged to fill in the middle, where some are."""
    return {} if request.fill_in is None else request.fill_in.options()


def left_out(material: Material) -> dict[str, Any]:
    """By which exclude lists lines of the inputs were left out, where some were."""
    lists = [one.exclude_digest for one in material.inputs if one.exclude_digest is not None]
    name = "keep_excluded" if any(one.carried for one in material.inputs) else "excluded"
    return {name: lists} if lists else {}


def recorded_of_output(request: Request, material: Material) -> dict[str, Any]:
    """The same of the whole output: of a folder also how it is cut."""
    recorded = recorded_of(request, material)
    if request.is_folder:
        recorded["options"] |= {"file_tokens": request.file_tokens, "to": request.to}
    return recorded


_log = logger()


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


def keeps_rows(request: Request, material: Material) -> bool:
    """Whether it is to be known which line each document was; raises `ConfigError` where nobody could be told."""
    if request.options.keep_map:
        require_own_row_map(request.output)
    carries = any(one.carried for one in material.inputs)
    if carries and not request.output.is_local:
        what, hint = "exclude lists next to remote data aren't read", "Pack locally and copy the result"
        raise ConfigError(what, path=request.output.path, hint=f"{hint}, or omit --keep-excluded (keep_excluded=)")
    return request.options.keep_map or carries
