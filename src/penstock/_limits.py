"""What data of strangers may expand to, in one place. `docs/guide/limits.md` says it to users.

A limit is far above what real data need, or a multiple of what they hold, and is counted before memory is taken.
"""

from __future__ import annotations

from penstock.errors import ConfigError

MOST_NAMES, MOST_NAMES_BYTES = 1 << 21, 1 << 27
"""Names that the braces of one list stand for, and their characters together."""

MOST_BRACES_DEEP = 10
"""Braces inside of braces."""

MOST_NODES, MOST_NODES_DEEP, MOST_FILES_DEEP = 1 << 14, 64, 32
"""Datasets, joins and mixes of a recipe or metadataset with all that it names, inside of one another; and files so."""

MOST_NESTING = 100
"""Lists and maps inside of one another in YAML or JSON."""

MOST_DOCUMENT_BYTES = 1 << 26
"""A recipe, a metadataset or a `dataset.yaml`."""

MOST_TOKEN_ID, MOST_TOKENIZER_BYTES = (1 << 22) - 1, 1 << 29
"""The largest id of a vocabulary (gigatoken takes 57 bytes for each below it, used or not), and a tokenizer's file."""

SQLITE_STEPS, SQLITE_STEPS_PER_BYTE, MOST_SQLITE_VALUE_BYTES = 1_000_000, 8, 1 << 26
"""Steps of sqlite's machine that a statement may take, for each byte of its file too; and one value."""

UNPACKED_RATIO, LEAST_UNPACKED_BYTES, MOST_UNPACKED_BYTES = 64, 1 << 24, 1 << 31
"""A compressed part of a sample may hold so many times its own bytes, so much in any case, and never more than that."""

LEAST_GROUP_BYTES, GROUP_BATCH_BYTES = 1 << 28, 1 << 27
"""Bytes that any Parquet row group may expand to (more: `UNPACKED_RATIO` times its stored bytes); one batch of it."""

LEAST_LINE_BYTES = 1 << 26
"""Bytes that any line of a compressed file may have (more: `UNPACKED_RATIO` times the stored bytes read for it)."""

MOST_WINDOW_TOKENS = 1 << 28
"""Tokens of one window."""

FRAMES, BYTES_PER_FRAME = 1024, 64
"""Frames or members of one compressed file, and one more for so many bytes that they hold: empty ones take time."""

EXPRESSION_SECONDS = 10.0
"""What an expression with a regex may take for one sample."""

MOST_NAME_BYTES = 255
"""One name of a path, as file systems have it."""

_LONG_BYTES = 1 << 24
_LONG_TEXT_BYTES = 1 << 20


def require_memory_for(text: bytes | memoryview) -> None:
    """That the strings of a long JSON text fit the memory: msgspec ends the process where they don't.

    Raises:
        MemoryError: they don't.
    """
    if len(text) > _LONG_BYTES:
        is_plain = isinstance(text, bytes) and text.isascii() and b"\\u" not in text
        bytearray(len(text) * (1 if is_plain else 4) + _LONG_BYTES)  # one character may make all of them four bytes


def require_memory_to_encode(text_bytes: int, bytes_per_byte: int) -> None:
    """Raise `MemoryError` if memory for the tokens of a long text is missing: tokenizers end the process then.

    Args:
        text_bytes: size of the texts.
        bytes_per_byte: what the library takes for each byte of text.
    """
    if text_bytes > _LONG_TEXT_BYTES:
        bytearray(text_bytes * bytes_per_byte + _LONG_BYTES)


def require_window_length(length: int) -> None:
    """Raise `ConfigError` if a window has no token, or more than any array of windows holds."""
    if length < 1:
        raise ConfigError("a window needs at least one token", found=f"length {length}", expected="1 or more")
    if length > MOST_WINDOW_TOKENS:
        raise ConfigError("the window is too long", found=f"length {length}", expected=f"1 to {MOST_WINDOW_TOKENS:,}")
