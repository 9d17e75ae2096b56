"""Which text of a line is the document: one field, several joined, what a jq program gives, or the line itself.

A jq pattern that is a plain path, such as `.text`, `.a.b`, `.["x"]` or `.a[0]`, is read like a field, without jq.
All others go through the `jq` package, which is about ten times slower; its first output counts, as in Modalities.

Parquet and Arrow files as input: each row becomes a line of JSON, with the columns that are asked for as its keys.

So fields, joined fields and jq patterns mean the same as for JSONL. A row group, or a record batch, is read as a whole.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import itertools
import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from penstock._optional import require
from penstock.errors import ConfigError, Corrupt
from penstock.formats.tables.arrow import EXTRA, arrow_faults, to_rows, too_large
from penstock.formats.tables.hf import HfBlocks, load_blocks
from penstock.formats.tables.parquet import GroupSizes, footer_extents
from penstock.prepare.tokens.chat.mask import ChatEos
from penstock.prepare.tokens.chat.render import ChatTemplate, UnusableError
from penstock.prepare.tokens.chat.rows import (
    BESIDE,
    KEYS,
    MESSAGES,
    ChatFormat,
    ChatReader,
    NullFields,
    looks_like_row_mark,
)
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
from penstock.store.powers import CopyingStore

Unit = Literal["json", "line", "file"]

DEFAULT_JOIN = "\n\n"

_STEP = re.compile(r'\.(?P<name>[A-Za-z_][A-Za-z0-9_]*)|\.?\["(?P<key>[^"\\]*)"\]|\.?\[(?P<index>-?\d{1,9})\]')


class Reader(Protocol):
    """Blocks of an input → texts."""

    def read(self, block: bytes) -> Texts:
        """Texts of a run of whole lines."""
        ...


@dataclass(frozen=True, slots=True)
class Selection:
    r"""What of an input is a document; see `select`.

    Attributes:
        fields: as `parse_field` takes them; joined by `join` where there are several.
        join: text between two fields.
        jq: a jq program instead of fields.
        unit: `"json"` lines; `"line"`, each line as it is; `"file"`, all of a file.
        chat: makes texts of the messages that the one field holds.
        chat_eos: which conversations get an EOS token.
        chat_format: the shape of rows that are conversations.
    """

    fields: tuple[str, ...] = ("text",)
    join: str = DEFAULT_JOIN
    jq: str | None = None
    unit: Unit = "json"
    chat: ChatTemplate | None = None
    chat_eos: ChatEos = "auto"
    chat_format: ChatFormat = "auto"

    def options(self) -> dict[str, Any]:
        """What it was made from, by the names of the command line; defaults are left out."""
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
        """The keys of a line that are looked at; None where it may be any."""
        if self.jq is None:
            return list(dict.fromkeys(parse_field(field)[0] for field in self.fields))
        path = compile_path(self.jq)
        return [path[0]] if path is not None and isinstance(path[0], str) else None

    def columns(self, names: Sequence[str]) -> list[str] | None:
        """The same of a table with columns of these names: with those that need not be there."""
        keys = self.top_keys()
        if keys is None or self.chat is None:
            return keys
        more = KEYS if self.fields == (MESSAGES,) else BESIDE
        found = [*dict.fromkeys([*keys, *more, *filter(looks_like_row_mark, names)])]
        return (
            [key for key in found if key in names]
            if self.fields == (MESSAGES,)
            else [*keys, *(key for key in found if key in names and key not in keys)]
        )

    def has_row(self, names: Sequence[str]) -> bool:
        """Return whether a table with columns of these names has conversations of another shape than `messages`."""
        return (
            self.chat is not None
            and self.fields == (MESSAGES,)
            and any(
                all(key in names for key in keys)
                for keys in (("conversations",), ("conversation",), ("instruction", "output"), ("prompt", "completion"))
            )
        )


def select(
    field: str | Sequence[str] | None = None,
    join: str = DEFAULT_JOIN,
    jq: str | None = None,
    unit: Unit = "json",
    *,
    chat: bool = False,
) -> Selection:
    """A checked `Selection`.

    Args:
        field: one field or several, `"text"` by default; dots lead into objects.
        join: text between several.
        jq: a jq program instead; a plain path needs no jq package.
        unit: see `Selection`.
        chat: the field holds messages, `"messages"` by default.

    Raises:
        ConfigError: no such field or program can be, or more than one thing is selected.
        MissingExtra: the program needs the `jq` package, which is not installed.
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


