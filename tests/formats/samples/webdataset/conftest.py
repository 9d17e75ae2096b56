"""Datasets that Energon made, laid out as it left them, and tars made by `tarfile`."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parents[3] / "golden" / "energon"
VERSIONS = ("2_3_0", "6_0_1", "7_0_0", "7_3_2", "awkward", "captioning")

MakeTar = Callable[..., Path]


def golden_json(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text())


def lay_out(name: str, target: Path) -> Path:
    """A dataset as Energon left it: `versions/<name>`, `captioning` or `awkward`."""
    if name in ("captioning", "awkward"):
        shutil.copytree(GOLDEN / name, target)
        (target / "nv-meta").rename(target / ".nv-meta")
    else:
        target.mkdir(parents=True)
        shutil.copytree(GOLDEN / "versions" / "shards", target / "shards")
        shutil.copytree(GOLDEN / "versions" / name / "nv-meta", target / ".nv-meta")
    if name == "seed002":  # typed in by hand: no tool has seen its shards
        for index in target.rglob("*.tar.idx"):
            index.unlink()
    return target


def write_tar(path: Path, members: Mapping[str, bytes] | list[tuple[str, bytes]], **how: Any) -> Path:
    """A shard with these members, made by `tarfile`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **how) as archive:
        for name, content in members.items() if isinstance(members, Mapping) else members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def write_shards(root: Path, shards: int = 3, samples: int = 4) -> Path:
    """Shards `s_<n>.tar` with the parts txt and json."""
    for shard in range(shards):
        members = [
            (f"k{shard}_{sample}.{part}", f'{{"{part}": {sample}}}'.encode())
            for sample in range(samples)
            for part in ("txt", "json")
        ]
        write_tar(root / f"s_{shard}.tar", members)
    return root


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Three shards of four samples, not prepared."""
    return write_shards(tmp_path / "set")
