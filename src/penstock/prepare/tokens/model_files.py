"""Tokenizer files of SentencePiece and tiktoken.

SentencePiece `.model` files are encoded as by the package's own `Encode`: no BOS, no EOS, no sampling. Control symbols
such as `</s>` in a text are plain text, and user-defined symbols are tokens, as the model defines. A
`tokenizer_config.json` next to the model has no effect. EOS is found by its piece, as in Modalities (`PieceToId`).

tiktoken rank files have lines of `base64-of-the-token rank`, encoded as by tiktoken's `encode_ordinary`. They don't
define how text is split first: that is known for the names of published encodings (`cl100k_base.tiktoken`), else it
must be specified, and is never guessed. Special tokens are those of the encoding, and those in the
`added_tokens_decoder` of a `tokenizer_config.json` next to the file. In a text they are plain text.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import xxhash

from penstock._naming import nearest
from penstock._optional import require
from penstock.errors import ConfigError, Corrupt
from penstock.prepare.tokens.tokenizer import NO_EOS, TokenizerSpec, token_text, tokenizer_digest


def sentencepiece_spec(data: bytes, path: str, *, eos: str | None) -> TokenizerSpec:
    """Describe a SentencePiece model.

    Raises:
        Corrupt: it isn't a SentencePiece model.
        ConfigError: it has no piece `eos`, or no EOS.
    """
    processor = _load(data, path)
    size = processor.GetPieceSize()
    eos_id: int | None = None
    if eos == NO_EOS:
        eos = None
    elif eos is None:
        if processor.eos_id() < 0:
            raise ConfigError(
                "the model has no token that ends a document",
                path=path,
                hint="Choose one of its pieces with eos= (--eos), or append none: --eos none",
            )
        eos_id = processor.eos_id()
        eos = str(processor.IdToPiece(eos_id))
    else:
        eos_id = processor.PieceToId(eos)
        if processor.IdToPiece(eos_id) != eos:
            pieces = (processor.IdToPiece(token) for token in range(size))
            close = nearest(eos, pieces)
            raise ConfigError(
                f"the EOS token {eos!r} is not a piece of the model",
                path=path,
                hint=f"Did you mean {close!r}?" if close else None,
            )
    return TokenizerSpec(
        name=os.path.basename(path),
        path=path,
        json=data,
        digest=tokenizer_digest(data),
        vocab_size=size,
        max_token_id=size - 1,
        eos=eos,
        eos_id=eos_id,
        kind="sentencepiece",
    )


@functools.lru_cache(maxsize=2)
def load_sentencepiece(spec: TokenizerSpec) -> Any:
    return _load(spec.json, spec.path)


def gigatoken_json(data: bytes) -> bytes:
    """Return gigatoken's `tokenizer.json` of a model, without control symbols, which are plain text in a text."""
    made = require("gigatoken._load.sentencepiece", extra="tokenize").sentencepiece_to_tokenizer_json(data)
    found = json.loads(made)
    control = {token["content"] for token in found["added_tokens"] if token["special"]}
    found["added_tokens"] = [token for token in found["added_tokens"] if not token["special"]]
    merges = found["model"]["merges"]
    found["model"]["merges"] = [pair for pair in merges if "".join(pair) not in control]
    return json.dumps(found, ensure_ascii=False).encode()


def _load(data: bytes, path: str) -> Any:
    sentencepiece = require("sentencepiece", extra="tokenize")
    processor = sentencepiece.SentencePieceProcessor()
    try:
        loaded = bool(data) and processor.LoadFromSerializedProto(data)
    except (RuntimeError, OSError, TypeError, ValueError) as error:
        raise Corrupt("not a SentencePiece model", path=path, found=str(error)) from error
    if not loaded or not processor.GetPieceSize():
        raise Corrupt("not a SentencePiece model", path=path, found=f"{len(data)} bytes without pieces")
    return processor


_FIRST_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?(\n|\Z)")
_MOST_ID = (1 << 32) - 1

_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}NUMBERS| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

PATTERNS: Mapping[str, str] = MappingProxyType(
    {
        "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        "cl100k": _CL100K.replace("NUMBERS", "{1,3}"),
        "qwen2": _CL100K.replace("NUMBERS", ""),
        "o200k": "|".join(
            (
                rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}",
                rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}",
                r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            )
        ),
    }
)
"""Name of a pretokenizer → regular expression that splits a text before ranks are looked up."""

GIGATOKEN_NAMES: Mapping[str, str] = MappingProxyType({"cl100k": "gpt4"})
"""Pretokenizers that gigatoken has under another name."""

_END = "<|endoftext|>"


