"""Reader of size, format and mode of images from their headers, without decoding.

Results and names of formats and modes are the same as Pillow's. PNG, JPEG, GIF, WEBP, BMP and TIFF are read here, in
memory 6 to 24 times as fast as by Pillow. Their rare variants, and other formats, are opened by Pillow, lazily too.
Checked against Pillow 13.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable
from typing import Any

from penstock._optional import require
from penstock.codec.media_bytes import MediaBytes
from penstock.errors import Corrupt, FormatError, TooLarge
from penstock.types import ImageMetadata

_PNG_MODES = {
    **{(bits, 0): mode for bits, mode in ((1, "1"), (2, "L"), (4, "L"), (8, "L"), (16, "I;16"))},
    **{(bits, 3): "P" for bits in (1, 2, 4, 8)},
    **{(8, 2): "RGB", (16, 2): "RGB", (8, 4): "LA", (16, 4): "RGBA", (8, 6): "RGBA", (16, 6): "RGBA"},
}
_JPEG_MODES = {1: "L", 3: "RGB", 4: "CMYK"}
_JPEG_FRAMES = frozenset({*range(0xC0, 0xD0), 0xDE}) - {0xC4, 0xC8, 0xCC}
_JPEG_BARE = frozenset({0xC8, *range(0xD0, 0xDA), *range(0xF0, 0xFE)})
_MOST_SEGMENTS, _MOST_GIF_BLOCKS = 10_000, 20_000
_WINDOW_BYTES = 1 << 16
_GIF_PICTURE, _GIF_EXTENSION, _GIF_END = b",!;"
_MOST_SIDE = 1 << 31

_GREY_RAMP = bytes(grey for grey in range(256) for _ in range(3))

_PNG = b"\x89PNG\r\n\x1a\n"
_GIF = (b"GIF87a", b"GIF89a")
_FIRST_BYTES = 64

_le = struct.Struct("<HH").unpack_from
_ihdr = struct.Struct(">I4sIIBB").unpack_from
_frame = struct.Struct(">BHHB").unpack
_screen = struct.Struct("<HHB").unpack_from
_picture = struct.Struct("<HHHHB").unpack_from
_bitmap_info = struct.Struct("<III2xHI12xI").unpack_from


def read_image_header(media: MediaBytes) -> ImageMetadata | None:
    """Return size, format and mode of an image, from its header; None if it isn't an image.

    Raises:
        FormatError: the data starts like an image, but its header is truncated or wrong.
    """
    head = media.head
    if len(head) < _FIRST_BYTES:
        head = media.read(0, _FIRST_BYTES)
    reader = _READERS.get(head[:2])
    return open_by_pillow(media) if reader is None else reader(media, head)


def open_by_pillow(media: MediaBytes) -> ImageMetadata | None:
    """Return the metadata of an image by opening it lazily with Pillow; None for unknown formats.

    Raises:
        FormatError: the data starts like an image, but its header is truncated or wrong.
    """
    pillow = require("PIL.Image", extra="media")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pillow.open(media.file()) as image:
                return ImageMetadata(image.width, image.height, image.format, image.mode)
    except pillow.UnidentifiedImageError:
        return None
    except pillow.DecompressionBombError as error:
        raise TooLarge("the image is larger than Pillow can open", found=str(error)) from None
    except Exception as error:  # plug-ins raise any exception of their parsers
        raise Corrupt("the header of the image can't be read", found=f"{type(error).__name__}: {error}") from None


def _metadata(width: int, height: int, format_name: str, mode: str) -> ImageMetadata:
    if width < 1 or height < 1 or width >= _MOST_SIDE or height >= _MOST_SIDE:
        raise Corrupt("an image without pixels", found=f"{width} x {height}", expected="1 x 1 or more")
    return ImageMetadata(width, height, format_name, mode)


def _refused(media: MediaBytes, what: str) -> FormatError:
    return Corrupt(f"the header of a {what} is invalid", found=f"{media.size_bytes} bytes", hint="Recreate the file")


# --- PNG ---------------------------------------------------------------------------------------------------------


def _png(media: MediaBytes, head: bytes) -> ImageMetadata | None:
    if not head.startswith(_PNG):
        return open_by_pillow(media)
    length, name, width, height, bits, color = _ihdr(head, 8) if len(head) >= 26 else _ihdr(media.need(8, 18))
    mode = _PNG_MODES.get((bits, color))
    if length != 13 or name != b"IHDR" or mode is None:
        return open_by_pillow(media)
    return _metadata(width, height, "PNG", mode)


# --- JPEG --------------------------------------------------------------------------------------------------------


def _jpeg(media: MediaBytes, head: bytes) -> ImageMetadata | None:
    if head[2:3] != b"\xff":
        return open_by_pillow(media)
    place = 2
    for _ in range(_MOST_SEGMENTS):
        four = head[place : place + 4]
        if len(four) < 4:
            four = media.need(place, 4)
        if four[0] != 0xFF or four[1] == 0:
            place += 1 if four[0] != 0xFF else 2  # junk between segments
            continue
        marker = four[1]
        if marker == 0xFF:
            place += 1
        elif marker in _JPEG_BARE:
            place += 2
        elif marker in _JPEG_FRAMES:
            return _jpeg_frame(media, head, place)
        elif marker == 0xDA or marker < 0xC0:
            raise _refused(media, "JPEG")
        elif marker == 0xE2 and media.read(place + 4, 4) == b"MPF\0":
            return open_by_pillow(media)  # possibly several pictures: Pillow then calls it MPO
        else:
            place += 2 + (four[2] << 8 | four[3])
    raise _refused(media, "JPEG")


def _jpeg_frame(media: MediaBytes, head: bytes, place: int) -> ImageMetadata:
    frame = head[place + 4 : place + 10]
    if len(frame) < 6:
        frame = media.need(place + 4, 6)
    bits, height, width, channels = _frame(frame)
    mode = _JPEG_MODES.get(channels)
    if mode is None or bits != 8:
        raise _refused(media, "JPEG")
    return _metadata(width, height, "JPEG", mode)


# --- GIF ---------------------------------------------------------------------------------------------------------


def _gif(media: MediaBytes, head: bytes) -> ImageMetadata | None:
    if not head.startswith(_GIF):
        return open_by_pillow(media)
    width, height, flags = _screen(head, 6) if len(head) >= 13 else _screen(media.need(6, 7))
    place = 13
    colored = False
    if flags & 0x80:
        place += 6 << (flags & 7)
        colored = _is_colored(head[13:place] if place <= len(head) else media.need(13, place - 13))
    if head[place : place + 1] != b",":
        place = _gif_picture(_Window(media, head), place)
    stop = place + 10
    picture = _picture(head, place + 1) if stop <= len(head) else _picture(media.need(place + 1, 9))
    left, top, wide, high, flags = picture
    if flags & 0x80:
        colored = _is_colored(media.need(stop, 6 << (flags & 7)))
    if left + wide > width:
        width = left + wide
    if top + high > height:
        height = top + high
    return _metadata(width, height, "GIF", "P" if colored else "L")


class _Window:
    """Byte access to a file, read in blocks, with a limit on the pieces before a picture."""

    __slots__ = ("_data", "_media", "_start_bytes", "_step_bytes", "left")

    def __init__(self, media: MediaBytes, head: bytes) -> None:
        self._media = media
        self._data = head
        self._start_bytes = 0
        self._step_bytes = _FIRST_BYTES
        self.left = _MOST_GIF_BLOCKS

    def at(self, place: int) -> int:
        """Return the byte at an ascending position; raise `Truncated`, or `Corrupt` after too many requests."""
        self.left -= 1
        if self.left < 0:
            raise _refused(self._media, "GIF")
        if not 0 <= place - self._start_bytes < len(self._data):
            self._media.need(place, 1)
            self._step_bytes = min(2 * self._step_bytes, _WINDOW_BYTES)
            self._start_bytes, self._data = place, self._media.read(place, self._step_bytes)
        return self._data[place - self._start_bytes]


def _gif_picture(window: _Window, place: int) -> int:
    """Return the start of the first picture, after comments and other extensions."""
    while (kind := window.at(place)) != _GIF_PICTURE:
        if kind == _GIF_EXTENSION:
            place = _behind_blocks(window, place + 2)
        elif kind == _GIF_END:
            window.left = 0
        else:
            place += 1
    return place


def _is_colored(palette: bytes) -> bool:
    """Return whether a palette is more than a ramp of greys."""
    return not _GREY_RAMP.startswith(palette)


def _behind_blocks(window: _Window, place: int) -> int:
    while length := window.at(place):
        place += 1 + length
    return place + 1


# --- WEBP --------------------------------------------------------------------------------------------------------


def _webp(media: MediaBytes, head: bytes) -> ImageMetadata | None:
    if not head.startswith(b"RIFF") or head[8:12] != b"WEBP":
        return open_by_pillow(media)
    head = media.need(12, 18)
    name = head[:4]
    if name == b"VP8 ":
        return _webp_lossy(media, 20, alpha=False)
    if name == b"VP8L":
        return _webp_lossless(media, 20)
    if name != b"VP8X":
        raise _refused(media, "WEBP")
    flags = head[8]
    width, height = (1 + int.from_bytes(head[start : start + 3], "little") for start in (12, 15))
    alpha = bool(flags & 0x10)
    if not flags & 0x02:
        alpha = _webp_alpha(media, alpha)
    return _metadata(width, height, "WEBP", "RGBA" if alpha else "RGB")


def _webp_alpha(media: MediaBytes, alpha: bool) -> bool:
    """Return whether a still picture with an extended header is transparent: its own chunks decide."""
    place = 30
    for _ in range(_MOST_SEGMENTS):
        name, length = struct.unpack("<4sI", media.need(place, 8))
        if name == b"VP8 ":
            return alpha
        if name == b"VP8L":
            return _webp_lossless(media, place + 8).mode == "RGBA"
        alpha |= name == b"ALPH"
        place += 8 + length + (length & 1)
    raise _refused(media, "WEBP")


def _webp_lossy(media: MediaBytes, place: int, *, alpha: bool) -> ImageMetadata:
    frame = media.need(place, 10)
    if frame[3:6] != b"\x9d\x01\x2a":
        raise _refused(media, "WEBP")
    width, height = _le(frame, 6)
    return _metadata(width & 0x3FFF, height & 0x3FFF, "WEBP", "RGBA" if alpha else "RGB")


def _webp_lossless(media: MediaBytes, place: int) -> ImageMetadata:
    frame = media.need(place, 5)
    if frame[0] != 0x2F:
        raise _refused(media, "WEBP")
    bits = int.from_bytes(frame[1:], "little")
    mode = "RGBA" if bits >> 28 & 1 else "RGB"
    return _metadata((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, "WEBP", mode)


# --- BMP ---------------------------------------------------------------------------------------------------------


def _bmp(media: MediaBytes, head: bytes) -> ImageMetadata | None:
    info = head if len(head) >= 50 else media.need(0, 50)
    size, width, height, bits, packing, colors = _bitmap_info(info, 14)
    if size not in (40, 108, 124):
        return open_by_pillow(media)
    if height > _MOST_SIDE:
        height = (1 << 32) - height  # stored from the top down
    if bits in (16, 24, 32) and packing == 0:
        return _metadata(width, height, "BMP", "RGB")
    if bits in (1, 4, 8) and packing <= 2:
        return _metadata(width, height, "BMP", _bmp_palette_mode(media, size, colors or 1 << bits))
    return open_by_pillow(media)


def _bmp_palette_mode(media: MediaBytes, header_bytes: int, colors: int) -> str:
    if colors > 65_536:
        raise _refused(media, "BMP")
    palette = media.need(14 + header_bytes, 4 * colors)
    greys = (0, 255) if colors == 2 else range(colors)
    for place, grey in enumerate(greys):
        if palette[4 * place : 4 * place + 3] != bytes([grey & 0xFF] * 3):
            return "P"
    return "1" if colors <= 2 else "L"


# --- TIFF --------------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _BITS, _PACKING, _PHOTO, _FILL, _ORIENTATION = 256, 257, 258, 259, 262, 266, 274
_SAMPLES, _PLANES, _EXTRA, _SAMPLE_FORMAT = 277, 284, 338, 339
_TIFF_TAGS = {_WIDTH, _HEIGHT, _BITS, _PACKING, _PHOTO, _FILL, _ORIENTATION, _SAMPLES, _PLANES, _EXTRA, _SAMPLE_FORMAT}
_TIFF_PACKINGS = {1, 5, 8, 32_773, 32_946}
_TIFF_MODES: dict[tuple[int, tuple[int, ...], tuple[int, ...]], str] = {
    **{(photo, (1,), ()): "1" for photo in (0, 1)},
    **{(photo, (bits,), ()): "L" for photo in (0, 1) for bits in (2, 4, 8)},
    **{(3, (bits,), ()): "P" for bits in (1, 2, 4, 8)},
    **{(2, (bits,) * 3, ()): "RGB" for bits in (8, 16)},
    **{(2, (bits,) * 4, extra): "RGBA" for bits in (8, 16) for extra in ((), (1,), (2,))},
    **{(2, (bits,) * 4, (0,)): "RGB" for bits in (8, 16)},
    (1, (8, 8), (2,)): "LA",
    (1, (8, 8), (1,)): "La",
    (3, (8, 8), (2,)): "PA",
    (5, (8, 8, 8, 8), ()): "CMYK",
}


def _tiff(media: MediaBytes, head: bytes) -> ImageMetadata | None:
    tags = _tiff_tags(media) if head.startswith((b"II*\0", b"MM\0*")) else None
    if tags is None or not {_WIDTH, _HEIGHT, _PHOTO} <= tags.keys():
        return open_by_pillow(media)
    plain = (
        tags.get(_PACKING, (1,))[0] in _TIFF_PACKINGS
        and tags.get(_FILL, (1,)) == (1,)
        and tags.get(_PLANES, (1,)) == (1,)
        and set(tags.get(_SAMPLE_FORMAT, (1,))) == {1}
    )
    bits = tags.get(_BITS, (1,))
    mode = _TIFF_MODES.get((tags[_PHOTO][0], bits, tags.get(_EXTRA, ())))
    if not plain or mode is None or tags.get(_SAMPLES, (1,)) != (len(bits),):
        return open_by_pillow(media)
    width, height = tags[_WIDTH][0], tags[_HEIGHT][0]
    if tags.get(_ORIENTATION, (1,))[0] in (5, 6, 7, 8):
        width, height = height, width
    return _metadata(width, height, "TIFF", mode)


def _tiff_tags(media: MediaBytes) -> dict[int, tuple[int, ...]] | None:
    """Return the relevant tags of the first picture; None if one has an unsupported type."""
    order = "<" if media.need(0, 2) == b"II" else ">"
    (place,) = struct.unpack(order + "I", media.need(4, 4))
    (count,) = struct.unpack(order + "H", media.need(place, 2))
    entries = media.need(place + 2, 12 * count)
    tags: dict[int, tuple[int, ...]] = {}
    for tag, kind, length, value in struct.iter_unpack(order + "HHI4s", entries):
        if tag not in _TIFF_TAGS:
            continue
        letter: Any = {3: "H", 4: "I"}.get(kind)
        if letter is None or not 1 <= length <= 8:
            return None
        layout = struct.Struct(f"{order}{length}{letter}")
        if layout.size > 4:
            value = media.need(struct.unpack(order + "I", value)[0], layout.size)
        tags[tag] = layout.unpack_from(value)
    return tags


_READERS: dict[bytes, Callable[[MediaBytes, bytes], ImageMetadata | None]] = {
    b"\x89P": _png,
    b"\xff\xd8": _jpeg,
    b"GI": _gif,
    b"RI": _webp,
    b"BM": _bmp,
    b"II": _tiff,
    b"MM": _tiff,
}
"""First two bytes → reader, which checks the rest of the magic number itself."""
