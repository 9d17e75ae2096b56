"""Groups that the original and zarr made: every number as they have it, in every way to read."""

from __future__ import annotations

import hashlib
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import FLAT_TOKENS_FORMAT as FORMAT

import penstock as ps
from penstock.abc import Store
from penstock.store import LocalStore
from penstock.testing.counting import CountingStore
from penstock.testing.datasets import files_in
from penstock.types import OpenOptions

from .conftest import checked, codes, make, opened


def sha(array: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def arrays(expected: dict[str, Any]) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    """`(path, split, what it holds)` of every golden array."""
    for name, entry in expected.items():
        if name == "broken":
            continue
        if "same_as" in entry:
            dataset, split = entry["same_as"].split("/")
            yield name, None, expected[dataset]["splits"][split]
        elif entry["kind"] == "dataset":
            for split, held in entry["splits"].items():
                yield name, split, held
        else:
            yield name, None, entry


@pytest.mark.parametrize("way", ["mmap", "pread", "no maps"])
def test_all_of_them(groups: Path, expected: dict[str, Any], way: str) -> None:
    count = 0
    for name, split, held in arrays(expected):
        store: Store = CountingStore(LocalStore()) if way == "no maps" else LocalStore()
        read = "auto" if way == "no maps" or name.endswith(".zip") else way
        options = OpenOptions(split=split, read=read)  # type: ignore[arg-type]
        source = FORMAT.open(store, str(groups / name), options)
        assert (source.num_tokens, len(source)) == (held["token_count"], held["seq_count"]), name
        assert source.max_token_id == held["max_token_id"]
        if "sequences" in held:
            assert [source[i]["tokens"].tolist() for i in range(len(source))] == held["sequences"]
        assert sha(source.tokens(0, source.num_tokens).astype("<u4")) == held["sha256_token_ids_u32le"], name
        assert sha(source.doc_starts.astype("<u8")) == held["sha256_seq_starts_u64le"], name
        count += 1
    assert count == 26


def test_windows_and_labels(groups: Path, expected: dict[str, Any]) -> None:
    for name, split, held in arrays(expected):
        source = opened(groups / name, split=split)
        for text, packed in held["packed"].items():
            length, count = int(text), packed["window_count"]
            assert source.num_tokens // length == count
            if not count:
                continue
            windows = ps.Chunk(length, labels="start-zero")(source)
            assert len(windows) == count
            order = np.random.default_rng(1).permutation(count)
            batch = {
                field: np.empty((count, length), column.dtype)
                for field, column in windows.get_batch([0]).items()
                if field in ("inputs", "targets", "is_seq_start", "loss_mask")
            }
            for rows in np.array_split(order, -(-count // 32)):
                for field, column in batch.items():
                    column[rows] = windows.get_batch(rows)[field]
            assert sha(batch["inputs"].astype("<u4")) == packed["sha256_inputs_u32le"], (name, length)
            assert sha(batch["targets"].astype("<u4")) == packed["sha256_targets_u32le"], (name, length)
            assert sha(batch["is_seq_start"].astype(np.uint8)) == packed["sha256_is_seq_start_u8"], (name, length)
            assert batch["loss_mask"].all()


def test_one_document_a_window(groups: Path, expected: dict[str, Any]) -> None:
    count = 0
    for name, split, held in arrays(expected):
        source = opened(groups / name, split=split)
        for length, rows in held["unpacked_truncate_pad"].items():
            batch = ps.Whole(int(length), labels="start-zero")(source).get_batch(range(rows["rows"]))
            assert len(source) == rows["rows"]
            assert sha(batch["inputs"].astype("<u4")) == rows["sha256_inputs_u32le"], (name, length)
            assert sha(batch["targets"].astype("<u4")) == rows["sha256_targets_u32le"], (name, length)
            lengths = np.minimum(np.diff(source.doc_starts), int(length))
            np.testing.assert_array_equal(batch["loss_mask"].sum(axis=1), lengths)
            count += 1
    assert count > 30


def test_the_example_of_the_document(groups: Path) -> None:
    source = opened(groups / "seed" / "v2")
    whole = ps.Chunk(8, labels="start-zero")(source)[0]
    assert whole["inputs"].tolist() == [0, 1, 0, 3, 4, 0, 6, 7]
    assert whole["targets"].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    second = ps.Chunk(4, labels="start-zero")(source)[1]
    assert (second["inputs"].tolist(), second["targets"].tolist()) == ([0, 0, 6, 7], [5, 6, 7, 8])
    assert second["segment_ids"].tolist() == [1, 2, 2, 2]


def test_sound_ones_have_no_finding(groups: Path, expected: dict[str, Any]) -> None:
    for name in expected:
        if name == "broken":
            continue
        found = checked(groups / name)
        if name == "seed/v2_named_tokens":
            assert [(one.code, one.severity) for one in found] == [("flat-tokens.encoded_tokens.name", "warning")]
        else:
            assert found == [], name


def test_each_broken_one_has_its_finding(groups: Path, expected: dict[str, Any]) -> None:
    for name, entry in expected["broken"].items():
        findings = checked(groups / "broken" / name)
        if name == "chunk_missing_fill_zero":  # the original reads zeros; here missing ids are an error
            entry = {**entry, "must_fail_check": "chunk.present"}
        assert [one.code for one in findings] == [f"flat-tokens.{entry['must_fail_check']}"], name
        assert findings[0].severity == "error"
        missing = ("first_bit.set_at_starts", "chunk.present")
        assert Path(findings[0].path).exists() or entry["must_fail_check"] in missing, name
        assert findings[0].fix
        for depth in ("quick", "sample"):
            assert set(codes(groups / "broken" / name, depth)) <= {entry["must_fail_check"]}, name  # type: ignore[arg-type]


def test_a_zip_file_is_opened_by_its_path_alone(groups: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    shutil.copy(groups / "variants" / "v3_raw.zip", path)
    source: Any = ps.open(path)
    expected = ps.open(groups / "variants" / "v3_raw")
    assert source.fingerprint == expected.fingerprint
    again = pickle.loads(pickle.dumps(source))
    assert (again.tokens(0, 50) == expected.tokens(0, 50)).all()
    ps.convert(path, tmp_path / "b.pbin")
    assert ps.open(tmp_path / "b.pbin").num_tokens == source.num_tokens
    assert (tmp_path / "a.zip").read_bytes() == (groups / "variants" / "v3_raw.zip").read_bytes()
    assert [one for one in ps.repair(path, write=True) if one.done] == []


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("tiny_dataset", {"chunk_tokens": 5, "chunk_starts": 3}),
        ("seqax_synthetic_v2", {"chunk_tokens": 1000, "chunk_starts": 16}),
        ("seqax_synthetic_default_chunks_v2", {"chunk_tokens": None, "chunk_starts": 65_536}),
    ],
)
def test_written_again_in_seqaxs_layout_the_bytes_are_its_own(
    groups: Path, tmp_path: Path, name: str, sizes: dict[str, Any]
) -> None:
    path = tmp_path / "set"
    for split in ("validation", "train"):
        source = opened(groups / name, split=split)
        make(path, [sample["tokens"] for sample in source], split=split, compressor="seqax", **sizes)
    assert files_in(path) == files_in(groups / name)
