"""Parquet and Hugging Face tables in filter, split, merge and shuffle: rows as lines, as `convert` writes them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.internals import current, open_rows, replace

import penstock as ps
from penstock.errors import ConfigError, Unsupported

ROWS: list[dict[str, Any]] = [
    {"id": n, "text": f"größe \U0001f600 {n}" * (n % 4), "meta": {"tags": ["a", None][: n % 3], "score": n / 7}}
    for n in range(40)
]


def one_file(root: Path) -> str:
    pq.write_table(pa.Table.from_pylist(ROWS), root / "a.parquet", row_group_size=7)
    return str(root / "a.parquet")


def folder(root: Path) -> str:
    (root / "tables").mkdir()
    for name, some in (("b", ROWS[25:]), ("a", ROWS[:25])):
        pq.write_table(pa.Table.from_pylist(some, one_schema()), root / f"tables/{name}.parquet", row_group_size=7)
    return str(root / "tables")


def pattern(root: Path) -> str:
    return f"{folder(root)}/*.parquet"


def hf(root: Path) -> str:
    (root / "hf").mkdir()
    table = pa.Table.from_pylist(ROWS, one_schema())
    with (
        pa.OSFile(str(root / "hf/data-00000-of-00001.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema) as w,
    ):
        w.write_table(table, max_chunksize=7)
    (root / "hf/state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (root / "hf/dataset_info.json").write_text("{}")
    return str(root / "hf")


def one_schema() -> Any:
    return pa.Table.from_pylist(ROWS).schema


@pytest.fixture(params=[one_file, folder, pattern, hf], ids=lambda make: make.__name__)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    make: Callable[[Path], str] = request.param
    return make(tmp_path)


def read(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize("how", [{}, {"workers": 2}])
def test_as_if_it_had_been_converted_first(table: str, how: dict[str, Any], tmp_path: Path) -> None:
    if how and not table.endswith("tables"):
        pytest.skip("workers open one kind as another")
    lines = tmp_path / "whole.jsonl"
    ps.convert(table, lines, to="jsonl")
    assert read(lines) == ROWS
    verbs: dict[str, Callable[[Any, Path], Any]] = {
        "filter": lambda source, out: ps.filter(source, out / "o.jsonl", where="id % 3 == 0 or 'q' in text", **how),
        "split": lambda source, out: ps.split(source, out, ratio=[3, 1], names=["t", "v"], by="content", **how),
        "merge": lambda source, out: ps.merge([source, lines], out / "o.jsonl", **how),
        "shuffle": lambda source, out: ps.shuffle(source, out / "o.jsonl", seed=7, **how),
        "a small shuffle": lambda source, out: ps.shuffle(source, out / "o.jsonl", seed=7, memory_bytes=1 << 20, **how),
    }
    for name, verb in verbs.items():
        outs = [tmp_path / name / one for one in ("table", "lines")]
        for out, source in zip(outs, (table, lines), strict=True):
            out.mkdir(parents=True)
            verb(source, out)
        made = [[one.read_bytes() for one in sorted(out.glob("*.jsonl"))] for out in outs]
        assert made[0], name
        assert made[0] == made[1], name


def test_what_is_excluded_is_left_out_or_goes_along(table: str, tmp_path: Path) -> None:
    listed = tmp_path / "list"
    ps.exclude(table, indices=[0, 26, 39], reason="asked for", list=listed)
    report = ps.merge([table], tmp_path / "o.jsonl", excludes=listed)
    assert report.output.excluded == 3
    assert [row["id"] for row in read(tmp_path / "o.jsonl")] == [n for n in range(40) if n not in (0, 26, 39)]
    ps.shuffle(table, tmp_path / "k.jsonl", seed=3, excludes=listed, keep_excluded=True, keep_map=True)
    rows = read(tmp_path / "k.jsonl")
    kept = ps.open(tmp_path / "k.jsonl")
    assert sorted(rows[one]["id"] for one in kept.excluded_indices.tolist()) == [0, 26, 39]  # type: ignore[attr-defined]


def test_shares_and_dry_runs(tmp_path: Path) -> None:
    table, out = folder(tmp_path), tmp_path / "o.jsonl"
    assert ps.filter(table, out, where="id < 10", dry_run=True).output.samples == 10
    assert not out.exists()
    for number in range(2):
        ps.filter(table, out, where="id < 10", part=(number, 2))
    assert ps.filter(table, out, where="id < 10", finish=True).output.samples == 10
    assert read(out) == ROWS[:10]
    with pytest.raises(Unsupported, match="random access"):
        ps.shuffle(table, tmp_path / "s.jsonl", seed=1, part=(0, 2))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.binary(), [b"a"]),
        (pa.timestamp("us"), [1]),
        (pa.decimal128(5, 2), [None]),
        (pa.list_(pa.struct([("a", pa.large_binary())])), [[{"a": b"x"}]]),
        (pa.map_(pa.string(), pa.int32()), [[("a", 1)]]),
    ],
    ids=str,
)
def test_types_that_json_lacks_are_refused_by_name_before_any_work(
    kind: Any, values: list[Any], tmp_path: Path
) -> None:
    path, out = tmp_path / "a.parquet", tmp_path / "o.jsonl"
    pq.write_table(pa.table({"id": pa.array([1]), "odd": pa.array(values, kind)}), path)
    for verb in (
        lambda: ps.filter(path, out, where="id == 1"),
        lambda: ps.merge([path], out),
        lambda: ps.shuffle(path, out, seed=1),
        lambda: ps.split(path, tmp_path / "parts", ratio=[1, 1], names=["a", "b"]),
    ):
        with pytest.raises(Unsupported, match="the column 'odd'"):
            verb()
    assert [one.name for one in tmp_path.iterdir()] == ["a.parquet"]


def test_outputs_are_lines_or_refused(tmp_path: Path) -> None:
    table = one_file(tmp_path)
    with pytest.raises(Unsupported, match="can't hold lines"):
        ps.filter(table, tmp_path / "o.parquet", where="id == 1")
    with pytest.raises(ConfigError, match="can't be combined"):
        ps.merge([table, tokens(tmp_path)], tmp_path / "o.jsonl")
    with pytest.raises(ConfigError, match=r"an input|the source"):
        ps.filter(table, table, where="id == 1", to="jsonl", overwrite=True)


def tokens(root: Path) -> Path:
    with ps.create(root / "a.pbin", format="pbin", eos_id=0, token_bytes=2) as writer:
        writer.write({"tokens": [1, 0]})
    return root / "a.pbin"


@pytest.mark.parametrize("times", [1, 10])
def test_blocks_are_decoded_twice_at_any_size(times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once to find the lines, which is kept, and once by the verb; a number is a count of row groups."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": list(range(50 * times))}), path, row_group_size=10)
    seen = list[int]()
    lines_of = current("table_lines_of")
    replace(monkeypatch, "table_lines_of", lambda self, block: (seen.append(block), lines_of(self, block))[1])
    ps.filter(path, tmp_path / "o.jsonl", where="id >= 0")
    assert sorted(seen) == sorted([*range(5 * times)] * 2)
    seen.clear()
    ps.merge([path], tmp_path / "m.jsonl")
    assert seen == [*range(5 * times)]


def test_rows_that_changed_are_not_taken_for_those_that_were_found(tmp_path: Path) -> None:
    path = one_file(tmp_path)
    rows: Any = open_rows(path)
    lines = pickle.loads(pickle.dumps(rows.source))
    assert lines.get(path) == b"".join(lines.get_ranges(path, [(0, 50), (50, lines.size(path))]))
    pq.write_table(pa.Table.from_pylist(ROWS[::-1]), path, row_group_size=7)
    assert read_back(path) == ROWS[::-1]


def read_back(path: str) -> list[Any]:
    out = Path(path).with_name("again.jsonl")
    ps.merge([path], out)
    return read(out)
