"""Small lies that were believed, or ended in an error without a type."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import block_starts, decode_state

import penstock as ps
from penstock.errors import Corrupt, FormatError, NotFound, PenstockError, ResumeMismatch
from penstock.formats import format_names, get_format
from penstock.store import LocalStore
from penstock.types import OpenOptions

NAMES = ["x" * 5000, "a/" + "x" * 300 + "/y", "a\0b", "a\ud800b", "", ".", "./", "loop/a"]


@pytest.mark.parametrize("format", [None, *format_names()])
@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name[:4]))
def test_names_that_no_file_has(name: str, format: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "below").mkdir()
    for below in ("below/a", "below/b"):
        with ps.create(below, format="mds", columns={"n": "str"}) as writer:
            writer.write({"n": "1"})
    if format == "folder" and name in ("", ".", "./"):
        return  # a folder may be one, whatever is in it
    with pytest.raises(PenstockError):
        ps.open(name, format=format)


@pytest.mark.parametrize("name", NAMES[:4], ids=lambda name: repr(name[:4]))
def test_a_store_has_no_such_file(name: str) -> None:
    store = LocalStore()
    for look in (store.size, store.get, store.mmap, lambda path: store.get_ranges(path, [(0, 1)])):
        with pytest.raises(NotFound):
            look(name)


def test_a_name_in_an_index(tmp_path: Path) -> None:
    with ps.create(tmp_path / "set", format="mds", columns={"n": "str"}) as writer:
        writer.write({"n": "1"})
    index = json.loads((tmp_path / "set" / "index.json").read_bytes())
    index["shards"][0]["raw_data"]["basename"] = "x" * 5000
    (tmp_path / "set" / "index.json").write_text(json.dumps(index))
    with pytest.raises(PenstockError):
        ps.open(tmp_path / "set")[0]


def test_an_order_of_items_that_there_is_not(tmp_path: Path) -> None:
    for order, fails in (("X", True), (3, True), ("C", False), ("F", False)):
        with ps.create(tmp_path / "x.zarr", format="flat-tokens", eos_id=0, token_bytes=2, zarr_format=2) as writer:
            writer.write({"tokens": np.array([1, 0])})
        path = tmp_path / "x.zarr" / "encoded_tokens" / ".zarray"
        meta = json.loads(path.read_bytes())
        path.write_text(json.dumps(meta | {"order": order}))
        (tmp_path / "x.zarr" / ".zmetadata").unlink(missing_ok=True)
        if fails:
            with pytest.raises(FormatError):
                ps.open(tmp_path / "x.zarr")[0]
        else:
            assert len(ps.open(tmp_path / "x.zarr")) == 1
        shutil.rmtree(tmp_path / "x.zarr")
        (tmp_path / "x.zarr.penstock").unlink()


GOOD: dict[str, Any] = {
    **{"version": 1, "order": "o", "consumed": 4, "children": {"a": "1"}, "recipe": "r"},
    "history": [[0, 0, 2, 1]],
}


@pytest.mark.parametrize(
    "change",
    [
        {"reads": {}},
        {"reads": {"a": 1}},
        {"reads": "1"},
        {"reads": None},
        {"children": {"a": 5}},
        {"children": {"a": {}}},
        {"order": {}},
        {"recipe": None},
        {"accepted": {}},
        {"accepted": [[1, "a", {}, "b"]]},
        {"accepted": [[1, 2, "a", "b"]]},
        {"consumed": True},
        {"history": {}},
        {"history": [[0, 0, 2, 1], [1, 1 << 80, 2, 1]]},
    ],
)
def test_states(change: dict[str, Any]) -> None:
    assert decode_state(GOOD).consumed == 4
    with pytest.raises(ResumeMismatch):
        decode_state(GOOD | change)


def test_an_unknown_place_is_no_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "x.pbin").write_bytes(b"")
    with pytest.raises((Corrupt, FormatError)):
        ps.open(tmp_path / "x.pbin", format="pbin")


@pytest.mark.parametrize("name", ["/etc/passwd", "../up.arrow"])
def test_a_name_that_leaves_a_saved_dataset_is_a_finding(name: str, tmp_path: Path, golden: Path) -> None:
    shutil.copytree(golden / "hf" / "test", tmp_path / "set")
    text = json.loads((tmp_path / "set" / "state.json").read_bytes())
    text["_data_files"][0]["filename"] = name
    (tmp_path / "set" / "state.json").write_text(json.dumps(text))
    findings = get_format("hf").check(LocalStore(), str(tmp_path / "set"), OpenOptions(), "quick")
    assert [one.severity for one in findings] == ["error"]


def test_rows_without_columns(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"a": [1, 2]}).select([]), tmp_path / "x.parquet")
    try:
        found = ps.open(tmp_path / "x.parquet")
        _ = [found[number] for number in range(len(found))]
    except PenstockError as error:
        assert str(error)  # noqa: PT017


@pytest.mark.parametrize("counts", [[50, 50, -1], [-3], [1 << 62, 1 << 62, 1 << 62]])
def test_rows_that_no_file_has(counts: list[int]) -> None:
    with pytest.raises(Corrupt, match="rows"):
        block_starts(counts, "a.parquet")
