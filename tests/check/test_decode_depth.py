"""`verify --depth decode` and `decode="uint8"` hold typed fields against their types; what is packed is known."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

import penstock as ps
from penstock.errors import Corrupt

PIXELS = np.random.default_rng(5).integers(0, 256, (6, 8, 3), np.uint8)


def _image(kind: str, mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(file, kind, **options)
    return file.getvalue()


def _typed(folder: Path, parts: list[dict[str, Any]], name: str, **fields: str) -> Path:
    dataset = {
        "sample_type": {"__module__": "megatron.energon", "__class__": name},
        "field_map": fields,
    }
    with ps.create(folder / "set", format="webdataset", dataset=dataset) as writer:
        for number, one in enumerate(parts):
            writer.write({"__key__": f"k{number}", **one})
    return folder / "set"


WRONG = {
    "text": ("txt", "no picture"),
    "video": ("vid", b"\0\0\0\x18ftypisom"),
    "bytes": ("bin", _image("JPEG")),
    "number": ("cls", 3),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_field_that_is_not_an_image(cli: Callable[..., tuple[int, str]], tmp_path: Path, kind: str) -> None:
    part, value = WRONG[kind]
    root = _typed(tmp_path, [{"jpg": _image("JPEG"), part: value}] * 3, "ImageSample", image=part)
    assert [one for one in ps.verify(root, depth="full") if one.severity == "error"] == []
    status, output = cli("verify", str(root), "--depth", "decode")
    assert status == 1
    assert "the field 'image' is not an image" in " ".join(output.split())
    assert "2 more samples" in " ".join(output.split())
    status, output = cli("energon", "lint", str(root))
    assert "the field 'image' is not an image" in " ".join(output.split())
    source = ps.open(root, split="train", decode="uint8")
    with pytest.raises(Corrupt, match="sample 'k0': the field 'image' is not an image"):
        source[0]


def test_the_usual_policy_skips_such_samples(tmp_path: Path) -> None:
    good, bad = {"jpg": _image("PNG")}, {"txt": "no picture"}
    root = _typed(tmp_path, [good, bad, good, good], "ImageSample", image="jpg,txt")
    loader = ps.Loader(
        ps.Sequential(ps.open(root, split="train", decode="uint8")), global_batch=1, on_error="substitute"
    )
    batches = [next(it) for it in [iter(loader)] for _ in range(3)]
    assert all((one["image"][0] == PIXELS).all() for one in batches)


def test_other_fields_are_checked_too(tmp_path: Path) -> None:
    root = _typed(
        tmp_path, [{"jpg": _image("JPEG"), "json": {"a": 1}}], "CaptioningSample", image="jpg", caption="json"
    )
    [found] = [one for one in ps.verify(root, depth="decode") if one.severity == "error"]
    assert "the field 'caption' is not text" in str(found.found)


def test_good_samples_are_clean(tmp_path: Path) -> None:
    root = _typed(tmp_path, [{"jpg": _image("JPEG"), "txt": "a"}], "CaptioningSample", image="jpg", caption="txt")
    assert ps.verify(root, depth="decode") == []


def test_images_that_decoders_treat_differently_are_counted(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    wide = io.BytesIO()
    Image.fromarray(PIXELS[..., 0].astype(np.uint16)).save(wide, "PNG")
    files = [_image("PNG", "RGBA"), _image("PNG", "LA"), _image("PNG", exif=exif), wide.getvalue(), _image("PNG")]
    root = _typed(tmp_path, [{"png": one} for one in files], "ImageSample", image="png")
    found = [(one.code, one.severity, one.found) for one in ps.verify(root, depth="decode")]
    assert found == [
        ("webdataset.pixels", "warning", "1 images have 16 bits per channel"),
        ("webdataset.pixels", "warning", "1 images have an EXIF orientation"),
        ("webdataset.pixels", "warning", "2 images have an alpha channel"),
    ]


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
def test_avif_decodes(tmp_path: Path) -> None:
    data = _image("AVIF", quality=100)
    root = _typed(tmp_path, [{"avif": data}], "ImageSample", image="avif")
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image.convert("RGB"))
    assert ps.open(root, split="train", decode="uint8")[0]["image"].tolist() == expected.tolist()
    assert ps.verify(root, depth="decode") == []
