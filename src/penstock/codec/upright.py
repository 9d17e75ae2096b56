"""Upright pixels, as in a viewer: 16-bit images scaled to 8 bits, and EXIF orientation applied.

Pillow's own conversion to RGB clips 16-bit values at 255, and ignores EXIF.
"""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._optional import require
from penstock.codec.media_bytes import MediaBytes
from penstock.errors import Unsupported
from penstock.types import ImageMetadata

SIXTEEN_BITS, TURNED, ALPHA = "16 bits per channel", "an EXIF orientation", "an alpha channel"

PIXELS = {SIXTEEN_BITS: "scales them to 8 bits", TURNED: "applies it", ALPHA: "drops it"}
"""Trait of an image → how `decode="uint8"` handles it; Energon and Pillow don't."""

_ORIENTATION = 0x0112
_BITS_PER_SAMPLE, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0
_MOST_SEGMENTS = 64
_SHORT = 3
_LOWEST_SIDEWAYS = 5
_ALPHA_MODES = frozenset(("RGBA", "RGBa", "LA", "La", "PA"))


def upright_rgb(image: Any) -> NDArray[np.uint8]:
    """Return uint8[height, width, 3]: a loaded Pillow image as a viewer shows it, without alpha.

    Raises:
        Unsupported: pixels of 32 bits, whose range isn't known.
    """
    return turn(np.array(_eight_bits(image).convert("RGB")), orientation_of(image))


def turn(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Apply an EXIF orientation to uint8[height, width, channels]."""
    if orientation >= _LOWEST_SIDEWAYS:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def orientation_of(image: Any) -> int:
    """Return the EXIF orientation of a Pillow image, 1 to 8; 1 if it is missing or invalid."""
    try:
        found = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # EXIF may be malformed, and Pillow raises any exception of its parsers
        return 1
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


def file_orientation(data: bytes) -> int:
    """Return the EXIF orientation of an image file."""
    if data.startswith(b"\xff\xd8") and not _has_orientation(data):
        return 1
    pillow = require("PIL.Image", extra="media")
    try:
        with pillow.open(io.BytesIO(data)) as image:
            if image.format == "TIFF":
                return 1  # Pillow turns these itself
            return orientation_of(image)
    except Exception:  # errors are reported when the image is decoded
        return 1


def upright_metadata(metadata: ImageMetadata, data: bytes) -> ImageMetadata:
    """Return the metadata of an image file with the width and height of its upright pixels."""
    if file_orientation(data) < _LOWEST_SIDEWAYS:
        return metadata
    return ImageMetadata(metadata.height, metadata.width, metadata.format, metadata.mode)


def pixel_traits(media: MediaBytes, metadata: ImageMetadata) -> list[str]:
    """Return which of `SIXTEEN_BITS`, `TURNED` and `ALPHA` an image has, from its first bytes only."""
    head = media.head
    found: list[str] = []
    is_wide_png = head.startswith(b"\x89PNG") and head[24:25] == b"\x10"
    if metadata.mode.startswith("I;16") or is_wide_png:
        found.append(SIXTEEN_BITS)
    if _exif_orientation(head) > 1:
        found.append(TURNED)
    is_transparent = head.startswith(b"\x89PNG") and b"tRNS" in head.partition(b"IDAT")[0]
    if metadata.mode in _ALPHA_MODES or is_transparent:
        found.append(ALPHA)
    return found


def image_traits(image: Any) -> list[str]:
    """Return which of `SIXTEEN_BITS`, `TURNED` and `ALPHA` a loaded Pillow image has."""
    found = [SIXTEEN_BITS] if image.mode.startswith("I;16") else []
    if orientation_of(image) > 1:
        found.append(TURNED)
    if image.mode in _ALPHA_MODES or "transparency" in image.info:
        found.append(ALPHA)
    return found


def _eight_bits(image: Any) -> Any:
    """Return an image with at most 8 bits per channel."""
    # Pillow opens PPM files of more than 8 bits as 32-bit images, scaled to 16 bits.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        wide, most = np.asarray(image).astype(np.uint32), 65535
        if image.format == "TIFF":  # Pillow neither scales 12 bits to 16 nor inverts images whose zero is white
            most = (1 << min(16, image.tag_v2.get(_BITS_PER_SAMPLE, (16,))[0])) - 1
            wide = most - wide if image.tag_v2.get(_PHOTOMETRIC) == _WHITE_IS_ZERO else wide
        eight = (wide * 255 + most // 2) // most
        return require("PIL.Image", extra="media").fromarray(eight.astype(np.uint8))
    if image.mode in ("I", "F"):
        raise Unsupported(
            "the value range of an image with 32 bits per channel is unknown",
            found=f"mode {image.mode!r}",
            expected="8 or 16 bits per channel",
            hint="Store it with 8 or 16 bits, or open it without decode= and scale it yourself",
        )
    return image


def _has_orientation(data: bytes) -> bool:
    """Return whether a JPEG may have an EXIF orientation, as EXIF or XMP."""
    return any(body.startswith(b"Exif\0\0") or b"tiff:Orientation" in body for body in _jpeg_app1(data))


def _jpeg_app1(data: bytes) -> list[bytes]:
    """Return the APP1 segments of a JPEG, which contain EXIF and XMP."""
    place, found = 2, list[bytes]()
    for _ in range(_MOST_SEGMENTS):
        four = data[place : place + 4]
        if len(four) < 4 or four[0] != 0xFF or four[1] in (0xD9, 0xDA):
            break
        size_bytes = four[2] << 8 | four[3]
        if four[1] == 0xE1:
            found.append(data[place + 4 : place + 2 + size_bytes])
        place += 2 + size_bytes
    return found


def _exif_orientation(head: bytes) -> int:
    """Return the EXIF orientation of a JPEG or PNG from its first bytes; 1 if it has none."""
    if head.startswith(b"\xff\xd8"):
        blocks = [body[6:] for body in _jpeg_app1(head) if body.startswith(b"Exif\0\0")]
    elif head.startswith(b"\x89PNG"):
        at = head.find(b"eXIf")
        blocks = [head[at + 4 :]] if at > 0 else []
    else:
        blocks = []
    return next(map(_orientation_in, blocks), 1)


def _orientation_in(tiff: bytes) -> int:
    """Return the orientation in the first directory of EXIF data."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 10:
        return 1
    (at,) = struct.unpack_from(order + "I", tiff, 4)
    count = int.from_bytes(tiff[at : at + 2], "little" if order == "<" else "big")
    entries = tiff[at + 2 : at + 2 + 12 * count]
    for tag, kind, _, value in struct.iter_unpack(order + "HHIH2x", entries[: len(entries) // 12 * 12]):
        if tag == _ORIENTATION and kind == _SHORT and 1 <= value <= 8:
            return value
    return 1
