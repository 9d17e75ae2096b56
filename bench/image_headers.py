"""How fast is the size of an image found by its header, beside opening it with Pillow?"""

from __future__ import annotations

import time
from pathlib import Path

import tars
from harness import PYTHON, Options, Result, alternate, answer, child, columns, row
from peers import energon

TARGET = 5


def run(options: Options) -> Result:
    """Each kind of image, both in children, in turn."""
    folder = tars.images()
    rows = []
    for suffix, kind in tars.SUFFIXES.items():
        pairs = alternate(
            lambda suffix=suffix: child(PYTHON, __file__, "images", folder=folder, suffix=suffix),
            lambda suffix=suffix: energon.inside("images", folder=folder, suffix=suffix),
            options.pairs(5),
        )
        rows.append(row(kind, "images/s", columns(pairs, "images", "images"), "Pillow", TARGET))
    return Result(
        "Width, height and mode of images of 256 × 256 pixels",
        rows,
        ["Files in memory. Ours: the header. Pillow's `Image.open` reads the header too, and decodes no pixel."],
    )


def images(folder: str, suffix: str) -> dict[str, float]:
    """In a child: images a second."""
    from penstock.codec.image_header import read_image_header
    from penstock.codec.media_bytes import HEAD_BYTES, MediaBytes

    paths = [str(path) for path in sorted(Path(folder).glob(f"*.{suffix}"))]
    found = []
    began = time.perf_counter()
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            head = file.read(HEAD_BYTES)

            def more(start: int, count: int, file=file) -> bytes:
                file.seek(start)
                return file.read(count)

            found.append(read_image_header(MediaBytes(file.seek(0, 2), head, more)))
    seconds = time.perf_counter() - began
    if any(one is None for one in found):
        raise ValueError(f"an image of {suffix} that was not understood")
    return {"images": len(paths) / seconds}


if __name__ == "__main__":
    answer(globals())
