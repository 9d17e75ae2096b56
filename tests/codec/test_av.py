"""Clips of films and sounds, by frames and by time."""

from __future__ import annotations

import io
import pickle

import av
import numpy as np
import pytest
from hypothesis import strategies as st

from penstock.codec.av import AVDecoder
from penstock.errors import ConfigError, Corrupt, TooLarge
from penstock.testing.strategies import for_all

from .films import FPS, RATE, film, films, tone, wav

FRAMES = 31


def brightness(clip: np.ndarray) -> list[int]:
    """Which frames these are: see `films.picture`."""
    return [round(float(frame.mean()) / 8) for frame in clip]


@pytest.fixture(scope="module", params=["mp4", "matroska", "avi"])
def decoder(request: pytest.FixtureRequest) -> AVDecoder:
    return AVDecoder(film(request.param, num_frames=FRAMES, width=64, height=48))


def test_frames_by_number_and_by_time(decoder: AVDecoder) -> None:
    @for_all(st.integers(0, FRAMES - 1), st.integers(0, 12), examples=12)
    def law(first: int, more: int) -> None:
        last = min(FRAMES - 1, first + more)
        by_number = decoder.get_clips([(first, first + more)], video_unit="frames")
        assert brightness(by_number.video_clips[0]) == list(range(first, last + 1))
        assert by_number.video_timestamps[0] == pytest.approx((first / FPS, (last + 1) / FPS), abs=0.002)
        by_time = decoder.get_clips([((first + 0.5) / FPS, (last + 0.5) / FPS)])
        assert (by_time.video_clips[0] == by_number.video_clips[0]).all()


def test_several_clips_in_any_order(decoder: AVDecoder) -> None:
    ranges = [(20, 22), (3, 3), (4, 5), (25, 90), (31, 40), (0, 0)]
    data = decoder.get_clips(ranges, video_unit="frames")
    assert [brightness(clip) for clip in data.video_clips] == [[20, 21, 22], [3], [4, 5], [*range(25, 31)], [], [0]]
    assert len(data.video_timestamps) == 6
    (none,) = decoder.get_clips([(99.0, 100.0)]).video_clips
    assert none.shape == (0, 3, 48, 64)


def test_all_of_it(decoder: AVDecoder) -> None:
    data = decoder.get_frames()
    assert data.video_clips[0].shape == (FRAMES, 3, 48, 64)
    assert data.video_clips[0].dtype == np.uint8
    assert data.audio_clips == []
    small = decoder.get_clips([(0, 1)], video_unit="frames", video_out_frame_size=(10, 6))
    assert small.video_clips[0].shape == (2, 3, 6, 10)


def test_sound_by_samples_and_by_time() -> None:
    decoder = AVDecoder(wav(RATE))

    @for_all(st.integers(0, RATE - 1), st.integers(1, RATE))
    def law(start: int, length: int) -> None:
        expected = tone(RATE)[:, start : start + length]
        data = decoder.get_clips(audio_clip_ranges=[(start, start + length)], audio_unit="samples")
        assert (data.audio_clips[0] == expected).all()
        assert data.audio_timestamps[0] == pytest.approx((start / RATE, (start + expected.shape[1]) / RATE))
        by_time, _ = decoder.get_audio_clips([(start / RATE, (start + length) / RATE)])
        assert (by_time[0] == expected).all()

    assert decoder.get_audio().audio_clips[0].shape == (1, RATE)
    assert AVDecoder(wav(100, 2)).get_frames().audio_clips[0].shape == (2, 100)


@pytest.mark.parametrize("duration", [0.1, 0.25, 1 / 3, 0.050_03, 0.000_2])
def test_clips_of_one_duration_are_of_one_length(duration: float) -> None:
    decoder = AVDecoder(wav(3 * RATE))
    ranges = [(start, start + duration) for start in (0.0, 0.1, 0.2, 0.7, 1.1, 1 / 3, 1.234_567, 0.1 + 0.2, 2.5)]
    data = decoder.get_clips(None, ranges)
    assert {clip.shape[1] for clip in data.audio_clips} == {round(duration * RATE)}
    assert {round((end - start) * RATE) for start, end in data.audio_timestamps} == {round(duration * RATE)}


def test_film_with_sound() -> None:
    decoder = AVDecoder(films()["va.mkv"])
    data = decoder.get_frames(video_decode_audio=True)
    assert brightness(data.video_clips[0]) == [*range(6)]
    assert data.audio_clips[0].shape == (1, 4800)
    assert decoder.has_video_stream()
    assert decoder.has_audio_stream()
    assert not AVDecoder(wav()).has_video_stream()


def test_what_is_known() -> None:
    decoder = AVDecoder(films()["va.mkv"])
    assert decoder.get_metadata().video_width == 32
    assert decoder.get_video_duration(get_frame_count=True) == (0.6, 6)
    assert decoder.get_audio_duration() == 0.3
    assert (decoder.get_video_fps(), decoder.get_audio_samples_per_second()) == (FPS, RATE)
    assert pickle.loads(pickle.dumps(decoder)).data == decoder.data
    assert "bytes" in repr(decoder)


def test_nothing_is_decoded_before_it_is_asked_for() -> None:
    noise = AVDecoder(b"no film at all")
    with pytest.raises(Corrupt):
        noise.get_video()
    with pytest.raises(Corrupt):
        noise.get_metadata()


def test_wrong_wishes() -> None:
    decoder = AVDecoder(films()["v.mp4"])
    for ranges in ([(2, 1)], [(-1, 1)], [(float("nan"), 1)]):
        with pytest.raises(ConfigError, match="range"):
            decoder.get_clips(ranges)
    with pytest.raises(ConfigError, match="unit"):
        decoder.get_clips([(0, 1)], video_unit="minutes")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no audio"):
        decoder.get_audio()
    with pytest.raises(ConfigError, match="no video"):
        AVDecoder(wav()).get_video()


def test_more_than_memory_is_refused() -> None:
    with pytest.raises(TooLarge, match="20000 bytes"):
        AVDecoder(films()["v.mov"], most_bytes=20_000).get_video()
    with pytest.raises(TooLarge):
        AVDecoder(wav(), most_bytes=2000).get_audio()


def test_frames_out_of_order_in_the_file() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as out:
        stream = out.add_stream("mpeg4", rate=FPS, options={"bf": "2", "g": "8"})
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = 64, 48, "yuv420p", 4_000_000
        for number in range(FRAMES):
            pixels = np.full((48, 64, 3), 8 * number, np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        out.mux(stream.encode())
    decoder = AVDecoder(file.getvalue())
    for first, last in ((0, 3), (9, 9), (14, 17), (29, 30)):
        clip = decoder.get_clips([(first, last)], video_unit="frames").video_clips[0]
        assert brightness(clip) == [*range(first, last + 1)]
