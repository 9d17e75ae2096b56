"""`pack --keep-map`: each document is the line that the map says, whatever was left out, and however it was packed."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from tests.internals import load_decoder, main, place_of, read_row_map

import penstock as ps
from penstock.errors import ConfigError
from penstock.prepare import pack

TOKENIZER = Path(__file__).parents[2] / "golden/modalities/tokenizers/bpe2"


def texts(count: int, name: str) -> list[str]:
    return [f"{name} {number} " + "word " * (number % 3) for number in range(count)]


def lines_of(count: int, name: str, faulty: tuple[int, ...] = ()) -> bytes:
    rows = [json.dumps({"text": text}) for text in texts(count, name)]
    return "".join(("{oops" if at in faulty else row) + "\n" for at, row in enumerate(rows)).encode()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rows")
    (root / "a.jsonl").write_bytes(lines_of(40, "a", (0, 7, 39)))
    (root / "b.jsonl.gz").write_bytes(gzip.compress(lines_of(30, "b", (3,))))
    (root / "c.jsonl").write_bytes(lines_of(5, "c"))
    return root


def origins(output: str) -> list[str]:
    """`name[row]` and text of each document."""
    source: Any = ps.open(output)
    found = read_row_map(place_of(output), source.manifest)
    assert found is not None
    decode = load_decoder(TOKENIZER)
    said = []
    for sample, (one, row) in enumerate(map(found.origin_of, range(len(found.rows)))):
        text = decode(source[sample]["tokens"]).removesuffix("<|eod|>")
        said.append(f"{one.name}[{row}] {text}")
    return said


def expected() -> list[str]:
    given = (("a.jsonl", 40, "a", (0, 7, 39)), ("b.jsonl.gz", 30, "b", (3,)), ("c.jsonl", 5, "c", ()))
    return [
        f"{file}[{row}] {text}"
        for file, count, name, faulty in given
        for row, text in enumerate(texts(count, name))
        if row not in faulty
    ]


@pytest.mark.parametrize(
    ("output", "more"),
    [("o.pbin", {}), ("o.idx", {}), ("o/", {"file_tokens": 200}), ("o.zarr", {}), ("mds", {"to": "mds"})],
)
@pytest.mark.parametrize("task_bytes", [None, 300])
def test_each_document_is_the_line_that_the_map_says(
    inputs: Path, tmp_path: Path, output: str, more: dict[str, Any], task_bytes: int | None
) -> None:
    made = f"{tmp_path}/{output}"
    how: dict[str, Any] = {"tokenizer": TOKENIZER, "on_error": "skip", "engine": "tokenizers", "executor": "inline"}
    pack(inputs, made, keep_map=True, task_bytes=task_bytes, **how, **more)
    assert origins(made.rstrip("/")) == expected()


def test_rows_of_tables_blank_lines_and_whole_files(tmp_path: Path) -> None:
    how: dict[str, Any] = {"tokenizer": TOKENIZER, "engine": "tokenizers", "executor": "inline", "keep_map": True}
    table = pyarrow.table({"text": texts(9, "t")})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=4)
    pack(tmp_path / "t.parquet", tmp_path / "p.pbin", task_bytes=100, **how)
    assert origins(f"{tmp_path}/p.pbin") == [f"t.parquet[{row}] {text}" for row, text in enumerate(texts(9, "t"))]
    (tmp_path / "x.txt").write_text("one\n\n \ntwo\n")
    pack(tmp_path / "x.txt", tmp_path / "l.pbin", input_format="text", text_per="line", **how)
    assert origins(f"{tmp_path}/l.pbin") == ["x.txt[0] one", "x.txt[3] two"]
    pack(tmp_path / "x.txt", tmp_path / "f.pbin", input_format="text", **how)
    assert [one.split()[0] for one in origins(f"{tmp_path}/f.pbin")] == ["x.txt[0]"]


def test_the_map_changes_with_its_data(inputs: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"tokenizer": TOKENIZER, "engine": "tokenizers", "executor": "inline", "on_error": "skip"}
    made = tmp_path / "o.pbin"
    pack(inputs, made, keep_map=True, **how)
    pack(inputs / "c.jsonl", made, keep_map=True, overwrite=True, **how)
    assert len(origins(str(made))) == 5
    names = {one.name for one in tmp_path.iterdir()}
    assert names == {"o.pbin", "o.pbin.penstock", "o.pbin.penstock.rows"}
    pack(inputs / "a.jsonl", made, overwrite=True, **how)
    assert {one.name for one in tmp_path.iterdir()} == names - {"o.pbin.penstock.rows"}
    shutil.copy(inputs / "c.jsonl", tmp_path)
    (tmp_path / "o.pbin.penstock.rows").write_bytes(b"not ours")
    pack(inputs / "c.jsonl", made, overwrite=True, **how)


def test_work_without_a_map_is_not_gone_on_with(inputs: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"tokenizer": TOKENIZER, "engine": "tokenizers", "executor": "inline", "on_error": "skip"}
    pack(inputs, tmp_path / "o.pbin", part=(0, 2), task_bytes=300, **how)
    with pytest.raises(ConfigError, match="--keep-map"):
        pack(inputs, tmp_path / "o.pbin", finish=True, task_bytes=300, keep_map=True, **how)


def test_explain_takes_and_tells_rows(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    how: dict[str, Any] = {"tokenizer": TOKENIZER, "engine": "tokenizers", "executor": "inline", "on_error": "skip"}
    pack(inputs / "a.jsonl", tmp_path / "a.pbin", keep_map=True, **how)
    pack(inputs / "c.jsonl", tmp_path / "c.pbin", keep_map=True, **how)
    (tmp_path / "r.yaml").write_text(
        "kind: shuffle\nseed: 3\nsource: {kind: chunk, length: 8, source: {kind: concat, sources:"
        " [{kind: open, path: a.pbin}, {kind: open, path: c.pbin}]}}\n"
    )
    monkeypatch.chdir(tmp_path)

    def told(*line: str) -> Any:
        with pytest.raises(SystemExit) as ended:
            main(["explain", "r.yaml", "--global-batch", "4", "--json", *line])
        said = json.loads(capsys.readouterr().out)
        return said if ended.value.code == 0 else ended.value.code

    for named, number in (("a.jsonl[8]", 6), ("c.jsonl[2]", 39)):
        found = told("--document", named)["samples"]
        assert found == told("--document", str(number))["samples"]
        assert all(named in one["origins"] for one in found)
    assert told("--document", "a.jsonl[7]") == 9
    step = told("--step", "0")["samples"]
    assert all(len(one["origins"]) == len(one["documents"]) for one in step)


def test_verify_knows_the_map(inputs: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"tokenizer": TOKENIZER, "engine": "tokenizers", "executor": "inline", "on_error": "skip"}
    made = tmp_path / "o.pbin"
    pack(inputs / "a.jsonl", made, keep_map=True, **how)
    path = tmp_path / "o.pbin.penstock.rows"
    data = path.read_bytes()
    assert ps.verify(made, depth="full") == []
    for changed, depth, words in (
        (b"\2" + data[1:], "full", "the rows differ"),
        (data[:-1], "quick", "damaged"),
    ):
        path.write_bytes(changed)
        [finding] = ps.verify(made, depth=depth)
        assert (finding.code, finding.path, words in str(finding.found)) == ("pbin.row-map", str(path), True)
    path.write_bytes(data)
    pack(inputs / "c.jsonl", tmp_path / "other.pbin", **how)
    path.rename(tmp_path / "other.pbin.penstock.rows")
    [finding] = ps.verify(tmp_path / "other.pbin")
    assert "belongs to different data" in str(finding.found)
