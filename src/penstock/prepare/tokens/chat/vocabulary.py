"""Facts about the ids of a tokenizer: how much text an id stands for, and which ones are special or white space."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from penstock.prepare.tokens.tokenizer import TokenizerSpec
from penstock.types import IntArray

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]

_BLANKS = str.maketrans("", "", "ĠĊĉčċČ▁ \t\n\r\v\f")
"""White space in the alphabets of byte-level and SentencePiece vocabularies."""
_BLANK_BYTES = frozenset(("<0x09>", "<0x0A>", "<0x0B>", "<0x0C>", "<0x0D>", "<0x20>"))
_UNKNOWN_BYTES = 1 << 32
"""Stands for ids whose text is unknown, so that lengths of texts with them don't add up."""
_FORMS = ("NFC", "NFD", "NFKC", "NFKD")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The ids of a tokenizer.

    Attributes:
        is_special: bool[n_ids], added tokens that are special, and EOS.
        is_blank: bool[n_ids], tokens of nothing but white space.
        text_bytes: int64[n_ids], bytes of the text of each id, if the ids of a text stand for all of its bytes in
            order; None for other tokenizers.
        trims: whether the offset of a token leaves out spaces at its beginning.
        form: normalization form that text must have for `text_bytes`; None if any text does.
    """

    is_special: NDArray[np.bool_]
    is_blank: NDArray[np.bool_]
    text_bytes: IntArray | None
    trims: bool
    form: Form | None


@functools.lru_cache(maxsize=2)
def load_vocabulary(spec: TokenizerSpec) -> Vocabulary:
    """Return the vocabulary of a tokenizer; read once in each process."""
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
        _is_byte_level(found)
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
    return Vocabulary(is_special, is_blank, text_bytes, bool(ends), cast(Any, form))


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


def _is_byte_level(found: dict[str, Any]) -> bool:
    kinds = [step.get("type") for step in _steps(found.get("pre_tokenizer"))]
    return found["model"].get("type") == "BPE" and "ByteLevel" in kinds


def _alphabet() -> str:
    """Return the 256 characters by which byte-level vocabularies write bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return "".join(map(chr, [*plain, *range(256, 256 + 256 - len(plain))]))
