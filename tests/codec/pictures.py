"""Images of every kind that Pillow writes, for tests of what reads them."""

from __future__ import annotations

import functools
import io
import itertools
from typing import Any

import numpy as np
from PIL import Image

MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I", "I;16", "F")
SAVED: dict[str, list[dict[str, Any]]] = {
    "PNG": [{}, {"optimize": True}, {"bits": 2}, {"dpi": (72, 72)}],
    "JPEG": [{}, {"progressive": True}, {"exif": b"Exif\0\0" + bytes(9000)}, {"comment": b"\xff\xd8" * 3000}],
    "GIF": [{}, {"interlace": 1}, {"comment": b"a, b; c! " * 100}],
    "WEBP": [{}, {"lossless": True}, {"exif": b"Exif\0\0II*\0" + bytes(30)}, {"lossless": True, "xmp": b"<x/>" * 9}],
    "BMP": [{}],
    "TIFF": [{}, {"compression": "tiff_lzw"}, {"compression": "tiff_adobe_deflate"}, {"tiffinfo": {270: "x" * 5000}}],
    "PPM": [{}],
    "TGA": [{}],
    "ICO": [{}],
    "JPEG2000": [{}],
    "PCX": [{}],
}


def picture(mode: str, width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 4)).astype(np.uint8)
    image = Image.frombytes("RGBA", (width, height), pixels.tobytes())
    if mode == "P":
        return image.convert("RGB").convert("P", palette=Image.Palette.ADAPTIVE, colors=1 << (1 + seed % 8))
    if mode == "I;16":
        return image.convert("L").convert("I").convert("I;16")
    return image.convert("RGB").convert(mode) if mode in ("CMYK", "I", "F", "1", "L") else image.convert(mode)


def encoded(image: Image.Image, format_name: str, **options: Any) -> bytes | None:
    """The file; None where the format can't hold the image."""
    file = io.BytesIO()
    try:
        image.save(file, format_name, **options)
    except (OSError, ValueError, KeyError):
        return None
    return file.getvalue()


@functools.cache
def files() -> list[tuple[str, bytes]]:
    """Name and bytes of a few hundred image files."""
    found: list[tuple[str, bytes]] = []
    sizes = ((1, 1), (7, 3), (16, 300))
    for (name, choices), mode, (width, height) in itertools.product(SAVED.items(), MODES, sizes):
        for number, options in enumerate(choices):
            data = encoded(picture(mode, width, height, number), name, **options)
            if data is not None:
                found.append((f"{name}-{mode}-{width}x{height}-{number}", data))
    return found + list(rare())


def rare() -> list[tuple[str, bytes]]:
    """Several frames, grey palettes, frames larger than their screen, turned pictures, several pictures in one."""
    frames = [picture("P", 5, 4, seed) for seed in range(3)]
    found = [("several-GIF", encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]))]
    for mode in ("RGB", "RGBA"):
        frames = [picture(mode, 5, 4, seed) for seed in range(3)]
        for name in ("PNG", "WEBP", "TIFF"):
            options: dict[str, Any] = {"save_all": True, "append_images": frames[1:]}
            found.append((f"several-{mode}-{name}", encoded(frames[0], name, **options)))
    found.append(("several-MPO", encoded(picture("RGB", 5, 4), "MPO", save_all=True, append_images=[frames[1]])))
    grey = picture("L", 5, 4)
    for name in ("GIF", "BMP"):
        found.append((f"grey-{name}", encoded(grey, name)))
        palette = picture("P", 9, 9, 7)
        palette.putpalette([level for level in range(256) for _ in range(3)])
        found.append((f"grey-palette-{name}", encoded(palette, name)))
    gif = bytearray(encoded(picture("P", 5, 4, 7), "GIF") or b"")
    gif[6:10] = bytes([2, 0, 1, 0])
    found.append(("larger-than-screen-GIF", bytes(gif)))
    for orientation in range(1, 9):
        found.append((f"turned-{orientation}-TIFF", encoded(picture("RGB", 5, 4), "TIFF", tiffinfo={274: orientation})))
    bmp = bytearray(encoded(picture("RGB", 5, 4), "BMP") or b"")
    bmp[22:26] = (-4).to_bytes(4, "little", signed=True)
    found.append(("top-down-BMP", bytes(bmp)))
    return [(name, data) for name, data in found if data is not None]
