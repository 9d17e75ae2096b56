"""The file of a finished task."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock.errors import Corrupt, NotFound
from penstock.store.local import LocalStore
from penstock.store.place import place_of
from penstock.work.parts import BadLine, PartMeta, Probe, finish_part, part_name, read_part

STORE = LocalStore()
META = PartMeta(5, 90, "ab" * 16, False, 4, 3, 10, 9, 1, (BadLine(2, 40, "a blank line"),), (Probe("é", [1, 2]),))


def write(path: Path, lengths: list[int], meta: PartMeta, token_bytes: int = 2) -> None:
    staged = STORE.stage(str(path))
    staged.write(np.arange(sum(lengths), dtype=f"<u{token_bytes}"))
    finish_part(staged, np.array(lengths, np.int64), meta)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / part_name(3, 12)
    assert path.name == "000003-00000012.part"
    write(path, [3, 0, 7], META)
    meta, lengths = read_part(place_of(path), 2)
    assert meta == META
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
