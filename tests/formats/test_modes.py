from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.formats import get_format
from penstock.formats._sources import preferred_mode
from penstock.store.local import LocalStore
from penstock.testing import CountingStore
from penstock.types import OpenOptions


def made(folder: Path, name: str) -> str:
    path = folder / {"pbin": "a.pbin", "megatron": "a", "flat-tokens": "a.zarr", "jsonl": "a.jsonl"}[name]
    options: Any = {"token_bytes": 2} if name in ("pbin", "megatron") else {}
    with ps.create(path, format=name, **options) as writer:
        for number in range(1, 20):
            writer.write({"id": number} if name == "jsonl" else {"tokens": np.arange(number, dtype=np.uint16)})
    return str(path)


@pytest.mark.parametrize("name", ["pbin", "megatron", "flat-tokens", "jsonl"])
def test_what_can_not_be_mapped_is_shuffled_by_blocks(tmp_path: Path, name: str) -> None:
    path = made(tmp_path, name)
    store: Any = CountingStore(LocalStore())
    far: Any = get_format(name).open(store, path, OpenOptions())
    near: Any = ps.open(path)
    assert (near.preferred_mode, far.preferred_mode) == ("global", "blocks")
    assert "mode=blocks" in str(ps.Shuffle(far, seed=1))
    assert "mode=global" in str(ps.Shuffle(near, seed=1))


def test_compressed_data_are_shuffled_by_blocks(tmp_path: Path) -> None:
    assert preferred_mode(LocalStore(), compressed=True) == "blocks"
    with ps.create(tmp_path / "a.zarr", format="flat-tokens", compressor="zstd") as writer:
        writer.write({"tokens": np.arange(9, dtype=np.uint16)})
    source: Any = ps.open(tmp_path / "a.zarr")
    assert source.preferred_mode == "blocks"
