"""Widths and checks of stored token ids."""

from __future__ import annotations

import os
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError, TooLarge
from penstock.types import IntArray

ByteOrder: TypeAlias = Literal["<", ">", "="]
"""Little-endian, big-endian, native."""

TOKEN_BYTES = (1, 2, 4)
"""Token widths of the formats."""

_DTYPES = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32)}


def token_bytes_for_vocab(vocab_size: int) -> int:
    """Return 1, 2 or 4: the token width of Modalities for a vocabulary size.

    Its rule is n = ceil(log2(vocab_size) / 8): 1 and 2 are used directly, 3 and 4 become 4. A vocabulary of one entry
    has
    n = 0, which also becomes 4; this keeps files byte-identical.

    Raises:
        ConfigError: the vocabulary has no entries, or more than 2^32.
    """
    if not 1 <= vocab_size <= 1 << 32:
        raise ConfigError("no token width supports this vocabulary size", found=vocab_size, expected=f"1 to {1 << 32}")
    needed_bytes = -(-(vocab_size - 1).bit_length() // 8)
    return needed_bytes if needed_bytes in (1, 2) else 4


def token_bytes_for_id(max_token_id: int) -> int:
    """Return 1, 2 or 4: the narrowest width for ids up to `max_token_id`.

    Raises:
        ConfigError: the id is negative, or 2^32 or more.
    """
    for token_bytes in TOKEN_BYTES:
        if 0 <= max_token_id < 1 << 8 * token_bytes:
            return token_bytes
    raise ConfigError("no token width supports this id", found=max_token_id, expected=f"0 to {(1 << 32) - 1}")


def dtype_for(token_bytes: int, byte_order: ByteOrder = "=") -> np.dtype[Any]:
    """Return uint8, uint16 or uint32 in this byte order; raise `ConfigError` for another width."""
    if token_bytes not in _DTYPES:
        raise ConfigError("unsupported token width", found=token_bytes, expected="1, 2 or 4 bytes")
    return _DTYPES[token_bytes].newbyteorder(byte_order)


def as_tokens(values: Any) -> NDArray[Any]:
    """Return integers [n] of any integer dtype; raise `ConfigError` for anything else."""
    array = np.asarray(values)
    if array.ndim == 1 and (array.dtype.kind in "iu" or array.size == 0):
        return array if array.dtype.kind in "iu" else array.astype(np.uint8)
    raise ConfigError(
        "tokens must be a one-dimensional array of integers", found=f"{array.dtype} of shape {list(array.shape)}"
    )


def check_ids(
    tokens: NDArray[Any],
    doc_lengths: IntArray,
    vocab_size: int,
    *,
    first_doc: int = 0,
    path: str | os.PathLike[str] | None = None,
) -> int:
    """Return the largest id of a run of documents, -1 if it is empty.

    Args:
        tokens: integers [n_tokens].
        doc_lengths: int64[n_docs], in tokens.
        vocab_size: ids must be below it.
        first_doc: number of the run's first document, for the error.
        path: output file, for the error.

    Raises:
        TooLarge: an id is negative, or `vocab_size` or more; the message names the id and its document.
    """
    if not len(tokens):
        return -1
    highest = int(tokens.max())
    if highest < vocab_size and (tokens.dtype.kind == "u" or int(tokens.min()) >= 0):
        return highest
    place = int(np.argmax((tokens < 0) | (tokens >= vocab_size)))
    doc = first_doc + int(np.searchsorted(np.cumsum(doc_lengths), place, side="right"))
    raise TooLarge(
        f"a token id of document {doc} does not fit",
        path=path,
        found=int(tokens[place]),
        expected=f"0 to {vocab_size - 1}",
        hint=_hint_for(vocab_size),
    )


def _hint_for(vocab_size: int) -> str:
    """Return a hint for an id of `vocab_size` or more, which is the limit of a width or of a vocabulary."""
    tokenizer = "tokenize with the tokenizer of this vocabulary"
    if vocab_size in (1 << 8, 1 << 16):
        return f"Choose a wider token_bytes, or {tokenizer}"
    if vocab_size == 1 << 31:
        return f"Signed ids can't be larger: write pbin with token_bytes=4, or {tokenizer}"
    return tokenizer.capitalize()
