"""Documents of inputs: the selected text of each line, and rows of tables as lines of JSON.

A jq pattern that is a plain path, such as `.text`, `.a.b`, `.["x"]` or `.a[0]`, is read like a field, without jq.
Others need the `jq` package, which is about ten times slower. Its first output is used, as in Modalities.

Each row of a Parquet or Arrow file becomes a line of JSON with the selected columns, so fields and jq patterns mean the
same as for JSONL. A row group or record batch is read at once.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from penstock._optional import require
from penstock.errors import ConfigError, Corrupt
from penstock.formats.tables.arrow import EXTRA, arrow_faults, to_rows, too_large
from penstock.formats.tables.hf import HfBlocks, load_blocks
from penstock.formats.tables.parquet import GroupSizes, footer_extents
from penstock.prepare.tokens.chat.mask import ChatEos
from penstock.prepare.tokens.chat.rows import (
    BESIDE,
    KEYS,
    MESSAGES,
    ChatFormat,
    ChatReader,
    NullFields,
    looks_like_row_mark,
)
from penstock.prepare.tokens.chat.template import ChatTemplate, UnusableError
from penstock.prepare.tokens.documents import (
    KINDS,
    Fault,
    KeyPath,
    TextReader,
    Texts,
    encode_text,
    json_fault,
    parse_field,
    read_lines,
)
from penstock.prepare.tokens.inputs import Kind
from penstock.store.place import Place

Unit = Literal["json", "line", "file"]

DEFAULT_JOIN = "\n\n"

_STEP = re.compile(r'\.(?P<name>[A-Za-z_][A-Za-z0-9_]*)|\.?\["(?P<key>[^"\\]*)"\]|\.?\[(?P<index>-?\d{1,9})\]')


class Reader(Protocol):
    def read(self, block: bytes) -> Texts: ...


@dataclass(frozen=True, slots=True)
class Selection:
    r"""Part of an input that is a document; see `select`.

    `fields` are as for `parse_field`; `jq` is a program instead of fields. The unit is `"json"` lines; `"line"`, each
    line as it is; or `"file"`, a whole file. `chat` renders the messages of the only field.
    """

    fields: tuple[str, ...] = ("text",)
    join: str = DEFAULT_JOIN
    jq: str | None = None
    unit: Unit = "json"
    chat: ChatTemplate | None = None
    chat_eos: ChatEos = "auto"
    chat_format: ChatFormat = "auto"

    def options(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, by their names on the command line."""
        found: dict[str, Any] = {}
        if self.unit != "json":
            found["--text-per"] = self.unit
        elif self.jq is not None:
            found["--jq"] = self.jq
        else:
            found["--field"] = self.fields[0] if len(self.fields) == 1 else list(self.fields)
            if len(self.fields) > 1 and self.join != DEFAULT_JOIN:
                found["--join"] = self.join
        if self.chat is not None:
            found["--chat"] = self.chat.digest
            found["--chat-eos"] = self.chat_eos
            if self.chat_format != "auto":
                found["--chat-format"] = self.chat_format
        return found

    def top_keys(self) -> list[str] | None:
        """Return the keys of a line that are read; None if it can be any."""
        if self.jq is None:
            return list(dict.fromkeys(parse_field(field)[0] for field in self.fields))
        path = compile_path(self.jq)
        return [path[0]] if path is not None and isinstance(path[0], str) else None

    def columns(self, names: Sequence[str]) -> list[str] | None:
        keys = self.top_keys()
        if keys is None or self.chat is None:
            return keys
        more = KEYS if self.fields == (MESSAGES,) else BESIDE
        found = [*dict.fromkeys([*keys, *more, *filter(looks_like_row_mark, names)])]
        required = () if self.fields == (MESSAGES,) else keys
        return [*required, *(key for key in found if key in names and key not in required)]

    def has_row(self, names: Sequence[str]) -> bool:
        """Return whether a table with columns of these names has conversations of another shape than `messages`."""
        shapes = (("conversations",), ("conversation",), ("instruction", "output"), ("prompt", "completion"))
        has_shape = any(all(key in names for key in keys) for keys in shapes)
        return self.chat is not None and self.fields == (MESSAGES,) and has_shape


def select(
    field: str | Sequence[str] | None = None,
    join: str = DEFAULT_JOIN,
    jq: str | None = None,
    unit: Unit = "json",
    *,
    chat: bool = False,
) -> Selection:
    """Return a checked `Selection`; the default field is `"text"`, or `"messages"` for conversations.

    Raises:
        ConfigError: a field or program is invalid, or more than one thing is selected.
        MissingExtra: the program needs the `jq` package, which isn't installed.
    """
    if (field is not None) + (jq is not None) + (unit != "json") > 1:
        raise ConfigError(
            "a field, a jq pattern and plain text can't be combined", hint="Use one of --field, --jq, --text-per"
        )
    fields = (MESSAGES if chat else "text",) if field is None else (field,) if isinstance(field, str) else tuple(field)
    if not fields:
        raise ConfigError("no field is specified", hint="Specify one with field= (--field)")
    for one in fields:
        parse_field(one)
    if chat and (unit != "json" or len(fields) > 1 or join != DEFAULT_JOIN):
        what, hint = "conversations are read from one field of JSON", "Omit --join and plain text"
        raise ConfigError(what, found=", ".join(fields), expected="one field with messages", hint=hint)
    if jq is not None and (chat or compile_path(jq) is None):
        _compile(jq)
    return Selection(fields, join, jq, unit)


