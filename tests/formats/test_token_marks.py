"""Columns next to ids: padding is dropped, a named mask becomes a plane, an unnamed one that matters is an error."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import main

import penstock as ps
from penstock.errors import ConfigError, Corrupt, Unsupported

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

IDS = [[5, 6, 7, 2, 0, 0], [0, 0, 9, 10, 2], [0, 0], [3, 4, 2], [0, 8, 0, 2]]
PAD = [[1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [0, 0], [1, 1, 1], [0, 1, 1, 1]]
COUNTS = [[0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1], [0, 0], [0, 1, 0], [0, 1, 1, 0]]
LABELS = [[i if c else -100 for i, c in zip(*row, strict=True)] for row in zip(IDS, COUNTS, strict=True)]
TOKENS = [[i for i, p in zip(*row, strict=True) if p] for row in zip(IDS, PAD, strict=True)]
MASK = [[c for c, p in zip(*row, strict=True) if p] for row in zip(COUNTS, PAD, strict=True)]


def as_parquet(path: Path, columns: dict[str, Any]) -> Path:
    parquet.write_table(pa.table(columns), path, row_group_size=2)
    return path


def as_hf(path: Path, columns: dict[str, Any]) -> Path:
    path.mkdir()
    rows = pa.table(columns)
    with pa.ipc.new_stream(path / "data-0.arrow", rows.schema) as writer:
        writer.write_table(rows, max_chunksize=2)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-0.arrow"}]}))
    (path / "dataset_info.json").write_text("{}")
    return path


def as_jsonl(path: Path, columns: dict[str, Any]) -> Path:
    path = path.with_suffix(".jsonl")
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path.write_text("".join(json.dumps({k: v for k, v in row.items() if v is not None}) + "\n" for row in rows))
    return path


def as_mds(path: Path, columns: dict[str, Any]) -> Path:
    with ps.create(path, format="mds", columns=dict.fromkeys(columns, "ndarray:int64")) as writer:
        for row in zip(*columns.values(), strict=True):
            writer.write({name: np.array(value, np.int64) for name, value in zip(columns, row, strict=True)})
    return path


def as_bytes(path: Path, columns: dict[str, Any]) -> Path:
    with ps.create(path, format="mds", columns=dict.fromkeys(columns, "bytes")) as writer:
        for row in zip(*columns.values(), strict=True):
            writer.write({name: np.array(value, "<i8").tobytes() for name, value in zip(columns, row, strict=True)})
    return path


WRITERS: dict[str, Callable[[Path, dict[str, Any]], Path]] = {
    "parquet": as_parquet,
    "hf": as_hf,
    "jsonl": as_jsonl,
    "mds": as_mds,
    "bytes": as_bytes,
}


def documents(source: Any) -> list[list[int]]:
    return [source[index]["tokens"].tolist() for index in range(len(source))]


def masks(source: Any) -> list[list[int]]:
    return [source[index]["loss_mask"].astype(int).tolist() for index in range(len(source))]


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize(("name", "marks"), [("labels", LABELS), ("completion_mask", COUNTS), ("mine", COUNTS)])
def test_padding_and_marks(kind: str, name: str, marks: Any, tmp_path: Path) -> None:
    columns = {"input_ids": IDS, "attention_mask": PAD, name: marks}
    path = WRITERS[kind](tmp_path / "in", columns)
    options: dict[str, Any] = {"tokens_column": "input_ids"} | ({"tokens_dtype": "int64"} if kind == "bytes" else {})
    source: Any = ps.open(path, **options, mask_column=name)
    flat, bits = np.concatenate(TOKENS), np.concatenate(MASK) == 1
    for one in (source, pickle.loads(pickle.dumps(source))):
        assert documents(one) == TOKENS
        assert masks(one) == MASK
        assert one.doc_starts.tolist() == [0, *np.cumsum([*map(len, TOKENS)]).tolist()]
        assert one.tokens(2, 9).tolist() == flat[2:9].tolist()
        assert one.planes["loss_mask"].read(2, 9).tolist() == bits[2:9].tolist()
    window = ps.Chunk(4)(source).get_batch(np.array([0, 1]))
    assert window["tokens"].tolist() == flat[:8].reshape(2, 4).tolist()
    assert window["loss_mask"].tolist() == bits[:8].reshape(2, 4).tolist()
    for target, more in (("a.pbin", {}), ("b/", {"file_tokens": 4}), ("c.idx", {"finish": True})):
        ps.convert(path, f"{tmp_path}/{target}", **options, mask_column=name, **more)
        written = ps.open(f"{tmp_path}/{target}")
        assert (documents(written), masks(written)) == (TOKENS, MASK)
    unused = {**options, "planes": None}
    assert documents(ps.open(path, **unused)) == TOKENS
    assert "loss_mask" not in ps.open(path, **unused)[0]
    assert ps.open(path, **unused).fingerprint != source.fingerprint
    if name == "mine":
        assert documents(ps.open(path, **options)) == TOKENS
        return
    for read in (lambda: documents(ps.open(path, **options)), lambda: ps.open(path, **options).num_tokens,
                 lambda: ps.convert(path, tmp_path / "d.pbin", **options)):  # fmt: skip
        with pytest.raises(
            ConfigError, match=rf"row 0, id 0: .*'{name}' marks tokens excluded from the loss.*mask-column"
        ):
            read()
    assert not (tmp_path / "d.pbin").exists()


@pytest.mark.parametrize("kind", WRITERS)
def test_marks_that_change_nothing(kind: str, tmp_path: Path) -> None:
    """Ids, fingerprints and speed are those of the ids alone."""
    ones = [[1] * len(ids) for ids in IDS]
    columns = {"input_ids": IDS, "attention_mask": ones, "labels": IDS, "loss_mask": ones}
    path, bare = WRITERS[kind](tmp_path / "in", columns), WRITERS[kind](tmp_path / "bare", {"input_ids": IDS})
    options: dict[str, Any] = {"tokens_column": "input_ids"} | ({"tokens_dtype": "int64"} if kind == "bytes" else {})
    source, alone = ps.open(path, **options), ps.open(bare, **options)
    assert documents(source) == documents(alone) == IDS
    assert source.num_tokens == alone.num_tokens
    assert documents(source) == IDS


ROWS = {"input_ids": [[1, 2, 3], [4, 5, 6]]}


@pytest.mark.parametrize(
    ("columns", "mask_column", "fault"),
    [
        ({"labels": [[1, 2, 3], [5, 6, -100]]}, "labels", "row 1, id 0: the column 'labels' holds different ids"),
        ({"labels": [[1, 2, 3], [4, -100, 7]]}, None, "row 1, id 2: the column 'labels' holds different ids"),
        ({"labels": [[1, 2, 3], [4, 5]]}, None, "row 1 has a different number of values in 'labels' than ids"),
        ({"labels": [[1, 2, 3], None]}, "labels", "row 1 has a different number of .*: found null"),
        ({"loss_mask": [[1, 1, 1], [1, 0.5, 1]]}, "loss_mask", "row 1, id 1: .* isn't a mask: found 0.5"),
        ({"loss_mask": [[1, 1, 1], [1, 2, 1]]}, None, "row 1, id 1: the column 'loss_mask' isn't a mask: found 2"),
        ({"attention_mask": [[1, 1, 1], [1, 0, 1]]}, None, "row 1, id 1: .* zeros between ones"),
        ({"attention_mask": [[1, 1, 1], [1, 2, 2]]}, None, "row 1, id 1: .*found 2.*number packed documents"),
        ({"attention_mask": [[1, 1, 1], [1, 1]]}, None, "row 1 has a different number of values in 'attention_mask'"),
        ({}, "nothing", "no column 'nothing'|found null"),
        ({"attention_mask": [[1, 1, 1], [1, 1, 0]]}, "attention_mask", "'attention_mask' can't be the loss mask"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_marks_that_are_wrong(
    kind: str, columns: dict[str, Any], mask_column: str | None, fault: str, tmp_path: Path
) -> None:
    path = WRITERS[kind](tmp_path / "in", ROWS | columns)
    with pytest.raises((ConfigError, Corrupt), match=fault):
        ps.convert(path, tmp_path / "out.pbin", tokens_column="input_ids", mask_column=mask_column)
    assert not (tmp_path / "out.pbin").exists()
    if mask_column is None and "attention_mask" not in columns:
        ps.convert(path, tmp_path / "out.pbin", tokens_column="input_ids", drop_planes=True)
        assert documents(ps.open(tmp_path / "out.pbin")) == ROWS["input_ids"]


PACKED_IDS = [[0, 5, 6, 2, 0], [7, 8, 2, 9, 2]]
"""A padded row with one document, and a row with the documents 7 8 2 and 9 2."""


PACKED_COLUMNS = [
    ("position_ids", [[1, 0, 1, 2, 1], [0, 1, 2, 0, 1]], [[1, 0, 1, 2, 1], [4, 5, 7, 8, 9]]),
    ("inputs_position", [[0, 1, 2, 3, 0], [0, 1, 2, 2, 3]], [[0, 1, 2, 3, 0], [0, 1, 2, 3, 4]]),
    ("seq_idx", [[0, 1, 1, 1, 0], [0, 0, 0, 1, 1]], [[0, 1, 1, 1, 0], [3, 3, 3, 3, 3]]),
    ("segment_ids", [[0, 1, 1, 1, 0], [2, 2, 2, 1, 1]], [[0, 1, 1, 1, 0], [0, 0, 0, 0, 0]]),
    ("cu_seqlens", [[0, 1, 4, 5], [0, 3, 5, 5]], [[0, 1, 4, 5], [0, 5, 5, 5]]),
    ("cu_seq_lens_q", [[0, 4], [3]], [[0, 4], [0]]),
    ("seq_lengths", [[1, 3, 1], [3, 2]], [[1, 3, 1], [5]]),
]
"""Column → rows that show a second document in row 1, and rows that show none."""


@pytest.mark.parametrize(
    ("kind", "name", "packed", "plain"),
    [
        (kind, *one)
        for kind in WRITERS
        for one in PACKED_COLUMNS
        if kind != "bytes" or len(one[2][0]) == len(PACKED_IDS[0])  # a column of bytes has one value for each id
    ],
)
def test_rows_that_pack_documents(kind: str, name: str, packed: Any, plain: Any, tmp_path: Path) -> None:
    """A column that shows a second document inside a row is an error; borders of padding, and one document, pass."""
    columns = {"input_ids": PACKED_IDS, "attention_mask": [[0, 1, 1, 1, 0], [1] * 5]}
    options: dict[str, Any] = {"tokens_column": "input_ids"} | ({"tokens_dtype": "int64"} if kind == "bytes" else {})
    path = WRITERS[kind](tmp_path / "packed", {**columns, name: packed})
    for read in (
        lambda: documents(ps.open(path, **options)),
        lambda: ps.convert(path, tmp_path / "out.pbin", **options),
    ):
        with pytest.raises(ConfigError, match=rf"row 1, id 3: the column '{name}' shows .*--documents eos"):
            read()
    assert not (tmp_path / "out.pbin").exists()
    rows = [[5, 6, 2], [7, 8, 2, 9, 2]]
    assert documents(ps.open(path, **options, planes=None)) == rows
    assert documents(ps.open(path, **options, documents="eos", eos_id=2)) == [[5, 6, 2], [7, 8, 2], [9, 2]]
    bare = ps.open(WRITERS[kind](tmp_path / "bare", columns), **options)
    whole = ps.open(WRITERS[kind](tmp_path / "plain", {**columns, name: plain}), **options)
    assert documents(whole) == documents(bare) == rows


def test_positions_of_images_pass(tmp_path: Path) -> None:
    """Three positions per id, as Qwen-VL has them, aren't looked at."""
    path = as_jsonl(tmp_path / "in", {**ROWS, "position_ids": [[[0, 0, 0]] * 3, [[0, 1, 1]] * 3]})
    assert documents(ps.open(path, tokens_column="input_ids")) == ROWS["input_ids"]


