"""tiktoken rank files: the same ids as the package's own `encode_ordinary`."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from tests.internals import TIKTOKEN_PATTERNS as PATTERNS
from tests.internals import load_tokenizer

import penstock as ps
from penstock.errors import ConfigError, Corrupt
from penstock.prepare import PackReport, pack
from penstock.store import LocalStore

MERGED = (
    b"th",
    b"he",
    b"the",
    b" the",
    b"in",
    b"ing",
    b" a",
    b"  ",
    b"\n\n",
    b"12",
    b"123",
    b"'t",
    b"XY",
    b"DO",
)
TOKENS = [*(bytes([byte]) for byte in range(256)), *MERGED]
RANKS = {token: rank for rank, token in enumerate(TOKENS)}
CONFIG = {"added_tokens_decoder": {"300": {"content": "<|endoftext|>"}, "301": {"content": "<|im_end|>"}}}
DOCS = [
    "the thing in 12345 a",
    "<|endoftext|> in text",
    "\u65e5\u672c The DON'T don't  \n\n x",
    "camelCaseXY/\n/ \u0301a",
]


def rank_file(ranks: dict[bytes, int] = RANKS) -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())


def run(folder: Path, *, name: str = "r.tiktoken", **options: Any) -> tuple[PackReport, list[list[int]]]:
    (folder / name).write_bytes(rank_file())
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCS))
    report = pack(folder / "a.jsonl", folder / "o.pbin", tokenizer=folder / name, executor="inline", **options)
    source = ps.open(str(folder / "o.pbin"))
    return report, [source[i]["tokens"].tolist() for i in range(len(source))]


def write_config(folder: Path, **more: object) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({**CONFIG, **more}))


def plain(pattern: str, eos_id: int) -> list[list[int]]:
    encoding = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=RANKS, special_tokens={})
    return [[*encoding.encode_ordinary(text), eos_id] for text in DOCS]


@pytest.mark.parametrize("pretokenizer", list(PATTERNS))
@pytest.mark.parametrize("engine", ["gigatoken", "tokenizers"])
def test_ids_are_those_of_the_package(tmp_path: Path, pretokenizer: str, engine: str) -> None:
    write_config(tmp_path)
    report, found = run(tmp_path, pretokenizer=pretokenizer, engine=engine)
    assert report.engine == ("tiktoken" if engine == "tokenizers" else "gigatoken")
    assert found == plain(PATTERNS[pretokenizer], 300)


def test_a_vocabulary_that_gigatoken_cannot_take_is_left_to_the_package(tmp_path: Path) -> None:
    ranks = {**RANKS, b"qzx": len(RANKS)}  # no two tokens make it
    write_config(tmp_path)
    (tmp_path / "x.tiktoken").write_bytes(rank_file(ranks))
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a qzx b"}) + "\n")
    report = pack(
        tmp_path / "a.jsonl",
        tmp_path / "o.pbin",
        tokenizer=tmp_path / "x.tiktoken",
        pretokenizer="gpt2",
        executor="inline",
    )
    assert report.engine == "tiktoken"
    assert report.tokens == len("a qzx b") + 1


def test_the_config_names_the_eos(tmp_path: Path) -> None:
    write_config(tmp_path, eos_token="<|im_end|>")
    assert run(tmp_path, pretokenizer="gpt2")[1] == plain(PATTERNS["gpt2"], 301)


def test_a_published_encoding_is_known_by_its_name(tmp_path: Path) -> None:
    _, found = run(tmp_path, name="cl100k_base.tiktoken")
    assert found == plain(PATTERNS["cl100k"], 100257)
    spec, _ = load_tokenizer(tmp_path / "cl100k_base.tiktoken", LocalStore())
    assert (spec.max_token_id, spec.token_bytes) == (100276, 4)


def test_patterns_are_those_of_the_package() -> None:
    """Where the package has pieces of them as constants."""
    from tiktoken_ext import openai_public

    texts = [" ".join(DOCS), "a  b\n\n c\t\td  ", "it's 1234567 x!?", "   "]
    ours, theirs = (
        tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=RANKS, special_tokens={})
        for pattern in (PATTERNS["gpt2"], openai_public.r50k_pat_str)
    )
    assert [ours.encode_ordinary(text) for text in texts] == [theirs.encode_ordinary(text) for text in texts]


def test_how_text_is_split_is_never_guessed(tmp_path: Path) -> None:
    write_config(tmp_path)
    with pytest.raises(ConfigError, match="doesn't define how text is split"):
        run(tmp_path)
    with pytest.raises(ConfigError, match="unknown pretokenizer"):
        run(tmp_path, pretokenizer="gpt5")


def test_an_eos_that_is_no_special_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a special token"):
        run(tmp_path, pretokenizer="gpt2")


def test_a_special_token_must_have_an_id_of_its_own(tmp_path: Path) -> None:
    write_config(tmp_path, added_tokens_decoder={"5": {"content": "<|endoftext|>"}})
    with pytest.raises(Corrupt, match="same id as another token"):
        run(tmp_path, pretokenizer="gpt2")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (rank_file() + b"??? 7\n", "line 271 is not a token and a rank"),
        (rank_file() + rank_file()[:9], "line 271 is not a token and a rank"),
        (rank_file() + b"YWJj 3\n", "two tokens have the same rank"),
        (rank_file() + b"YWJj -3\n", "line 271 is not a token and a rank"),
        (rank_file({token: rank for token, rank in RANKS.items() if token != b"a"}), "a single byte has no rank"),
    ],
)
def test_a_damaged_rank_file_is_refused(tmp_path: Path, data: bytes, what: str) -> None:
    (tmp_path / "x.tiktoken").write_bytes(data)
    write_config(tmp_path)
    with pytest.raises(Corrupt, match=what):
        load_tokenizer(tmp_path / "x.tiktoken", LocalStore(), pretokenizer="gpt2")
