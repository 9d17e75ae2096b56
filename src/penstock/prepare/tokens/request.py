"""Arguments of `pack`, the inputs, tokenizer, plan and writer that follow from them, and the kind of its output."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from penstock._kinds import TokenParts
from penstock.abc import Format, Writer
from penstock.engine.folder import local_store
from penstock.engine.options import RunOptions
from penstock.engine.plan import Plan, PlannedInput
from penstock.errors import ConfigError, Corrupt, FormatError
from penstock.executors import HERE
from penstock.formats import BUILT_IN, SUFFIXES, files_at, format_names, get_format, usable_format
from penstock.formats._unrecognised import UNKNOWN, is_tokenizer, of_binary, of_text
from penstock.formats.jsonl.build import index_path_for
from penstock.formats.jsonl.index import is_megatrons, load_lines
from penstock.formats.tokens.folder.index import SUFFIXES as TOKEN_FILE_SUFFIXES
from penstock.formats.tokens.folder.side import NAME as FOLDER
from penstock.prepare.tokens.chat.template import load_template, missing_markers
from penstock.prepare.tokens.engines import EngineChoice, Reference, load_tokenizer, tokenizer_files
from penstock.prepare.tokens.fill_in import FillIn, FillInOptions, load_fill_in
from penstock.prepare.tokens.inputs import (
    TABLES,
    InputFile,
    InputFormat,
    default_task_bytes,
    describe_inputs,
    find_files,
    text_bytes,
    without_excluded,
)
from penstock.prepare.tokens.reading import Selection, make_reader, require_columns
from penstock.prepare.tokens.tokenizer import NO_EOS, TokenizerSpec
from penstock.store.base import Store
from penstock.store.find import survey_all
from penstock.store.outputs import output_path, require_other, require_outside
from penstock.store.place import Given, Place, is_url, place_of, places_of
from penstock.store.row_map import require_own_row_map
from penstock.types import Batch, IntArray, Manifest, Sample

_HELD_BYTES = 1 << 27
"""Small inputs up to this size in all stay in memory after they are digested. Workers on this machine get them."""
_HEAD_BYTES = 1 << 16
_VALUES = (b"{", b"[", b'"')
_MAGIC_NUMBERS = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1", b"ARRO", b"\xff\xff\xff\xff")
"""First bytes of compressed files and tables."""
_INDEXED = (".jsonl", ".ndjson")
_FIRST_LINES = 3
_FOLDERS = ("flat-tokens", "mds")
"""Formats of which one dataset is a directory."""
DEFAULT_FILE_TOKENS = 4_000_000_000
_COLUMN = "tokens"

Statuses = Mapping[str, os.stat_result]


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of `pack`, checked one by one. `file_tokens` is None unless the output is a folder of token files."""

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
    fill_in: FillInOptions | None

    @property
    def store(self) -> Store:
        return local_store(self.output)

    @property
    def is_folder(self) -> bool:
        return self.file_tokens is not None

    @property
    def format(self) -> str:
        return FOLDER if self.is_folder else self.to

    @property
    def outputs(self) -> tuple[str, ...]:
        """Files of the output without side files, or its directory."""
        return (self.output.path,) if self.is_folder else files_at(self.to, self.output.path)


