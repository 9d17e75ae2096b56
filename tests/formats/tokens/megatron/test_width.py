"""An index that states another token width than its tokens have."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.errors import Corrupt

CODES = {"uint8": 1, "uint16": 8, "int32": 4}  # of Megatron-LM's DType
LENGTHS = (3, 5, 1, 4)


def write_pair(path: Path, stored: str, stated: str, pointers_of: str) -> bytes:
    """Write a pair as Megatron-LM lays it out, with the code of another dtype; return the right index."""
    ids = np.arange(1, sum(LENGTHS) + 1)
    path.with_suffix(".bin").write_bytes(ids.astype(stored).tobytes())

    def index(code: str, width: int) -> bytes:
        pointers = np.concatenate([[0], np.cumsum(LENGTHS)[:-1]]) * width
        head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, CODES[code], len(LENGTHS), len(LENGTHS) + 1)
        arrays = np.array(LENGTHS, "<i4").tobytes() + pointers.astype("<i8").tobytes()
        return head + arrays + np.arange(len(LENGTHS) + 1, dtype="<i8").tobytes()

    path.with_suffix(".idx").write_bytes(index(stated, np.dtype(pointers_of).itemsize))
    return index(stored, np.dtype(stored).itemsize)


@pytest.mark.parametrize("pointers_of", ["stored", "stated"])
@pytest.mark.parametrize(("stored", "stated"), [("uint16", "int32"), ("int32", "uint16"), ("uint8", "uint16")])
def test_another_width_is_an_error_and_repaired_exactly(
    tmp_path: Path, stored: str, stated: str, pointers_of: str
) -> None:
    right = write_pair(tmp_path / "a", stored, stated, {"stored": stored, "stated": stated}[pointers_of])
    path = str(tmp_path / "a")
    with pytest.raises(Corrupt, match=f"token width in the index.*{stored}"):
        ps.open(path)
    assert [(one.code, one.severity) for one in ps.verify(path, depth="quick")] == [("megatron.width", "error")]
    (action,) = ps.repair(path)
    assert (action.code, action.done) == ("megatron.width", False)
    ps.repair(path, write=True)
    assert (tmp_path / "a.idx").read_bytes() == right
    assert not [one for one in ps.verify(path, depth="full") if one.severity == "error"]
    assert [one["tokens"].tolist() for one in ps.open(path)] == [[1, 2, 3], [4, 5, 6, 7, 8], [9], [10, 11, 12, 13]]
