"""A zip file as a read-only store: its members have paths under its own path, as if it were a folder.

Uncompressed members, such as zarr's writers store them, are read by ranges; deflated members are read whole. Memory:
about 300 bytes per member, from the first access.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from penstock._limits import LEAST_UNPACKED_BYTES, MOST_UNPACKED_BYTES, UNPACKED_RATIO
from penstock.abc import Staged
from penstock.codec.zip_members import ZIP_FAULTS, files_in
from penstock.errors import Corrupt, NotFound, TooLarge, Truncated, Unsupported
from penstock.store.base import Range, Store, View, require_inside

MAGIC = b"PK\x03\x04"
_LOCAL_HEADER = struct.Struct("<4sxxHH4xIIIHH")
_ENCRYPTED, _SIZES_FOLLOW, _UTF_8 = 1, 1 << 3, 1 << 11
_IN_ZIP64 = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class _Member:
    name: bytes
    header_bytes: int
    stored_bytes: int
    size_bytes: int
    method: int
    flags: int
    crc: int


_END = _Member(b"", 0, 0, 0, 0, 0, 0)
"""Sentinel after the last member."""


class ZipStore(View):
    """Members of one zip file, by paths under the file's own path; other paths refer to the store of the zip file.

    Args:
        store: store of the zip file.
        path: path of the zip file.
    """

    read_only = "zip files are read-only"
    read_only_hint = "Unpack it, or convert it"

    inner: Store

    def __init__(self, store: Store, path: str) -> None:
        super().__init__(store)
        self._path = path
        self._found: dict[str, _Member] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return (ZipStore, (self.inner, self._path))

    def stored_in(self, paths: Iterable[str]) -> tuple[Store, Iterable[str]]:
        return self.inner, (self._path,)

    def __repr__(self) -> str:
        return f"ZipStore({self._path!r})"

    def get(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        member = self._member(path)
        if member is None:
            return super().get(path, start_bytes, length_bytes)
        left_bytes = max(0, member.size_bytes - start_bytes)
        length_bytes = left_bytes if length_bytes is None else min(left_bytes, length_bytes)
        if member.method == zipfile.ZIP_STORED:
            return self._read(path, member, start_bytes, length_bytes)
        return self._inflate(path, member)[start_bytes : start_bytes + length_bytes]

    def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        member = self._member(path)
        if member is None:
            return super().get_ranges(path, ranges)
        require_inside(path, ranges, member.size_bytes)
        if member.method != zipfile.ZIP_STORED:
            data = self._inflate(path, member)
            return [data[start:stop] for start, stop in ranges]
        base = self._content_bytes(path, member)
        return self.inner.get_ranges(self._path, [(base + start, base + stop) for start, stop in ranges])

    def size(self, path: str) -> int:
        member = self._member(path)
        return super().size(path) if member is None else member.size_bytes

    def exists(self, path: str) -> bool:
        name = self._name(path)
        if name is None:
            return super().exists(path)
        return name in self._members or self.is_folder(path)

    def is_folder(self, path: str) -> bool:
        name = self._name(path)
        if name is None:
            return super().is_folder(path)
        return not name or any(one.startswith(f"{name}/") for one in self._members)

    def list(self, prefix: str) -> Iterator[str]:
        name = self._name(prefix)
        if name is None:
            yield from super().list(prefix)
            return
        if not self.is_folder(prefix):
            raise NotFound("the folder isn't in this zip file", path=prefix, hint="Check the path")
        start = f"{name}/" if name else ""
        found = (one for one in self._members if one.startswith(start))
        yield from (
            f"{self._path}/{one}" for one in sorted(found, key=lambda one: one.encode("utf-8", "surrogateescape"))
        )

    def stage(self, path: str, *, overwrite: bool = False) -> Staged:
        """Start a file next to the zip file; members can't be written."""
        self._require_beside(path)
        return super().stage(path, overwrite=overwrite)

    def delete(self, path: str) -> None:
        """Remove a file next to the zip file; members can't be removed."""
        self._require_beside(path)
        super().delete(path)

    # --- inside --------------------------------------------------------------------------------------------------

    def _name(self, path: str) -> str | None:
        """Return the name of a member, `""` for the zip file itself, or None for a path outside it."""
        if path.rstrip("/") == self._path:
            return ""
        start = f"{self._path}/"
        return path[len(start) :].rstrip("/") if path.startswith(start) else None

    def _member(self, path: str) -> _Member | None:
        name = self._name(path)
        if name is None:
            return None
        if name not in self._members:
            raise NotFound("the file isn't in this zip file", path=path, hint="Check the path")
        return self._members[name]

    @property
    def _members(self) -> dict[str, _Member]:
        if self._found is None:
            try:
                with zipfile.ZipFile(_Reader(self.inner, self._path)) as file:  # pyright: ignore[reportArgumentType]
                    found = {
                        one.filename: _Member(
                            one.orig_filename.encode("utf-8" if one.flag_bits & _UTF_8 else "cp437"),
                            one.header_offset,
                            one.compress_size,
                            one.file_size,
                            one.compress_type,
                            one.flag_bits,
                            one.CRC,
                        )
                        for one in files_in(file)
                    }
                    directory_bytes = file.start_dir
            except ZIP_FAULTS as error:
                raise Corrupt(
                    "not a complete zip file", path=self._path, found=str(error), hint="Copy the file again"
                ) from None
            self._require_apart(found, directory_bytes)
            self._found = found
        return self._found

    def _require_apart(self, found: dict[str, _Member], directory_bytes: int) -> None:
        """Raise `Corrupt` if two members share bytes, which could expand to more than the file contains."""
        in_order = sorted(found.items(), key=lambda one: one[1].header_bytes)
        for (name, one), (_, after) in pairwise([*in_order, ("", replace(_END, header_bytes=directory_bytes))]):
            stop_bytes = one.header_bytes + _LOCAL_HEADER.size + len(one.name) + one.stored_bytes
            if stop_bytes > after.header_bytes:
                raise Corrupt(
                    "members of a zip file overlap", path=f"{self._path}/{name}", offset_bytes=after.header_bytes,
                    found=f"a member up to byte {stop_bytes}", hint="Copy the file again",
                )  # fmt: skip

    def _content_bytes(self, path: str, member: _Member) -> int:
        """Return the offset of a member's bytes in the file."""
        if member.flags & _ENCRYPTED or member.method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            found = "encrypted" if member.flags & _ENCRYPTED else f"compression {member.method}"
            hint = "Write it again with zipfile.ZIP_STORED, as zarr does"
            raise Unsupported("a member of a zip file that can't be read", path=path, found=found, hint=hint)
        # If the start of the file is missing, zipfile counts back from its end, to negative offsets.
        is_there = member.header_bytes >= 0
        wanted_bytes = _LOCAL_HEADER.size + len(member.name)
        head = self.inner.get(self._path, member.header_bytes, wanted_bytes) if is_there else b""
        if len(head) < wanted_bytes or not head.startswith(MAGIC):
            raise Corrupt("a member of a zip file has no header", path=path, offset_bytes=member.header_bytes)
        _, flags, method, crc, stored, size, name_bytes, extra_bytes = _LOCAL_HEADER.unpack_from(head)
        known = ((method, member.method), (name_bytes, len(member.name)), (head[_LOCAL_HEADER.size :], member.name))
        sizes = ((crc, member.crc), (stored, member.stored_bytes), (size, member.size_bytes))
        told = [] if flags & _SIZES_FOLLOW else [pair for pair in sizes if pair[0] != _IN_ZIP64]
        if any(here != there for here, there in (*known, *told)):
            what = "a member of a zip file contradicts its own header"
            raise Corrupt(what, path=path, offset_bytes=member.header_bytes, hint="Copy the file again")
        return member.header_bytes + _LOCAL_HEADER.size + name_bytes + extra_bytes

    def _read(self, path: str, member: _Member, start_bytes: int, length_bytes: int) -> bytes:
        data = self.inner.get(self._path, self._content_bytes(path, member) + start_bytes, length_bytes)
        if len(data) < length_bytes or member.stored_bytes != member.size_bytes:
            expected = f"{member.size_bytes} bytes"
            raise Truncated(
                "a member of a zip file is truncated", path=path, found=f"{len(data)} bytes", expected=expected
            )
        if length_bytes == member.size_bytes and zlib.crc32(data) != member.crc:
            what = "a member of a zip file is damaged"
            raise Corrupt(what, path=path, found="a different checksum", hint="Copy the file again")
        return data

    def _inflate(self, path: str, member: _Member) -> bytes:
        base = self._content_bytes(path, member)
        data = self.inner.get(self._path, base, member.stored_bytes)
        what = "a deflated member of a zip file is damaged"
        most_bytes = min(MOST_UNPACKED_BYTES, max(LEAST_UNPACKED_BYTES, UNPACKED_RATIO * len(data)))
        if member.size_bytes > most_bytes:
            raise TooLarge(
                "a member of a zip file expands too far", path=path, found=f"{member.size_bytes} bytes",
                expected=f"at most {most_bytes} of {len(data)}", hint="Write it again with zipfile.ZIP_STORED",
            )  # fmt: skip
        try:
            made = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, member.size_bytes)
        except zlib.error as error:
            raise Corrupt(what, path=path, found=str(error), hint="Copy the file again") from None
        if len(made) != member.size_bytes or zlib.crc32(made) != member.crc:
            raise Corrupt(
                what, path=path, found=f"{len(made)} bytes, or a different checksum", hint="Copy the file again"
            )
        return made

    def _require_beside(self, path: str) -> None:
        if self._name(path) is not None:
            self._refuse(path)


class _Reader:
    def __init__(self, store: Store, path: str) -> None:
        self._store = store
        self._path = path
        self._size_bytes = store.size(path)
        self._place = 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size_bytes}[whence]
        if base + offset < 0:
            raise ValueError("an offset before the beginning")
        self._place = base + offset
        return self._place

    def read(self, length_bytes: int = -1) -> bytes:
        left_bytes = max(0, self._size_bytes - self._place)
        wanted_bytes = left_bytes if length_bytes < 0 else min(left_bytes, length_bytes)
        data = self._store.get(self._path, self._place, wanted_bytes)
        self._place += len(data)
        return data

    def close(self) -> Any:
        return None
