"""Decoders of audio and video files for frames and clips on demand.

Frame i is the i-th in the order of presentation, counted from 0, and sample i the i-th that decoding returns. Seconds
are those of the file, in which the first frame may be late. The frame at a time is the one on screen then, so a range
of seconds `(start, end)` gives the frames on screen from `start` to `end`, both included: at least one. The times of
frames come from one pass over the packets, without decoding; then the decoder seeks to the nearest key frame. If
decoding
returns other frames than the packets promise, all frames are decoded once instead.

Clip i belongs to range i, and is empty if nothing is in its range.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock._optional import require
from penstock.codec.av_header import MOST_PIXELS as MOST_PIXELS
from penstock.codec.av_header import audio_stream, opened, read_av_header, video_stream
from penstock.codec.media_bytes import media_bytes
from penstock.errors import ConfigError, Corrupt, TooLarge
from penstock.types import AVMetadata, IntArray

Ranges = Sequence[tuple[float, float]]
VideoUnit = Literal["frames", "seconds"]
AudioUnit = Literal["samples", "seconds"]

MOST_BYTES = 1 << 32
"""Limit on the bytes of frames or sound that one call decodes."""

_PREROLL_SECONDS = 0.5
"""Sound that is decoded before a clip: the first frames after a seek are wrong without their predecessors."""


@dataclass(frozen=True, slots=True)
class AVData:
    """Decoded clips.

    Attributes:
        video_clips: uint8[n_frames, 3, height, width], RGB.
        video_timestamps: start and end of each clip in seconds.
        audio_clips: array[n_channels, n_samples] in the codec's sample type, such as int16 or float32.
        audio_timestamps: as `video_timestamps`.
    """

    video_clips: list[NDArray[np.uint8]] = field(default_factory=list[NDArray[np.uint8]])
    video_timestamps: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    audio_clips: list[NDArray[Any]] = field(default_factory=list[NDArray[Any]])
    audio_timestamps: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])


@dataclass(frozen=True, slots=True)
class _Frames:
    """Presentation times of all frames, in the time base of their stream.

    Attributes:
        starts: presentation times of all frames, in order.
        keys: times of the key frames.
        is_decoded: the times are those of decoded frames, not of packets.
    """

    starts: IntArray
    keys: IntArray
    end: int
    is_decoded: bool

    def key_before(self, pts: int) -> int:
        """Return the time of the last key frame at or before `pts`."""
        place = int(np.searchsorted(self.keys, pts, side="right")) - 1
        return int(self.keys[max(0, place)]) if len(self.keys) else pts


class AVDecoder:
    """One encoded audio or video file in memory. Picklable, and stateless except for its index of frames."""

    __slots__ = ("_data", "_frames", "_most_bytes")

    def __init__(self, data: bytes, *, most_bytes: int = MOST_BYTES) -> None:
        self._data = data
        self._most_bytes = most_bytes
        self._frames: _Frames | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return (_again, (self._data, self._most_bytes))

    def __repr__(self) -> str:
        return f"<AVDecoder of {len(self._data)} bytes>"

    @property
    def data(self) -> bytes:
        return self._data

    # --- metadata ---

    def get_metadata(self, *, exact: bool = False, headers_only: bool = False) -> AVMetadata:
        """Return durations, counts and sizes.

        Args:
            exact: decode everything and count it.
            headers_only: omit durations and counts that aren't in a header, instead of counting packets.

        Raises:
            Corrupt: the file has neither audio nor video.
        """
        depth = "exact" if exact else "headers" if headers_only else "counts"
        metadata = read_av_header(media_bytes(self._data), depth=depth)
        if metadata is None:
            raise Corrupt("neither audio nor video", found=f"{len(self._data)} bytes")
        return metadata

    def get_video_fps(self) -> float:
        """Return the average number of frames per second."""
        return _given(self.get_metadata().video_fps, "frame rate")

    def get_audio_samples_per_second(self) -> int:
        return _given(self.get_metadata().audio_sample_rate, "sample rate")

    def get_video_duration(self, get_frame_count: bool = False) -> tuple[float | None, int | None]:
        """Return seconds, and with `get_frame_count` the number of frames."""
        metadata = self.get_metadata()
        return metadata.video_duration, metadata.video_num_frames if get_frame_count else None

    def get_audio_duration(self) -> float | None:
        return self.get_metadata().audio_duration

    def has_video_stream(self) -> bool:
        """Return whether there is video; cover art doesn't count."""
        with opened(media_bytes(self._data)) as container:
            return video_stream(container) is not None

    def has_audio_stream(self) -> bool:
        with opened(media_bytes(self._data)) as container:
            return audio_stream(container) is not None

    # --- decoding ---

    def get_video(self) -> AVData:
        """Return all frames, as one clip."""
        return self.get_clips(video_clip_ranges=[(0, float("inf"))])

    def get_audio(self) -> AVData:
        """Return all sound, as one clip."""
        return self.get_clips(audio_clip_ranges=[(0, float("inf"))])

    def get_video_with_audio(self) -> AVData:
        return self.get_clips([(0, float("inf"))], [(0, float("inf"))])

    def get_frames(self, video_decode_audio: bool = False) -> AVData:
        """Return all frames, with sound on request; of a file without video, all sound."""
        if not self.has_video_stream():
            return self.get_audio()
        return self.get_video_with_audio() if video_decode_audio and self.has_audio_stream() else self.get_video()

    def get_clips(
        self,
        video_clip_ranges: Ranges | None = None,
        audio_clip_ranges: Ranges | None = None,
        video_unit: VideoUnit = "seconds",
        audio_unit: AudioUnit = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
    ) -> AVData:
        """Return clips of frames and of sound, one per range; empty if nothing is in its range.

        Args:
            video_clip_ranges: first and last moment, or frame, of each clip, both included.
            audio_clip_ranges: start and end of each clip.
            video_unit: `"frames"` or `"seconds"`.
            audio_unit: `"samples"` or `"seconds"`.
            video_out_frame_size: `(width, height)` that frames are scaled to.

        Raises:
            ConfigError: a range ends before it begins, the unit is unknown, or there is no video or audio stream.
            TooLarge: the result exceeds the limit of one call.
            Corrupt: the file can't be decoded.
        """
        video: tuple[Any, Any] = ([], [])
        audio: tuple[Any, Any] = ([], [])
        if video_clip_ranges is not None:
            video = self.get_video_clips(video_clip_ranges, video_unit, video_out_frame_size)
        if audio_clip_ranges is not None:
            audio = self.get_audio_clips(audio_clip_ranges, audio_unit)
        return AVData(*video, *audio)

    def get_video_clips(
        self,
        video_clip_ranges: Ranges,
        video_unit: VideoUnit = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
    ) -> tuple[list[NDArray[np.uint8]], list[tuple[float, float]]]:
        """Return clips uint8[n_frames, 3, height, width] and their times; see `get_clips`."""
        _require_ranges(video_clip_ranges, video_unit, ("frames", "seconds"))
        frames = self._frames or self._index_frames(decode=False)
        clips = self._read_video_clips(frames, video_clip_ranges, video_unit, video_out_frame_size)
        if clips is None:
            frames = self._index_frames(decode=True)
            clips = self._read_video_clips(frames, video_clip_ranges, video_unit, video_out_frame_size)
        if clips is None:
            raise Corrupt("the frames of this video differ between two decodings", hint="Encode the video again")
        self._frames = frames
        return clips

    def _read_video_clips(
        self, frames: _Frames, ranges: Ranges, unit: str, size: tuple[int, int] | None
    ) -> tuple[list[NDArray[np.uint8]], list[tuple[float, float]]] | None:
        """Return clips and their times; None if the frames aren't those of `frames`."""
        clips: list[NDArray[np.uint8]] = []
        times: list[tuple[float, float]] = []
        with self._video() as (container, stream):
            left_bytes = self._most_bytes
            for places in _frame_ranges(ranges, unit, stream, frames):
                width, height = size or (stream.codec_context.width, stream.codec_context.height)
                left_bytes -= len(places) * width * height * 3
                if left_bytes < 0:
                    raise _too_much(self._most_bytes)
                if not places:
                    clips.append(np.empty((0, 3, height, width), np.uint8))
                    over = float(frames.end * stream.time_base)
                    times.append((over, over))
                    continue
                pictures = self._decode_frames(container, stream, frames, places)
                if [one.pts for one in pictures] != frames.starts[places.start : places.stop].tolist():
                    return None
                clips.append(np.stack([_pixels(one, size) for one in pictures]))
                end = pictures[-1].pts + (pictures[-1].duration or 0)
                times.append((float(pictures[0].pts * stream.time_base), float(end * stream.time_base)))
        return clips, times

    def _decode_frames(self, container: Any, stream: Any, frames: _Frames, places: range) -> list[Any]:
        first, last = int(frames.starts[places.start]), int(frames.starts[places.stop - 1])
        if not frames.is_decoded:
            pictures = _sought_frames(container, stream, frames.key_before(first), first, last)
            if pictures:
                return pictures
        with self._video() as (fresh, video):  # the container can't seek there, or missed the target
            if frames.is_decoded:
                shown = (one for one in fresh.decode(video) if one.pts is not None)
                return list(islice(shown, places.start, places.stop))
            return [one for one in _until(fresh, video, last) if one.pts >= first]

    def get_audio_clips(
        self, audio_clip_ranges: Ranges, audio_unit: AudioUnit = "seconds"
    ) -> tuple[list[NDArray[Any]], list[tuple[float, float]]]:
        """Return clips array[n_channels, n_samples] and their times; see `get_clips`."""
        _require_ranges(audio_clip_ranges, audio_unit, ("samples", "seconds"))
        clips: list[NDArray[Any]] = []
        times: list[tuple[float, float]] = []
        with self._audio() as (container, stream):
            rate = stream.codec_context.sample_rate
            in_seconds = audio_unit == "seconds"
            ranges = [_sample_range(start, end, rate if in_seconds else None) for start, end in audio_clip_ranges]
            origin = 0 if in_seconds else self._first_sample()
            if in_seconds or _is_exact_after_seek(stream):
                ranges = [(origin + first, origin + stop) for first, stop in ranges]
                sounds = self._seek_sounds(container, stream, ranges)
                origin = 0
            else:
                sounds = _decode_sounds(container, stream, ranges, self._most_bytes, self._most_bytes, is_counted=True)
            for (first, _), (place, clip) in zip(ranges, sounds, strict=True):
                clips.append(_no_sound(stream) if clip is None else clip)
                start = origin + (first if clip is None else place)
                times.append((start / rate, (start + clips[-1].shape[1]) / rate))
        return clips, times

    def _seek_sounds(self, container: Any, stream: Any, ranges: Sequence[tuple[int, float]]) -> list[_Sound]:
        """Return the sound of each range, found by timestamps."""
        sounds: list[_Sound] = []
        left_bytes = self._most_bytes
        for some in ranges:
            seconds = some[0] / stream.codec_context.sample_rate - _PREROLL_SECONDS
            if seconds > 0 or _is_exact_after_seek(stream):
                container.seek(int(max(0, seconds) / float(stream.time_base)), stream=stream, backward=True)
                (sound,) = _decode_sounds(container, stream, [some], left_bytes, self._most_bytes)
            else:  # a decoder starts differently at the beginning than after a seek to it
                with self._audio() as (fresh, audio):
                    (sound,) = _decode_sounds(fresh, audio, [some], left_bytes, self._most_bytes)
            left_bytes -= 0 if sound[1] is None else sound[1].nbytes
            sounds.append(sound)
        return sounds

    @contextlib.contextmanager
    def _audio(self) -> Generator[tuple[Any, Any]]:
        with opened(media_bytes(self._data)) as container:
            stream = audio_stream(container)
            if stream is None:
                raise ConfigError("the file has no audio", hint="Request video clips")
            if not stream.codec_context.sample_rate:
                raise Corrupt("the audio has no sample rate", hint="Encode it again")
            yield container, stream

    @contextlib.contextmanager
    def _video(self) -> Generator[tuple[Any, Any]]:
        with opened(media_bytes(self._data)) as container:
            stream = video_stream(container)
            if stream is None:
                raise ConfigError("the file has no video", hint="Request audio clips")
            stream.codec_context.options = {"max_pixels": str(MOST_PIXELS)}
            yield container, stream

    def _index_frames(self, *, decode: bool) -> _Frames:
        """Return the times of all frames, from the packets or by decoding."""
        with self._video() as (container, stream):
            if decode:
                found = [(one.pts, one.duration, one.key_frame) for one in container.decode(stream)]
            else:
                packets = (one for one in container.demux(stream) if one.size and not one.is_discard)
                found = [(one.pts, one.duration, one.is_keyframe) for one in packets if not one.is_corrupt]
        if not decode and any(pts is None for pts, _, _ in found):
            return self._index_frames(decode=True)
        found = sorted((pts, duration or 0, is_key) for pts, duration, is_key in found if pts is not None)
        starts = np.array([pts for pts, _, _ in found], np.int64)
        keys = np.array([pts for pts, _, is_key in found if is_key], np.int64)
        if not found:
            return _Frames(starts, keys, 0, decode)
        mean = int(starts[-1] - starts[0]) // max(1, len(starts) - 1)
        return _Frames(starts, keys, int(starts[-1]) + (found[-1][1] or mean or 1), decode)

    def _first_sample(self) -> int:
        """Return the number of the first decoded sample, counted from time zero."""
        with self._audio() as (container, stream):
            frame = next((one for one in container.decode(stream) if one.pts is not None), None)
            return 0 if frame is None else round(float(frame.pts * frame.time_base) * stream.codec_context.sample_rate)


