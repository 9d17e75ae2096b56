"""A folder, a pipe or a link that leads nowhere, in the place of any file of a dataset: never taken for nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import Corrupt, PenstockError, UnsafeData

opened: Any = ps.open
KINDS: dict[str, Callable[[Path], object]] = {
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "link to nowhere": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.fixture(params=list(KINDS))
def stand(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """Puts what is no file in the place of one."""

    def put(path: Path) -> None:
        path.unlink(missing_ok=True)
        KINDS[request.param](path)

    return put


def planed(path: Path, format: str) -> Path:
    with ps.create(path, format=format, token_bytes=2, planes={"loss_mask": "bool"}) as writer:
        for count in (3, 4):
            writer.write({"tokens": np.arange(count), "loss_mask": np.ones(count, np.bool_)})
    return path


def errors_of(path: Path, **options: Any) -> list[str]:
    return [str(one.path) for one in ps.verify(path, depth="full", **options) if one.severity == "error"]


@pytest.mark.parametrize(("format", "index"), [("pbin", "a.planes"), ("megatron", "a.idx.planes")])
def test_an_index_of_planes(format: str, index: str, tmp_path: Path, stand: Callable[[Path], None]) -> None:
    """It was opened as bare tokens, and a pipe there was clean to `verify`."""
    path = planed(tmp_path / "a", format)
    index_path = tmp_path / index
    assert index_path.is_file()
    stand(index_path)
    with pytest.raises((Corrupt, UnsafeData), match=r"a\.(idx\.)?planes"):
        opened(path, format=format)
    assert len(opened(path, format=format, planes=None)) == 2
    assert str(index_path) in errors_of(path, format=format)


def test_an_index_of_planes_of_data_without_any(tmp_path: Path, stand: Callable[[Path], None]) -> None:
    path = tmp_path / "a.pbin"
    with ps.create(path, format="pbin", token_bytes=2) as writer:
        writer.write({"tokens": np.arange(3)})
    stand(tmp_path / "a.pbin.planes")
    with pytest.raises((Corrupt, UnsafeData)):
        opened(path)
    assert errors_of(path) == [f"{path}.planes"]


def test_a_plane(tmp_path: Path, stand: Callable[[Path], None]) -> None:
    path = planed(tmp_path / "a.pbin", "pbin")
    (plane,) = tmp_path.glob("a.pbin.plane.*")
    stand(plane)
    with pytest.raises((Corrupt, UnsafeData)):
        opened(path)
    assert str(plane) in errors_of(path)


def test_a_chunk_of_zarr(tmp_path: Path, stand: Callable[[Path], None]) -> None:
    """It was taken for one that was never written: zeros."""
    path = tmp_path / "a.zarr"
    with ps.create(path, format="flat-tokens") as writer:
        writer.write({"tokens": np.arange(1, 9)})
    (tmp_path / "a.zarr.penstock").unlink()
    stand(path / "encoded_tokens" / "0")
    with pytest.raises((Corrupt, UnsafeData)):
        opened(path).tokens(0, 8)
    assert str(path / "encoded_tokens" / "0") in errors_of(path)


FORMATS = {"a.jsonl": "jsonl", "mds": "mds", "tars": "webdataset", "files": "folder"}


def made(folder: Path) -> list[Path]:
    with ps.create(folder / "a.jsonl", format="jsonl") as writer:
        writer.write({"text": "a"})
    with ps.create(folder / "mds", format="mds", columns={"text": "str"}) as writer:
        writer.write({"text": "a"})
    for name in ("tars", "files"):
        with ps.create(folder / name, format=FORMATS[name]) as writer:
            writer.write({"__key__": "a", "txt": b"a"})
    return [folder / name for name in FORMATS]


def test_verify_is_a_verdict_on_every_file(tmp_path: Path, stand: Callable[[Path], None]) -> None:
    """It ended with the system's error, 18, or as if there were no dataset, 9."""
    names = [one.relative_to(tmp_path / "0") for path in made(tmp_path / "0") for one in files_of(path)]
    # Without these nothing is lost: they are made again, with a word on the log.
    names = [one for one in names if one.name not in ("index.uuid", "index.keys", "shard_000000.tar.idx", "a.jsonl")]
    assert len(names) > 10
    for number, name in enumerate(names, 1):
        paths = {one.name: one for one in made(tmp_path / str(number))}
        stand(tmp_path / str(number) / name)
        whole = paths.get("a.jsonl" if name.parts[0] == "a.idx" else name.parts[0].removesuffix(".penstock"))
        assert whole is not None
        try:
            found = errors_of(whole, format=FORMATS[whole.name])
        except PenstockError as error:
            pytest.fail(f"{name}: {error!r}")
        assert found, name


def files_of(path: Path) -> list[Path]:
    if path.is_dir():
        return [one for one in path.rglob("*") if one.is_file()]
    return [path, path.with_suffix(".idx"), path.with_name(path.name + ".penstock")]
