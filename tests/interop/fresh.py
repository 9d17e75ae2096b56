"""Fresh random input from a seed: JSONL as hostile as Modalities can take, and tokenizers of each token width."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

EOS = "<|eod|>"
FILLER_TOKENS = 66_000
_VOCAB_SIZE = 700
_WORDS = (
    "the of and to in language data stream window epoch resume token I'll don't 3.14 x=y+z; snake_case CamelCase "
    "https://example.org/?q=1&r=2 ---- !? straße Ærø naïve été e\u0301te\u0301 Привет мир שלום مرحبا नमस्ते "
    "你好世界 日本語 한국어 🙂 👩‍👩‍👧‍👦 🇩🇪 \u200b \u2028 \u0085 \ufeff \u00a0 \ufffd \U0010ffff "
    'ﬁ Å A\u030a \x7f " \\ / \\u0041 {} ^ $ 0123456789'
)
_PIECES = (*_WORDS.split(" "), "\n", "\n\n", "\t", "\r\n", "  ", "\0", "<|im_start|>", EOS)


def text(rng: random.Random) -> str:
    """One non-empty document; now and then it is the EOS string itself, ends in it, or is long."""
    kind = rng.random()
    if kind < 0.02:
        return EOS
    n_pieces = rng.randint(2000, 6000) if kind > 0.99 else 1 + int(rng.lognormvariate(3, 1.2))
    pieces = rng.choices(_PIECES, k=n_pieces)
    joined = rng.choice(("", " ", " ", " ")).join(pieces)
    return joined + EOS if kind < 0.08 else joined


def lines(rng: random.Random, n_docs: int) -> Iterator[bytes]:
    """JSON objects with `text`, without line ends: other fields, blanks, escapes, a doubled key."""
    for number in range(n_docs):
        value = text(rng)
        ascii_only = rng.random() < 0.5
        fields: dict[str, object] = {"id": number, "text": value, "meta": {"text": "no", "n": [1.5, None, True]}}
        if rng.random() < 0.3:
            fields = dict(reversed(fields.items()))
        encoded = json.dumps(fields, ensure_ascii=ascii_only)
        if rng.random() < 0.05:
            # Of a key that stands twice the last one counts.
            encoded = '{"text": "the first is not meant", ' + encoded[1:]
        yield rng.choice(("", "", "", " ", "\t")).encode() + encoded.encode() + rng.choice(("", "", "  ")).encode()


def write_documents(rng: random.Random, path: Path, n_docs: int, *, line_end: bytes = b"\n", last: bool = True) -> None:
    """A JSONL file; `last` says whether the last line has its end."""
    path.write_bytes(line_end.join(lines(rng, n_docs)) + (line_end if last else b""))


def write_odd(path: Path) -> None:
    """Lines that Python's JSON takes: scalars, NaN, arrays, a mark at the start, blanks around."""
    path.write_bytes(b'\xef\xbb\xbf{"text": "bom"}\n1\n"s"\nnull\nNaN\n-Infinity\n [1, 2] \r\n{"a": "\\ud800"}\n\t{}\n')


def write_faulty(rng: random.Random, path: Path, n_docs: int) -> None:
    """Good lines between broken ones of every kind."""
    bad = (
        b"",
        b"   ",
        b"{",
        b'{"a": 1} {"b": 2}',
        b'{"a": "\xff"}',
        b'{"a": "\x01"}',
        b"nul",
        b"[1,]",
        b"\xed\xa0\x80",
        b"'a'",
    )
    mixed = [*lines(rng, n_docs), *(rng.choice(bad) for _ in range(n_docs // 3)), *bad]
    rng.shuffle(mixed)
    path.write_bytes(b"\n".join(mixed) + b"\n")


def make_tokenizers(rng: random.Random, folder: Path, golden: Path) -> dict[str, Path]:
    """Hugging Face folders: two golden ones, and fresh ones with 4-byte ids and with special tokens of their own."""
    made = {name: folder / name for name in ("small1", "bpe2")}
    for name, target in made.items():
        shutil.copytree(golden / name, target)
    corpus = [text(rng) for _ in range(400)]
    made["framed2"] = _save(_framed(_trained(corpus)), folder / "framed2")
    made["wide4"] = _save(_widened(_trained(corpus)), folder / "wide4")
    return made


def _trained(corpus: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCAB_SIZE,
        special_tokens=[EOS, "<|bos|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def _framed(tokenizer: Tokenizer) -> Tokenizer:
    """Puts a BOS before and an EOS after every text by itself."""
    ids = [(token, tokenizer.token_to_id(token)) for token in ("<|bos|>", EOS)]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"<|bos|> $A {EOS}", special_tokens=ids)
    return tokenizer


def _widened(tokenizer: Tokenizer) -> Tokenizer:
    """More than 65,536 entries, so that ids take 4 bytes; the trained merges give ids beyond 16 bits."""
    content = json.loads(tokenizer.to_str())
    vocab: dict[str, int] = content["model"]["vocab"]
    special = {entry["content"] for entry in content["added_tokens"]}
    moved = {token: number + (0 if token in special else FILLER_TOKENS) for token, number in vocab.items()}
    free = sorted(set(range(max(moved.values()))) - set(moved.values()))
    content["model"]["vocab"] = moved | {f"filler{number}": number for number in free}
    return Tokenizer.from_str(json.dumps(content))


def _save(tokenizer: Tokenizer, folder: Path) -> Path:
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": EOS}))
    return folder
