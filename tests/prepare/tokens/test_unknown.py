"""Text that a tokenizer doesn't know: counted, or a faulty line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.internals import main
from tests.prepare.conftest import write_lines
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

import penstock as ps
from penstock.errors import PrepareError

WORDS = {word: number for number, word in enumerate(["<unk>", "hug", "a", "b"])}
MERGES = {"h": 0, "u": 1, "g": 2, "ug": 3, "hug": 4}
MODELS: dict[str, tuple[Any, str | None]] = {
    "words": (models.WordLevel(WORDS, unk_token="<unk>"), None),
    "pieces": (models.WordPiece(WORDS, unk_token="<unk>"), None),
    "merges": (models.BPE(MERGES, [("u", "g"), ("h", "ug")]), None),
    "words without unk": (models.WordLevel({"hug": 0}, unk_token="[UNK]"), "Missing \\[UNK\\] token"),
    "unigram without unk": (models.Unigram([(piece, -1.0) for piece in MERGES], None), "`unk_id` is missing"),
}


def saved(folder: Path, model: Any) -> tuple[Path, Tokenizer]:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True, normalized=False)])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json", tokenizer


@pytest.mark.parametrize("name", MODELS)
def test_unknown_text(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, fault = MODELS[name]
    path, tokenizer = saved(tmp_path / "tokenizer", model)
    lines = write_lines(tmp_path / "in.jsonl", [{"text": "hug hug"}, {"text": "hug mzg"}, {"text": "hug"}])
    options: dict[str, Any] = {"tokenizer": path, "eos": "<eos>", "executor": "inline"}
    eos = tokenizer.token_to_id("<eos>")
    if fault is not None:
        with pytest.raises(PrepareError, match=f"line 2: .*tokenizer.json can't encode the text: .*{fault}"):
            ps.pack(lines, tmp_path / "out.pbin", **options)
        report = ps.pack(lines, tmp_path / "out.pbin", **options, on_error="skip")
        assert [one.line for one in report.dropped] == [2]
        source: Any = ps.open(tmp_path / "out.pbin")
        assert source[1]["tokens"].tolist() == [*tokenizer.encode("hug").ids, eos]
        assert ps.pack(lines, tmp_path / "dry.pbin", **options, dry_run=True).documents > 0
        return
    report = ps.pack(lines, tmp_path / "out.pbin", **options)
    unknown, dropped = {"words": (1, 0), "pieces": (1, 0), "merges": (0, 2)}[name]
    assert (report.unknown_tokens, report.dropped_characters) == (unknown, dropped)
    with pytest.raises(SystemExit):
        main(["pack", str(lines), "-o", str(tmp_path / "b.pbin"), "--tokenizer", str(path), "--eos", "<eos>"])
    said = capsys.readouterr().err
    counts = {"unknown_tokens": unknown, "dropped_characters": dropped}
    for output in (tmp_path / "b.pbin.penstock", tmp_path / "folder" / ".penstock"):
        if output.parent.name == "folder":
            for part in ((0, 2), (1, 2)):  # what other runs encoded counts too
                ps.pack(lines, output.parent, **options, to="megatron", file_tokens=5, part=part, task_bytes=20)
            finished = ps.pack(
                lines, output.parent, **options, to="megatron", file_tokens=5, finish=True, task_bytes=20
            )
            assert (finished.unknown_tokens, finished.dropped_characters) == (unknown, dropped)
        assert json.loads(output.read_text())["unknown_text"] == counts
        assert ps.verify(output.parent if output.name == ".penstock" else tmp_path / "b.pbin") == []
    with pytest.raises(SystemExit):
        main(["info", str(tmp_path / "b.pbin")])
    shown = capsys.readouterr().out
    assert ("1 token (12.50% of all)" if unknown else "2 characters with no token") in shown
    assert ("1 tokens (12.5%) are unknown" if unknown else "no token for 2 characters") in said


def test_nothing_unknown(bpe2: Path, tmp_path: Path) -> None:
    """A byte-level tokenizer knows every text."""
    lines = write_lines(tmp_path / "in.jsonl", [{"text": "щука плывет"}])
    options: dict[str, Any] = {"tokenizer": bpe2 / "tokenizer.json", "eos": "<|eod|>", "executor": "inline"}
    report = ps.pack(lines, tmp_path / "out.pbin", **options)
    assert (report.unknown_tokens, report.dropped_characters) == (0, 0)
    assert "unknown_text" not in json.loads((tmp_path / "out.pbin.penstock").read_text())
