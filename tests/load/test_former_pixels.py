"""States of version 0.2.0 with `decode="uint8"`, whose pixels changed since."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import ResumeMismatch

STATES = json.loads((Path(__file__).parents[1] / "golden/states/pixels-0.2.0.json").read_text())
"""Format → state after two steps of two samples, as version 0.2.0 saved it."""


def images(folder: Path) -> None:
    """Write eight images of 16 bits, as files and as a WebDataset."""
    (folder / "folder").mkdir()
    with ps.create(folder / "webdataset", format="webdataset") as writer:
        for number in range(8):
            data = b"P5 2 2 65535\n" + bytes([number, 1, 2, 3, 4, 5, 6, 7])
            (folder / "folder" / f"{number}.pgm").write_bytes(data)
            writer.write({"__key__": f"{number}", "pgm": data})


def loader(root: Path, format: str, decode: Any = "uint8") -> Any:
    data = ps.open(root / format, format=format, decode=decode)
    return ps.Loader(ps.Shuffle(data, seed=1), global_batch=2, rank=0, world=1, workers=0)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pixels")
    images(made)
    return made


@pytest.mark.parametrize("format", ["folder", "webdataset"])
def test_the_change_of_pixels_is_accepted_by_name(root: Path, format: str) -> None:
    state = STATES[format]
    with pytest.raises(ResumeMismatch, match="16-bit images") as caught:
        loader(root, format).load_state_dict(state)
    assert "accept=['pixels']" in str(caught.value)
    assert "uint8-0.2" in str(caught.value)
    resumed = loader(root, format)
    (line,) = resumed.load_state_dict(state, accept=["pixels"])
    assert "after the first 4 follow the new rule" in line
    assert loader(root, format).load_state_dict(resumed.state_dict()) == []


@pytest.mark.parametrize("format", ["folder", "webdataset"])
def test_the_former_pixels_need_no_acceptance(root: Path, format: str) -> None:
    resumed = loader(root, format, "uint8-0.2")
    assert resumed.load_state_dict(STATES[format]) == []
    assert resumed.state_dict()["children"] == STATES[format]["children"]
