"""Metadata and clips of every container with every misleading trait, held against full decoding by PyAV."""

from __future__ import annotations

import io
import math
import struct
import wave
from collections.abc import Callable
from dataclasses import asdict
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest

from penstock.codec.av import AVDecoder
from penstock.codec.av_header import needs_packets, read_av_facts
from penstock.codec.media_bytes import media_bytes
from penstock.errors import Corrupt

from .film_matrix import NAMES, decode, film_of, put_uint32
from .films import film, tone, wav
from .pictures import encoded, picture

RELATIVE = {"counts": 0.05, "headers": 0.05, "exact": 1e-9}
COUNTED = {"mkv", "webm", "flv", "ts"}


def hold(data: bytes, name: str = "") -> None:
    """Hold the metadata of all depths against decoding: within 5 %, or None; equal if exact."""
    expected = decode(data).facts()
    for depth, relative in RELATIVE.items():
        facts = read_av_facts(media_bytes(data), depth=depth)  # type: ignore[arg-type]
        assert facts is not None
        values = {field: value for field, value in asdict(facts.metadata).items() if value is not None}
        assert values.keys() <= expected.keys(), (name, depth)
        if depth != "headers":
            assert values.keys() == expected.keys(), (name, depth)
        for field, value in values.items():
            assert math.isfinite(value), (name, depth, field)
            assert value > 0, (name, depth, field)
            slack = 0.05 if field == "video_fps" else relative
            assert value == pytest.approx(expected[field], rel=slack), (name, depth, field)


@pytest.mark.parametrize("name", NAMES)
def test_metadata_is_what_decoding_finds(name: str) -> None:
    data = film_of(name)
    hold(data, name)
    trait, _, container = name.partition(".")
    if container in COUNTED:
        assert needs_packets(media_bytes(data))
    elif trait in ("constant", "no-audio", "no-video"):
        assert not needs_packets(media_bytes(data))


@pytest.mark.parametrize("name", NAMES)
def test_clips_are_what_decoding_finds_there(name: str) -> None:
    decoder, decoded = AVDecoder(film_of(name)), decode(film_of(name))
    if decoded.video:
        count = len(decoded.video)
        ranges = [(4, 6), (count + 5, count + 9), (0, 0), (count - 1, count + 3), (9, 9)]
        clips = decoder.get_clips(ranges, video_unit="frames").video_clips
        for (first, last), clip in zip(ranges, clips, strict=True):
            expected = [pixels for _, _, pixels in decoded.video[first : last + 1]]
            assert len(clip) == len(expected)
            assert all((one == other).all() for one, other in zip(clip, expected, strict=True))
        starts = [start for start, _, _ in decoded.video]
        times = [(starts[5] + 1e-3, starts[7] + 1e-3), (1e4, 2e4), (starts[-1] + 1e-3, starts[-1] + 1e-3)]
        by_time = decoder.get_clips(times).video_clips
        for clip, (first, stop) in zip(by_time, [(5, 8), (count, count), (count - 1, count)], strict=True):
            expected = [pixels for _, _, pixels in decoded.video[first:stop]]
            assert len(clip) == len(expected)
            assert all((one == other).all() for one, other in zip(clip, expected, strict=True))
    if decoded.audio and "truncated" not in name:
        samples = np.concatenate([some for _, _, some in decoded.audio], axis=1)
        total = samples.shape[1]
        sample_ranges = [(total // 2, total // 2 + 900), (total + 5, total + 9), (0, 700), (total - 100, total + 50)]
        data = decoder.get_clips(None, sample_ranges, audio_unit="samples")
        assert len(data.audio_timestamps) == len(sample_ranges)
        for (start, stop), sound in zip(sample_ranges, data.audio_clips, strict=True):
            wanted = samples[:, start:stop]
            assert sound.shape == wanted.shape
            assert sound.dtype == wanted.dtype
            assert np.allclose(sound.astype(float), wanted.astype(float), atol=1e-3 * np.abs(samples).max())
        end = decoded.audio[-1][0] + decoded.audio[-1][1]
        seconds = [(end + 5, end + 6), (end - 1, end - 0.9)]
        none, some = decoder.get_clips(None, seconds).audio_clips
        assert none.shape == (samples.shape[0], 0)
        assert some.shape[1] == round(0.1 * decoded.rate)


# --- headers that lie --------------------------------------------------------------------------------------------


def riff(data: bytes, field: str, value: int) -> bytes:
    """A WAV with another number in a field."""
    place = {"data": 40, "block": 32, "bits": 34}[field]
    size = 4 if field == "data" else 2
    return data[:place] + value.to_bytes(size, "little") + data[place + size :]


def rf64() -> bytes:
    data = wav(4000)
    sizes = b"ds64" + struct.pack("<IQQQI", 28, len(data) + 28, 8000, 4000, 0)
    return b"RF64" + b"\xff" * 4 + b"WAVE" + sizes + riff(data, "data", 0xFFFF_FFFF)[12:]


def edited_mp4() -> bytes:
    """A film whose edit list leaves out its first second."""
    data = film("mp4", num_frames=40, video="libx264")
    place = data.index(b"elst")
    (movie_ticks,) = struct.unpack(">I", data[data.index(b"mvhd") + 16 :][:4])
    (media_ticks,) = struct.unpack(">I", data[data.index(b"mdhd") + 16 :][:4])
    duration, start = struct.unpack(">II", data[place + 12 : place + 20])
    edit = struct.pack(">II", duration - movie_ticks, start + media_ticks)
    return data[: place + 12] + edit + data[place + 20 :]


def with_cover(container: str, audio: str) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        sound: Any = out.add_stream(audio, rate=16_000, layout="mono")
        cover: Any = out.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 16, 16, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        pixels = av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), format="rgb24")
        out.mux(cover.encode(pixels))
        for start in range(0, 32_000, 1000):
            frame = av.AudioFrame.from_ndarray(
                np.ascontiguousarray(tone(32_000)[:, start : start + 1000]), "s16", "mono"
            )
            frame.sample_rate, frame.pts = 16_000, start
            out.mux(sound.encode(frame))
        out.mux(sound.encode())
    return file.getvalue()


