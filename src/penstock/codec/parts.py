"""Decoders of the parts of a sample, chosen by the last extension of their name, as in Energon.

| extension | value |
|---|---|
| `txt text transcript` | str, strict UTF-8 |
| `json jsn` | as Python's `json`; `null` is None |
| `cls cls2 index inx id` | int |
| `npy`, `npz` | array, dict of arrays; never objects |
| `ten tb` | list of arrays |
| `mp msg` | MessagePack |
| `cbor` | CBOR; tags other than big numbers and times are dropped |
| images, in any case | see `DecodeOptions.image` |
| `mp4 avi mov webm mkv flac mp3 wav flv`, in any case | an `AVDecoder`, which decodes later, or an `AVData` |
| `pkl pickle pyd` | plain values; objects that run code require `trust` |
| `pth` | tensors and plain values, by torch's `weights_only`; objects that run code require `trust` |
| one of these followed by `gz` | decompressed first |

Everything else stays bytes. Checked against megatron-energon 7.4.1 with webdataset 1.0.2. Differences: `null` is
`b"null"` there; `h5 hdf mpg mpeg bufr grib wmf emf` raise errors there and stay bytes here; PostScript runs a program
there and stays bytes here.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock._arrays import in_memory
from penstock._limits import LEAST_UNPACKED_BYTES, MOST_UNPACKED_BYTES, UNPACKED_RATIO, require_memory_for
from penstock._optional import require
from penstock.codec.av import MOST_PIXELS, AVDecoder
from penstock.codec.cbor import decode_cbor
from penstock.codec.compress import decompress
from penstock.codec.fields import mds_field
from penstock.codec.image_header import ImageMetadata, read_image_header
from penstock.codec.media_bytes import media_bytes
from penstock.codec.plain_pickles import decode_plain_pickle
from penstock.codec.tensor_files import decode_tensor_file
from penstock.codec.upright import file_orientation, turn, upright_rgb
from penstock.codec.zip_members import ZIP_FAULTS, files_in
from penstock.errors import ConfigError, Corrupt, MissingExtra, PenstockError, TooLarge, Truncated, UnsafeData

_IMAGE_NAMES = (
    "blp bmp dib cur pcx dcx dds fit fits fli flc ftc ftu gbr gif png apng jp2 j2k jpc jpf jpx j2c icns ico im iim tif "
    "tiff jfif jpe jpg jpeg msp pcd pxr pbm pgm ppm pnm psd bw rgb rgba sgi ras tga icb vda vst webp xbm xpm"
)
IMAGE_SUFFIXES = frozenset(_IMAGE_NAMES.split())
AV_SUFFIXES = frozenset(("mp4", "avi", "mov", "webm", "mkv", "flac", "mp3", "wav", "flv"))

IMAGE_KINDS = {
    **{
        f"{library}{mode}{bits}": (library, mode, bits)
        for library in ("", "torch")
        for mode in ("l", "rgb", "rgba")
        for bits in ("8", "")
    },
    "torch": ("torch", "rgb", ""),
    **{f"pil{name}": ("pil", mode, "") for name, mode in (("l", "l"), ("", "rgb"), ("rgb", "rgb"), ("rgba", "rgba"))},
}
"""`image=` → library (None: numpy), Pillow's mode, and `8` for uint8; else float32 in [0, 1]."""

AVIF_SUFFIXES = frozenset(("avif", "avifs"))
"""Images that Energon leaves as bytes."""


NO_PART = 'None marks a missing part. For JSON null, pass b"null"'
"""Hint of writers for a sample with a missing part."""

