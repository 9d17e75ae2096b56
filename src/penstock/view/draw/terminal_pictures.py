"""Small pictures for a terminal: in its own graphics protocol if it has one, else in half blocks.

kitty's graphics protocol takes PNG in base64, 4,096 characters at a time; iTerm2's takes any file, in one piece; sixel
takes rows of six pixels, one colour of a palette at a time.
"""

from __future__ import annotations

import base64
import io
from itertools import groupby
from typing import Any, Literal

from penstock._optional import require

Way = Literal["kitty", "iterm", "sixel", "blocks"]

CELL_WIDTH, CELL_HEIGHT = 10, 20
"""Pixels of a cell, approximately right for most terminals: the first two protocols scale to cells, sixel doesn't."""

_HALF = "\u2580"
_KITTY_CHARACTERS = 4096
_SIXEL_COLOURS = 255


def picture(data: bytes, way: Way, columns: int, rows: int) -> list[str]:
    """Return a picture as lines of a terminal; with a protocol, as a single line with its escape sequence.

    At most `columns * rows` cells.
    """
    image: Any = require("PIL.Image", extra="media").open(io.BytesIO(data)).convert("RGB")
    if way == "blocks":
        return _blocks(image, columns, rows)
    scale = min(1.0, columns * CELL_WIDTH / image.width, rows * CELL_HEIGHT / image.height)
    if scale < 1:
        image = image.resize((max(1, int(image.width * scale)), max(1, int(image.height * scale))))
    cells = -(-image.width // CELL_WIDTH), -(-image.height // CELL_HEIGHT)
    return [_sixel(image) if way == "sixel" else _kitty(image, *cells) if way == "kitty" else _iterm(image, *cells)]


def _blocks(image: Any, columns: int, rows: int) -> list[str]:
    """Draw two pixels per cell, in 24-bit colour."""
    scale = min(columns / image.width, 2 * rows / image.height)
    width, height = max(1, round(image.width * scale)), max(2, 2 * round(image.height * scale / 2))
    pixels = image.resize((width, height)).tobytes()

    def colour(column: int, row: int) -> str:
        place = 3 * (row * width + column)
        return ";".join(map(str, pixels[place : place + 3]))

    return [
        "".join(f"\x1b[38;2;{colour(x, y)}m\x1b[48;2;{colour(x, y + 1)}m{_HALF}" for x in range(width)) + "\x1b[0m"
        for y in range(0, height, 2)
    ]


def _png(image: Any) -> str:
    out = io.BytesIO()
    image.save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


def _kitty(image: Any, columns: int, rows: int) -> str:
    text = _png(image)
    pieces = [text[place : place + _KITTY_CHARACTERS] for place in range(0, len(text), _KITTY_CHARACTERS)]
    head = f"a=T,f=100,q=2,c={columns},r={rows},"  # q=2: no response from the terminal
    return "".join(
        f"\x1b_G{head if not number else ''}m={int(number + 1 < len(pieces))};{piece}\x1b\\"
        for number, piece in enumerate(pieces)
    )


def _iterm(image: Any, columns: int, rows: int) -> str:
    text = _png(image)
    size = len(text) * 3 // 4 - text[-2:].count("=")
    return f"\x1b]1337;File=inline=1;size={size};width={columns};height={rows};preserveAspectRatio=1:{text}\x07"


def _sixel(image: Any) -> str:
    flat = image.quantize(_SIXEL_COLOURS, dither=0)
    palette, pixels, width = flat.getpalette(), flat.tobytes(), flat.width
    used = sorted(set(pixels))
    parts = [f'\x1bP0;1q"1;1;{flat.width};{flat.height}']
    for one in used:
        red, green, blue = (round(value * 100 / 255) for value in palette[3 * one : 3 * one + 3])
        parts.append(f"#{one};2;{red};{green};{blue}")
    for top in range(0, flat.height, 6):
        rows = [pixels[at * width : (at + 1) * width] for at in range(top, min(top + 6, flat.height))]
        parts.append("$".join(f"#{one}{_sixels(rows, one)}" for one in sorted(set(b"".join(rows)))) + "-")
    return "".join(parts) + "\x1b\\"


def _sixels(rows: list[bytes], colour: int) -> str:
    """Encode one colour of six rows, with run lengths."""
    masks = [sum(1 << bit for bit, one in enumerate(column) if one == colour) for column in zip(*rows, strict=True)]
    told: list[str] = []
    for mask, run in groupby(masks):
        number, char = len(list(run)), chr(63 + mask)
        told.append(f"!{number}{char}" if number > 3 else char * number)
    return "".join(told)