def set_mkv_duration(value: float) -> bytes:
    data = film("matroska", num_frames=20, audio="flac", num_samples=32_000)
    place = data.index(b"\x44\x89\x88") + 3
    return data[:place] + struct.pack(">d", value) + data[place + 8 :]


def sound_of(container: str, codec: str, options: dict[str, str] | None = None) -> bytes:
    return film(container, video=None, audio=codec, num_samples=32_000, options=options)


def wrapped_ts() -> bytes:
    """A stream whose clock of 33 bits starts again after two seconds."""
    file = io.BytesIO()
    with av.open(file, "w", format="mpegts") as out:
        stream: Any = out.add_stream("mpeg2video", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(100):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), number, np.uint8), format="rgb24")
            frame.pts, frame.time_base = (2**33 - 180_000) // 3600 + number, Fraction(1, 25)
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return file.getvalue()


LIES: dict[str, Callable[[], bytes]] = {
    "wav: never finished": lambda: riff(wav(4000), "data", 0),
    "wav: larger than the file": lambda: riff(wav(4000), "data", 1 << 30),
    "wav: RF64": rf64,
    "wav: block of one byte": lambda: riff(wav(4000, 2), "block", 1),
    "mp4: media takes longer": lambda: put_uint32(film("mp4", num_frames=30), b"mdhd", 20, 900_000),
    "mp4: media takes no time": lambda: put_uint32(film("mp4", num_frames=30), b"mdhd", 20, 0),
    "mp4: a negative time": lambda: put_uint32(film("mp4", num_frames=30), b"mdhd", 20, 0xFFFF_FFF0),
    "mp4: an edit list": edited_mp4,
    "mov: PCM": lambda: film("mov", num_frames=20, audio="pcm_s16le", num_samples=32_000),
    "mkv: a negative duration": lambda: set_mkv_duration(-5.0),
    "mkv: no number": lambda: set_mkv_duration(math.nan),
    "mkv: without end": lambda: set_mkv_duration(math.inf),
    "mkv: a thousand times longer": lambda: set_mkv_duration(2_000_000.0),
    "avi: more frames": lambda: film("avi", num_frames=20).replace(struct.pack("<I", 20), struct.pack("<I", 2000)),
    "mp3: two recordings": lambda: 2 * sound_of("mp3", "libmp3lame"),
    "mp3: more frames": lambda: put_uint32(sound_of("mp3", "libmp3lame"), b"Info", 8, 500),
    "mp3: no bytes": lambda: put_uint32(sound_of("mp3", "libmp3lame"), b"Info", 4, 1),
    "mp3: cover art": lambda: with_cover("mp3", "libmp3lame"),
    "m4a: cover art": lambda: with_cover("mp4", "aac"),
    "flac: cut": lambda: sound_of("flac", "flac")[:-3000],
    "ts: the clock starts again": wrapped_ts,
    "aac: raw": lambda: sound_of("adts", "aac"),
    "wav: compressed": lambda: sound_of("wav", "adpcm_ima_wav"),
    "ogg: two recordings": lambda: 2 * sound_of("ogg", "flac"),
    "ogg: two long recordings": lambda: 2 * film("ogg", video=None, audio="flac", num_samples=400_000),
    "ogg: FLAC": lambda: sound_of("ogg", "flac"),
}