_CODE_SUFFIXES = frozenset(("pkl", "pickle", "pyd", "pth"))
_RUNS_CODE = "a part {!r} runs code when it is decoded"
_BY_TRUST = "Pass --trust (trust=True) if you trust its author. In Python, raw=True returns its bytes"
_PROGRAMS = frozenset(("EPS", "MPEG", "WMF", "HDF5", "BUFR", "GRIB"))
_TENSOR_MAGIC = b"~TenBin~"
_MOST_DIMENSIONS = 32
_PIXEL_BYTES = 24
"""Maximum memory per pixel during decoding, including all copies."""


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """Options of decoding.

    Attributes:
        upright: with `image="rgb8"`, scale 16-bit images to 8 bits and apply EXIF orientation, as `decode="uint8"`
            does; otherwise pixels are those of Energon, which are Pillow's.
        image: `l8 rgb8 rgba8 l rgb rgba`: numpy, [height, width] or [height, width, channels], uint8 or float32 in
            [0, 1]; `torchl8 …`: the same as tensors [channels, height, width]; `pill pil pilrgb pilrgba`: Pillow's.
        trust: let pickles run their code.
        most_pixels: limit on the size of images.
        most_bytes: limit on a decompressed part. By default the limit is also 64 times its stored bytes
            (`UNPACKED_RATIO`), or 16 MiB if that is more; any other number is the only limit.
        frames: decode all frames of sound and videos to `AVData` instead of returning an `AVDecoder`.
        sound: with `frames`, decode the sound of videos too.
        media: applied to each `AVDecoder` or `AVData`; None returns it as it is.
        refuse_late: `decode_parts` returns `Refused` for a part that would run code, instead of raising an error.
    """

    image: str = "pil"
    trust: bool = False
    most_pixels: int = MOST_PIXELS
    most_bytes: int = MOST_UNPACKED_BYTES
    frames: bool = False
    sound: bool = False
    media: Callable[[Any], Any] | None = None
    refuse_late: bool = False
    upright: bool = False

    def __post_init__(self) -> None:
        if self.image not in IMAGE_KINDS:
            raise ConfigError("unknown way to decode images", found=self.image, expected=" | ".join(IMAGE_KINDS))


_ARRAYS = {"uint8": DecodeOptions("rgb8", upright=True), "uint8-0.2": DecodeOptions("rgb8")}


def array_options(decode: str | None) -> DecodeOptions | None:
    """Return the options for `decode=` of `penstock.open`, None for None; raise `ConfigError` if unknown."""
    if decode is not None and decode not in _ARRAYS:
        raise ConfigError("unknown way to decode images", found=f"decode={decode!r}", expected=" | ".join(_ARRAYS))
    return None if decode is None else _ARRAYS[decode]


@dataclass(frozen=True, slots=True)
class Refused:
    """Placeholder of a part that would run code; it must not be used."""

    error: UnsafeData


def suffix_of(part: str) -> str:
    """Return the suffix by which a part is decoded: `"detail.json"` → `"json"`."""
    return part.rpartition(".")[2]


def decode_part(part: str, data: bytes, how: DecodeOptions) -> Any:
    """Return the value of a part.

    Raises:
        FormatError: the data doesn't match the name.
        UnsafeData: decoding would run code.
        MissingExtra: a required package is not installed.
    """
    limit_bytes = _unpacked_limit(how, len(data))
    suffix = suffix_of(part)
    while suffix == "gz" and "." in part:
        part, data = part[:-3], decompress(data, "gz", limit_bytes=limit_bytes)
        suffix = suffix_of(part)
    try:
        if suffix in _PLAIN:
            return _PLAIN[suffix](data)
        if suffix in _CODE_SUFFIXES:
            return _decode_code(part, suffix, data, how.trust, limit_bytes)
        if suffix == "npz":
            return _decode_npz(data, limit_bytes)
        lowered = suffix.lower()
        if lowered in IMAGE_SUFFIXES or (how.upright and lowered in AVIF_SUFFIXES):
            return decode_image(data, how)
        if lowered not in AV_SUFFIXES:
            return data
        decoder = AVDecoder(data)
        made = decoder.get_frames(how.sound) if how.frames else decoder
        return made if how.media is None else how.media(made)
    except PenstockError:
        raise
    except ZIP_FAULTS as error:
        raise _damaged(part, f"{type(error).__name__}: {error}") from None


def decode_parts(parts: Mapping[str, bytes], how: DecodeOptions) -> dict[str, Any]:
    """Return the values of the parts of a sample; see `decode_part`."""
    made: dict[str, Any] = {}
    for name, data in parts.items():
        try:
            made[name] = decode_part(name, data, how)
        except UnsafeData as error:
            if not how.refuse_late:
                raise
            made[name] = Refused(error)
    return made


def _unpacked_limit(how: DecodeOptions, stored_bytes: int) -> int:
    """Return the limit on a decompressed part of `stored_bytes`, even if compressed several times."""
    if how.most_bytes != MOST_UNPACKED_BYTES:
        return how.most_bytes
    return min(MOST_UNPACKED_BYTES, max(LEAST_UNPACKED_BYTES, UNPACKED_RATIO * stored_bytes))


def _damaged(what: str, found: str) -> Corrupt:
    return Corrupt(
        f"a part {what!r} can't be decoded", found=found, hint="Fix the sample. In Python, raw=True returns its bytes"
    )


