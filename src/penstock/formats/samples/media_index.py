"""The two tables of media files in the `index.sqlite` of a WebDataset or a folder.

| table | columns |
|---|---|
| `media_metadata` | `entry_key`: full name of the file, `metadata_type`: `image` or `av`, `metadata_json` |
| `media_filters` | `filter_id`, `strategy`: `EXTENSION`, `HEADER` or `GLOB`, `patterns`, `created_at_utc` |

The JSON is compact and has the fields of `ImageMetadata` or `AVMetadata` in order, without those that are None. Each
run of `prepare` adds a filter; rows are those of all filters together. The tables are those of Energon 7.3 and 7.4.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from penstock.codec.av_header import read_av_header
from penstock.codec.image_header import read_image_header
from penstock.codec.media_bytes import MediaBytes
from penstock.errors import Corrupt, FormatError, PenstockError
from penstock.formats.samples.sqlite import connect, raise_system_error
from penstock.store.base import Store
from penstock.types import AVMetadata, ImageMetadata, MediaMetadata

METADATA, FILTERS = "media_metadata", "media_filters"
STRATEGIES = ("EXTENSION", "HEADER", "GLOB")

_TABLES = {
    METADATA: "CREATE TABLE media_metadata ( entry_key TEXT PRIMARY KEY, metadata_type TEXT NOT NULL, "
    "metadata_json TEXT NOT NULL )",
    FILTERS: "CREATE TABLE media_filters ( filter_id INTEGER PRIMARY KEY AUTOINCREMENT, strategy TEXT NOT NULL, "
    "patterns TEXT, created_at_utc TEXT DEFAULT CURRENT_TIMESTAMP, UNIQUE(strategy, patterns) )",
}
_COLUMNS = {
    METADATA: {"entry_key", "metadata_type", "metadata_json"},
    FILTERS: {"filter_id", "strategy", "patterns", "created_at_utc"},
}
_KINDS: dict[str, type[ImageMetadata] | type[AVMetadata]] = {"image": ImageMetadata, "av": AVMetadata}
_DAMAGE = (sqlite3.Error, UnicodeDecodeError)
"""Errors raised for a damaged database: names in its tables may be invalid UTF-8."""

_REMAKE = "Rebuild it: `penstock prepare-media`"


@dataclass(frozen=True, slots=True)
class MediaRow:
    """One media file: its full name, its metadata, and traits of images that no index records."""

    name: str
    metadata: MediaMetadata
    traits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MediaFilter:
    """Selection of the files that a preparation examined.

    Attributes:
        strategy: one of `STRATEGIES`.
        patterns: patterns of `GLOB`, joined by commas; otherwise empty.
    """

    strategy: str
    patterns: str = ""


# --- values ------------------------------------------------------------------------------------------------------


def encode_metadata(metadata: MediaMetadata) -> tuple[str, str]:
    known = {field.name: getattr(metadata, field.name) for field in fields(metadata)}
    text = msgspec.json.encode({name: value for name, value in known.items() if value is not None})
    return ("image" if isinstance(metadata, ImageMetadata) else "av"), text.decode()


def decode_metadata(kind: str, text: str) -> MediaMetadata:
    """Return the metadata of a row.

    Raises:
        FormatError: the kind is unknown, or the JSON is invalid.
    """
    if kind not in _KINDS:
        raise FormatError("unknown kind of media metadata", found=str(kind)[:40], expected=" | ".join(_KINDS))
    try:
        return msgspec.json.decode(text, type=_KINDS[kind])
    except (msgspec.DecodeError, TypeError, UnicodeError, RecursionError) as error:
        raise FormatError("unreadable media metadata", found=str(error)) from None


# --- reading -----------------------------------------------------------------------------------------------------


def connect_media(store: Store, path: str) -> sqlite3.Connection:
    """Return a read-only connection to an index; raise `Corrupt` if it isn't a permitted database."""
    try:
        return connect(store, path)
    except _DAMAGE as error:
        raise _damaged(path, error) from None