def _again(data: bytes, most_bytes: int) -> AVDecoder:
    return AVDecoder(data, most_bytes=most_bytes)


def _given(value: Any, what: str) -> Any:
    if value is None:
        raise Corrupt(f"the file has no {what}")
    return value


def _too_much(most_bytes: int) -> TooLarge:
    hint = "Request shorter clips or smaller frames"
    return TooLarge("the clips are too large to decode at once", expected=f"at most {most_bytes} bytes", hint=hint)


_Sound = tuple[int, NDArray[Any] | None]
"""Number of the first sample, and array[n_channels, n_samples]; None if no sample is in the range."""


def _require_ranges(ranges: Ranges, unit: str, units: tuple[str, str]) -> None:
    if unit not in units:
        raise ConfigError("no such unit", found=unit, expected=" | ".join(units))
    for start, end in ranges:
        if not 0 <= start <= end or start == float("inf"):
            raise ConfigError("invalid range", found=f"({start}, {end})", expected="0 <= start <= end")


def _frame_ranges(ranges: Ranges, unit: str, stream: Any, frames: _Frames) -> Iterator[range]:
    count = len(frames.starts)
    for start, end in ranges:
        last = count - 1
        if unit == "frames":
            first = int(start)
            last = last if end == float("inf") else min(last, int(end))
        else:
            is_over = start / float(stream.time_base) >= frames.end
            first = count if is_over else _frame_at(start, stream, frames)
            last = last if end == float("inf") else _frame_at(end, stream, frames)
        yield range(min(first, count), last + 1)


