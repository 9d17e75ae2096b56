"""SentencePiece models: the same ids as the package's own `Encode`, with the EOS found by its piece."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tests.internals import load_tokenizer

import penstock as ps
from penstock.errors import ConfigError, Corrupt, NotFound
from penstock.prepare import PackReport, pack
from penstock.store import LocalStore

WORDS = (
    "the",
    "cat",
    "sat",
    "on",
    "mat",
    "and",
    "then",
    "it",
    "ran",
    "to",
    "old",
    "house",
    "where",
    "an",
    "owl",
    "tree",
)
LINES = [" ".join(WORDS[(i * k) % len(WORDS)] for i in range(9)) + f" {k}." for k in range(1, 120)]
DOCS = [*LINES[:20], "a </s> b <unk>", "  two  spaces \n\n x", "\u65e5\u672c\u8a9e \U0001f600", "\0 nul", "x<sep>y"]


@cache
def model(
    model_type: str = "bpe", *, byte_fallback: bool = True, symbols: tuple[str, ...] = (), eos_id: int = 2
) -> bytes:
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(LINES),
        model_writer=out,
        vocab_size=340,
        model_type=model_type,
        byte_fallback=byte_fallback,
        hard_vocab_limit=False,
        user_defined_symbols=list(symbols),
        eos_id=eos_id,
        minloglevel=2,
        num_threads=1,
    )
    return out.getvalue()


def run(folder: Path, data: bytes, **options: Any) -> tuple[PackReport, list[list[int]]]:
    (folder / "m.model").write_bytes(data)
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCS))
    report = pack(folder / "a.jsonl", folder / "o.pbin", tokenizer=folder / "m.model", executor="inline", **options)
    source = ps.open(str(folder / "o.pbin"))
    return report, [source[i]["tokens"].tolist() for i in range(len(source))]


def plain(data: bytes, eos_id: int) -> list[list[int]]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=data)
    found = [processor.Encode(text) for text in DOCS]
    return [ids if ids[-1] == eos_id else [*ids, eos_id] for ids in found]


@pytest.mark.parametrize(
    ("model_type", "byte_fallback", "symbols"),
    [("bpe", True, ("<sep>",)), ("bpe", False, ()), ("unigram", True, ())],
)
def test_what_gigatoken_does_otherwise_is_left_to_the_package(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, model_type: str, byte_fallback: bool, symbols: tuple[str, ...]
) -> None:
    data = model(model_type, byte_fallback=byte_fallback, symbols=symbols)
    report, found = run(tmp_path, data)
    assert found == plain(data, 2)
    assert report.engine == "sentencepiece"
    assert "encoding with sentencepiece" in caplog.text


def test_gigatoken_encodes_a_byte_fallback_bpe_model(tmp_path: Path) -> None:
    report, found = run(tmp_path, model())
    assert report.engine == "gigatoken"
    assert found == plain(model(), 2)


def test_the_reference_gives_the_same_file(tmp_path: Path) -> None:
    run(tmp_path, model())
    first = (tmp_path / "o.pbin").read_bytes()
    report, _ = run(tmp_path, model(), engine="tokenizers", overwrite=True)
    assert report.engine == "sentencepiece"
    assert (tmp_path / "o.pbin").read_bytes() == first


def test_eos_is_found_by_its_piece(tmp_path: Path) -> None:
    _, found = run(tmp_path, model(), eos="<s>")
    assert found == plain(model(), 1)


def test_an_unknown_eos_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a piece of the model") as caught:
        run(tmp_path, model(), eos="</S>")
    assert caught.value.hint == "Did you mean '</s>'?"
    with pytest.raises(ConfigError, match="no token that ends a document"):
        run(tmp_path, model(eos_id=-1))


@pytest.mark.parametrize("data", [b"", b"\x00\x01\x02", b"\xff" * 100])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(Corrupt, match="not a SentencePiece model"):
        run(tmp_path, data)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "m.model"]


def test_a_cut_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match="not a SentencePiece model"):
        run(tmp_path, model()[:-7])


def test_a_folder_may_hold_the_model(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(model())
    spec, _ = load_tokenizer(tmp_path, LocalStore())
    assert (spec.kind, spec.eos, spec.eos_id, spec.token_bytes) == ("sentencepiece", "</s>", 2, 2)


def test_a_folder_with_two_models_is_refused(tmp_path: Path) -> None:
    for name in ("a.model", "b.model"):
        (tmp_path / name).write_bytes(model())
    with pytest.raises(NotFound):
        load_tokenizer(tmp_path, LocalStore())


def test_a_pretokenizer_is_for_tiktoken_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="only applies to tiktoken files"):
        run(tmp_path, model(), pretokenizer="gpt2")
