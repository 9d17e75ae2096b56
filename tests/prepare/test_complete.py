"""The same command again after a kill at the very end: what it prepares is complete, and nothing is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.internals import DatasetOptions, PrepareSummary, build_index, is_unfinished, owner_of, prepare_webdataset

import penstock as ps
from penstock.errors import ConfigError
from penstock.testing.datasets import files_in


class Killed(BaseException):
    """Nothing of ours runs after it."""


def killed_at_the_end(call: Callable[[], object]) -> None:
    """Run up to the moment when the output is visible, and the mark still there."""
    with mock.patch.object(*owner_of("remove_unfinished_mark"), side_effect=Killed), pytest.raises(Killed):
        call()


def hidden(root: Path) -> list[str]:
    """Work, marks and locks that are left."""
    return [name for name in files_in(root) if is_unfinished(name)]


@pytest.mark.parametrize(("flavor", "index"), [("modalities", "a.idx"), ("energon", "a.jsonl.idx")])
def test_an_index_that_is_complete(tmp_path: Path, flavor: str, index: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"n": number}) + "\n" for number in range(5)))
    killed_at_the_end(lambda: build_index(path, flavor=flavor))
    inode = (tmp_path / index).stat().st_ino
    with mock.patch.object(*owner_of("lines_to_index"), side_effect=AssertionError("the file is scanned again")):
        again = build_index(path, flavor=flavor)
    assert (again.num_lines, again.index_bytes) == (5, (tmp_path / index).stat().st_size)
    assert (tmp_path / index).stat().st_ino == inode
    assert hidden(tmp_path) == []
    with pytest.raises(ConfigError, match="the output exists"):
        build_index(path, flavor=flavor)


def test_an_index_says_again_what_it_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n{no\n{"n": 2}\n')
    killed_at_the_end(lambda: build_index(path, on_error="skip"))
    again = build_index(path, on_error="skip")
    assert (again.num_lines, again.num_dropped, [one.line for one in again.dropped]) == (2, 1, [2])


@pytest.mark.parametrize(
    ("change", "options"),
    [
        (lambda root: (root / "a.jsonl").write_text('{"n": 7, "m": 8}\n'), {}),
        (lambda root: (root / "a.idx").write_bytes(b"another"), {}),
        (lambda root: None, {"validate": False}),
    ],
)
def test_another_index_is_refused(tmp_path: Path, change: Callable[[Path], Any], options: dict[str, Any]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n')
    killed_at_the_end(lambda: build_index(path))
    change(tmp_path)
    with pytest.raises(ConfigError, match="the output exists"):
        build_index(path, **options)


def tars(root: Path) -> Path:
    """Shards that were never prepared."""
    with ps.create(root / "set", format="webdataset", maxcount=2) as writer:
        for number in range(3):
            writer.write({"__key__": f"k{number}", "txt": str(number)})
    for path in sorted((root / "set").rglob("*"), reverse=True):
        if path.is_file() and path.suffix != ".tar":
            path.unlink()
    return root / "set"


def prepare(path: Path, **options: Any) -> PrepareSummary:
    """As a user does, with pairs where JSON has lists."""
    dataset = DatasetOptions(sample_type="CrudeWebdataset")
    given: dict[str, Any] = {"split_ratio": (1, 0, 0), "dataset": dataset, "executor": "inline", **options}
    return prepare_webdataset(path, **given)


def test_a_folder_that_is_prepared(tmp_path: Path) -> None:
    path = tars(tmp_path)
    killed_at_the_end(lambda: prepare(path))
    before = files_in(path)
    again = prepare(path)
    assert (again.num_samples, again.num_parts, sum(again.shard_counts.values()), again.wrote) == (3, 3, 3, ())
    assert again.splits["train"] == (2, 3)
    assert {name: data for name, data in before.items() if "unfinished" not in name} == files_in(path)
    assert hidden(path) == []
    with pytest.raises(ConfigError, match="already prepared"):
        prepare(path)


@pytest.mark.parametrize("options", [{"split_ratio": (0, 1, 0)}, {"exclude": "000001"}, {"sqlite": False}])
def test_a_folder_that_is_prepared_otherwise(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tars(tmp_path)
    killed_at_the_end(lambda: prepare(path))
    with pytest.raises(ConfigError, match="already prepared"):
        prepare(path, **options)
