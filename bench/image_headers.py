"""How fast is the size of an image found by its header, beside opening it with Pillow?"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tars
from harness import PYTHON, Options, Result, alternate, answer, child, columns, row
from peers import energon

TARGET = 5
ROUNDS = 7


def run(options: Options) -> Result:
    """Each kind of image, both in children, in turn: in memory, as the members of a mapped tar are, and as files."""
    folder = tars.images()
    in_memory, as_files = [], []
    for suffix, kind in tars.SUFFIXES.items():
        pairs = alternate(
            lambda suffix=suffix: child(PYTHON, __file__, "images", folder=folder, suffix=suffix),
            lambda suffix=suffix: energon.inside("images", folder=folder, suffix=suffix, rounds=ROUNDS),
            options.pairs(5),
        )
        in_memory.append(row(kind, "images/s", columns(pairs, "memory", "memory"), "Pillow", TARGET))
        as_files.append(row(f"{kind}, as files", "images/s", columns(pairs, "files", "files"), "Pillow"))
    return Result(
        "Width, height and mode of images of 256 × 256 pixels",
        [*in_memory, *as_files],
        [
            "Pillow's `Image.open` reads the header too, and decodes no pixel. As files: ours with what "
            "`penstock prepare-media` does besides; opening the file takes most of the time on both sides."
        ],
    )


def images(folder: str, suffix: str) -> dict[str, float]:
    """In a child: images a second."""
    from penstock.codec.image_header import read_image_header
    from penstock.codec.media_bytes import media_bytes
    from penstock.prepare.media.rows import MediaFile, media_filter, read_rows
    from penstock.store.local import LocalStore

    paths = [str(path) for path in sorted(Path(folder).glob(f"*.{suffix}"))]
    stored = [Path(path).read_bytes() for path in paths]
    if any(read_image_header(media_bytes(data)) is None for data in stored):
        raise ValueError(f"an image of {suffix} that was not understood")
    store, filters = LocalStore(), [media_filter("extension")]
    files = [MediaFile(path, 0, len(data)) for path, data in zip(paths, stored, strict=True)]
    return {
        "memory": _rate(stored, lambda data: read_image_header(media_bytes(data))),
        "files": _rate(files, lambda file: list(read_rows(store, file.name, [file], filters, exact=False))),
    }


def _rate(items: list[Any], work: Callable[[Any], object]) -> float:
    """Items a second, the best of some rounds, as the other's."""
    best_s = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for item in items:
            work(item)
        best_s = min(best_s, time.perf_counter() - began)
    return len(items) / best_s


if __name__ == "__main__":
    answer(globals())