_FIM = {"<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260}
_ENCODINGS: Mapping[str, tuple[str, Mapping[str, int]]] = MappingProxyType(
    {
        "r50k_base": ("gpt2", {_END: 50256}),
        "p50k_base": ("gpt2", {_END: 50256}),
        "cl100k_base": ("cl100k", {_END: 100257, **_FIM, "<|endofprompt|>": 100276}),
        "o200k_base": ("o200k", {_END: 199999, "<|endofprompt|>": 200018}),
    }
)
"""Name of a published encoding → its pretokenizer and its special tokens."""


def is_rank_file(data: bytes) -> bool:
    return _FIRST_LINE.match(data[:4096]) is not None


def tiktoken_spec(
    data: bytes, path: str, *, eos: str | None, pretokenizer: str | None, config: Mapping[str, Any]
) -> TokenizerSpec:
    """Describe a rank file; its name can be that of a published encoding.

    EOS is by default the `eos_token` of `config`, the `tokenizer_config.json` next to the file, else `<|endoftext|>`.

    Raises:
        Corrupt: the file or the config is damaged.
        ConfigError: the pretokenizer or EOS is unknown.
    """
    known_name, known_tokens = _ENCODINGS.get(os.path.splitext(os.path.basename(path))[0], (None, {}))
    name = pretokenizer or known_name
    if name not in PATTERNS:
        raise ConfigError(
            "unknown pretokenizer" if name else "a rank file doesn't define how text is split",
            path=path,
            found=name,
            expected=" | ".join(PATTERNS),
            hint="Specify it with pretokenizer= (--pretokenizer). A wrong one silently produces wrong tokens",
        )
    ranks = parse_ranks(data, path)
    special = {**known_tokens, **_added_tokens(config, path)}
    taken = set(ranks.values())
    for token, token_id in special.items():
        if token_id in taken:
            raise Corrupt("a special token has the same id as another token", path=path, found=f"{token!r}: {token_id}")
        taken.add(token_id)
    eos = None if eos == NO_EOS else eos or token_text(config.get("eos_token")) or _END
    if eos is not None and eos not in special:
        raise ConfigError(
            f"the EOS token {eos!r} is not a special token of this encoding",
            path=path,
            expected=", ".join(map(repr, special)) or "no known special tokens",
            hint="Choose one with eos= (--eos), append none (--eos none), or define it in a tokenizer_config.json next "
            "to the file (added_tokens_decoder)",
        )
    note = msgspec.json.encode([name, sorted(special.items())])
    return TokenizerSpec(
        name=os.path.basename(path),
        path=path,
        json=data,
        digest=xxhash.xxh3_128_hexdigest(data + b"\0" + note),
        vocab_size=len(ranks),
        max_token_id=max(taken),
        eos=eos,
        eos_id=None if eos is None else special[eos],
        kind="tiktoken",
        pretokenizer=name,
    )


def parse_ranks(data: bytes, path: str) -> dict[bytes, int]:
    """Return the rank of each token.

    Raises:
        Corrupt: a line isn't a token and a rank, or one of them is listed twice.
    """
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        try:
            text, rank_text = line.split()
            token, rank = base64.b64decode(text, validate=True), int(rank_text)
            if token in ranks or not token or not 0 <= rank <= _MOST_ID:
                raise ValueError("a duplicate token, or an invalid rank")
        except ValueError as error:  # also that of base64
            what, expected = f"line {number} is not a token and a rank", "base64 of the token, a space, its rank"
            raise Corrupt(what, path=path, found=str(error), expected=expected) from error
        ranks[token] = rank
    if len(set(ranks.values())) != len(ranks):
        raise Corrupt("two tokens have the same rank", path=path)
    missing = next((byte for byte in range(256) if bytes([byte]) not in ranks), None)
    if missing is not None:
        raise Corrupt("a single byte has no rank, so not every text can be encoded", path=path, found=f"{missing:#04x}")
    return ranks


@functools.lru_cache(maxsize=2)
def load_encoding(spec: TokenizerSpec) -> Any:
    tiktoken = require("tiktoken", extra="tokenize")
    return tiktoken.Encoding(
        spec.name,
        pat_str=PATTERNS[spec.pretokenizer or ""],
        mergeable_ranks=parse_ranks(spec.json, spec.path),
        special_tokens={} if spec.eos is None else {spec.eos: spec.eos_id},
    )


def _added_tokens(config: Mapping[str, Any], path: str) -> dict[str, int]:
    config_path = os.path.join(os.path.dirname(path), "tokenizer_config.json")
    found = config.get("added_tokens_decoder") or {}
    try:
        tokens = {str(fields["content"]): int(token_id) for token_id, fields in found.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Corrupt("invalid added_tokens_decoder", path=config_path, found=str(error)) from error
    for token, token_id in tokens.items():
        if not 0 <= token_id <= _MOST_ID:
            raise Corrupt("invalid id", path=config_path, found=f"{token!r}: {token_id}")
    return tokens
