"""Tar headers, read by Penstock's own code: ustar, PAX, GNU and old ones, without reading contents.

| bytes of a header | content |
|---|---|
| 0–99 | name, up to a NUL |
| 124–135 | size: octal text, or base 256 if the first bit is set |
| 148–155 | sum of the header's bytes, with these eight as spaces: octal text |
| 156 | type: NUL, `0`, `7` regular · `1`–`6` no content · `x`, `X`, `g` PAX · `L`, `K` GNU long names · `S` sparse |
| 345–499 | folder of the name |

A header takes one block of 512 bytes, contents whole blocks. `x`, `L` and `K` apply to the next member, `g` to all
later ones. A block of zeros ends an archive, as does the end of the file; `ends` checks the data after it. Names are
UTF-8, with other bytes as surrogates. The rules are those of Python's `tarfile`, except that damage is an error.

Limits: names and PAX records up to 1 MiB for a member.
"""

from __future__ import annotations

import posixpath
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from penstock._limits import count_in
from penstock.errors import Corrupt, TooLarge, Truncated, Unsupported
from penstock.formats.samples.webdataset.tar_blocks import BLOCK_BYTES, PAX_KIND, PAX_OF_INTEREST, Run, Window
from penstock.store.base import Store

MOST_NAME_BYTES = 1 << 20
MOST_PADDING_BYTES = 2 * BLOCK_BYTES + 10_240
"""The end-of-archive mark and a record, to which `tar` pads archives by default."""

Read = Callable[[int, int], bytes | memoryview]
"""Function that returns bytes `[start, stop)` of a file; fewer only at its end."""

_REGULAR = frozenset(b"\x0007S")
_WITHOUT_CONTENT = frozenset(b"123456")
_ABOUT_NEXT = frozenset(b"xXLK")
_HARD_LINK, _SYMBOLIC_LINK, _FOLDER = b"125"
_ZERO_BLOCK = bytes(BLOCK_BYTES)
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz"}
_ADLER = 65521

_SMALL_WINDOW_BYTES = 1 << 12
_FIRST_WINDOW_BYTES = 1 << 16
_BIG_WINDOW_BYTES = 1 << 22
_SKIP_BYTES = 1 << 15
"""Average size from which contents are skipped; smaller ones are read along with their headers."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member of an archive.

    Attributes:
        name: its full name.
        start_bytes: offset of its first header, including PAX and GNU headers.
        content_bytes: offset of its content, which has `size_bytes`.
        stop_bytes: offset of the next header.
        is_regular: a file with content of its own.
        is_sparse: its content is stored without its holes.
        target: name of a link's target; None if the member isn't a link.
        is_folder: a folder, which has no content.
    """

    name: str
    start_bytes: int
    content_bytes: int
    size_bytes: int
    stop_bytes: int
    is_regular: bool
    is_sparse: bool = False
    target: str | None = None
    is_folder: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """End of the members of an archive; `is_marked` unless the file ends there without a block of zeros."""

    offset_bytes: int
    is_marked: bool


# --- one member --------------------------------------------------------------------------------------------------


def next_member(
    read: Read, offset_bytes: int, size_bytes: int, path: str, shared: Mapping[str, str] | None = None
) -> Member | dict[str, str] | None:
    """Return the member whose headers begin at `offset_bytes`; a dict for a global PAX header; None at the end.

    Args:
        read: reads the archive.
        offset_bytes: offset of the header.
        size_bytes: size of the archive.
        path: path of the archive, for messages.
        shared: records of earlier global PAX headers. The dict returned for one has its end as `"next"`.

    Raises:
        Truncated, Corrupt, TooLarge, Unsupported: there is no complete member; the error has its offset.
    """
    start_bytes = offset_bytes
    pax: dict[str, str] = dict(shared) if shared else {}
    about: list[dict[str, str]] = []
    while True:
        block = bytes(read(offset_bytes, offset_bytes + BLOCK_BYTES))
        if len(block) < BLOCK_BYTES:
            if not block.strip(b"\0") and not about:
                return None
            _require_uncompressed(block, path, offset_bytes)
            raise _cut(path, offset_bytes, "inside a header" if block.strip(b"\0") else "before the next member")
        kind, size = _kind_and_size(block, path, offset_bytes)
        if kind < 0:
            if about:
                raise _no_member(path, offset_bytes)
            return None
        body_bytes = offset_bytes + BLOCK_BYTES
        if kind not in _ABOUT_NEXT and kind != 103:
            break
        after_bytes = _after(body_bytes, size, size_bytes, path, offset_bytes)
        if size > MOST_NAME_BYTES:
            raise TooLarge(
                "an extended header is too long", path=path, offset_bytes=offset_bytes, found=f"{size} bytes",
                expected=f"at most {MOST_NAME_BYTES}",
            )  # fmt: skip
        body = bytes(read(body_bytes, body_bytes + size))
        if kind == 103:
            found = _pax(body, path, offset_bytes)
            if not about:
                return {**pax, **found, "next": str(after_bytes)}
            pax |= found
        elif kind == 76:  # L
            about.append({"path": _text(body)})
        elif kind == 75:  # K
            about.append({"linkpath": _text(body)})
        else:
            about.append(_pax(body, path, offset_bytes))
        offset_bytes = after_bytes
    for one in reversed(about):
        pax |= one
    return _member(block, kind, size, start_bytes, offset_bytes, size_bytes, pax, read, path)


