"""What data say is shown, never obeyed: nothing of it steers a terminal, forges a line, or ends the command."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.internals import main, printable, printable_json, printable_lines

from penstock.errors import Corrupt

STEERING = "\x1b]0;t\x07\x1b[2J\x9b31m\u202e\u2066\r"
NAME = "b\x1b[31m\u202e\nFORGED.jsonl"


def told(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, object]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    found = capfd.readouterr()
    return found.out + found.err, ended.value.code


def require_harmless(text: str) -> None:
    assert not set(text) & set("\x1b\x07\x9b\r\u202e\u2066")
    assert "\nFORGED" not in text


@pytest.mark.parametrize(
    "arguments", [("head",), ("head", "--json"), ("info",), ("head", "--pictures=blocks"), ("energon", "preview")]
)
def test_values_are_shown(
    arguments: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = '{"a\x7f\x9b\u202e": "\x9b\u202e\u2066 \\ud800", "t": ' + json.dumps(STEERING) + "}\n"
    Path("a.jsonl").write_text(line, "utf-8")
    text, status = told(capfd, *arguments, "a.jsonl")
    require_harmless(text)
    assert status == 0, text
    if "--json" in arguments:
        (sample,) = json.loads(text)["samples"]
        assert {name: value for name, value in sample.items() if name != "index"} == json.loads(line)


@pytest.mark.parametrize("command", ["index", "info", "head", "verify"])
@pytest.mark.parametrize("name", [NAME, "r\udcff.jsonl"])
def test_names_are_shown(
    command: str,
    name: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text('{"a": 1}\nnope\n')
    text, status = told(capfd, command, name)
    text += caplog.text
    require_harmless(text)
    assert "line" in text
    assert status in ((0,) if command in ("info", "head") else (1, 6))


@pytest.mark.parametrize("command", ["info", "head", "verify", "energon lint"])
def test_names_inside_of_an_index_are_shown(command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shard: dict[str, Any] = {
        "column_encodings": ["str"],
        "column_names": [STEERING],
        "column_sizes": [None],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "raw_data": {"basename": f"x{STEERING}\nFORGED", "bytes": 1, "hashes": {}},
        "samples": 1,
        "size_limit": 1,
        "version": 2,
        "zip_data": None,
    }
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": [shard]}))
    require_harmless(told(capfd, *command.split(), str(tmp_path))[0])


def test_keys_of_tars_are_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        member = tarfile.TarInfo(f"k{STEERING}\nFORGED.txt")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    for command in ("head", "info", "energon preview"):
        require_harmless(told(capfd, *command.split(), str(tmp_path / "s.tar"))[0])


def test_errors_are_one_line() -> None:
    error = Corrupt("no", path=f"a{STEERING}\nFORGED", found="x\ny", expected="\ud800", hint="z\x1b")
    assert "\n" not in str(error)
    require_harmless(str(error))
    str(error).encode()


def test_other_text_stays() -> None:
    text = "日本語\u3000é \u00a0 👩\u200d👩 \\n"
    assert printable(text) == printable_lines(text) == text
    assert printable_json(json.dumps(text, ensure_ascii=False)) == json.dumps(text, ensure_ascii=False)
    assert printable_lines("a\n\tb") == "a\n\tb"
    assert printable("a\n\x1b\u202e\ud800") == "a\\n\\x1b\\u202e\\ud800"
