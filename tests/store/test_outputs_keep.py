"""Nothing is ever gone but what the old dataset lists itself: random trees around outputs of every format."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from tests.crash.hook import Plan, calls_in, install
from tests.store.rivals import FOLDERS, FORMATS, OPTIONS, output_of, samples_of, write

import penstock as ps
from penstock.errors import PenstockError
from penstock.formats import files_at, get_format
from penstock.prepare import pack
from penstock.reshape.merge import merge
from penstock.store import LocalStore
from penstock.testing.faults import FaultStore
from penstock.testing.strategies import for_all

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "24"))
FOLDERS_IN = ("", "set", "set/sub", "set/sub/deep", "other", "in")
SHARDS = ("csv", "json-shards", "mds", "tsv", "xsv")
FILES = {f"files of {format}": format for format in ("flat-tokens", "megatron", "pbin")}
"""Folders of token files, which `pack` makes and no writer."""
TOKENIZER = Path(__file__).parent.parent / "golden/modalities/tokenizers/bpe2"
NAMES = ("set", "notes.txt", "shard.00000.mds", "set.idx", "set.bin", "0", "index.json", "old.txt")


@pytest.fixture
def memory() -> Iterator[Path]:
    """In memory where there is such a place: thousands of outputs wait for the disk otherwise."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        yield Path(os.path.realpath(name))


def snapshot(root: Path) -> dict[str, bytes | str]:
    """Every file, as its bytes, and every link, as where it leads; what is hidden and unfinished left out."""
    found: dict[str, bytes | str] = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.endswith(".staged")]
        for name in names + folders:
            path = Path(folder, name)
            if path.is_symlink():
                found[str(path.relative_to(root))] = os.readlink(path)
            elif path.is_file() and not name.endswith(".staged"):
                found[str(path.relative_to(root))] = path.read_bytes()
    return found


def kind_of(format: str) -> str:
    """What tells a dataset: shards of every kind are listed by the same index, so each replaces the others."""
    return "shards" if format in SHARDS else "token files" if format in FILES else format


def make(path: Path, format: str, name: str, *, overwrite: bool = False) -> None:
    """Write a dataset."""
    if format not in FILES:
        write(path, format, name, overwrite=overwrite)
        return
    with tempfile.TemporaryDirectory() as folder:
        pack_files(make_input(Path(folder) / "a.jsonl", name), path, format, overwrite=overwrite)


def make_input(path: Path, name: str) -> Path:
    """Texts that tell by whom they were written."""
    path.write_text("".join(json.dumps({"text": f"{name} {n} " * (n + 1)}) + "\n" for n in range(8)))
    return path


def pack_files(given: Path, path: Path, format: str, **options: Any) -> None:
    """Make a folder of a few token files."""
    how = {"executor": "inline", "engine": "tokenizers", "task_bytes": 200, "file_tokens": 60, "to": FILES[format]}
    pack(given, f"{path}/", tokenizer=TOKENIZER, **how, **options)


def make_tree(root: Path, plan: list[tuple[str, str, str, str]]) -> dict[str, set[str]]:
    """A tree of datasets, strays and links; returns the files of each dataset, by format and path."""
    own: dict[str, set[str]] = {}
    for kind, folder, name, format in plan:
        place = root / folder
        with contextlib.suppress(OSError, PenstockError):
            place.mkdir(parents=True, exist_ok=True)
            if kind == "dataset":
                before = set(snapshot(root))
                make(output_of(place, format), format, name)
                own[f"{kind_of(format)}:{output_of(place, format)}"] = set(snapshot(root)) - before
            elif kind == "file" and not os.path.lexists(place / name):
                (place / name).write_bytes(f"{folder}/{name}".encode())
            elif kind == "link" and not os.path.lexists(place / name):
                (place / name).symlink_to(root / ("other" if folder != "other" else "in"))
    return own


def replaceable(root: Path, format: str, path: Path, own: dict[str, set[str]]) -> set[str]:
    """What may go: the files of the dataset that is there, and the file that an output of one file names."""
    target = Path(os.path.realpath(path))
    kind = kind_of(format)
    files = own.get(f"{kind}:{path}", set()) | own.get(f"{kind}:{target}", set())
    named = [Path(one) for one in (files_at(format, str(target)) if format == "megatron" else [str(target)])]
    sides = [target / ".penstock", *(one.with_name(f"{one.name}.penstock") for one in (target, *named))]
    return files | {os.path.relpath(one, root) for one in (*named, *sides) if one.is_file()}


def rival(path: Path, format: str, rounds: int) -> None:
    for _ in range(rounds):
        with contextlib.suppress(PenstockError):
            make(path, format, "rival", overwrite=True)