@dataclass(frozen=True, slots=True)
class Material:
    request: Request
    inputs: list[InputFile]
    spec: TokenizerSpec
    reference: Reference
    selection: Selection
    fill_in: FillIn | None

    @property
    def split_markers(self) -> list[str]:
        chat = self.selection.chat
        return [] if chat is None else missing_markers(chat, self.reference)

    @property
    def keeps_rows(self) -> bool:
        """Whether parts record which lines became documents; raises `ConfigError` if the output can't use that."""
        request = self.request
        if request.options.keep_map:
            require_own_row_map(request.output)
        carries = any(one.carried for one in self.inputs)
        if carries and not request.output.is_local:
            what, hint = "exclude lists next to remote data aren't read", "Pack locally and copy the result"
            raise ConfigError(what, path=request.output.path, hint=f"{hint}, or omit --keep-excluded (keep_excluded=)")
        return request.options.keep_map or carries

    def recorded(self, *, whole: bool = False) -> dict[str, Any]:
        """Return what a side file records of the request, by which an output is recognized.

        Token files record less than their folder: `whole` adds how that is split.
        """
        request, split = self.request, self.split_markers
        options = {
            **{name.removeprefix("--"): value for name, value in self.selection.options().items()},
            "eos": self.spec.eos or NO_EOS,
            "special_tokens": request.special_tokens,
            **({"chat-split-markers": split} if split else {}),
            **self._excluded(),
            **({} if request.shuffle is None else {"shuffle": request.shuffle}),
            **({} if request.fill_in is None else request.fill_in.recorded("")),
            **({"keep_map": True} if request.options.keep_map else {}),
            **({"file_tokens": request.file_tokens, "to": request.to} if whole and request.is_folder else {}),
        }
        inputs = {one.name: one.digest for one in self.inputs}
        return {"tokenizer_digest": self.spec.digest, "inputs": inputs, "options": options}

    def plan(self, before: Plan | None) -> Plan:
        """Return the plan without its engine. It continues the plan of unfinished work, if there is one."""
        request = self.request
        total_bytes = sum(text_bytes(one.name, one.size_bytes) for one in self.inputs)
        return Plan(
            options={
                "--to": request.to,
                "--file-tokens": request.file_tokens,
                "--tokenizer": self.spec.digest,
                **self.selection.options(),
                "--eos": self.spec.eos or NO_EOS,
                "--special-tokens": request.special_tokens,
                "--engine": request.engine,
                "--overwrite": request.options.overwrite,
                **{f"--{name}": value for name, value in self._excluded().items()},
                **({} if request.shuffle is None else {"--shuffle": request.shuffle}),
                **({} if request.fill_in is None else request.fill_in.recorded("--")),
                **({"--keep-map": True} if self.keeps_rows else {}),
            },
            inputs=tuple(PlannedInput(one.name, one.size_bytes, one.digest, one.mtime_ns) for one in self.inputs),
            task_bytes=request.task_bytes or (before.task_bytes if before else default_task_bytes(total_bytes)),
            engine="",
        )

    def _excluded(self) -> dict[str, Any]:
        lists = [one.exclude_digest for one in self.inputs if one.exclude_digest is not None]
        name = "keep_excluded" if any(one.carried for one in self.inputs) else "excluded"
        return {name: lists} if lists else {}


def load_material(
    request: Request, files: Sequence[Place], statuses: Statuses, before: Plan | None = None, *, is_done: bool = False
) -> Material:
    """Load the tokenizer and describe the inputs. Facts in a plan about unchanged inputs are reused.

    Workers compute missing digests of larger files, unless `is_done`: then an output exists, and is only compared.
    """
    spec, reference = load_tokenizer(
        request.tokenizer,
        request.store,
        eos=request.eos,
        special_tokens=request.special_tokens == "default" and not request.chat,
        pretokenizer=request.pretokenizer,
    )
    selection, options = request.selection, request.options
    if request.chat:
        keep = request.keep_control_tokens
        chat = load_template(spec, request.store, request.chat_date, keep_control_tokens=keep)
        selection = replace(selection, chat=chat)
        make_reader(selection)  # an invalid template is an error before any work
    is_alone = options.executor in HERE and options.part is None and not options.no_work and not is_done
    inputs = describe_inputs(
        files,
        request.input_format,
        whole_files=selection.unit == "file",
        known={} if before is None else {one.name: one for one in before.inputs},
        statuses=statuses,
        hold_bytes=_HELD_BYTES if is_alone else 0,
        digests=is_done,
    )
    inputs = without_excluded(inputs, request.excludes, keep=options.keep_excluded, known=statuses)
    fill_in = None if request.fill_in is None else load_fill_in(request.fill_in, spec, reference)
    for one in () if is_done else inputs:
        if one.kind in TABLES:
            require_columns(one.place, one.kind, selection)
    return Material(request, inputs, spec, reference, selection, fill_in)


