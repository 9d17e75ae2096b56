"""Ids of a tokenizer: their texts, special tokens and white space, tokens for unknown text, and dropped characters.

`TokenTable` and the counts serve `pack`; `Vocabulary` turns ids back into text for display.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock._limits import MOST_TOKEN_ID
from penstock._optional import require
from penstock.errors import Corrupt, NotFound, PenstockError
from penstock.prepare.tokens.engines import TokenizersEngine, load_reference
from penstock.prepare.tokens.model_files import load_sentencepiece
from penstock.prepare.tokens.tokenizer import TokenizerSpec, parse_tokenizer, require_loadable, tokenizer_digest
from penstock.store.hub_cache import located
from penstock.store.local import LocalStore
from penstock.store.place import local_path
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
        alphabet = _bytes_of_characters().keys()
        unknown = found["model"].get("unk_token")
        for index, token in tokens.items():
            if token != unknown and alphabet >= {*token}:
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
    if not node:
        return []
    for key in ("normalizers", "pretokenizers", "processors"):
        if node.get("type") == "Sequence" and key in node:
            return [step for inner in node[key] for step in _steps(inner)]
    return [node]


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
    return sum(len(token) == 1 for token in vocabulary) < 256


def count_unknown(spec: TokenizerSpec, ids: NDArray[np.uint32]) -> int:
    token = unknown_id(spec)
    return 0 if token is None else int(np.count_nonzero(ids == token))


def count_dropped(spec: TokenizerSpec, texts: Sequence[bytes], lengths: IntArray) -> int:
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


# --- texts for display

Decode = Callable[[Sequence[int]], str]

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Vocabulary:
    """Texts of the ids of a tokenizer.

    Args:
        piece_of: returns the entry of an id in the vocabulary; None if it doesn't exist.
        is_byte_level: entries are bytes, written as GPT-2's characters.
        digests: digests of the tokenizer that side files record.
    """

    def __init__(
        self,
        decode: Decode,
        piece_of: Callable[[int], str | None],
        *,
        is_byte_level: bool,
        digests: frozenset[str] = frozenset(),
    ) -> None:
        self.digests = digests
        self._decode = decode
        self._piece_of = piece_of
        self._bytes = _bytes_of_characters() if is_byte_level else None

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids. An id that the tokenizer lacks, which its library would drop, is `⟨17⟩`."""
        numbers = list(map(int, ids))
        lacking = {one for one in set(numbers) if self._piece_of(one) is None}
        if not lacking:
            return self._decode(numbers)
        runs = groupby(numbers, lambda one: one in lacking)
        return "".join(
            "".join(f"⟨{one}⟩" for one in run) if is_lacking else self._decode(list(run)) for is_lacking, run in runs
        )

    def bytes_of(self, token: int, /) -> bytes | None:
        piece = self._piece_of(token)
        if piece is None:
            return None
        if self._bytes is not None:
            known = [self._bytes.get(char) for char in piece]
            if None not in known:
                return bytes(one for one in known if one is not None)
        byte = _BYTE_PIECE.fullmatch(piece)
        if byte is not None:
            return bytes([int(byte[1], 16)])
        return piece.replace("\u2581", " ").encode(errors="surrogatepass")


def load_decoder(tokenizer: str | os.PathLike[str]) -> Decode:
    """Return a function from ids to text with special tokens; arguments and errors are those of `load_vocabulary`."""
    return load_vocabulary(tokenizer).decode


def load_vocabulary(tokenizer: str | os.PathLike[str]) -> Vocabulary:
    """Load the vocabulary of a tokenizer by its own library.

    Args:
        tokenizer: a `tokenizer.json` or its directory, a SentencePiece `.model`, or a name in the Hub's local cache.

    Raises:
        NotFound: nothing exists there.
        Corrupt: it can't be read.
        MissingExtra: its library isn't installed.
    """
    store, path = LocalStore(), local_path(located(os.fspath(tokenizer)), "a tokenizer")
    if store.is_folder(path):
        path = os.path.join(path, "tokenizer.json")
    if not store.exists(path):
        raise NotFound(
            "the tokenizer file doesn't exist", path=path, hint="Pass a tokenizer.json, its folder, or a .model"
        )
    try:
        data = store.get(path)
        if path.endswith(".model"):
            pieces: Any = require("sentencepiece", extra="tokenize").SentencePieceProcessor(model_proto=data)
            count = int(pieces.GetPieceSize())
            return Vocabulary(
                pieces.Decode,
                lambda token: str(pieces.IdToPiece(token)) if 0 <= token < count else None,
                is_byte_level=False,
                digests=_digests(data),
            )
        require_loadable(data, path)
        library: Any = parse_tokenizer(data, path)
    except (ImportError, PenstockError):
        raise
    except Exception as error:
        raise Corrupt("the tokenizer can't be read", path=path, found=str(error)) from error
    return Vocabulary(
        functools.partial(library.decode, skip_special_tokens=False),
        lambda token: library.id_to_token(token) if 0 <= token <= MOST_TOKEN_ID else None,
        is_byte_level=b'"ByteLevel"' in data,
        digests=_digests(data),
    )


def _digests(data: bytes) -> frozenset[str]:
    return frozenset(tokenizer_digest(data, split_special_tokens=splits) for splits in (False, True))


@functools.cache
def _bytes_of_characters() -> dict[str, int]:
    """Return GPT-2's table: printable bytes are themselves, others are characters from U+0100 on, in order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}
