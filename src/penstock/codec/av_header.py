"""Durations, counts and sizes of audio and video files.

| depth | reads |
|---|---|
| `headers` | headers only; durations and counts without a reliable header are None |
| `counts` | the same, and all packets once if there is no reliable header, without decoding |
| `exact` | everything: video and audio are decoded and counted |

A header is trusted only if the rest of the file agrees with it: MP4, MOV and AVI if their index lists as many frames
as the header, all of them inside the file, over the same time; MP3 if its Xing or VBRI header states the size of the
file; FLAC and Ogg if the last frame or page agrees; WAV by the bytes that exist. Matroska, WebM, FLV, MPEG-TS and raw
streams have no header with a count. Cover art isn't video.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from penstock._optional import require
from penstock.codec.media_bytes import MediaBytes
from penstock.errors import Corrupt, PenstockError
from penstock.types import AVMetadata

MediaDepth = Literal["headers", "counts", "exact"]
"""How much of a file is read for its metadata; see the module."""

MOST_PIXELS = 178_956_970
"""Limit on the pixels of one picture, the same as Pillow's."""

_ALONE = {"protocol_whitelist": "none"}  # playlists and session descriptions name other files: none is opened
_TOLERANCE = 0.05
_PACKET_BYTES_RATIO = 4
_AAC_SAMPLES = 1024
_MOST_FRAME_SECONDS = 86_400
_CUT = "the file ends before its last frame, so it may be truncated"


@dataclass(frozen=True, slots=True)
class AVFacts:
    """Metadata of a file, and its problem, if any."""

    metadata: AVMetadata
    problem: str | None = None


def read_av_header(media: MediaBytes, *, depth: MediaDepth = "counts") -> AVMetadata | None:
    """Return the metadata of an audio or video file; None if it has neither stream. See `read_av_facts`."""
    facts = read_av_facts(media, depth=depth)
    return None if facts is None else facts.metadata


def read_av_facts(media: MediaBytes, *, depth: MediaDepth = "counts") -> AVFacts | None:
    """Return the metadata of an audio or video file and its problem; None if it has neither stream.

    Raises:
        FormatError: the file is too damaged.
        MissingExtra: PyAV is not installed, and the file is not a plain WAV or FLAC.
    """
    plain = _plain_audio(media) if depth != "exact" else None
    if plain is not None:
        return AVFacts(plain)
    with opened(media) as container:
        streams = _main_streams(container)
        if not streams:
            return None
        if depth == "exact":
            return _facts(streams, _decode(container, streams))
        lengths = {stream.index: _stated_length(media, container, stream) for stream in streams}
        if depth == "counts" and None in lengths.values():
            return _facts(streams, _walk(media, container, streams))
        return _facts(streams, lengths)


def needs_packets(media: MediaBytes) -> bool:
    """Return whether `read_av_facts` at depth `counts` reads the whole file."""
    try:
        if _plain_audio(media) is not None:
            return False
        with opened(media) as container:
            return any(_stated_length(media, container, stream) is None for stream in _main_streams(container))
    except PenstockError:
        return False


@contextlib.contextmanager
def opened(media: MediaBytes) -> Generator[Any]:
    """Open a file as a PyAV container.

    Raises:
        Corrupt: PyAV can't read the file, here or in the `with` block.
    """
    av = require("av", extra="media")
    try:
        with media.file() as file, av.open(file, "r", metadata_errors="replace", options=_ALONE) as container:
            yield container
    except PenstockError:
        raise
    except (av.FFmpegError, EOFError, ValueError, OverflowError, ZeroDivisionError, MemoryError) as error:
        hint = "Copy or recreate the file"
        raise Corrupt("the file can't be read as audio or video", found=str(error) or repr(error), hint=hint) from None


def read_start_time(media: MediaBytes, kind: Literal["video", "audio"]) -> float:
    """Return the presentation time of the first frame of video or audio, in seconds; 0 if unknown."""
    with opened(media) as container:
        stream = video_stream(container) if kind == "video" else audio_stream(container)
        return 0.0 if stream is None else (stream.start_time or 0) * float(stream.time_base)


