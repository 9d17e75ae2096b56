"""Renders samples as text for a terminal: a table of parts, texts, and small pictures of images."""

from __future__ import annotations

import io
import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock._printable import printable
from penstock.codec.parts import IMAGE_SUFFIXES, DecodeOptions, decode_image, decode_part, suffix_of
from penstock.errors import PenstockError
from penstock.prepare.energon.guess import show_part

_TEXT_SUFFIXES = ("txt", "text", "transcript", "json", "jsn", "cls", "cls2", "id", "index", "inx")
_HALF = "\u2580"
_MOST_BYTES = 1 << 26
_NUMBERS = 12
_FIRST_BYTES = 128


@dataclass(frozen=True, slots=True)
class Display:
    """How samples are rendered.

    Attributes:
        width: columns of the terminal.
        picture_rows: most rows of a picture; 0 for none.
        text_rows: most rows of a text.
    """

    width: int = 80
    picture_rows: int = 12
    text_rows: int = 12


def show_sample(sample: Mapping[str, Any], display: Display) -> str:
    """The text of a sample: its key, the table of its parts, then their contents.

    Args:
        sample: as a source gives it, with `raw=True` where there is that.
        display: sizes of the output.
    """
    parts = {name: value for name, value in sample.items() if name != "__key__"}
    width = max(map(len, parts), default=0)
    lines = [f"key  {sample['__key__']}"] if "__key__" in sample else []
    lines += [f"  {name.ljust(width)}  {_in_short(name, value)}" for name, value in parts.items()]
    lines = [printable(line) for line in lines]
    for name, value in parts.items():
        shown = list(_in_full(name, value, display))
        if shown:
            lines += ["", printable(f"{name}:"), *(f"  {line}" for line in shown)]
    return "\n".join(lines)


def show_fields(sample: Mapping[str, Any]) -> str:
    """A line for each field, in Energon's words, which scripts look for: its name, its type, and what it is."""
    lines = (f" - {name} ({type(value)}): {_in_words(value)}" for name, value in sample.items())
    return "\n".join(map(printable, lines))


def picture(image: Any, columns: int, rows: int) -> list[str]:
    """Rows of coloured half blocks for a PIL image: two of its pixels in a cell, in 24-bit colour."""
    scale = min(columns / image.width, 2 * rows / image.height)
    size = (max(1, round(image.width * scale)), max(2, 2 * round(image.height * scale / 2)))
    pixels = image.convert("RGBA").resize(size).convert("RGB")
    data = pixels.tobytes()

    def colour(column: int, row: int) -> str:
        place = 3 * (row * size[0] + column)
        return ";".join(map(str, data[place : place + 3]))

    return [
        "".join(f"\x1b[38;2;{colour(x, y)}m\x1b[48;2;{colour(x, y + 1)}m{_HALF}" for x in range(size[0])) + "\x1b[0m"
        for y in range(0, size[1], 2)
    ]


def _in_short(name: str, value: Any) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return show_part(name, len(value), bytes(value))
    if hasattr(value, "mode") and hasattr(value, "width"):
        return f"{value.mode} image, {value.width} x {value.height}"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}{list(value.shape)}{_begin(value)}"
    text = value if isinstance(value, str) else repr(value)
    return textwrap.shorten(text, 60, placeholder="…") or repr(value)


def _in_words(value: Any) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"bytes(length={len(value)}, value={bytes(value[:_FIRST_BYTES])!r})"
    return repr(value)


def _begin(value: Any) -> str:
    """The first numbers of a row of them."""
    if value.ndim != 1 or value.dtype.kind not in "iuf":
        return ""
    return "  " + " ".join(map(str, value[:_NUMBERS].tolist())) + (" …" if len(value) > _NUMBERS else "")


def _in_full(name: str, value: Any, display: Display) -> Iterator[str]:
    if isinstance(value, (bytes, bytearray, memoryview)):
        suffix = suffix_of(name).lower()
        if len(value) > _MOST_BYTES or suffix not in (*IMAGE_SUFFIXES, *_TEXT_SUFFIXES):
            return
        try:
            is_image = suffix in IMAGE_SUFFIXES
            how = DecodeOptions()
            value = decode_image(bytes(value), how) if is_image else decode_part(name, bytes(value), how)
        except PenstockError as error:
            yield printable(str(error))
            return
    if hasattr(value, "mode") and hasattr(value, "width"):
        if display.picture_rows:
            yield from picture(value, display.width - 2, display.picture_rows)
    elif isinstance(value, (str, dict, list)) and value:
        text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False, default=str)
        lines = [part for line in io.StringIO(text) for part in textwrap.wrap(line, display.width - 2) or [""]]
        yield from map(printable, lines[: display.text_rows])
        if len(lines) > display.text_rows:
            yield f"… {len(lines) - display.text_rows:,} more lines"
