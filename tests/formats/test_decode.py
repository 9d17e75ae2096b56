"""`penstock.open(decode="uint8")`: images as arrays, in every format whose samples hold images."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import penstock as ps
from penstock.errors import ConfigError
from penstock.load.torch import torch_loader

SIDES = (9, 8)


def _images(mode: str = "RGB") -> list[Image.Image]:
    rng = np.random.default_rng(7)
    return [Image.fromarray(rng.integers(0, 256, (*SIDES, 3), np.uint8)).convert(mode) for _ in range(6)]


def _file(image: Image.Image, kind: str) -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def _mds(folder: Path, mode: str) -> str:
    columns = {"jpg": "jpeg", "png": "png", "raw": "pil", "many": "list[png]", "n": "int"}
    with ps.create(folder / "mds", format="mds", columns=columns) as writer:
        for number, one in enumerate(_images(mode)):
            writer.write({"jpg": _file(one, "JPEG"), "png": one, "raw": one, "many": [one, one], "n": number})
    return str(folder / "mds")


def _tars(folder: Path, mode: str) -> str:
    with ps.create(folder / "tars", format="webdataset") as writer:
        for number, one in enumerate(_images(mode)):
            writer.write({"__key__": f"{number}", "jpg": _file(one, "JPEG"), "png": _file(one, "PNG")})
    return str(folder / "tars")


def _files(folder: Path, mode: str) -> str:
    (folder / "files").mkdir()
    for number, one in enumerate(_images(mode)):
        (folder / "files" / f"{number}.png").write_bytes(_file(one, "PNG"))
    return str(folder / "files")


KINDS = {"mds": _mds, "webdataset": _tars, "folder": _files}


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("kind", KINDS)
def test_images_are_arrays(tmp_path: Path, kind: str, mode: str) -> None:
    path = KINDS[kind](tmp_path, mode)
    plain, decoded = (ps.open(path, format=kind, **how) for how in ({}, {"decode": "uint8"}))
    for number in range(6):
        for name, value in plain[number].items():
            found = decoded[number][name]
            if isinstance(value, Image.Image):
                assert found.dtype == np.uint8
                assert found.shape == (*SIDES, 3)
                assert (found == np.array(value.convert("RGB"))).all()
            elif name == "many":
                assert [one.tolist() for one in found] == [np.array(one.convert("RGB")).tolist() for one in value]
    images: dict[str, Any] = {name: one for name, one in plain[0].items() if isinstance(one, Image.Image)}
    assert images
    batch = decoded.get_batch(range(6))
    assert all(batch[name].shape == (6, *SIDES, 3) for name in images)
    batch["png"][:] = 0  # the caller's own


@pytest.mark.parametrize("kind", KINDS)
def test_a_recipe_and_a_copy_decode_too(tmp_path: Path, kind: str) -> None:
    source = ps.open(KINDS[kind](tmp_path, "RGB"), format=kind, decode="uint8")
    assert source.recipe()["decode"] == "uint8"
    for again in (pickle.loads(pickle.dumps(source)), ps.open_recipe(source.recipe())):
        assert again.fingerprint == source.fingerprint
        assert (again[3]["png"] == source[3]["png"]).all()


def test_batches_are_tensors(tmp_path: Path) -> None:
    source = ps.open(_mds(tmp_path, "RGB"), decode="uint8", columns=["png"])
    batch = next(iter(torch_loader(ps.Sequential(source), 3, rank=0, world=1, workers=0)))
    assert batch["png"].dtype.is_floating_point is False
    assert tuple(batch["png"].shape) == (3, *SIDES, 3)


def test_what_can_not_be_followed_is_refused(tmp_path: Path) -> None:
    path = _mds(tmp_path, "RGB")
    wrong: Any = "float16"
    with pytest.raises(ConfigError, match=r"unknown way to decode images.*float16.*uint8"):
        ps.open(path, decode=wrong)
    with pytest.raises(ConfigError, match="Omit one of them"):
        ps.open(path, decode="uint8", raw=True)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(ConfigError, match="decode needs images, which the format 'jsonl' doesn't have"):
        ps.open(tmp_path / "a.jsonl", decode="uint8")
    tars = Path(_tars(tmp_path, "RGB"))
    (tars / ".nv-meta" / "dataset.yaml").unlink()
    with pytest.raises(ConfigError, match=r"decode needs a dataset\.yaml"):
        ps.open(tars, decode="uint8")


def test_verbs_take_samples_as_they_are_stored(tmp_path: Path) -> None:
    path, options = _mds(tmp_path, "RGB"), {"decode": "uint8"}
    for verb in (lambda: ps.merge([path], tmp_path / "new", **options), lambda: ps.verify(path, **options)):
        with pytest.raises(ConfigError, match=r"only an option of penstock\.open"):
            verb()
