"""`decode="uint8"` gives pixels as a viewer shows them: expected values are numpy's, and Pillow's `exif_transpose`."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

import penstock as ps
from penstock import prepare_media
from penstock.errors import Unsupported

GREY = (np.arange(48, dtype=np.uint32).reshape(6, 8) * 1365).astype(np.uint16)
COLOUR = np.random.default_rng(3).integers(0, 256, (6, 8, 3), np.uint8)


def _file(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _turned(kind: str, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return _file(Image.fromarray(COLOUR), kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))


WIDE = {
    "png": _file(Image.fromarray(GREY), "PNG"),
    "tif": _file(Image.fromarray(GREY), "TIFF"),
    "pgm": b"P5 8 6 65535\n" + GREY.astype(">u2").tobytes(),
}
TURNED = {
    f"{kind}-{number}": (suffix, _turned(kind, number))
    for suffix, kind in (("jpg", "JPEG"), ("png", "PNG"), ("webp", "WEBP"), ("tif", "TIFF"))
    for number in range(1, 9)
}


def _open(folder: Path, format: str, suffix: str, data: bytes, decode: Any = "uint8") -> Any:
    if format == "mds":
        encoding = "jpeg" if suffix == "jpg" else "png"
        with ps.create(folder / "mds", format="mds", columns={suffix: encoding}) as writer:
            writer.write({suffix: data})
    elif format == "folder":
        (folder / "folder").mkdir()
        (folder / "folder" / f"a.{suffix}").write_bytes(data)
    else:
        with ps.create(folder / "webdataset", format="webdataset") as writer:
            writer.write({"__key__": "a", suffix: data})
    return ps.open(folder / format, format=format, decode=decode)


@pytest.mark.parametrize("format", ["webdataset", "folder", "mds"])
@pytest.mark.parametrize("suffix", WIDE)
def test_sixteen_bits_are_scaled(tmp_path: Path, format: str, suffix: str) -> None:
    if format == "mds" and suffix != "png":
        pytest.skip("an MDS column of PNG files")
    found = _open(tmp_path, format, suffix, WIDE[suffix])[0][suffix]
    expected = np.round(GREY.astype(np.float64) * 255 / 65535).astype(np.uint8)
    assert found.dtype == np.uint8
    assert found.tolist() == np.stack([expected] * 3, -1).tolist()


def _grey_tiff(bits: int, photometric: int, data: bytes) -> bytes:
    """A TIFF of 8 x 6 pixels, as TIFF 6.0 lays it out; Pillow writes no such file."""
    tags = {256: 8, 257: 6, 258: bits, 259: 1, 262: photometric, 273: 8, 277: 1, 278: 6, 279: len(data)}
    entries = b"".join(struct.pack("<HHII", tag, 3, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + struct.pack("<H", len(tags)) + entries + bytes(4)


@pytest.mark.parametrize(("bits", "white_is_zero"), [(12, False), (16, False), (16, True)])
def test_grey_of_other_ranges_is_scaled_too(tmp_path: Path, bits: int, white_is_zero: bool) -> None:
    grey = GREY >> (16 - bits)
    data = grey.tobytes()
    if bits == 12:
        text = "".join(f"{value:012b}" for value in grey.ravel().tolist())
        data = int(text, 2).to_bytes(len(text) // 8, "big")
    found = _open(tmp_path, "folder", "tif", _grey_tiff(bits, int(not white_is_zero), data))[0]["tif"]
    share = grey.astype(np.float64) / (2**bits - 1)
    expected = np.round(255 * (1 - share if white_is_zero else share)).astype(np.uint8)
    assert found[:, :, 0].tolist() == expected.tolist()


@pytest.mark.parametrize("name", TURNED)
def test_exif_orientation_is_applied(tmp_path: Path, name: str) -> None:
    suffix, data = TURNED[name]
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        expected = np.array(ImageOps.exif_transpose(image).convert("RGB"))
    found = _open(tmp_path, "folder", suffix, data)[0][suffix]
    assert found.flags.c_contiguous
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("format", ["webdataset", "mds"])
def test_exif_orientation_is_applied_in_every_format(tmp_path: Path, format: str) -> None:
    _, data = TURNED["JPEG-6"]
    with Image.open(io.BytesIO(data)) as image:
        stored = np.array(image)
    assert _open(tmp_path, format, "jpg", data)[0]["jpg"].tolist() == np.rot90(stored, -1).tolist()


def test_the_pixels_of_version_0_2_stay(tmp_path: Path) -> None:
    _, data = TURNED["JPEG-6"]
    source = _open(tmp_path, "folder", "jpg", data, "uint8-0.2")
    assert source[0]["jpg"].shape == (6, 8, 3)
    assert ps.open_recipe(source.recipe())[0]["jpg"].shape == (6, 8, 3)
    assert ps.open(tmp_path / "folder", format="folder")[0]["jpg"].size == (8, 6)  # Pillow's, as it is stored


@pytest.mark.parametrize(("mode", "dtype"), [("F", np.float32), ("I", np.int32)])
def test_pixels_without_a_range_are_an_error(tmp_path: Path, mode: str, dtype: Any) -> None:
    data = _file(Image.fromarray(GREY.astype(dtype)), "TIFF")
    with Image.open(io.BytesIO(data)) as image:
        assert image.mode == mode
    with pytest.raises(Unsupported, match="32 bits"):
        _open(tmp_path, "folder", "tif", data)[0]


@pytest.mark.parametrize("format", ["webdataset", "folder"])
def test_media_metadata_have_the_size_of_the_pixels(tmp_path: Path, format: str) -> None:
    _, data = TURNED["JPEG-8"]
    _open(tmp_path, format, "jpg", data)
    prepare_media(tmp_path / format, by="extension", workers=1)
    for decode, size in (("uint8", (6, 8)), ("uint8-0.2", (8, 6))):
        source = ps.open(tmp_path / format, format=format, decode=decode)
        found = source.get_media_metadata("a.jpg")
        assert (found.width, found.height) == size
        assert source[0]["jpg"].shape == (size[1], size[0], 3)


def test_prepare_media_counts_images_that_decoders_treat_differently(tmp_path: Path) -> None:
    alpha = _file(Image.fromarray(COLOUR).convert("RGBA"), "PNG")
    plain = _file(Image.fromarray(COLOUR), "PNG")
    palette = _file(Image.fromarray(COLOUR).convert("P"), "PNG", transparency=0)
    files = [WIDE["png"], alpha, palette, plain, *(TURNED[f"PNG-{number}"][1] for number in range(1, 9))]
    files += [TURNED["JPEG-3"][1]]
    with ps.create(tmp_path / "tars", format="webdataset") as writer:
        for number, data in enumerate(files):
            writer.write({"__key__": f"{number}", "jpg" if data[:2] == b"\xff\xd8" else "png": data})
    summary = prepare_media(tmp_path / "tars", by="extension", workers=1)
    assert summary.traits == {"16 bits per channel": 1, "an EXIF orientation": 8, "an alpha channel": 2}
    assert not summary.problems
