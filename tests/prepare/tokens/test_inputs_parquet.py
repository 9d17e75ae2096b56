"""Parquet files as input: rows mean what lines of JSON mean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from tests.prepare.conftest import TEXTS, expected_tokens, stored_tokens, write_lines

from penstock.errors import ConfigError, Corrupt, NotFound, PrepareError
from penstock.prepare import PackReport

Pack = Callable[..., PackReport]


def write_parquet(path: Path, rows_per_group: int = 40, **columns: Any) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=rows_per_group)
    return path


@pytest.mark.parametrize("task_bytes", [1, 700, 1 << 20])
def test_a_task_is_a_range_of_row_groups(tmp_path: Path, made: Pack, bpe2: Path, task_bytes: int) -> None:
    path = write_parquet(tmp_path / "a.parquet", id=list(range(150)), text=TEXTS)
    report = made(path, task_bytes=max(task_bytes, path.stat().st_size // 100))
    assert stored_tokens(tmp_path / "out.pbin") == expected_tokens(bpe2, TEXTS)
    assert report.documents == 150
    assert (report.tasks == 1) == (task_bytes > 1000)


def test_the_same_file_as_from_jsonl(tmp_path: Path, made: Pack, corpus: Path) -> None:
    made(write_parquet(tmp_path / "a.parquet", text=TEXTS))
    made(corpus, tmp_path / "other.pbin")
    assert (tmp_path / "out.pbin").read_bytes() == (tmp_path / "other.pbin").read_bytes()


def test_workers_read_row_groups(tmp_path: Path, made: Pack) -> None:
    path = write_parquet(tmp_path / "a.parquet", text=TEXTS)
    made(path)
    made(path, tmp_path / "other.pbin", executor="processes", workers=2, task_bytes=100)
    assert (tmp_path / "out.pbin").read_bytes() == (tmp_path / "other.pbin").read_bytes()


@pytest.mark.parametrize(
    "how",
    [{"field": ["title", "meta.body"], "join": " "}, {"jq": '.title + " " + .meta.body'}],
    ids=["fields", "jq"],
)
def test_columns_are_fields(tmp_path: Path, made: Pack, bpe2: Path, how: dict[str, Any]) -> None:
    path = write_parquet(
        tmp_path / "a.parquet", title=["a", "b"], meta=[{"body": "x"}, {"body": "y"}], raw=[b"1", b"2"]
    )
    made(path, **how)
    assert stored_tokens(tmp_path / "out.pbin") == expected_tokens(bpe2, ["a x", "b y"])


def test_a_row_without_text_is_named(tmp_path: Path, made: Pack) -> None:
    path = write_parquet(tmp_path / "a.parquet", rows_per_group=2, text=["a", "b", "c", None, "e"])
    with pytest.raises(PrepareError, match="row 4: field 'text' is null, not text") as caught:
        made(path)
    assert caught.value.offset_bytes is None
    report = made(path, on_error="skip", restart=True)
    assert [(one.line, one.reason) for one in report.dropped] == [(4, "field 'text' is null, not text")]
    assert report.documents == 4


def test_a_folder_without_jsonl_gives_its_parquet_files(tmp_path: Path, made: Pack, bpe2: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write_parquet(folder / "b.parquet", text=["two"])
    write_parquet(folder / "a.parquet", text=["one"])
    made(folder)
    assert stored_tokens(tmp_path / "out.pbin") == expected_tokens(bpe2, ["one", "two"])
    write_lines(folder / "c.jsonl", [{"text": "three"}])
    made(folder, overwrite=True)
    assert stored_tokens(tmp_path / "out.pbin") == expected_tokens(bpe2, ["three"])
    made(folder, overwrite=True, input_format="parquet")
    assert stored_tokens(tmp_path / "out.pbin") == expected_tokens(bpe2, ["one", "two"])


def test_files_of_both_kinds_may_be_named(tmp_path: Path, made: Pack, bpe2: Path) -> None:
    named = [write_lines(tmp_path / "a.jsonl", [{"text": "one"}]), write_parquet(tmp_path / "b.parquet", text=["two"])]
    estimated, packed = made(named, dry_run=True), made(named)
    assert (estimated.documents, estimated.tokens) == (packed.documents, packed.tokens)
    assert stored_tokens(tmp_path / "out.pbin") == expected_tokens(bpe2, ["one", "two"])


def test_a_column_that_is_not_there_is_refused(tmp_path: Path, made: Pack) -> None:
    with pytest.raises(ConfigError, match="no column 'text'"):
        made(write_parquet(tmp_path / "a.parquet", body=["x"]))
    with pytest.raises(ConfigError, match="not text"):
        made(write_parquet(tmp_path / "a.parquet", text=[b"x"]))


def test_damage_is_refused(tmp_path: Path, made: Pack) -> None:
    whole = write_parquet(tmp_path / "a.parquet", text=TEXTS).read_bytes()
    for data in (
        whole[: len(whole) // 2],
        b"PAR1",
        b"PAR1" + bytes(100) + b"PAR1",
        whole[:40] + bytes(400) + whole[440:],
    ):
        (tmp_path / "a.parquet").write_bytes(data)
        with pytest.raises(Corrupt, match="damaged"):
            made(tmp_path / "a.parquet")
        assert not (tmp_path / "out.pbin").exists()


def test_a_name_that_promises_parquet(tmp_path: Path, made: Pack) -> None:
    with pytest.raises(Corrupt, match="not a Parquet file"):
        made(write_lines(tmp_path / "a.parquet", [{"text": "x"}]))
    with pytest.raises(Corrupt, match="not a Parquet file"):
        made(write_lines(tmp_path / "a.jsonl", [{"text": "x"}]), input_format="parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="no parquet file"):
        made(tmp_path / "empty", input_format="parquet")
