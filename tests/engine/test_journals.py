"""What all journals promise: one run at a time, what is finished survives, and nothing of anybody else is touched."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import Place, Plan, place_of, require_same, status_of
from tests.shared_work import finish_part

from penstock.engine import work as engine_work
from penstock.engine.folder import WorkFolder, is_real_folder
from penstock.engine.parts import PartMeta, PartName, encode_end, put_part
from penstock.engine.plan import VERSION
from penstock.errors import ConfigError, Corrupt, PrepareError
from penstock.prepare.energon import job as energon
from penstock.testing.datasets import files_in

NAME = f"00000000-000000z-0-0-0-{'0' * 16}.part"
A = Plan({"--eos": "a"}, (), 1, "gigatoken").digest()


@dataclass(frozen=True)
class Run:
    """A run that has the journal of `output`: what it may do, the same for every kind."""

    finish: Callable[[], None]
    is_finished: Callable[[], bool]
    end: Callable[[], None]


@dataclass(frozen=True)
class Kind:
    """One kind of journal.

    Attributes:
        name: of its folder.
        open: `(output, plan)` → a run.
        folder: of an output.
        files: what a finished piece is in the folder, the plan included.
        ours: a name that it would make.
    """

    name: str
    open: Callable[[Path, str], contextlib.AbstractContextManager[Run]]
    folder: Callable[[Place], WorkFolder]
    files: frozenset[str] = frozenset(("plan", f"{A}/plan-00000", f"{A}/parts/00/{NAME}"))
    ours: str = "0123456789abcdef"


def working(folder_of: Callable[[Place], WorkFolder]) -> Callable[..., contextlib.AbstractContextManager[Run]]:
    """Runs whose work lies in this folder."""

    @contextlib.contextmanager
    def run(output: Path, plan: str, *, restart: bool = False) -> Generator[Run]:
        place = place_of(output)
        asked = Plan({"--eos": plan}, (), 1, "gigatoken")
        name = PartName(0, 0, True, 0, 0, 0, "0" * 16)
        with engine_work.open_work(place, folder_of(place), restart=restart, shared=False) as work:
            require_same(work.plan, asked, place.path)
            work.begin(asked, 1)

            def finish() -> None:
                end = encode_end(np.empty(0, np.int64), PartMeta((), 0, 0, -1, ()))
                finish_part(work.folder.store.stage(work.parts.child(name.path).path), end)

            yield Run(finish, lambda: work.listed() == {0: [name]}, work.clear)

    return run


def folder_of(output: Place) -> WorkFolder:
    return engine_work.work_folder(output, inside=False)


packing = working(folder_of)


KINDS = {
    kind.name: kind
    for kind in (
        Kind(".out.work", packing, folder_of),
        Kind("out/.nv-meta.work", working(energon.folder_of), energon.folder_of),
    )
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "here" / "out"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of somebody else."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("precious")
    return tmp_path / "outside"


class Killed(Exception):
    """A run that ends without a word, as far as files can tell."""


def leave_finished(kind: Kind, out: Path) -> Path:
    """A run that is stopped when a piece is finished; its folder."""
    with pytest.raises(OSError, match="no space left"):
        stop(kind.open(out, "a"), OSError("no space left"))
    return out.parent / kind.name


def stop(opened: contextlib.AbstractContextManager[Run], error: BaseException) -> None:
    with opened as run:
        run.finish()
        raise error


def test_the_names_on_disk(kind: Kind, out: Path) -> None:
    folder = leave_finished(kind, out)
    assert kind.folder(place_of(out)).path == str(folder)
    assert set(files_in(folder)) == {*kind.files, "lock"}


def test_a_long_name_is_cut(tmp_path: Path) -> None:
    names = [os.path.basename(folder_of(place_of(tmp_path / ("é" * 110 + end))).path) for end in "ab"]
    assert len(set(names)) == 2
    assert {len(os.fsencode(name)) for name in names} <= set(range(190, 210))
    assert all(name.startswith(f".{'é' * 90}") for name in names)


def test_another_run_is_refused(kind: Kind, out: Path) -> None:
    with kind.open(out, "a") as run:
        run.finish()
        with pytest.raises(PrepareError, match="another run is writing this output") as caught, kind.open(out, "a"):
            pass
        assert caught.value.path == str(out)
        assert {*kind.files, "lock"} == set(files_in(out.parent / kind.name))
        run.end()


def test_what_is_finished_survives(kind: Kind, out: Path) -> None:
    leave_finished(kind, out)
    with kind.open(out, "a") as run:
        assert run.is_finished()


def test_nothing_is_left_after_the_end(kind: Kind, out: Path) -> None:
    leave_finished(kind, out)
    with kind.open(out, "a") as run:
        run.end()
    assert not (out.parent / kind.name).exists()


@pytest.mark.parametrize("error", [Killed, KeyboardInterrupt, PrepareError])
def test_a_run_that_finished_nothing(error: type[BaseException], kind: Kind, out: Path) -> None:
    with pytest.raises(error), kind.open(out, "a"):
        raise error("stop")
    with kind.open(out, "a") as run:
        assert not run.is_finished()
        run.end()
    assert set(files_in(out.parent)) == set()


def test_another_plan(kind: Kind, out: Path) -> None:
    folder = leave_finished(kind, out)
    before = files_in(folder)
    with pytest.raises(ConfigError, match="unfinished work for this output differs: --eos"), kind.open(out, "b"):
        pass
    assert files_in(folder) == before
    with working(kind.folder)(out, "b", restart=True) as run:
        assert not run.is_finished()


def test_what_is_half_written_is_dropped(kind: Kind, out: Path) -> None:
    folder = leave_finished(kind, out)
    (folder / f".{kind.ours}.01234567.staged").write_text("half")
    (folder / ".g0000002.01234567.staged").mkdir()
    (folder / ".g0000002.01234567.staged/a").write_text("half")
    with kind.open(out, "a") as run:
        assert run.is_finished()
        run.end()
    assert not folder.exists()


def test_a_file_of_a_stranger_stays(kind: Kind, out: Path) -> None:
    folder = leave_finished(kind, out)
    (folder / "notes.txt").write_text("precious")
    (folder / "more").mkdir()
    (folder / "more/notes.txt").write_text("precious")
    with kind.open(out, "a") as run:
        run.end()
    assert set(files_in(folder)) - {"lock"} == {"notes.txt", "more/notes.txt"}


def test_links_are_not_followed(kind: Kind, out: Path, outside: Path) -> None:
    folder = leave_finished(kind, out)
    (folder / kind.ours).symlink_to(outside)
    (folder / f".{kind.ours}.01234567.staged").mkdir()
    (folder / f".{kind.ours}.01234567.staged/inner").symlink_to(outside)
    with kind.open(out, "a") as run:
        run.end()
    assert not folder.exists()
    assert files_in(outside) == {"file": b"precious"}


@pytest.mark.parametrize("what", ["a link", "a link to nothing", "a file"])
def test_in_the_place_of_the_folder(what: str, kind: Kind, out: Path, outside: Path) -> None:
    place = out.parent / kind.name
    place.parent.mkdir(parents=True)
    if what == "a file":
        place.write_text("precious")
    else:
        place.symlink_to(outside if what == "a link" else outside / "nothing")
    with pytest.raises(ConfigError, match="the path of the work folder is taken") as caught, kind.open(out, "a"):
        pass
    assert caught.value.path == str(place)
    assert os.path.lexists(place)
    assert files_in(outside) == {"file": b"precious"}


@pytest.mark.parametrize("what", ["a link", "a folder", "a second name"])
def test_in_the_place_of_the_lock(what: str, kind: Kind, out: Path, outside: Path) -> None:
    lock = out.parent / kind.name / "lock"
    lock.parent.mkdir(parents=True)
    if what == "a link":
        lock.symlink_to(outside / "file")
    elif what == "a folder":
        lock.mkdir()
    else:
        os.link(outside / "file", lock)
    with pytest.raises(ConfigError, match="the path of the lock file is taken") as caught, kind.open(out, "a"):
        pass
    assert caught.value.path == str(lock)
    assert files_in(outside) == {"file": b"precious"}


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b'{"a":' * 100_000])
def test_a_damaged_plan(data: bytes, out: Path) -> None:
    folder = leave_finished(KINDS[".out.work"], out)
    (folder / "plan").write_bytes(data)
    with (
        pytest.raises(Corrupt, match=r"the plan of unfinished work is damaged.*--restart") as caught,
        packing(out, "a"),
    ):
        pass
    assert caught.value.path == str(out.parent / ".out.work/plan")
    with packing(out, "a", restart=True) as run:
        assert not run.is_finished()


def test_work_without_a_plan_counts_for_nothing(out: Path) -> None:
    folder = leave_finished(KINDS[".out.work"], out)
    (folder / "plan").unlink()
    with packing(out, "a") as run:
        assert not run.is_finished()


def test_folders_that_packing_made_go_with_it(tmp_path: Path) -> None:
    with packing(tmp_path / "a/b/out", "a"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_preparation_that_was_complete_is_forgotten(out: Path) -> None:
    place = place_of(out)
    with engine_work.open_work(place, energon.folder_of(place), restart=False, shared=False) as work:
        work.begin(Plan({"verb": "prepare"}, (), 1, ""), 1)
        put_part(work.parts, 0, b"", documents=0, tokens=0, num_dropped=0)
    assert (out / ".nv-meta.work").is_dir()
    for _ in range(2):
        energon.forget(place)
        assert not (out / ".nv-meta.work").exists()


def test_shards_of_an_older_version_are_named(out: Path) -> None:
    folder = energon.folder_of(place_of(out))
    Path(folder.path).mkdir(parents=True)
    (Path(folder.path) / f"{'0' * 32}.shard").write_bytes(b"old")
    opened = working(energon.folder_of)
    with pytest.raises(ConfigError, match="an earlier version of Penstock left unfinished work"), opened(out, "a"):
        pass
    with opened(out, "a", restart=True):
        assert files_in(Path(folder.path)).keys() == {"lock", "plan", f"{A}/plan-00000"}


def test_a_folder_goes_to_workers(kind: Kind, out: Path) -> None:
    folder: Any = pickle.loads(pickle.dumps(kind.folder(place_of(out))))
    assert folder.path == kind.folder(place_of(out)).path
    assert folder.is_ours(kind.ours)


def test_the_plan_is_json(out: Path) -> None:
    folder = leave_finished(KINDS[".out.work"], out)
    head = json.loads((folder / "plan").read_bytes())
    assert (head["digest"], head["pieces"]) == (A, 1)
    plan = json.loads((folder / A / "plan-00000").read_bytes())
    assert plan == {"options": {"--eos": "a"}, "task_bytes": 1, "engine": "gigatoken", "version": VERSION}


def test_a_real_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert is_real_folder(place_of(tmp_path))
    assert not is_real_folder(place_of(tmp_path / "link"))
    assert not is_real_folder(place_of(tmp_path / "none"))


@pytest.mark.parametrize(("old", "plan"), [(".out.work", "plan.json"), (".out.convert", "plan.json")])
def test_work_of_an_earlier_version_is_named(old: str, plan: str, out: Path) -> None:
    folder = out.parent / old
    (folder / "g0000000").mkdir(parents=True)
    (folder / "g0000000/index.json").write_text("{}")
    (folder / "g0000000.json").write_text("{}")
    (folder / "mine.txt").write_text("precious")
    (folder / plan).write_text("{}")
    before = files_in(folder)
    for use in (lambda: packing(out, "a").__enter__(), lambda: status_of(place_of(out))):
        with pytest.raises(
            ConfigError, match=r"an earlier version of Penstock left unfinished work.*--restart"
        ) as caught:
            use()
        assert caught.value.path == str(folder)
    assert {name: data for name, data in files_in(folder).items() if name != "lock"} == before
    with packing(out, "a", restart=True) as run:
        run.end()
    assert not (folder / plan).exists()
    assert (folder / "mine.txt").exists()
