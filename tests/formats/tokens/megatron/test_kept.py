"""Replacing a dataset, killed at each step: the old one stays readable, until the new one is whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import ConfigError
from penstock.formats.tokens.megatron import publish
from penstock.formats.tokens.megatron.kept import left_names, set_aside
from penstock.formats.tokens.megatron.layout import kept_prefix
from penstock.store.local import LocalStaged, LocalStore

OLD, NEW = [[1, 2], [3]], [[4, 5, 6], [], [7, 8]]


def write(prefix: Path, docs: list[list[int]], **options: Any) -> None:
    with ps.create(prefix, format="megatron", token_bytes=2, **options) as writer:
        for doc in docs:
            writer.write({"tokens": doc})


def read(prefix: Path) -> list[list[int]]:
    return [sample["tokens"].tolist() for sample in ps.open(prefix)]


class Killed(BaseException):
    """Nothing that the code catches to mend."""


@pytest.fixture
def half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Replaces a dataset, and stops at the first, second … file that becomes visible, as a kill does."""

    def replace(files: int) -> Path:
        write(tmp_path / "a", OLD)
        links: list[str] = []
        real = LocalStore.link

        def stop(store: LocalStore, path: str, name: str) -> bool:
            links.append(name)
            return real(store, path, name)

        def visible(staged: Any) -> None:
            if len(done) == files:
                raise Killed
            done.append(staged.path)
            commit(staged)

        done: list[str] = []
        with monkeypatch.context() as patched:
            commit = LocalStaged.commit
            patched.setattr(LocalStore, "link", stop)
            patched.setattr(LocalStaged, "commit", visible)
            patched.setattr(publish, "put_back", lambda store, prefix: None)
            with pytest.raises(Killed):
                write(tmp_path / "a", NEW, overwrite=True)
        assert len(links) == 3
        assert not (tmp_path / "a.idx").exists()
        return tmp_path / "a"

    return replace


@pytest.mark.parametrize("files", [0, 1, 2])
def test_the_old_one_is_read_until_the_new_one_is_whole(half: Callable[..., Path], files: int) -> None:
    prefix = half(files)
    assert read(prefix) == OLD
    assert read(Path(f"{prefix}.idx")) == OLD
    with pytest.raises(ConfigError, match="exists"):
        write(prefix, NEW)
    write(prefix, NEW, overwrite=True)
    assert read(prefix) == NEW
    assert ps.verify(prefix, depth="full") == []


@pytest.mark.parametrize("files", [0, 1, 2])
def test_repair_puts_the_old_one_back(half: Callable[..., Path], files: int) -> None:
    prefix = half(files)
    assert [(one.code, one.severity) for one in ps.verify(prefix, depth="full")] == [("megatron.replaced", "warning")]
    before = sorted(os.listdir(prefix.parent))
    assert [one.done for one in ps.repair(prefix)] == [False]
    assert sorted(os.listdir(prefix.parent)) == before
    assert [one.what for one in ps.repair(prefix, write=True)] == ["restore the old dataset"]
    assert sorted(os.listdir(prefix.parent)) == ["a.bin", "a.idx", "a.idx.penstock"]
    assert read(prefix) == OLD
    assert ps.verify(prefix, depth="full") == []


def test_an_error_puts_the_old_one_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a", OLD)
    (tmp_path / "a.idx.penstock").unlink()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    real = LocalStaged.commit

    def fails(staged: Any) -> None:
        if staged.path.endswith(".idx"):
            raise OSError("disk")
        real(staged)

    monkeypatch.setattr(LocalStaged, "commit", fails)
    with pytest.raises(OSError, match="disk"):
        write(tmp_path / "a", NEW, overwrite=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_a_finished_one_left_is_told_and_removed(tmp_path: Path) -> None:
    write(tmp_path / "a", NEW)
    assert set_aside(LocalStore(), str(tmp_path / "a"))
    assert len(left_names(LocalStore(), str(tmp_path / "a"))) == 3
    assert [(one.code, one.severity) for one in ps.verify(tmp_path / "a")] == [("megatron.replaced", "warning")]
    assert [one.done for one in ps.repair(tmp_path / "a", write=True)] == [True]
    assert ps.verify(tmp_path / "a") == []
    assert not os.path.exists(kept_prefix(str(tmp_path / "a")) + ".bin")


def test_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStore, "link", lambda store, path, name: False)
    write(tmp_path / "a", OLD)
    write(tmp_path / "a", NEW, overwrite=True)
    assert read(tmp_path / "a") == NEW
    assert sorted(os.listdir(tmp_path)) == ["a.bin", "a.idx", "a.idx.penstock"]


def stopped_without_links(prefix: Path, monkeypatch: pytest.MonkeyPatch, changes: int) -> None:
    """Replace a dataset where files have one name, and stop after so many steps, as a kill does."""
    done: list[object] = []

    def step(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any) -> None:
            if len(done) == changes:
                raise Killed
            done.append(call(*given))

        return counted

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "link", lambda store, path, name: False)
        patched.setattr(LocalStaged, "commit", step(LocalStaged.commit))
        patched.setattr(LocalStore, "rename", step(LocalStore.rename))
        patched.setattr(LocalStore, "delete", step(LocalStore.delete))
        with pytest.raises(Killed):
            write(prefix, NEW, overwrite=True)


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("changes", range(7))
def test_no_hard_links_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: int, foreign: bool) -> None:
    """Index and side file wait, the old index goes aside, tokens, side file and index come, the old index goes."""
    prefix = tmp_path / "a"
    write(prefix, OLD)
    if foreign:
        (tmp_path / "a.idx.penstock").unlink()
    stopped_without_links(prefix, monkeypatch, changes)
    expected = OLD if changes < 4 else NEW
    assert read(prefix) == expected
    assert {(one.code, one.severity) for one in ps.verify(prefix, depth="full")} <= {("megatron.replaced", "warning")}
    assert ps.open(prefix).manifest is not None or foreign
    with pytest.raises(ConfigError, match="exists"):
        write(prefix, NEW)
    shutil.copytree(tmp_path, tmp_path / "again")
    ps.repair(prefix, write=True)
    side = [] if foreign and changes < 4 else ["a.idx.penstock"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["a.bin", "a.idx", *side]
    assert read(prefix) == expected
    assert ps.verify(prefix, depth="full") == []
    again = tmp_path / "again"
    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "link", lambda store, path, name: False)
        write(again / "a", NEW, overwrite=True)
    assert sorted(os.listdir(again)) == ["a.bin", "a.idx", "a.idx.penstock"]
    assert read(again / "a") == NEW
    assert ps.verify(again / "a", depth="full") == []