def test_columns_that_are_not_per_token_or_only_sometimes_there(tmp_path: Path) -> None:
    """A class label is no mark; marks in some of several files are an error, and null rows have none."""
    path = as_parquet(tmp_path / "class", {**ROWS, "labels": [1, 0]})
    assert documents(ps.open(path, tokens_column="input_ids")) == ROWS["input_ids"]
    lines = as_jsonl(tmp_path / "some", {**ROWS, "attention_mask": [None, [0, 1, 1]]})
    assert documents(ps.open(lines, tokens_column="input_ids")) == [[1, 2, 3], [5, 6]]
    (tmp_path / "two").mkdir()
    as_parquet(tmp_path / "two" / "a.parquet", {**ROWS, "x": [1, 2]})
    as_parquet(tmp_path / "two" / "b.parquet", {**ROWS, "labels": [[1, 2, 3], [4, -100, -100]]})
    with pytest.raises(Unsupported, match="labels"):
        ps.open(tmp_path / "two", tokens_column="input_ids")
    assert len(ps.open(tmp_path / "two", tokens_column="input_ids", planes=None)) == 4


def test_the_command_line_and_recipes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The option works without --tokens-column if the column of ids is found."""
    path = as_parquet(tmp_path / "in.parquet", {"input_ids": IDS, "attention_mask": PAD, "labels": LABELS})
    arguments = ["convert", str(path), str(tmp_path / "out.pbin")]
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code != 0
    assert "--mask-column labels" in capsys.readouterr().err
    with pytest.raises(SystemExit) as raised:
        main([*arguments, "--mask-column", "labels"])
    assert raised.value.code == 0
    assert masks(ps.open(tmp_path / "out.pbin")) == MASK
    source: Any = ps.open(path, tokens_column="input_ids", mask_column="labels")
    assert masks(ps.open_recipe(source.recipe())) == MASK
    bare: Any = ps.open(path, tokens_column="input_ids", planes=None)
    assert documents(ps.open_recipe(bare.recipe())) == TOKENS
    for options in ({"mask_column": "labels"}, {"tokens_column": "input_ids", "mask_column": "labels", "planes": None}):
        with pytest.raises(ConfigError):
            ps.open(path, **options)
    with pytest.raises(ConfigError):
        ps.convert(tmp_path / "out.pbin", tmp_path / "again.pbin", mask_column="labels")
