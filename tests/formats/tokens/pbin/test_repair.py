"""`repair` of packed files: what can be saved is saved, the old file is kept, and nothing is done unasked."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import PBIN_FORMAT as FORMAT
from tests.internals import replace

from penstock.store import LocalStore
from penstock.types import Action, OpenOptions

Build = Callable[..., bytes]
Put = Callable[..., str]
DOCS = [[300, 2, 7], [7], [65_535, 0, 1, 7], [5, 7]]


def repair(path: str, *, write: bool = True, **options: Any) -> list[Action]:
    chosen = OpenOptions(**options)
    findings = FORMAT.check(LocalStore(), path, chosen, "quick")
    return FORMAT.repair(LocalStore(), path, chosen, findings, write=write)


def read(path: str) -> list[list[int]]:
    source = FORMAT.open(LocalStore(), path, OpenOptions())
    assert FORMAT.check(LocalStore(), path, OpenOptions(), "full") == []
    return [source[index]["tokens"].tolist() for index in range(len(source))]


def test_merged(golden: Path, put: Put, tmp_path: Path, expected: dict[str, Any]) -> None:
    merged = (golden / "modalities" / "pbin" / "merged.pbin").read_bytes()
    path = put(merged)
    [action] = repair(path, write=False)
    assert not action.done
    assert action.code == "pbin.merged-offsets"
    assert os.listdir(tmp_path) == ["a.pbin"]
    assert Path(path).read_bytes() == merged
    [action] = repair(path)
    assert action.done
    assert f"{path}.bak" in action.what
    assert Path(f"{path}.bak").read_bytes() == merged
    assert read(path) == expected["merged_docs"]
    assert repair(path) == []


def test_no_header_but_an_index(packed: Build, put: Put) -> None:
    whole = packed(DOCS)
    path = put(b"\0" * 8 + whole[8:])
    [action] = repair(path)
    assert action.code == "pbin.unfinished"
    assert Path(path).read_bytes() == whole
    assert read(path) == DOCS


def test_no_header_and_no_index(packed: Build, put: Put) -> None:
    whole = packed([*DOCS, [9, 9]])
    tokens = whole[: 12 + 2 * 12]
    path = put(b"\0" * 8 + tokens[8:] + b"\1")
    assert repair(path) == []
    assert len(repair(path, write=False, eos_id=7)) == 1
    [action] = repair(path, eos_id=7)
    assert "4 documents" in action.what
    assert "last 2 tokens" in action.what
    assert read(path) == DOCS
    assert Path(path).read_bytes() == packed(DOCS)


def test_no_header_and_half_an_index(packed: Build, put: Put) -> None:
    # The pickle begins with bytes that hold the EOS id 0: they must not be taken for tokens.
    docs = [[5, 6, 0], [8, 0]] * 50
    whole = packed(docs)
    path = put(b"\0" * 8 + whole[8:-30])
    repair(path, eos_id=0)
    assert read(path) == docs


@pytest.mark.parametrize("cut_bytes", [1, 5, 40])
def test_cut_index(packed: Build, put: Put, cut_bytes: int) -> None:
    whole = packed(DOCS * 5)
    path = put(whole[:-cut_bytes])
    assert repair(path) == []
    [action] = repair(path, eos_id=7)
    assert action.code == "pbin.truncated-index"
    assert read(path) == DOCS * 5
    assert Path(path).read_bytes() == whole


def test_no_index(packed: Build, put: Put) -> None:
    whole = packed([*DOCS, [4, 4]])
    path = put(whole[: 12 + 24])
    repair(path, eos_id=7)
    assert read(path) == [*DOCS, [4, 4]]  # the tokens are whole, so the rest is a document


def test_cut_tokens(packed: Build, put: Put) -> None:
    whole = packed(DOCS)
    path = put(whole[: 12 + 2 * 7 + 1])
    [action] = repair(path, eos_id=7)
    assert action.code == "pbin.truncated"
    assert "last 3 tokens" in action.what
    assert read(path) == DOCS[:2]


@pytest.mark.parametrize(
    "pairs",
    [
        [(0, 6), (4, 4), (8, 8), (16, 4)],
        [(0, 6), (8, 8), (16, 4)],
        [(0, 6), (6, 200)],
        [(0, 20)][:0],
        [(16, 4), (0, 16)],
    ],
)
def test_wrong_index(packed: Build, put: Put, pairs: list[tuple[int, int]]) -> None:
    path = put(packed(DOCS, pairs=pairs))
    assert repair(path) == []
    repair(path, eos_id=7)
    assert read(path) == DOCS


def test_index_that_is_no_index(packed: Build, put: Put) -> None:
    data = packed(DOCS)[:32] + pickle.dumps([(0, 6), ("x", 6)])
    path = put(data)
    repair(path, eos_id=7)
    assert read(path) == DOCS


@pytest.mark.parametrize("layout", ["h12be", "h8", "h4", "h12le-abs"])
def test_old_layouts_become_todays(packed: Build, put: Put, layout: str) -> None:
    path = put(packed(DOCS * 4, layout)[:-1])
    repair(path, eos_id=7)
    source = FORMAT.open(LocalStore(), path, OpenOptions())
    assert source.layout == "h12le"
    assert read(path) == DOCS * 4


def test_eos_of_the_side_file(tmp_path: Path) -> None:
    path = str(tmp_path / "a.pbin")
    with FORMAT.create(LocalStore(), path, {"token_bytes": 2, "eos_id": 7}, overwrite=False) as writer:
        writer.write_batch({"tokens": DOCS})
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[:-3])
    repair(path)
    assert Path(path).read_bytes() == whole
    assert read(path) == DOCS
    source = FORMAT.open(LocalStore(), path, OpenOptions())
    assert source.eos_id == 7


def test_backups_are_never_overwritten(packed: Build, put: Put) -> None:
    path = put(packed(DOCS)[:-1])
    Path(f"{path}.bak").write_bytes(b"mine")
    repair(path, eos_id=7)
    assert Path(f"{path}.bak").read_bytes() == b"mine"
    assert Path(f"{path}.bak1").read_bytes() == packed(DOCS)[:-1]


def test_what_can_not_be_mended(packed: Build, put: Put) -> None:
    whole = packed(DOCS)
    for data in (b"", b"\0" * 8 + b"\2\0\0\0", whole[:8] + b"\3" + whole[9:], whole[:8], packed([[1, 2]])[:-1]):
        path = put(data)
        assert repair(path, eos_id=7) == []
        assert Path(path).read_bytes() == data


def test_sound_files_are_left_alone(packed: Build, put: Put, tmp_path: Path) -> None:
    path = put(packed(DOCS, "h8"))
    assert repair(path, eos_id=7) == []
    assert os.listdir(tmp_path) == ["a.pbin"]


def test_long_documents_and_many(put: Put, packed: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "pbin_repair_run_tokens", 10)
    docs = [[1] * size + [7] for size in (3, 30, 0, 0, 9, 10, 11, 1)]
    path = put(packed(docs)[:-1])
    repair(path, eos_id=7)
    assert read(path) == docs


def test_rebuilt_index_is_exact(put: Put, packed: Build) -> None:
    rng = np.random.default_rng(3)
    docs = [[*rng.integers(8, 100, size).tolist(), 7] for size in rng.integers(0, 20, 300)]
    path = put(packed(docs)[:-2])
    repair(path, eos_id=7)
    assert Path(path).read_bytes() == packed(docs)
