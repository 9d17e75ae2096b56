"""A bounded sample of the text in the inputs: what the engines are compared on before the work begins."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence

from penstock.formats.jsonl.decompress import cut_stream
from penstock.prepare.tokens.engines import Encoded
from penstock.prepare.tokens.inputs import TABLES, InputFile
from penstock.prepare.tokens.select import Reader, Selection, make_reader
from penstock.prepare.tokens.tables import count_rows, table_lines
from penstock.prepare.tokens.tasks import text_bytes

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
