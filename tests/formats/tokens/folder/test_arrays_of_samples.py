"""Arrays of integers next to media files are parts of samples, not tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import penstock as ps
from penstock.errors import ConfigError


def write(folder: Path, picture: str) -> Path:
    folder.mkdir()
    for number in range(2):
        np.save(folder / f"{number}.npy", np.arange(number + 3))
    Image.new("RGB", (4, 4)).save(folder / picture)
    return folder


@pytest.mark.parametrize("picture", ["0.png", "1.JPG"])
def test_arrays_with_pictures_of_the_same_name(tmp_path: Path, picture: str) -> None:
    source = ps.open(write(tmp_path / "in", picture))
    arrays = {one["__key__"]: one["npy"].tolist() for one in source if "npy" in one}
    assert arrays == {"0.npy": [0, 1, 2], "1.npy": [0, 1, 2, 3]}
    assert len(source) == 3


def test_a_picture_of_another_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", "lengths.png")
    with pytest.raises(ConfigError, match="doesn't store document borders"):
        len(ps.open(folder))
    assert ps.open(folder, eos_id=2).num_tokens == 7
