"""Ids of a tokenizer: their texts, special tokens and white space, tokens for unknown text, and dropped characters."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.prepare.tokens.engines import TokenizersEngine, load_reference
from penstock.prepare.tokens.model_files import load_sentencepiece
from penstock.prepare.tokens.tokenizer import TokenizerSpec
from penstock.types import IntArray

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]

_BLANKS = str.maketrans("", "", "ĠĊĉčċČ▁ \t\n\r\v\f")
"""White space in the alphabets of byte-level and SentencePiece vocabularies."""
_BLANK_BYTES = frozenset(("<0x09>", "<0x0A>", "<0x0B>", "<0x0C>", "<0x0D>", "<0x20>"))
_UNKNOWN_BYTES = 1 << 32
"""Length of ids whose text is unknown, so that lengths of texts with them don't add up."""
_FORMS = ("NFC", "NFD", "NFKC", "NFKD")


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Ids of a tokenizer.

    Attributes:
        is_special: bool[n_ids], special added tokens and EOS.
        is_blank: bool[n_ids], tokens of white space.
        text_bytes: int64[n_ids], bytes of the text of each id, if the ids of a text stand for all of its bytes in
            order; None for other tokenizers.
        trims: offsets of tokens don't include spaces at their beginning.
        form: normalization form that text must have for `text_bytes`; None if any text does.
    """

    is_special: NDArray[np.bool_]
    is_blank: NDArray[np.bool_]
    text_bytes: IntArray | None
    trims: bool
    form: Form | None


@functools.lru_cache(maxsize=2)
def load_token_table(spec: TokenizerSpec) -> TokenTable:
    """Return the table of a tokenizer, which is read once in each process."""
    found = json.loads(spec.json)
    tokens = _tokens(found["model"])
    added = {int(token["id"]): token for token in found.get("added_tokens") or ()}
    size = max(spec.num_ids, *(index + 1 for index in added), len(tokens) and max(tokens) + 1)
    is_special, is_blank = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
    for index, token in tokens.items():
        is_blank[index] = token in _BLANK_BYTES or (bool(token) and not token.translate(_BLANKS))
    for index, token in added.items():
        is_special[index], is_blank[index] = bool(token.get("special")), not str(token["content"]).strip()
    if spec.eos_id is not None:
        is_special[spec.eos_id] = True
    steps = _steps(found.get("normalizer"))
    form = steps[0]["type"] if len(steps) == 1 and steps[0]["type"] in _FORMS else None
    ends = [step for step in _steps(found.get("post_processor")) if step.get("trim_offsets")]
    text_bytes = None
    if (
        found["model"].get("type") == "BPE"
        and any(step.get("type") == "ByteLevel" for step in _steps(found.get("pre_tokenizer")))
        and not any(step.get("add_prefix_space", True) for step in ends)
        and (form is not None or not steps)
    ):
        text_bytes = np.full(size, _UNKNOWN_BYTES, np.int64)
        alphabet = frozenset(_alphabet())
        unknown = found["model"].get("unk_token")
        for index, token in tokens.items():
            if token != unknown and alphabet.issuperset(token):
                text_bytes[index] = len(token)
        for index, token in added.items():
            text_bytes[index] = len(str(token["content"]).encode(errors="replace"))
    return TokenTable(is_special, is_blank, text_bytes, bool(ends), cast(Any, form))


def _tokens(model: dict[str, Any]) -> dict[int, str]:
    vocab: Any = model.get("vocab") or {}
    if isinstance(vocab, dict):
        return {int(index): str(token) for token, index in cast(dict[str, Any], vocab).items()}
    return {index: str(entry[0]) for index, entry in enumerate(vocab)}


def _steps(node: Any) -> list[dict[str, Any]]:
    """Return a normalizer, pre-tokenizer or post-processor as its steps."""
    if not node:
        return []
    for key in ("normalizers", "pretokenizers", "processors"):
        if node.get("type") == "Sequence" and key in node:
            return [step for inner in node[key] for step in _steps(inner)]
    return [node]


def _alphabet() -> str:
    """Return the 256 characters by which byte-level vocabularies write bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return "".join(map(chr, [*plain, *range(256, 256 + 256 - len(plain))]))


_BYTE_LETTERS = 256


class _Model(msgspec.Struct):
    type: str | None = None
    unk_token: str | None = None
    unk_id: int | None = None
    byte_fallback: bool | None = None
    vocab: msgspec.Raw = msgspec.Raw(b"{}")


class _Json(msgspec.Struct):
    model: _Model


@functools.lru_cache(maxsize=2)
def unknown_id(spec: TokenizerSpec) -> int | None:
    """Return the id of the token for unknown text; None without one."""
    if spec.kind == "sentencepiece":
        return int(load_sentencepiece(spec).unk_id())
    if spec.kind != "tokenizers":
        return None
    model = _model_of(spec)
    if model is None or model.byte_fallback:
        return None
    if model.type == "Unigram":
        return model.unk_id
    return None if model.unk_token is None else load_reference(spec).id_of(model.unk_token)


@functools.lru_cache(maxsize=2)
def drops_characters(spec: TokenizerSpec) -> bool:
    """Return whether characters without a token are dropped: by BPE without a token for unknown text or for bytes."""
    if spec.kind != "tokenizers":
        return False
    model = _model_of(spec)
    if model is None or model.type not in (None, "BPE") or model.byte_fallback or unknown_id(spec) is not None:
        return False
    if b'"ByteLevel"' not in spec.json:
        return True
    vocabulary = msgspec.json.decode(model.vocab, type=dict[str, int])
    return sum(len(token) == 1 for token in vocabulary) < _BYTE_LETTERS


def count_unknown(spec: TokenizerSpec, ids: NDArray[np.uint32]) -> int:
    """Count the tokens for unknown text."""
    token = unknown_id(spec)
    return 0 if token is None else int(np.count_nonzero(ids == token))


def count_dropped(spec: TokenizerSpec, texts: Sequence[bytes], lengths: IntArray) -> int:
    """Count the characters, except white space, that no token covers in texts with tokens."""
    if not drops_characters(spec) or not isinstance(engine := load_reference(spec), TokenizersEngine):
        return 0
    texts = [text for text, length in zip(texts, lengths.tolist(), strict=True) if length]
    dropped = 0
    for text, offsets in zip(texts, engine.encode_with_offsets(texts)[1], strict=True):
        covered = np.zeros(len(text.decode()) + 1, np.int64)
        np.add.at(covered, offsets[:, 0], 1)
        np.add.at(covered, offsets[:, 1], -1)
        is_covered = np.cumsum(covered) > 0
        dropped += sum(not (here or letter.isspace()) for letter, here in zip(text.decode(), is_covered, strict=False))
    return dropped


def _model_of(spec: TokenizerSpec) -> _Model | None:
    try:
        return msgspec.json.decode(spec.json, type=_Json).model
    except msgspec.MsgspecError:
        return None
