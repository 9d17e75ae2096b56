"""Energon's API for audio and video, on top of the decoder of `penstock.codec.av`; clips are tensors."""

from __future__ import annotations

import io
from typing import Any, BinaryIO

import numpy as np

from penstock._facade import modules_of
from penstock._optional import require
from penstock.codec import av
from penstock.codec.av import AudioUnit, Ranges, VideoUnit
from penstock.codec.av_header import read_start_time
from penstock.codec.media_bytes import media_bytes
from penstock.compat.energon.samples import edataclass
from penstock.errors import ConfigError
from penstock.types import AVMetadata, ImageMetadata

__getattr__ = modules_of(__name__)

__all__ = ["AVData", "AVDecoder", "AVMetadata", "ImageMetadata"]

Times = list[tuple[float, float]]

MEDIA = (av.AVDecoder, av.AVData)
"""Types to which datasets decode audio and video by default."""


@edataclass
class AVData:
    """Decoded clips.

    Attributes:
        video_clips: uint8[n_frames, 3, height, width], RGB.
        video_timestamps: start and end of each clip in seconds.
        audio_clips: [n_channels, n_samples] in the codec's dtype, such as int16 or float32.
        audio_timestamps: as `video_timestamps`.

    Examples:
        >>> from penstock.compat.energon import AVData, AVDecoder, WebdatasetFileStore
        >>> clips = AVDecoder(WebdatasetFileStore("films").get("000.mp4")).get_frames()
        >>> type(clips).__name__, clips.video_clips[0].shape, clips.audio_clips
        ('AVData', torch.Size([6, 3, 24, 32]), [])
    """

    video_clips: list[Any] | None
    video_timestamps: Times | None
    audio_clips: list[Any] | None
    audio_timestamps: Times | None


class AVDecoder:
    """Undecoded audio or video file; picklable. See `penstock.codec.av.AVDecoder` for ranges and errors.

    Args:
        stream: the file, open for reading bytes, or its bytes; read as a whole at once.
        suppress_warnings: no effect: frames are found exactly, by number and by time, without warnings.

    Examples:
        >>> from penstock.compat.energon import AVDecoder, WebdatasetFileStore
        >>> film = AVDecoder(WebdatasetFileStore("films").get("000.mp4"))
        >>> found = film.get_metadata()
        >>> found.video_num_frames, found.video_width, found.video_height
        (6, 32, 24)
        >>> film.get_clips(video_clip_ranges=[(0, 1)], video_unit="frames").video_clips[0].shape
        torch.Size([2, 3, 24, 32])
    """

    __slots__ = ("_inner", "suppress_warnings")

    def __init__(self, stream: BinaryIO | bytes, suppress_warnings: bool = False) -> None:
        self._inner = av.AVDecoder(stream if isinstance(stream, bytes) else _whole(stream))
        self.suppress_warnings = suppress_warnings

    def __reduce__(self) -> tuple[object, ...]:
        return (AVDecoder, (self.data, self.suppress_warnings))

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def data(self) -> bytes:
        """Bytes of the file."""
        return self._inner.data

    @property
    def stream(self) -> BinaryIO:
        """File object on the data; each access opens a new one."""
        return io.BytesIO(self.data)

    def get_metadata(
        self,
        get_video: bool = True,
        get_video_duration: bool = True,
        get_video_frame_count: bool = True,
        get_video_frame_size: bool = True,
        get_audio: bool = True,
        get_audio_duration: bool = True,
        get_audio_num_samples: bool = False,
        *,
        exact: bool = False,
    ) -> AVMetadata:
        """Return durations, counts and sizes.

        Args:
            get_video: whether to include video.
            get_video_duration: as in Energon; durations are always read.
            get_video_frame_count: whether to include the number of frames.
            get_video_frame_size: whether to include width and height.
            get_audio: whether to include audio.
            get_audio_duration: as in Energon; durations are always read.
            get_audio_num_samples: count the samples by decoding everything; otherwise by the header or the packets.
            exact: count frames and samples by decoding everything.

        Raises:
            Corrupt: this is neither audio nor video.
        """
        counts = get_video and get_video_frame_count
        found = self._inner.get_metadata(exact=exact or (get_audio and get_audio_num_samples))
        left_out: dict[str, bool] = {
            "video_duration": get_video,
            "video_num_frames": counts or exact,
            "video_fps": get_video,
            "video_width": get_video and get_video_frame_size,
            "video_height": get_video and get_video_frame_size,
            **dict.fromkeys(("audio_duration", "audio_channels", "audio_sample_rate", "audio_num_samples"), get_audio),
        }
        return AVMetadata(**{name: getattr(found, name) for name, is_asked in left_out.items() if is_asked})

    def get_video_fps(self) -> float:
        """Return the average number of frames per second."""
        return self._inner.get_video_fps()

    def get_audio_samples_per_second(self) -> int:
        """Return the number of audio samples per second."""
        return self._inner.get_audio_samples_per_second()

    def get_video_duration(self, get_frame_count: bool = False) -> tuple[float | None, int | None]:
        """Return the duration in seconds, and with `get_frame_count` the number of frames."""
        found = self.get_metadata(get_video_frame_count=get_frame_count, get_audio=False)
        return found.video_duration, found.video_num_frames

    def get_audio_duration(self) -> float | None:
        """Return the duration in seconds."""
        return self.get_metadata(get_video=False).audio_duration

    def has_video_stream(self) -> bool:
        """Return whether there is video."""
        return self._inner.has_video_stream()

    def has_audio_stream(self) -> bool:
        """Return whether there is audio."""
        return self._inner.has_audio_stream()

    def get_video(self) -> AVData:
        """Return all frames as one clip."""
        return _of_tensors(self._inner.get_video())

    def get_audio(self) -> AVData:
        """Return all audio as one clip."""
        return _of_tensors(self._inner.get_audio())

    def get_video_with_audio(self) -> AVData:
        """Return all frames and all audio."""
        return _of_tensors(self._inner.get_video_with_audio())

    def get_frames(self, video_decode_audio: bool = False) -> AVData:
        """Return all frames, with audio if requested; for audio files, the audio."""
        return _of_tensors(self._inner.get_frames(video_decode_audio))

    def get_clips(
        self,
        video_clip_ranges: Ranges | None = None,
        audio_clip_ranges: Ranges | None = None,
        video_unit: VideoUnit = "seconds",
        audio_unit: AudioUnit = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
    ) -> AVData:
        """Return clips of video and audio."""
        ranges = (video_clip_ranges, audio_clip_ranges)
        return _of_tensors(self._inner.get_clips(*ranges, video_unit, audio_unit, video_out_frame_size))

    def get_video_clips(
        self,
        video_clip_ranges: Ranges,
        video_unit: VideoUnit = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
    ) -> tuple[list[Any], Times]:
        """Return video clips and their times."""
        clips, times = self._inner.get_video_clips(video_clip_ranges, video_unit, video_out_frame_size)
        return _tensors(clips), times

    def get_audio_clips(self, audio_clip_ranges: Ranges, audio_unit: AudioUnit = "seconds") -> tuple[list[Any], Times]:
        """Return audio clips and their times."""
        clips, times = self._inner.get_audio_clips(audio_clip_ranges, audio_unit)
        return _tensors(clips), times


