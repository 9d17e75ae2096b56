"""Limits on the expansion of untrusted data, documented in `docs/guide/limits.md`, and whole numbers in such text.

A limit is far above the needs of real data, or a multiple of their size, and is checked before memory is allocated.
"""

from __future__ import annotations

from penstock.errors import ConfigError

MOST_NAMES, MOST_NAMES_BYTES = 1 << 21, 1 << 27
"""Names that the braces of one list expand to, and their total characters."""

MOST_BRACES_DEEP = 10
"""Nested braces."""

MOST_NODES, MOST_NODES_DEEP, MOST_FILES_DEEP = 1 << 14, 64, 32
"""Datasets, joins and mixes of a recipe or metadataset, including all that it names; their nesting; and nested files.
"""

MOST_NESTING = 100
"""Nested lists and maps in YAML or JSON."""

MOST_DOCUMENT_BYTES = 1 << 26
"""Size of a recipe, a metadataset or a `dataset.yaml`."""

MOST_TOKEN_ID, MOST_TOKENIZER_BYTES = (1 << 22) - 1, 1 << 29
"""The largest id of a vocabulary (gigatoken takes 57 bytes for each smaller id, used or not), and a tokenizer's file.
"""

SQLITE_STEPS, SQLITE_STEPS_PER_BYTE, MOST_SQLITE_VALUE_BYTES = 1_000_000, 8, 1 << 26
"""Steps of sqlite's machine per statement, additional steps per byte of its file, and the size of one value."""

UNPACKED_RATIO, LEAST_UNPACKED_BYTES, MOST_UNPACKED_BYTES = 64, 1 << 24, 1 << 31
"""Limits of a compressed part of a sample: a multiple of its own bytes, a minimum limit, and a maximum limit."""

LEAST_GROUP_BYTES, GROUP_BATCH_BYTES = 1 << 28, 1 << 27
"""Bytes that any Parquet row group may expand to (more: `UNPACKED_RATIO` times its stored bytes); one batch of it."""

LEAST_LINE_BYTES = 1 << 26
"""Bytes that any line of a compressed file may have (more: `UNPACKED_RATIO` times the stored bytes read for it)."""

MOST_WINDOW_TOKENS = 1 << 28
"""Tokens of one window."""

FRAMES, BYTES_PER_FRAME = 1024, 64
"""Frames or members of one compressed file, and one more per this many bytes of content: empty ones take time."""

EXPRESSION_SECONDS = 10.0
"""Time limit of an expression with a regex for one sample."""

MOST_NAME_BYTES = 255
"""One name of a path, as in file systems."""

_LONG_BYTES = 1 << 24
_LONG_TEXT_BYTES = 1 << 20


def require_memory_for(text: bytes | memoryview) -> None:
    """Check that the strings of a long JSON text fit into memory: msgspec kills the process otherwise.

    Raises:
        MemoryError: they don't fit.
    """
    if len(text) > _LONG_BYTES:
        is_plain = isinstance(text, bytes) and text.isascii() and b"\\u" not in text
        bytearray(len(text) * (1 if is_plain else 4) + _LONG_BYTES)  # one character may make all of them four bytes


def require_memory_to_encode(text_bytes: int, bytes_per_byte: int) -> None:
    """Raise `MemoryError` if memory for the tokens of a long text is missing: tokenizers kill the process then.

    Args:
        text_bytes: size of the texts.
        bytes_per_byte: memory that the library takes per byte of text.
    """
    if text_bytes > _LONG_TEXT_BYTES:
        bytearray(text_bytes * bytes_per_byte + _LONG_BYTES)


def require_window_length(length: int) -> None:
    """Raise `ConfigError` if a window has no tokens, or more than any array of windows can hold."""
    if length < 1:
        raise ConfigError("a window needs at least one token", found=f"length {length}", expected="1 or more")
    if length > MOST_WINDOW_TOKENS:
        raise ConfigError("the window is too long", found=f"length {length}", expected=f"1 to {MOST_WINDOW_TOKENS:,}")


_MOST_DIGITS = 19


def count_in(text: str, below: int = 1 << 63) -> int | None:
    """Return the number of ASCII digits; None for other text, and for numbers of `below` or more.

    `int` takes digits of every script, signs, blanks and `_`, and raises for 4,301 digits.
    """
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0")
    number = int(digits or "0") if len(digits) <= _MOST_DIGITS else below
    return number if number < below else None
