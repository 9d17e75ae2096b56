"""How fast is the size of an image read from its header, compared with opening it with Pillow?"""

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
    """Read each kind of image in memory, like the members of a mapped tar, and from files, in child processes."""
    folder = tars.images()
    in_memory, as_files = [], []
    for suffix, kind in tars.SUFFIXES.items():
        pairs = alternate(
            lambda suffix=suffix: child(PYTHON, __file__, "images", folder=folder, suffix=suffix),
            lambda suffix=suffix: energon.inside("images", folder=folder, suffix=suffix, rounds=ROUNDS),
            options.pairs(5),
        )
        in_memory.append(row(f"{kind}, in memory", "images/s", columns(pairs, "memory", "memory"), "Pillow", TARGET))
        as_files.append(row(f"{kind}, from files", "images/s", columns(pairs, "files", "files"), "Pillow"))
    return Result(
        "Read width, height and mode of 256 × 256 images",
        [*in_memory, *as_files],
        [
            "Pillow's `Image.open` also reads only the header and decodes no pixels. From files, Penstock also does "
            "the other work of `penstock prepare-media`. Opening the file takes most of the time on both sides."
        ],
    )


def images(folder: str, suffix: str) -> dict[str, float]:
    """Return images per second; runs in a child process."""
    from penstock.codec.image_header import read_image_header
    from penstock.codec.media_bytes import media_bytes
    from penstock.prepare.media.rows import MediaFile, media_filter, read_rows
    from penstock.store.local import LocalStore

    paths = [str(path) for path in sorted(Path(folder).glob(f"*.{suffix}"))]
    stored = [Path(path).read_bytes() for path in paths]
    if any(read_image_header(media_bytes(data)) is None for data in stored):
        raise ValueError(f"a {suffix} image has an unknown header")
    store, filters = LocalStore(), [media_filter("extension")]
    files = [MediaFile(path, 0, len(data)) for path, data in zip(paths, stored, strict=True)]
    return {
        "memory": _rate(stored, lambda data: read_image_header(media_bytes(data))),
        "files": _rate(files, lambda file: list(read_rows(store, file.name, [file], filters, exact=False))),
    }


def _rate(items: list[Any], work: Callable[[Any], object]) -> float:
    """Return items per second, the best of several rounds, as on the other side."""
    best_s = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for item in items:
            work(item)
        best_s = min(best_s, time.perf_counter() - began)
    return len(items) / best_s


if __name__ == "__main__":
    answer(globals())
