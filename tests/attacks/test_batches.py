"""Samples that each fit, and together don't: an error that names them and their bytes, and none stands in for them.

numpy raised a MemoryError without a word of which; a decoder called the image that came when no memory was left damaged
or too large, and a loader put another one in its place.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import internals
from tests.internals import DecodeOptions, NoRoom, decode_image, in_memory, replace, scatter, stack

import penstock as ps
from penstock.errors import TooLarge

pillow = pytest.importorskip("PIL.Image")
opened: Any = ps.open
SIDE, COUNT = 1000, 40
CEILING_BYTES = 64 << 20


def image() -> bytes:
    file = io.BytesIO()
    pillow.new("L", (SIDE, SIDE)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def source(tmp_path: Path) -> Any:
    with ps.create(tmp_path / "tars", format="webdataset") as writer:
        for number in range(COUNT):
            writer.write({"__key__": f"k{number}", "png": image()})
    source = opened(tmp_path / "tars", decode="uint8")
    source.get_batch([0])  # what is imported for it is
    return source


def test_images(source: Any, confined: Callable[..., Any]) -> None:
    found = confined(lambda: source.get_batch(range(COUNT)), CEILING_BYTES)
    assert isinstance(found, NoRoom), found
    # Which one it is hangs on what the process has at hand: an image that is decoded, or all that are stacked.
    one, all_of_them = f"{SIDE} x {SIDE} pixels", f"{COUNT} arrays [{SIDE}, {SIDE}, 3] of uint8"
    assert one in str(found) or all_of_them in str(found)
    assert "'k" in str(found)


@pytest.mark.parametrize("on_error", ["raise", "substitute"])
def test_a_loader(source: Any, on_error: Any, confined: Callable[..., Any]) -> None:
    def read() -> Any:
        stream = ps.Shuffle(source, seed=1)
        with ps.Loader(stream, global_batch=COUNT, workers=0, world=1, rank=0, on_error=on_error) as loader:
            return next(iter(loader))

    found = confined(read, CEILING_BYTES)
    assert isinstance(found, NoRoom), found
    assert f"positions 0 to {COUNT - 1}, {COUNT} samples" in str(found)


def test_what_is_stacked(confined: Callable[..., Any]) -> None:
    one = np.zeros(1 << 22, np.uint8)
    samples = [{"__key__": f"k{number}", "image": one} for number in range(COUNT)]
    found = confined(lambda: stack(samples), CEILING_BYTES)
    assert isinstance(found, NoRoom), found
    assert f"{COUNT} arrays [{1 << 22}] of uint8, {COUNT << 22} bytes, in samples 'k0' to 'k{COUNT - 1}'" in str(found)
    batch = {"image": one[None]}
    rows = [(np.array([row]), batch) for row in range(COUNT)]
    found = confined(lambda: scatter(rows, COUNT), CEILING_BYTES)
    assert isinstance(found, NoRoom), found


@pytest.mark.parametrize("name", ["batch_pad_stack", "batch_stack", "generic_batch"])
def test_batches_of_energon(name: str, confined: Callable[..., Any]) -> None:
    torch = pytest.importorskip("torch")
    tensors = [torch.zeros(1 << 22, dtype=torch.uint8)] * COUNT
    found = confined(lambda: getattr(internals, name)(tensors), CEILING_BYTES)
    assert isinstance(found, NoRoom), found
    assert f"{COUNT} tensors, the first [{1 << 22}]" in str(found)


def test_rows_of_modalities(confined: Callable[..., Any]) -> None:
    pytest.importorskip("torch")
    from penstock.compat.modalities import GPT2LLMCollateFn

    collate = GPT2LLMCollateFn("ids", "targets")
    rows = [{"ids": np.zeros(1 << 20, np.int64)}] * COUNT
    found = confined(lambda: collate(rows), CEILING_BYTES)
    assert isinstance(found, NoRoom), found


def test_an_image_that_takes_more_than_its_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hostile one the reader finds no memory, though there is enough for its pixels: another one may stand in."""

    def no_memory(*_: Any) -> Any:
        raise MemoryError

    replace(monkeypatch, "pixels_of", no_memory)
    with pytest.raises(TooLarge, match=f"{SIDE} x {SIDE} pixels"):
        decode_image(image(), DecodeOptions("rgb8"))


def test_faults_of_others_pass() -> None:
    with pytest.raises(RuntimeError, match="of a user"), in_memory("a batch", ""):
        raise RuntimeError("of a user")