def _member(
    block: bytes, kind: int, size: int, start_bytes: int, header_bytes: int, size_bytes: int, pax: dict[str, str],
    read: Read, path: str,
) -> Member:  # fmt: skip
    name = pax.get("GNU.sparse.name") or pax.get("path") or _name(block, kind)
    if "\0" in name:
        raise Corrupt("a member name contains NUL", path=path, offset_bytes=start_bytes, found=repr(name[:100]))
    if "size" in pax:
        size = _pax_size(pax["size"], path, start_bytes)
    content_bytes = header_bytes + BLOCK_BYTES
    is_sparse = any(key.startswith("GNU.sparse") for key in pax)
    if kind == 83:  # S: more blocks of its map may follow
        is_sparse = True
        extended = block[482]
        while extended:
            more = bytes(read(content_bytes, content_bytes + BLOCK_BYTES))
            if len(more) < BLOCK_BYTES:
                raise _cut(path, content_bytes, "in the map of a sparse member")
            extended = more[504]
            content_bytes += BLOCK_BYTES
    is_folder = kind == 0 and name.endswith("/")
    if kind in _WITHOUT_CONTENT or is_folder:
        target = _target(name, kind, pax.get("linkpath") or _text(block[157:257]))
        is_folder = is_folder or kind == _FOLDER
        return Member(name, start_bytes, content_bytes, 0, content_bytes, False, target=target, is_folder=is_folder)
    stop_bytes = _after(content_bytes, size, size_bytes, path, start_bytes, name)
    return Member(name, start_bytes, content_bytes, size, stop_bytes, kind in _REGULAR, is_sparse)


def _target(name: str, kind: int, target: str) -> str | None:
    """Return the name of a link's target: a symbolic link is relative to its own folder."""
    if kind == _HARD_LINK:
        return plain_name(target)
    return plain_name(posixpath.join(posixpath.dirname(name), target)) if kind == _SYMBOLIC_LINK else None


def plain_name(name: str) -> str:
    """Return a member's name for matching with links, without `.` and `..` in its path."""
    return posixpath.normpath(name)


def _kind_and_size(block: bytes, path: str, offset_bytes: int) -> tuple[int, int]:
    """Return type and size of a header after verifying its checksum; -1 for a block of zeros."""
    try:
        stated = int(block[148:156].rstrip(b"\0 ") or b"0", 8)
    except ValueError:
        stated = _number(block[148:156])
    field = sum(block[148:156])
    # The low half of Adler-32 is one more than the sum of all bytes, modulo a prime just below 2^16.
    if ((zlib.adler32(block) & 0xFFFF) - 1 - field + 256 - stated) % _ADLER:
        if block == _ZERO_BLOCK:
            return -1, 0
        signed = sum(byte - 256 if byte > 127 else byte for byte in block[:148] + block[156:]) + 256
        if stated != signed:
            _require_uncompressed(block, path, offset_bytes)
            raise bad_checksum(path, offset_bytes)
    try:
        size = int(block[124:136].rstrip(b"\0 ") or b"0", 8)
    except ValueError:
        size = _number(block[124:136])
    if size < 0:
        what, found = "a header whose size is not a number", repr(block[124:136])
        raise Corrupt(what, path=path, offset_bytes=offset_bytes, found=found)
    return block[156], size