@pytest.mark.parametrize("name", sorted(LIES))
def test_no_lie_of_a_header_is_repeated(name: str) -> None:
    hold(LIES[name](), name)


def test_frames_that_last_for_years_have_no_duration() -> None:
    data = film("avi", num_frames=20)
    place = data.index(b"vids") + 20
    for depth in RELATIVE:
        facts = read_av_facts(
            media_bytes(data[:place] + struct.pack("<II", 1 << 30, 1) + data[place + 8 :]), depth=depth
        )  # type: ignore[arg-type]
        assert facts is not None
        assert (facts.metadata.video_duration, facts.metadata.video_fps) == (None, None)


def test_cover_art_is_not_video() -> None:
    for data in (with_cover("mp3", "libmp3lame"), with_cover("mp4", "aac")):
        decoder = AVDecoder(data)
        assert not decoder.has_video_stream()
        assert decoder.get_metadata().video_num_frames is None
        assert decoder.get_frames().audio_clips[0].shape[1] >= 32_000


def test_an_edit_list_does_not_shift_frames() -> None:
    data = edited_mp4()
    decoded = decode(data)
    clips = AVDecoder(data).get_clips([(0, 0), (5, 7)], video_unit="frames").video_clips
    assert (clips[0][0] == decoded.video[0][2]).all()
    assert (clips[1] == np.stack([pixels for _, _, pixels in decoded.video[5:8]])).all()


def test_a_damaged_packet_is_reported_and_not_counted() -> None:
    data = film_of("truncated.m4a")
    facts = read_av_facts(media_bytes(data), depth="exact")
    assert facts is not None
    assert "can't be decoded" in (facts.problem or "")
    assert facts.metadata.audio_num_samples == sum(some.shape[1] for _, _, some in decode(data).audio)
    counted = read_av_facts(media_bytes(data))
    assert counted is not None
    assert "truncated" in (counted.problem or "")


def test_one_file_is_read_once_at_most() -> None:
    # 2,000 frames that all lie at the same place of a small file.
    data = film("mp4", num_frames=2000, width=16, height=16)
    place = data.index(b"stsz")
    lying = data[: place + 8] + struct.pack(">II", 90_000, 2000) + data[place + 16 :]
    try:
        facts = read_av_facts(media_bytes(lying))
    except Corrupt:
        return
    assert facts is None or (facts.metadata.video_num_frames or 0) <= len(lying)


def test_headers_only_leaves_out_what_no_header_states() -> None:
    for name in ("constant.mkv", "constant.flv", "no-duration.mp3", "truncated.mp4"):
        facts = read_av_facts(media_bytes(film_of(name)), depth="headers")
        assert facts is not None
        values = asdict(facts.metadata)
        counts = ("video_duration", "video_num_frames", "video_fps", "audio_duration", "audio_num_samples")
        assert [values[field] for field in counts] == [None] * 5
        assert values["audio_sample_rate"]


def test_a_plain_wav_of_another_writer() -> None:
    data = wav(4000, 2)
    with wave.open(io.BytesIO(data)) as reader:
        expected = reader.getnframes() / reader.getframerate()
    facts = read_av_facts(media_bytes(data))
    assert facts is not None
    assert facts.metadata.audio_duration == expected
    assert read_av_facts(media_bytes(encoded(picture("RGB", 8, 8), "PNG") or b"")) is None
