"""Short films and sounds in many containers, made with PyAV."""

from __future__ import annotations

import functools
import io
import wave
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import av
import numpy as np

RATE = 16_000
FPS = 10


def tone(num_samples: int, channels: int = 1) -> np.ndarray[Any, np.dtype[np.int16]]:
    wave_form = (8000 * np.sin(np.arange(num_samples) * 0.1)).astype(np.int16)
    return np.stack([wave_form] * channels)


def wav(num_samples: int = 1600, channels: int = 1, rate: int = RATE) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes(tone(num_samples, channels).T.tobytes())
    return file.getvalue()


def picture(number: int, width: int, height: int) -> Any:
    """A frame whose brightness tells its number."""
    pixels = np.full((height, width, 3), 8 * number % 256, np.uint8)
    return av.VideoFrame.from_ndarray(pixels, format="rgb24")


def film(
    container: str = "mp4",
    *,
    num_frames: int = 6,
    width: int = 32,
    height: int = 24,
    video: str | None = "mpeg4",
    audio: str | None = None,
    num_samples: int = 9600,
    options: dict[str, str] | None = None,
) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format=container, options=options or {}) as out:
        if video is not None:
            stream: Any = out.add_stream(video, rate=FPS)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            stream.bit_rate = 4_000_000  # so that each frame keeps its brightness
        if audio is not None:
            sound: Any = out.add_stream(audio, rate=RATE, layout="mono")
        if video is not None:
            for number in range(num_frames):
                out.mux(stream.encode(picture(number, width, height)))
            out.mux(stream.encode())
        if audio is not None:
            for frame in _sound_frames(num_samples):
                out.mux(sound.encode(frame))
            out.mux(sound.encode())
    return file.getvalue()


def _sound_frames(num_samples: int) -> Iterator[Any]:
    samples = tone(num_samples)
    for start in range(0, num_samples, 1024):
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples[:, start : start + 1024]), "s16", "mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE, start, Fraction(1, RATE)
        yield frame


@functools.cache
def films() -> dict[str, bytes]:
    """File name → bytes: one of each container."""
    return {
        "v.mp4": film(),
        "va.mp4": film(audio="aac", num_samples=9600),
        "v.mkv": film("matroska"),
        "va.mkv": film("matroska", audio="flac", num_samples=4800),
        "v.webm": film("webm", video="libvpx", num_frames=12),
        "v.avi": film("avi", audio="pcm_s16le"),
        "v.mov": film("mov", num_frames=31),
        "v.flv": film("flv", video="flv1"),
        "a.wav": wav(),
        "stereo.wav": wav(100, 2, 8000),
        "a.flac": film("flac", video=None, audio="flac"),
        "a.mp3": film("mp3", video=None, audio="libmp3lame", num_samples=48_000),
        "plain.mp3": film("mp3", video=None, audio="libmp3lame", num_samples=48_000, options={"write_xing": "0"}),
        "a.m4a": film("ipod", video=None, audio="aac"),
        "a.aac": film("adts", video=None, audio="aac", num_samples=48_000),
        "a.ogg": film("ogg", video=None, audio="flac", num_samples=48_000),
    }
