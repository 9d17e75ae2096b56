"""Audio and video as handles that decode what is asked for, when it is asked for.

Frame i is the i-th in the order of presentation, counted from 0. The frame at a time is the one on screen then, so a
range of seconds `(start, end)` gives the frames on screen from `start` to `end`, both included: at least one. Places of
frames are found by walking through the packets once, without decoding; then the nearest key frame is sought.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.codec.av_header import opened, read_av_header
from penstock.codec.media_bytes import media_bytes
from penstock.errors import ConfigError, Corrupt, TooLarge
from penstock.types import AVMetadata, IntArray

Ranges = Sequence[tuple[float, float]]
VideoUnit = Literal["frames", "seconds"]
AudioUnit = Literal["samples", "seconds"]

MOST_PIXELS = 178_956_970
"""Pixels of one picture; more is refused, as Pillow does with images."""

MOST_BYTES = 1 << 32
"""Bytes of all frames, or all sound, that one call decodes."""


@dataclass(frozen=True, slots=True)
class AVData:
    """Decoded clips.

    Attributes:
        video_clips: uint8[n_frames, 3, height, width], RGB.
        video_timestamps: of each clip its start and end in seconds.
        audio_clips: array[n_channels, n_samples] in the numbers of the codec, such as int16 or float32.
        audio_timestamps: as `video_timestamps`.
    """

    video_clips: list[NDArray[np.uint8]] = field(default_factory=list[NDArray[np.uint8]])
    video_timestamps: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    audio_clips: list[NDArray[Any]] = field(default_factory=list[NDArray[Any]])
    audio_timestamps: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])


@dataclass(frozen=True, slots=True)
class _Frames:
    """Presentation times of all frames, in order, and which of them can be sought."""

    starts: IntArray
    keys: IntArray


class AVDecoder:
    """One audio or video file, in memory and not decoded. Stateless but for the places of frames; picklable.

    Args:
        data: the file.
        most_bytes: the largest decoded result of one call.
    """

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
        """The file."""
        return self._data

    # --- what is known -------------------------------------------------------------------------------------------

    def get_metadata(self, *, exact: bool = False, count: bool = False) -> AVMetadata:
        """Durations, counts and sizes; see `penstock.codec.av_header.read_av_header`.

        Raises:
            Corrupt: this is no audio or video.
        """
        metadata = read_av_header(media_bytes(self._data), exact=exact, count=count)
        if metadata is None:
            raise Corrupt("this holds neither audio nor video", found=f"{len(self._data)} bytes")
        return metadata

    def get_video_fps(self) -> float:
        """Frames a second, on average."""
        return _given(self.get_metadata().video_fps, "frame rate")

    def get_audio_samples_per_second(self) -> int:
        """Samples a second."""
        return _given(self.get_metadata().audio_sample_rate, "sample rate")

    def get_video_duration(self, get_frame_count: bool = False) -> tuple[float | None, int | None]:
        """Seconds, and the number of frames; that is counted where it is asked for."""
        metadata = self.get_metadata(exact=get_frame_count)
        return metadata.video_duration, metadata.video_num_frames

    def get_audio_duration(self) -> float | None:
        """Seconds."""
        return self.get_metadata().audio_duration

    def has_video_stream(self) -> bool:
        """Whether there are pictures."""
        with opened(media_bytes(self._data)) as container:
            return bool(container.streams.video)

    def has_audio_stream(self) -> bool:
        """Whether there is sound."""
        with opened(media_bytes(self._data)) as container:
            return bool(container.streams.audio)

    # --- what is decoded -----------------------------------------------------------------------------------------

    def get_video(self) -> AVData:
        """All frames, as one clip."""
        return self.get_clips(video_clip_ranges=[(0, float("inf"))])

    def get_audio(self) -> AVData:
        """All sound, as one clip."""
        return self.get_clips(audio_clip_ranges=[(0, float("inf"))])

    def get_video_with_audio(self) -> AVData:
        """All frames and all sound."""
        return self.get_clips([(0, float("inf"))], [(0, float("inf"))])

    def get_frames(self, video_decode_audio: bool = False) -> AVData:
        """Everything: frames where there are any, with sound if asked for, else the sound."""
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
        """Clips of pictures and of sound. A range that begins behind the end gives no clip.

        Args:
            video_clip_ranges: first and last moment, or frame, of each clip, both included.
            audio_clip_ranges: start and end of each clip.
            video_unit: `"frames"` or `"seconds"`.
            audio_unit: `"samples"` or `"seconds"`.
            video_out_frame_size: `(width, height)` that frames are scaled to.

        Raises:
            ConfigError: a range that ends before it begins, an unknown unit, or no such stream.
            TooLarge: more is asked for than one call decodes.
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
        """Clips uint8[n_frames, 3, height, width] and their times; see `get_clips`."""
        _require_ranges(video_clip_ranges, video_unit, ("frames", "seconds"))
        clips: list[NDArray[np.uint8]] = []
        times: list[tuple[float, float]] = []
        with opened(media_bytes(self._data)) as container:
            if not container.streams.video:
                raise ConfigError("there are no pictures in this file", hint="Ask for audio clips")
            stream = container.streams.video[0]
            stream.codec_context.options = {"max_pixels": str(MOST_PIXELS)}
            frames = self._places(container, stream)
            left_bytes = self._most_bytes
            for first, last in _frame_ranges(video_clip_ranges, video_unit, stream, frames):
                width, height = video_out_frame_size or (stream.codec_context.width, stream.codec_context.height)
                left_bytes -= (last - first + 1) * width * height * 3
                if left_bytes < 0:
                    raise _too_much(self._most_bytes)
                pictures = _decode_frames(container, stream, frames, first, last)
                if pictures:
                    clips.append(np.stack([_pixels(one, video_out_frame_size) for one in pictures]))
                    end = pictures[-1].pts + (pictures[-1].duration or 0)
                    times.append((float(pictures[0].pts * stream.time_base), float(end * stream.time_base)))
        return clips, times

    def get_audio_clips(
        self, audio_clip_ranges: Ranges, audio_unit: AudioUnit = "seconds"
    ) -> tuple[list[NDArray[Any]], list[tuple[float, float]]]:
        """Clips array[n_channels, n_samples] and their times; see `get_clips`."""
        _require_ranges(audio_clip_ranges, audio_unit, ("samples", "seconds"))
        clips: list[NDArray[Any]] = []
        times: list[tuple[float, float]] = []
        with opened(media_bytes(self._data)) as container:
            if not container.streams.audio:
                raise ConfigError("there is no sound in this file", hint="Ask for video clips")
            stream = container.streams.audio[0]
            rate = stream.codec_context.sample_rate
            left_bytes = self._most_bytes
            for start, end in audio_clip_ranges:
                first, stop = _sample_range(start, end, rate if audio_unit == "seconds" else None)
                pieces = _decode_sound(container, stream, first, stop, left_bytes, self._most_bytes)
                if pieces:
                    clip = np.concatenate([samples for _, samples in pieces], axis=1)
                    left_bytes -= clip.nbytes
                    clips.append(clip)
                    times.append((pieces[0][0] / rate, (pieces[0][0] + clip.shape[1]) / rate))
        return clips, times

    def _places(self, container: Any, stream: Any) -> _Frames:
        if self._frames is None:
            found = [(packet.pts, packet.is_keyframe) for packet in container.demux(stream) if packet.pts is not None]
            starts = np.sort(np.array([pts for pts, _ in found], np.int64))
            self._frames = _Frames(starts, np.sort(np.array([pts for pts, is_key in found if is_key], np.int64)))
            container.seek(0)
        return self._frames