def video_stream(container: Any) -> Any | None:
    """Return the first video stream with a known codec that isn't cover art."""
    cover = require("av", extra="media").stream.Disposition.attached_pic
    return next((one for one in _known(container.streams.video) if not one.disposition & cover), None)


def audio_stream(container: Any) -> Any | None:
    """Return the first audio stream with a known codec."""
    return next(iter(_known(container.streams.audio)), None)


def _known(streams: Iterable[Any]) -> Iterable[Any]:
    """Return the decodable streams: others have a damaged header or an unsupported codec."""
    return (one for one in streams if one.codec_context is not None and one.time_base)


def _main_streams(container: Any) -> list[Any]:
    if container.format.name.endswith("_pipe"):
        return []  # a picture
    return [one for one in (video_stream(container), audio_stream(container)) if one is not None]


@dataclass(slots=True)
class _Length:
    seconds: float | None
    count: int | None
    size: tuple[int, int] | None = None
    problem: str | None = None


def _facts(streams: list[Any], lengths: Mapping[int, _Length | None]) -> AVFacts:
    fields: dict[str, Any] = {}
    problem = None
    for stream in streams:
        length = lengths[stream.index] or _Length(None, None)
        fields |= _video_fields(stream, length) if stream.type == "video" else _audio_fields(stream, length)
        problem = problem or length.problem
    return AVFacts(AVMetadata(**fields), problem)


def _video_fields(stream: Any, length: _Length) -> dict[str, Any]:
    width, height = length.size or (stream.codec_context.width, stream.codec_context.height)
    if length.seconds is not None and length.seconds > _MOST_FRAME_SECONDS * (length.count or 0):
        length.seconds = None  # the time base is damaged
    return {
        "video_duration": length.seconds,
        "video_num_frames": length.count,
        "video_fps": _frame_rate(stream, length),
        "video_width": width or None,
        "video_height": height or None,
    }


def _frame_rate(stream: Any, length: _Length) -> float | None:
    """Return the nominal frame rate if the frames agree with it, else the average."""
    if not length.seconds or not length.count:
        return None
    nominal = float(stream.average_rate or 0)
    is_nominal = abs(nominal * length.seconds - length.count) <= _TOLERANCE * length.count
    return nominal if is_nominal else length.count / length.seconds


def _audio_fields(stream: Any, length: _Length) -> dict[str, Any]:
    return {
        "audio_duration": length.seconds,
        "audio_channels": stream.codec_context.channels or None,
        "audio_sample_rate": stream.codec_context.sample_rate or None,
        "audio_num_samples": length.count,
    }


def _audio_length(stream: Any, seconds: float) -> _Length | None:
    """Return the length of an audio stream of this many seconds; None if impossible."""
    rate = stream.codec_context.sample_rate or 0
    if seconds <= 0 or rate <= 0:
        return None
    return _Length(seconds, _whole_frames(stream, round(seconds * rate)))


