"""Who encodes in this run: gigatoken where the tokenizer's own library confirms it, else that library itself.

A bounded sample of the text in the inputs: what the engines are compared on before the work begins.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from penstock._secrets import logger
from penstock.abc import Executor
from penstock.engine.parts import Probe
from penstock.engine.plan import Plan
from penstock.errors import ConfigError, PrepareError
from penstock.formats.jsonl.decompress import cut_stream
from penstock.prepare.tokens.chat.mask import find_mask_difference
from penstock.prepare.tokens.engines import (
    Encoded,
    EngineChoice,
    EngineName,
    Reference,
    TokenizersEngine,
    encode_each,
    find_difference,
    load_engine,
    load_reference,
    odd_texts,
    try_gigatoken,
)
from penstock.prepare.tokens.inputs import TABLES, InputFile
from penstock.prepare.tokens.reading import Reader, Selection, count_rows, make_reader, table_lines
from penstock.prepare.tokens.request import Material, Request, split_markers
from penstock.prepare.tokens.tasks import text_bytes
from penstock.prepare.tokens.tokenizer import TokenizerSpec
from penstock.prepare.tokens.vocabulary import load_token_table

_log = logger()


def choose_engine(
    asked: EngineChoice,
    spec: TokenizerSpec,
    reference: Reference,
    texts: Sequence[bytes],
    executor: Executor,
) -> tuple[EngineName, str | None]:
    """`(engine, why not gigatoken)`, after both encoded a sample of the input and odd texts.

    Args:
        asked: the user's choice; `"tokenizers"` is the tokenizer's own library; `"auto"` falls back to it and says so.
        spec: the tokenizer.
        reference: the same, loaded.
        texts: UTF-8 texts of the input.
        executor: gigatoken is loaded in its first worker, and so for all.

    Raises:
        ConfigError: gigatoken was asked for by name, and can't.
    """
    if asked == "tokenizers":
        return spec.kind, None
    sample = [*texts, *odd_texts(reference.added_tokens())]
    begin = getattr(executor, "begin", None)  # where there is no other worker, one after the other
    task = functools.partial(try_gigatoken, spec)
    found: Callable[[], Encoded | str] = begin(task, sample) if begin else lambda: next(executor.map(task, [sample]))
    expected, faults = encode_each(reference, sample)
    reason = _objection(sample, found(), expected)
    if faults and reason is None:
        reason = "the tokenizer's own library can't encode every text"
    if reason is None:
        return "gigatoken", None
    if asked == "gigatoken":
        raise ConfigError(
            f"gigatoken can't be used with this tokenizer: {reason}",
            path=spec.path,
            hint=f"Use --engine auto, which falls back to {spec.kind}",
        )
    _log.warning("%s: encoding with %s, which is slower: %s", spec.path, spec.kind, reason)
    return spec.kind, reason


def check_probes(reference: Reference, probes: Sequence[Probe], inputs: Sequence[InputFile]) -> None:
    """Raise `PrepareError` where the reference gives texts that parts remember other ids."""
    difference = disagreement(reference, probes)
    if difference is not None:
        raise disagreed(inputs[probes[0].file].path, difference)


def disagreement(reference: Reference, probes: Sequence[Probe]) -> str | None:
    """Where the reference gives texts that parts remember other ids; None where it gives the same."""
    if not probes:
        return None
    texts = [probe.text.encode() for probe in probes]
    lengths = np.array([len(probe.ids) for probe in probes], np.int64)
    ids = np.array([token for probe in probes for token in probe.ids], np.uint32)
    difference = find_difference(texts, (ids, lengths), encode_each(reference, texts)[0])
    return None if difference is None else str(difference)


def disagreed(path: str, difference: str) -> PrepareError:
    """The error for an input on which the engines disagree."""
    return PrepareError(
        f"gigatoken and the tokenizer's own library disagree on a text in this input, {difference}",
        path=path,
        hint="Encode everything with the reference: --engine tokenizers --restart",
    )


def _objection(sample: Sequence[bytes], found: Encoded | str, expected: Encoded) -> str | None:
    if isinstance(found, str):
        return f"gigatoken can't load it ({found})"
    difference = find_difference(sample, found, expected)
    return None if difference is None else f"gigatoken differs {difference}"


_PLACES = 64
_WINDOW_BYTES = 1 << 16
_MOST_STREAMS = 8
_LOOKED_AT_BYTES = 1 << 18


def sample_texts(inputs: Sequence[InputFile], field: Selection | str, sample_bytes: int) -> list[bytes]:
    """UTF-8 texts of at most `sample_bytes` in all, from places spread evenly over plain files.

    Of compressed files and of tables the beginnings of at most 8 are taken. Where no whole line lies in 64 KiB,
    the raw bytes there stand for its text. Places of small inputs overlap: each text is returned once.
    Memory: 4 MiB, and 512 rows of a table.
    """
    selection = Selection((field,)) if isinstance(field, str) else field
    windows = [
        *_plain_windows(inputs),
        *_stream_windows(inputs),
        *_table_windows(inputs, selection),
    ]
    if not windows:
        return []
    # Lines of conversations stand for what a template makes of them: it may take long, or fail.
    lines = selection if selection.chat is None else Selection(unit="line")
    reader, share_bytes = make_reader(lines), max(1, sample_bytes // len(windows))
    return list(dict.fromkeys(text for window in windows for text in _texts(reader, window, share_bytes)))


def estimate(
    inputs: Sequence[InputFile],
    selection: Selection,
    encode: Callable[[Sequence[bytes]], Encoded],
    *,
    with_eos: bool,
) -> tuple[int, int]:
    """Estimate how many documents and tokens the inputs hold, from lines of the same places.

    The EOS token of each document is counted if `with_eos`.
    Where no line ends in 64 KiB, the raw bytes there stand for its text.
    """
    tables = [one for one in inputs if one.kind in TABLES]
    if tables and len(tables) < len(inputs):
        lines = [one for one in inputs if one.kind not in TABLES]
        both = (estimate(some, selection, encode, with_eos=with_eos) for some in (tables, lines))
        (rows, row_tokens), (documents, tokens) = both
        return rows + documents, row_tokens + tokens
    reader = make_reader(selection)
    windows = [*_plain_windows(inputs), *_stream_windows(inputs), *_table_windows(inputs, selection)]
    share_bytes = _LOOKED_AT_BYTES // max(1, len(windows))
    seen_bytes, documents, encoded_bytes, tokens = 0, 0, 0, 0
    for at_line, data in windows:
        if b"\n" not in data and (len(data) >= _WINDOW_BYTES or not at_line):
            if len(data) >= _WINDOW_BYTES:  # else the rest of a file's last line
                seen_bytes += len(data)
                encoded_bytes += min(share_bytes, len(data))
                tokens += int(encode([data[:share_bytes].decode(errors="replace").encode()])[1].sum())
            continue
        start = 0 if at_line else data.find(b"\n") + 1
        stop = data.find(b"\n", start + share_bytes) + 1 or data.rfind(b"\n") + 1 or len(data)
        texts = reader.read(data[start:stop]).texts if stop > start else []
        seen_bytes += max(0, stop - start)
        encoded_bytes += max(0, stop - start)
        documents += len(texts)
        tokens += int(encode(texts)[1].sum()) if texts else 0
    rows = sum(count_rows(one.place, one.kind) for one in inputs if one.kind in TABLES)
    if rows:
        return rows, rows * (tokens + with_eos * documents) // max(1, documents)
    lines_bytes = sum(text_bytes(one.name, one.size_bytes) for one in inputs)
    whole = sum(one.kind == "whole" for one in inputs)
    found = whole or round(documents * lines_bytes / max(1, seen_bytes))
    return found, round(tokens * lines_bytes / max(1, encoded_bytes)) + with_eos * found


def _plain_windows(inputs: Sequence[InputFile]) -> Iterator[tuple[bool, bytes]]:
    """`(begins at a line, bytes)` at each place."""
    plain = [one for one in inputs if one.compression == "none" and one.size_bytes and one.kind not in TABLES]
    total_bytes = sum(one.size_bytes for one in plain)
    places = sorted({total_bytes * place // _PLACES for place in range(_PLACES)})
    before_bytes = 0
    for one in plain:
        for place in places:
            start_bytes = place - before_bytes
            if 0 <= start_bytes < one.size_bytes:
                yield start_bytes == 0, one.source.store.get(one.path, start_bytes, _WINDOW_BYTES)
        before_bytes += one.size_bytes


def _stream_windows(inputs: Sequence[InputFile]) -> Iterator[tuple[bool, bytes]]:
    packed = [one for one in inputs if one.compression != "none"]
    for one in packed[:: max(1, len(packed) // _MOST_STREAMS)][:_MOST_STREAMS]:
        _, data, _ = next(cut_stream(one.source, one.compression, _WINDOW_BYTES))
        yield True, data[: _WINDOW_BYTES * _PLACES // _MOST_STREAMS]


def _table_windows(inputs: Sequence[InputFile], selection: Selection) -> Iterator[tuple[bool, bytes]]:
    files = [one for one in inputs if one.kind in TABLES]
    for one in files[:: max(1, len(files) // _MOST_STREAMS)][:_MOST_STREAMS]:
        with contextlib.closing(table_lines(one.place, one.kind, 0, one.size_bytes, selection)) as lines:
            for _, data in itertools.islice(lines, 1):
                yield True, data[: _WINDOW_BYTES * _PLACES // _MOST_STREAMS]


def _texts(reader: Reader, window: tuple[bool, bytes], share_bytes: int) -> list[bytes]:
    at_line, data = window
    whole = data[0 if at_line else data.find(b"\n") + 1 : data.rfind(b"\n") + 1]
    found = reader.read(whole).texts if whole else []
    if not found:
        found = [data.decode(errors="replace").encode()]
    texts: list[bytes] = []
    for text in found:
        if share_bytes <= 0:
            break
        texts.append(text[:share_bytes].decode(errors="ignore").encode())
        share_bytes -= len(text)
    return texts


def differs(spec: TokenizerSpec, probes: Sequence[Probe]) -> tuple[int, str] | None:
    """The input of a text that parts remember, of which the tokenizer's own library gives other ids, and where."""
    for probe in probes:
        difference = disagreement(load_reference(spec), [probe])
        if difference is not None:
            return probe.file, difference
    return None


def choose(
    request: Request, material: Material, before: Plan | None, executor: Executor
) -> tuple[EngineName, str | None]:
    """The engine, and why it is not gigatoken; that of work that is there, unless it is gigatoken's."""
    if split := split_markers(material):
        what = "%s: %s in the chat template aren't single tokens of this tokenizer. Add them to the tokenizer"
        _log.warning(what, material.spec.path, ", ".join(split))
    spec, is_chat = material.spec, material.selection.chat is not None
    if is_chat and request.engine != "tokenizers" and load_token_table(spec).text_bytes is None:
        return _without_gigatoken(request, spec, "it can't map tokens to characters")
    wanted: EngineChoice = "tokenizers" if before is not None and before.engine != "gigatoken" else request.engine
    texts = sample_texts(material.inputs, material.selection, request.oracle_bytes)
    name, note = choose_engine(wanted, spec, material.reference, texts, executor)
    if is_chat and name == "gigatoken" and isinstance(material.reference, TokenizersEngine):
        engine = load_engine("gigatoken", spec)
        differs = find_mask_difference(engine, load_token_table(spec), material.reference, texts)
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
