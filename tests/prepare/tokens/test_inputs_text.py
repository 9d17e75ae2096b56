"""Plain text and standard input."""

from __future__ import annotations

import gzip
import io
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.prepare.conftest import TEXTS, expected_tokens, stored_tokens

from penstock.errors import ConfigError, FormatError, NotFound, PenstockError, PrepareError
from penstock.prepare import PackReport

Pack = Callable[..., PackReport]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three texts in a folder, one compressed, one empty, and a file of another kind."""
    path = tmp_path / "in"
    path.mkdir()
    (path / "a.txt").write_text("one\n\nstill one\n")
    (path / "b.txt.gz").write_bytes(gzip.compress("zw\u00f6lf\n".encode()))
    (path / "c.txt").write_bytes(b"")
    (path / "d.txt").write_bytes(b"\xef\xbb\xbflast")
    (path / "e.jsonl").write_text('{"text": "no"}\n')
    return path


def test_a_file_is_a_document(tmp_path: Path, made: Pack, bpe2: Path, folder: Path) -> None:
    report = made(folder, input_format="text", task_bytes=4)
    assert stored_tokens(tmp_path / "out.pbin") == expected_tokens(bpe2, ["one\n\nstill one\n", "zw\u00f6lf\n", "last"])
    assert report.documents == 3


def test_a_line_is_a_document(tmp_path: Path, made: Pack, bpe2: Path, folder: Path) -> None:
    (folder / "a.txt").write_bytes(b"one\r\n\r\n\ntwo\n three ")
    made([folder / "a.txt", folder / "b.txt.gz"], input_format="text", text_per="line", task_bytes=4)
    assert stored_tokens(tmp_path / "out.pbin") == expected_tokens(bpe2, ["one", "two", " three ", "zw\u00f6lf"])


@pytest.mark.parametrize("task_bytes", [4, 1 << 20])
def test_lines_lose_their_byte_order_mark(
    tmp_path: Path, made: Pack, bpe2: Path, folder: Path, task_bytes: int
) -> None:
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\n\xef\xbb\xbfjoined\n")
    (folder / "b.txt.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf\r\n\xef\xbb\xbfthree"))
    made([folder / "a.txt", folder / "b.txt.gz"], input_format="text", text_per="line", task_bytes=task_bytes)
    assert stored_tokens(tmp_path / "out.pbin") == expected_tokens(bpe2, ["one", "two", "joined", "three"])


def test_bytes_that_are_no_text_are_named(tmp_path: Path, made: Pack, folder: Path) -> None:
    (folder / "a.txt").write_bytes(b"ab\xff\n")
    with pytest.raises(PrepareError, match=r"a\.txt: not UTF-8, byte 3"):
        made(folder, input_format="text")
    assert made(folder, input_format="text", on_error="skip", restart=True).num_dropped == 1
    with pytest.raises(PrepareError, match="line 1: not UTF-8"):
        made(folder / "a.txt", input_format="text", text_per="line", overwrite=True)


def test_options_that_do_not_fit(made: Pack, folder: Path) -> None:
    with pytest.raises(ConfigError, match="only plain text can be split"):
        made(folder, text_per="line")
    with pytest.raises(ConfigError, match="can't be combined"):
        made(folder, input_format="text", field="text")
    with pytest.raises(ConfigError, match="invalid choice"):
        made(folder, input_format="csv")
    (folder.parent / "none").mkdir()
    with pytest.raises(NotFound, match="no text file"):
        made(folder.parent / "none", input_format="text")


@pytest.mark.parametrize("text", ["hello world", "hello world\n", "\n\nhello\n", "one\ntwo\n", "word " * 100_000])
def test_plain_text_is_told_from_json_lines_however_few_there_are(made: Pack, folder: Path, text: str) -> None:
    path = folder.parent / "plain.txt"
    path.write_text(text, "utf-8")
    with pytest.raises(FormatError, match=r"found plain text.*--input-format text"):
        made(path)


@pytest.mark.parametrize("text", ['{"text": "', '["a"', '"a'])
def test_one_line_that_begins_as_json_is_not_called_plain_text(made: Pack, folder: Path, text: str) -> None:
    path = folder.parent / "cut.jsonl"
    path.write_text(text, "utf-8")
    with pytest.raises(PenstockError) as caught:
        made(path)
    assert "plain text" not in str(caught.value)


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Pack, corpus: Path, compress: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spool"))
    (tmp_path / "spool").mkdir()
    made(corpus)
    pipe(monkeypatch, compress(corpus.read_bytes()))
    made("-", tmp_path / "other.pbin")
    assert (tmp_path / "out.pbin").read_bytes() == (tmp_path / "other.pbin").read_bytes()
    assert os.listdir(tmp_path / "spool") == []


def test_standard_input_goes_on_where_the_same_bytes_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Pack, bpe2: Path
) -> None:
    lines = [json.dumps({"text": text}).encode() + b"\n" for text in TEXTS]
    bad = b"".join([*lines, b"{}\n"])
    pipe(monkeypatch, bad)
    with pytest.raises(PrepareError, match="line 151: no field 'text'"):
        made("-", task_bytes=2000)
    pipe(monkeypatch, b"".join(lines))
    with pytest.raises(ConfigError, match="input stdin has changed"):
        made("-", task_bytes=2000)
    pipe(monkeypatch, bad)
    report = made("-", task_bytes=2000, on_error="skip")
    assert report.reused_tasks > 0
    assert stored_tokens(tmp_path / "out.pbin") == expected_tokens(bpe2, TEXTS)


def test_standard_input_stands_alone(made: Pack, corpus: Path) -> None:
    with pytest.raises(ConfigError, match="can't be combined with other inputs"):
        made(["-", corpus])


def test_standard_input_without_a_document(monkeypatch: pytest.MonkeyPatch, made: Pack) -> None:
    pipe(monkeypatch, b"")
    with pytest.raises(PrepareError, match="contain no documents: found nothing on standard input"):
        made("-")