def act(root: Path, action: str, format: str, path: Path, fault: int = 0, *, overwrite: bool = True) -> None:
    """Something that writes an output, and may well be refused or fail."""
    with contextlib.suppress(PenstockError, OSError):
        if format in FILES:
            store = FaultStore(fault) if action == "fault" else LocalStore()
            shares = [{"part": (0, 2)}, {"part": (1, 2)}, {"finish": True}] if action == "merge" else [{}]
            for share in shares:
                pack_files(inputs_of(root, format)[0], path, format, overwrite=overwrite, store=store, **share)
        elif action == "merge":
            merge(inputs_of(root, format), path, to=format, overwrite=overwrite)
        elif action == "convert":
            more = {"separator": ";"} if format == "xsv" else {}
            ps.convert(inputs_of(root, format)[0], path, to=format, overwrite=overwrite, workers=1, **more)
        else:
            store = FaultStore(fault) if action == "fault" else LocalStore()
            create = get_format(format).create
            with create(store, str(path), OPTIONS[format], overwrite=overwrite) as writer:
                for sample in samples_of(format, "new"):
                    writer.write(sample)


def entries(format: str) -> st.SearchStrategy[list[tuple[str, str, str, str]]]:
    """Plans of trees; see `make_tree`."""
    return st.lists(
        st.tuples(
            st.sampled_from(["dataset", "file", "file", "link"]),
            st.sampled_from(FOLDERS_IN),
            st.sampled_from(NAMES),
            st.sampled_from([format, format, "mds", "jsonl"]),
        ),
        max_size=6,
    )


def inputs_of(root: Path, format: str) -> list[Path]:
    suffix = "/a.jsonl" if format in FILES else ""
    return [Path(f"{output_of(root / 'in' / name, format)}{suffix}") for name in ("one", "two")]


def make_inputs(root: Path, format: str) -> None:
    for path in inputs_of(root, format):
        path.parent.mkdir(parents=True)
        if format in FILES:
            make_input(path, path.parent.parent.name)
        else:
            write(path, format, path.parent.name)


@pytest.mark.parametrize("format", [*FORMATS, *FILES])
def test_only_what_the_old_dataset_lists_goes(memory: Path, format: str) -> None:
    numbers = itertools.count()
    action = st.sampled_from(["create", "merge", "convert", "fault", "fault", "race"])

    @for_all(entries(format), action, st.sampled_from(FOLDERS_IN), st.integers(1, 70), st.booleans(), examples=EXAMPLES)
    def law(plan: list[Any], action: str, folder: str, fault: int, named: bool) -> None:
        root = memory / str(next(numbers))
        root.mkdir()
        make_inputs(root, format)
        own = make_tree(root, plan)
        path = root / folder if named and folder else output_of(root / folder, format)
        before, may_go = snapshot(root), replaceable(root, format, path, own)
        if action == "race":
            thread = threading.Thread(target=rival, args=(path, format, 2))
            thread.start()
            act(root, "create", format, path)
            thread.join()
        else:
            act(root, action, format, path, fault)
        after = snapshot(root)
        gone = {name for name, data in before.items() if name not in may_go and after.get(name) != data}
        assert gone == set(), f"{action} of {path.relative_to(root)}"
        shutil.rmtree(root)


