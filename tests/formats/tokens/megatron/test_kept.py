"""Replacing a dataset, killed at each step: one dataset is readable, of this version and of version 0.2."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import ConfigError
from penstock.formats.tokens.megatron import publish, writer
from penstock.formats.tokens.megatron.kept import left_names
from penstock.formats.tokens.megatron.layout import kept_prefix
from penstock.store.local import LocalStaged, LocalStore

OLD, NEW = [[1, 2], [3]], [[4, 5, 6], [], [7, 8]]
SUFFIXES = (".bin", ".idx.penstock", ".idx")


def write(prefix: Path, docs: list[list[int]], **options: Any) -> None:
    with ps.create(prefix, format="megatron", token_bytes=2, **options) as writer:
        for doc in docs:
            writer.write({"tokens": doc})


def read(prefix: Path) -> list[list[int]]:
    return [sample["tokens"].tolist() for sample in ps.open(prefix)]


class Killed(BaseException):
    """Nothing that the code catches to mend."""


# --- this version ------------------------------------------------------------------------------------------------


@pytest.fixture
def interrupted(tmp_path: Path) -> Callable[..., Path]:
    """A dataset whose commit stopped when so many of its files had their final names."""

    def replace(files: int, docs: list[list[int]] | None = OLD) -> Path:
        if docs is not None:
            write(tmp_path / "a", docs)
        store = LocalStore()
        transaction = store.transaction(str(tmp_path / "a.bin")).open()
        write(tmp_path / "new" / "a", NEW)
        for name in transaction.files.names:
            transaction.stage(name).write((tmp_path / "new" / name).read_bytes())
        shutil.rmtree(tmp_path / "new")
        renames: list[str] = []

        def rename(path: str, name: str) -> None:
            if len(renames) == files + 1:  # after that of the log
                raise Killed
            renames.append(name)
            os.rename(path, name)

        transaction._os = _Os(rename)  # type: ignore[assignment]
        with pytest.raises(Killed):
            transaction.commit()
        transaction.close()
        assert (tmp_path / "a.idx").exists() == (files == 3)
        return tmp_path / "a"

    return replace


class _Os:
    def __init__(self, rename: Callable[[str, str], None]) -> None:
        self.rename = rename

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


@pytest.mark.parametrize("docs", [None, OLD])
@pytest.mark.parametrize("files", [0, 1, 2])
def test_the_new_one_is_read_once_it_is_committed(
    interrupted: Callable[..., Path], files: int, docs: list[list[int]] | None, tmp_path: Path
) -> None:
    prefix = interrupted(files, docs)
    before = sorted(os.listdir(tmp_path))
    for path in (prefix, Path(f"{prefix}.idx"), Path(f"{prefix}.bin")):
        assert read(path) == NEW
    source = ps.open(prefix, read="pread")
    ps.convert(prefix, tmp_path / "b.pbin", to="pbin")
    assert read(tmp_path / "b.pbin") == NEW
    (tmp_path / "b.pbin").unlink()
    (tmp_path / "b.pbin.penstock").unlink()
    assert [(one.code, one.severity) for one in ps.verify(prefix, depth="full")] == [("megatron.replaced", "warning")]
    assert [one.done for one in ps.repair(prefix)] == [False]
    assert sorted(os.listdir(tmp_path)) == before
    assert [one.what for one in ps.repair(prefix, write=True)] == ["complete the commit that was interrupted"]
    assert sorted(os.listdir(tmp_path)) == ["a.bin", "a.idx", "a.idx.penstock"]
    assert read(prefix) == NEW
    assert [one["tokens"].tolist() for one in source] == NEW  # opened before
    assert ps.verify(prefix, depth="full") == []


@pytest.mark.parametrize("files", [0, 1, 2])
def test_the_next_writer_completes_it(interrupted: Callable[..., Path], files: int, tmp_path: Path) -> None:
    prefix = interrupted(files)
    with pytest.raises(ConfigError, match="exists"):
        write(prefix, OLD)
    assert sorted(os.listdir(tmp_path)) == ["a.bin", "a.idx", "a.idx.penstock"]
    write(prefix, OLD, overwrite=True)
    assert read(prefix) == OLD


def test_a_link_to_a_dataset_goes_by_its_log(interrupted: Callable[..., Path], tmp_path: Path) -> None:
    interrupted(1)
    (tmp_path / "links").mkdir()
    for suffix in (".bin", ".idx"):
        os.symlink(tmp_path / f"a{suffix}", tmp_path / "links" / f"b{suffix}")
    assert read(tmp_path / "links" / "b") == NEW


def test_an_error_before_the_log_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


# --- version 0.2 -------------------------------------------------------------------------------------------------


@pytest.fixture
def half(tmp_path: Path) -> Callable[..., Path]:
    """What version 0.2 left that was killed when so many of the new files were visible."""

    def replace(files: int) -> Path:
        write(tmp_path / "new" / "a", NEW)
        write(tmp_path / "a", OLD)
        give_second_names(tmp_path)
        (tmp_path / "a.idx").unlink()
        for suffix in SUFFIXES[:files]:
            os.rename(tmp_path / "new" / f"a{suffix}", tmp_path / f"a{suffix}")
        shutil.rmtree(tmp_path / "new")
        return tmp_path / "a"

    return replace


def give_second_names(folder: Path) -> None:
    for suffix in SUFFIXES:
        os.link(folder / f"a{suffix}", folder / f".a.replaced{suffix}")


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


def test_what_a_finished_one_left_is_told_and_removed(tmp_path: Path) -> None:
    write(tmp_path / "a", NEW)
    give_second_names(tmp_path)
    assert len(left_names(LocalStore(), str(tmp_path / "a"))) == 3
    assert [(one.code, one.severity) for one in ps.verify(tmp_path / "a")] == [("megatron.replaced", "warning")]
    assert [one.done for one in ps.repair(tmp_path / "a", write=True)] == [True]
    assert ps.verify(tmp_path / "a") == []
    assert not os.path.exists(kept_prefix(str(tmp_path / "a")) + ".bin")


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
        patched.setattr(writer, "claim_pair", publish.StoredPair)
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
    write(again / "a", NEW, overwrite=True)
    assert sorted(os.listdir(again)) == ["a.bin", "a.idx", "a.idx.penstock"]
    assert read(again / "a") == NEW
    assert ps.verify(again / "a", depth="full") == []


def test_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "no hard links")

    monkeypatch.setattr(os, "link", refuse)
    write(tmp_path / "a", OLD)
    write(tmp_path / "a", NEW, overwrite=True)
    assert read(tmp_path / "a") == NEW
    assert sorted(os.listdir(tmp_path)) == ["a.bin", "a.idx", "a.idx.penstock"]