def _frame_at(seconds: float, stream: Any, frames: _Frames) -> int:
    moment = seconds / float(stream.time_base)
    return max(0, int(np.searchsorted(frames.starts, moment + 1e-6, side="right")) - 1)


def _sought_frames(container: Any, stream: Any, key: int, first: int, last: int) -> list[Any]:
    """Return the frames from time `first` to `last`, after a seek to the key frame at `key`; none if that fails."""
    try:
        container.seek(key, stream=stream, backward=True)
    except require("av", extra="media").FFmpegError:
        return []
    pictures = [one for one in _until(container, stream, last) if one.pts >= first]
    return pictures if pictures and pictures[0].pts == first else []


def _until(container: Any, stream: Any, stop: int) -> Iterator[Any]:
    for packet in container.demux(stream):
        if packet.is_corrupt:
            continue  # incomplete, because the file is truncated: the frame isn't in the index
        for frame in packet.decode():
            if frame.pts is None:
                continue
            if frame.pts > stop:
                return
            yield frame


def _pixels(frame: Any, size: tuple[int, int] | None) -> NDArray[np.uint8]:
    """Return uint8[3, height, width]."""
    scaled = {} if size is None else {"width": size[0], "height": size[1], "interpolation": "BILINEAR"}
    return frame.reformat(format="rgb24", **scaled).to_ndarray().transpose(2, 0, 1)


