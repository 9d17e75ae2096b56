"""Durations, counts and sizes of audio and video files from their headers; no picture or sound is decoded for them.

WAV and FLAC are read here, other containers by PyAV. Where a header has no number, or none that can be trusted (raw
AAC, MP3 without a Xing header, a film that was never finished), packets are counted: that reads the file, and decodes
nothing. With `exact=True` packets are counted and sound is decoded, as megatron-energon 7.4.1 does always.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from penstock._optional import require
from penstock.codec.media_bytes import MediaBytes
from penstock.errors import Corrupt, PenstockError
from penstock.types import AVMetadata

_WAV_PLAIN = {1, 3, 0xFFFE}
_ALONE = {"protocol_whitelist": "none"}  # a playlist or a description of a session names others: none is opened
_WAV_CHUNKS = 1000
_MP3_TAG_BYTES = 2048
_COUNTED = {"aac"}
_MICROSECOND = 1e-6
_AAC_SAMPLES = 1024


def read_av_header(media: MediaBytes, *, exact: bool = False, count: bool = False) -> AVMetadata | None:
    """What is known of an audio or video file; None where it holds neither.

    Args:
        media: the file.
        exact: count packets and decode all sound, instead of believing the header.
        count: count packets, and decode nothing.

    Raises:
        FormatError: it is cut or damaged, so that nothing can be said.
        MissingExtra: PyAV is not installed, and the file is no plain WAV or FLAC.
    """
    if not exact:
        head = media.read(0, 12)
        known = None
        if head.startswith(b"RIFF") and head[8:] == b"WAVE":
            known = _wav(media)
        elif head.startswith(b"fLaC"):
            known = _flac(media)
        if known is not None:
            return known
    return _by_pyav(media, exact, count)


@contextlib.contextmanager
def opened(media: MediaBytes) -> Generator[Any]:
    """The PyAV container of a file.

    Raises:
        Corrupt: PyAV can't read it, here or in the block.
    """
    av = require("av", extra="media")
    try:
        with media.file() as file, av.open(file, "r", metadata_errors="replace", options=_ALONE) as container:
            yield container
    except PenstockError:
        raise
    except (av.FFmpegError, EOFError, ValueError, OverflowError, MemoryError) as error:
        hint = "Copy the file again, or make it again"
        raise Corrupt("this can't be read as audio or video", found=str(error) or repr(error), hint=hint) from None


# --- plain sound -------------------------------------------------------------------------------------------------


def _sound(num_samples: int, channels: int, rate: int) -> AVMetadata | None:
    if channels == 0 or rate == 0:
        return None
    return AVMetadata(
        audio_duration=num_samples / rate,
        audio_channels=channels,
        audio_sample_rate=rate,
        audio_num_samples=num_samples,
    )


def _wav(media: MediaBytes) -> AVMetadata | None:
    """Of a WAV file without compression; None for others."""
    place = 12
    shape: tuple[int, int, int] | None = None
    for _ in range(_WAV_CHUNKS):
        header = media.read(place, 8)
        if len(header) < 8:
            return None
        name, length = struct.unpack("<4sI", header)
        if name == b"fmt ":
            kind, channels, rate, _, block_bytes = struct.unpack("<HHIIH", media.need(place + 8, 14))
            if kind not in _WAV_PLAIN or block_bytes == 0:
                return None
            shape = channels, rate, block_bytes
        elif name == b"data":
            if shape is None:
                return None
            # A header may promise more than there is: one that was never completed, or a file that was cut.
            length = min(length, media.size_bytes - place - 8)
            return _sound(length // shape[2], shape[0], shape[1])
        place += 8 + length + (length & 1)
    return None


def _flac(media: MediaBytes) -> AVMetadata | None:
    """Of a FLAC file that says how long it is; None for others."""
    info = media.read(4, 38)
    if len(info) < 38 or info[0] & 0x7F != 0:
        return None
    packed = int.from_bytes(info[14:22], "big")
    num_samples = packed & (1 << 36) - 1
    return _sound(num_samples, (packed >> 41 & 7) + 1, packed >> 44) if num_samples else None


# --- containers --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Packets:
    """What is counted of one stream, in its time base."""

    num_packets: int = 0
    end: int | None = None
    num_samples: int = 0
    sound_end: int | None = None


def _by_pyav(media: MediaBytes, exact: bool, count: bool) -> AVMetadata | None:
    with opened(media) as container:
        if container.format.name.endswith("_pipe"):
            return None  # a picture
        # A stream of no known codec has no context: its header is damaged, or too new.
        video = next((one for one in container.streams.video if one.codec_context is not None), None)
        audio = next((one for one in container.streams.audio if one.codec_context is not None), None)
        if video is None and audio is None:
            return None
        streams = [stream for stream in (video, audio) if stream is not None]
        counted: dict[int, _Packets] = {}
        if exact or count or any(_must_count(media, container, stream) for stream in streams):
            counted = _count(container, streams, decode=exact)
        fields: dict[str, Any] = {}
        if video is not None:
            fields |= _video_fields(container, video, counted.get(video.index))
        if audio is not None:
            fields |= _audio_fields(container, audio, counted.get(audio.index))
        return AVMetadata(**fields)


def _must_count(media: MediaBytes, container: Any, stream: Any) -> bool:
    if stream.frames > media.size_bytes:
        return True  # more pictures than bytes: the header lies
    names = set(container.format.name.split(","))
    if "mp3" in names:
        start = _behind_id3(media)
        tag = media.read(start, _MP3_TAG_BYTES)
        return not any(mark in tag for mark in (b"Xing", b"Info", b"VBRI"))
    return bool(names & _COUNTED) or _header_seconds(container, stream) is None


def _behind_id3(media: MediaBytes) -> int:
    head = media.read(0, 10)
    if len(head) < 10 or not head.startswith(b"ID3"):
        return 0
    return 10 + (head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9])


def _header_seconds(container: Any, stream: Any) -> float | None:
    """How long a stream is, by its header."""
    start = stream.start_time or 0
    if stream.duration is not None:
        # The original takes the start of a film off its length; of sound it takes what is left after decoding,
        # which is the length itself, but for what comes before the beginning.
        return (stream.duration - (start if stream.type == "video" else min(start, 0))) * float(stream.time_base)
    tag = _seconds_of_tag(stream.metadata.get("DURATION"))
    whole = tag if tag is not None else None if container.duration is None else container.duration * _MICROSECOND
    return None if whole is None else whole - start * float(stream.time_base)


def _seconds_of_tag(text: str | None) -> float | None:
    """Seconds of `"00:00:00.600000000"`, which Matroska files have for each stream."""
    try:
        hours, minutes, seconds = (text or "").split(":")
        return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    except ValueError:
        return None


def _count(container: Any, streams: list[Any], *, decode: bool) -> dict[int, _Packets]:
    """Walk through all packets; with `decode`, through all sound too."""
    counted = {stream.index: _Packets() for stream in streams}
    for packet in container.demux(streams):
        one = counted[packet.stream.index]
        if packet.pts is not None:
            one.num_packets += 1
            one.end = packet.pts + (packet.duration or 0)
        if decode and packet.stream.type == "audio":
            for frame in packet.decode():
                one.num_samples += frame.samples
                if frame.pts is not None and frame.duration is not None:
                    one.sound_end = frame.pts + frame.duration
    return counted


def _seconds(container: Any, stream: Any, counted: _Packets | None) -> float | None:
    if counted is None or stream.duration is not None or counted.end is None:
        return _header_seconds(container, stream)
    return (counted.end - (stream.start_time or 0)) * float(stream.time_base)


def _video_fields(container: Any, stream: Any, counted: _Packets | None) -> dict[str, Any]:
    seconds = _seconds(container, stream, counted)
    rate = stream.average_rate
    num_frames = stream.frames if counted is None else counted.num_packets
    if not num_frames and counted is None and seconds is not None and rate:
        num_frames = round(seconds * rate)
    context = stream.codec_context
    return {
        "video_duration": seconds,
        "video_num_frames": num_frames,
        "video_fps": float(rate) if rate else None,
        "video_width": context.width or None,
        "video_height": context.height or None,
    }


def _audio_fields(container: Any, stream: Any, counted: _Packets | None) -> dict[str, Any]:
    seconds = _seconds(container, stream, counted)
    rate = stream.codec_context.sample_rate or 0
    num_samples = None if seconds is None else round(seconds * rate)
    if num_samples and stream.codec_context.name == "aac":
        num_samples = -(-num_samples // _AAC_SAMPLES) * _AAC_SAMPLES  # decoded in whole frames
    if counted is not None and counted.sound_end is not None:
        num_samples = counted.num_samples
        seconds = (counted.sound_end - (stream.start_time or 0)) * float(stream.time_base)
    return {
        "audio_duration": seconds,
        "audio_channels": stream.codec_context.channels or None,
        "audio_sample_rate": rate or None,
        "audio_num_samples": num_samples,
    }