def _again(data: bytes, most_bytes: int) -> AVDecoder:
    return AVDecoder(data, most_bytes=most_bytes)


def _given(value: Any, what: str) -> Any:
    if value is None:
        raise Corrupt(f"this file has no {what}")
    return value


def _too_much(most_bytes: int) -> TooLarge:
    hint = "Ask for shorter clips, or for smaller frames"
    return TooLarge("the clips are too large to decode at once", expected=f"at most {most_bytes} bytes", hint=hint)


def _require_ranges(ranges: Ranges, unit: str, units: tuple[str, str]) -> None:
    if unit not in units:
        raise ConfigError("no such unit", found=unit, expected=" | ".join(units))
    for start, end in ranges:
        if not 0 <= start <= end or start == float("inf"):
            raise ConfigError("a range that can't be", found=f"({start}, {end})", expected="0 <= start <= end")


# --- pictures ----------------------------------------------------------------------------------------------------


def _frame_ranges(ranges: Ranges, unit: str, stream: Any, frames: _Frames) -> Iterator[tuple[int, int]]:
    """First and last frame of each range that holds one."""
    count = len(frames.starts)
    for start, end in ranges:
        if unit == "frames":
            first, last = int(start), count - 1 if end == float("inf") else int(end)
        else:
            first = _frame_at(start, stream, frames)
            last = count - 1 if end == float("inf") else _frame_at(end, stream, frames)
        if first < count and not (unit == "seconds" and _is_behind(start, stream, frames)):
            yield first, min(last, count - 1)