def make_reader(selection: Selection | str, *, stop_at_fault: bool = False) -> Reader:
    """What reads a selection; a text is the name of one field. Behind a fault it may stop, if that is all the same."""
    if isinstance(selection, str):
        return TextReader(selection)
    if selection.unit == "line":
        return LineReader()
    if selection.unit == "file":
        return FileReader()
    if selection.chat is not None:
        path, jq = parse_field(selection.fields[0]), selection.jq
        rows = None if jq is None else functools.partial(_conversation_row, JqProgram(jq))
        return ChatReader(path, selection.chat, selection.chat_format, stop_at_fault=stop_at_fault, row_of=rows)
    if selection.jq is None:
        return TextReader(*selection.fields, join=selection.join)
    path = compile_path(selection.jq)
    return JqReader(selection.jq) if path is None else TextReader(paths=(path,))


def compile_path(pattern: str) -> KeyPath | None:
    """The steps of a jq pattern that is a plain path: keys and list indexes; None for any other.

    `.a["b c"][0]` → `("a", "b c", 0)`.
    """
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
    """A jq program for lines of JSON. Memory: what jq builds of a line.

    A line must be JSON by Python's rules and by jq's: jq refuses lone surrogates, for one.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._program = _compile(pattern)

    def first(self, line: bytes) -> Any:
        """Return the first output for a line, or a `Fault`."""
        fault = json_fault(line)
        if fault is not None:
            return Fault(fault)
        try:
            return self._program.input_text(line.decode("utf-8-sig")).first()
        except StopIteration:
            return Fault(f"jq {self.pattern!r} returns nothing")
        except (ValueError, RecursionError) as error:
            return Fault(f"jq {self.pattern!r} fails: {error}")


def _conversation_row(program: JqProgram, line: bytes) -> Any:
    """Return the row that a jq program makes of a line: an object, or a list, which is its messages."""
    found = program.first(line)
    if isinstance(found, Fault):
        raise UnusableError(str(found))
    if not isinstance(found, dict | list):
        raise UnusableError(f"jq {program.pattern!r} returns {KINDS[type(found)]}, not a row or a list of messages")
    return {MESSAGES: found} if isinstance(found, list) else found


class JqReader:
    """The first output of a jq program for each line, which has to be text; see `JqProgram`."""

    def __init__(self, pattern: str) -> None:
        self._program = JqProgram(pattern)

    def read(self, block: bytes) -> Texts:
        """Texts of a run of whole lines."""
        return read_lines(block, self._text_of)

    def _text_of(self, line: bytes) -> bytes | str:
        found, pattern = self._program.first(line), self._program.pattern
        if isinstance(found, Fault):
            return str(found)
        if not isinstance(found, str):
            return f"jq {pattern!r} returns {KINDS[type(found)]}, not text"
        return encode_text(found, f"the result of jq {pattern!r}")


class LineReader:
    r"""Plain text, one document per line, without byte order mark and the `\r` of a `\r\n`; skips blank lines."""

    def read(self, block: bytes) -> Texts:
        """Texts of a run of whole lines."""
        return read_lines(block, _plain_line)


class FileReader:
    """Plain text, a block a document. A byte order mark at the start is left out."""

    def read(self, block: bytes) -> Texts:
        """The text of a whole file."""
        found = utf8_or_fault(block.removeprefix(codecs.BOM_UTF8))
        if isinstance(found, str):
            return Texts([], [], {0: found}, [block])
        return Texts([found], None, {}, [block])


def utf8_or_fault(data: bytes) -> bytes | str:
    """The same bytes, or why they are no text."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8, byte {error.start + 1}"
    return data


def _plain_line(line: bytes) -> bytes | str | None:
    line = line.removeprefix(codecs.BOM_UTF8).removesuffix(b"\r")
    return utf8_or_fault(line) if line.strip() else None


@functools.lru_cache(maxsize=8)
def _compile(pattern: str) -> Any:
    """A program of the `jq` package."""
    try:
        return require("jq", extra="jq").compile(pattern)
    except ValueError as error:
        raise ConfigError(
            "not a valid jq program", found=repr(pattern), expected="such as .text or .title + .body", hint=str(error)
        ) from error


_BATCH_ROWS = 512
_SHOWN = 12


class Table(Protocol):
    """A file while it is open; its groups are numbered from 0."""

    @property
    def schema(self) -> Any: ...
    @property
    def num_rows(self) -> int: ...
    def begins(self) -> list[int]: ...
    def batches(self, group: int, keys: list[str], /) -> Iterator[Any]: ...


