"""Planes of documents that many workers convert: one dataset or a folder of token files, with one digest each."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import is_left_over, replace

import penstock as ps
from penstock.errors import ConfigError

PLANES = {"loss_mask": "bool", "weight": "float32"}
opened: Any = ps.open


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "convert_task_tokens", 30)


@pytest.fixture
def path(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    with ps.create(str(tmp_path / "a.pbin"), format="pbin", token_bytes=2, planes=PLANES) as writer:
        for number in range(40):
            ids = rng.integers(1, 500, number % 13)
            writer.write({"tokens": ids, "loss_mask": ids % 3 == 0, "weight": ids.astype(np.float32) / 7})
    return str(tmp_path / "a.pbin")


def held(path: str) -> list[list[Any]]:
    source = opened(path)
    return [[source[index][name].tolist() for name in ("tokens", *PLANES)] for index in range(len(source))]


def bytes_of(place: Path) -> dict[str, str]:
    """Digest of each file of an output, by its name behind the output's own."""
    found = [one for beside in place.parent.glob(f"{place.name}*") for one in (beside, *beside.rglob("*"))]
    names = {str(one.relative_to(place.parent)): one for one in found if one.is_file()}
    return {name: hashlib.sha256(one.read_bytes()).hexdigest() for name, one in names.items()}


def shares(path: str, target: str, **given: Any) -> None:
    """By an array: three shares, one of them twice, and the end."""
    for part in (2, 0, 2, 1):
        ps.convert(path, target, part=(part, 3), **given)
    ps.convert(path, target, finish=True, executor="inline", **given)
    ps.convert(path, target, finish=True, executor="inline", **given)


KINDS = {
    "pbin": ("out.pbin", {}),
    "megatron": ("out", {"to": "megatron"}),
    "flat-tokens": ("out.zarr", {"to": "flat-tokens"}),
    "files": ("out", {"to": "pbin", "file_tokens": 60}),
    "pairs": ("out", {"to": "megatron", "file_tokens": 60}),
    "groups": ("out", {"to": "flat-tokens", "file_tokens": 60}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_one_digest_for_any_number_of_workers(kind: str, path: str, tmp_path: Path) -> None:
    name, given = KINDS[kind]
    ways: dict[str, dict[str, Any]] = {"one": {}, "two": {"workers": 2}, "array": {}}
    found: dict[str, dict[str, str]] = {}
    for way, how in ways.items():
        (tmp_path / way).mkdir()
        target = str(tmp_path / way / name)
        if way == "array":
            shares(path, target, **given)
        else:
            ps.convert(path, target, **given, **how)
        assert held(target) == held(path)
        assert not ps.verify(target, depth="full")
        found[way] = bytes_of(Path(target))
        # Nothing is left of the work, and nobody can replace these data unseen.
        assert not [one.name for one in (tmp_path / way).rglob("*") if is_left_over(one.name)]
        with pytest.raises(ConfigError, match="data with planes can't be replaced"):
            ps.convert(path, target, overwrite=True, drop_planes=True, **given, **how)
        assert held(target) == held(path)
    assert found["one"] == found["two"] == found["array"]
    assert sum("plane." in one for one in found["one"]) == len(PLANES)


@pytest.mark.parametrize("kind", ["pbin", "files"])
def test_into_a_bucket(kind: str, path: str, tmp_path: Path, s3_server: str) -> None:
    name, given = KINDS[kind]
    root = f"s3://bucket/{tmp_path.name}"
    ps.convert(path, f"{root}/one-{name}", **given)
    shares(path, f"{root}/array-{name}", **given)
    for one in ("one", "array"):
        assert held(f"{root}/{one}-{name}") == held(path)
        assert not ps.verify(f"{root}/{one}-{name}", depth="full")


def test_what_lay_there_without_planes_is_replaced(path: str, tmp_path: Path) -> None:
    target = str(tmp_path / "out.pbin")
    ps.convert(path, target, drop_planes=True)
    ps.convert(path, target, workers=2, overwrite=True)
    assert held(target) == held(path)
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    ps.convert(path, str(tmp_path / "out"), file_tokens=60, drop_planes=True)
    ps.convert(path, str(tmp_path / "out"), file_tokens=60, overwrite=True)
    assert held(str(tmp_path / "out")) == held(path)


def test_one_finisher_that_fails_leaves_nothing(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.internals import TokenFiles

    target, real = str(tmp_path / "out"), TokenFiles.commit

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TokenFiles, "commit", fail)
    with pytest.raises(OSError, match="No space"):
        ps.convert(path, target, file_tokens=60)
    assert not list(Path(target).glob("index.json*"))
    monkeypatch.setattr(TokenFiles, "commit", real)
    ps.convert(path, target, file_tokens=60)
    assert held(target) == held(path)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("gone", ["all", "first", "last"])
def test_who_finishes_while_another_sweeps_leaves_what_that_one_made(
    overwrite: bool, gone: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marks that are swept are not files that are missing: an index of fewer must never take the other's place."""
    from tests.internals import TokenFiles

    target, given = str(tmp_path / "out"), {"file_tokens": 60, "executor": "inline", "drop_planes": True}
    if overwrite:
        ps.convert(path, target, **{**given, "file_tokens": 1000})
    given["overwrite"] = overwrite
    for part in (0, 1):
        ps.convert(path, target, part=(part, 2), **given)
    real = TokenFiles.make

    def make(files: TokenFiles, *about: Any) -> None:
        real(files, *about)
        marks = sorted(Path(files.work.place.path, "files").iterdir())
        kept = {mark: mark.read_bytes() for mark in marks}
        monkeypatch.setattr(TokenFiles, "make", real)
        ps.convert(path, target, finish=True, **given)
        left = {"all": [], "first": marks[1:], "last": marks[:-1]}[gone]
        for mark in left:  # the other is at it still
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.write_bytes(kept[mark])

    monkeypatch.setattr(TokenFiles, "make", make)
    ps.convert(path, target, finish=True, **given)
    assert opened(target).num_tokens == opened(path).num_tokens
    assert not ps.verify(target, depth="full")


def test_who_lists_what_another_swept_finds_it_complete(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.internals import SharedWork

    target, given = str(tmp_path / "out"), {"file_tokens": 60, "executor": "inline"}
    for part in (0, 1):
        ps.convert(path, target, part=(part, 2), **given)
    real, calls = SharedWork.listed, list[int]()

    def listed(work: SharedWork) -> Any:
        calls.append(1)
        if len(calls) == 2:  # after the parts, before the files
            monkeypatch.setattr(SharedWork, "listed", real)
            ps.convert(path, target, finish=True, **given)
        return real(work)

    monkeypatch.setattr(SharedWork, "listed", listed)
    report = ps.convert(path, target, finish=True, **given)
    assert len(calls) == 2
    assert report.digest == opened(target).manifest.digest  # and not that of a share
    assert held(target) == held(path)
