"""A folder of Parquet or Arrow files that differ in columns that nobody asks for."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.called import called

import penstock as ps
from penstock.errors import Unsupported

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def write(folder: Path) -> Path:
    folder.mkdir()
    pq.write_table(pa.table({"ids": [[1, 2], [3]], "text": ["a", "b"]}), folder / "a.parquet")
    pq.write_table(pa.table({"n": [1], "ids": [[4, 5, 6]]}), folder / "b.parquet")
    return folder


def test_only_columns_that_are_asked_for_have_to_agree(tmp_path: Path) -> None:
    folder = write(tmp_path / "in")
    source = ps.open(folder, tokens_column="ids")
    assert [one["tokens"].tolist() for one in source] == [[1, 2], [3], [4, 5, 6]]
    report = ps.convert(folder, tmp_path / "a.pbin", tokens_column="ids")
    assert (report.samples, report.lost) == (3, ("columns that only some of the files have",))
    assert ps.convert(str(folder / "*.parquet"), tmp_path / "b.pbin", tokens_column="ids", workers=2).samples == 3
    assert (tmp_path / "a.pbin").read_bytes() == (tmp_path / "b.pbin").read_bytes()
    assert [dict(one) for one in ps.open(folder, columns=("ids",))][2] == {"ids": [4, 5, 6]}


def test_others_are_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = write(tmp_path / "in")
    with pytest.raises(Unsupported, match="--tokens-column"):
        list(ps.open(folder))
    with pytest.raises(Unsupported, match="the columns differ from those of the first file"):
        list(ps.open(folder, columns=("ids", "text")))
    pq.write_table(pa.table({"ids": ["x"]}), folder / "c.parquet")
    with pytest.raises(Unsupported, match=r"the column 'ids' has a different type .* found string"):
        ps.convert(folder, tmp_path / "a.pbin", tokens_column="ids")


def test_a_column_of_another_type_is_named_with_both_types(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "ids": pa.array([[1]], pa.list_(pa.int32()))}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [1], "ids": pa.array([[1]], pa.large_list(pa.int64()))}), tmp_path / "b.parquet")
    with pytest.raises(Unsupported, match=r"b\.parquet: the column 'ids' has a different type") as caught:
        list(ps.open(tmp_path))
    assert "large_list<element: int64>" in str(caught.value)
    assert "expected list<element: int32>. Cast the column to one type" in str(caught.value)


@pytest.mark.parametrize("format", ["parquet", "hf"])
@pytest.mark.parametrize(
    "others",
    [
        (pa.array([1, 2], pa.int32()), pa.array([3], pa.int64())),
        (pa.array([[1], [2]], pa.list_(pa.int32())), pa.array([["a"]])),
        (pa.array(["a", "b"]), None),
    ],
)
def test_files_may_differ_in_columns_that_are_not_read(tmp_path: Path, format: str, others: tuple[Any, Any]) -> None:
    folder, ids = tmp_path / "in", ([[1, 2], [3]], [[4, 5, 6]])
    folder.mkdir()
    for name, rows, other in zip("ab", ids, others, strict=True):
        table = pa.table({"ids": rows} | ({} if other is None else {"other": other}))
        if format == "parquet":
            pq.write_table(table, folder / f"{name}.parquet")
        else:
            with pa.ipc.new_stream(str(folder / f"{name}.arrow"), table.schema) as writer:
                writer.write_table(table)
    if format == "hf":
        state = {"_data_files": [{"filename": "a.arrow"}, {"filename": "b.arrow"}]}
        (folder / "state.json").write_text(json.dumps(state))
        (folder / "dataset_info.json").write_text("{}")
    expected = [*ids[0], *ids[1]]
    with pytest.raises(Unsupported, match=r"b\.(parquet|arrow): the column.*columns="):
        list(ps.open(folder))
    assert [one["ids"] for one in ps.open(folder, columns=["ids"])] == expected
    assert [one["tokens"].tolist() for one in ps.open(folder, tokens_column="ids")] == expected
    shown = json.loads(called("head", folder, "--columns", "ids", "--json").stdout)
    assert [one["ids"] for one in shown["samples"]] == expected
    assert called("convert", folder, tmp_path / "out", "--to", "mds", "--columns", "ids").returncode == 0
    assert [one["ids"] for one in ps.open(tmp_path / "out")] == expected


TIMES = {
    "nanoseconds": (pa.array([0, 1], pa.timestamp("ns")), "timestamp"),
    "time": (pa.array([0, 1], pa.time64("ns")), "time64"),
    "duration": (pa.array([0, 1], pa.duration("ns")), "duration"),
    "far": (pa.array([0, 10**7], pa.date32()), "date32"),
    "nested": (pa.array([[0], [1]], pa.list_(pa.timestamp("ns"))), "list<"),
}


@pytest.mark.parametrize("name", TIMES)
def test_values_without_a_python_type_are_not_damage(
    tmp_path: Path, name: str, golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is sound, and all its other columns and rows are read."""
    monkeypatch.setitem(sys.modules, "pandas", None)  # pyarrow would return values of pandas, which hold nanoseconds
    values, kind = TIMES[name]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", "b"], "at": values}), path)
    source: Any = ps.open(path)
    assert source[0]["text"] == "a"
    for read in (lambda: source[1], lambda: source.get_batch([1]), lambda: list(source)):
        with pytest.raises(Unsupported, match=rf"a\.parquet: the column 'at' holds a value .* found {kind}"):
            read()
    assert list(ps.open(path, columns=("text",))) == [{"text": "a"}, {"text": "b"}]
    options: dict[str, Any] = {"tokenizer": golden / "modalities" / "tokenizers" / "bpe2", "executor": "inline"}
    ps.pack(path, tmp_path / "a.pbin", **options)
    assert len(ps.open(tmp_path / "a.pbin")) == 2
    with pytest.raises(Unsupported, match="the column 'at' holds a value"):
        ps.pack(path, tmp_path / "b.pbin", jq='.text + ""', **options)


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()])
def test_columns_of_views(tmp_path: Path, kind: Any) -> None:
    values: list[Any] = ["x", None, "a text of more than 12 bytes", ""]
    values = values if kind == pa.string_view() else [one if one is None else one.encode() for one in values]
    pq.write_table(pa.table({"v": pa.array(values, kind)}), tmp_path / "a.parquet", row_group_size=3)
    source: Any = ps.open(tmp_path / "a.parquet")
    assert [source[number]["v"] for number in (3, 2, 1, 0)] == values[::-1]
    assert list(source.get_batch([3, 0, 0])["v"]) == [values[3], values[0], values[0]]
    assert [row["v"] for row in source.get_samples([2, 3, 1])] == [values[2], values[3], values[1]]
    assert [row["v"] for row in source] == values