def _number(field: bytes) -> int:
    """Return a number as written by tar: octal text up to a NUL, or base 256; -1 for other text."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    text = field.partition(b"\0")[0].strip()
    return int(text or b"0", 8) if all(48 <= byte <= 55 for byte in text) else -1


def _name(block: bytes, kind: int) -> str:
    name = block[:100].partition(b"\0")[0]
    if block[345] and kind not in b"LKS":
        name = block[345:500].partition(b"\0")[0] + b"/" + name
    return name.decode("utf-8", "surrogateescape")


def _text(body: bytes) -> str:
    return body.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _pax(body: bytes, path: str, offset_bytes: int) -> dict[str, str]:
    """Return the relevant records of a PAX header: path, target, size, and whether a member is sparse."""
    if not PAX_OF_INTEREST.search(body):
        return {}
    found: dict[str, str] = {}
    place = 0
    while place < len(body) and body[place]:
        length, space, _ = body[place : place + 20].partition(b" ")
        stop = place + int(length) if length.isdigit() else -1
        key, equals, value = body[place + len(length) + 1 : max(0, stop - 1)].partition(b"=")
        if not space or stop > len(body) or stop < place + len(length) + 3 or not equals or body[stop - 1] != 10:
            raise Corrupt(
                "a PAX header is damaged", path=path, offset_bytes=offset_bytes, found=repr(body[place : place + 40])
            )
        name = key.decode("utf-8", "surrogateescape")
        if name in ("path", "linkpath", "size") or name.startswith("GNU.sparse"):
            found[name] = value.decode("utf-8", "surrogateescape")
        place = stop
    return found


def _pax_size(text: str, path: str, offset_bytes: int) -> int:
    size = count_in(text)
    if size is None:
        raise Corrupt("a PAX header whose size is not a number", path=path, offset_bytes=offset_bytes, found=text[:40])
    return size


def _after(body_bytes: int, size: int, size_bytes: int, path: str, offset_bytes: int, name: str = "") -> int:
    stop_bytes = body_bytes + (size + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES
    if stop_bytes > size_bytes:
        raise Truncated(
            f"the archive ends inside the member {name!r}" if name else "the archive ends inside a header",
            path=path,
            offset_bytes=offset_bytes,
            found=f"{size_bytes} bytes in all",
            expected=f"{stop_bytes} bytes, as stated in the header",
            hint="Download or pack this shard again",
        )
    return stop_bytes


def _cut(path: str, offset_bytes: int, where: str) -> Truncated:
    return Truncated(
        f"the archive ends {where}", path=path, offset_bytes=offset_bytes, hint="Download or pack this shard again"
    )


def _no_member(path: str, offset_bytes: int) -> Corrupt:
    return Corrupt("the archive ends before the next member", path=path, offset_bytes=offset_bytes)


def bad_checksum(path: str, offset_bytes: int) -> Corrupt:
    return Corrupt(
        "no tar header with a valid checksum",
        path=path,
        offset_bytes=offset_bytes,
        hint="Download or pack this shard again. If it changed after it was prepared, run `penstock prepare` again",
    )


def _require_uncompressed(block: bytes, path: str, offset_bytes: int) -> None:
    for magic, program in _COMPRESSED.items():
        if offset_bytes == 0 and block.startswith(magic):
            what, expected = "the shard is compressed, although its name ends in .tar", "an uncompressed tar"
            raise Unsupported(
                what,
                path=path,
                found=program,
                expected=expected,
                hint=f"Decompress it: {program} -dc < IN.tar > OUT.tar",
            )


def require_plain(member: Member, path: str) -> None:
    if member.is_sparse:
        raise Unsupported(
            "sparse members aren't supported", path=path, offset_bytes=member.start_bytes,
            found=member.name[:100], hint="Pack the shard again, without --sparse",
        )  # fmt: skip


def plain_member(view: memoryview, place: int) -> tuple[str, int, int, int] | None:
    """Return `(name, content, size_bytes, next)` of a member of the commonest kind at `place`; None for others.

    That kind is a regular member with a name that fits, a size below 1 GiB and right checksums; see `tar_blocks`.
    """
    block = bytes(view[place : place + BLOCK_BYTES])
    if len(block) == BLOCK_BYTES and block[156] == PAX_KIND:
        size = _plain_size(block)
        if not 0 < size <= BLOCK_BYTES or PAX_OF_INTEREST.search(view[place + BLOCK_BYTES : place + 2 * BLOCK_BYTES]):
            return None
        place += 2 * BLOCK_BYTES
        block = bytes(view[place : place + BLOCK_BYTES])
    if len(block) < BLOCK_BYTES or block[156] != 48 or (size := _plain_size(block)) < 0:
        return None
    end = block.find(b"\0", 0, 100)
    name = block[: 100 if end < 0 else end].decode("utf-8", "surrogateescape")
    content = place + BLOCK_BYTES
    return name, content, size, content + (size + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES


def _plain_size(block: bytes) -> int:
    """Return the size in a ustar header without a folder; -1 for other or damaged headers."""
    if block[345] or block[124] != 48 or block[257:259] != b"us":
        return -1
    try:
        size, stated = int(block[125:135], 8), int(block[148:154], 8)
    except ValueError:
        return -1
    # Each low half is one more than a sum of bytes; the header's own eight count as spaces.
    wrong = ((zlib.adler32(block) & 0xFFFF) - (zlib.adler32(block[148:156]) & 0xFFFF) + 256 - stated) % _ADLER
    return -1 if wrong else size


# --- many members ------------------------------------------------------------------------------------------------


def scan(
    read: Read, size_bytes: int, path: str, least_bytes: int = _SMALL_WINDOW_BYTES
) -> Iterator[Run | Member | End]:
    """Yield all members in order, then their end: plain ones in runs, others individually.

    Memory: a window of 4 MiB and the results from it.

    Args:
        read: reads the archive.
        size_bytes: its size.
        path: for messages.
        least_bytes: size of a read if contents are skipped.

    Raises:
        Truncated, Corrupt, TooLarge: the archive is damaged; the error has the offset.
    """
    offset_bytes, window_bytes = 0, _FIRST_WINDOW_BYTES
    window = Window(0, b"", size_bytes)
    pax: dict[str, str] = {}

    def look(start: int, stop: int) -> bytes | memoryview:
        if window.has(start, stop):
            return window.data[start - window.start_bytes : stop - window.start_bytes]
        return read(start, min(stop, size_bytes))

    while True:
        if not window.has(offset_bytes, offset_bytes + BLOCK_BYTES):
            window = Window(offset_bytes, read(offset_bytes, min(size_bytes, offset_bytes + window_bytes)), size_bytes)
        in_runs = not pax and len(window.data) > _SMALL_WINDOW_BYTES  # arrays only pay off with many headers
        run = window.run_at(offset_bytes) if in_runs else None
        if run is not None:
            yield run
            stride_bytes = (run.stop_bytes - run.starts[0]) // len(run.starts)
            window_bytes = _BIG_WINDOW_BYTES if stride_bytes < _SKIP_BYTES else least_bytes
            offset_bytes = run.stop_bytes
            continue
        found = next_member(look, offset_bytes, size_bytes, path, pax)
        if found is None:
            yield End(offset_bytes, len(look(offset_bytes, offset_bytes + BLOCK_BYTES)) == BLOCK_BYTES)
            return
        if isinstance(found, dict):
            offset_bytes = int(found.pop("next"))
            pax = found
            continue
        yield found
        if window_bytes == _SMALL_WINDOW_BYTES and found.stop_bytes - found.start_bytes < _SKIP_BYTES:
            window_bytes = _FIRST_WINDOW_BYTES
        offset_bytes = found.stop_bytes


# --- files -------------------------------------------------------------------------------------------------------


@contextmanager
def reading(store: Store, path: str) -> Generator[tuple[Read, int, int]]:
    """Yield `(read, size_bytes, least window)` of an archive; a local one is opened once."""
    with store.reader(path) as (read, size_bytes):
        yield read, size_bytes, _SMALL_WINDOW_BYTES if store.is_local else _FIRST_WINDOW_BYTES << 4


def scan_file(store: Store, path: str) -> Iterator[Run | Member | End]:
    with reading(store, path) as (read, size_bytes, least_bytes):
        yield from scan(read, size_bytes, path, least_bytes)


def read_tail(store: Store, path: str, end_bytes: int) -> tuple[int, int | None]:
    """Return the number of bytes from `end_bytes` on, and the offset of the first that isn't zero.

    Padding takes one small read. If there are more zeros, all of them are read.
    """
    offset_bytes, window_bytes = end_bytes, MOST_PADDING_BYTES + 1
    with reading(store, path) as (read, size_bytes, _):
        while offset_bytes < size_bytes:
            piece = bytes(read(offset_bytes, min(size_bytes, offset_bytes + window_bytes)))
            rest = piece.lstrip(b"\0")
            if rest or not piece:
                return size_bytes - end_bytes, offset_bytes + len(piece) - len(rest)
            offset_bytes, window_bytes = offset_bytes + len(piece), _BIG_WINDOW_BYTES
    return size_bytes - end_bytes, None