def _frame_at(seconds: float, stream: Any, frames: _Frames) -> int:
    moment = seconds / float(stream.time_base)
    return max(0, int(np.searchsorted(frames.starts, moment + 1e-6, side="right")) - 1)


def _is_behind(seconds: float, stream: Any, frames: _Frames) -> bool:
    """Whether a moment comes when the last frame is over."""
    if not len(frames.starts):
        return True
    rate = stream.average_rate
    shown = 1 / float(rate * stream.time_base) if rate else 0
    return seconds / float(stream.time_base) >= frames.starts[-1] + max(shown, 1)


def _decode_frames(container: Any, stream: Any, frames: _Frames, first: int, last: int) -> list[Any]:
    start, stop = int(frames.starts[first]), int(frames.starts[last])
    key = int(np.searchsorted(frames.keys, start, side="right")) - 1
    taken: list[Any] = []
    for place in (int(frames.keys[max(0, key)]) if len(frames.keys) else start, int(frames.starts[0])):
        container.seek(place, stream=stream, backward=True)
        taken = [one for one in _until(container, stream, stop) if one.pts >= start]
        if taken and taken[0].pts == start:
            break  # else the container went too far: from the start, then
    return taken


def _until(container: Any, stream: Any, stop: int) -> Iterator[Any]:
    for frame in container.decode(stream):
        if frame.pts is None:
            continue
        if frame.pts > stop:
            return
        yield frame


def _pixels(frame: Any, size: tuple[int, int] | None) -> NDArray[np.uint8]:
    """uint8[3, height, width]."""
    scaled = {} if size is None else {"width": size[0], "height": size[1], "interpolation": "BILINEAR"}
    return frame.reformat(format="rgb24", **scaled).to_ndarray().transpose(2, 0, 1)


# --- sound -------------------------------------------------------------------------------------------------------


def _sample_range(start: float, end: float, rate: int | None) -> tuple[int, float]:
    """First sample, and the one behind the last, of a range in samples, or in seconds with `rate`."""
    if rate is None:
        return int(start), end if end == float("inf") else int(end)
    first = round(start * rate)
    if end == float("inf"):
        return first, end
    # Of the duration, not of both ends: clips of one duration are of one length. Its float errors go first.
    return first, first + round(round((end - start) * rate, 3))


def _decode_sound(
    container: Any, stream: Any, first: int, stop: float, left_bytes: int, most_bytes: int
) -> list[tuple[int, NDArray[Any]]]:
    """Runs of samples of `[first, stop)`, each with the number of its first sample."""
    rate = stream.codec_context.sample_rate
    container.seek(int(first / rate / float(stream.time_base)), stream=stream, backward=True)
    pieces: list[tuple[int, NDArray[Any]]] = []
    for frame in container.decode(stream):
        if frame.pts is None:
            continue
        place = round(float(frame.pts * frame.time_base) * rate)
        samples = _samples(frame)
        begin = max(0, first - place)
        end = samples.shape[1] if stop == float("inf") else min(samples.shape[1], int(stop) - place)
        if begin < end:
            pieces.append((place + begin, samples[:, begin:end]))
            left_bytes -= pieces[-1][1].nbytes
            if left_bytes < 0:
                raise _too_much(most_bytes)
        if place + samples.shape[1] >= stop:
            break
    return pieces


def _samples(frame: Any) -> NDArray[Any]:
    """array[n_channels, n_samples]."""
    samples = frame.to_ndarray()
    return samples if frame.format.is_planar else samples.reshape(frame.samples, frame.layout.nb_channels).T
