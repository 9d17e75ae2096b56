"""Mutations of files: blind ones for all, and ones that know headers, pickled indexes, JSON lines and side files."""

from __future__ import annotations

import contextlib
import pickle
import random
import re
import sqlite3
import struct
from collections.abc import Callable

Mutation = Callable[[bytes, random.Random], bytes]

NUMBERS = [
    *range(-2, 18),
    *(
        sign * ((1 << bits) + near)
        for bits in (8, 16, 31, 32, 40, 53, 62, 63, 64)
        for near in (-1, 0, 1)
        for sign in (1, -1)
    ),
]
OPCODES = [
    b"K\x00",
    b"M\x01\x00",
    b"J\xff\xff\xff\xff",
    b"\x8a\x00",
    b"\x8a\x09" + b"\xff" * 9,
    b"\x8b\xff\xff\xff\x7f",
    b"\x86\x94",
]
OPCODES += [
    b"(",
    b"e",
    b"a",
    b"]\x94",
    b".",
    b"h\x00",
    b"j\x00\x00\x00\x00",
    b"\x95" + b"\xff" * 8,
    b"\x80\x04",
    b"\x80\x05",
]
OPCODES += [
    b"cos\nsystem\n",
    b"X\x02\x00\x00\x00ls\x85R",
    b"\x93",
    b"R",
    b"b",
    b"N",
    b"0",
    b"2",
    b"I1\n",
    b"L1L\n",
    b"\x8d" + b"\xff" * 8,
]
LINES = [b"{}", b"[]", b"null", b"NaN", b"-Infinity", b'"\\ud800"', b"\xef\xbb\xbf{}", b"", b"   ", b"\r", b"{", b"-"]
LINES += [b"\0", b'{"a":1}{"b":2}', b'{"a":1,"a":2}', b'{"text":"\xff\xfe"}', b'{"text":"\x01"}']
LINES += ['{"text":"\u2028\x85"}'.encode(), b"[" * 3000, b"[" * 200_000, b'{"a":' * 100_000]
LINES += [b"9" * 5000, b"1e999999", b"0.1e-999999", b'{"a":' + b"8" * 5000 + b"}", b'{"text":"' + b"x" * 70_000 + b'"}']


JSON_VALUE = re.compile(rb'-?\d+(?:\.\d+)?|"(?:[^"\\]|\\.)*"|true|false|null')
VALUES = [b"null", b"true", b'""', b"[]", b"{}", b"1e99", b"-1", b"0", b"NaN", b"1" * 5000, b'"\\ud800"', b"[[[]]]"]
VALUES += [
    b'"0"',
    b'"../../up"',
    b'"/etc/passwd"',
    b'"a/b"',
    b'"<u2"',
    b'">u4"',
    b'"<f8"',
    b'"|O"',
    b'"zlib"',
    b'"gzip"',
]


