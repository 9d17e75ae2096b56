"""Films and sounds of every container with every trait that misleads headers, and the facts that decoding finds."""

from __future__ import annotations

import functools
import io
import struct
import tempfile
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

CODECS = {
    "mp4": ("libx264", "aac", 16_000),
    "mkv": ("mpeg4", "flac", 16_000),
    "webm": ("libvpx", "libopus", 48_000),
    "avi": ("mpeg4", "pcm_s16le", 16_000),
    "ts": ("mpeg2video", "mp2", 16_000),
    "flv": ("flv1", "libmp3lame", 44_100),
    "wav": (None, "pcm_s16le", 16_000),
    "mp3": (None, "libmp3lame", 16_000),
    "flac": (None, "flac", 16_000),
    "ogg": (None, "libopus", 48_000),
    "m4a": (None, "aac", 16_000),
}
TRAITS = (
    *("constant", "variable", "late", "late-video", "no-duration", "b-frames", "truncated", "no-audio", "no-video"),
)
_FORMATS = {"mkv": "matroska", "ts": "mpegts", "m4a": "ipod"}
_NO_DURATION = {
    "mp4": {"movflags": "frag_keyframe+empty_moov"},
    "m4a": {"movflags": "frag_keyframe+empty_moov"},
    "mkv": {"live": "1"},
    "webm": {"live": "1"},
    "flv": {"flvflags": "no_duration_filesize"},
    "mp3": {"write_xing": "0"},
}
_B_FRAMES = {"libx264": {"x264-params": "bframes=2:b-adapt=0:keyint=8"}}
_FAST = {"libvpx": {"deadline": "realtime", "cpu-used": "8"}}
SECONDS = 3


def _is_possible(container: str, trait: str) -> bool:
    video = CODECS[container][0]
    if video is None:
        return trait not in ("b-frames", "late-video", "no-audio", "no-video")
    return trait != "b-frames" or video not in ("libvpx", "flv1")


NAMES = tuple(
    sorted(f"{trait}.{container}" for container in CODECS for trait in TRAITS if _is_possible(container, trait))
)


@functools.cache
def film_of(name: str) -> bytes:
    """Return the film `"trait.container"`, one of `NAMES`."""
    trait, _, container = name.partition(".")
    video, audio, rate = CODECS[container]
    video, audio = None if trait == "no-video" else video, None if trait == "no-audio" else audio
    options = _NO_DURATION.get(container, {}) if trait == "no-duration" else {}
    if trait == "truncated" and container in ("mp4", "m4a"):
        options = {"movflags": "faststart"}
    with tempfile.TemporaryDirectory() as folder:  # the index is moved to the front by reading the file again
        path = Path(folder) / "film"
        _write(path, container, trait, (video, audio, rate), options)
        data = path.read_bytes()
    if trait == "truncated":
        return data[: len(data) * 6 // 10]
    return _without_length(container, data) if trait == "no-duration" else data


def _write(path: Path, container: str, trait: str, codecs: tuple[Any, Any, int], options: dict[str, str]) -> None:
    video, audio, rate = codecs
    frames: list[tuple[Fraction, int, Any]] = []
    with av.open(str(path), "w", format=_FORMATS.get(container, container), options=options) as out:
        streams: list[Any] = [None, None]
        if video is not None:
            fps = 25 if container == "ts" else 10
            extra = _B_FRAMES.get(video, {"bf": "2", "g": "8"}) if trait == "b-frames" else _FAST.get(video, {})
            streams[0] = out.add_stream(video, rate=fps, options=extra)
            streams[0].width, streams[0].height, streams[0].pix_fmt = 64, 48, "yuv420p"
            streams[0].bit_rate = 4_000_000
            if trait == "variable" and container != "ts":
                streams[0].codec_context.time_base = Fraction(1, 1000)
            frames += _pictures(fps, 2 if trait.startswith("late") else 0, is_variable=trait == "variable")
        if audio is not None:
            streams[1] = out.add_stream(audio, rate=rate, layout="mono")
            frames += _sounds(rate, 2 if trait == "late" else 0, is_variable=trait == "variable")
        for _, number, frame in sorted(frames, key=lambda one: one[:2]):
            out.mux(streams[number].encode(frame))
        for stream in streams:
            if stream is not None:
                out.mux(stream.encode())


def _pictures(fps: int, late: int, *, is_variable: bool) -> list[tuple[Fraction, int, Any]]:
    """The second half three times as slow, with `is_variable`."""
    frames: list[tuple[Fraction, int, Any]] = []
    half = SECONDS * fps // 2
    for number in range(SECONDS * fps):
        slow = 2 * max(0, number - half) if is_variable else 0
        pixels = np.full((48, 64, 3), 6 * number % 256, np.uint8)
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
        frame.time_base = Fraction(1, 25) if fps == 25 else Fraction(1, 1000)
        moment = Fraction(number + slow, fps) + late
        frame.pts = int(moment / frame.time_base)
        frames.append((moment, 0, frame))
    return frames


def _sounds(rate: int, late: int, *, is_variable: bool) -> list[tuple[Fraction, int, Any]]:
    """Noise and then a tone, with `is_variable`; else a tone whose pitch rises, so that no two places are alike."""
    place = np.arange(SECONDS * rate)
    samples = (8000 * np.sin(place * (0.05 + place * 1e-6))).astype(np.int16)
    if is_variable:
        samples[: len(samples) // 2] = np.random.default_rng(1).integers(-9000, 9000, len(samples) // 2)
    frames: list[tuple[Fraction, int, Any]] = []
    for start in range(0, len(samples), 1152):
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples[None, start : start + 1152]), "s16", "mono")
        frame.sample_rate, frame.time_base, frame.pts = rate, Fraction(1, rate), start + late * rate
        frames.append((Fraction(frame.pts, rate), 1, frame))
    return frames


