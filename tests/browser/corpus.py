"""What the browser looks at: one dataset of each kind, of real text and of pictures, sounds and films made here."""

from __future__ import annotations

import colorsys
import io
import json
import math
import struct
import sysconfig
import wave
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps

GOLDEN = Path(__file__).parent.parent / "golden"
TOKENIZER = GOLDEN / "modalities" / "tokenizers" / "bpe2"
FILES = 160
WORDS = ("a lantern", "two herons", "the weir", "a slow mill", "penstocks", "gravel", "a sluice gate", "the tailrace")


def make_shelf(folder: Path) -> None:
    """A folder of datasets and recipes, each called after what it shows."""
    folder.mkdir(parents=True, exist_ok=True)
    documents(folder / "stdlib.jsonl")
    ps.index(folder / "stdlib.jsonl")
    ps.pack(folder / "stdlib.jsonl", folder / "stdlib.pbin", tokenizer=str(TOKENIZER), executor="inline")
    (folder / "empty.jsonl").touch()
    large(folder / "no-index.jsonl")
    ps.pack(folder / "stdlib.jsonl", folder / "small.pbin", tokenizer=str(TOKENIZER), executor="inline", field="name")
    with ps.create(folder / "pictures", format="webdataset", maxcount=24) as writer:
        for number in range(96):
            caption = f"{WORDS[number % 8]} and {WORDS[number // 8 % 8]}, after {number % 7} days of rain"
            record = json.dumps(
                {"number": number, "tags": [caption.split(",")[0], "made here"], "of": {"seed": number}}
            )
            parts = {"jpg": picture(number), "txt": caption.encode(), "json": record.encode()}
            writer.write({"__key__": f"river/{number:05}", **parts})
    with ps.create(folder / "sounds", format="webdataset") as writer:
        for number in range(6):
            writer.write(
                {"__key__": f"tone{number}", "wav": tone(220 * 2 ** (number / 6)), "cls": str(number).encode()}
            )
        film = (GOLDEN / "energon" / "filesystem" / "v.mp4").read_bytes()
        writer.write({"__key__": "film", "mp4": film, "txt": b"a film of one second"})
    columns = {"id": "int", "lang": "str", "score": "float64", "text": "str"}
    with ps.create(folder / "rows", format="mds", columns=columns) as writer:
        for number in range(2000):
            text = f"{WORDS[number % 8]} by {WORDS[(number * 5) % 8]}"
            writer.write({"id": number, "lang": ("en", "de", "pt")[number % 3], "score": number / 2000, "text": text})
    (folder / "run.yaml").write_text(RECIPE)
    odd(folder / "odd.jsonl")


RECIPE = """penstock: 1
batch: {global_batch: 16, world: 4}
stream:
  stages:
    - length: 1600
      blend:
        - {path: stdlib.pbin, weight: 0.7, shuffle: {seed: 1}}
        - {path: small.pbin, weight: 0.3, shuffle: {seed: 2}}
      window: {chunk: {length: 128, labels: shift}}
    - {path: stdlib.pbin, window: {chunk: {length: 128, labels: shift}}, shuffle: {seed: 3}}
"""


def large(path: Path) -> None:
    """More text than is looked through without being asked."""
    line = json.dumps({"text": " ".join(WORDS) * 20}) + "\n"
    with path.open("w", encoding="utf-8") as out:
        for number in range(70):
            out.write(line * (1_000_000 // len(line)) + json.dumps({"number": number}) + "\n")


def documents(path: Path) -> None:
    """A JSONL of files of the standard library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    with path.open("w", encoding="utf-8") as out:
        for file in islice(sorted(root.glob("*.py")), FILES):
            text = file.read_text(encoding="utf-8", errors="replace")[:20_000]
            about = {"lines": text.count("\n"), "path": str(file.relative_to(root))}
            out.write(json.dumps({"name": file.name, "text": text, "about": about}) + "\n")


def odd(path: Path) -> None:
    """Samples that are hard to show."""
    rows: list[Any] = [
        {"text": "a" * 5000},
        {"text": "long words: " + "pneumonoultramicroscopicsilicovolcanoconiosis" * 12},
        {"text": "‮right to left‬, مرحبا بالعالم, שלום, 你好, 🙂👩‍👩‍👧‍👦"},
        {"text": "control \x00\x07\x1b[31mred\x1b[0m\ttab"},
        {"deep": [[[[[[[[[["ten deep"]]]]]]]]]]},
        {f"field{number}": number for number in range(300)},
        {"list": list(range(5000)), "empty": [], "none": None, "yes": True, "float": 1e300},
        {},
        {"text": ""},
    ]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def picture(seed: int) -> bytes:
    """A JPEG of hills at some hour."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    width, height = (400, 300) if seed % 3 else (280, 380)
    sky, ground = rng.random(), rng.random()
    y = np.linspace(0, 1, height)[:, None]
    x = np.linspace(0, 1, width)[None, :]
    top, low = (np.array(colorsys.hsv_to_rgb((sky + shift) % 1, 0.45, 0.95)) for shift in (0, 0.08))
    image = (top * (1 - y[..., None]) + low * y[..., None]) * np.ones((1, width, 1))
    image[(x - rng.random()) ** 2 * (width / height) ** 2 + (y - 0.3 * rng.random() - 0.1) ** 2 < 0.006] = (
        1,
        0.97,
        0.85,
    )
    for hill in range(4):
        line = (
            0.45
            + 0.13 * hill
            + sum(0.05 / (wave_ + 1) * np.sin(x * (wave_ + 1) * 5 + rng.random() * 9) for wave_ in range(4))
        )
        image[y > line] = colorsys.hsv_to_rgb((ground + 0.03 * hill) % 1, 0.5, 0.65 - 0.13 * hill)
    out = io.BytesIO()
    Image.fromarray((image * 255).clip(0, 255).astype(np.uint8)).save(out, "JPEG", quality=86)
    return out.getvalue()


def tone(hertz: float, seconds: float = 0.5) -> bytes:
    """A WAV of a tone."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        count = int(8000 * seconds)
        file.writeframes(
            b"".join(struct.pack("<h", int(9000 * math.sin(at * hertz * math.tau / 8000))) for at in range(count))
        )
    return out.getvalue()
