"""Modalities' filters: its bytes, and no file harmed."""

from __future__ import annotations

import enum
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import replace

import penstock as ps
from penstock.compat.modalities import create_filtered_tokenized_dataset, filter_dataset
from penstock.errors import ConfigError, Corrupt, NotFound

GOLDEN = Path(__file__).parents[2] / "golden" / "modalities" / "pbin"
BPE2 = GOLDEN / "docs.bpe2.pbin"
EVEN = (GOLDEN / "docs.bpe2.filtered_even.pbin").read_bytes()


class Policy(enum.Enum):
    """As Modalities' own."""

    SKIP = "skip"
    OVERRIDE = "override"


@pytest.mark.parametrize("run_tokens", [1, 1000, 1 << 22])
def test_golden_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_tokens: int) -> None:
    replace(monkeypatch, "filters_run_tokens", run_tokens)
    filter_dataset(src_path=BPE2, dst_path=tmp_path / "a.pbin", filter_func=lambda item: item[0] % 2 == 0)
    assert (tmp_path / "a.pbin").read_bytes() == EVEN
    create_filtered_tokenized_dataset(BPE2, lambda number: number % 2 == 0, tmp_path / "b.pbin", "error")
    assert (tmp_path / "b.pbin").read_bytes() == EVEN
    assert ps.verify(tmp_path / "a.pbin", depth="full") == []


@pytest.mark.parametrize(
    ("name", "dtype"), [("docs.small1.pbin", np.uint8), ("docs.bpe2.pbin", np.int32), ("docs.word4.pbin", np.int64)]
)
def test_the_filter_sees_every_document_once(tmp_path: Path, name: str, dtype: Any) -> None:
    seen: list[tuple[int, Any]] = []

    def keep(item: tuple[int, dict[str, Any]]) -> bool:
        number, sample = item
        seen.append((number, sample["input_ids"].copy()))
        assert sample["input_ids"].dtype == dtype
        sample["input_ids"][:] = 0  # what a filter does to its copy is its own business
        return len(seen[-1][1]) > 60

    filter_dataset(GOLDEN / name, tmp_path / "out.pbin", keep)
    source, result = ps.open(GOLDEN / name), ps.open(tmp_path / "out.pbin")
    assert [number for number, _ in seen] == list(range(200))
    assert all(np.array_equal(tokens, source[number]["tokens"]) for number, tokens in seen)
    kept = [source[number]["tokens"] for number in range(200) if len(source[number]["tokens"]) > 60]
    assert 0 < len(kept) < 200
    assert [sample["tokens"].tolist() for sample in result] == [tokens.tolist() for tokens in kept]


def test_nothing_left(tmp_path: Path) -> None:
    filter_dataset(BPE2, tmp_path / "none.pbin", lambda item: False)
    assert (tmp_path / "none.pbin").read_bytes() == bytes(8) + b"\2\0\0\0" + bytes.fromhex("80045d942e")
    with pytest.raises(ValueError, match="the filter removes all documents"):
        create_filtered_tokenized_dataset(BPE2, lambda number: False, tmp_path / "b.pbin", "error")
    assert not (tmp_path / "b.pbin").exists()


def test_the_old_file_is_never_the_new_one(tmp_path: Path) -> None:
    path = shutil.copy(BPE2, tmp_path / "a.pbin")
    (tmp_path / "link.pbin").symlink_to(path)
    for new in (path, tmp_path / "link.pbin", tmp_path / "." / "a.pbin"):
        with pytest.raises(ValueError, match="replace"):
            filter_dataset(path, new, lambda item: True, overwrite=True)
        with pytest.raises(ValueError, match="replace"):
            create_filtered_tokenized_dataset(path, bool, new, "override")
    assert path.read_bytes() == BPE2.read_bytes()


def test_existing_files(tmp_path: Path) -> None:
    new = tmp_path / "a.pbin"
    new.write_bytes(b"mine")
    with pytest.raises(ConfigError, match="exist"):
        filter_dataset(BPE2, new, lambda item: item[0] % 2 == 0)
    with pytest.raises(ConfigError, match="exist"):
        create_filtered_tokenized_dataset(BPE2, lambda number: number % 2 == 0, new)
    create_filtered_tokenized_dataset(BPE2, lambda number: number % 2 == 0, new, Policy.SKIP)
    assert new.read_bytes() == b"mine"
    create_filtered_tokenized_dataset(BPE2, lambda number: number % 2 == 0, new, Policy.OVERRIDE)
    assert new.read_bytes() == EVEN
    new.write_bytes(b"mine")
    filter_dataset(BPE2, new, lambda item: item[0] % 2 == 0, overwrite=True)
    assert new.read_bytes() == EVEN
    with pytest.raises(ConfigError, match="policy"):
        create_filtered_tokenized_dataset(BPE2, bool, tmp_path / "b.pbin", "sometimes")


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    new = tmp_path / "a.pbin"
    new.write_bytes(b"mine")
    with pytest.raises(ZeroDivisionError):
        filter_dataset(BPE2, new, lambda item: bool(1 / (100 - item[0])), overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.pbin"]
    assert new.read_bytes() == b"mine"
    with pytest.raises(NotFound):
        filter_dataset(tmp_path / "none.pbin", tmp_path / "b.pbin", lambda item: True)
    with pytest.raises(Corrupt):
        filter_dataset(GOLDEN / "merged.pbin", tmp_path / "b.pbin", lambda item: True)
    assert not (tmp_path / "b.pbin").exists()


def test_what_is_known_of_the_tokens_is_handed_on(tmp_path: Path) -> None:
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, eos_id=0, tokenizer="t") as writer:
        writer.write_batch({"tokens": [[1, 0], [2, 3, 0]]})
    filter_dataset(tmp_path / "a.pbin", tmp_path / "b.pbin", lambda item: item[0] == 1)
    result = ps.open(tmp_path / "b.pbin")
    assert result.eos_id == 0
    assert result.manifest.tokenizer == "t"
