"""Convert values from one form to another, without decoding if the bytes are the same; recognize media files.

| form | a value is |
|---|---|
| `value` | a Python value: lines of JSON, cells of text, rows of Arrow |
| `file` | `{"bytes": …, "path": …}`, as Hugging Face keeps images and audio |
| `mds:<encoding>` | the stored bytes of an MDS column |
| `part:<name>` | the bytes of a file of that name: a part of a tar sample, a file in a folder |
| `text:str`, `text:int`, `text:float` | a Python value for a column of csv, tsv, xsv and json-shards |
| `json` | a Python value for JSON |
"""

from __future__ import annotations

import datetime
import decimal
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from penstock.codec.fields import mds_field
from penstock.codec.parts import IMAGE_SUFFIXES, encode_part
from penstock.errors import ConfigError, Corrupt, PenstockError

Convert = Callable[[Any], Any]
"""Function from a value of the source to the value for the writer."""

_PART_CLASSES = {
    **dict.fromkeys(("txt", "text", "transcript"), "utf8"),
    **dict.fromkeys(("json", "jsn"), "json"),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), "decimal"),
    **dict.fromkeys(("jpg", "jpeg", "jpe", "jfif"), "jpeg"),
    **dict.fromkeys(("pkl", "pickle", "pyd"), "pickle"),
    "png": "png",
    "npy": "npy",
}
_MDS_CLASSES = {"str": "utf8", "json": "json", "str_int": "decimal", "jpeg": "jpeg", "png": "png", "pkl": "pickle"}
_OPAQUE = frozenset(("jpeg", "png", "pickle", "mds:pil", "mds:jpeg_array", "mds:list"))
_KINDS = {"utf8": "text", "json": "json", "decimal": "int", "jpeg": "jpeg", "png": "png", "pickle": "pickle"}


def suffix_of(part: str) -> str:
    """Return the extension of a part: `"img.JPG"` → `"jpg"`."""
    return part.rpartition(".")[2].lower()


def stored_class(form: str) -> str:
    """Return the class of a form; forms of one class have the same bytes for the same value."""
    side, _, name = form.partition(":")
    if side == "part":
        return _PART_CLASSES.get(suffix_of(name), "bytes")
    if side == "mds":
        encoding = name.partition(":")[0]
        if encoding in ("list[pil]", "list[jpeg]", "list[png]"):
            return f"mds:{encoding}"
        return "bytes" if encoding == "bytes" else _MDS_CLASSES.get(encoding, f"mds:{name}")
    return form


def kind_of(form: str) -> str:
    """Return the kind of values of a stored form: `text int float json bytes array jpeg png pickle`, or `opaque`."""
    found = stored_class(form)
    if found in _KINDS:
        return _KINDS[found]
    if found == "npy":
        return "array"
    side, _, name = form.partition(":")
    if side == "mds" and found != "bytes":
        kind = mds_field(name).kind
        return {"ndarray": "array", "decimal": "decimal", "int": "int", "float": "float"}.get(kind, "opaque")
    return "bytes"


def converter(read: str, write: str) -> Convert | None:
    """Return a picklable converter between two forms, whose errors have no path; None if it is impossible."""
    if read == "file":
        rest = converter("part:bin" if write == "mds:bytes" else _as_stored(write), write)
        return None if rest is None else partial(_of_file, rest)
    if ":" in read and ":" in write and not write.startswith("text:"):
        before, after = stored_class(read), stored_class(write)
        if before == after or after == "bytes":
            return bytes
        if before == "bytes" and write.startswith("part:") and after not in ("utf8", "json", "decimal", "npy"):
            return bytes
    decode = _decoder(read)
    encode = _encoder(write)
    if decode is None or encode is None:
        return None
    return partial(_both, decode, encode)


def _both(decode: Convert, encode: Convert, value: Any) -> Any:
    return encode(decode(value))


def _as_stored(write: str) -> str:
    return write if stored_class(write) in _OPAQUE or write.startswith("part:") else "part:bin"


def _of_file(rest: Convert, value: Any) -> Any:
    data = value.get("bytes") if isinstance(value, dict) else value  # pyright: ignore[reportUnknownMemberType]
    if not isinstance(data, bytes):
        raise ConfigError("a path to a file that isn't in the dataset", found=repr(value)[:80])
    return rest(data)


