"""What is tokenised already: rows with a column of ids become documents; what is no id is named."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import ConfigError, Corrupt, PenstockError, TooLarge, Unsupported
from penstock.testing.sources import check_reads

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

DOCS = [[1, 2, 3], [], [60_000], list(range(500)), [7] * 70]
FULL = [doc or [5] for doc in DOCS]
"""MDS has no empty arrays."""


def table(path: Path, docs: Any, arrow_type: Any, name: str = "input_ids", **columns: Any) -> Path:
    parquet.write_table(pa.table({name: pa.array(docs, arrow_type), **columns}), path, row_group_size=2)
    return path


def saved(path: Path, docs: Any, arrow_type: Any) -> Path:
    """As `datasets.save_to_disk` leaves it."""
    path.mkdir()
    rows = pa.table({"input_ids": pa.array(docs, arrow_type)})
    with pa.ipc.new_stream(path / "data-0.arrow", rows.schema) as writer:
        writer.write_table(rows, max_chunksize=2)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-0.arrow"}]}))
    (path / "dataset_info.json").write_text("{}")
    return path


def arrow(path: Path, make: str) -> Path:
    """One Arrow file, in the file or the stream format."""
    path = path.with_suffix(".arrow")
    rows = pa.table({"input_ids": pa.array(DOCS, pa.list_(pa.int32()))})
    with getattr(pa.ipc, make)(path, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=2)
    return path


def shards(path: Path, encoding: str, dtype: Any) -> Path:
    with ps.create(path, format="mds", columns={"tokens": encoding, "id": "int"}) as writer:
        for number, doc in enumerate(FULL):
            array = np.array(doc, dtype)
            writer.write({"tokens": array.tobytes() if encoding == "bytes" else array, "id": number})
    return path


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def documents(path: Any, **options: Any) -> list[list[int]]:
    source: Any = ps.open(path, **options)
    return [source[index]["tokens"].tolist() for index in range(len(source))]


TABLES: dict[str, Callable[[Path], Path]] = {
    "list of int32": lambda path: table(path, DOCS, pa.list_(pa.int32())),
    "large list of int64": lambda path: table(path, DOCS, pa.large_list(pa.int64())),
    "list of uint16": lambda path: table(path, DOCS, pa.list_(pa.uint16())),
    "uint64, called tokens": lambda path: table(path, DOCS, pa.list_(pa.uint64()), "tokens"),
    "hf": lambda path: saved(path, DOCS, pa.list_(pa.int32())),
    "an Arrow file": lambda path: arrow(path, "new_file"),
    "an Arrow stream": lambda path: arrow(path, "new_stream"),
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables_become_documents_of_the_width_that_their_ids_need(tmp_path: Path, kind: str) -> None:
    source = TABLES[kind](tmp_path / "source")
    for name in ("out.pbin", "out.zarr"):
        report = ps.convert(source, tmp_path / name)
        assert (report.samples, report.tokens, report.token_bytes) == (5, 574, 4 if name == "out.zarr" else 2)
        assert documents(tmp_path / name) == DOCS


def test_rows_of_one_length_become_documents(tmp_path: Path) -> None:
    source = table(tmp_path / "fixed.parquet", [[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2))
    ps.convert(source, tmp_path / "out.pbin")
    assert documents(tmp_path / "out.pbin") == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("encoding", "dtype"),
    [("ndarray:int32", np.int32), ("ndarray:int64", np.int64), ("ndarray", np.int64), ("bytes", np.int64)],
)
def test_columns_of_shards_become_documents(tmp_path: Path, encoding: str, dtype: Any) -> None:
    source = shards(tmp_path / "mds", encoding, dtype)
    options = {"tokens_column": "tokens", "tokens_dtype": "int64"} if encoding == "bytes" else {}
    report = ps.convert(source, tmp_path / "out.pbin", **options)
    assert (report.token_bytes, report.lost) == (2, ("column 'id'",))
    assert documents(tmp_path / "out.pbin") == FULL


def test_lines_of_ids_become_documents_with_an_eos_behind_each(tmp_path: Path) -> None:
    source = lines(tmp_path / "ids.jsonl", *({"ids": doc, "other": "x"} for doc in DOCS))
    report = ps.convert(source, tmp_path / "out.idx", tokens_column="ids", eos=("add", 50_256))
    assert report.eos == "add 50256"
    assert documents(tmp_path / "out.idx") == [[*doc, 50_256] for doc in DOCS]


def test_many_workers_write_the_same_bytes(tmp_path: Path) -> None:
    source = table(tmp_path / "ids.parquet", DOCS, pa.list_(pa.int32()), text=pa.array(list("abcde")))
    named = ((1, "inline"), (2, "processes"))
    reports = [ps.convert(source, tmp_path / f"{n}.pbin", workers=n, executor=how) for n, how in named]
    assert reports[0].lost == ("column 'text'",)
    assert (tmp_path / "1.pbin").read_bytes() == (tmp_path / "2.pbin").read_bytes()
    ps.convert(source, tmp_path / "folder", file_tokens=300, executor="inline")
    assert reports[1].token_bytes == 2
    ps.convert(source, tmp_path / "3.pbin", part=(0, 1), executor="inline")
    shared = ps.convert(source, tmp_path / "3.pbin", finish=True, executor="inline")
    assert (shared.token_bytes, (tmp_path / "3.pbin").read_bytes()) == (2, (tmp_path / "1.pbin").read_bytes())
    assert documents(tmp_path / "folder") == DOCS


def test_a_named_column_is_a_token_source(tmp_path: Path) -> None:
    source = table(tmp_path / "ids.parquet", DOCS, pa.list_(pa.int32()))
    opened: Any = ps.open(source, tokens_column="input_ids", eos_id=3)
    check_reads(opened, [{"tokens": np.array(doc, np.uint32)} for doc in DOCS])
    assert (opened.dtype, opened.eos_id, opened.num_tokens) == (np.uint32, 3, 574)
    assert opened.tokens(2, 8).tolist() == [3, 60_000, 0, 1, 2, 3]
    assert opened.gather(np.array([0, 3]), 3).tolist() == [[1, 2, 3], [60_000, 0, 1]]
    assert ps.Chunk(8)(opened)[0]["tokens"].tolist() == [1, 2, 3, 60_000, 0, 1, 2, 3]
    again: Any = pickle.loads(pickle.dumps(opened))
    assert again.fingerprint == opened.fingerprint != ps.open(source).fingerprint
    assert opened.recipe()["tokens_column"] == "input_ids"
    with pytest.raises(IndexError):
        opened.tokens(0, 575)


def test_documents_end_at_the_eos_where_rows_are_no_borders(tmp_path: Path) -> None:
    source = table(tmp_path / "packed.parquet", [[1, 2, 0, 3], [4, 0, 5, 6]], pa.list_(pa.int32()))
    column: dict[str, Any] = {"tokens_column": "input_ids", "one_document": True}
    ps.convert(source, tmp_path / "found.pbin", eos_id=0, **column)
    assert documents(tmp_path / "found.pbin") == [[1, 2, 0], [3, 4, 0], [5, 6]]
    ps.convert(source, tmp_path / "one.pbin", **column)
    assert documents(tmp_path / "one.pbin") == [[1, 2, 0, 3, 4, 0, 5, 6]]
    prints = {ps.open(source, **column).fingerprint, ps.open(source, eos_id=0, **column).fingerprint}
    assert len(prints) == 2


@pytest.mark.parametrize("name", ["nano.bin", "olmo.npy"])
def test_raw_tokens_need_a_layout_and_nothing_else(tmp_path: Path, name: str) -> None:
    np.arange(1000, dtype="<u2").tofile(tmp_path / name)
    report = ps.convert(tmp_path / name, tmp_path / "out.pbin", layout="uint16", one_document=True)
    assert (report.samples, report.tokens, report.token_bytes) == (1, 1000, 2)
    opened: Any = ps.open(tmp_path / name, layout="uint16", eos_id=499)
    assert opened.doc_starts.tolist() == [0, 500, 1000]
    with pytest.raises(ConfigError, match="--one-document"):
        ps.convert(tmp_path / name, tmp_path / "more.pbin", layout="uint16")


# --- what is no id -------------------------------------------------------------------------------------------------


BAD_TABLES: dict[str, tuple[Any, Any, type[PenstockError], str]] = {
    "below 0": ([[1], [2, -100]], pa.list_(pa.int32()), TooLarge, "row 1 .* -100"),
    "beyond 32 bits": ([[1], [1 << 33]], pa.list_(pa.int64()), TooLarge, "row 1 .* 8589934592"),
    "a null row": ([[1], [2], None], pa.list_(pa.int32()), Corrupt, "row 2 is null"),
    "a null id": ([[1], [2], [3, None]], pa.list_(pa.int32()), Corrupt, "row 2 contains a null id"),
    "lists in lists": ([[[1]], [[2], [3]]], pa.list_(pa.list_(pa.int32())), Unsupported, "holds no token ids"),
    "floats": ([[1.5]], pa.list_(pa.float32()), Unsupported, "holds no token ids"),
    "text": (["a"], pa.string(), Unsupported, "holds no token ids"),
    "bytes without a dtype": ([b"abcd"], pa.binary(), ConfigError, "--tokens-dtype"),
}


@pytest.mark.parametrize("kind", BAD_TABLES)
def test_what_is_no_list_of_ids_names_its_file_and_row(tmp_path: Path, kind: str) -> None:
    docs, arrow_type, error, match = BAD_TABLES[kind]
    source = table(tmp_path / "bad.parquet", docs, arrow_type)
    with pytest.raises(error, match=match) as raised:
        ps.convert(source, tmp_path / "out.pbin", tokens_column="input_ids")
    assert raised.value.path == str(source)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.parquet"]


BAD_LINES: dict[str, tuple[Any, type[PenstockError]]] = {
    "a float": ({"ids": [1, 2.5]}, Corrupt),
    "a truth": ({"ids": [True]}, Corrupt),
    "a list": ({"ids": [[1], [2, 3]]}, Corrupt),
    "null": ({"ids": None}, Corrupt),
    "no column": ({}, Corrupt),
    "text": ({"ids": "1 2"}, Corrupt),
    "beyond 64 bits": ({"ids": [1 << 70]}, Corrupt),
    "below 0": ({"ids": [-1]}, TooLarge),
}


@pytest.mark.parametrize("kind", BAD_LINES)
def test_a_line_without_ids_names_its_row(tmp_path: Path, kind: str) -> None:
    row, error = BAD_LINES[kind]
    source = lines(tmp_path / "bad.jsonl", {"ids": [1]}, row)
    with pytest.raises(error, match="row 1 ") as raised:
        ps.convert(source, tmp_path / "out.pbin", tokens_column="ids")
    assert raised.value.path == str(source)
    assert raised.value.hint


def test_options_that_the_data_have_no_use_for_are_refused(tmp_path: Path) -> None:
    rows = table(tmp_path / "ids.parquet", [[1, 2]], pa.list_(pa.int32()))
    ps.convert(rows, tmp_path / "ids.pbin")
    for source, options, match in (
        (tmp_path / "ids.pbin", {"tokens_column": "tokens"}, "has no columns"),
        (tmp_path / "ids.pbin", {"one_document": True}, "stores document borders"),
        (rows, {"one_document": True}, "unless a column is specified"),
        (rows, {"tokens_dtype": "int64"}, "Specify the column"),
        (rows, {"tokens_column": "input_ids", "tokens_dtype": "int64"}, "columns of bytes"),
        (rows, {"tokens_column": "ids"}, "no column 'ids'"),
    ):
        given: Any = options
        with pytest.raises(ConfigError, match=match):
            ps.convert(source, tmp_path / "out.pbin", **given)
    assert not (tmp_path / "out.pbin").exists()


def test_excluded_rows_are_left_out_of_documents(tmp_path: Path) -> None:
    source = table(tmp_path / "ids.parquet", DOCS, pa.list_(pa.int32()))
    ps.exclude(source, indices=[2], reason="asked to")
    report = ps.convert(source, tmp_path / "out.pbin")
    assert report.excluded == 1
    assert documents(tmp_path / "out.pbin") == [doc for index, doc in enumerate(DOCS) if index != 2]
    with pytest.raises(ConfigError, match="but one_document ignores rows"):
        ps.open(source, tokens_column="input_ids", one_document=True)


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"file_tokens": 2}])
def test_an_eos_that_rows_do_not_end_in_is_not_recorded(tmp_path: Path, options: dict[str, Any]) -> None:
    path = lines(tmp_path / "a.jsonl", {"ids": [5, 0]}, {"ids": [6, 7]})
    with pytest.raises(ConfigError, match="document 1 doesn't end with the EOS given by --eos-id"):
        ps.convert(path, tmp_path / "a", to="pbin", tokens_column="ids", eos_id=0, **options)
    with pytest.raises(PenstockError):
        ps.open(tmp_path / "a")
    ps.convert(path, tmp_path / "b.pbin", tokens_column="ids", eos_id=0, one_document=True)
    assert documents(tmp_path / "b.pbin") == [[5, 0], [6, 7]]
    ps.convert(path, tmp_path / "c.pbin", tokens_column="ids")
    bare: Any = ps.open(tmp_path / "c.pbin")
    assert bare.eos_id is None
