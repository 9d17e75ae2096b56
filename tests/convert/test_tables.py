"""CSV and TSV files, held against the csv module and hand-written rows."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

import penstock as ps
from penstock.errors import ConfigError, Corrupt, FormatError, PenstockError

ROWS = [{"id": str(n), "text": f'row {n}, "quoted"\nsecond line; {"ü" * n}'} for n in range(25)]
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def text_of(rows: list[dict[str, str]], separator: str = ",") -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), delimiter=separator)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def converted(source: Any, tmp_path: Path, **options: Any) -> list[dict[str, Any]]:
    ps.convert(source, tmp_path / "out.jsonl", overwrite=True, **options)
    return [dict(row) for row in ps.open(tmp_path / "out.jsonl")]


@pytest.mark.parametrize("packed", PACKERS)
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".CSV", ".Tsv"])
def test_extension_decides_separator_and_compression(tmp_path: Path, suffix: str, packed: str) -> None:
    path = tmp_path / f"a{suffix}{packed}"
    path.write_bytes(PACKERS[packed](text_of(ROWS, "\t" if "t" in suffix.lower()[:2] else ",").encode()))
    assert converted(path, tmp_path) == ROWS


def test_separator_and_encoding_are_options(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(text_of(ROWS, ";").encode("cp1252"))
    assert converted(path, tmp_path, source_separator=";", source_encoding="cp1252") == ROWS
    path.write_bytes(text_of(ROWS).encode("utf-16"))
    assert converted(path, tmp_path, source_encoding="utf-16") == ROWS
    with pytest.raises(Corrupt, match=r"is not UTF-8.*--encoding"):
        converted(path, tmp_path)


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_another_separator_is_not_one_column(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text_of(ROWS, separator))
    with pytest.raises(Corrupt, match=r"the header is one column with .* in its name.*--separator"):
        converted(path, tmp_path)
    assert converted(path, tmp_path, source_separator=separator) == ROWS
    path.write_text("a;b\nx\n")  # a name that does have a semicolon
    assert converted(path, tmp_path, source_separator=",") == [{"a;b": "x"}]


def test_repeated_names_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text,id\n1,one,2\n")
    with pytest.raises(Corrupt, match="repeats the name of a column: found 'id'"):
        converted(tmp_path / "a.csv", tmp_path)


def test_long_cells_are_read(tmp_path: Path) -> None:
    rows = [{"id": "1", "text": "x" * 300_000}]
    (tmp_path / "a.csv").write_text(text_of(rows))
    assert converted(tmp_path / "a.csv", tmp_path) == rows


def test_a_header_without_rows_is_an_empty_dataset(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n")
    assert converted(tmp_path / "a.csv", tmp_path) == []
    with pytest.raises(ConfigError, match="the source has no samples"):  # an index of shards could not name the columns
        ps.convert(tmp_path / "a.csv", tmp_path / "m", to="mds")
    (tmp_path / "b.csv").write_text("")
    with pytest.raises(Corrupt, match="no header"):
        converted(tmp_path / "b.csv", tmp_path)


def test_files_of_a_directory_a_pattern_and_a_list_are_one_dataset(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.csv").write_text(text_of(ROWS[:10]))
    swapped = [{"text": row["text"], "id": row["id"]} for row in ROWS[10:20]]
    (folder / "b.csv.gz").write_bytes(gzip.compress(text_of(swapped).encode()))
    (folder / "deep" / "c.TSV").write_text(text_of(ROWS[20:], "\t"))
    assert converted(folder, tmp_path) == ROWS
    assert converted(f"{folder}/*.csv*", tmp_path) == ROWS[:20]
    assert converted([folder / "b.csv.gz", folder / "deep" / "c.TSV"], tmp_path) == ROWS[10:]
    ps.convert(folder, tmp_path / "m", to="mds", workers=2, group_rows=7)
    assert [dict(row) for row in ps.open(tmp_path / "m")] == ROWS
    (folder / "d.csv").write_text("id,other\n1,2\n")
    with pytest.raises(Corrupt, match=r"d\.csv: the columns in the header differ.*id, other.*id, text"):
        converted(folder, tmp_path)


def test_damaged_compressed_files_are_named(tmp_path: Path) -> None:
    data = text_of(ROWS).encode() * 50
    for packed, pack in list(PACKERS.items())[1:]:
        path = tmp_path / f"a.csv{packed}"
        path.write_bytes(pack(data)[:-9])
        with pytest.raises(FormatError, match=r"a\.csv"):
            converted(path, tmp_path)
        path.write_bytes(pack(data) + pack(text_of(ROWS).partition("\n")[2].encode()))  # two members, or frames
        assert len(converted(path, tmp_path)) == 50 * len(ROWS) + 49 + len(ROWS)


def test_options_of_tables_are_refused_elsewhere(tmp_path: Path, cli: Callable[..., tuple[int, str]]) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ConfigError, match=r"--separator \(source_separator=\): only for CSV and TSV files"):
        ps.convert(tmp_path / "a.jsonl", tmp_path / "m", to="mds", source_separator=";")
    for wrong in ({"source_separator": ";;"}, {"source_encoding": "no-such"}):
        with pytest.raises(PenstockError, match="found '"):
            converted(tmp_path / "a.csv", tmp_path, **wrong)
    (tmp_path / "a.csv").write_text("a|b\n1|2\n")
    arguments = (
        "convert",
        str(tmp_path / "a.csv"),
        str(tmp_path / "b.jsonl"),
        "--separator",
        "|",
        "--encoding",
        "ascii",
    )
    assert cli(*arguments)[0] == 0
    assert [dict(row) for row in ps.open(tmp_path / "b.jsonl")] == [{"a": "1", "b": "2"}]
