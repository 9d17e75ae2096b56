"""Choice of the engine: gigatoken if it agrees with the tokenizer's own library on a sample, else that library."""

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
    odd_texts,
    try_gigatoken,
)
from penstock.prepare.tokens.inputs import TABLES, InputFile, text_bytes
from penstock.prepare.tokens.reading import Reader, Selection, count_rows, make_reader, table_lines
from penstock.prepare.tokens.request import Material
from penstock.prepare.tokens.tokenizer import TokenizerSpec
from penstock.prepare.tokens.vocabulary import load_token_table

_log = logger()
_PLACES = 64
_WINDOW_BYTES = 1 << 16
_MOST_STREAMS = 8
_ESTIMATED_BYTES = 1 << 18

_Window = tuple[bool, bytes]
"""Whether it begins at a line, and its bytes."""


def choose(material: Material, before: Plan | None, executor: Executor) -> tuple[EngineName, str | None]:
    """Return the engine, and why it isn't gigatoken. Unfinished work of another engine is continued with that engine.

    Raises:
        ConfigError: gigatoken was asked for by name and can't be used.
    """
    request, spec, reference, selection = material.request, material.spec, material.reference, material.selection
    if split := material.split_markers:
        what = "%s: %s in the chat template aren't single tokens of this tokenizer. Add them to the tokenizer"
        _log.warning(what, spec.path, ", ".join(split))
    is_chat, differs = selection.chat is not None, None
    if is_chat and request.engine != "tokenizers" and load_token_table(spec).text_bytes is None:
        differs = "it can't map tokens to characters"
    else:
        wanted: EngineChoice = "tokenizers" if before is not None and before.engine != "gigatoken" else request.engine
        texts = sample_texts(material.inputs, selection, request.oracle_bytes)
        name, note = choose_engine(wanted, spec, reference, texts, executor)
        if is_chat and name == "gigatoken" and isinstance(reference, TokenizersEngine):
            differs = find_mask_difference(load_engine(name, spec), load_token_table(spec), reference, texts)
        if differs is None:
            return name, note
    if request.engine == "gigatoken":
        what, hint = "gigatoken can't be used for conversations with this tokenizer", "Omit --engine (engine=)"
        raise ConfigError(f"{what}: {differs}", path=spec.path, expected=spec.kind, hint=hint)
    return spec.kind, differs


def choose_engine(
    wanted: EngineChoice, spec: TokenizerSpec, reference: Reference, texts: Sequence[bytes], executor: Executor
) -> tuple[EngineName, str | None]:
    """Compare both engines on texts of the input and on unusual texts; return the engine, and why not gigatoken.

    The first worker of `executor` loads gigatoken, and with it all workers.
    """
    if wanted == "tokenizers":
        return spec.kind, None
    sample = [*texts, *odd_texts(reference.added_tokens())]
    begin = getattr(executor, "begin", None)  # without other workers, one after the other
    task = functools.partial(try_gigatoken, spec)
    result: Callable[[], Encoded | str] = begin(task, sample) if begin else lambda: next(executor.map(task, [sample]))
    expected, faults = encode_each(reference, sample)
    encoded, reason = result(), None
    if isinstance(encoded, str):
        reason = f"gigatoken can't load it ({encoded})"
    elif (difference := find_difference(sample, encoded, expected)) is not None:
        reason = f"gigatoken differs {difference}"
    elif faults:
        reason = "the tokenizer's own library can't encode every text"
    if reason is None:
        return "gigatoken", None
    if wanted == "gigatoken":
        what, hint = "gigatoken can't be used with this tokenizer", "Use --engine auto, which falls back to"
        raise ConfigError(f"{what}: {reason}", path=spec.path, hint=f"{hint} {spec.kind}")
    _log.warning("%s: encoding with %s, which is slower: %s", spec.path, spec.kind, reason)
    return spec.kind, reason


# --- texts that parts record, with their ids


def find_disagreement(reference: Reference, probes: Sequence[Probe]) -> tuple[int, str] | None:
    """Return the first input of which the reference encodes a text differently, and where."""
    for probe in probes:
        texts, found = [probe.text.encode()], (np.array(probe.ids, np.uint32), np.array([len(probe.ids)], np.int64))
        difference = find_difference(texts, found, encode_each(reference, texts)[0])
        if difference is not None:
            return probe.file, str(difference)
    return None


def disagreed(path: str, difference: str) -> PrepareError:
    return PrepareError(
        f"gigatoken and the tokenizer's own library disagree on a text in this input, {difference}",
        path=path,
        hint="Encode everything with the reference: --engine tokenizers --restart",
    )


# --- a sample of the inputs