def find_inputs(request: Request) -> tuple[list[Place], Statuses]:
    """Return the inputs in order, and what listings of directories tell about them. None of them is the output."""
    output = request.output.path
    if not request.is_folder and request.to not in _FOLDERS and request.output.is_folder():
        hint = "Give a file name. For a folder of token files, end it with a slash or use --file-tokens"
        raise ConfigError("the output is a folder", path=output, hint=hint)
    files, statuses = name_inputs(request)
    paths = [file.path for file in files]
    require_other([*paths, *tokenizer_files(request.tokenizer)], output, *request.outputs, statuses=statuses)
    require_outside(request.given, output)
    is_table = paths[0].endswith((".parquet", ".arrow"))
    if request.input_format != "parquet" and not request.skip and not is_table:
        _require_text(files, request.input_format)
    if request.input_format in ("auto", "jsonl") and not is_table:
        _require_matching_indexes(files)
    return files, statuses


def name_inputs(request: Request) -> tuple[list[Place], Statuses]:
    paths, statuses = find_files(request.given, request.input_format, follow_links=request.follow_links)
    remote = places_of(path for path in paths if is_url(path))
    survey_all(remote)
    rest = iter(remote)
    return [next(rest) if is_url(path) else Place(request.store, path) for path in paths], statuses


def _require_text(files: Sequence[Place], input_format: InputFormat) -> None:
    """Raise an error if the first file, which stands for all of them, isn't text. The tokenizer isn't loaded for it.

    Raises:
        Corrupt: all files are empty.
        FormatError: it is binary; or, for JSONL, other text, a tokenizer, or one JSON document over several lines.
    """
    file = files[0]
    head = file.store.get(file.path, 0, _HEAD_BYTES)
    if not head and not any(one.store.size(one.path) for one in files[1:]):
        hint = "Omit it, or write it again" if len(files) == 1 else "The other inputs are empty too. Write them again"
        raise Corrupt("the file is empty", path=file.path, hint=hint)
    if head.startswith(_MAGIC_NUMBERS):
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


def _require_matching_indexes(files: Sequence[Place]) -> None:
    """Raise `Corrupt` if the index next to a file doesn't match it: one of the two was changed."""
    local = (one for one in files if one.is_local and one.path.endswith(_INDEXED))
    for _, group in itertools.groupby(local, lambda one: one.folder().path):
        some = list(group)
        names = set(some[0].folder().names()) if len(some) > 1 else None  # a folder with many files is listed once
        for one in some:
            index = Place(one.store, index_path_for(one.path))
            exists = index.exists() if names is None else index.name in names
            if exists and not is_megatrons(one.store, index.path):
                load_lines(one.store, one.path)


def _has_json_line(head: bytes, file: Place) -> bool:
    """Return whether one of the first lines is a JSON value. A single line may be incomplete, or damaged in a JSONL."""
    lines = [line for line in head.split(b"\n") if line.strip()]
    is_named = file.path.endswith(SUFFIXES["jsonl"])
    if len(lines) < 2 and (is_named or head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"", *_VALUES)):
        return True
    for line in lines[:_FIRST_LINES]:
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(json.loads(line), dict | list | str):
                return True
    return False


# --- the output


def understand_output(given: Given, to: str | None, file_tokens: int | None, store: Store) -> tuple[Place, str, bool]:
    """Return the place, the format, and whether the output is a folder of token files.

    A known suffix decides first, then a trailing slash or an existing directory.

    Raises:
        ConfigError: the kind of output isn't clear, or arguments contradict each other.
    """
    is_elsewhere = not isinstance(given, Place) and not place_of(given).is_local
    place = place_of(given, None if is_elsewhere else store)
    slash = not isinstance(given, Place) and os.fspath(given).endswith("/")
    place = Place(place.store, output_path(place.store, place.absolute))
    traits = None if to is None else get_format(to).traits  # unless it is written, the writer's error is better
    if traits is not None and traits.write and not traits.tokens and to != "mds":
        names = " | ".join(sorted({one.name for one in _token_formats()} | {"mds"}))
        raise ConfigError("not a format for packed tokens", path=place.path, found=to, expected=names)
    name = place.path.rstrip("/")
    known = next((one.name for one in _token_formats() if name.endswith(one.traits.suffixes or ("\0",))), None)
    if file_tokens is None and known is not None:
        return place, to or known, False
    if file_tokens is None and not slash and not (place.is_local and place.is_folder()):
        if to is None:
            formats = list(_token_formats())
            names = ", ".join(sorted({one.name for one in formats} | {"mds"}))
            raise ConfigError(
                "the format isn't clear from the name of the output",
                path=place.path,
                expected=", ".join(sorted({suffix for one in formats for suffix in one.traits.suffixes})),
                hint=f"End it with a slash for a folder of token files, or specify the format with to= (--to): {names}",
            )
        return place, to, False
    if file_tokens is None and to in _FOLDERS:
        return place, to, False
    to = to or "pbin"
    if file_tokens is not None and known is not None:
        what, hint = "this is the name of a single dataset, not a folder of token files", "omit file_tokens"
        raise ConfigError(what, path=place.path, hint=f"Give a folder name, or {hint} (--file-tokens)")
    if file_tokens is not None and file_tokens < 1:
        raise ConfigError("file_tokens must be positive", found=f"file_tokens={file_tokens}", expected="1 or more")
    if to not in TOKEN_FILE_SUFFIXES:
        hint = "Omit file_tokens (--file-tokens)" if to == "mds" else None
        expected = " | ".join(TOKEN_FILE_SUFFIXES)
        raise ConfigError("not a token file format", path=place.path, found=to, expected=expected, hint=hint)
    return place, to, True


