"""Hostile data are looked at: nothing of them is decoded that is too large, and memory stays bounded.

Each case runs in a process of its own that may not have more memory than `MOST_BYTES` beyond its imports.
"""

from __future__ import annotations

import json
import pickle
import struct
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path
from typing import Any

from tests.internals import FACTS

import penstock as ps

MOST_BYTES = 512 << 20

_LOOK = (
    f"{FACTS}\n"
    + """
import json, resource, sys
import av, PIL.Image
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]),) * 2)
opened = facts.open_target(sys.argv[2], read="pread")
shown = list(facts.page(opened, 0, 50)) + [facts.sample_at(opened, 0, bounds=facts.IN_FULL)]
if sys.argv[3] == "report":
    report(sys.argv[2], sys.argv[2] + ".html", depth="none")
names = ("name", "kind", "width", "height", "size_bytes", "note")
print(json.dumps([
    {"error": one.error, "of": one.of, "panels": [
        {name: getattr(panel, name) for name in names} | {"text": panel.text[:300]} for panel in one.panels[:70]]}
    for one in shown]))
"""
)


def looked_at(path: Path, then: str = "report") -> list[dict[str, Any]]:
    """What is shown of each sample, and of the first one in full, by a process of bounded memory."""
    line = [sys.executable, "-c", _LOOK, str(MOST_BYTES), str(path), then]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def png_of(width: int, height: int) -> bytes:
    """The head of a picture of many pixels, and a little of its content."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(bytes(1000))), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def test_pictures_of_a_billion_pixels_and_media_that_are_none(tmp_path: Path) -> None:
    heads = {
        "mp4": b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom\0\0\0\x08moov",
        "webm": b"\x1aE\xdf\xa3" + b"\xff" * 40,
        "mp3": b"ID3\4\0\0\x7f\x7f\x7f\x7f",
        "flac": b"fLaC" + b"\xff" * 60,
        "wav": b"RIFF\xff\xff\xff\xffWAVEdata\xff\xff\xff\xff",
        "gif": b"GIF89a\xff\xff\xff\xff\xf7\0\0",
        "jpg": b"\xff\xd8\xff\xe0\xff\xff",
        "webp": b"RIFF\xff\xff\xff\xffWEBPVP8 ",
        "tif": b"II*\0\xff\xff\xff\x7f",
        "npy": b"\x93NUMPY\1\0v\0{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999,), }",
        "npz": b"PK\3\4" + bytes(40),
        "pkl": b"\x80\4cos\nsystem\n(S'true'\ntR.",
    }
    with ps.create(tmp_path / "set", format="webdataset") as writer:
        writer.write({"__key__": "a", **heads, "png": png_of(40_000, 25_000), "txt": b"beside"})
    for one in looked_at(tmp_path / "set"):
        panels = {panel["name"]: panel for panel in one["panels"]}
        assert panels["txt"]["text"] == "beside"
        assert [panels["png"][name] for name in ("kind", "width", "height")] == ["image", 40_000, 25_000]
        for suffix in heads:
            assert panels[suffix]["kind"] in ("error", "bytes", "image", "audio", "video"), panels[suffix]


def test_a_text_of_a_gigabyte(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with open(path, "wb") as file:
        file.write(b'{"id": 0}\n{"text": "' + b"long " * 10_000)
        file.truncate(1 << 30)  # a hole: it takes no room
    (tmp_path / "a.idx").write_bytes(pickle.dumps([(0, 9), (10, (1 << 30) - 10)]))
    first, long, _ = looked_at(path, "is not a report")
    assert first["panels"][0]["name"] == "id"
    [panel] = long["panels"]
    assert panel["text"].startswith('{"text": "long ')
    assert (panel["size_bytes"], "too large" in panel["note"]) == ((1 << 30) - 10, True)


def test_a_part_of_a_gigabyte_in_a_tar(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with open(tmp_path / "set" / "a.tar", "wb") as file:
        for name, size in (("a.txt", 5), ("a.big.txt", 1 << 30)):
            member = tarfile.TarInfo(name)
            member.size = size
            file.write(member.tobuf() + b"hello".ljust(512, b"\0"))
        file.truncate(512 * 3 + (1 << 30) + 1024)
    ps.prepare(tmp_path / "set", split_ratio=[1, 0, 0])
    for one in looked_at(tmp_path / "set"):
        small, big = one["panels"]
        assert (small["name"], small["text"]) == ("txt", "hello")
        assert (big["name"], big["size_bytes"]) == ("big.txt", 1 << 30)


def test_parts_without_number_and_values_deep_and_wide(tmp_path: Path) -> None:
    rows = ["{" + ",".join(f'"{number}":1' for number in range(300_000)) + "}"]
    rows += ["[" * 90 + "]" * 90, '{"a": [' + "[]," * 300_000 + "[]]}", '{"n": ' + "9" * 4000 + "}", '{"s": "\\ud800"}']
    (tmp_path / "a.jsonl").write_text("\n".join(rows) + "\n")
    shown = looked_at(tmp_path / "a.jsonl", "is not a report")
    assert shown[0]["of"] == shown[-1]["of"] == 300_000
    assert len(shown[0]["panels"]) == 64
    for one in shown:
        assert one["panels"] or one["error"]
