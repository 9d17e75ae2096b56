"""Clips that lie equally far apart in a film."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock._optional import require
from penstock.codec.av_header import read_start_time
from penstock.codec.media_bytes import media_bytes
from penstock.compat.energon.media import AVData, AVDecoder
from penstock.errors import ConfigError


def get_clips_uniform(
    av_decoder: AVDecoder,
    clip_duration_seconds: float,
    num_clips: int,
    request_video: bool = False,
    request_audio: bool = False,
    video_out_frame_size: tuple[int, int] | None = None,
) -> AVData:
    """Clips of one duration, equally far apart from the first frame to the last, also if the first one is late.

    Args:
        av_decoder: the film.
        clip_duration_seconds: of each clip; 0 for single frames.
        num_clips: how many.
        request_video, request_audio: of pictures, of sound, or of both, which then end where the shorter one ends.
        video_out_frame_size: width and height of the frames; None as they are.

    Raises:
        ConfigError: neither is asked for, or it is not there.
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
    """Frames that lie equally far apart: uint8[num_frames, 3, height, width]; and when each begins, if asked for.

    Raises:
        ConfigError: there are no pictures.
    """
    made = get_clips_uniform(av_decoder, 0, num_frames, True, video_out_frame_size=video_out_frame_size)
    frames = require("torch", extra="torch").cat(made.video_clips, dim=0)
    return (frames, [start for start, _ in made.video_timestamps or ()]) if return_timestamps else frames