def _without_length(container: str, data: bytes) -> bytes:
    """The file as a writer leaves it that never knew how long it gets."""
    made = bytearray(data)
    if container == "wav":
        place = made.index(b"data")
        made[4:8] = made[place + 4 : place + 8] = b"\xff" * 4
    elif container == "flac":
        made[18:26] = (int.from_bytes(made[18:26], "big") >> 36 << 36).to_bytes(8, "big")
    elif container == "avi":
        place = made.index(b"avih")
        made[place + 24 : place + 28] = bytes(4)
        place = made.find(b"strh")
        while place >= 0:
            made[place + 40 : place + 44] = bytes(4)
            place = made.find(b"strh", place + 1)
    return bytes(made)


# --- the facts ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Decoded:
    """All frames of a file: `(pts in seconds, duration in seconds, array)`; arrays as clips have them."""

    video: list[tuple[float, float, np.ndarray[Any, Any]]]
    audio: list[tuple[float, float, np.ndarray[Any, Any]]]
    rate: int = 0

    def facts(self) -> dict[str, float]:
        """The fields of the metadata that depend on all frames."""
        facts: dict[str, float] = {}
        if self.video:
            seconds = _span(self.video)
            facts |= {"video_duration": seconds, "video_num_frames": len(self.video)}
            facts |= {"video_fps": len(self.video) / seconds} if seconds else {}
            facts |= {"video_height": self.video[0][2].shape[1], "video_width": self.video[0][2].shape[2]}
        if self.audio:
            num_samples = sum(samples.shape[1] for _, _, samples in self.audio)
            facts |= {"audio_duration": _span(self.audio), "audio_num_samples": num_samples}
            facts |= {"audio_channels": self.audio[0][2].shape[0], "audio_sample_rate": self.rate}
        return facts


def _span(frames: list[tuple[float, float, np.ndarray[Any, Any]]]) -> float:
    return max(start + length for start, length, _ in frames) - min(start for start, _, _ in frames)


def decode(data: bytes) -> Decoded:
    """Decode a file with PyAV alone, leaving out packets that can't be decoded."""
    decoded = Decoded([], [])
    with av.open(io.BytesIO(data)) as container:
        streams = [*container.streams.video[:1], *container.streams.audio[:1]]
        streams = [one for one in streams if not one.disposition & av.stream.Disposition.attached_pic]
        for packet in container.demux(streams):
            try:
                frames: list[Any] = packet.decode()
            except av.FFmpegError:
                continue
            for frame in frames:
                start, length = float(frame.pts * frame.time_base), float((frame.duration or 0) * frame.time_base)
                if isinstance(frame, av.VideoFrame):
                    pixels = frame.reformat(format="rgb24").to_ndarray().transpose(2, 0, 1)
                    decoded.video.append((start, length, pixels))
                else:
                    samples = frame.to_ndarray()
                    samples = samples if frame.format.is_planar else samples.reshape(frame.samples, -1).T
                    decoded.audio.append((start, length, samples))
                    decoded.rate = frame.sample_rate
    return decoded


def put_uint32(data: bytes, mark: bytes, offset: int, value: int) -> bytes:
    """Replace the 4 bytes `offset` bytes after the first `mark`."""
    place = data.index(mark) + offset
    return data[:place] + struct.pack(">I", value) + data[place + 4 :]