def _token_formats() -> Iterator[Format]:
    """Yield token formats that can be written. Plug-ins come last, since finding them takes time."""
    names: set[str] = set()
    for some in (lambda: BUILT_IN, format_names):
        for one in (usable_format(name, []) for name in some()):
            if one is not None and one.traits.tokens and one.traits.write and one.name not in names:
                names.add(one.name)
                yield one


def create_writer(
    to: str, place: Place, spec: TokenizerSpec, recorded: Mapping[str, Any], *, overwrite: bool
) -> Writer:
    """Return the writer of a dataset, which takes parts in input order; `recorded`: for its side file."""
    options = writer_options(to, spec, recorded)
    if to == "mds":
        options["columns"] = {_COLUMN: f"ndarray:uint{8 * options.pop('token_bytes')}"}
    chosen = get_format(to)
    writer = chosen.create(place.store, place.path, options, overwrite=overwrite)
    by_document = to == "mds" or (chosen.traits.tokens and not isinstance(writer, TokenParts))
    return _ColumnParts(writer, spec.token_bytes) if by_document else writer


def writer_options(to: str, spec: TokenizerSpec, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the writer of a token format, with what the side file records."""
    options: dict[str, Any] = {"token_bytes": spec.token_bytes, "eos_id": spec.eos_id, "tokenizer": spec.name}
    options |= recorded
    options["options"] = {**options.get("options", {}), **bos_of(spec)}
    if to == "megatron":
        # Its dtype follows from the vocabulary by a rule of its own, not from the width of the parts.
        options["vocab_size"] = spec.num_ids
    return options


def bos_of(spec: TokenizerSpec) -> dict[str, int]:
    """Return the id that the tokenizer puts before every text, as side files record it."""
    before = () if spec.around is None else spec.around[0]
    return {"bos_id": before[0]} if len(before) == 1 else {}


class _ColumnParts:
    """Writer of samples with one column `tokens` that takes finished runs of tokens; see `penstock._kinds.TokenParts`.

    Memory: the current part, mapped, and that of the writer.
    """

    def __init__(self, writer: Writer, token_bytes: int) -> None:
        self._writer = writer
        self._dtype = np.dtype(f"<u{token_bytes}")

    @property
    def part_bytes(self) -> int:
        return self._dtype.itemsize

    def write_part(self, path: str, start_bytes: int, doc_lengths: IntArray, max_token_id: int | None) -> None:
        tokens = np.memmap(path, self._dtype, "r", start_bytes, (int(doc_lengths.sum()),))
        for document in np.split(np.asarray(tokens), np.cumsum(doc_lengths)[:-1]):
            self._writer.write({_COLUMN: document})

    def write(self, sample: Sample, /) -> None:
        self._writer.write(sample)

    def write_batch(self, batch: Batch, /) -> None:
        self._writer.write_batch(batch)

    def commit(self) -> Manifest:
        return self._writer.commit()

    def abort(self) -> None:
        self._writer.abort()

    def __enter__(self) -> Self:
        self._writer.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Any:
        return self._writer.__exit__(kind, error, trace)