# --- reading -------------------------------------------------------------------------------------------------------


def _decoder(form: str) -> Convert | None:
    side, _, name = form.partition(":")
    if side == "mds":
        return None if kind_of(form) in ("opaque", "jpeg", "png", "pickle") else mds_field(name).decode
    if side == "part":
        return _PART_DECODERS.get(stored_class(form))
    return _same


def _same(value: Any) -> Any:
    return value


def _text(data: bytes) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise Corrupt("not UTF-8", offset_bytes=error.start, found=error.reason) from None


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Corrupt("not JSON", found=str(error)) from None


def _decimal(data: bytes) -> int:
    try:
        return int(data)
    except ValueError:
        raise Corrupt("not an integer", found=repr(data[:40])) from None


def _array(data: bytes) -> Any:
    try:
        return np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise Corrupt("not a NumPy array", found=str(error)) from None


_PART_DECODERS: dict[str, Convert] = {
    "utf8": _text,
    "json": _json,
    "decimal": _decimal,
    "npy": _array,
    "bytes": bytes,
}


# --- writing -------------------------------------------------------------------------------------------------------


def _encoder(form: str) -> Convert | None:
    side, _, name = form.partition(":")
    if side == "mds":
        return partial(_mds, name)
    if side == "part":
        return partial(_part, name)
    if side == "text":
        return {"str": _to_text, "int": _to_int, "float": _to_float}[name]
    return _plain


def _mds(encoding: str, value: Any) -> bytes:
    kind = mds_field(encoding).kind
    if kind == "int":
        value = _to_int(value)
    elif encoding == "str":
        value = _to_text(value)
    elif kind == "float" and isinstance(value, str | int):
        value = _to_float(value)
    elif encoding == "json":
        value = _plain(value)
    return mds_field(encoding).encode(value)


def _part(name: str, value: Any) -> bytes:
    if isinstance(value, np.generic):
        value = value.item()
    if stored_class(f"part:{name}") == "json":
        try:
            return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError("a value that JSON can't hold", found=str(error)) from None
    if stored_class(f"part:{name}") == "utf8":
        return _to_text(value).encode("utf-8", "surrogatepass")
    try:
        return encode_part(name, value)
    except PenstockError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a value that the part {name!r} can't hold", found=str(error)) from None


def _to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise ConfigError("a value that is not a string", found=type(value).__name__, expected="str")


def _to_int(value: Any) -> int:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            pass
    raise ConfigError("a value that is not an integer", found=repr(value)[:40], expected="int")


def _to_float(value: Any) -> float:
    if isinstance(value, int) and not isinstance(value, bool):
        return _exact_float(value)
    if isinstance(value, float | np.floating):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
    raise ConfigError("a value that is not a number", found=repr(value)[:40], expected="float")


def _exact_float(value: int) -> float:
    """Return the float that equals an integer, or raise `ConfigError`."""
    try:
        made = float(value)
    except OverflowError:
        made = 0.0
    if made != value:
        raise ConfigError(
            "an integer that float can't represent exactly", found=value, expected="at most 2^53, or a multiple"
        )
    return made


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold, or raise `ConfigError`."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, datetime.date | datetime.time | decimal.Decimal):
        return _to_text(value)
    if isinstance(value, bytes | bytearray | memoryview):
        raise ConfigError("bytes that JSON can't hold", expected="text, numbers, lists and objects")
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
    return value


# --- media -----------------------------------------------------------------------------------------------------------

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
_USUAL_SUFFIXES = {"jpeg": "jpg", "jpe": "jpg", "jfif": "jpg", "tiff": "tif"}
_NUMBERED = re.compile(r"(?:(.+)\.)?(\d+)\.([^.]+)", re.DOTALL)
_PART_HINT = "Specify its part with --columns NAME=PART (columns=), such as image=image.jpg"


