"""Writers killed at every call that changes the disk: the old dataset, the whole new one, or nothing; then no trace."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import MEGATRON_KEPT as KEPT
from tests.internals import in_staged_folder, is_staged, is_waiting

import penstock as ps
from penstock.abc import Source
from penstock.errors import ConfigError, NotFound, PenstockError
from penstock.formats import get_format
from penstock.store import LocalStore
from penstock.testing.datasets import files_in
from penstock.testing.faults import COUNTED, FaultStore, FaultyOs
from penstock.types import OpenOptions, Sample

CHANGING = COUNTED - {"open", "close", "pread", "read"}


class Dead(FaultyOs):
    """From one operation on nothing changes any more, as if the process had been killed: nor does a clean-up."""

    def _call(self, name: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.calls.append(name)
        if not self.fail_at or len(self.calls) < self.fail_at:
            return call(*args, **kwargs)
        if name in ("close", "pread", "read"):  # the system closes files of the dead, and so lets go of their locks
            return call(*args, **kwargs)
        raise OSError(errno.EIO, "the process is dead")


def dying_store(at: int) -> FaultStore:
    store = FaultStore()
    store.faults = Dead(at)
    LocalStore.__init__(store, store.faults)
    return store


@dataclass(frozen=True)
class Case:
    """A format, a name for a dataset of it, and samples of the old one and the new one."""

    format: str
    name: str
    old: list[Sample]
    new: list[Sample]
    options: dict[str, Any] = field(default_factory=dict)
    open_options: OpenOptions = field(default_factory=OpenOptions)

    def __str__(self) -> str:
        return f"{self.format}-{len(self.new)}{self.options.get('flavor', '')}"

    def write(self, folder: Path, samples: list[Sample], store: LocalStore, *, overwrite: bool) -> None:
        made = get_format(self.format).create(store, str(folder / self.name), self.options, overwrite=overwrite)
        with made as writer:
            for sample in samples:
                writer.write(sample)

    def read(self, folder: Path) -> tuple[list[Any], Any] | None:
        """The samples, and what the side file counts; None where there is no dataset."""
        try:
            source: Source[Any] = get_format(self.format).open(LocalStore(), str(folder / self.name), self.open_options)
            found = [plain(source[index]) for index in range(len(source))]
        except NotFound:
            return None
        manifest = getattr(source, "manifest", None)
        return found, None if manifest is None else manifest.num_samples

    def errors(self, folder: Path) -> list[Any]:
        found = get_format(self.format).check(LocalStore(), str(folder / self.name), self.open_options, "full")
        return [one for one in found if one.code != KEPT]


def plain(sample: Sample) -> Any:
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in sample.items()
            if name not in ("__restore_key__", "__sources__", "__subflavors__", "__key__", "__shard__")}  # fmt: skip


def documents(*docs: list[int]) -> list[Sample]:
    return [{"tokens": np.array(doc, np.uint16)} for doc in docs]


def rows(count: int, word: str) -> list[Sample]:
    return [{"id": number, "text": f"{word} {number}"} for number in range(count)]


def tar_rows(count: int, word: str) -> list[Sample]:
    return [{"__key__": f"{number:03d}", "txt": f"{word} {number}"} for number in range(count)]


TOKENS = (documents([5, 6, 0], [7, 0], [8, 9, 10, 0]), documents([1, 0], [2, 3, 0]))
LINES = ([{"n": 10}, {"n": 11}, {"n": 12}], [{"n": 12}, {"n": 10}, {"n": 11}])  # one order of the other, of equal size
COLUMNS: dict[str, Any] = {"columns": {"id": "int", "text": "str"}}
CASES = [
    Case("pbin", "out.pbin", *TOKENS, {"token_bytes": 2}),
    Case("megatron", "out", *TOKENS, {"token_bytes": 2}),
    Case("flat-tokens", "out.zarr", *TOKENS),
    Case("jsonl", "out.jsonl", *LINES),
    Case("jsonl", "out.jsonl", [{"n": 1}], rows(4, "long")),
    Case("jsonl", "out.jsonl", *LINES, {"flavor": "energon"}, OpenOptions(flavor="energon")),
    Case("mds", "out", rows(3, "old"), rows(4, "new"), COLUMNS),
    Case("webdataset", "out", tar_rows(3, "old"), tar_rows(4, "new")),
    Case("folder", "out", tar_rows(3, "old"), tar_rows(4, "new")),
]


def call_names(case: Case, folder: Path, *, overwrite: bool) -> list[str]:
    store = dying_store(0)
    case.write(folder, case.new, store, overwrite=overwrite)
    return store.faults.calls


def changes(calls: list[str]) -> list[int]:
    """The first operations that change the disk, and the last ones, with which a dataset becomes visible."""
    found = [place for place, name in enumerate(calls, 1) if name in CHANGING]
    return [*found[:4], *found[4:][-20:]]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_killed_before_every_change(tmp_path: Path, case: Case, overwrite: bool) -> None:
    def start(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        if overwrite:
            case.write(folder, case.old, LocalStore(), overwrite=False)
        return folder

    whole = start("whole")
    old = case.read(whole) if overwrite else None
    calls = call_names(case, whole, overwrite=overwrite)
    new, plain_files = case.read(whole), files_in(whole)
    for place in changes(calls):
        folder = start(str(place))
        what = f"dead at {place} of {len(calls)}, {calls[place - 1]}"
        with contextlib.suppress(OSError, PenstockError):  # the last steps clean up, and never fail a writer
            case.write(folder, case.new, dying_store(place), overwrite=overwrite)
        found = case.read(folder)
        assert found in (old, new), what
        if found is not None:
            # Old lines can be without their index for a moment, so that other tools never read it with new lines.
            errors = [one for one in case.errors(folder) if one.code != "jsonl.no-index" or found != old]
            assert errors == [], what
        if not overwrite and found is not None:
            continue  # complete: what may be left is a second name that the next writer of this output removes
        case.write(folder, case.new, LocalStore(), overwrite=overwrite)
        assert files_in(folder) == plain_files, what


@pytest.mark.parametrize("case", [one for one in CASES if one.format in ("pbin", "flat-tokens", "jsonl")],
                         ids=str)  # fmt: skip
def test_repair_ends_what_a_kill_left(tmp_path: Path, case: Case) -> None:
    whole = tmp_path / "whole"
    case.write(whole, case.old, LocalStore(), overwrite=False)
    old_files = files_in(whole)
    calls = call_names(case, whole, overwrite=True)
    new_files, seen = files_in(whole), set()
    for place in changes(calls)[4:]:
        folder = tmp_path / str(place)
        case.write(folder, case.old, LocalStore(), overwrite=False)
        with contextlib.suppress(OSError, PenstockError):  # the last steps clean up, and never fail a writer
            case.write(folder, case.new, dying_store(place), overwrite=True)
        left = [name for name in files_in(folder) if is_waiting(name)]
        found = case.read(folder)
        chosen = get_format(case.format)
        told = chosen.repair(LocalStore(), str(folder / case.name), case.open_options, [], write=False)
        done = chosen.repair(LocalStore(), str(folder / case.name), case.open_options, [], write=True)
        assert len(told) == len(done) == len(left)
        assert not [one.done for one in told if one.done] + [one for one in done if not one.done]
        seen.add((bool(left), found == case.read(whole)))
        assert case.read(folder) == found
        assert case.errors(folder) == []
        data = {name: data for name, data in files_in(folder).items() if not is_staged(name)
                and not in_staged_folder(name)}  # fmt: skip
        assert data in (old_files, new_files), place
    assert {(True, False), (True, True)} <= seen  # both states


def test_the_index_of_the_other_flavor_goes_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    for flavor in ("modalities", "energon"):
        with ps.create(path, format="jsonl", flavor=flavor, overwrite=True) as writer:
            for number in range(3):
                writer.write({"n": number, "f": flavor})
    assert sorted(files_in(tmp_path)) == ["out.jsonl", "out.jsonl.idx", "out.jsonl.penstock"]


def test_an_index_without_its_file_is_only_replaced_where_a_killed_writer_left_it(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"

    def write() -> None:
        with ps.create(path, format="jsonl") as writer:
            writer.write({"n": 1})

    write()
    made = files_in(tmp_path)
    path.unlink()
    write()
    assert files_in(tmp_path) == made
    path.unlink()
    (tmp_path / "out.jsonl.penstock").unlink()
    with pytest.raises(ConfigError, match="the output exists"):
        write()
    assert sorted(files_in(tmp_path)) == ["out.idx"]
