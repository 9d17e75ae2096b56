"""Verbs that look at data show the lines that are readable, and count and name the others."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.internals import main

import penstock as ps
from penstock.errors import Corrupt

ROWS = [{"id": f"k{number}", "text": f"row {number}"} for number in range(6)]
GOOD = [json.dumps(row).encode() + b"\n" for row in ROWS]
TEXT = b"".join([*GOOD[:4], b'{"id": broken\n', *GOOD[4:], b"[1,\n"])


def _one(folder: Path) -> Path:
    (folder / "a.jsonl").write_bytes(TEXT)
    return folder / "a.jsonl"


def _compressed(folder: Path) -> Path:
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(TEXT))
    return folder / "a.jsonl.gz"


def _several(folder: Path) -> Path:
    (folder / "raw").mkdir()
    (folder / "raw" / "a.jsonl").write_bytes(TEXT[: len(b"".join(GOOD[:2]))])
    (folder / "raw" / "b.jsonl").write_bytes(TEXT[len(b"".join(GOOD[:2])) :])
    return folder / "raw"


def _several_compressed(folder: Path) -> Path:
    (folder / "raw").mkdir()
    (folder / "raw" / "a.jsonl").write_bytes(b"".join(GOOD[:1]))
    (folder / "raw" / "b.jsonl.gz").write_bytes(gzip.compress(TEXT[len(GOOD[0]) :]))
    return folder / "raw"


@pytest.mark.parametrize("make", [_one, _compressed, _several, _several_compressed])
def test_invalid_lines_are_skipped_and_counted(
    make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = make(tmp_path)

    def called(*words: str) -> tuple[Any, str]:
        caplog.clear()
        with pytest.raises(SystemExit) as ended:
            main([words[0], str(path), *words[1:], "--json"])
        out, err = capsys.readouterr()
        assert ended.value.code == 0, err
        return json.loads(out), caplog.text

    shown, err = called("head", "-n", "9")
    assert [{name: one[name] for name in ("id", "text")} for one in shown["samples"]] == ROWS
    assert err.count("skipped 2 invalid lines") == 1
    for words in (("info",), ("find", "--key", "k5"), ("find", "--text", "row 5"), ("find", "--where", "id == 'k5'")):
        found, err = called(*words)
        assert "skipped 2 invalid lines" in err, words
        assert found["samples"] == 6 if words == ("info",) else [one["key"] for one in found["found"]] == ["k5"]
    with pytest.raises(SystemExit) as ended:
        main(["energon", "lint", str(path), "--json"])
    report = json.loads(capsys.readouterr().out)
    faults = [one["found"] for one in report["findings"] if one["code"].endswith(".line")]
    assert (ended.value.code, len(faults), sum(report["samples"].values())) == (1, 2, 6)
    [hit] = ps.find(path, key="k5", workers=2).found
    assert hit.index == 5
    with pytest.raises(Corrupt):
        len(ps.open(path))  # whoever trains on it is told


def test_several_reasons(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "two.jsonl"
    path.write_text('{"text": "a"}\n\nnot JSON\n')
    with pytest.raises(SystemExit):
        main(["info", str(path)])
    assert f"{path}: skipped 2 invalid lines (2, 3): the first is a blank line" in caplog.text
    caplog.clear()
    path.write_text('{"text": "a"}\n\n')
    with pytest.raises(SystemExit):
        main(["info", str(path)])
    assert f"{path}: skipped 1 invalid line (2): a blank line" in caplog.text
