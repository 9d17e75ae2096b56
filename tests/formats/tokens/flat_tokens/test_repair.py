"""`repair`: `seq_starts` from the start bits, `max_token_id` from the tokens; a backup of each; tokens untouched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from tests.internals import FLAT_TOKENS_FORMAT as FORMAT

import penstock as ps
from penstock.store import LocalStore
from penstock.testing.datasets import files_in
from penstock.types import Action, OpenOptions

from .conftest import checked, codes, documents_of, make, opened

REPAIRED = {
    "seq_starts_not_monotone": "seq_starts",
    "seq_starts_last_too_small": "seq_starts",
    "seq_starts_empty": "seq_starts",
    "seq_starts_dtype_uint32": "seq_starts",
    "first_bit_missing": "seq_starts",
    "first_bit_extra": "seq_starts",
    "max_token_id_too_small": "max_token_id",
    "max_token_id_missing": "max_token_id",
    "max_token_id_string": "max_token_id",
    "max_token_id_negative": "max_token_id",
}


def repair(path: Path, *, write: bool = True, **options: Any) -> list[Action]:
    return FORMAT.repair(LocalStore(), str(path), OpenOptions(**options), [], write=write)


@pytest.mark.parametrize("name", REPAIRED)
def test_golden_faults(groups: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.zarr"
    shutil.copytree(groups / "broken" / name, path)
    before = files_in(tmp_path)
    (plan,) = repair(path, write=False)
    assert (plan.code, plan.done) == (f"flat-tokens.{REPAIRED[name]}", False)
    assert files_in(tmp_path) == before
    (action,) = repair(path)
    assert action.done
    assert checked(path) == []
    after = files_in(tmp_path)
    tokens = {file: data for file, data in before.items() if "encoded_tokens" in file}
    assert {file: data for file, data in after.items() if "encoded_tokens" in file} == tokens
    backup = action.what.rpartition(" ")[2]
    kept = files_in(Path(backup)) if Path(backup).is_dir() else {"": Path(backup).read_bytes()}
    assert [data for data in kept.values() if data not in before.values()] == []
    assert repair(path) == []
    found = zarr.open_group(str(path), mode="r")
    assert found["seq_starts"][:].tolist() == opened(path).doc_starts.tolist()  # type: ignore[index]


@pytest.mark.parametrize(
    "name", ["chunk_truncated", "chunk_missing_fill_zero", "blosc_chunk_truncated", "tokens_dtype_int32", "not_a_group"]
)
def test_what_can_not_be_mended_is_left_alone(groups: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.zarr"
    shutil.copytree(groups / "broken" / name, path)
    before = files_in(tmp_path)
    assert repair(path) == []
    assert files_in(tmp_path) == before


def test_missing_seq_starts_and_both_at_once(tmp_path: Path) -> None:
    for zarr_format in (2, 3):
        path = make(tmp_path / f"{zarr_format}.zarr", [[5, 6], [7], [8]], zarr_format=zarr_format)
        shutil.rmtree(path / "seq_starts")
        where = path / (".zattrs" if zarr_format == 2 else "zarr.json")
        where.write_text(where.read_text().replace('"max_token_id": 8', '"max_token_id": 7, "by": "hand"'))
        assert "seq_starts.present" in codes(path)
        actions = repair(path)
        assert [one.code for one in actions] == ["flat-tokens.seq_starts", "flat-tokens.max_token_id"]
        assert documents_of(opened(path)) == [[5, 6], [7], [8]]
        assert opened(path).max_token_id == 8
        assert checked(path) == []  # with a side file made again
        assert opened(path).manifest is not None
        assert dict(zarr.open_group(str(path), mode="r").attrs) == {"max_token_id": 8, "by": "hand"}


def test_empty_sequences_are_lost_and_said(tmp_path: Path) -> None:
    path = make(tmp_path / "a.zarr", [[1, 2], [], [3], []])
    assert repair(path) == []
    starts = np.fromfile(path / "seq_starts" / "0", "<u8")
    starts[1] = 1
    starts.tofile(path / "seq_starts" / "0")
    (action,) = repair(path, write=False)
    assert "2 sequences, 2 fewer than before" in action.what
    repair(path)
    assert documents_of(opened(path)) == [[1, 2], [3]]


def test_splits_and_second_backups(tmp_path: Path) -> None:
    path = make(tmp_path / "set.zarr", [[1], [2]], split="train")
    make(path, [[3]], split="validation")
    for backup in ("set.zarr.train.zattrs.bak", "set.zarr.train.zattrs.bak1"):
        (path / "train" / ".zattrs").write_text("{}")
        assert len(repair(path)) == 1
        assert (tmp_path / backup).read_text() == "{}"
        assert checked(path) == []
    (path / "validation" / ".zattrs").write_text("{}")
    assert repair(path, split="train") == []
    assert [one.path for one in repair(path, split="validation")] == [str(path / "validation" / ".zattrs")]
    assert sorted(file.name for file in path.iterdir()) == [".zgroup", "train", "validation"]


def test_consolidated_metadata_go(tmp_path: Path) -> None:
    for zarr_format in (2, 3):
        path = make(tmp_path / f"{zarr_format}.zarr", [[1], [2]], zarr_format=zarr_format)
        Path(f"{path}.penstock").unlink()
        with pytest.warns(UserWarning, match="onsolidated") if zarr_format == 3 else _nothing():
            zarr.consolidate_metadata(str(path))
        shutil.rmtree(path / "seq_starts")
        repair(path)
        name = ".zmetadata" if zarr_format == 2 else "zarr.json"
        assert not (path / ".zmetadata").exists()
        assert Path(f"{path}.{name.lstrip('.')}.bak").exists()
        if zarr_format == 3:
            assert "consolidated_metadata" not in json.loads((path / "zarr.json").read_text())
        assert zarr.open_group(str(path), mode="r")["seq_starts"][:].tolist() == [0, 1, 2]  # type: ignore[index]


def test_through_the_front_door(tmp_path: Path) -> None:
    path = make(tmp_path / "a.zarr", [[1], [20]])
    (path / ".zattrs").write_text('{"max_token_id": 3}')
    assert "flat-tokens.max_token_id.covers" in [one.code for one in ps.verify(path)]
    assert [one.done for one in ps.repair(path)] == [False]
    assert [one.done for one in ps.repair(path, write=True)] == [True]
    assert ps.verify(path, depth="full") == []


class _nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...
