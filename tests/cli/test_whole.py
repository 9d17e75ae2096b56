"""`merge`, `shuffle`, `split`, `filter` and `chunk` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.called import report, run
from tests.reshape.datasets import documents_in, files_in, lines_in, write_lines, write_tokens


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_tokens(tmp_path / "a.pbin", [[n] * (n % 5 + 1) for n in range(20)])
    write_tokens(tmp_path / "b.pbin", [[7]])
    write_lines(tmp_path / "a.jsonl", [f"line {n}" for n in range(10)])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_merge(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "merge", "a.pbin", "b.pbin", "-o", "c.pbin")
    size = Path("c.pbin").stat().st_size
    assert out == f"c.pbin: 21 documents, 61 tokens, {size} B, from 2 sources\n"
    assert documents_in("c.pbin") == [*documents_in("a.pbin"), [7]]
    found = report(capsys, "merge", "a.jsonl", "a.jsonl", "-o", "c.jsonl")
    assert found["output"] | {"size_bytes": 0} == {
        "path": "c.jsonl", "format": "jsonl", "samples": 20, "tokens": None, "size_bytes": 0,
        "part": None, "missing": [], "was_complete": False, "excluded": 0,
    }  # fmt: skip
    assert found["inputs"] == [["a.jsonl", 10], ["a.jsonl", 10]]


def test_widths_and_formats(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "merge", "a.pbin", "-o", "c.pbin", "--token-bytes", "4")
    assert Path("c.pbin").read_bytes()[8] == 4
    _, said = run(capsys, "merge", "a.pbin", "c.pbin", "-o", "d.pbin", status=10)
    assert "different token widths" in said
    run(capsys, "shuffle", "a.pbin", "-o", "d", "--seed", "1", "--to", "flat-tokens")
    assert sorted(documents_in("d")) == sorted(documents_in("a.pbin"))


def test_shuffle(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "shuffle", "a.pbin", "-o", "c.pbin", "--seed", "3", "--memory-mb", "2")
    assert out == f"c.pbin: 20 documents, 60 tokens, {Path('c.pbin').stat().st_size} B (seed 3)\n"
    assert sorted(documents_in("c.pbin")) == sorted(documents_in("a.pbin")) != documents_in("c.pbin")
    _, said = run(capsys, "shuffle", "a.pbin", "-o", "c.pbin", "--seed", "3", status=10)
    assert "exists" in said
    run(capsys, "shuffle", "a.pbin", "-o", "c.pbin", "--seed", "4", "--overwrite")
    out, _ = run(capsys, "shuffle", "a.pbin", "-o", "d.pbin")
    assert out.endswith("(seed 0)\n")


def test_split(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "split", "a.jsonl", "-o", "parts", "--ratio", "8,1,1")
    assert [part["samples"] for part in found["parts"]] == [8, 1, 1]
    lines = [line for part in found["parts"] for line in lines_in(part["path"])]
    assert sorted(lines) == sorted(lines_in("a.jsonl"))
    out, _ = run(capsys, "split", "a.pbin", "-o", "p", "--ratio", "0.5,0.5", "--names", "x,y", "--by", "content")
    assert out.startswith("p/a_x.pbin: ")
    run(capsys, "split", "a.pbin", "-o", "q", "--ratio", "a,b", status=10)
    assert files_in(Path("p")) == {"a_x.pbin", "a_x.pbin.penstock", "a_y.pbin", "a_y.pbin.penstock"}


def test_filter(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "filter", "a.pbin", "-o", "c.pbin", "--min-tokens", "4", "--max-tokens", "4")
    assert out == f"c.pbin: 4 documents, 16 tokens, {Path('c.pbin').stat().st_size} B; 16 removed\n"
    Path("some.txt").write_text("1\n3\n")
    found = report(capsys, "filter", "a.jsonl", "-o", "c.jsonl", "--where", "id > 1", "--indices", "some.txt")
    assert found["dropped"] == 9
    run(capsys, "filter", "a.jsonl", "-o", "d.jsonl", "--match", "[12]", "--field", "text", "--invert")
    assert len(lines_in("d.jsonl")) == 8
    _, said = run(capsys, "filter", "a.jsonl", "-o", "e.jsonl", "--where", "len(id)", status=14)
    assert "line at index 0" in said


def test_chunk(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "split", "a.pbin", "-o", "c.pbin", "--parts", "3", "--only", "1")
    assert out.endswith("(part 1 of 3 contiguous parts, counted from 0)\n")
    assert documents_in("c.pbin") == documents_in("a.pbin")[7:14]
    run(capsys, "split", "a.pbin", "-o", "d.pbin", "--parts", "3", "--only", "3", status=10)
    assert not Path("d.pbin").exists()
