"""Clips that lie equally far apart in a film."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.codec.film_matrix import decode, film_of
from tests.codec.films import FPS, RATE, film, wav

from penstock.compat.energon import AVDecoder
from penstock.compat.energon.av import get_clips_uniform, get_single_frames_uniform
from penstock.errors import ConfigError

FRAMES = 30


@pytest.fixture(scope="module")
def decoder() -> AVDecoder:
    return AVDecoder(film("mp4", num_frames=FRAMES, width=32, height=32))


def test_single_frames_from_the_first_to_the_last(decoder: AVDecoder) -> None:
    frames, starts = get_single_frames_uniform(decoder, 3, return_timestamps=True)
    whole = decoder.get_video().video_clips
    assert whole is not None
    assert frames.shape == (3, 3, 32, 32)
    assert starts == pytest.approx([0, 14 / FPS, (FRAMES - 1) / FPS], abs=1.01 / FPS)
    for one, at in zip(frames, starts, strict=True):
        assert torch.equal(one, whole[0][round(at * FPS)])
    small = get_single_frames_uniform(decoder, 2, video_out_frame_size=(16, 8))
    assert small.shape == (2, 3, 8, 16)  # given as width and height


def test_clips_of_one_length_end_with_the_film(decoder: AVDecoder) -> None:
    made = get_clips_uniform(decoder, 0.2, 4, request_video=True)
    assert made.video_clips is not None
    assert made.video_timestamps is not None
    assert [len(clip) for clip in made.video_clips] == [3, 3, 3, 2]  # the frames that each touches
    assert [round(at, 3) for pair in made.video_timestamps for at in pair] == [0, 0.3, 0.9, 1.2, 1.8, 2.1, 2.8, 3]
    sound = get_clips_uniform(AVDecoder(wav(num_samples=RATE)), 0.25, 3, request_audio=True)
    assert sound.audio_clips is not None
    assert len({clip.shape for clip in sound.audio_clips}) == 1


def test_clips_of_nothing_are_refused(decoder: AVDecoder) -> None:
    asked: dict[str, Any]
    for asked in ({}, {"request_video": True, "request_audio": True}):
        with pytest.raises(ConfigError, match="a missing stream, or no clips"):
            get_clips_uniform(decoder, 0.1, 2, **asked)


@pytest.mark.parametrize("name", ["late.mp4", "late.mkv", "late.ts", "late.webm", "variable.mkv", "constant.ts"])
def test_late_films_are_covered_from_the_first_frame_to_the_last(name: str) -> None:
    data = film_of(name)
    pictures = [pixels for _, _, pixels in decode(data).video]
    frames, starts = get_single_frames_uniform(AVDecoder(data), 3, return_timestamps=True)
    assert (frames[0].numpy() == pictures[0]).all()
    assert (frames[-1].numpy() == pictures[-1]).all()
    assert starts == sorted(set(starts))
    decoder = AVDecoder(data)
    made = get_clips_uniform(decoder, 0.5, 3, request_video=True, request_audio=True)
    assert made.video_clips is not None
    assert made.audio_clips is not None
    assert len(made.video_clips) == len(made.audio_clips) == 3
    assert all(len(clip) for clip in made.video_clips)
    length = round(0.5 * decoder.get_audio_samples_per_second())
    assert all(clip.shape[1] == pytest.approx(length, rel=0.02) for clip in made.audio_clips)


def test_an_empty_clip_keeps_its_position(decoder: AVDecoder) -> None:
    made = decoder.get_clips([(0, 0), (500, 600), (2, 2)], video_unit="frames")
    assert made.video_clips is not None
    assert made.video_timestamps is not None
    assert [tuple(clip.shape) for clip in made.video_clips] == [(1, 3, 32, 32), (0, 3, 32, 32), (1, 3, 32, 32)]
    assert made.video_timestamps[1][0] == made.video_timestamps[1][1]
