"""Encodings of images: raw pixels (`pil`), JPEG and PNG files, and lists of them.

    pil         u32 width, u32 height, u32 len(mode), mode, pixels
    jpeg png    one file
    jpeg_array  u32 n, u32 size[n], n JPEG files
    list[…]     u32 0, u32 n, u32 size[n], n values of the encoding in brackets

Images are decoded to loaded Pillow images. File types whose readers start other programs are never opened.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from penstock._arrays import byte_view, no_room
from penstock._optional import require
from penstock._regular import read_regular
from penstock.codec.fields._codec import bad_value, cut_off, damaged
from penstock.errors import ConfigError, PenstockError, TooLarge
from penstock.types import Buffer

_FILE_TYPES = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
_PIXEL_BYTES = {
    **dict.fromkeys(("L", "P"), 1),
    **dict.fromkeys(("LA", "La", "PA", "I;16", "I;16L", "I;16B", "I;16N"), 2),
    **dict.fromkeys(("RGB", "YCbCr", "LAB", "HSV"), 3),
    **dict.fromkeys(("RGBA", "RGBX", "RGBa", "CMYK", "I", "F"), 4),
}
"""Mode → bytes per raw pixel; mode `1` has 8 pixels per byte, with rows starting at byte boundaries."""

_MAX_EMPTY_SIDE = 1 << 16  # an image without pixels still takes 8 bytes per row


def encode_pil(value: Any) -> bytes:
    image = _image("pil", value)
    if image.mode in ("P", "PA"):
        hint = "The palette would be lost: convert it to RGB or RGBA, or store it as png"
        raise ConfigError("an image doesn't fit the encoding 'pil'", found=f"mode {image.mode}", hint=hint)
    mode = image.mode.encode()
    return struct.pack("<3I", *image.size, len(mode)) + mode + image.tobytes()


def check_pil(data: Buffer) -> tuple[str, int, int, int]:
    """Return mode, width, height and offset of the pixels of an image that fills its bytes."""
    view = byte_view(data)
    if len(view) < 12:
        raise cut_off("pil", view, 12)
    width, height, mode_bytes = struct.unpack_from("<3I", view)
    if len(view) < 12 + mode_bytes:
        raise cut_off("pil", view, 12 + mode_bytes)
    mode = bytes(view[12 : 12 + mode_bytes]).decode("ascii", "replace")
    if mode != "1" and mode not in _PIXEL_BYTES:
        raise damaged("pil", f"mode {mode[:20]!r}", ", ".join(("1", *_PIXEL_BYTES)), 12)
    row_bytes = -(-width // 8) if mode == "1" else width * _PIXEL_BYTES[mode]
    size_bytes = 12 + mode_bytes + height * row_bytes
    if size_bytes > len(view):
        raise cut_off("pil", view, size_bytes)
    if size_bytes < len(view):
        raise damaged("pil", f"{len(view)} bytes", f"{size_bytes} bytes for {width} x {height} {mode}", size_bytes)
    if not width * height and max(width, height) > _MAX_EMPTY_SIDE:
        raise TooLarge("an image without pixels is too large", found=f"{width} x {height}", offset_bytes=0)
    return mode, width, height, 12 + mode_bytes


def decode_pil(data: Buffer) -> Any:
    mode, width, height, start = check_pil(data)
    image = require("PIL.Image", extra="media")
    return _guarded("pil", lambda: image.frombytes(mode, (width, height), bytes(byte_view(data)[start:])))


def encode_jpeg(value: Any) -> bytes:
    """Return a JPEG file; for an image opened from an existing JPEG file, the bytes of that file."""
    image = _image("jpeg", value)
    opened = require("PIL.JpegImagePlugin", extra="media").JpegImageFile
    filename = getattr(image, "filename", None) if isinstance(image, opened) else None
    if filename:
        try:
            return read_regular(filename)
        except FileNotFoundError:
            pass
    return _saved("jpeg", image)


def encode_png(value: Any) -> bytes:
    return _saved("png", _image("png", value))


def decode_file(encoding: str, data: Buffer) -> Any:
    image = require("PIL.Image", extra="media")

    def load() -> Any:
        opened = image.open(io.BytesIO(byte_view(data)), formats=_FILE_TYPES)
        opened.load()
        return opened

    return _guarded(encoding, load)


def encode_jpeg_array(value: Any) -> bytes:
    """Encode JPEG files given as bytes; an empty sequence is an error, because the original can't read it."""
    if not isinstance(value, Sequence) or not value:
        raise bad_value("jpeg_array", value, "a sequence of one or more JPEG files as bytes")
    files: list[bytes] = []
    for file in value:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(file, bytes | bytearray | memoryview):
            raise bad_value("jpeg_array", file, "the bytes of a JPEG file")
        files.append(bytes(file))
    return _joined("jpeg_array", b"", files)


