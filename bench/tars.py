"""Tars and images for the benchmarks."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
from data import made

SHARDS, SHARD_SAMPLES = 8, 5000
LARGE_SHARDS, LARGE_SAMPLES = 4, 500
TEXT_BYTES, LARGE_BYTES = 2048, 100_000
SUFFIXES = {"png": "PNG", "jpg": "JPEG", "webp": "WEBP", "gif": "GIF", "bmp": "BMP"}
IMAGES = 400


def small() -> Path:
    """Return 8 prepared shards of 5,000 samples, each a text of 2 KB and JSON of 120 bytes."""
    return made("tars-small", lambda folder: _write(folder, SHARDS, SHARD_SAMPLES, "txt", TEXT_BYTES))


def large() -> Path:
    """Return 4 prepared shards of 500 samples, each 100 KB and a small JSON part."""
    return made("tars-large", lambda folder: _write(folder, LARGE_SHARDS, LARGE_SAMPLES, "bin", LARGE_BYTES))


def images() -> Path:
    """Return 400 images of each kind, 256 × 256 pixels."""

    def make(folder: Path) -> None:
        from PIL import Image

        folder.mkdir()
        rng = np.random.default_rng(7)
        for number in range(IMAGES):
            pixels = rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)
            image = Image.fromarray(pixels).resize((256, 256))
            for suffix, kind in SUFFIXES.items():
                file = io.BytesIO()
                image.save(file, kind)
                (folder / f"{number:04d}.{suffix}").write_bytes(file.getvalue())

    return made("images", make)


def unprepare(path: Path) -> None:
    """Remove the files that a preparation creates."""
    shutil.rmtree(path / ".nv-meta", ignore_errors=True)
    for index in path.glob("*.tar.idx"):
        index.unlink()


def _write(folder: Path, shards: int, samples: int, part: str, size_bytes: int) -> None:
    import penstock as ps

    rng = np.random.default_rng(9)
    text = rng.integers(97, 123, 1 << 20, dtype=np.uint8).tobytes()
    with ps.create(str(folder), format="webdataset", maxcount=samples, pattern="shard_%03d.tar") as writer:
        for number in range(shards * samples):
            at = number * 37 % (len(text) - size_bytes)
            meta = f'{{"id": {number}, "note": "{text[at : at + 90].decode()}"}}'.encode()
            writer.write({"__key__": f"sample_{number:08d}", part: text[at : at + size_bytes], "json": meta})
