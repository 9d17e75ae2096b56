"""Types of media, detected from their first bytes, never from names; their headers; and small pictures."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from penstock._optional import require
from penstock.codec.av_header import read_av_header
from penstock.codec.image_header import read_image_header
from penstock.codec.media_bytes import MediaBytes, media_bytes
from penstock.errors import Corrupt, PenstockError, TooLarge
from penstock.types import MediaMetadata
from penstock.view.facts.bounds import MOST_PIXELS

HEAD_BYTES = 64
"""Number of bytes that `sniff_media` examines."""

_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (8, b"WAVE", "audio/wav"),
    (8, b"AVI ", "video/x-msvideo"),
    (0, b"fLaC", "audio/flac"),
    (0, b"OggS", "audio/ogg"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"\x1aE\xdf\xa3", "video/webm"),
    (0, b"FLV\x01", "video/x-flv"),
    (0, b"II*\0", "image/tiff"),
    (0, b"MM\0*", "image/tiff"),
)
_BRANDS = {b"avif": "image/avif", b"avis": "image/avif", b"M4A ": "audio/mp4", b"qt  ": "video/quicktime"}
_MPEG_AUDIO = (0xFB, 0xF3, 0xF2, 0xFA)

SHOWN_BY_BROWSERS = frozenset(
    (
        *("image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp"),
        *("audio/wav", "audio/flac", "audio/ogg", "audio/mpeg", "audio/mp4", "video/mp4", "video/webm"),
        "video/quicktime",
    )
)
"""Types that a page may serve unchanged, without any documents. All others are served as `OTHER`."""

OTHER = "application/octet-stream"


def sniff_media(head: bytes) -> str | None:
    """Return the media type of a picture, of sound or of a video, from its first 64 bytes; None for others.

    Text is never a media type: SVG and HTML are text.
    """
    for place, magic, name in _MAGIC:
        if head.startswith(magic, place):
            return name if place == 0 or head.startswith(b"RIFF") else None
    if head[4:8] == b"ftyp" and len(head) >= 12:
        return _BRANDS.get(head[8:12], "video/mp4")
    if head.startswith(b"BM") and len(head) >= 26 and head[6:10] == b"\0\0\0\0":
        return "image/bmp"
    if len(head) >= 4 and head[0] == 0xFF and head[1] in _MPEG_AUDIO:
        return "audio/mpeg"
    return None


def read_header(media_type: str, media: MediaBytes) -> MediaMetadata:
    """Return the metadata in the header of a picture, of sound or of a video.

    Raises:
        FormatError: the header is truncated or wrong.
        MissingExtra: PyAV or Pillow is required for this type, and not installed.
    """
    is_image = media_type.startswith("image/")
    found = read_image_header(media) if is_image else read_av_header(media, depth="headers")
    if found is None:
        raise Corrupt(f"the data begins like {media_type} but isn't valid", found=f"{media.size_bytes} bytes")
    return found


def thumbnail(data: bytes, most_side: int, most_bytes: int = 1 << 15) -> bytes | None:
    """Return a small JPEG of a picture, as `drawn`; None if it is too large, damaged, or Pillow is missing."""
    try:
        return drawn(data, most_side, most_bytes)
    except (PenstockError, ImportError):
        return None


def drawn(data: bytes, most_side: int, most_bytes: int = 1 << 15) -> bytes:
    """Return a small JPEG of a picture.

    Memory: the picture decoded, at most 4 times `MOST_PIXELS` bytes.

    Raises:
        TooLarge: the picture has too many pixels.
        Corrupt: the data is damaged, or isn't a picture.
        MissingExtra: Pillow is not installed.
    """
    found = read_image_header(media_bytes(data))
    if found is None:
        raise Corrupt("not an image", found=f"{len(data):,} bytes")
    if found.width * found.height > MOST_PIXELS:
        raise TooLarge("the image is too large to show", found=f"{found.width} x {found.height} pixels")
    return _scaled(data, most_side, most_bytes)


def _scaled(data: bytes, most_side: int, most_bytes: int) -> bytes:
    pillow: Any = require("PIL.Image", extra="media")
    try:
        with pillow.open(io.BytesIO(data)) as file:
            file.draft("RGB", (2 * most_side, 2 * most_side))
            image: Any = file.convert("RGBA")
    except (pillow.DecompressionBombError, MemoryError) as error:
        raise TooLarge("an image is larger than allowed", found=str(error)) from None
    except Exception as error:  # Pillow's readers raise any exception of their parsers
        raise Corrupt("an image is damaged", found=f"{type(error).__name__}: {error}") from None
    image.thumbnail((most_side, most_side))
    flat = pillow.new("RGB", image.size, (255, 255, 255))
    flat.paste(image, mask=image.getchannel("A"))
    for quality in (80, 60, 40, 20):
        out = io.BytesIO()
        flat.save(out, "JPEG", quality=quality)
        if out.tell() <= most_bytes:
            break
    return out.getvalue()


def small_picture(value: Any, most_side: int) -> bytes | None:
    """Return a small JPEG of a stored or decoded picture; None if it isn't one, or has too many pixels."""
    if isinstance(value, Mapping):
        value = value.get("bytes")
    if isinstance(value, bytes | bytearray | memoryview):
        return thumbnail(bytes(value), most_side)
    if not (hasattr(value, "mode") and hasattr(value, "thumbnail")) or value.width * value.height > MOST_PIXELS:
        return None
    image = value.copy()
    image.thumbnail((most_side, most_side))
    out = io.BytesIO()
    image.convert("RGB").save(out, "JPEG", quality=85)
    return out.getvalue()