def decode_jpeg_array(data: Buffer) -> list[Any]:
    view = byte_view(data)
    images = [_placed(view, cut, decode_file, "jpeg_array") for cut in _cut("jpeg_array", view, 0)]
    if not images:
        raise damaged("jpeg_array", "no images", "one or more")
    return images


def encode_list(element: str, encode: Callable[[Any], bytes], value: Any) -> bytes:
    """Encode a list of images; elements given as bytes are stored as they are."""
    name = f"list[{element}]"
    if not isinstance(value, list):
        raise bad_value(name, value, "a list of images")
    parts = [one if isinstance(one, bytes) else encode(one) for one in value]  # pyright: ignore
    return _joined(name, bytes(4), parts)


def decode_list(element: str, data: Buffer) -> list[Any]:
    view = byte_view(data)
    decode, names = (decode_pil, ()) if element == "pil" else (decode_file, (element,))
    return [_placed(view, cut, decode, *names) for cut in _cut(f"list[{element}]", view, 4)]


def split_list(encoding: str, data: Buffer) -> list[bytes]:
    """Return the stored elements of a list."""
    view = byte_view(data)
    return [bytes(view[start:stop]) for start, stop in _cut(encoding, view, 0 if encoding.startswith("jpeg") else 4)]


def check_parts(encoding: str, start: int, data: Buffer) -> None:
    """Raise an error unless the value consists of exactly its stated number of parts."""
    if not list(_cut(encoding, byte_view(data), start)) and not start:
        raise damaged(encoding, "no images", "one or more")


def _joined(encoding: str, head: bytes, parts: list[bytes]) -> bytes:
    if any(len(part) >> 32 for part in parts):
        raise TooLarge(f"an element doesn't fit the encoding {encoding!r}", expected="less than 4 GiB")
    return b"".join((head, struct.pack(f"<{len(parts) + 1}I", len(parts), *map(len, parts)), *parts))


def _cut(encoding: str, view: memoryview, at: int) -> Iterator[tuple[int, int]]:
    """Yield start and stop of each element; they fill the value."""
    if len(view) < at + 4:
        raise cut_off(encoding, view, at + 4)
    (count,) = struct.unpack_from("<I", view, at)
    start = at + 4 + 4 * count
    if len(view) < start:
        raise cut_off(encoding, view, start)
    sizes = np.frombuffer(view, "<u4", count, at + 4)
    stop = start + int(sizes.sum(dtype=np.int64))
    if stop > len(view):
        raise cut_off(encoding, view, stop)
    if stop < len(view):
        raise damaged(encoding, f"{len(view)} bytes", f"{stop} bytes", stop)
    for size_bytes in sizes:
        yield start, start + int(size_bytes)
        start += int(size_bytes)


def _placed(view: memoryview, cut: tuple[int, int], decode: Callable[..., Any], *names: str) -> Any:
    """Return one decoded element; offsets in errors count from the start of the whole value."""
    try:
        return decode(*names, view[cut[0] : cut[1]])
    except PenstockError as error:
        error.offset_bytes = cut[0] + (error.offset_bytes or 0)
        raise


def _image(encoding: str, value: Any) -> Any:
    if not isinstance(value, require("PIL.Image", extra="media").Image):
        raise bad_value(encoding, value, "a Pillow image")
    return value


def _saved(encoding: str, image: Any) -> bytes:
    file = io.BytesIO()
    try:
        image.save(file, format=encoding.upper())
    except (OSError, ValueError, KeyError) as error:
        found = f"mode {image.mode}, {image.width} x {image.height}"
        raise ConfigError(f"an image doesn't fit the encoding {encoding!r}", found=found, hint=str(error)) from error
    return file.getvalue()


def _guarded(encoding: str, load: Callable[[], Any]) -> Any:
    image = require("PIL.Image", extra="media")
    try:
        return load()
    except (image.DecompressionBombError, image.DecompressionBombWarning) as error:
        raise TooLarge("an image is too large", offset_bytes=0, found=str(error)) from error
    except MemoryError:
        raise no_room("an image", f"encoding {encoding!r}") from None
    except Exception as error:  # on damaged data Pillow's readers raise nearly any exception
        raise damaged(encoding, f"{type(error).__name__}: {error}") from error