def disturbed(plans: list[Plan], work: Callable[[], None], meanwhile: Callable[[], None]) -> bool:
    """Run in a child that dies, or stops, at the calls of `plans`; others act while it is stopped. Whether it was."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for plan in plans:
                install(plan)
            work()
            status = 0
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(status)
    ended = os.waitpid(pid, os.WUNTRACED)[1]
    stopped = os.WIFSTOPPED(ended)
    if stopped:
        try:
            meanwhile()
        finally:
            os.kill(pid, signal.SIGCONT)
            ended = os.waitpid(pid, 0)[1]
    assert os.waitstatus_to_exitcode(ended) in (0, -signal.SIGKILL)
    return stopped


def put_strays(*places: Path) -> dict[Path, bytes]:
    """Files of somebody who knows nothing of datasets, where nothing is yet; returns those that were made."""
    made: dict[Path, bytes] = {}
    for place in places:
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            with open(place, "xb") as file:
                file.write(made.setdefault(place, f"stray {place}".encode()))
    return made


def strays_in(folder: Path) -> tuple[Path, ...]:
    return folder / "stray", folder / "sub" / "stray", folder.with_name("stray"), folder / "shard.00009.mds"


def calls_of(base: Path, action: str, format: str) -> list[str]:
    """The calls that it makes to replace a dataset."""
    root, notes = base / "root", base / "notes"
    shutil.rmtree(base, ignore_errors=True)
    notes.mkdir(parents=True)
    make_inputs(root, format)
    make(output_of(root, format), format, "old")
    plan = Plan(str(root), str(notes), noted=True)
    disturbed([plan], lambda: act(root, action, format, output_of(root, format)), lambda: None)
    return [call.name for call in calls_in(str(notes))]


@pytest.mark.parametrize("format", [*FORMATS, *FILES])
def test_nor_where_writers_are_killed_or_others_act_at_any_call(memory: Path, format: str) -> None:
    numbers = itertools.count()
    actions = ("create", "convert") if format == "folder" else ("create", "convert", "merge")
    calls = {action: len(calls_of(memory / "calls", action, format)) for action in actions}
    assert min(calls.values()) > 10
    examples = EXAMPLES // (8 if format in FILES and EXAMPLES < 100 else 2)  # each takes several runs
    stops: list[bool] = []

    @for_all(
        entries(format),
        st.sampled_from(actions),
        st.sampled_from(FOLDERS_IN),
        st.sampled_from([True, True, False]),
        st.floats(0, 1, exclude_max=True),
        st.sampled_from(["nobody", "rival", "strays", "file"]),
        st.one_of(st.none(), st.integers(0, 12)),
        st.sampled_from([True, True, False]),
        st.sampled_from([format, format, "mds", "flat-tokens", *FILES][: 4 + 3 * (format in FILES)]),
        examples=examples,
    )
    def law(
        plan: list[Any],
        action: str,
        folder: str,
        old: bool,
        part: float,
        who: str,
        dies: int | None,
        overwrite: bool,
        then: str,
    ) -> None:
        root, stop, kill = (memory / name for name in (str(next(numbers)), "stop", "kill"))
        for made in (root, stop, kill):
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir()
        make_inputs(root, format)
        own = make_tree(root, [("dataset", folder, "old", format)] * (old and overwrite) + plan)
        path = output_of(root / folder, format)
        before, may_go = snapshot(root), replaceable(root, format, path, own) if overwrite else set[str]()
        strays: dict[Path, bytes] = {}

        def meanwhile() -> None:
            if who == "strays":
                strays.update(put_strays(*strays_in(path)))
            elif who == "file" and not overwrite:
                strays.update(put_strays(path))
            elif who == "rival":
                there = snapshot(root)
                act(root, "create", format, path, overwrite=overwrite)
                mine = {name: data for name, data in snapshot(root).items() if there.get(name) != data}
                before.update(mine)
                may_go.update(mine if overwrite else ())

        at = 1 + int(part * calls[action])
        plans = [Plan(str(root), str(kill), at + dies)] if dies is not None else []
        plans.append(Plan(str(root), str(stop), at, signal=signal.SIGSTOP))
        stops.append(disturbed(plans, lambda: act(root, action, format, path, overwrite=overwrite), meanwhile))
        act(root, "create", then, path, overwrite=overwrite)
        after = snapshot(root)
        gone = {name for name, data in before.items() if name not in may_go and after.get(name) != data}
        assert gone == set(), f"{action} of {path.relative_to(root)}"
        # What came at the last moment may have been moved, with all that the old dataset has left.
        kept = {one.read_bytes() for one in root.rglob("*") if one.is_file()}
        assert {name for name, data in strays.items() if data not in kept} == set()
        shutil.rmtree(root)

    assert sum(stops) > examples // 4


@pytest.mark.parametrize("format", FORMATS)
def test_what_takes_a_place_of_a_new_output_stays(memory: Path, format: str) -> None:
    """Also in the places of its index and its side file, until the data are made durable."""
    root, stop = memory / "root", memory / "stop"
    path = output_of(root, format)
    places = {path, *map(Path, files_at(format, str(path)))}
    places |= {one.with_name(f"{one.name}.penstock") for one in places}
    write_new = functools.partial(act, root, "create", format, path, overwrite=False)

    def stopped(at: int, meanwhile: Callable[[], None]) -> list[str]:
        for made in (root, stop):
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir()
        disturbed([Plan(str(root), str(stop), at, noted=not at, signal=signal.SIGSTOP)], write_new, meanwhile)
        return [call.name for call in calls_in(str(stop))]

    last = 1 + stopped(0, lambda: None).index("fsync")
    for at in sorted({*range(1, last, max(1, last // 5)), last}):
        for place in places:
            strays: dict[Path, bytes] = {}
            stopped(at, lambda place=place, strays=strays: strays.update(put_strays(place)))
            assert [one for one, data in strays.items() if not one.exists() or one.read_bytes() != data] == []


@pytest.mark.parametrize("format", FOLDERS)
def test_what_came_at_the_last_moment_outlives_a_kill(memory: Path, format: str) -> None:
    """It is in the folder that was replaced, which is still whole, and hidden."""
    root, stop, kill = (memory / name for name in ("root", "stop", "kill"))
    at = 1 + calls_of(memory / "calls", "create", format).index("renameat2")
    for made in (root, stop, kill):
        made.mkdir()
    path = output_of(root, format)
    write(path, format, "old")
    strays: dict[Path, bytes] = {}
    plans = [Plan(str(root), str(kill), at, "after"), Plan(str(root), str(stop), at, signal=signal.SIGSTOP)]
    work = functools.partial(act, root, "create", format, path)
    assert disturbed(plans, work, lambda: strays.update(put_strays(*strays_in(path))))
    assert len(strays) == 4
    for _ in range(2):
        act(root, "create", format, path)
        kept = {one.read_bytes() for one in root.rglob("*") if one.is_file()}
        assert kept >= set(strays.values())
    assert not list(root.rglob("*.staged"))