def _sample_range(start: float, end: float, rate: int | None) -> tuple[int, float]:
    """Return the first and the end sample of a range in samples, or in seconds with `rate`."""
    if rate is None:
        return int(start), end if end == float("inf") else int(end)
    first = round(start * rate)
    if end == float("inf"):
        return first, end
    # Computed from the duration, not from both ends: clips of equal duration have equal length. Its float errors are
    # removed first.
    return first, first + round(round((end - start) * rate, 3))


def _is_exact_after_seek(stream: Any) -> bool:
    """Return whether timestamps identify samples exactly, and frames don't depend on their predecessors."""
    name = stream.codec_context.name
    is_fine = stream.time_base * stream.codec_context.sample_rate <= 1  # not rounded, such as to milliseconds
    return is_fine and (name == "flac" or name.startswith("pcm_"))


def _decode_sounds(
    container: Any,
    stream: Any,
    ranges: Sequence[tuple[int, float]],
    left_bytes: int,
    most_bytes: int,
    *,
    is_counted: bool = False,
) -> list[_Sound]:
    """Return the sound of each range `[first, stop)` of samples, from the container's current position.

    Args:
        container: decoded from its current position to the last stop.
        stream: the audio stream.
        ranges: in samples since time zero, or with `is_counted` in decoded samples.
        left_bytes: limit on the result.
        most_bytes: limit of the whole call, for the error.
        is_counted: the container is at its beginning, and timestamps don't matter.
    """
    rate = stream.codec_context.sample_rate
    slack = 2 * float(stream.time_base) * rate + 1
    expected: int | None = 0 if is_counted else None
    pieces: list[list[NDArray[Any]]] = [[] for _ in ranges]
    places: list[int] = [0 for _ in ranges]
    last = max((stop for _, stop in ranges), default=0)
    for frame in container.decode(stream):
        if frame.pts is None and not is_counted:
            continue
        place = 0 if is_counted else round(float(frame.pts * frame.time_base) * rate)
        if expected is not None and (is_counted or abs(place - expected) <= slack):
            place = expected  # timestamps are rounded, samples aren't
        samples = _samples(frame)
        expected = over = place + samples.shape[1]
        for number, (first, stop) in enumerate(ranges):
            begin, end = max(first, place), min(stop, over)
            if begin >= end:
                continue
            if not pieces[number]:
                places[number] = begin
            pieces[number].append(samples[:, begin - place : int(end) - place])
            left_bytes -= pieces[number][-1].nbytes
            if left_bytes < 0:
                raise _too_much(most_bytes)
        if over >= last:
            break
    clips = [np.concatenate(some, axis=1) if some else None for some in pieces]
    return list(zip(places, clips, strict=True))


def _no_sound(stream: Any) -> NDArray[Any]:
    """Return array[n_channels, 0] in the codec's sample type."""
    dtypes: dict[str, str] = require("av", extra="media").audio.frame.format_dtypes
    context = stream.codec_context
    return np.empty((context.channels, 0), dtypes[context.format.name])


def _samples(frame: Any) -> NDArray[Any]:
    """Return array[n_channels, n_samples]."""
    samples = frame.to_ndarray()
    return samples if frame.format.is_planar else samples.reshape(frame.samples, frame.layout.nb_channels).T
