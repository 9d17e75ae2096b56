"""The file of a finished task."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.shared_work import finish_part

from penstock.engine.groups import GroupPart, encode_group
from penstock.engine.parts import (
    BadLine,
    PartMeta,
    PartName,
    PieceMeta,
    Probe,
    encode_end,
    parse_part_name,
    read_part,
)
from penstock.errors import Corrupt, NotFound
from penstock.store.local import LocalStore
from penstock.store.place import place_of

STORE = LocalStore()
PIECE = PieceMeta(7, 5, 90, "ab" * 16, 4, 3, 1, (BadLine(2, 40, "a blank line"),))
META = PartMeta((PIECE,), 3, 10, 9, (Probe(7, "é", [1, 2]),))


def write(path: Path, lengths: list[int], meta: PartMeta, token_bytes: int = 2) -> None:
    staged = STORE.stage(str(path))
    staged.write(np.arange(sum(lengths), dtype=f"<u{token_bytes}"))
    finish_part(staged, encode_end(np.array(lengths, np.int64), meta))


@given(
    *(st.integers(0, 10**12) for _ in range(5)),
    st.booleans(),
    st.text("0123456789abcdef", min_size=16, max_size=16),
)
def test_a_name_is_read_as_it_was_written(
    task: int, piece: int, documents: int, tokens: int, num_dropped: int, last: bool, digest: str
) -> None:
    name = PartName(task, piece, last, documents, tokens, num_dropped, digest)
    folder, _, written = name.path.partition("/")
    assert int(folder, 16) == task % 256
    assert parse_part_name(written) == name


@pytest.mark.parametrize(
    "name", ["", "a.part", "00000000-000000.part", "0-0z-0-0-0-0123456789abcdef.part", "00000001-000000-1-1-1-é.part"]
)
def test_no_name_of_a_part(name: str) -> None:
    assert parse_part_name(name) is None


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.part"
    write(path, [3, 0, 7], META)
    meta, lengths = read_part(place_of(path), 2)
    assert meta == META
    assert meta.num_dropped == 1
    assert lengths.tolist() == [3, 0, 7]
    assert lengths.dtype == np.int64
    assert path.read_bytes()[:20] == np.arange(10, dtype="<u2").tobytes()


def test_a_damaged_part(tmp_path: Path) -> None:
    path = tmp_path / "x.part"
    write(path, [3, 0, 7], META)
    data = path.read_bytes()
    for damaged in (
        b"",
        data[:-1],
        data[1:],
        data[:40],
        data + b"\0",
        *(flipped(data, place) for place in range(20, len(data))),
    ):
        path.write_bytes(damaged)
        with pytest.raises(Corrupt, match="damaged"):
            read_part(place_of(path), 2)
    path.write_bytes(data)
    with pytest.raises(Corrupt):
        read_part(place_of(path), 4)
    with pytest.raises(NotFound):
        read_part(place_of(tmp_path / "missing"), 2)


def test_a_meta_that_does_not_fit(tmp_path: Path) -> None:
    write(tmp_path / "x.part", [3, 7, 1], META)
    with pytest.raises(Corrupt):
        read_part(place_of(tmp_path / "x.part"), 2)


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_a_group_is_one_part_in_whatever_order_its_files_were_digested() -> None:
    digests = {f"shard.{number:05d}.mds": (f"{number}",) for number in range(4)}
    index = msgspec.Raw(b'{"shards": [], "version": 2}')
    first, other = (GroupPart("0", index, dict(one)) for one in (digests.items(), reversed(digests.items())))
    assert encode_group(first) == encode_group(other)
    assert msgspec.json.decode(encode_group(first), type=GroupPart) == first
