"""The same command again after a kill: it says that the output is complete, and writes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tests.formats.tokens.test_planes import killed_at
from tests.internals import RewriteOutput, chunk, excluded_samples, once_of, owner_of, place_of, split

import penstock as ps
from penstock import filter, merge, shuffle
from penstock.errors import ConfigError
from penstock.testing.datasets import files_in

Verb = Callable[[Path, Path], Any]

VERBS: dict[str, Verb] = {
    "merge": lambda source, out: merge([source, source.with_name(f"b{source.suffix}")], out),
    "shuffle": lambda source, out: shuffle(source, out, seed=3),
    "filter": lambda source, out: filter(source, out, indices=[0, 2]),
    "chunk": lambda source, out: chunk(source, out, chunk_id=0, num_chunks=2),
}


class Killed(BaseException):
    """Nothing of ours runs after it."""


def make(root: Path, suffix: str) -> Path:
    for name in ("a", "b"):
        path = root / f"{name}{suffix}"
        if suffix == ".pbin":
            with ps.create(path, format="pbin", token_bytes=2, eos_id=0) as writer:
                for number in range(4):
                    writer.write({"tokens": np.array([number + 1, 0], np.uint16)})
        else:
            options: dict[str, Any] = {} if suffix else {"columns": {"n": "int"}}
            with ps.create(path, format="jsonl" if suffix else "mds", **options) as writer:
                for number in range(4):
                    writer.write({"n": number})
    return root / f"a{suffix}"


def killed_at_the_end(call: Callable[[], object]) -> None:
    """Run up to the moment when the output is visible, and the mark still there."""
    with (
        mock.patch.object(*owner_of("remove_unfinished_mark"), side_effect=Killed),
        pytest.raises(Killed),
    ):
        call()


@pytest.mark.parametrize("suffix", [".jsonl", ".pbin", ""])
@pytest.mark.parametrize("name", VERBS)
def test_a_complete_output_is_known(tmp_path: Path, name: str, suffix: str) -> None:
    source, out = make(tmp_path, suffix), tmp_path / f"out{suffix}"
    expected = VERBS[name](source, tmp_path / f"other{suffix}")
    killed_at_the_end(lambda: VERBS[name](source, out))
    inode = out.stat().st_ino
    again = VERBS[name](source, out)
    assert getattr(again, "output", again).samples == getattr(expected, "output", expected).samples
    assert out.stat().st_ino == inode
    assert not [one for one in files_in(tmp_path) if "unfinished" in one or "staged" in one]
    with pytest.raises(ConfigError, match="the output exists"):
        VERBS[name](source, out)


@pytest.mark.parametrize("suffix", [".jsonl", ".pbin", ""])
def test_other_work_is_refused(tmp_path: Path, suffix: str) -> None:
    source, out = make(tmp_path, suffix), tmp_path / f"out{suffix}"
    killed_at_the_end(lambda: shuffle(source, out, seed=3))
    before = files_in(tmp_path)
    with pytest.raises(ConfigError, match="the output exists"):
        shuffle(source, out, seed=4)
    assert {name: data for name, data in before.items() if name in files_in(tmp_path)} == before


def test_what_somebody_put_there_is_nobodys_result(tmp_path: Path) -> None:
    """Killed before the output was visible; then somebody else's file came."""
    source, out = make(tmp_path, ".jsonl"), tmp_path / "out.jsonl"
    once = once_of(RewriteOutput(place_of(out)), [rewrite_rows(source)], {"command": "shuffle", "seed": 3}, 4)
    killed_at_the_end(lambda: once.commit(lambda: None))  # type: ignore[arg-type, return-value]
    out.write_bytes(b"mine\n")
    with pytest.raises(ConfigError, match="the output exists"):
        shuffle(source, out, seed=3)
    assert out.read_bytes() == b"mine\n"


def test_a_split_that_goes_on_leaves_files_of_others(tmp_path: Path) -> None:
    source = make(tmp_path, ".jsonl")
    killed_at_the_end(lambda: split(source, tmp_path / "parts", ratio=(1, 1)))
    (tmp_path / "parts" / "a_train.jsonl").unlink()
    (tmp_path / "parts" / "a_train.jsonl").write_bytes(b"mine\n")
    with pytest.raises(ConfigError, match="the output exists"):
        split(source, tmp_path / "parts", ratio=(1, 1))
    assert (tmp_path / "parts" / "a_train.jsonl").read_bytes() == b"mine\n"


