"""Hostile tars and `.nv-meta`: typed errors that name the place, no code run, no memory for what is not there."""

from __future__ import annotations

import io
import json
import sqlite3
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.internals import prepare_webdataset

import penstock as ps
from penstock import prepare_media
from penstock.errors import (
    ConfigError,
    Corrupt,
    FormatError,
    NotFound,
    PenstockError,
    TooLarge,
    Truncated,
    UnsafeData,
    Unsupported,
)


def tar_of(members: list[tuple[str, bytes]], **how: Any) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", **how) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def header(name: str = "z.txt", kind: bytes = b"0", **fields: bytes) -> bytes:
    """A header with a right checksum, whatever else is in it."""
    block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    block[156:157] = kind
    if "size" in fields:
        block[124:136] = fields["size"].ljust(12, b"\0")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


GOOD = tar_of([(f"k{number}.txt", b"x" * 700) for number in range(4)])
AT = 4 * 1536
"""Where the members of GOOD end."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.tar").write_bytes(GOOD)
    return tmp_path / "set"


@pytest.fixture
def prepared(root: Path) -> Path:
    prepare_webdataset(root, split_ratio=(1, 0, 0))
    return root


def refusal(root: Path) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        prepare_webdataset(root, split_ratio=(1, 0, 0))
    assert not (root / ".nv-meta").exists()
    return caught.value


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# --- tars ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "kind", "offset_bytes"),
    [
        (GOOD[: AT - 1000], Truncated, AT - 1536),
        (GOOD[: AT - 1300], Truncated, AT - 1536),
        (GOOD[:AT] + header(size=b"\x80" + (1 << 60).to_bytes(11, "big")) + bytes(1024), Truncated, AT),
        (GOOD[:AT] + header(size=b"77777777777") + bytes(1024), Truncated, AT),
        (GOOD[:AT] + header(size=b"\xff" * 12) + bytes(1024), Corrupt, AT),
        (GOOD[:AT] + header(size=b"-0000000005") + bytes(1024), Corrupt, AT),
        (GOOD[:AT] + header(size=b"not octal") + bytes(1024), Corrupt, AT),
        (GOOD[:AT] + b"garbage" * 200, Corrupt, AT),
        (GOOD[:1536] + b"\x01" + GOOD[1537:], Corrupt, 1536),
        (GOOD[:AT] + header("././@LongLink", b"L", size=b"77777777") + bytes(8 << 21), TooLarge, AT),
        (GOOD[:AT] + header("x", b"x", size=b"10000000") + bytes(3 << 20), TooLarge, AT),
        (GOOD[:AT] + header("x", b"x", size=b"40") + b"99 path=a.txt\n".ljust(512, b"\0") + bytes(512), Corrupt, AT),
        (GOOD[:AT] + header("x", b"x", size=b"40") + b"14 size=-10000\n".ljust(512, b"\0") + bytes(512), Corrupt, AT),
        (GOOD[:AT] + header("x", b"x", size=b"20") + b"16 path=a.txt\n\n\n".ljust(512, b"\0"), Truncated, None),
        (GOOD[:AT] + header("././@LongLink", b"L", size=b"10") + bytes(512) + bytes(1024), Corrupt, None),
        (b"", Corrupt, None),
        (b"\0" * 5000, Corrupt, None),
        (b"no tar at all", Truncated, 0),
        (b"no tar at all" * 100, Corrupt, 0),
    ],
)
def test_damage_is_named_by_offset(root: Path, data: bytes, kind: Any, offset_bytes: int | None) -> None:
    (root / "b.tar").write_bytes(data.replace(b"k", b"m") if data[:1] == b"k" and kind is None else data)
    (root / "a.tar").unlink()
    error = refusal(root)
    assert type(error) is kind, error
    assert str(error.path).endswith("b.tar")
    assert offset_bytes is None or error.offset_bytes == offset_bytes


def test_a_size_that_lies_takes_no_memory(root: Path) -> None:
    (root / "a.tar").write_bytes(GOOD[:AT] + header(size=b"\x80" + (1 << 60).to_bytes(11, "big")) + bytes(1024))
    assert peak_bytes(lambda: refusal(root)) < 16 << 20


def test_a_name_that_is_no_text(root: Path) -> None:
    (root / "a.tar").write_bytes(tar_of([("a\udcff.txt", b"")], format=tarfile.GNU_FORMAT, errors="surrogateescape"))
    error = refusal(root)
    assert isinstance(error, Unsupported)
    assert "a\\xff" in str(error.found)
    str(error).encode()


def test_a_name_with_a_nul(root: Path) -> None:
    record = b"17 path=a\0b.txt\n\n"
    data = header("x", b"x", size=b"%o" % len(record)) + record.ljust(512, b"\0") + header("z.txt", size=b"0")
    (root / "a.tar").write_bytes(data + bytes(1024))
    assert isinstance(refusal(root), Corrupt)


def test_names_are_only_keys(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.tar").write_bytes(tar_of([("../../up.txt", b"up"), ("/etc/x.txt", b"abs")]))
    prepare_webdataset(tmp_path / "set", split_ratio=(1, 0, 0))
    source: Any = ps.open(tmp_path / "set", raw=True)
    assert source.get("../../up.txt") == b"up"
    assert {one.code for one in ps.verify(tmp_path / "set", depth="full")} == {"webdataset.name"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set"]


# --- a dataset whose shards changed ----------------------------------------------------------------------------------


def test_a_shard_that_was_cut(prepared: Path) -> None:
    (prepared / "a.tar").write_bytes(GOOD[: AT - 600])
    source: Any = ps.open(prepared, raw=True)
    assert len(source[0]["txt"]) == 700
    with pytest.raises(Truncated):
        source[3]
    with pytest.raises(Truncated):
        source.get_batch([0, 3])
    with pytest.raises(Truncated):
        source.get("k3.txt")
    assert any(one.severity == "error" for one in ps.verify(prepared))


def test_a_shard_that_was_packed_again(prepared: Path) -> None:
    (prepared / "a.tar").write_bytes(tar_of([(f"k{number}.txt", b"y" * 100) for number in range(30)]))
    source: Any = ps.open(prepared, raw=True)
    with pytest.raises(Corrupt) as caught:
        source[1]
    assert caught.value.offset_bytes == 1536 or "two keys" in str(caught.value)
    codes = {one.code for one in ps.verify(prepared, depth="full")}
    assert "webdataset.count" in codes


@pytest.mark.parametrize("data", [b"", b"\0" * 8, b"\xff" * 40, b"\0" * 39, (1 << 62).to_bytes(8, "little") * 5])
def test_indexes_that_lie(prepared: Path, data: bytes) -> None:
    (prepared / "a.tar.idx").write_bytes(data)
    source: Any = ps.open(prepared, raw=True)
    with pytest.raises(FormatError):
        [source[index] for index in range(4)]
    assert any(one.code == "webdataset.index" for one in ps.verify(prepared, depth="full"))
    ps.repair(prepared, write=True)
    assert [one for one in ps.verify(prepared, depth="full") if one.severity == "error"] == []
    assert (prepared / "a.tar.idx.bak").read_bytes() == data


# --- index.sqlite ----------------------------------------------------------------------------------------------------


def run_sql(root: Path, *statements: str) -> None:
    with closing(sqlite3.connect(root / ".nv-meta" / "index.sqlite")) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


@pytest.mark.parametrize(
    "statements",
    [
        ("UPDATE sample_parts SET content_byte_size = 1152921504606846976",),
        ("UPDATE sample_parts SET content_byte_offset = -5",),
        ("UPDATE sample_parts SET content_byte_offset = 'x'",),
        ("UPDATE sample_parts SET content_byte_size = x'00'",),
        ("UPDATE samples SET tar_file_id = 7", "UPDATE sample_parts SET tar_file_id = 7"),
        ("DROP TABLE sample_parts", "CREATE VIEW sample_parts AS SELECT * FROM samples"),
        ("DROP TABLE sample_parts", "CREATE TABLE sample_parts (a)"),
    ],
)
def test_rows_that_lie(prepared: Path, statements: tuple[str, ...]) -> None:
    run_sql(prepared, *statements)
    source: Any = ps.open(prepared, raw=True)
    with pytest.raises(FormatError):
        source.get("k1.txt")
    assert len(source[1]["txt"]) == 700
    assert any(one.code == "webdataset.sqlite" for one in ps.verify(prepared, depth="full")) or "x'00'" in statements[0]


@pytest.mark.parametrize("data", [b"no database", b"", b"SQLite format 3\0" + b"\xff" * 5000])
def test_no_database(prepared: Path, data: bytes) -> None:
    (prepared / ".nv-meta" / "index.sqlite").write_bytes(data)
    source: Any = ps.open(prepared, raw=True)
    if data:
        with pytest.raises(Corrupt):
            source.get("k1.txt")
    else:
        assert len(source.get("k1.txt")) == 700  # an empty database: names are found by the headers
    assert len(source) == 4
    assert any(one.code == "webdataset.sqlite" for one in ps.verify(prepared))
    ps.repair(prepared, write=True)
    again: Any = ps.open(prepared, raw=True)
    assert len(again.get("k1.txt")) == 700
    assert [one for one in ps.verify(prepared, depth="full") if one.severity == "error"] == []


def test_a_key_in_two_samples_names_none(prepared: Path) -> None:
    run_sql(
        prepared,
        "CREATE TABLE old (tar_file_id INTEGER, sample_key TEXT, sample_index INTEGER, byte_offset, byte_size)",
        "INSERT INTO old SELECT tar_file_id, 'same', sample_index, byte_offset, byte_size FROM samples",
        "DROP TABLE samples",
        "ALTER TABLE old RENAME TO samples",
    )
    source: Any = ps.open(prepared, raw=True)
    for read in (source.index_of, lambda key: source.get(f"{key}.txt")):
        with pytest.raises(Corrupt, match="'same' is in two samples"):
            read("same")
    found = [one for one in ps.verify(prepared) if one.code == "webdataset.repeated-key"]
    assert [one.severity for one in found] == ["warning"]


# --- the files of .nv-meta -------------------------------------------------------------------------------------------


def test_a_key_in_two_shards_is_a_finding_without_an_index_too(prepared: Path) -> None:
    for name in ("a.tar", "a.tar.idx"):
        (prepared / name.replace("a", "b", 1)).write_bytes((prepared / name).read_bytes())
    write_info(prepared, {"shard_counts": {"a.tar": 4, "b.tar": 4}})
    (prepared / ".nv-meta" / "index.sqlite").unlink()
    (prepared / ".nv-meta" / "split.yaml").write_text("split_parts: {train: [a.tar, b.tar]}\n")
    source: Any = ps.open(prepared, raw=True)
    assert len(list(source)) == 8
    with pytest.raises(Corrupt, match="two samples"):
        source.get("k2.txt")
    [one] = [one for one in ps.verify(prepared, depth="full") if one.code == "webdataset.repeated-key"]
    assert one.severity == "warning"
    assert one.path.endswith("b.tar")
    assert "4 such keys" in str(one.found)


def write_info(root: Path, value: Any) -> None:
    (root / ".nv-meta" / ".info.json").write_text(value if isinstance(value, str) else json.dumps(value))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("", FormatError),
        ("[" * 100_000, FormatError),
        ({}, FormatError),
        ({"shard_counts": []}, FormatError),
        ({"shard_counts": {"a.tar": -1}}, Corrupt),
        ({"shard_counts": {"a.tar": 1 << 60}}, Corrupt),
        ({"shard_counts": {"a.tar": 1.5}}, Corrupt),
        ({"shard_counts": {"a.tar": True}}, Corrupt),
        ({"shard_counts": {"../../a.tar": 4}}, UnsafeData),
        ({"shard_counts": {"/etc/a.tar": 4}}, UnsafeData),
        ({"shard_counts": {"part-000.parquet": 4}}, Unsupported),
    ],
)
def test_lists_that_lie(prepared: Path, value: Any, kind: Any) -> None:
    write_info(prepared, value)
    with pytest.raises(kind) as caught:
        ps.open(prepared, raw=True)
    assert type(caught.value) is kind
    assert any(one.severity == "error" for one in ps.verify(prepared))


def test_a_count_beyond_the_index(prepared: Path) -> None:
    write_info(prepared, {"shard_counts": {"a.tar": 1 << 40}})
    source: Any = ps.open(prepared, raw=True)

    def read() -> None:
        with pytest.raises(Corrupt):
            source[1 << 39]

    assert peak_bytes(read) < 16 << 20


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("split_parts:\n  train:\n  - b.tar\n", Corrupt),
        ("split_parts:\n  train:\n  - '{1..1000000000000}.tar'\n", TooLarge),
        ("split_parts:\n  train:\n  - '" + "{a,b}" * 60 + "'\n", TooLarge),
        ("split_parts:\n  train:\n  - '" + "{" * 300 + "}" * 300 + "'\n", FormatError),
        ("split_parts:\n  train:\n  - a{.tar\n", FormatError),
        ("split_parts:\n  train: a.tar\n", FormatError),
        ("split_parts:\n  train: [[a.tar]]\n", FormatError),
        ("split_parts: [a.tar]\n", FormatError),
        ("- a.tar\n", FormatError),
        ("split_parts: {train: [a.tar]}\nexclude: 5\n", FormatError),
        ("split_parts: !!python/object/apply:os.system ['touch hacked']\n", FormatError),
        ("a: " + "[" * 100_000, FormatError),
        ("\0", FormatError),
    ],
)
def test_splits_that_lie(prepared: Path, text: str, kind: Any) -> None:
    (prepared / ".nv-meta" / "split.yaml").write_text(text)
    with pytest.raises((kind, ConfigError)) as caught:
        ps.open(prepared, raw=True, split="train")
    assert str(caught.value.path).endswith("split.yaml")
    assert any(one.code == "webdataset.splits" for one in ps.verify(prepared))
    assert not Path("hacked").exists()


def test_metadata_over_something_else(tmp_path: Path) -> None:
    (tmp_path / "set" / ".nv-meta").mkdir(parents=True)
    write_info(tmp_path / "set", {"shard_counts": {"x.parquet": 3}})
    with pytest.raises(Unsupported, match="aren't tar shards"):
        ps.open(tmp_path / "set")


def test_not_prepared(root: Path) -> None:
    with pytest.raises(Unsupported, match="penstock prepare"):
        ps.open(root)
    with pytest.raises((NotFound, Unsupported)):
        ps.open(root / "a.tar")


# --- contents that lie -----------------------------------------------------------------------------------------------


def png(width: int, height: int) -> bytes:
    """An image of this size, as its header says; there is next to nothing in it."""
    out = b"\x89PNG\r\n\x1a\n"
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\2\0\0\0"
    for kind, data in ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(10))), (b"IEND", b"")):
        out += len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
    return out


def box(kind: bytes, body: bytes, size: int | None = None) -> bytes:
    return (len(body) + 8 if size is None else size).to_bytes(4, "big") + kind + body


FTYP = box(b"ftyp", b"isom" + bytes(4))
VIDEOS = {
    "long": FTYP + box(b"moov", box(b"mvhd", bytes(12) + b"\xff" * 8 + bytes(80))),
    "far": FTYP + (1).to_bytes(4, "big") + b"moov" + (1 << 60).to_bytes(8, "big"),
    "deep": FTYP + b"".join(box(b"moov", b"", 1 << 20) for _ in range(5000)),
    "endless": box(b"moov", b"", 0) * 3,
}


@pytest.mark.parametrize(
    ("image", "kind"),
    [
        (png(60_000, 60_000), TooLarge),
        (png((1 << 31) - 1, (1 << 31) - 1), TooLarge),
        (png(0, 0), Corrupt),
        (png(9, 9)[:20], Truncated),
        (b"", Corrupt),
    ],
)
@pytest.mark.parametrize(
    "config", ["__class__: CrudeWebdataset", "sample_type: {__class__: ImageSample}\nfield_map: {image: png}"]
)
def test_images_that_lie(root: Path, image: bytes, kind: Any, config: str) -> None:
    (root / "a.tar").write_bytes(tar_of([("k.png", image)]))
    prepare_webdataset(root, split_ratio=(1, 0, 0))
    (root / ".nv-meta" / "dataset.yaml").write_text(config)

    def read() -> None:
        with pytest.raises(kind, match="'k'"):
            ps.open(root)[0]

    assert peak_bytes(read) < 16 << 20


def test_media_that_lie(root: Path) -> None:
    images = {f"i{number}.png": png(3, 2)[: 40 - 10 * number] for number in range(4)}
    videos = {f"{name}.mp4": video for name, video in VIDEOS.items()}
    (root / "a.tar").write_bytes(tar_of([*images.items(), *videos.items(), ("whole.png", png(3, 2))]))
    prepare_webdataset(root, split_ratio=(1, 0, 0))
    found: list[Any] = []
    assert peak_bytes(lambda: found.append(prepare_media(root, by="header", workers=1))) < 64 << 20
    source: Any = ps.open(root, raw=True)
    assert source.get_media_metadata("whole.png").width == 3
    for name in [*videos, "i2.png", "i3.png"]:
        with pytest.raises(NotFound):
            source.get_media_metadata(name)
    assert set(videos) <= {one.name for one in found[0].problems}
