"""Nothing is ever gone but what the old dataset lists itself: random trees around outputs of every format."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from tests.store.rivals import FORMATS, OPTIONS, output_of, samples_of, write

import penstock as ps
from penstock.errors import PenstockError
from penstock.formats import get_format
from penstock.reshape.merge import merge
from penstock.store import LocalStore
from penstock.testing.faults import FaultStore
from penstock.testing.strategies import for_all

FOLDERS_IN = ("", "set", "set/sub", "set/sub/deep", "other", "in")
NAMES = ("set", "notes.txt", "shard.00000.mds", "set.idx", "set.bin", "0", "index.json", "old.txt")


def snapshot(root: Path) -> dict[str, bytes | str]:
    """Every file, as its bytes, and every link, as where it leads; lists of ours left out."""
    found: dict[str, bytes | str] = {}
    for folder, folders, names in os.walk(root):
        for name in names + folders:
            path = Path(folder, name)
            if path.is_symlink():
                found[str(path.relative_to(root))] = os.readlink(path)
            elif path.is_file() and not name.endswith((".penstock", ".staged")):
                found[str(path.relative_to(root))] = path.read_bytes()
    return found


def make_tree(root: Path, plan: list[tuple[str, str, str, str]]) -> dict[str, set[str]]:
    """A tree of datasets, strays and links; returns the files of each dataset, by format and path."""
    own: dict[str, set[str]] = {}
    for kind, folder, name, format in plan:
        place = root / folder
        with contextlib.suppress(OSError, PenstockError):
            place.mkdir(parents=True, exist_ok=True)
            if kind == "dataset":
                before = set(snapshot(root))
                write(output_of(place, format), format, name)
                own[f"{format}:{output_of(place, format)}"] = set(snapshot(root)) - before
            elif kind == "file" and not os.path.lexists(place / name):
                (place / name).write_bytes(f"{folder}/{name}".encode())
            elif kind == "link" and not os.path.lexists(place / name):
                (place / name).symlink_to(root / ("other" if folder != "other" else "in"))
    return own


def replaceable(root: Path, format: str, path: Path, own: dict[str, set[str]]) -> set[str]:
    """What may go: the files of the dataset that is there, and the file that an output of one file names."""
    target = Path(os.path.realpath(path))
    files = own.get(f"{format}:{path}", set()) | own.get(f"{format}:{target}", set())
    named = get_format(format).files_at(str(path)) if format == "megatron" else (str(path),)  # type: ignore[attr-defined]
    return files | {os.path.relpath(one, root) for one in named if os.path.isfile(one)}


def rival(path: Path, format: str, rounds: int) -> None:
    for _ in range(rounds):
        with contextlib.suppress(PenstockError):
            write(path, format, "rival", overwrite=True)


def act(root: Path, action: str, format: str, path: Path, fault: int, overwrite: bool) -> None:
    """Something that writes an output, and may well be refused or fail."""
    with contextlib.suppress(PenstockError, OSError):
        if action == "merge":
            merge([root / "in" / "one", root / "in" / "two"], path, to=format, overwrite=overwrite)
        elif action == "convert":
            ps.convert(root / "in" / "one", path, to=format, overwrite=overwrite, workers=1)
        else:
            store = FaultStore(fault) if action == "fault" else LocalStore()
            create = get_format(format).create
            with create(store, str(path), OPTIONS[format], overwrite=overwrite) as writer:
                for sample in samples_of(format, "new"):
                    writer.write(sample)


@pytest.mark.parametrize("format", FORMATS)
def test_only_what_the_old_dataset_lists_goes(tmp_path: Path, format: str) -> None:
    numbers = itertools.count()
    entry = st.tuples(
        st.sampled_from(["dataset", "file", "file", "link"]),
        st.sampled_from(FOLDERS_IN),
        st.sampled_from(NAMES),
        st.sampled_from([format, format, "mds", "jsonl"]),
    )
    action = st.sampled_from(["create", "merge", "convert", "fault", "fault", "race"])

    @for_all(
        st.lists(entry, max_size=6), action, st.sampled_from(FOLDERS_IN), st.integers(1, 70), st.booleans(), examples=40
    )
    def law(plan: list[Any], action: str, folder: str, fault: int, named: bool) -> None:
        root = tmp_path / str(next(numbers))
        root.mkdir()
        for name in ("one", "two"):
            write(root / "in" / name, "mds", name)
        own = make_tree(root, plan)
        path = root / folder if named and folder else output_of(root / folder, format)
        before, may_go = snapshot(root), replaceable(root, format, path, own)
        if action == "race":
            thread = threading.Thread(target=rival, args=(path, format, 2))
            thread.start()
            act(root, "create", format, path, fault, True)
            thread.join()
        else:
            act(root, action, format, path, fault, True)
        after = snapshot(root)
        gone = {name for name, data in before.items() if name not in may_go and after.get(name) != data}
        assert gone == set(), f"{action} of {path.relative_to(root)}"
        shutil.rmtree(root)