def make_tars(root: Path) -> Path:
    with ps.create(root / "set", format="webdataset") as writer:
        for number in range(6):
            writer.write({"__key__": f"k{number}", "txt": str(number)})
    return root / "set"


def test_a_split_of_tars_that_is_complete(tmp_path: Path) -> None:
    source, parts = make_tars(tmp_path), tmp_path / "parts"
    expected = split(source, tmp_path / "other", ratio=(2, 1))
    killed_at_the_end(lambda: split(source, parts, ratio=(2, 1)))
    inodes = [one.stat().st_ino for one in sorted(parts.glob("*/*.tar"))]
    assert [one.samples for one in split(source, parts, ratio=(2, 1))] == [one.samples for one in expected]
    assert [one.stat().st_ino for one in sorted(parts.glob("*/*.tar"))] == inodes
    assert files_in(parts) == files_in(tmp_path / "other")
    with pytest.raises(ConfigError, match="the output exists"):
        split(source, parts, ratio=(2, 1))


def test_a_split_of_tars_goes_on(tmp_path: Path) -> None:
    """A part that was visible stays, a missing one is made; nobody else's folder is taken for one."""
    source, parts = make_tars(tmp_path), tmp_path / "parts"
    killed_at_the_end(lambda: split(source, parts, ratio=(2, 1)))
    inode = (parts / "set_train").stat().st_ino
    shutil.rmtree(parts / "set_validation")
    split(source, parts, ratio=(2, 1))
    assert (parts / "set_train").stat().st_ino == inode
    split(source, tmp_path / "other", ratio=(2, 1))
    assert files_in(parts) == files_in(tmp_path / "other")
    shutil.rmtree(parts)
    killed_at_the_end(lambda: split(source, parts, ratio=(2, 1)))
    shutil.rmtree(parts / "set_train")
    (parts / "set_train").mkdir()
    (parts / "set_train" / "mine").write_bytes(b"mine")
    with pytest.raises(ConfigError, match="the output exists"):
        split(source, parts, ratio=(2, 1))
    assert files_in(parts / "set_train") == {"mine": b"mine"}


def test_a_list_of_indices_is_an_input(tmp_path: Path) -> None:
    source, listed = make(tmp_path, ".jsonl"), tmp_path / "keep.txt"
    listed.write_text("0\n")
    with pytest.raises(ConfigError, match="would replace an input"):
        filter(source, listed, indices=listed, to="jsonl", overwrite=True)
    assert listed.read_text() == "0\n"


def rewrite_rows(path: Path) -> Any:
    from tests.internals import open_rows

    return open_rows(path)


@pytest.mark.parametrize("suffix", [".pbin", ".jsonl", ""])
def test_what_is_excluded_goes_along_over_older_data_killed_anywhere(tmp_path: Path, suffix: str) -> None:
    """The older data may look like the new ones; the same command makes these, and nothing is left over."""
    source, out = make(tmp_path, suffix), tmp_path / "out"
    out.mkdir()
    ps.exclude(source, indices=[1], reason="asked", who="me")
    target, kept_back = out / f"x{suffix}", tmp_path / "old"
    shutil.copytree(make_old(tmp_path, suffix), kept_back)

    def run() -> None:
        ps.filter(source, target, indices=[0, 1, 2], keep_excluded=True, overwrite=True)

    def fresh() -> None:
        shutil.rmtree(out)
        shutil.copytree(kept_back, out)

    fresh()
    run()
    expected = without_lists(out)
    for number in range(1, 10_000):
        fresh()
        if not killed_at(number, run):
            break
        run()
        assert without_lists(out) == expected
        assert [one.index for one in excluded_samples(target).entries] == [1]
    assert number > 15


def make_old(root: Path, suffix: str) -> Path:
    """A folder with an older dataset."""
    (root / "made").mkdir()
    make(root / "made", suffix)
    for one in (root / "made").iterdir():
        if one.name.startswith("b"):
            shutil.rmtree(one) if one.is_dir() else one.unlink()
    for one in sorted((root / "made").iterdir()):
        one.rename(one.with_name("x" + one.name[1:]))
    return root / "made"


def without_lists(folder: Path) -> dict[str, bytes]:
    """Entries say when they were made."""
    return {name: data for name, data in files_in(folder).items() if "exclude" not in name}
