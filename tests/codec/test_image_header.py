"""Headers of images: Pillow's answers, without Pillow."""

from __future__ import annotations

import io
import random
import warnings
from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from PIL import Image, UnidentifiedImageError

from penstock.codec.image_header import read_image_header
from penstock.codec.media_bytes import HEAD_BYTES, MediaBytes, media_bytes
from penstock.errors import Corrupt, FormatError, TooLarge, Truncated
from penstock.testing.strategies import for_all
from penstock.types import ImageMetadata

from .pictures import files

COMMON = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")


def by_pillow(data: bytes, *, load: bool = False) -> ImageMetadata:
    with Image.open(io.BytesIO(data)) as image:
        if load:
            image.load()
        assert image.format is not None
        return ImageMetadata(image.width, image.height, image.format, image.mode)


def in_pieces(data: bytes, asked: list[int] | None = None) -> MediaBytes:
    """A file of which only the first KiB is there at first."""

    def more(start: int, length: int) -> bytes:
        if asked is not None:
            asked.append(length)
        return data[start : start + length]

    return MediaBytes(len(data), data[:HEAD_BYTES], more)


def no_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("Pillow was asked")

    monkeypatch.setattr(Image, "open", refuse)


@pytest.mark.parametrize("load", [False, True])
def test_as_pillow_says(load: bool) -> None:
    assert len(files()) > 250
    for name, data in files():
        assert read_image_header(media_bytes(data)) == by_pillow(data, load=load), name
        assert read_image_header(in_pieces(data)) == by_pillow(data), name


def test_common_formats_do_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [(name, data, by_pillow(data)) for name, data in files()]
    no_pillow(monkeypatch)
    plain = 0
    for name, data, metadata in expected:
        if metadata.format not in COMMON or metadata.mode in ("I", "F", "I;16", "LAB") or "several-MPO" in name:
            continue
        assert read_image_header(media_bytes(data)) == metadata, name
        plain += 1
    assert plain > 200


def test_only_headers_are_read() -> None:
    for name, data in files():
        if not name.startswith(("PNG", "GIF", "WEBP", "BMP", "JPEG-")):
            continue
        asked: list[int] = []
        read_image_header(in_pieces(data, asked))
        assert sum(asked) <= 64, name


def answer(ask: Callable[[bytes], ImageMetadata | None], data: bytes) -> ImageMetadata | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ask(data)
        except (FormatError, UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError):
            return None


def test_cut_files_give_the_truth_or_an_error() -> None:
    for name, data in files():
        if name.split("-")[0] not in COMMON:
            continue  # the header of a PPM is text: a part of a number is a number
        whole = by_pillow(data)
        for size_bytes in range(0, min(len(data), 200), 7):
            found = answer(lambda part: read_image_header(media_bytes(part)), data[:size_bytes])
            assert found in (None, whole), f"{name} cut to {size_bytes}"


def test_damaged_headers_never_crash() -> None:
    some = [data for name, data in files() if name.split("-")[0] in COMMON]

    @for_all(st.integers(0, 1 << 32), examples=25)
    def law(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(20):
            data = bytearray(dice.choice(some))
            for _ in range(dice.randint(1, 4)):
                data[dice.randrange(min(len(data), 120))] = dice.choice((0, 1, 2, 0x7F, 0xFF, dice.randrange(256)))
            answer(lambda part: read_image_header(media_bytes(part)), bytes(data))


def test_noise_is_no_image() -> None:
    @for_all(st.binary(max_size=300))
    def law(data: bytes) -> None:
        answer(lambda part: read_image_header(media_bytes(part)), data)

    assert read_image_header(media_bytes(b"just text")) is None
    assert read_image_header(media_bytes(b"")) is None


def test_a_cut_header_says_where() -> None:
    data = next(data for name, data in files() if name.startswith("PNG"))
    with pytest.raises(Truncated) as caught:
        read_image_header(media_bytes(data[:20]))
    assert caught.value.offset_bytes == 8
    assert "20 bytes" in str(caught.value)


def test_loops_end() -> None:
    junk = b"\xff\xd8\xff" + b"\xff\xe0\x00\x02" * 200_000
    with pytest.raises(Corrupt, match="JPEG"):
        read_image_header(media_bytes(junk))
    with pytest.raises(FormatError):
        read_image_header(media_bytes(b"GIF89a" + bytes([1, 0, 1, 0, 0, 0, 0]) + b"!\xfe" + b"\x01a" * 200_000))
    still = b"RIFF\xff\xff\xff\x7fWEBPVP8X" + b"\x0a\0\0\0" + bytes(10) + b"ABCD\0\0\0\0" * 200_000
    with pytest.raises(Corrupt, match="WEBP"):
        read_image_header(media_bytes(still))


def test_a_bomb_costs_nothing() -> None:
    png = bytearray(next(data for name, data in files() if name.startswith("PNG-RGB-")))
    png[16:24] = (200_000).to_bytes(4, "big") * 2
    assert read_image_header(media_bytes(bytes(png))) == ImageMetadata(200_000, 200_000, "PNG", "RGB")
    ppm = b"P6 200000 200000 255\n" + bytes(30)
    with pytest.raises(TooLarge):
        read_image_header(media_bytes(ppm))
    png[16:24] = bytes(8)
    with pytest.raises(Corrupt, match="without pixels"):
        read_image_header(media_bytes(bytes(png)))