def media_suffix(data: bytes) -> str | None:
    """Return the extension of a media file by its first bytes; None if they are unknown."""
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
    """Return whether a value is a media file, as bytes or as Hugging Face stores it."""
    data, path = _content(value)
    return isinstance(data, bytes) and (media_suffix(data) is not None or _suffix_of(path) in IMAGE_SUFFIXES)


def is_media_list(value: Any) -> bool:
    """Return whether a value is a list of media files that decoders can read; it may be empty."""
    return isinstance(value, list | tuple) and all(
        is_media(one) and media_suffix(_content(one)[0]) not in _UNDECODED
        for one in value  # pyright: ignore[reportUnknownVariableType]
    )


def media_part(name: str) -> Convert:
    """Return the converter of a media file to its part: `{part: bytes}`."""
    return partial(_media_part, name)


def media_parts(name: str) -> Convert:
    """Return the converter of a list of media files to numbered parts: `{"name.0.jpg": bytes, …}`."""
    return partial(_media_parts, name)


def media_list(value: Any) -> list[bytes]:
    """Return the bytes of the media files in a list."""
    files: list[bytes] = []
    for number, one in enumerate(value):
        data, _ = _content(one)
        if not isinstance(data, bytes):
            raise ConfigError(f"item {number} is not a file in the dataset", found=repr(one)[:80])
        files.append(data)
    return files


def numbered_images(names: Sequence[str]) -> dict[str, list[str]]:
    """Group numbered parts that are images: `images.0.jpg`, `images.1.png` → `{"images": […]}`.

    The numbers of a list start at 0 or 1. Other numbers, such as `256.jpg`, are sizes or years.
    """
    found: dict[str, list[str]] = {}
    for name in names:
        stem = stem_of_numbered(name)
        if stem is not None:
            found.setdefault(stem, []).append(name)
    return {stem: parts for stem, parts in found.items() if first_number(parts) <= 1}


def first_number(parts: Sequence[str]) -> int:
    """Return the lowest number of numbered parts."""
    return min(map(_number_of, parts))


def stem_of_numbered(name: str) -> str | None:
    """Return the stem of a numbered part: `"images.3.jpg"` or `"3.jpg"` → `"images"`; None for other names."""
    match = _NUMBERED.fullmatch(name)
    if match is None or match[3].lower() not in IMAGE_SUFFIXES:
        return None
    return match[1] or "images"


def numbered_values(stem: str, first: int, sample: Mapping[str, Any]) -> list[Any]:
    """Return the numbered parts of a sample with this stem in order; raise `Corrupt` unless they count from `first`."""
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
    """Return field → its parts, for columns whose extension depends on the sample."""
    found: dict[str, str] = {}
    for column in columns:
        named = [part for part in parts if part == column or part.rpartition(".")[0] == column]
        if named:
            found[column.replace(".", "_")] = ",".join(sorted(named))
    return found


def _media_part(name: str, value: Any) -> dict[str, bytes]:
    data, path = _content(value)
    if not isinstance(data, bytes):
        raise ConfigError("a path to a file that isn't in the dataset", found=repr(value)[:80])
    suffix = media_suffix(data) or _suffix_of(path)
    if not suffix:
        raise ConfigError("content of an unknown kind", found=f"{len(data)} bytes, {data[:12]!r}…", hint=_PART_HINT)
    own = _suffix_of(name) or name
    return {name if _usual_suffix(own) == _usual_suffix(suffix) else f"{name}.{suffix}": data}


def _media_parts(name: str, value: Any) -> dict[str, bytes]:
    parts: dict[str, bytes] = {}
    for number, one in enumerate(value):
        try:
            parts |= _media_part(f"{name}.{number}", one)
        except PenstockError as error:
            error.what = f"item {number}: {error.what}"
            raise
    return parts


def _content(value: Any) -> tuple[Any, str | None]:
    if isinstance(value, dict):
        return value.get("bytes"), value.get("path")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return (bytes(value), None) if isinstance(value, bytearray | memoryview) else (value, None)


def _suffix_of(path: str | None) -> str:
    base = (path or "").rpartition("/")[2]
    return base.rpartition(".")[2].lower() if "." in base else ""


def _usual_suffix(suffix: str) -> str:
    return _USUAL_SUFFIXES.get(suffix.lower(), suffix.lower())