def sample_texts(inputs: Sequence[InputFile], selection: Selection, sample_bytes: int) -> list[bytes]:
    """Return different UTF-8 texts of at most `sample_bytes` in all, from places spread evenly over plain files.

    Of compressed files and of tables, the beginnings of at most 8 are read. If there is no whole line in 64 KiB, the
    raw bytes stand for its text. Memory: 4 MiB, and 512 rows of a table.
    """
    windows = _windows(inputs, selection)
    if not windows:
        return []
    # Conversations aren't rendered, which can be slow or fail.
    reader = make_reader(selection if selection.chat is None else Selection(unit="line"))
    share_bytes = max(1, sample_bytes // len(windows))
    return list(dict.fromkeys(text for window in windows for text in _texts(reader, window, share_bytes)))


def estimate(
    inputs: Sequence[InputFile],
    selection: Selection,
    encode: Callable[[Sequence[bytes]], Encoded],
    *,
    with_eos: bool,
) -> tuple[int, int]:
    """Estimate how many documents and tokens the inputs contain, from lines of the same places."""
    tables = [one for one in inputs if one.kind in TABLES]
    if tables and len(tables) < len(inputs):
        lines = [one for one in inputs if one.kind not in TABLES]
        both = (estimate(some, selection, encode, with_eos=with_eos) for some in (tables, lines))
        (rows, row_tokens), (documents, tokens) = both
        return rows + documents, row_tokens + tokens
    reader, windows = make_reader(selection), _windows(inputs, selection)
    share_bytes = _ESTIMATED_BYTES // max(1, len(windows))
    read_bytes, documents, encoded_bytes, tokens = 0, 0, 0, 0
    for at_line, data in windows:
        if b"\n" not in data and (len(data) >= _WINDOW_BYTES or not at_line):
            if len(data) >= _WINDOW_BYTES:  # else the rest of a file's last line
                read_bytes += len(data)
                encoded_bytes += min(share_bytes, len(data))
                tokens += int(encode([data[:share_bytes].decode(errors="replace").encode()])[1].sum())
            continue
        start = 0 if at_line else data.find(b"\n") + 1
        stop = data.find(b"\n", start + share_bytes) + 1 or data.rfind(b"\n") + 1 or len(data)
        texts = reader.read(data[start:stop]).texts if stop > start else []
        read_bytes += max(0, stop - start)
        encoded_bytes += max(0, stop - start)
        documents += len(texts)
        tokens += int(encode(texts)[1].sum()) if texts else 0
    rows = sum(count_rows(one.place, one.kind) for one in tables)
    if rows:
        return rows, rows * (tokens + with_eos * documents) // max(1, documents)
    lines_bytes = sum(text_bytes(one.name, one.size_bytes) for one in inputs)
    whole = sum(one.kind == "whole" for one in inputs)
    count = whole or round(documents * lines_bytes / max(1, read_bytes))
    return count, round(tokens * lines_bytes / max(1, encoded_bytes)) + with_eos * count


def _windows(inputs: Sequence[InputFile], selection: Selection) -> list[_Window]:
    return [*_plain_windows(inputs), *_beginnings(inputs, selection)]


def _plain_windows(inputs: Sequence[InputFile]) -> Iterator[_Window]:
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


def _beginnings(inputs: Sequence[InputFile], selection: Selection) -> Iterator[_Window]:
    packed = [one for one in inputs if one.compression != "none"]
    tables = [one for one in inputs if one.kind in TABLES]
    most_bytes = _WINDOW_BYTES * _PLACES // _MOST_STREAMS
    for files in (packed, tables):
        for one in files[:: max(1, len(files) // _MOST_STREAMS)][:_MOST_STREAMS]:
            if files is packed:
                _, data, _ = next(cut_stream(one.source, one.compression, _WINDOW_BYTES))
                yield True, data[:most_bytes]
                continue
            with contextlib.closing(table_lines(one.place, one.kind, 0, one.size_bytes, selection)) as lines:
                for _, data in itertools.islice(lines, 1):
                    yield True, data[:most_bytes]


def _texts(reader: Reader, window: _Window, share_bytes: int) -> Iterator[bytes]:
    """Yield the first texts of a window. Only as many lines are read as are needed for `share_bytes`."""
    at_line, data = window
    start, stop = 0 if at_line else data.find(b"\n") + 1, data.rfind(b"\n") + 1
    left_bytes, has_text = share_bytes, False
    while start < stop and left_bytes > 0:
        end = data.find(b"\n", start + share_bytes) + 1 or stop
        for text in reader.read(data[start:end]).texts:
            has_text = True
            if left_bytes > 0:
                yield text[:left_bytes].decode(errors="ignore").encode()
            left_bytes -= len(text)
        start = end
    if not has_text:
        yield data.decode(errors="replace").encode()[:share_bytes].decode(errors="ignore").encode()