def _decode_json(data: bytes) -> Any:
    require_memory_for(data)
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return json.loads(data)  # accepts NaN, byte order marks and lone surrogates too


def _decode_npy(data: bytes) -> NDArray[Any]:
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
    if dtype.hasobject:
        raise UnsafeData(
            "an array of pickled objects", hint="Store numbers. In Python, raw=True returns the stored bytes"
        )
    return _array(data, file.tell(), dtype, shape, order="F" if fortran else "C")


def _array(data: bytes, place: int, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any = "C") -> NDArray[Any]:
    """Return a new array from bytes, after checking their number against the shape."""
    size_bytes = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size_bytes > len(data) - place:
        found = f"{len(data) - place} bytes"
        raise Truncated("an array ends early", offset_bytes=place, found=found, expected=f"{size_bytes} bytes")
    return np.frombuffer(data, dtype, math.prod(shape), place).reshape(shape, order=order).copy(order)


def _decode_npz(data: bytes, most_bytes: int) -> dict[str, NDArray[Any]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = files_in(archive)
        if len({entry.filename for entry in entries}) < len(entries):
            raise ValueError("two arrays of the archive have the same name")
        size_bytes = sum(entry.file_size for entry in entries)
        if size_bytes > most_bytes:
            raise TooLarge("an archive of arrays is too large", found=f"{size_bytes} bytes", expected=f"{most_bytes}")
        return {entry.filename.removesuffix(".npy"): _decode_npy(_member(archive, entry)) for entry in entries}


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    with archive.open(entry) as file:
        return file.read(entry.file_size)


def _decode_tensors(data: bytes) -> list[NDArray[Any]]:
    """Decode pairs of chunks, a header and numbers; each is a magic, its size, its bytes, and zero padding to 64."""
    arrays: list[NDArray[Any]] = []
    place = 0
    while place < len(data):
        header, place = _chunk(data, place)
        if len(header) < 24:
            raise ValueError("the header of a tensor is truncated")
        words = np.frombuffer(header, "<i8", len(header) // 8)[2:].tolist()
        if not 0 <= words[0] <= min(_MOST_DIMENSIONS, len(words) - 1):
            raise ValueError(f"a tensor of {words[0]} dimensions")
        dtype = np.dtype(header[:8].rstrip(b"\0 ").decode("ascii"))
        if dtype.hasobject:
            raise UnsafeData(
                "a tensor of pickled objects", hint="Store numbers. In Python, raw=True returns the stored bytes"
            )
        numbers, place = _chunk(data, place)
        arrays.append(_array(numbers, 0, dtype, tuple(words[1 : 1 + words[0]])))
    return arrays


def _chunk(data: bytes, place: int) -> tuple[bytes, int]:
    if data[place : place + 8] != _TENSOR_MAGIC:
        raise ValueError(f"no tensor starts at byte {place}")
    length = int.from_bytes(data[place + 8 : place + 16], "little", signed=True)
    start = place + 16
    if not 0 <= length <= len(data) - start:
        raise ValueError(f"a tensor of {length} bytes at byte {place}")
    return data[start : start + length], start + -(-length // 64) * 64


def _decode_code(part: str, suffix: str, data: bytes, trust: bool, most_bytes: int) -> Any:
    if suffix != "pth":
        return mds_field("pkl", trust=True).decode(data) if trust else _decode_plain(part, data)
    if trust:
        return require("torch", extra="torch").load(io.BytesIO(data), map_location="cpu", weights_only=False)
    try:
        return decode_tensor_file(data, most_bytes)
    except UnsafeData as error:
        raise UnsafeData(_RUNS_CODE.format(part), found=error.found, hint=_BY_TRUST) from None


def _decode_plain(part: str, data: bytes) -> Any:
    """Return the plain values of a pickle without running it."""
    try:
        return decode_plain_pickle(data)
    except UnsafeData as error:
        what = _RUNS_CODE.format(part)
        raise UnsafeData(what, offset_bytes=error.offset_bytes, found=error.found, hint=_BY_TRUST) from None
    except Corrupt as error:
        raise _damaged(part, str(error.found)) from None


_PLAIN: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), bytes.decode),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), _decode_json),
    **dict.fromkeys(("mp", "msg"), msgspec.msgpack.decode),
    **dict.fromkeys(("ten", "tb"), _decode_tensors),
    "npy": _decode_npy,
    "cbor": decode_cbor,
}


