"""Media that name other files or addresses: what is not in the sample is not opened."""

from __future__ import annotations

import socket
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.internals import AVDecoder

from penstock.errors import Corrupt


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with wave.open(str(tmp_path / "secret.wav"), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(b"\1\2" * 8000)
    return tmp_path / "secret.wav"


@pytest.mark.parametrize(
    "text",
    [
        "ffconcat version 1.0\nfile 'secret.wav'\n",
        "ffconcat version 1.0\nfile '{path}'\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{path}\n#EXT-X-ENDLIST\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{path}\n#EXT-X-ENDLIST\n",
    ],
    ids=["concat", "concat-path", "hls", "hls-file"],
)
@pytest.mark.parametrize("read", [lambda one: one.get_metadata(exact=True), lambda one: one.get_audio()])
def test_no_other_file_is_read(text: str, read: Callable[[AVDecoder], Any], secret: Path) -> None:
    with pytest.raises(Corrupt):
        read(AVDecoder(text.format(path=secret).encode()))


@pytest.mark.parametrize(
    "text",
    [
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio {port} RTP/AVP 0\n",
        "ffconcat version 1.0\nfile 'http://127.0.0.1:{port}/x.ts'\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://127.0.0.1:{port}/x.ts\n#EXT-X-ENDLIST\n",
    ],
    ids=["sdp", "concat", "hls"],
)
def test_nothing_is_fetched_and_no_port_is_opened(text: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        port = server.getsockname()[1]
        with pytest.raises(Corrupt) as caught:
            AVDecoder(text.format(port=port).encode()).get_metadata(exact=True)
        assert "timed out" not in str(caught.value)  # that is how a port that was listened to ended
        with pytest.raises(BlockingIOError):
            server.accept()
