"""What strangers put where Penstock keeps locks, hidden files and unfinished work: not followed, not emptied, named."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.internals import (
    METADATA_WORK,
    decode_manifest,
    encode_manifest,
    hold_lock,
    lock_name,
    nth_staged_name,
    open_shared,
    place_of,
    staged_name,
    work_folder,
    work_name,
)
from tests.internals import KeptFiles as Kept
from tests.internals import metadata_work_folder as energon_folder
from tests.internals import unfinished_mark as mark_path
from tests.store.rivals import FORMATS, output_of, write

import penstock as ps
from penstock import merge
from penstock.convert import convert
from penstock.errors import ConfigError, Corrupt
from penstock.store import LocalStore
from penstock.testing.datasets import files_in

HIDDEN = nth_staged_name("a", 0)
DEEP = b'{"a":' * 200_000
Plant = Callable[[Path], object]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of somebody else, which stays as it is."""
    folder = tmp_path / "outside"
    (folder / "inner").mkdir(parents=True)
    for name in ("plan.json", "g0000000.json", "000000-00000000.part", "inner/file", "index.json"):
        (folder / name).write_text("precious")
    return folder


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


def drop(path: Path) -> None:
    """Remove a file, a link or an empty folder."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink()


def plants(outside: Path) -> dict[str, Plant]:
    return {
        "a link to a file": lambda path: path.symlink_to(outside / "plan.json"),
        "a link to a folder": lambda path: path.symlink_to(outside),
        "a link to nothing": lambda path: path.symlink_to(outside / "nothing"),
        "a second name": lambda path: os.link(outside / "plan.json", path),
        "a pipe": os.mkfifo,
        "a folder": os.mkdir,
    }


@pytest.mark.parametrize("format", FORMATS)
def test_in_the_place_of_a_lock(format: str, here: Path, outside: Path) -> None:
    before = files_in(outside)
    path = output_of(here, format)
    lock = here / lock_name(f"{path.name}{'.bin' if format == 'megatron' else ''}")
    for what, plant in plants(outside).items():
        plant(lock)
        with pytest.raises(ConfigError, match="the path of the lock file is taken") as caught:
            write(path, format, "new")
        assert caught.value.path == str(lock), what
        assert os.listdir(here) == [lock.name]
        assert files_in(outside) == before, what
        drop(lock)
    write(path, format, "new")


def test_in_the_place_of_another_lock(here: Path, outside: Path) -> None:
    for plant in plants(outside).values():
        plant(here / "lock")
        with pytest.raises(FileExistsError, match="the path of the lock file is taken"), hold_lock(str(here / "lock")):
            pass
        drop(here / "lock")


def test_in_the_place_of_what_a_killed_writer_left(here: Path, outside: Path) -> None:
    before = files_in(outside)
    for what, plant in plants(outside).items():
        plant(here / HIDDEN)
        file = LocalStore(kept=Kept()).stage(str(here / "a"))
        file.write(b"new")
        file.commit()
        folder = LocalStore(kept=Kept()).stage_folder(str(here / "b"))
        folder.abort()
        assert (here / "a").read_bytes() == b"new"
        assert files_in(outside) == before, what
        for left in here.iterdir():
            assert "link" not in what or left.name in ("a", HIDDEN)
            drop(left)


@pytest.mark.parametrize("what", ["is a link", "holds a link", "holds a link to a file", "holds a second name"])
def test_in_the_place_of_a_folder_that_a_killed_writer_left(what: str, here: Path, outside: Path) -> None:
    before = files_in(outside)
    left = here / HIDDEN
    if what == "is a link":
        left.symlink_to(outside)
    else:
        left.mkdir()
    if what == "holds a link":
        (left / "inner").symlink_to(outside / "inner")
    elif what == "holds a link to a file":
        (left / "plan.json").symlink_to(outside / "plan.json")
    elif what == "holds a second name":
        os.link(outside / "plan.json", left / "plan.json")
    folder = LocalStore(kept=Kept()).stage_folder(str(here / "a"))
    for name in ("plan.json", "inner/file"):
        file = folder.stage(name)
        file.write(b"new")
        file.commit()
    folder.commit()
    assert files_in(outside) == before
    assert files_in(here / "a") == {"plan.json": b"new", "inner/file": b"new"}
    assert not (here / "a/inner").is_symlink()


def packing(here: Path) -> None:
    output = place_of(here / "out.pbin")
    with open_shared(output, work_folder(output, inside=False), restart=True, shared=False) as work:
        assert work.plan is None


def converting(here: Path) -> None:
    with ps.create(here / "in", format="mds", columns={"n": "int"}, overwrite=True) as writer:
        for number in range(20):
            writer.write({"n": number})
    convert(here / "in", here / "out", to="csv", group_rows=5, executor="inline", columns={"n": "int"}, restart=True)
    assert len(ps.open(here / "out")) == 20


def preparing(here: Path) -> None:
    dataset = place_of(here)
    with open_shared(dataset, energon_folder(dataset), restart=True, shared=False) as work:
        assert work.plan is None


WORK = {work_name("out.pbin"): packing, work_name("out"): converting, METADATA_WORK: preparing}


@pytest.mark.parametrize("name", WORK)
def test_in_the_place_of_a_work_folder(name: str, here: Path, outside: Path) -> None:
    before = files_in(outside)
    (here / name).symlink_to(outside)
    with pytest.raises(ConfigError, match="the path of the work folder is taken"):
        WORK[name](here)
    (here / name).unlink()
    (here / name).write_text("precious")
    with pytest.raises(ConfigError, match="the path of the work folder is taken"):
        WORK[name](here)
    assert (here / name).read_text() == "precious"
    assert files_in(outside) == before


@pytest.mark.parametrize("name", WORK)
def test_a_file_in_a_work_folder_stays(name: str, here: Path) -> None:
    (here / name / "mine").mkdir(parents=True)
    (here / name / "mine/a.txt").write_text("precious")
    (here / name / "b.shard").write_text("precious")
    WORK[name](here)
    assert files_in(here / name) == {"mine/a.txt": b"precious", "b.shard": b"precious"}


@pytest.mark.parametrize("name", WORK)
def test_links_in_a_work_folder_are_not_followed(name: str, here: Path, outside: Path) -> None:
    before = files_in(outside)
    (here / name).mkdir()
    for ours in ("plan", "plan.json", "0123456789abcdef", "g0000000", "000000-00000000.part", f"{'0' * 32}.shard"):
        (here / name / ours).symlink_to(outside)
    (here / name / staged_name("g0000001")).mkdir()
    (here / name / staged_name("g0000001") / "inner").symlink_to(outside / "inner")
    WORK[name](here)
    assert files_in(outside) == before


def test_a_plan_that_is_nested_without_end(here: Path) -> None:
    output = place_of(here / "out.pbin")
    folder = work_folder(output, inside=False)
    Path(folder.path).mkdir()
    (Path(folder.path) / "plan").write_bytes(DEEP)
    with (
        pytest.raises(Corrupt, match="the plan of unfinished work is damaged"),
        open_shared(output, folder, restart=False, shared=False),
    ):
        pass


@pytest.mark.parametrize("data", [DEEP, b"[" * 1_000_000, b"\xff\xfe" * 9])
def test_a_mark_that_is_nested_without_end(data: bytes, here: Path) -> None:
    (here / "a.jsonl").write_text(json.dumps({"n": 1}) + "\n")
    Path(mark_path(str(here / "out.jsonl"))).write_bytes(data)
    merge([here / "a.jsonl", here / "a.jsonl"], here / "out.jsonl")
    assert len(ps.open(here / "out.jsonl")) == 2


@pytest.mark.parametrize("name", ["../victim/a.txt", "{tmp}/victim/a.txt", "b/../../victim/a.txt", "link/a.txt"])
def test_a_dataset_that_lists_files_of_others_as_its_own(name: str, tmp_path: Path) -> None:
    """What replaces it removed them: the side file of a folder is the data's own."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "a.txt").write_text("precious")
    home = tmp_path / "set"
    with ps.create(home, format="folder") as writer:
        writer.write({"__key__": "b/c", "txt": "old"})
    names = {name.format(tmp=tmp_path): ("0" * 32,)}
    if name.startswith("link"):
        (home / "link").symlink_to(tmp_path / "victim")
        names["link"] = ("0" * 32,)
    side = home / ".penstock"
    told = decode_manifest(side.read_bytes())
    assert told is not None
    side.write_bytes(encode_manifest(dataclasses.replace(told, block_digests={**names, **told.block_digests})))
    with (
        pytest.raises(ConfigError, match=r"the folder (contains files|doesn't contain a dataset)"),
        ps.create(home, format="folder", overwrite=True) as new,
    ):
        new.write({"__key__": "d", "txt": "new"})
    assert (tmp_path / "victim" / "a.txt").read_text() == "precious"
    assert (home / "b" / "c.txt").read_text() == "old"