def mutate(data: bytes, rng: random.Random, kinds: list[Mutation]) -> bytes:
    """One to four mutations, blind ones and some of `kinds`."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        data = rng.choice(kinds if rng.random() < 0.7 else BLIND)(data, rng)
    return data


# --- blind -----------------------------------------------------------------------------------------------------------


def flip_bit(data: bytes, rng: random.Random) -> bytes:
    return (
        _put(data, place := rng.randrange(len(data)), bytes([data[place] ^ 1 << rng.randrange(8)])) if data else b"\0"
    )


def set_byte(data: bytes, rng: random.Random) -> bytes:
    return _put(
        data, rng.randrange(len(data) + 1), bytes([rng.choice((0, 1, 10, 0x7F, 0x80, 0xFF, rng.randrange(256)))])
    )


def set_number(data: bytes, rng: random.Random) -> bytes:
    return _put(data, rng.randrange(len(data) + 1), _number(rng, len(data)))


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def drop(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.choice((1, 2, 3, 8, 12, 100)) :]


def repeat(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start : start + rng.choice((1, 8, 100, 5000))] * rng.choice((2, 3, 50)) + data[start:]


def append(data: bytes, rng: random.Random) -> bytes:
    return data + rng.choice((b"\0", b".", b"\n", b"\x80\x04]\x94.", rng.randbytes(rng.randrange(1, 300))))


BLIND: list[Mutation] = [flip_bit, set_byte, set_number, cut, drop, repeat, append]


# --- packed files ----------------------------------------------------------------------------------------------------


def set_header(data: bytes, rng: random.Random) -> bytes:
    return _put(data, rng.choice((0, 0, 8, 4)), _number(rng, len(data)))


def shift_header(data: bytes, rng: random.Random) -> bytes:
    if len(data) < 12:
        return data
    length, width = struct.unpack_from("<QI", data)
    near = (length + rng.choice((-width, -1, 1, width, len(data)))) % (1 << 64)
    return struct.pack("<QI", near, rng.choice((width, 0, 1, 2, 3, 4, 8, 1 << 31))) + data[12:]


def set_opcode(data: bytes, rng: random.Random) -> bytes:
    start = _index_start(data)
    place = rng.randrange(start, len(data) + 1)
    opcode = rng.choice(OPCODES)
    return data[:place] + opcode + data[place + rng.choice((0, len(opcode))) :]


def new_index(data: bytes, rng: random.Random) -> bytes:
    """An index of other pairs, pickled by any protocol: negative, overlapping, huge, shared, not even pairs."""
    width = rng.choice((1, 2, 4))
    size = max(1, len(data))
    shared = rng.choice(NUMBERS)
    pairs: list[object] = []
    for _ in range(rng.choice((0, 1, 2, 3, 1000, 1001, 2500))):
        pairs.append((rng.choice((shared, rng.randrange(size))), rng.choice((shared, width * rng.randrange(20)))))
    odd: list[object] = [
        pairs,
        tuple(pairs),
        [list(pair) for pair in pairs[:3]],
        [pairs, pairs],
        {"a": pairs},
        [(1, "a")],
        [(1.5, 2)],
    ]
    value = pairs if rng.random() < 0.7 else rng.choice(odd)
    return data[: _index_start(data)] + pickle.dumps(value, rng.randrange(6))


def fitting_index(data: bytes, rng: random.Random) -> bytes:
    """Documents that fit the data but for one pair."""
    start = _index_start(data)
    size, place, pairs = start - 12, 0, []
    while place < size and len(pairs) < 2000:
        length = min(size - place, 4 * rng.randrange(1, 30))
        pairs.append((place, length))
        place += length
    if pairs:
        chosen = rng.randrange(len(pairs))
        offset, length = pairs[chosen]
        pairs[chosen] = rng.choice(
            [
                (offset, length),
                (offset + 1, length),
                (-offset, length),
                (offset, -length),
                (offset, rng.choice(NUMBERS)),
                (0, length),
            ]
        )
    return data[:start] + pickle.dumps(pairs, rng.choice((2, 4, 5)))


PACKED: list[Mutation] = [set_header, shift_header, set_opcode, new_index, fitting_index]


# --- lines -----------------------------------------------------------------------------------------------------------


def set_line(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    place = rng.randrange(len(lines))
    lines[place : place + rng.randrange(2)] = [rng.choice(LINES)]
    return rng.choice((b"\n", b"\n", b"\r\n", b"\r")).join(lines)


def move_line(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    rng.shuffle(lines)
    return b"\n".join(lines)


JSON_LINES: list[Mutation] = [set_line, set_line, move_line]
INDEX: list[Mutation] = [set_opcode, new_index, new_index]


def set_json_value(data: bytes, rng: random.Random) -> bytes:
    """One number, text or constant of a JSON document becomes another."""
    places = list(JSON_VALUE.finditer(data))
    if not places:
        return data
    place = rng.choice(places)
    return data[: place.start()] + rng.choice((*VALUES, str(rng.choice(NUMBERS)).encode())) + data[place.end() :]


def swap_json_values(data: bytes, rng: random.Random) -> bytes:
    """One value is also put in the place of another."""
    places = list(JSON_VALUE.finditer(data))
    if len(places) < 2:
        return data
    place, other = rng.sample(places, 2)
    return data[: place.start()] + other[0] + data[place.end() :]


JSON_DOCUMENT: list[Mutation] = [set_json_value, set_json_value, swap_json_values]


# --- headers of numbers ----------------------------------------------------------------------------------------------


def set_aligned_number(data: bytes, rng: random.Random) -> bytes:
    """A number of 4 or 8 bytes, at a place where one may stand."""
    return _put(data, rng.randrange(len(data) // 4 + 1) * 4, _number(rng, len(data)))


def set_early_number(data: bytes, rng: random.Random) -> bytes:
    return _put(data, rng.randrange(48), _number(rng, len(data)))


NUMBERED: list[Mutation] = [set_aligned_number, set_early_number]
SHARD: list[Mutation] = [*NUMBERED, *JSON_DOCUMENT]


# --- tars ------------------------------------------------------------------------------------------------------------

TAR_NUMBERS = [b"", b" ", b"7" * 11, b"77777777777", b"-1", b"1_0", b"\x80" + b"\0" * 10 + b"\x01", b"\xff" * 12, b"8"]
TAR_NAMES = [b"a.txt", b"../up.txt", b"/abs.txt", b"a\xff.txt", b"d/", b".", b"", b"__m__/x.txt", b"k" * 100]
PAX = [
    b"12 path=a.b\n",
    b"99 path=x\n",
    b"13 size=1000\n",
    b"22 GNU.sparse.major=1\n",
    b"x",
    b"11 path=\0.b\n",
    b"0 a=b\n",
]


def set_header_field(data: bytes, rng: random.Random) -> bytes:
    """A field of some header gets another value, and the header a right checksum again."""
    starts = [place for place in range(0, len(data), 512) if data[place + 257 : place + 262] == b"ustar"]
    if not starts:
        return data
    start = rng.choice(starts)
    place, size, values = rng.choice(
        [
            (0, 100, TAR_NAMES),
            (124, 12, [*TAR_NUMBERS, b"%o" % rng.randrange(20_000)]),
            (156, 1, [b"0", b"\0", b"1", b"5", b"7", b"S", b"x", b"g", b"L", b"K", b"Z"]),
            (345, 155, [b"", b"d", b"\xff", b"d" * 155]),
        ]
    )
    block = bytearray(data[start : start + 512])
    block[place : place + size] = rng.choice(values).ljust(size, b"\0")[:size]
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return data[:start] + bytes(block) + data[start + 512 :]


def set_pax(data: bytes, rng: random.Random) -> bytes:
    """A block becomes PAX records."""
    start = rng.randrange(len(data) // 512 + 1) * 512
    return data[:start] + rng.choice(PAX).ljust(512, b"\0") + data[start + 512 :]


def move_block(data: bytes, rng: random.Random) -> bytes:
    """A block stands in another place too, or is gone."""
    start, other = (rng.randrange(len(data) // 512 + 1) * 512 for _ in range(2))
    return data[:start] + rng.choice((b"", data[other : other + 512])) + data[start + rng.choice((0, 512)) :]


TAR: list[Mutation] = [set_header_field, set_header_field, set_pax, move_block]


def _put(data: bytes, place: int, new: bytes) -> bytes:
    return data[:place] + new + data[place + len(new) :]


def _number(rng: random.Random, size: int) -> bytes:
    value = rng.choice((*NUMBERS, size, size - 1, size + 1, size - 12, size * 2))
    width = rng.choice((4, 8))
    return (value % (1 << 8 * width)).to_bytes(width, rng.choice(("little", "big")))


def _index_start(data: bytes) -> int:
    """Where the index of a packed file begins by its header, else where a pickle begins, else the start."""
    if len(data) >= 12:
        (length,) = struct.unpack_from("<Q", data)
        if 12 + length <= len(data):
            return 12 + length
    return max(0, data.rfind(b"\x80\x04"))


# --- databases -----------------------------------------------------------------------------------------------------

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
TABLES = ("samples", "sample_parts", "media_metadata", "media_filters")
SQL_VALUES = ("NULL", "-1", "9223372036854775807", "''", "x'ff00'", "'\ud7ff'", "1e300", "CAST(x'ff' AS TEXT)", "'{}'")


def set_sql(data: bytes, rng: random.Random) -> bytes:
    """A statement on the database, as its owner could run it; what is none stays as it is."""
    table = rng.choice(TABLES)
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
        try:
            made.deserialize(data)
            columns = [row[1] for row in made.execute(f"PRAGMA table_info({table})")] or ["a"]
            column, value = rng.choice(columns), rng.choice(SQL_VALUES)
            listed = ", ".join(f"'{table}' AS {name}" if name != column else f"i AS {name}" for name in columns)
            statements = [
                f"DROP TABLE {table}; CREATE VIEW {table} AS {ENDLESS} {listed} FROM n",
                f"CREATE TRIGGER t BEFORE INSERT ON {table} BEGIN {ENDLESS} MAX(i) FROM n; END",
                f"CREATE TRIGGER t BEFORE DELETE ON {table} BEGIN {ENDLESS} MAX(i) FROM n; END",
                f"ALTER TABLE {table} ADD COLUMN more AS (hex(zeroblob(1000000000)))",
                f"UPDATE {table} SET {column} = {value}",
                f"UPDATE {table} SET {column} = {value} WHERE rowid = (SELECT MAX(rowid) FROM {table})",
                f"INSERT INTO {table} SELECT * FROM {table}",
                f"DELETE FROM {table}",
                f"DROP TABLE {table}",
                f"ALTER TABLE {table} RENAME COLUMN {column} TO other",
                f"CREATE VIRTUAL TABLE v USING fts5({column})",
                f"CREATE INDEX more ON {table}({column} || zeroblob(10))",
                "PRAGMA writable_schema=ON; UPDATE sqlite_master SET sql = 'CREATE TABLE x(' || sql",
                "PRAGMA writable_schema=ON; UPDATE sqlite_master SET rootpage = 1 + rootpage % 3",
            ]
            made.executescript(rng.choice(statements))
            return bytes(made.serialize())
        except (sqlite3.Error, sqlite3.Warning, UnicodeDecodeError, MemoryError):
            return data


SQLITE: list[Mutation] = [set_sql, set_sql, set_sql]


# --- YAML ----------------------------------------------------------------------------------------------------------

YAML_WORDS = [b"null", b"~", b"[]", b"{}", b"-1", b"0", b"1e300", b"99999999999999999999", b"true", b"''", b"*a"]
YAML_WORDS += [b"'{0..99999999}'", b"'" + b"{" * 5000 + b"'", b"[" * 5000, b"x: " * 2000, b"'\\0'", b"&a [*a, *a]"]
YAML_WORDS += [
    b"set.yaml",
    b"set.json",
    b".",
    b"..",
    b"/",
    b"a",
    b"b",
    b"blend",
    b"join",
    b"concat",
    b"stages",
    b"path",
]
YAML_WORD = re.compile(rb"[A-Za-z0-9_./-]+")


def set_word(data: bytes, rng: random.Random) -> bytes:
    """Another word in the place of one."""
    found = list(YAML_WORD.finditer(data))
    if not found:
        return data
    one = rng.choice(found)
    return data[: one.start()] + rng.choice(YAML_WORDS) + data[one.end() :]


def swap_words(data: bytes, rng: random.Random) -> bytes:
    found = list(YAML_WORD.finditer(data))
    if len(found) < 2:
        return data
    first, second = sorted(rng.sample(found, 2), key=lambda one: one.start())
    middle = data[first.end() : second.start()]
    return data[: first.start()] + second[0] + middle + first[0] + data[second.end() :]


def move_lines(data: bytes, rng: random.Random) -> bytes:
    """A run of lines again at another place, perhaps further in."""
    lines = data.splitlines(keepends=True)
    if not lines:
        return data
    start = rng.randrange(len(lines))
    stop = min(len(lines), start + rng.choice((1, 1, 2, 5)))
    place = rng.randrange(len(lines) + 1)
    return b"".join([*lines[:place], *(b"  " * rng.randrange(3) + line for line in lines[start:stop]), *lines[place:]])


YAML: list[Mutation] = [set_word, set_word, swap_words, move_lines]
