"""Masks from the bytes of ids are those from the offsets of `tokenizers`, whatever a tokenizer does to a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.prepare.chat_styles import STYLES, conversations, write_tokenizer
from tests.prepare.conftest import write_lines

import penstock as ps
from penstock.prepare.tokens.chat.mask import encode_spans, encode_spans_by_bytes
from penstock.prepare.tokens.engines import TokenizersEngine, odd_texts
from penstock.prepare.tokens.tokenizer import load_spec
from penstock.prepare.tokens.vocabulary import load_token_table
from penstock.store.local import LocalStore

TRIMS = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
CHANGES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "trims offsets": {"post_processor": TRIMS},
    "NFC": {"normalizer": {"type": "NFC"}},
    "NFC in a sequence": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}},
}
TEXTS = ["a b", " a  b ", "e\u0301e\u0301 \u00e9", "日本 語", "😀x", "<|im_start|>user\nhi<|im_end|>\n", "", "x\n\n y"]


@pytest.mark.parametrize("name", CHANGES)
def test_every_part_of_every_text(name: str, bpe2: Path, tmp_path: Path) -> None:
    folder = write_tokenizer(bpe2, tmp_path / "tokenizer", STYLES["chatml"])
    model = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(model | CHANGES[name]))
    spec, _ = load_spec(folder, LocalStore(), eos=None, special_tokens=False)
    engine, vocabulary = TokenizersEngine(spec), load_token_table(spec)
    parts = [
        (text, [(start, stop)])
        for text in TEXTS
        for start in range(len(text))
        for stop in range(start + 1, len(text) + 1)
    ]
    parts += [
        (text, [(at, at + 2) for at in range(shift, len(text) - 2, 3)])
        for text in (one.decode() for one in odd_texts(engine.added_tokens()[:4]))
        for shift in range(3)
    ]
    texts, spans = [text.encode() for text, _ in parts], [one for _, one in parts]
    (ids, lengths), mask = encode_spans_by_bytes(engine, vocabulary, lambda: engine, texts, spans)
    (expected_ids, expected_lengths), expected = encode_spans(engine, texts, spans)
    assert np.array_equal(ids, expected_ids)
    assert np.array_equal(lengths, expected_lengths)
    assert np.array_equal(mask, expected)
    # A token is generated if one of its characters is, by what the library says.
    offsets = [spec.load().encode(text.decode(), add_special_tokens=False).offsets for text in texts]
    if name == "as it is":
        by_hand = [
            any(a < stop and start < b for a, b in one)
            for one, all_ in zip(spans, offsets, strict=True)
            for start, stop in all_
        ]
        assert mask.tolist() == by_hand


@pytest.mark.parametrize("name", STYLES)
def test_both_engines_write_the_same(name: str, bpe2: Path, tmp_path: Path) -> None:
    style = STYLES[name]
    tokenizer = write_tokenizer(bpe2, tmp_path / "tokenizer", style, style.unmarked)
    lines = write_lines(tmp_path / "in.jsonl", conversations(style))
    how: dict[str, Any] = {"tokenizer": tokenizer, "chat": True, "executor": "inline", "on_error": "skip"}
    reports = [
        ps.pack(lines, tmp_path / f"{engine}.pbin", engine=engine, **how) for engine in ("gigatoken", "tokenizers")
    ]
    assert [one.engine for one in reports] == ["gigatoken", "tokenizers"]
    sources: list[Any] = [ps.open(one.output) for one in reports]
    assert len(sources[0]) == len(sources[1])
    for index in range(len(sources[0])):
        ours, theirs = (source[index] for source in sources)
        assert ours["tokens"].tolist() == theirs["tokens"].tolist()
        assert ours["loss_mask"].tolist() == theirs["loss_mask"].tolist()