def make_reader(selection: Selection, *, stop_at_fault: bool = False) -> Reader:
    """Return the reader of a selection. It may stop at an invalid line, if the caller does."""
    jq = selection.jq
    if selection.unit == "line":
        return LineReader(_plain_line)
    if selection.unit == "file":
        return FileReader()
    if selection.chat is not None:
        path = parse_field(selection.fields[0])
        rows = None if jq is None else functools.partial(_conversation_row, JqProgram(jq))
        return ChatReader(path, selection.chat, selection.chat_format, stop_at_fault=stop_at_fault, row_of=rows)
    if jq is None:
        return TextReader(*selection.fields, join=selection.join)
    path = compile_path(jq)
    return LineReader(JqProgram(jq).text_of) if path is None else TextReader(paths=(path,))


def compile_path(pattern: str) -> KeyPath | None:
    """Return the steps of a jq pattern that is a plain path: `.a["b c"][0]` → `("a", "b c", 0)`; else None."""
    pattern = pattern.strip()
    steps: list[str | int] = []
    place = 0
    while place < len(pattern):
        found = _STEP.match(pattern, place)
        if found is None or (place == 0 and not pattern.startswith(".")):
            return None
        name = found["name"] if found["name"] is not None else found["key"]
        steps.append(int(found["index"]) if name is None else name)
        place = found.end()
    return tuple(steps) or None


