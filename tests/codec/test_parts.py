"""Parts by their extension: values, refusals, bombs."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import pickle
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from PIL import Image

from penstock.codec.av import AVDecoder
from penstock.codec.parts import DecodeOptions, decode_part, encode_part
from penstock.errors import ConfigError, Corrupt, FormatError, TooLarge, Truncated, UnsafeData
from penstock.testing.strategies import for_all, json_values

from .films import wav
from .pictures import SAVED, encoded, files, picture

PLAIN = DecodeOptions()


def npy(array: np.ndarray[Any, Any], **how: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **how)
    return file.getvalue()


def tensors(*arrays: np.ndarray[Any, Any]) -> bytes:
    """As webdataset writes them."""

    def chunk(data: bytes) -> bytes:
        return b"~TenBin~" + struct.pack("<q", len(data)) + data + bytes(-len(data) % 64)

    return b"".join(
        chunk(
            array.dtype.str[1:].encode().ljust(8, b"\0")
            + bytes(8)
            + struct.pack(f"<q{array.ndim}q", array.ndim, *array.shape)
        )
        + chunk(array.tobytes())
        for array in arrays
    )


@pytest.mark.parametrize(
    ("part", "data", "value"),
    [
        ("txt", "grün\n".encode(), "grün\n"),
        ("a.b.text", b"", ""),
        ("json", b'{"a": [1, NaN]}', None),
        ("json", b"null", None),
        ("detail.jsn", b' "x" ', "x"),
        ("cls", b"17\n", 17),
        ("id", b"-3", -3),
        ("mp", b"\x81\xa1a\x92\x01\xc0", {"a": [1, None]}),
        ("TXT", b"as it is", b"as it is"),
        ("JSON", b"{}", b"{}"),
        ("bin", b"\0\1", b"\0\1"),
        ("", b"x", b"x"),
        ("txt.gz", gzip.compress(b"packed", mtime=0), "packed"),
        ("gz", b"no name", b"no name"),
        ("h5", b"\x89HDF", b"\x89HDF"),
        ("eps", b"%!PS", b"%!PS"),
    ],
)
def test_values(part: str, data: bytes, value: object) -> None:
    found = decode_part(part, data, PLAIN)
    if isinstance(found, dict) and "a" in found and value is None:
        assert found["a"][0] == 1
        assert np.isnan(found["a"][1])
    else:
        assert found == value
        assert type(found) is type(value)


def test_arrays() -> None:
    for array in (
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.ones((3, 2), "i2")),
        np.array(5, "u1"),
        np.empty((0, 4)),
    ):
        found = decode_part("npy", npy(array), PLAIN)
        assert found.dtype == array.dtype
        assert (found == array).all()
        assert found.shape == array.shape
        assert found.flags.writeable
    file = io.BytesIO()
    np.savez(file, a=np.arange(3), b=np.ones(2))
    archive = decode_part("npz", file.getvalue(), PLAIN)
    assert sorted(archive) == ["a", "b"]
    assert archive["a"].tolist() == [0, 1, 2]
    twice = io.BytesIO()
    with zipfile.ZipFile(twice, "w") as written:
        written.writestr("a.npy", npy(np.array([1])))
        with pytest.warns(UserWarning, match="Duplicate name"):
            written.writestr("a.npy", npy(np.array([2])))
    with pytest.raises(Corrupt, match="two arrays of the archive have the same name"):
        decode_part("npz", twice.getvalue(), PLAIN)
    first, second = decode_part("ten", tensors(np.arange(6, dtype="f4").reshape(2, 3), np.array([7], "u1")), PLAIN)
    assert first.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert second.dtype == np.uint8


@pytest.mark.parametrize("image", ["l8", "rgb8", "rgba8", "l", "rgb", "rgba"])
def test_images_as_arrays_and_tensors(image: str) -> None:
    import torch

    original = picture("RGBA", 5, 3)
    data = encoded(original, "PNG") or b""
    mode = image.rstrip("8").upper()
    expected = np.asarray(original.convert(mode))
    found = decode_part("PNG", data, DecodeOptions(image))
    assert found.dtype == (np.uint8 if image.endswith("8") else np.float32)
    assert np.allclose(found, expected / (1 if image.endswith("8") else 255))
    tensor = decode_part("png", data, DecodeOptions("torch" + image))
    assert isinstance(tensor, torch.Tensor)
    channels_last = tensor.numpy() if mode == "L" else tensor.numpy().transpose(1, 2, 0)
    assert (channels_last == found).all()


@pytest.mark.parametrize(("image", "mode"), [("pill", "L"), ("pil", "RGB"), ("pilrgb", "RGB"), ("pilrgba", "RGBA")])
def test_images_of_pillow(image: str, mode: str) -> None:
    found = decode_part("jpg", encoded(picture("RGB", 5, 3), "JPEG") or b"", DecodeOptions(image))
    assert isinstance(found, Image.Image)
    assert (found.mode, found.size) == (mode, (5, 3))


def test_every_kind_of_image_is_read() -> None:
    for name, data in files():
        if "-P-" not in name and name.split("-")[0] in SAVED:
            part = name.split("-")[0].replace("JPEG2000", "jp2")
            assert decode_part(part, data, PLAIN).mode == "RGB", name


def test_sound_is_a_handle() -> None:
    found = decode_part("WAV", wav(100), PLAIN)
    assert isinstance(found, AVDecoder)
    assert found.get_audio().audio_clips[0].shape == (1, 100)
    assert isinstance(decode_part("mp4", b"garbage", PLAIN), AVDecoder)
    assert decode_part("ogg", b"OggS", PLAIN) == b"OggS"


@dataclass(frozen=True)
class Bomb:
    """Makes a file when it is read."""

    file: Path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.file),))


@pytest.mark.parametrize("part", ["pkl", "pickle", "pyd", "pth", "x.pkl.gz"])
def test_pickles_are_refused(part: str, tmp_path: Path) -> None:
    data = pickle.dumps(Bomb(tmp_path / "ran"))
    with pytest.raises(UnsafeData, match=r"trust=True"):
        decode_part(part, gzip.compress(data) if part.endswith("gz") else data, PLAIN)
    assert not (tmp_path / "ran").exists()


def test_pickles_with_trust() -> None:
    assert decode_part("pkl", pickle.dumps([1, {"a": 2}]), DecodeOptions(trust=True)) == [1, {"a": 2}]
    with pytest.raises(Corrupt):
        decode_part("pkl", b"\x80\x04junk", DecodeOptions(trust=True))


def torch_file(value: Any, **how: Any) -> bytes:
    file = io.BytesIO()
    pytest.importorskip("torch").save(value, file, **how)
    return file.getvalue()


def test_tensors_without_trust() -> None:
    torch = pytest.importorskip("torch")
    found = decode_part("pth", torch_file({"a": torch.arange(3), "b": [1, "two"]}), PLAIN)
    assert found["a"].tolist() == [0, 1, 2]
    assert found["b"] == [1, "two"]


def test_what_runs_in_a_file_of_tensors(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    bomb = torch_file(Bomb(tmp_path / "ran"))
    with pytest.raises(UnsafeData, match=r"posix.mkdir.*trust=True"):
        decode_part("pth", bomb, PLAIN)
    assert not (tmp_path / "ran").exists()
    decode_part("pth", bomb, DecodeOptions(trust=True))
    assert (tmp_path / "ran").exists()


def test_a_file_of_tensors_that_unpacks_to_more(tmp_path: Path) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data/0", bytes(1 << 24))
    with pytest.raises(TooLarge):
        decode_part("pth", file.getvalue(), DecodeOptions(most_bytes=1 << 20))


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_torn_file_of_tensors(cut: int) -> None:
    torch = pytest.importorskip("torch")
    whole = torch_file(torch.arange(1000))
    with pytest.raises(FormatError):
        decode_part("pth", whole[: len(whole) * cut // 4], PLAIN)


def test_objects_in_arrays_are_refused() -> None:
    with pytest.raises(UnsafeData):
        decode_part("npy", npy(np.array([{}], object), allow_pickle=True), PLAIN)


def header_of(shape: str) -> bytes:
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text.encode()


@pytest.mark.parametrize("shape", ["(1152921504606846976,)", "(3, 3)", "(-1,)"])
def test_an_array_that_claims_more_than_it_holds(shape: str) -> None:
    with pytest.raises(Truncated):
        decode_part("npy", header_of(shape) + bytes(64), PLAIN)


def bombs() -> list[tuple[str, bytes]]:
    png = bytearray(encoded(picture("RGB", 4, 4), "PNG") or b"")
    png[16:24] = struct.pack(">II", 200_000, 200_000)
    gif = bytearray(encoded(picture("P", 4, 4), "GIF") or b"")
    gif[6:10] = b"\xff\xff\xff\xff"
    bmp = bytearray(encoded(picture("RGB", 4, 4), "BMP") or b"")
    bmp[18:26] = struct.pack("<II", 1 << 20, 1 << 20)
    webp = b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8X" + struct.pack("<I", 10) + b"\x02\0\0\0" + b"\xff" * 6
    return [
        ("png", bytes(png)),
        ("gif", bytes(gif)),
        ("bmp", bytes(bmp)),
        ("webp", webp),
        ("ppm", b"P6 99999 99999 255\n"),
    ]


@pytest.mark.parametrize(("part", "data"), bombs(), ids=lambda value: value if isinstance(value, str) else "")
def test_image_bombs(part: str, data: bytes) -> None:
    with pytest.raises(TooLarge, match=r"pixels|larger"):
        decode_part(part, data, PLAIN)
    with pytest.raises(TooLarge, match="at most 10 pixels"):
        decode_part("png", encoded(picture("RGB", 4, 4), "PNG") or b"", DecodeOptions(most_pixels=10))


def test_packed_bombs() -> None:
    how = DecodeOptions(most_bytes=1000)
    with pytest.raises(TooLarge):
        decode_part("txt.gz", gzip.compress(bytes(100_000)), how)
    file = io.BytesIO()
    np.savez_compressed(file, a=np.zeros(100_000))
    with pytest.raises(TooLarge):
        decode_part("npz", file.getvalue(), how)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.npy", b"no array")
    with pytest.raises(Corrupt):
        decode_part("npz", file.getvalue(), PLAIN)


@pytest.mark.parametrize(
    "part", ["txt", "json", "cls", "npy", "npz", "ten", "mp", "cbor", "png", "jpg", "gif", "tiff", "json.gz"]
)
def test_noise_is_refused_by_type(part: str) -> None:
    @for_all(st.binary(max_size=200))
    def law(noise: bytes) -> None:
        with contextlib.suppress(FormatError, UnsafeData):
            decode_part(part, noise, PLAIN)

    with pytest.raises(FormatError):
        decode_part(part, b"\xff\xfe{broken", PLAIN)


def test_cut_images_are_damaged() -> None:
    for name in ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"):
        data = encoded(picture("RGB", 40, 30), name) or b""
        with pytest.raises(FormatError):
            decode_part(name.lower(), data[: len(data) // 2], PLAIN)


def test_deep_json_is_refused() -> None:
    with pytest.raises(Corrupt, match="json"):
        decode_part("json", b"[" * 200_000, PLAIN)


def test_what_is_written_is_read() -> None:
    @for_all(json_values())
    def law(value: Any) -> None:
        assert decode_part("x.json", encode_part("x.json", value), PLAIN) == value

    for part, value in (("txt", "ä\0"), ("cls", -4), ("mp", {"a": [1, "b"]}), ("bin", b"\0"), ("jpg", b"as given")):
        stored = encode_part(part, value)
        assert stored == value if isinstance(value, bytes) else decode_part(part, stored, PLAIN) == value
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    assert (decode_part("npy", encode_part("npy", array), PLAIN) == array).all()


@pytest.mark.parametrize(
    ("part", "value"), [("jpg", "text"), ("txt", 3), ("json", object()), ("cls", "x"), ("npy", [1]), ("bin", 1)]
)
def test_what_does_not_fit_is_refused(part: str, value: object) -> None:
    with pytest.raises(ConfigError, match=part):
        encode_part(part, value)


def test_unknown_ways_are_refused() -> None:
    with pytest.raises(ConfigError, match="torchrgb"):
        DecodeOptions("rgb16")


@pytest.mark.parametrize("seed", range(12))
def test_jpegs_are_pillows_to_the_bit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    height, width = rng.integers(1, 70, 2)
    pixels = (np.linspace(0, 200, width)[None, :, None] + rng.integers(0, 55, (height, width, 3))).astype(np.uint8)
    image = Image.fromarray(pixels).convert(("RGB", "L", "CMYK")[seed % 3])
    file = io.BytesIO()
    image.save(file, "JPEG", quality=int(rng.integers(20, 98)), subsampling=seed % 3, progressive=bool(seed % 2))
    with Image.open(file) as again:
        expected = np.asarray(again.convert("RGB"))
    assert np.array_equal(decode_part("jpg", file.getvalue(), DecodeOptions("rgb8")), expected)
    assert np.array_equal(
        decode_part("jpg", file.getvalue(), DecodeOptions("rgb")), expected.astype(np.float32) / np.float32(255)
    )