def _whole_frames(stream: Any, num_samples: int) -> int:
    """Return the number of samples that a decoder returns: AAC is decoded in whole frames."""
    if stream.codec_context.name != "aac":
        return num_samples
    frame_samples = stream.codec_context.frame_size or _AAC_SAMPLES
    return -(-num_samples // frame_samples) * frame_samples


def _agrees(value: float, other: float, slack: float = 0.0) -> bool:
    return abs(value - other) <= _TOLERANCE * abs(other) + slack


# --- WAV and FLAC, without PyAV ---

_WAV_KINDS = {1, 3}
_WAV_EXTENSIBLE = 0xFFFE
_WAV_CHUNKS = 1000
_UNKNOWN_SIZE = 0xFFFF_FFFF
_FLAC_TAIL_BYTES = 1 << 16


def _plain_audio(media: MediaBytes) -> AVMetadata | None:
    head = media.read(0, 12)
    if head[:4] in (b"RIFF", b"RF64", b"BW64") and head[8:] == b"WAVE":
        return _wav(media)
    return _flac(media) if head.startswith(b"fLaC") else None


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
    """Return metadata of an uncompressed WAV file; None for other files."""
    place = 12
    shape: tuple[int, int, int] | None = None
    long_size = None
    for _ in range(_WAV_CHUNKS):
        header = media.read(place, 8)
        if len(header) < 8:
            return None
        name, length = struct.unpack("<4sI", header)
        if name == b"fmt ":
            shape = _wav_shape(media.need(place + 8, 16), media.read(place + 8, length) if length < 100 else b"")
            if shape is None:
                return None
        elif name == b"ds64":
            (long_size,) = struct.unpack("<Q", media.need(place + 16, 8))
        elif name == b"data":
            if shape is None:
                return None
            channels, rate, block_bytes = shape
            rest = media.size_bytes - place - 8
            if length == _UNKNOWN_SIZE and long_size is not None:
                length = long_size
            # The size is 0 or too large if the writer was interrupted or the file truncated: the data extends to the
            # end.
            return _sound(min(length or rest, rest) // block_bytes, channels, rate)
        place += 8 + length + (length & 1)
    return None


def _wav_shape(plain: bytes, whole: bytes) -> tuple[int, int, int] | None:
    """Return channels, rate and bytes per sample of all channels; None if the data isn't uncompressed."""
    kind, channels, rate, _, block_bytes, bits = struct.unpack("<HHIIHH", plain)
    if kind == _WAV_EXTENSIBLE and len(whole) >= 26:
        (kind,) = struct.unpack("<H", whole[24:26])
    is_plain = kind in _WAV_KINDS and 0 < block_bytes == channels * -(-bits // 8)
    return (channels, rate, block_bytes) if is_plain else None


def _flac(media: MediaBytes) -> AVMetadata | None:
    """Return metadata of a FLAC file with a correct length in its header; None for other files."""
    info = media.read(4, 38)
    if len(info) < 38 or info[0] & 0x7F != 0:
        return None
    packed = int.from_bytes(info[14:22], "big")
    num_samples = packed & (1 << 36) - 1
    if not num_samples or _flac_end(media, int.from_bytes(info[6:8], "big")) != num_samples:
        return None
    return _sound(num_samples, (packed >> 41 & 7) + 1, packed >> 44)


def _flac_end(media: MediaBytes, block_samples: int) -> int | None:
    """Return the end of the last frame whose header is in the file, in samples; None without a frame."""
    start_bytes = max(0, media.size_bytes - _FLAC_TAIL_BYTES)
    tail = media.read(start_bytes, media.size_bytes - start_bytes)
    place = tail.rfind(b"\xff")
    while place >= 0:
        end = _flac_frame_end(tail[place : place + 16], block_samples)
        if end is not None:
            return end
        place = tail.rfind(b"\xff", 0, place)
    return None


def _flac_frame_end(head: bytes, block_samples: int) -> int | None:
    """Return the end of the frame that starts with `head`, in samples; None if no frame does."""
    if len(head) < 6 or head[1] & 0xFE != 0xF8 or head[3] & 1:
        return None
    size_code, rate_code = head[2] >> 4, head[2] & 15
    number_bytes = 8 - (head[4] ^ 0xFF).bit_length()  # leading ones, as in UTF-8
    number = head[4] & 0x7F if number_bytes == 0 else head[4] & (0x7F >> number_bytes)
    place = 5
    for byte in head[5 : 5 + max(0, number_bytes - 1)]:
        number = number << 6 | byte & 0x3F
        place += 1
    if size_code == 0 or rate_code == 15 or number_bytes in (1, 8):
        return None
    if size_code in (6, 7):
        size = int.from_bytes(head[place : place + size_code - 5], "big") + 1
        place += size_code - 5
    else:
        size = 192 if size_code == 1 else 576 << size_code - 2 if size_code < 6 else 256 << size_code - 8
    place += {12: 1, 13: 2, 14: 2}.get(rate_code, 0)
    if place >= len(head) or _crc8(head[:place]) != head[place]:
        return None
    return (number if head[1] & 1 else number * block_samples) + size


def _crc8(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc << 1 ^ 0x07 if crc & 0x80 else crc << 1) & 0xFF
    return crc


# --- lengths in headers ---


def _stated_length(media: MediaBytes, container: Any, stream: Any) -> _Length | None:
    """Return the length in the headers if the rest of the file agrees; else None."""
    if stream.duration is None or stream.duration <= 0:
        # AVI stores the length of uncompressed sound only as a number of samples.
        return _pcm_length(media, stream) if container.format.name == "avi" else None
    names = container.format.name.split(",")
    seconds = stream.duration * float(stream.time_base)
    if "mov" in names:
        return _indexed_length(media, stream, seconds)
    if "avi" in names:
        return _indexed_length(media, stream, seconds) if stream.type == "video" else _pcm_length(media, stream)
    if "mp3" in names and _is_tagged_mp3(media):
        return _audio_length(stream, seconds)
    if "ogg" in names and len(container.streams) == 1 and _is_one_ogg(media):
        # The last page stores the time since zero, not since the first sample.
        return _audio_length(stream, seconds - (stream.start_time or 0) * float(stream.time_base))
    return None


def _indexed_length(media: MediaBytes, stream: Any, seconds: float) -> _Length | None:
    """Return the length of a stream whose index lists all frames."""
    entries = stream.index_entries
    if len(entries) != stream.frames or len(entries) < 2:
        return None
    times: list[int] = []
    for entry in entries:
        if entry.pos < 0 or entry.pos + entry.size > media.size_bytes:
            return None
        if not entry.is_discard:
            times.append(entry.timestamp)
    if len(times) < 2:
        return None
    tick = float(stream.time_base)
    mean = (times[-1] - times[0]) / (len(times) - 1) * tick
    if mean <= 0 or not _agrees(seconds, mean * len(times), mean):
        return None
    if stream.type == "audio":
        length = _audio_length(stream, seconds)
        frame_samples = stream.codec_context.frame_size or 0
        is_likely = length is not None and _agrees(length.count or 0, len(times) * frame_samples, 2 * frame_samples)
        return length if is_likely else None
    # The index has decoding times. If the presentation order differs, the times of the last frames are unknown, which
    # matters in short videos with a variable rate.
    last = max(b - a for a, b in zip(times[-_REORDERED - 1 :], times[-_REORDERED:], strict=False)) * tick
    if stream.codec_context.has_b_frames and abs(last - mean) * _REORDERED > _TOLERANCE * seconds:
        return None
    return _Length(seconds, len(times))


_REORDERED = 4
"""Frames that a decoder holds back for reordering, at most, in most videos."""


def _pcm_length(media: MediaBytes, stream: Any) -> _Length | None:
    """Return the length of uncompressed sound in an AVI, from the sizes of its chunks."""
    context = stream.codec_context
    sample_bytes = 0 if not context.name.startswith("pcm_") else context.format.bytes * context.channels
    entries = stream.index_entries
    size_bytes = sum(entry.size for entry in entries if entry.pos + entry.size <= media.size_bytes)
    if not sample_bytes or not stream.frames or size_bytes != stream.frames * sample_bytes:
        return None
    return _audio_length(stream, stream.frames / context.sample_rate) if context.sample_rate else None


_MP3_TAG_BYTES = 256
_ID3V1_BYTES = 128
_KBITS = {
    True: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
    False: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
}
_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}


def _is_tagged_mp3(media: MediaBytes) -> bool:
    """Return whether a Xing, Info or VBRI header has the number of frames and the size of this file."""
    start = _after_id3(media)
    head = media.read(start, _MP3_TAG_BYTES)
    frame_bytes = _mp3_frame_bytes(head)
    if len(head) < _MP3_TAG_BYTES or not frame_bytes:
        return False
    is_mono, is_first_version = head[3] >> 6 == 3, head[1] >> 3 & 3 == 3
    side_bytes = (17 if is_mono else 32) if is_first_version else (9 if is_mono else 17)
    xing, vbri = head[4 + side_bytes :], head[36:]
    if xing[:4] in (b"Xing", b"Info"):
        flags, num_frames, size_bytes = struct.unpack(">III", xing[4:16])
        if flags & 3 != 3:
            return False
    elif vbri[:4] == b"VBRI":
        size_bytes, num_frames = struct.unpack(">II", vbri[10:18])
    else:
        return False
    if not num_frames or not _agrees(media.size_bytes - start, size_bytes, _ID3V1_BYTES):
        return False
    if xing[:4] == b"Info":  # constant bit rate: all frames have the size of the next one
        next_bytes = _mp3_frame_bytes(media.read(start + frame_bytes, 4))
        return _agrees(num_frames * next_bytes, size_bytes, frame_bytes + next_bytes)
    return True


def _mp3_frame_bytes(head: bytes) -> int:
    """Return the size of the layer III frame that starts with `head`; 0 if none does."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:
        return 0
    version, rate_code, kbits = head[1] >> 3 & 3, head[2] >> 2 & 3, _KBITS[head[1] >> 3 & 3 == 3][head[2] >> 4]
    if version == 1 or rate_code == 3:
        return 0
    return (144_000 if version == 3 else 72_000) * kbits // _RATES[version][rate_code] + (head[2] >> 1 & 1)


def _after_id3(media: MediaBytes) -> int:
    head = media.read(0, 10)
    if len(head) < 10 or not head.startswith(b"ID3"):
        return 0
    return 10 + (head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9])


_OGG_PAGE_BYTES = 1 << 16
_OGG_SMALL_BYTES = 1 << 18
_OGG_DENSITY = 0.2


@dataclass(frozen=True, slots=True)
class _OggPage:
    start_bytes: int
    serial: bytes
    number: int
    is_first: bool


def _is_one_ogg(media: MediaBytes) -> bool:
    """Return whether the file seems to be one recording: in chained files, times start over.

    All pages of a small file are checked. Of a large file, the last page and one in the middle are checked: their
    numbers
    must fit an even distribution of the pages.
    """
    size_bytes = media.size_bytes
    start = 0 if size_bytes <= _OGG_SMALL_BYTES else size_bytes - _OGG_PAGE_BYTES
    pages = _ogg_pages(media, start, size_bytes - start)
    if not pages or pages[-1].serial != media.read(14, 4):
        return False
    if start == 0:
        return sum(page.is_first for page in pages) == 1
    middle, last = _ogg_pages(media, size_bytes // 2, _OGG_PAGE_BYTES)[:1], pages[-1]
    if not middle or middle[0].serial != last.serial or not 0 < middle[0].number < last.number:
        return False
    share = middle[0].number / last.number
    return abs(share - middle[0].start_bytes / last.start_bytes) <= _OGG_DENSITY * share


def _ogg_pages(media: MediaBytes, start_bytes: int, length_bytes: int) -> list[_OggPage]:
    """Return the pages with headers in a range of the file."""
    data = media.read(start_bytes, length_bytes)
    pages: list[_OggPage] = []
    place = data.find(b"OggS")
    while 0 <= place <= len(data) - 27:
        number = int.from_bytes(data[place + 18 : place + 22], "little")
        pages.append(_OggPage(start_bytes + place, data[place + 14 : place + 18], number, bool(data[place + 5] & 2)))
        place = data.find(b"OggS", place + 27)
    return pages


# --- lengths by counting ---


@dataclass(slots=True)
class _Span:
    """Counted length of one stream: times in its time base.

    Attributes:
        count: video packets or frames, or audio samples.
        num_ticks: sum of the durations of all packets.
        num_cut: packets that are incomplete or can't be decoded.
    """

    count: int = 0
    num_ticks: int = 0
    first: int | None = None
    end: int | None = None
    size: tuple[int, int] | None = None
    num_cut: int = 0

    def add(self, pts: int | None, duration: int | None) -> None:
        if pts is None:
            return
        end = pts + max(0, duration or 0)
        self.first = pts if self.first is None else min(self.first, pts)
        self.end = end if self.end is None else max(self.end, end)

    def seconds(self, stream: Any, start: int | None) -> float | None:
        """Return the seconds from `start`, or the first frame if later, to the end; None if not positive."""
        if self.first is None or self.end is None:
            return None
        ticks = self.end - (self.first if start is None else max(self.first, start))
        return ticks * float(stream.time_base) if ticks > 0 else None


def _walk(media: MediaBytes, container: Any, streams: list[Any]) -> dict[int, _Length]:
    """Count packets without decoding."""
    spans = {stream.index: _Span() for stream in streams}
    left_bytes = _PACKET_BYTES_RATIO * media.size_bytes
    last = None
    for packet in container.demux(streams):
        span = spans[packet.stream.index]
        left_bytes -= packet.size
        if left_bytes < 0:
            raise Corrupt("the packets of this file are larger than the file", found=f"{media.size_bytes} bytes")
        if packet.is_corrupt:
            span.num_cut += 1
        elif packet.size and not packet.is_discard:
            span.count += 1
            span.num_ticks += packet.duration or 0
            span.add(packet.pts, packet.duration)
            if packet.stream.codec_context.name == "flac":
                last = packet
    if last is not None and last.pts is not None and not _is_whole(last):
        span = spans[last.stream.index]
        span.num_cut += 1
        span.num_ticks -= last.duration or 0
        span.end = last.pts
    return {stream.index: _walked_length(stream, spans[stream.index]) for stream in streams}


def _is_whole(packet: Any) -> bool:
    """Return whether a FLAC packet can be decoded: its parser doesn't report a truncated last packet."""
    try:
        return bool(packet.decode())
    except require("av", extra="media").FFmpegError:
        return False


def _walked_length(stream: Any, span: _Span) -> _Length:
    seconds = span.seconds(stream, stream.start_time)
    problem = _CUT if span.num_cut else None
    if stream.type == "video":
        return _Length(seconds, span.count, None, problem)
    length = None if seconds is None else _audio_length(stream, seconds)
    if seconds is None or length is None:
        return _Length(None, None, None, problem)
    spoken = span.num_ticks * float(stream.time_base)
    if not _agrees(seconds, spoken):  # there are gaps, or packets that last longer than their samples
        length.count = _whole_frames(stream, round(spoken * stream.codec_context.sample_rate))
        frame_samples = stream.codec_context.frame_size
        if frame_samples and stream.codec_context.name == "aac":
            length.count = min(length.count, span.count * frame_samples)
    length.problem = problem
    return length


def _decode(container: Any, streams: list[Any]) -> dict[int, _Length]:
    """Decode everything to count it."""
    av = require("av", extra="media")
    spans = {stream.index: _Span() for stream in streams}
    for stream in streams:
        if stream.type == "video":
            stream.codec_context.options = {"max_pixels": str(MOST_PIXELS)}
    for packet in container.demux(streams):
        span = spans[packet.stream.index]
        try:
            frames = packet.decode()
        except av.FFmpegError:
            span.num_cut += 1
            continue
        for frame in frames:
            is_video = packet.stream.type == "video"
            span.count += 1 if is_video else frame.samples
            span.add(frame.pts, frame.duration)
            if is_video and span.size is None:
                span.size = frame.width, frame.height
    if any(span.num_cut for span in spans.values()) and not any(span.count for span in spans.values()):
        raise Corrupt("no packet of the file can be decoded", hint="Copy or recreate the file")
    return {stream.index: _decoded_length(stream, spans[stream.index]) for stream in streams}


def _decoded_length(stream: Any, span: _Span) -> _Length:
    seconds = span.seconds(stream, None)
    rate = 0 if stream.type == "video" else stream.codec_context.sample_rate or 0
    if seconds is None and rate and span.count:
        seconds = span.count / rate
    problem = f"{span.num_cut} {stream.type} packets can't be decoded" if span.num_cut else None
    return _Length(seconds, span.count, span.size, problem)
