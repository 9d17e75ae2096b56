"""Headers of audio and video: durations and counts, by the header and by counting."""

from __future__ import annotations

import json
import random
import struct
import tarfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import av
import pytest
from hypothesis import strategies as st

from penstock.codec.av_header import read_av_header
from penstock.codec.media_bytes import MediaBytes, media_bytes
from penstock.errors import Corrupt, FormatError
from penstock.testing.strategies import for_all
from penstock.types import AVMetadata

from .films import FPS, RATE, film, films, wav
from .pictures import encoded, picture

GOLDEN = Path(__file__).parent.parent / "golden" / "energon"


def known(metadata: AVMetadata | None) -> dict[str, Any]:
    assert metadata is not None
    values = {field.name: getattr(metadata, field.name) for field in fields(metadata)}
    return {name: value for name, value in values.items() if value is not None}


def golden_files() -> dict[str, bytes]:
    found = {"v.mp4": (GOLDEN / "filesystem" / "v.mp4").read_bytes()}
    with tarfile.open(GOLDEN / "media" / "media_1.tar") as tar:
        found |= {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}  # type: ignore[union-attr]
    return found


@pytest.mark.parametrize("exact", [False, True])
def test_as_the_original(exact: bool) -> None:
    rows = json.loads((GOLDEN / "media_rows.json").read_text(encoding="utf-8"))
    files = golden_files()
    expected = {name: json.loads(text) for name, kind, text in rows["by_header"] + rows["filesystem"] if kind == "av"}
    expected = {name: values for name, values in expected.items() if name in files}
    assert len(expected) == 6
    for name, values in expected.items():
        assert known(read_av_header(media_bytes(files[name]), depth="exact" if exact else "counts")) == values, name


@pytest.mark.parametrize("name", sorted(films()))
def test_header_and_count_agree(name: str) -> None:
    exact = known(read_av_header(media_bytes(films()[name]), depth="exact"))
    header = known(read_av_header(media_bytes(films()[name])))
    assert header.keys() == exact.keys()
    for field, value in exact.items():
        # The last packet of an FLV has no length of its own: only the header knows it.
        slack = 1 / FPS if name == "v.flv" and field == "video_duration" else 0
        assert header[field] == pytest.approx(value, rel=0.05, abs=slack + 1e-9), field


def test_what_is_counted_is_there() -> None:
    exact = known(read_av_header(media_bytes(films()["va.mkv"]), depth="exact"))
    assert exact == {
        "video_duration": 0.6,
        "video_num_frames": 6,
        "video_fps": float(FPS),
        "video_width": 32,
        "video_height": 24,
        "audio_duration": 0.3,
        "audio_channels": 1,
        "audio_sample_rate": RATE,
        "audio_num_samples": 4800,
    }
    assert known(read_av_header(media_bytes(films()["v.mov"])))["video_num_frames"] == 31
    assert known(read_av_header(media_bytes(films()["plain.mp3"])))["audio_duration"] == pytest.approx(3.0, rel=0.05)


def test_plain_sound_does_without_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("PyAV was asked")

    files = {name: films()[name] for name in ("a.wav", "stereo.wav", "a.flac")}
    by_pyav = {name: read_av_header(media_bytes(data), depth="exact") for name, data in files.items()}
    monkeypatch.setattr(av, "open", refuse)
    for name, data in files.items():
        assert read_av_header(media_bytes(data)) == by_pyav[name]


def test_a_long_film_is_not_read_for_its_length() -> None:
    data = film("mp4", num_frames=200, width=320, height=240)
    data = data + struct.pack(">I4s", 50_000_000, b"free") + bytes(8)
    read_bytes = 0

    def more(start: int, length: int) -> bytes:
        nonlocal read_bytes
        read_bytes += length
        return data[start : start + length].ljust(length, b"\0")

    metadata = known(read_av_header(MediaBytes(len(data) + 50_000_000, data[:4096], more)))
    assert metadata["video_num_frames"] == 200
    assert read_bytes < 2_000_000


def test_a_wav_header_that_lies() -> None:
    data = bytearray(wav(1600))
    for claimed in (0xFFFF_FFFF, 1 << 30):
        data[40:44] = struct.pack("<I", claimed)
        assert known(read_av_header(media_bytes(bytes(data))))["audio_num_samples"] == 1600


def test_a_film_header_that_lies() -> None:
    data = film("mp4")
    place = data.index(b"stsz")
    lying = data[: place + 12] + struct.pack(">I", 0x7FFF_FFFF) + data[place + 16 :]
    try:
        metadata = read_av_header(media_bytes(lying))
    except FormatError:
        return
    assert metadata is None or (metadata.video_num_frames or 0) <= len(data)


def test_pictures_are_no_films() -> None:
    assert read_av_header(media_bytes(encoded(picture("RGB", 8, 8), "PNG") or b"")) is None


@pytest.mark.parametrize("data", [b"", b"just text", b"RIFF\x10\0\0\0WAVEfmt ", b"\0\0\0\x18ftypmp42" + bytes(100)])
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(Corrupt, match="audio or video"):
        read_av_header(media_bytes(data))


def test_damage_is_refused_or_read() -> None:
    some = [data for name, data in films().items() if name in ("v.mp4", "va.mkv", "a.wav", "a.flac", "a.mp3", "v.avi")]

    @for_all(st.integers(0, 1 << 32), examples=20)
    def law(seed: int) -> None:
        dice = random.Random(seed)
        data = bytearray(dice.choice(some))
        for _ in range(dice.randint(1, 6)):
            data[dice.randrange(min(len(data), 600))] = dice.randrange(256)
        del data[dice.randrange(len(data) // 2, len(data) + 1) :]
        for exact in (False, True):
            try:
                read_av_header(media_bytes(bytes(data)), depth="exact" if exact else "counts")
            except FormatError:
                continue