def as_energons(value: Any) -> Any:
    """Return a part as Energon delivers it: audio and video as the classes above, other values unchanged."""
    if type(value) is av.AVDecoder:
        return AVDecoder(value.data)
    return _of_tensors(value) if type(value) is av.AVData else value


def _whole(stream: BinaryIO) -> bytes:
    stream.seek(0)
    return stream.read()


def _of_tensors(found: av.AVData) -> AVData:
    return AVData(
        video_clips=_tensors(found.video_clips),
        video_timestamps=found.video_timestamps,
        audio_clips=_tensors(found.audio_clips),
        audio_timestamps=found.audio_timestamps,
    )


def _tensors(clips: list[Any]) -> list[Any]:
    return [require("torch", extra="torch").from_numpy(one) for one in clips]


def get_clips_uniform(
    av_decoder: AVDecoder,
    clip_duration_seconds: float,
    num_clips: int,
    request_video: bool = False,
    request_audio: bool = False,
    video_out_frame_size: tuple[int, int] | None = None,
) -> AVData:
    """Return clips of one duration, evenly spaced from the first frame to the last, even if the first one is late.

    Args:
        av_decoder: decoder of the file.
        clip_duration_seconds: duration of each clip; 0 for single frames.
        num_clips: number of clips.
        request_video: return video clips. With audio, the range ends with the shorter stream.
        request_audio: return audio clips.
        video_out_frame_size: width and height of the frames; by default unchanged.

    Raises:
        ConfigError: neither video nor audio is requested, or a requested stream is missing.
    """
    ends: list[float | None] = []
    if request_video:
        ends.append(av_decoder.get_video_duration()[0] if av_decoder.has_video_stream() else None)
    if request_audio:
        ends.append(av_decoder.get_audio_duration() if av_decoder.has_audio_stream() else None)
    known = [one for one in ends if one is not None]
    if not known or len(known) < len(ends):
        asked = {"request_video": request_video, "request_audio": request_audio}
        found = ", ".join(f"{name}={value}" for name, value in asked.items())
        raise ConfigError("clips of a missing stream, or no clips", found=f"{found} of {av_decoder!r}")
    media = media_bytes(av_decoder.data)
    starts = [read_start_time(media, "video")] if request_video else []
    starts += [read_start_time(media, "audio")] if request_audio else []
    start = max(starts)
    stop = min(late + duration for late, duration in zip(starts, known, strict=True)) - clip_duration_seconds
    if clip_duration_seconds == 0:  # the middle of the first frame, and of the last
        half = 0.5 / av_decoder.get_video_fps()
        start, stop = start + half, stop - half
    clips = [(float(at), float(at + clip_duration_seconds)) for at in np.linspace(start, stop, num_clips)]
    ranges = (clips if request_video else None, clips if request_audio else None)
    return av_decoder.get_clips(*ranges, video_out_frame_size=video_out_frame_size)


def get_single_frames_uniform(
    av_decoder: AVDecoder,
    num_frames: int,
    *,
    video_out_frame_size: tuple[int, int] | None = None,
    return_timestamps: bool = False,
) -> Any:
    """Return evenly spaced frames, uint8[num_frames, 3, height, width]; with `return_timestamps`, also their times.

    Raises:
        ConfigError: the file has no video.
    """
    made = get_clips_uniform(av_decoder, 0, num_frames, True, video_out_frame_size=video_out_frame_size)
    frames = require("torch", extra="torch").cat(made.video_clips, dim=0)
    return (frames, [start for start, _ in made.video_timestamps or ()]) if return_timestamps else frames
