"""Documents and lines as rows of units."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.reshape.datasets import write_lines, write_tokens

import penstock as ps
from penstock.engine.rows import StoredRows, read_run, runs, total_units
from penstock.errors import NotFound, Truncated, Unsupported
from penstock.reshape import rows as rows_module
from penstock.reshape.rows import ChainedRows, LineRows, open_rows
from penstock.store.local import LocalStore
from penstock.store.place import Place

DOCUMENTS = [[1, 2, 3], [], [4], [5] * 40, [6, 7]]


def all_rows(rows: StoredRows, run_bytes: int = 1 << 20) -> list[list[int]]:
    found: list[list[int]] = []
    for first, stop in runs(rows, run_bytes=run_bytes):
        data, lengths = read_run(rows, first, stop)
        found += [one.tolist() for one in np.split(data, np.cumsum(lengths)[:-1])]
    return found


@pytest.mark.parametrize("run_bytes", [1, 8, 20, 1 << 20])
def test_documents(tmp_path: Path, run_bytes: int) -> None:
    rows = open_rows(write_tokens(tmp_path / "a.pbin", DOCUMENTS))
    assert all_rows(rows, run_bytes) == DOCUMENTS
    assert total_units(rows) == 46
    starts, lengths = rows.ranges(np.array([3, 0]))
    assert (starts.tolist(), lengths.tolist()) == ([4, 0], [40, 3])
    np.testing.assert_array_equal(rows.view(4, 44), rows.read(4, 44))


def test_runs_hold_what_fits(tmp_path: Path) -> None:
    rows = open_rows(write_tokens(tmp_path / "a.pbin", [[1] * 5] * 10))
    assert list(runs(rows, run_bytes=25)) == [(n, n + 2) for n in range(0, 10, 2)]
    assert list(runs(rows, 3, 6, run_bytes=25)) == [(3, 5), (5, 6)]
    assert list(runs(rows, 3, 3)) == []


@pytest.mark.parametrize("last", [True, False])
def test_lines_get_their_ends(tmp_path: Path, last: bool) -> None:
    path = write_lines(tmp_path / "a.jsonl", ["a", "bb", ""], last=last)
    rows = open_rows(path)
    whole = write_lines(tmp_path / "b.jsonl", ["a", "bb", ""]).read_bytes()
    assert b"".join(map(bytes, all_rows(rows, 1))) == whole
    assert bytes(rows.view(0, len(whole))) == whole


def test_an_index_in_another_order(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n22\n" + b"9" * 1000 + b"\n4\n")
    store = LocalStore()
    near = LineRows(np.array([[2, 2], [0, 1]]), Place(store, str(path)))
    assert all_rows(near) == [list(b"22\n"), list(b"1\n")]
    far = LineRows(np.array([[1006, 1], [0, 1]]), Place(store, str(path)))
    assert all_rows(far) == [list(b"4\n"), list(b"1\n")]


def test_a_file_that_became_shorter(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", ["a" * 100, "b" * 100])
    rows = open_rows(path)
    path.write_bytes(path.read_bytes()[:120])
    with pytest.raises(Truncated, match="became shorter"):
        all_rows(rows)


def test_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "PIECE_UNITS", 16)
    parts = [open_rows(write_tokens(tmp_path / f"{n}.pbin", [*DOCUMENTS, [n]])) for n in range(3)]
    joined = ChainedRows([(parts[0], 1, 4), (parts[1], 2, 2), (parts[2], 0, 6), (parts[0], 5, 6)])
    expected = [*DOCUMENTS[1:4], *DOCUMENTS, [2], [0]]
    assert len(joined) == len(expected)
    assert all_rows(joined) == expected
    assert joined.can_view()
    order = np.array([9, 0, 4, 2, 8, 3, 7, 1, 5, 6])
    starts, lengths = joined.ranges(order)
    found = [joined.view(start, start + length).tolist() for start, length in zip(starts, lengths, strict=True)]
    assert found == [expected[i] for i in order]
    joined.release()


def test_what_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"nothing")
    with pytest.raises(Unsupported):
        open_rows(tmp_path / "a.bin")
    with pytest.raises(NotFound):
        open_rows(tmp_path / "b.pbin")


def test_rows_are_those_of_the_source(golden: Path) -> None:
    path = golden / "modalities" / "pbin" / "docs.bpe2.pbin"
    source = ps.open(path)
    assert all_rows(open_rows(path)) == [source[i]["tokens"].tolist() for i in range(len(source))]