def has_table(connection: sqlite3.Connection, table: str) -> bool:
    """Return true if one of the two tables exists with all its columns.

    Raises:
        sqlite3.Error: the file isn't a database.
    """
    found = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
    return _COLUMNS[table] <= found


def read_metadata(connection: sqlite3.Connection, name: str, *, path: str) -> MediaMetadata | None:
    """Return the metadata of one file, or None if there is none.

    Args:
        connection: connection to `index.sqlite`.
        name: full name of the file.
        path: path of the database, for errors.

    Raises:
        Corrupt: the file isn't a database, or the row is invalid.
    """
    query = "SELECT metadata_type, metadata_json FROM media_metadata WHERE entry_key = ?"
    try:
        row = connection.execute(query, (name,)).fetchone() if has_table(connection, METADATA) else None
    except UnicodeEncodeError:
        return None  # not UTF-8: the table can't hold it
    except _DAMAGE as error:
        raise _damaged(path, error) from None
    return None if row is None else _decoded(name, row[0], row[1], path)


def read_rows(connection: sqlite3.Connection, *, path: str) -> Iterator[MediaRow]:
    try:
        if not has_table(connection, METADATA):
            return
        query = "SELECT entry_key, metadata_type, metadata_json FROM media_metadata ORDER BY entry_key"
        for name, kind, text in connection.execute(query):
            yield MediaRow(str(name), _decoded(str(name), kind, text, path))
    except _DAMAGE as error:
        raise _damaged(path, error) from None


def read_filters(connection: sqlite3.Connection, *, path: str) -> list[tuple[MediaFilter, str]]:
    """Return filters and their creation times, in the order in which they were added; raise `Corrupt`."""
    try:
        if not has_table(connection, FILTERS):
            return []
        query = "SELECT strategy, patterns, created_at_utc FROM media_filters ORDER BY filter_id"
        return [(MediaFilter(str(how), what or ""), str(when)) for how, what, when in connection.execute(query)]
    except _DAMAGE as error:
        raise _damaged(path, error) from None


def _decoded(name: str, kind: Any, text: Any, path: str) -> MediaMetadata:
    try:
        return decode_metadata(kind, text)
    except FormatError as error:
        raise Corrupt(f"{error.what}, for {name!r}", path=path, found=error.found, hint=_REMAKE) from None


def _damaged(path: str, error: sqlite3.Error | UnicodeDecodeError) -> Corrupt:
    raise_system_error(error, path)
    return Corrupt("not a valid media index", path=path, found=str(error), hint=_REMAKE)


# --- checking ----------------------------------------------------------------------------------------------------


def other_header(media: MediaBytes, metadata: MediaMetadata) -> str | None:
    """Return the metadata in the header of a file, or why it is unreadable, if it differs from the row; else None."""
    try:
        if isinstance(metadata, ImageMetadata):
            found: object = read_image_header(media)
            return None if found == metadata else str(found)
        return None if read_av_header(media, depth="headers") is not None else "not audio or video"
    except PenstockError as error:
        return error.what


# --- writing -----------------------------------------------------------------------------------------------------


def create_tables(connection: sqlite3.Connection) -> None:
    for table, statement in _TABLES.items():
        if not has_table(connection, table):
            connection.execute(statement)


def add_filters(connection: sqlite3.Connection, filters: Iterable[tuple[MediaFilter, str]]) -> None:
    """Add filters with their creation times; existing filters stay unchanged."""
    # "INSERT OR IGNORE" would skip numbers.
    known = {(how, what) for how, what in connection.execute("SELECT strategy, patterns FROM media_filters")}
    for one, created_at in filters:
        if (one.strategy, one.patterns) not in known:
            known.add((one.strategy, one.patterns))
            connection.execute(
                "INSERT INTO media_filters (strategy, patterns, created_at_utc) VALUES (?, ?, ?)",
                (one.strategy, one.patterns, created_at),
            )


def put_rows(connection: sqlite3.Connection, rows: Iterable[MediaRow]) -> None:
    connection.executemany(
        "INSERT OR REPLACE INTO media_metadata VALUES (?, ?, ?)",
        ((row.name, *encode_metadata(row.metadata)) for row in rows),
    )
