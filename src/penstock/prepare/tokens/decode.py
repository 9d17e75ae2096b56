"""Texts of ids, for display."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from penstock._limits import MOST_TOKEN_ID
from penstock._optional import require
from penstock.errors import Corrupt, NotFound, PenstockError
from penstock.prepare.tokens.tokenizer import parse_tokenizer, require_loadable, tokenizer_digest
from penstock.store.hub_cache import located
from penstock.store.local import LocalStore
from penstock.store.resolve import local_path

Decode = Callable[[Sequence[int]], str]

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Vocabulary:
    """Texts of the ids of a tokenizer.

    Args:
        decode: returns the text of ids.
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
        """Return the bytes of an id, which may be a part of a character; None if it doesn't exist."""
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
            return _of_pieces(pieces, _digests(data))
        require_loadable(data, path)
        library: Any = parse_tokenizer(data, path)
    except (ImportError, PenstockError):
        raise
    except Exception as error:
        raise Corrupt("the tokenizer can't be read", path=path, found=str(error)) from error
    is_byte_level = b'"ByteLevel"' in data

    def piece_of(token: int) -> str | None:
        return library.id_to_token(token) if 0 <= token <= MOST_TOKEN_ID else None

    def decode(ids: Sequence[int]) -> str:
        return library.decode(ids, skip_special_tokens=False)

    return Vocabulary(decode, piece_of, is_byte_level=is_byte_level, digests=_digests(data))


def _digests(data: bytes) -> frozenset[str]:
    return frozenset(tokenizer_digest(data, split_special_tokens=splits) for splits in (False, True))


def _of_pieces(pieces: Any, digests: frozenset[str]) -> Vocabulary:
    count = int(pieces.GetPieceSize())

    def piece_of(token: int) -> str | None:
        return str(pieces.IdToPiece(token)) if 0 <= token < count else None

    return Vocabulary(pieces.Decode, piece_of, is_byte_level=False, digests=digests)


def _bytes_of_characters() -> dict[str, int]:
    """Return GPT-2's table: printable bytes are themselves, others are characters from U+0100 on, in order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}