def decode_image(data: bytes, how: DecodeOptions) -> Any:
    """Decode an image file according to `how.image`.

    Raises:
        TooLarge: the image has more than `how.most_pixels` pixels in its header, checked before allocation; or it takes
            more memory than its pixels do.
        NoRoom: there isn't enough memory for its pixels.
        Corrupt: the data isn't an image, or is damaged.
    """
    metadata = read_image_header(media_bytes(data))
    if metadata is None or metadata.format in _PROGRAMS:
        raise Corrupt("not an image", found=f"{len(data)} bytes, {data[:8]!r}…")
    if metadata.width * metadata.height > how.most_pixels:
        found = f"{metadata.width} x {metadata.height} pixels in {len(data)} bytes"
        raise TooLarge("an image is larger than allowed", found=found, expected=f"at most {how.most_pixels} pixels")
    try:
        return _pixels_of(data, metadata, how)
    except MemoryError:
        found = f"{metadata.width} x {metadata.height} pixels"
        with in_memory("an image", found):
            np.empty(metadata.width * metadata.height * _PIXEL_BYTES, np.uint8)  # as much as its pixels would take
        raise TooLarge("an image needs more memory than its pixels", found=found) from None


def _pixels_of(data: bytes, metadata: ImageMetadata, how: DecodeOptions) -> Any:
    library, mode, bits = IMAGE_KINDS[how.image]
    is_plain = metadata.format == "JPEG" and metadata.mode in ("RGB", "L")
    fast = _jpeg_pixels(data) if is_plain and mode == "rgb" and library != "pil" else None
    if fast is not None:
        return _as_asked(turn(fast, file_orientation(data)) if how.upright else fast, bits, library)
    pillow = require("PIL.Image", extra="media")
    try:
        with pillow.open(io.BytesIO(data)) as file:
            file.load()
            if how.upright:
                return upright_rgb(file)
            image = file.convert(mode.upper())
    except (MemoryError, PenstockError):
        raise
    except pillow.DecompressionBombError as error:
        raise TooLarge("an image is larger than allowed", found=str(error)) from None
    except Exception as error:  # Pillow's readers raise any exception of their parsers
        raise Corrupt("an image is damaged", found=f"{type(error).__name__}: {error}") from None
    if library == "pil":
        return image
    return _as_asked(np.array(image), bits, library)


def _as_asked(pixels: NDArray[np.uint8], bits: str, library: str) -> Any:
    """Convert uint8[height, width] or uint8[height, width, channels] according to `IMAGE_KINDS`."""
    if library == "torch" and pixels.ndim == 3:
        pixels = pixels.transpose(2, 0, 1)
    made: NDArray[Any] = np.ascontiguousarray(pixels) if bits else pixels.astype(np.float32, order="C")
    if not bits:
        made /= np.float32(255)
    return require("torch", extra="torch").from_numpy(made) if library == "torch" else made


def _jpeg_pixels(data: bytes) -> NDArray[np.uint8] | None:
    """Return uint8[height, width, 3], equal to Pillow's, in half the time; None to leave it to Pillow."""
    try:
        simplejpeg = require("simplejpeg", extra="media")
        return simplejpeg.decode_jpeg(data, "RGB", strict=True)
    except (MissingExtra, ValueError, RuntimeError):
        return None


def encode_part(part: str, value: Any) -> bytes:
    """Return the bytes of a part, encoded by its name: bytes as they are, text, JSON, integers, arrays, MessagePack.

    Raises:
        ConfigError: the value doesn't fit this kind of part.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    suffix = suffix_of(part)
    try:
        if suffix in ("txt", "text", "transcript") and isinstance(value, str):
            return value.encode()
        if suffix in ("json", "jsn"):
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain).encode()
        is_integer = isinstance(value, str | int | np.integer) and not isinstance(value, bool)
        if suffix in ("cls", "cls2", "index", "inx", "id") and is_integer:
            return str(int(value)).encode()
        if suffix in ("mp", "msg"):
            return msgspec.msgpack.encode(value, enc_hook=_plain)
        if suffix == "npy" and isinstance(value, np.ndarray) and not value.dtype.hasobject:
            file = io.BytesIO()
            np.lib.format.write_array(file, value, allow_pickle=False)
            return file.getvalue()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"the part {part!r} can't store its value", found=str(error)) from None
    hint = "Pass its bytes, or use a part named txt, json, cls, npy or mp"
    raise ConfigError(f"the part {part!r} can't store its value", found=type(value).__name__, hint=hint)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__}")