class JqProgram:
    """jq program for lines, which must be JSON by Python's rules and by jq's: jq rejects lone surrogates, for example.

    Memory: the values that jq builds of a line.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._program = _compile(pattern)

    def first(self, line: bytes) -> Any:
        fault = json_fault(line)
        if fault is not None:
            return Fault(fault)
        try:
            return self._program.input_text(line.decode("utf-8-sig")).first()
        except StopIteration:
            return Fault(f"jq {self.pattern!r} returns nothing")
        except (ValueError, RecursionError) as error:
            return Fault(f"jq {self.pattern!r} fails: {error}")

    def text_of(self, line: bytes) -> bytes | str:
        found = self.first(line)
        if isinstance(found, Fault):
            return str(found)
        if not isinstance(found, str):
            return f"jq {self.pattern!r} returns {KINDS[type(found)]}, not text"
        return encode_text(found, f"the result of jq {self.pattern!r}")


def _conversation_row(program: JqProgram, line: bytes) -> Any:
    """Return the row that a jq program makes of a line: an object, or a list, which is its messages."""
    found = program.first(line)
    if isinstance(found, Fault):
        raise UnusableError(str(found))
    if not isinstance(found, dict | list):
        raise UnusableError(f"jq {program.pattern!r} returns {KINDS[type(found)]}, not a row or a list of messages")
    return {MESSAGES: found} if isinstance(found, list) else found


@dataclass(frozen=True, slots=True)
class LineReader:
    """Reads line by line; `text_of` is as for `read_lines`."""

    text_of: Callable[[bytes], bytes | str | None]

    def read(self, block: bytes) -> Texts:
        return read_lines(block, self.text_of)


class FileReader:
    """Reads a block of plain text as one document, without a byte order mark."""

    def read(self, block: bytes) -> Texts:
        found = _utf8_or_fault(block.removeprefix(codecs.BOM_UTF8))
        if isinstance(found, str):
            return Texts([], [], {0: found}, [block])
        return Texts([found], None, {}, [block])


def _plain_line(line: bytes) -> bytes | str | None:
    r"""Return a line of plain text without byte order mark and the `\r` of a `\r\n`; None for a blank line."""
    line = line.removeprefix(codecs.BOM_UTF8).removesuffix(b"\r")
    return _utf8_or_fault(line) if line.strip() else None


def _utf8_or_fault(data: bytes) -> bytes | str:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8, byte {error.start + 1}"
    return data


@functools.lru_cache(maxsize=8)
def _compile(pattern: str) -> Any:
    try:
        return require("jq", extra="jq").compile(pattern)
    except ValueError as error:
        raise ConfigError(
            "not a valid jq program", found=repr(pattern), expected="such as .text or .title + .body", hint=str(error)
        ) from error


# --- tables

_BATCH_ROWS = 512
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Table:
    """An open table file, whose groups (row groups or record batches) are numbered from 0.

    Attributes:
        begins: returns the offset of each group.
        batches: yields the rows of a group, with these columns.
    """

    schema: Any
    num_rows: int
    begins: Callable[[], list[int]]
    batches: Callable[[int, list[str]], Iterable[Any]]


def table_lines(
    source: Place,
    kind: Kind,
    start_bytes: int,
    stop_bytes: int,
    selection: Selection,
    nulls: NullFields | None = None,
) -> Generator[tuple[int, bytes]]:
    """Yield `(offset, lines)` of the groups that begin in a range: JSON of 512 rows at a time.

    Columns are those of the selection; all but binary ones if it can read any. For conversations, null fields of
    structs are dropped and noted in `nulls`. Offsets are those of the group, plus that in its lines. Memory: a few
    times 512 rows, and a page of a Parquet column; record batches of Arrow are mapped.

    Raises:
        Corrupt: the file is damaged.
        Unsupported: a column has a value that Python's types can't hold.
    """
    nulls = nulls or NullFields()
    with open_table(source, kind) as table:
        keys = selection.columns(table.schema.names)
        if keys is None:
            keys = [field.name for field in table.schema if "binary" not in str(field.type)]
        encode = msgspec.json.Encoder().encode_lines
        for group, offset_bytes in groups_in(table, source, start_bytes, stop_bytes):
            for batch in table.batches(group, keys):
                rows = to_rows(batch, source.path)
                lines = encode(rows if selection.chat is None else list(map(nulls.drop, rows)))
                yield offset_bytes, lines
                offset_bytes += len(lines)


def require_columns(source: Place, kind: Kind, selection: Selection) -> None:
    keys = selection.top_keys()
    if keys is None:
        return
    with open_table(source, kind) as table:
        schema = table.schema
        for key in () if selection.has_row(schema.names) else keys:
            if key not in schema.names:
                names = ", ".join(schema.names[:_SHOWN]) + (", …" if len(schema.names) > _SHOWN else "")
                raise ConfigError(
                    f"no column {key!r}", path=source.path, expected=names, hint="Specify one with field= (--field)"
                )
            if "binary" in str(schema.field(key).type):
                raise ConfigError(
                    f"the column {key!r} is not text",
                    path=source.path,
                    found=str(schema.field(key).type),
                    expected="string",
                )


def count_rows(source: Place, kind: Kind) -> int:
    """Return the number of rows, from the footer or the headers of record batches."""
    with open_table(source, kind) as table:
        return table.num_rows


def groups_in(table: Table, source: Place, start_bytes: int, stop_bytes: int) -> list[tuple[int, int]]:
    """Return `(number, first byte)` of the groups that begin in a range of a file.

    A group before its predecessor, or beyond the file, counts as beginning with the one before. So ranges that cover
    the file contain every group once, in order.
    """
    last_bytes = source.store.size(source.path) - 1
    begins = enumerate(itertools.accumulate((min(start, last_bytes) for start in table.begins()), max))
    return [(number, begin) for number, begin in begins if start_bytes <= max(0, begin) < stop_bytes]


@contextlib.contextmanager
def open_table(source: Place, kind: Kind) -> Generator[Table]:
    """Open a file for the block, in which errors of pyarrow become `Corrupt`."""
    store, path = source.store, source.path
    if kind == "arrow":
        with arrow_faults(path):
            yield _open_arrow(load_blocks(store, [path], mapped=True), store.size(path))
        return
    pyarrow, parquet = require("pyarrow", extra=EXTRA), require("pyarrow.parquet", extra=EXTRA)
    try:
        # A remote file is read from its copy in the cache.
        with parquet.ParquetFile(store.local_copy(path) if store.keeps_copies else path) as file:
            sizes = GroupSizes(store, path)

            def batches(group: int, keys: list[str]) -> Iterable[Any]:
                rows = min(_BATCH_ROWS, sizes.batch_rows(group, keys) or _BATCH_ROWS)
                return file.iter_batches(batch_size=rows, row_groups=[group], columns=keys, use_threads=False)

            def begins() -> list[int]:
                return [first_bytes for first_bytes, _ in footer_extents(store, path)]

            yield Table(file.schema_arrow, file.metadata.num_rows, begins, batches)
    except MemoryError as error:
        raise too_large(path, error) from error
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        found = str(error).partition("\n")[0]
        raise Corrupt("the Parquet file is damaged", path=path, found=found, hint="Copy it again") from error


def _open_arrow(blocks: HfBlocks, size_bytes: int) -> Table:
    def begins() -> list[int]:
        # Offsets of batches of Arrow's file format are unknown: they count as equally long.
        found = enumerate(blocks.batches)
        count = len(blocks.batches)
        return [start if length >= 0 else number * size_bytes // count for number, (_, start, length) in found]

    def batches(group: int, keys: list[str]) -> Iterable[Any]:
        return blocks.read(group, keys).to_batches(max_chunksize=_BATCH_ROWS)

    return Table(blocks.schema, int(blocks.starts[-1]), begins, batches)
