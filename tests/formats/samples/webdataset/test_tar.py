"""Our tar scanner agrees with Python's `tarfile`; keys and parts with the original's."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import Corrupt, FormatError, Unsupported
from penstock.formats.samples.webdataset import tar, tar_blocks
from penstock.formats.samples.webdataset.samples import split_name
from penstock.formats.samples.webdataset.shards import encode_index, index_path, scan_shard
from penstock.formats.samples.webdataset.sqlite_index import decode_table, encode_table
from penstock.formats.samples.webdataset.tar_write import END, encode_headers, padding
from penstock.prepare.energon.run import prepare_webdataset
from penstock.store.local import LocalStore
from penstock.store.memory import MemoryStore
from penstock.testing.datasets import refusal

from .conftest import GOLDEN, golden_json, write_tar

Row = tuple[str, int, int, int, bool]


def ours(data: bytes, least_bytes: int = 4096) -> list[Row]:
    """Name, start, content, size and whether it is a file, of each member."""
    rows: list[Row] = []
    for one in tar.scan(lambda start, stop: data[start:stop], len(data), "a.tar", least_bytes):
        if isinstance(one, tar_blocks.Run):
            rows += [(*row, True) for row in zip(one.names, one.starts, one.contents, one.sizes, strict=True)]
        elif isinstance(one, tar.Member):
            rows.append((one.name, one.start_bytes, one.content_bytes, one.size_bytes, one.is_regular))
    return rows


def theirs(data: bytes) -> list[Row]:
    found: list[Row] = []
    with tarfile.open(fileobj=io.BytesIO(data), errorlevel=2) as archive:
        for one in archive:
            name = one.name + "/" if one.isdir() else one.name
            found.append((name, one.offset, one.offset_data, one.size if one.isreg() else 0, one.isreg()))
    return found


def same_members(left: list[Row], right: list[Row]) -> bool:
    return [(row[0].rstrip("/"), *row[1:]) for row in left] == [(row[0].rstrip("/"), *row[1:]) for row in right]


NAMES = st.one_of(
    st.text("ab./_", min_size=1, max_size=12),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20),
    st.builds(lambda folder, name: f"{folder}/{name}.txt", st.text("d", max_size=160), st.text("n", max_size=150)),
)
KINDS = st.sampled_from([tarfile.REGTYPE] * 6 + [tarfile.AREGTYPE, tarfile.CONTTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE])
MEMBERS = st.lists(
    st.tuples(NAMES, st.integers(0, 1500), KINDS, st.sampled_from([0, 0, 0, 1.5]), st.text("l/é", max_size=130)),
    max_size=12,
)
FORMATS = st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.PAX_FORMAT])


def archive_of(members: list[Any], format: int, pax: dict[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format, pax_headers=pax) as archive:
        for name, size, kind, mtime, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.mtime = kind, mtime if format == tarfile.PAX_FORMAT else 0
            info.size = size if kind not in (tarfile.DIRTYPE, tarfile.SYMTYPE) else 0
            info.linkname = link if kind == tarfile.SYMTYPE else ""
            try:
                archive.addfile(info, io.BytesIO(bytes(info.size)))
            except (ValueError, UnicodeEncodeError):
                continue  # a name that the format can't hold
    return out.getvalue()


@settings(deadline=None, max_examples=150)
@given(MEMBERS, FORMATS, st.sampled_from([None, {"comment": "hello"}]), st.sampled_from([512, 4096, 1 << 20]))
def test_as_tarfile(members: list[Any], format: int, pax: dict[str, str] | None, least_bytes: int) -> None:
    # tarfile does not open an archive of nothing but a global header.
    data = archive_of(members, format, pax if format == tarfile.PAX_FORMAT and members else None)
    assert same_members(ours(data, least_bytes), theirs(data))


@pytest.mark.parametrize("mtimes", [(0,), (1.5,), (0, 0, 1.5)])
@pytest.mark.parametrize("every", [0, 2, 700])
def test_many_members_cross_windows(mtimes: tuple[float, ...], every: int) -> None:
    """Plain members, such with a PAX header that tells only a time, and some whose name stands in it."""
    rng = np.random.default_rng(0)
    members: list[Any] = []
    for number in range(1500):
        name = f"{'é' if every and number % every == 0 else 'k'}{number:05d}.txt"
        members.append((name, int(rng.integers(0, 9000)), b"0", mtimes[number % len(mtimes)], ""))
    members[700:700] = [("big.bin", 9_000_000, b"0", 0, ""), ("é.txt", 5, b"0", 0, ""), ("d/", 0, b"5", 0, "")]
    data = archive_of(members, tarfile.PAX_FORMAT)
    assert same_members(ours(data), theirs(data))


def test_samples_with_pax_times_are_read(tmp_path: Path) -> None:
    members = [(f"k{number}.{part}", 300, b"0", number + 0.5, "") for number in range(50) for part in ("a", "b")]
    (tmp_path / "a.tar").write_bytes(archive_of(members, tarfile.PAX_FORMAT))
    prepare_webdataset(tmp_path, split_ratio=(1, 0, 0))
    source: Any = penstock.open(tmp_path, raw=True)
    assert [sample["__key__"] for sample in source] == [f"k{number}" for number in range(50)]
    assert all(sample["a"] == sample["b"] == bytes(300) for sample in source)
    assert source.place_of(1).extents[0].offset_bytes == 8 * 512


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(NAMES, st.integers(0, 700)), max_size=8))
def test_what_we_write_tarfile_reads(members: list[tuple[str, int]]) -> None:
    pieces = [encode_headers(name, size) + bytes(size) + padding(size) for name, size in members]
    data = b"".join(pieces) + END
    assert same_members(ours(data), theirs(data))
    # tarfile takes a slash off the end of no file's name, and we take none.
    assert [row[0] for row in ours(data)] == [name for name, _ in members]


def test_sizes_beyond_eleven_digits_are_written_and_read() -> None:
    huge = 9 << 30
    for header in (encode_headers("a.bin", huge), base256("a.bin", huge)):
        whole = len(header) + huge

        def read(start: int, stop: int, header: bytes = header, whole: int = whole) -> bytes:
            return header[start:stop].ljust(max(0, min(stop, whole) - start), b"\0")

        one, _ = tar.scan(read, whole, "a.tar")
        assert isinstance(one, tar.Member)
        assert (one.name, one.size_bytes, one.content_bytes) == ("a.bin", huge, len(header))


def base256(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def test_names_that_are_no_utf8_are_kept(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"a\udcff.txt": b"1"}, format=tarfile.GNU_FORMAT, errors="surrogateescape")
    assert scan_shard(LocalStore(), str(path)).keys == ["a\udcff"]


@pytest.mark.parametrize("case", golden_json("tables.json")["member_names"], ids=lambda case: repr(case["name"]))
def test_names_as_the_original(case: dict[str, Any]) -> None:
    found = split_name(case["name"])
    expected = None if case["skipped_as_meta"] else case["key_part"]
    assert (None if found is None else list(found)) == expected


def test_index_names_as_the_original() -> None:
    for case in golden_json("tables.json")["tar_idx_name"]:
        assert index_path(case["tar"]) == case["idx"]


@pytest.mark.parametrize("name", ["pax", "sub/gnu", "sub/mixed", "sub/noeof", "sub/ustar"])
def test_indexes_as_the_original(name: str) -> None:
    path = GOLDEN / "awkward" / f"{name}.tar"
    for store in (LocalStore(), MemoryStore({str(path): path.read_bytes()})):
        table = scan_shard(store, str(path))
        assert encode_index(table.offsets) == path.with_suffix(".tar.idx").read_bytes()
        again = decode_table(encode_table(table), "x")
        assert encode_table(again) == encode_table(table)
        assert again.keys == table.keys


def test_a_damaged_table_is_refused() -> None:
    good = encode_table(scan_shard(LocalStore(), str(GOLDEN / "awkward" / "pax.tar")))
    for damaged in (b"", good[:-9], good[:20], b"\x97" + good[1:] * 2, good.replace(b"txt\0", b"txt.", 1)):
        with pytest.raises(Corrupt):
            decode_table(damaged, "x")


def test_sparse_members_are_refused_by_name(tmp_path: Path) -> None:
    header = bytearray(tarfile.TarInfo("a.txt").tobuf(tarfile.GNU_FORMAT))
    header[156] = ord("S")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path = tmp_path / "a.tar"
    path.write_bytes(bytes(header) + END)
    assert [row[0] for row in ours(path.read_bytes())] == ["a.txt"]
    with pytest.raises(Unsupported, match="sparse"):
        scan_shard(LocalStore(), str(path))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_damage_is_found_or_harmless(data: st.DataObject) -> None:
    whole = bytearray(archive_of([(f"k{n}.txt", n * 90, b"0", 0, "") for n in range(12)], tarfile.PAX_FORMAT))
    expected = ours(bytes(whole))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= 1 << data.draw(st.integers(0, 7))
    headers = [range(row[1], row[2]) for row in expected]
    in_header = any(place in one for one in headers)
    error = refusal(lambda: ours(bytes(whole)))
    if error is None:
        assert ours(bytes(whole)) == expected  # the two bytes that end a checksum may be any
    else:
        assert isinstance(error, FormatError)
        assert error.path == "a.tar"
        assert in_header or place >= expected[-1][1]