def table_lines(
    source: Place,
    kind: Kind,
    start_bytes: int,
    stop_bytes: int,
    selection: Selection,
    nulls: NullFields | None = None,
) -> Generator[tuple[int, bytes]]:
    """`(offset, lines)` of the groups that begin in a range: 512 rows at a time, as JSON.

    Offsets are those of the groups, and of lines in what is made of a group. Memory: a few times 512 rows, and a
    column's page of Parquet; a record batch of Arrow is mapped.

    Args:
        source: the file.
        kind: what it is.
        start_bytes, stop_bytes: the range.
        selection: tells the columns; all but binary ones where it may look at any.
        nulls: of conversations, drops the null fields of structs and notes them.

    Raises:
        Corrupt: the file is damaged.
        Unsupported: a column holds a value that Python's types can't.
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
    """Raise `ConfigError` where a column that is asked for is not there, or can't hold text.

    Raises:
        Corrupt: the file is damaged.
        MissingExtra: pyarrow is not installed.
    """
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
    """Rows of a file, as its footer, or the heads of its record batches, say; raises `Corrupt`."""
    with open_table(source, kind) as table:
        return table.num_rows


def groups_in(table: Table, source: Place, start_bytes: int, stop_bytes: int) -> list[tuple[int, int]]:
    """`(number, first byte)` of the groups of a range of a file: those that begin in it.

    A group that lies before its predecessor, or behind the file, counts as beginning with the one before: so ranges
    that cover the file hold every group once, in order.
    """
    last_bytes = source.store.size(source.path) - 1
    begins = enumerate(itertools.accumulate((min(start, last_bytes) for start in table.begins()), max))
    return [(number, begin) for number, begin in begins if start_bytes <= max(0, begin) < stop_bytes]


@dataclass(frozen=True, slots=True)
class _Parquet:
    source: Place
    file: Any
    sizes: GroupSizes

    @property
    def schema(self) -> Any:
        return self.file.schema_arrow

    @property
    def num_rows(self) -> int:
        return self.file.metadata.num_rows

    def begins(self) -> list[int]:
        return [first_bytes for first_bytes, _ in footer_extents(self.source.store, self.source.path)]

    def batches(self, group: int, keys: list[str], /) -> Iterator[Any]:
        rows = min(_BATCH_ROWS, self.sizes.batch_rows(group, keys) or _BATCH_ROWS)
        return self.file.iter_batches(batch_size=rows, row_groups=[group], columns=keys, use_threads=False)


@dataclass(frozen=True, slots=True)
class _Arrow:
    blocks: HfBlocks
    size_bytes: int

    @property
    def schema(self) -> Any:
        return self.blocks.schema

    @property
    def num_rows(self) -> int:
        return int(self.blocks.starts[-1])

    def begins(self) -> list[int]:
        """In Arrow's file format nobody is told where batches lie: they count as equally long."""
        batches = self.blocks.batches
        told = [start if length_bytes >= 0 else None for _, start, length_bytes in batches]
        return [n * self.size_bytes // len(batches) if start is None else start for n, start in enumerate(told)]

    def batches(self, group: int, keys: list[str], /) -> Iterator[Any]:
        yield from self.blocks.read(group, keys).to_batches(max_chunksize=_BATCH_ROWS)


@contextlib.contextmanager
def open_table(source: Place, kind: Kind) -> Generator[Table]:
    """The file, while the block runs; what pyarrow refuses then becomes `Corrupt`."""
    if kind == "parquet":
        with _parquet(source) as file:
            yield _Parquet(source, file, GroupSizes(source.store, source.path))
        return
    with arrow_faults(source.path):
        yield _Arrow(load_blocks(source.store, [source.path], mapped=True), source.store.size(source.path))


@contextlib.contextmanager
def _parquet(source: Place) -> Generator[Any]:
    """A `pyarrow.parquet.ParquetFile`."""
    pyarrow = require("pyarrow", extra=EXTRA)
    parquet = require("pyarrow.parquet", extra=EXTRA)
    try:
        with parquet.ParquetFile(_by_name(source)) as file:
            yield file
    except MemoryError as error:
        raise too_large(source.path, error) from error
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise _damaged(source, error) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise _damaged(source, error) from error


def _by_name(source: Place) -> str:
    """A Parquet file by a name of this machine: itself, or its copy in the cache."""
    if isinstance(source.store, CopyingStore):
        return source.store.local_copy(source.path)
    return source.path


def _damaged(source: Place, error: Exception) -> Corrupt:
    found = str(error).partition("\n")[0]
    return Corrupt("the Parquet file is damaged", path=source.path, found=found, hint="Copy it again")
