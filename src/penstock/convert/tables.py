"""Read CSV and TSV files with a header as rows of text."""

from __future__ import annotations

import bz2
import codecs
import csv
import io
import itertools
import lzma
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

import xxhash

from penstock._digest import digest
from penstock._regular import require_regular_path
from penstock.engine.rows import Rows
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError, TooLarge
from penstock.formats.jsonl.decompress import cut_stream
from penstock.store.find import find_files
from penstock.store.patterns import is_pattern
from penstock.store.place import Place, place_of
from penstock.types import Sample

TABLE = "table"
"""Name of this format."""

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_USUAL_SEPARATORS = ",;\t|"
_PIECE_BYTES = 1 << 20
_LINE_LIMIT = 1 << 28
"""Characters of a line or cell. A longer one is an error: a small compressed file may hold any number of them."""


class _Pieces(io.RawIOBase):
    """The decompressed bytes of a file, which must end with a whole member or frame."""

    def __init__(self, path: str, compression: str) -> None:
        super().__init__()
        self._pieces = cut_stream(place_of(path), compression, _PIECE_BYTES)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece[1])
        view = memoryview(buffer)
        size = min(len(view), len(self._rest))
        view[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def _open_plain(path: str) -> IO[bytes]:
    return open(path, "rb")


_OPENERS: dict[str, Callable[[str], Any]] = {
    "": _open_plain,
    ".gz": lambda path: io.BufferedReader(_Pieces(path, "gzip")),
    ".zst": lambda path: io.BufferedReader(_Pieces(path, "zstd")),
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
_PLAIN_SUFFIXES = [plain + packed for plain in _SEPARATORS for packed in _OPENERS]
SUFFIXES = (*_PLAIN_SUFFIXES, *map(str.upper, _PLAIN_SUFFIXES))
"""Suffixes of files that are looked for in directories. A file that is named may mix cases."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How to read text tables.

    Attributes:
        separator: between cells; None for a comma in `.csv` and a tab in `.tsv` files.
        encoding: of the text; None for UTF-8, with or without a byte order mark.
        follow_links: read files through links that lead out of a directory.

    Raises:
        ConfigError: a separator that is not one character, or an unknown encoding.
    """

    separator: str | None = None
    encoding: str | None = None
    follow_links: bool = False

    def __post_init__(self) -> None:
        separator = self.separator
        if separator is not None and (len(separator) != 1 or separator in '"\r\n\0'):
            expected = "one character that is neither a quote nor a line break"
            raise ConfigError("--separator (source_separator=) is not valid", found=repr(separator), expected=expected)
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except (LookupError, ValueError) as error:
                what = "--encoding (source_encoding=) is unknown"
                raise ConfigError(what, found=repr(self.encoding), expected="such as utf-8 or cp1252") from error


def is_table(place: Place) -> bool:
    """Return whether `place` is a text table by its name: a file, or a pattern or list of such files."""
    try:
        if is_pattern(place.path) and not place.exists():
            return all(map(_suffixes_of, find_files(place.path, [SUFFIXES], "CSV or TSV")))
        return bool(_suffixes_of(place.path)) and place.is_file()
    except PenstockError:
        return False  # opening it raises the error


def holds_tables(place: Place) -> bool:
    """Return whether `place` is a directory with text tables in it."""
    try:
        return place.is_folder() and any(True for _ in find_files(place.path, [SUFFIXES], "CSV or TSV"))
    except PenstockError:
        return False


def table_files(place: Place, *, follow_links: bool = False) -> list[str]:
    """List the files of a table: itself, or those of a directory, pattern or list, in byte order of their paths."""
    if _suffixes_of(place.path) and place.is_file():
        return [place.path]
    return sorted(find_files(place.path, [SUFFIXES], "CSV or TSV", follow_links=follow_links))


def _suffixes_of(path: str) -> tuple[str, str] | None:
    """Return the suffix of the table and that of its compression, in lower case; None for other files."""
    for packed in _OPENERS:
        for plain in _SEPARATORS:
            if path.lower().endswith(plain + packed):
                return plain, packed
    return None


class TableRows(Rows):
    """The rows of CSV and TSV files with a header, as text. Memory: 8 bytes per file, and one row.

    Remote files are read from their copies in the cache.

    Args:
        place: a file, a directory, or a pattern.
        options: how to read it.

    Raises:
        NotFound: there is no such file.
    """

    def __init__(self, place: Place, options: TableOptions) -> None:
        self._options = options
        self.places = [place_of(path, place.store) for path in table_files(place, follow_links=options.follow_links)]
        for one in self.places:
            if one.is_local:
                require_regular_path(one.path)
            if not one.is_file():
                raise NotFound("no such file", path=one.path)
        self._counts: list[int] | None = None
        self._names: list[str] | None = None

    @property
    def fingerprint(self) -> str:
        """Digest of all files, and of options that are not the default."""
        hashes: list[str] = []
        for place in self.places:
            hasher = xxhash.xxh3_128()
            with open(_local(place), "rb") as file:
                while chunk := file.read(1 << 20):
                    hasher.update(chunk)
            hashes.append(hasher.hexdigest())
        changed = [option for option in (self._options.separator, self._options.encoding) if option is not None]
        return digest("table", *hashes, *changed)

    @property
    def names(self) -> list[str]:
        """Names of the columns, as in the header of the first file."""
        if self._names is None:
            self._names = self._opened(self.places[0])[0]
        return self._names

    def __len__(self) -> int:
        return sum(self._lengths())

    def _lengths(self) -> list[int]:
        if self._counts is None:
            self._counts = [sum(1 for _ in self._rows_of(place)) for place in self.places]
        return self._counts

    def samples(self, start: int, stop: int, /) -> list[Sample]:
        return list(itertools.islice(self._scan(start), stop - start))

    def batches(self, start: int, stop: int, step: int) -> Iterator[list[Sample]]:
        rows = itertools.islice(self._scan(start), stop - start)  # the files are read once
        while batch := list(itertools.islice(rows, step)):
            yield batch

    def _scan(self, start: int) -> Iterator[Sample]:
        """Read the rows from `start` on."""
        for place, length in zip(self.places, self._lengths(), strict=True):
            if start < length:
                for row in itertools.islice(self._rows_of(place), start, None):
                    yield dict(zip(self.names, row, strict=True))
            start = max(0, start - length)

    def _rows_of(self, place: Place) -> Iterator[list[str]]:
        """Read the cells of each row of a file, in the order of `names`."""
        header, lines = self._opened(place)
        if sorted(header) != sorted(self.names):
            what = "the columns in the header differ from the first file"
            raise Corrupt(what, path=place.path, found=", ".join(header)[:200], expected=", ".join(self.names)[:200])
        order = None if header == self.names else [header.index(name) for name in self.names]
        for line, row in lines:
            if len(row) != len(header):
                what = f"line {line} has a different number of cells than the header"
                raise Corrupt(what, path=place.path, found=len(row), expected=len(header))
            yield row if order is None else [row[column] for column in order]

    def _opened(self, place: Place) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
        """Return the header of a file, and an iterator over line number and cells of each row after it."""
        plain, _ = _suffixes_of(place.path) or (".csv", "")
        separator = self._options.separator or _SEPARATORS[plain]
        lines = self._lines(place, separator)
        header = next(lines, (0, []))[1]
        if not header:
            raise Corrupt("the file has no header", path=place.path, expected="a first line with the names of columns")
        repeated = sorted({name for name in header if header.count(name) > 1}, key=header.index)
        if repeated:
            what, hint = "the header repeats the name of a column", "Rename the columns in the header"
            raise Corrupt(what, path=place.path, found=", ".join(map(repr, repeated))[:200], hint=hint)
        if len(header) == 1 and self._options.separator is None:
            others = [one for one in _USUAL_SEPARATORS if one != separator and one in header[0]]
            if others:
                raise Corrupt(
                    f"the header is one column with {others[0]!r} in its name",
                    path=place.path,
                    found=repr(header[0][:80]),
                    expected=f"columns separated by {separator!r}",
                    hint=f"Specify the separator: --separator {others[0]!r} (source_separator=)",
                )
        return header, lines

    def _lines(self, place: Place, separator: str) -> Iterator[tuple[int, list[str]]]:
        """Read the line number and cells of each line that isn't empty."""
        _, packed = _suffixes_of(place.path) or ("", "")
        # The limit of the csv module is one per process. Its default of 128 KiB is less than many documents have.
        csv.field_size_limit(max(_LINE_LIMIT, csv.field_size_limit()))
        line = 0
        try:
            with (
                _OPENERS[packed](_local(place)) as file,
                io.TextIOWrapper(file, self._options.encoding or "utf-8-sig", newline="") as text,
            ):
                reader = csv.reader(_bounded_lines(text, place.path), delimiter=separator, strict=True)
                for row in reader:
                    line = reader.line_num
                    if row:
                        yield line, row
        except UnicodeError as error:
            hint = "Specify the encoding of the file: --encoding (source_encoding=), such as cp1252 or utf-16"
            what = f"line {line + 1} or a later one is not {self._options.encoding or 'UTF-8'}"
            raise Corrupt(what, path=place.path, found=str(error), hint=hint) from error
        except csv.Error as error:
            raise Corrupt(f"line {line + 1} can't be read", path=place.path, found=str(error)) from error
        except (EOFError, lzma.LZMAError) as error:
            raise Corrupt("the file can't be decompressed", path=place.path, found=str(error)) from error


def _bounded_lines(text: IO[str], path: str) -> Iterator[str]:
    while line := text.readline(_LINE_LIMIT + 1):
        if len(line) > _LINE_LIMIT:
            raise TooLarge("a line is too long", path=path, found=f"more than {_LINE_LIMIT:,} characters")
        yield line


def _local(place: Place) -> str:
    """Return the path of the file, or of its copy in the cache, which is fetched again if it was evicted."""
    return place.store.local_copy(place.path) if place.store.keeps_copies else place.path
