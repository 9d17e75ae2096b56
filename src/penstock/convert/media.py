"""Media files as parts: the extension of each is decided by its content, so that decoders read it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from penstock.codec.parts import IMAGE_SUFFIXES
from penstock.convert.forms import Convert
from penstock.errors import ConfigError, Corrupt, PenstockError

_BEGINNINGS: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"II*\0", "tif"),
    (b"MM\0*", "tif"),
    (b"\0\0\0\x0cjP  ", "jp2"),
    (b"\xff\x4f\xff\x51", "j2k"),
    (b"fLaC", "flac"),
    (b"ID3", "mp3"),
    (b"\xff\xfb", "mp3"),
    (b"\xff\xf3", "mp3"),
    (b"\xff\xf2", "mp3"),
    (b"FLV\x01", "flv"),
)
_RIFF = {b"WEBP": "webp", b"WAVE": "wav", b"AVI ": "avi"}
_BRANDS = {b"avif": "avif", b"avis": "avif", b"qt  ": "mov"}
_STILL_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
"""Brands of HEIF; a file of AVIF may begin with one too, and names its own brand among the compatible ones."""

_SVG = re.compile(
    rb"(\xef\xbb\xbf)?\s*(<\?xml[^>]*\?>\s*)?((<!--.*?-->|<!DOCTYPE\s+svg[^>]*>)\s*)*<svg[\s>]", re.DOTALL
)
_SVG_BYTES = 1 << 12
_UNDECODED = ("heic", "svg")
_BMP_HEADERS = (12, 40, 52, 56, 64, 108, 124)
_SAME = {"jpeg": "jpg", "jpe": "jpg", "jfif": "jpg", "tiff": "tif"}
_NUMBERED = re.compile(r"(?:(.+)\.)?(\d+)\.([^.]+)", re.DOTALL)
_HINT = "Specify its part with --columns NAME=PART (columns=), such as image=image.jpg"


def media_suffix(data: bytes) -> str | None:
    """Extension of a media file by its first bytes; None if they are of no known kind."""
    for beginning, suffix in _BEGINNINGS:
        if data.startswith(beginning):
            return suffix
    if data.startswith(b"RIFF"):
        return _RIFF.get(data[8:12])
    if data[4:8] == b"ftyp":
        return _still_suffix(data) if data[8:12] in _STILL_BRANDS else _BRANDS.get(data[8:12], "mp4")
    if data.startswith(b"\x1a\x45\xdf\xa3"):
        return "webm" if b"webm" in data[:64] else "mkv"
    if data.startswith(b"BM") and int.from_bytes(data[14:18], "little") in _BMP_HEADERS:
        return "bmp"
    return "svg" if _SVG.match(data[:_SVG_BYTES]) else None


def _still_suffix(data: bytes) -> str:
    brands = data[16 : min(int.from_bytes(data[:4], "big"), 1 << 8)]
    compatible = [brands[at : at + 4] for at in range(0, len(brands), 4)]
    return "avif" if data[8:12] not in (b"heic", b"heix") and b"avif" in compatible else "heic"


def is_media(value: Any) -> bool:
    """Whether a value is a media file, as bytes or as Hugging Face keeps it."""
    data, path = _content(value)
    return isinstance(data, bytes) and (media_suffix(data) is not None or _suffix_of(path) in IMAGE_SUFFIXES)


def is_media_list(value: Any) -> bool:
    """Whether a value is a list of media files that a decoder reads; an empty one may be."""
    return isinstance(value, list | tuple) and all(
        is_media(one) and media_suffix(_content(one)[0]) not in _UNDECODED
        for one in value  # pyright: ignore[reportUnknownVariableType]
    )


def media_part(name: str) -> Convert:
    """The way from a media file to its part: `{part: bytes}`."""
    return partial(_part, name)


def media_parts(name: str) -> Convert:
    """The way from a list of media files to numbered parts: `{"name.0.jpg": bytes, …}`."""
    return partial(_parts, name)


def media_list(value: Any) -> list[bytes]:
    """The bytes of media files in a list."""
    files: list[bytes] = []
    for number, one in enumerate(value):
        data, _ = _content(one)
        if not isinstance(data, bytes):
            raise ConfigError(f"item {number} is not a file in the dataset", found=repr(one)[:80])
        files.append(data)
    return files


def numbered_images(names: Sequence[str]) -> dict[str, list[str]]:
    """Groups of numbered parts that are images: `images.0.jpg`, `images.1.png` → `{"images": […]}`.

    Numbers begin at 0 or 1. Others are no positions but sizes or years, such as `256.jpg`, and make no list.
    """
    found: dict[str, list[str]] = {}
    for name in names:
        stem = stem_of_numbered(name)
        if stem is not None:
            found.setdefault(stem, []).append(name)
    return {stem: parts for stem, parts in found.items() if first_number(parts) <= 1}


def first_number(parts: Sequence[str]) -> int:
    """The lowest number of numbered parts."""
    return min(map(_number_of, parts))


def stem_of_numbered(name: str) -> str | None:
    """`"images.3.jpg"` → `"images"`; `"images"` too for a number alone; None for other names."""
    match = _NUMBERED.fullmatch(name)
    if match is None or match[3].lower() not in IMAGE_SUFFIXES:
        return None
    return match[1] or "images"


def numbered_values(stem: str, first: int, sample: Mapping[str, Any]) -> list[Any]:
    """The numbered parts of a sample with this stem, by their numbers from `first` on; none if it has none.

    Raises:
        Corrupt: a number is missing, or comes twice: the other items would get other positions.
    """
    found = sorted(
        (_number_of(name), name) for name in sample if stem_of_numbered(name) == stem and sample[name] is not None
    )
    numbers = [number for number, _ in found]
    if numbers != [*range(first, first + len(found))]:
        raise Corrupt(
            f"the numbered parts {stem!r} don't form a list",
            found=", ".join(name for _, name in found),
            expected=f"consecutive numbers starting at {first}",
            hint="Rename the parts of this sample, or choose other columns with --columns (columns=)",
        )
    return [sample[name] for _, name in found]


def _number_of(name: str) -> int:
    match = _NUMBERED.fullmatch(name)
    return 0 if match is None else int(match[2])


def field_map_of(columns: Sequence[str], parts: Sequence[str]) -> dict[str, str]:
    """Field → the parts that it comes from, for columns whose extension depends on the sample."""
    found: dict[str, str] = {}
    for column in columns:
        named = [part for part in parts if part == column or part.rpartition(".")[0] == column]
        if named:
            found[column.replace(".", "_")] = ",".join(sorted(named))
    return found


def _part(name: str, value: Any) -> dict[str, bytes]:
    data, path = _content(value)
    if not isinstance(data, bytes):
        raise ConfigError("a path to a file that isn't in the dataset", found=repr(value)[:80])
    suffix = media_suffix(data) or _suffix_of(path)
    if not suffix:
        raise ConfigError("content of an unknown kind", found=f"{len(data)} bytes, {data[:12]!r}…", hint=_HINT)
    own = _suffix_of(name) or name
    return {name if _same(own) == _same(suffix) else f"{name}.{suffix}": data}


def _parts(name: str, value: Any) -> dict[str, bytes]:
    parts: dict[str, bytes] = {}
    for number, one in enumerate(value):
        try:
            parts |= _part(f"{name}.{number}", one)
        except PenstockError as error:
            error.what = f"item {number}: {error.what}"
            raise
    return parts


def _content(value: Any) -> tuple[Any, str | None]:
    """Bytes and path of a media file."""
    if isinstance(value, dict):
        return value.get("bytes"), value.get("path")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return (bytes(value), None) if isinstance(value, bytearray | memoryview) else (value, None)


def _suffix_of(path: str | None) -> str:
    base = (path or "").rpartition("/")[2]
    return base.rpartition(".")[2].lower() if "." in base else ""


def _same(suffix: str) -> str:
    return _SAME.get(suffix.lower(), suffix.lower())
