"""Makes the pictures of the docs from those of the last `make browser`: `python tests/browser/pictures.py`."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
WANTED = {"two-steps": "step", "samples-pictures": "samples", "overview-tokens": "overview", "run": "mix"}
"""Page → its picture in the guide."""

SIZE, COLOURS = (1440, 900), 192


def main() -> None:
    """Write them."""
    for page, name in WANTED.items():
        picture = Image.open(ROOT / "build" / "browser" / f"{page}-1440-light.png").convert("RGB")
        picture = picture.crop((0, 0, SIZE[0], min(SIZE[1], picture.height)))
        small = picture.quantize(COLOURS, dither=Image.Dither.NONE)
        small.save(ROOT / "docs" / "guide" / "pictures" / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
