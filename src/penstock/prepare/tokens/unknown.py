"""Text that a tokenizer doesn't know: tokens for unknown text, and characters that are dropped."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import msgspec
import numpy as np

from penstock.engine.parts import PartName, read_part
from penstock.prepare.tokens.engines import Encoded, TokenizersEngine, load_reference
from penstock.prepare.tokens.sp_model import load_sentencepiece
from penstock.prepare.tokens.tokenizer import TokenizerSpec
from penstock.store.place import Place
from penstock.types import IntArray

_BYTE_LETTERS = 256


class _Model(msgspec.Struct):
    type: str | None = None
    unk_token: str | None = None
    unk_id: int | None = None
    byte_fallback: bool | None = None


class _Json(msgspec.Struct):
    model: _Model


class _Vocabulary(msgspec.Struct):
    vocab: dict[str, int]


class _WithVocabulary(msgspec.Struct):
    model: _Vocabulary


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
    vocabulary = msgspec.json.decode(spec.json, type=_WithVocabulary).model.vocab
    return sum(len(token) == 1 for token in vocabulary) < _BYTE_LETTERS


def count_unknown(spec: TokenizerSpec, ids: Encoded) -> int:
    """Return how many of the tokens stand for unknown text."""
    token = unknown_id(spec)
    return 0 if token is None else int(np.count_nonzero(ids[0] == token))


def count_dropped(spec: TokenizerSpec, texts: Sequence[bytes], lengths: IntArray) -> int:
    """Return how many characters, blanks not counted, no token covers in texts that have tokens."""
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


def count_in_parts(spec: TokenizerSpec, folder: Place, parts: Sequence[PartName]) -> tuple[int, int]:
    """Return the unknown tokens and the dropped characters of all parts, also of those that other runs made."""
    if unknown_id(spec) is None and not drops_characters(spec):
        return 0, 0
    pieces = [piece for part in parts for piece in read_part(folder.child(part.path), spec.token_bytes)[0].pieces]
    return sum(one.unknown_tokens for one in pieces), sum(one.dropped_characters for one in pieces)


def _model_of(spec: TokenizerSpec) -> _Model | None:
    try:
        return msgspec.json.decode(spec.json, type=_Json).model
    except msgspec.MsgspecError:
        return None
