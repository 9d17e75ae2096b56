"""Modalities' datasets over packed files: what the original gives, and errors where it gives something wrong."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock as ps
from penstock.compat.modalities import (
    CombinedDataset,
    EmbeddedStreamData,
    PackedMemMapDatasetBase,
    PackedMemMapDatasetContinuous,
    PackedMemMapDatasetMegatron,
)
from penstock.errors import ConfigError, Corrupt, FormatError, NotFound

GOLDEN = Path(__file__).parents[2] / "golden" / "modalities"
VIEWS = json.loads((GOLDEN / "views.json").read_text())
CONTINUOUS = json.loads((GOLDEN / "continuous.json").read_text())
BPE2 = GOLDEN / "pbin" / "docs.bpe2.pbin"
KEY = "input_ids"
DTYPES = {"docs.small1.pbin": np.uint8, "docs.bpe2.pbin": np.int32, "docs.word4.pbin": np.int64}


def sha256(arrays: Iterable[Any]) -> str:
    hasher = hashlib.sha256()
    for array in arrays:
        hasher.update(np.asarray(array).astype("<i8").tobytes())
    return hasher.hexdigest()


def name_of(case: dict[str, Any]) -> str:
    return "-".join(str(case[key]) for key in ("file", "block_size", "reuse_last_target") if key in case)


# --- documents -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DTYPES)
def test_documents_are_arrays_of_the_callers_own(name: str) -> None:
    dataset = PackedMemMapDatasetBase(GOLDEN / "pbin" / name, sample_key=KEY)
    source = ps.open(GOLDEN / "pbin" / name)
    assert len(dataset) == len(source) == 200
    assert dataset.token_size_in_bytes == source[0]["tokens"].dtype.itemsize
    for number, item in enumerate(dataset):
        assert item.keys() == {KEY}
        assert item[KEY].dtype == DTYPES[name]
        assert np.array_equal(item[KEY], source[number]["tokens"])
    item[KEY][0] += 1
    assert not np.array_equal(dataset[199][KEY], item[KEY])


def test_slices_golden() -> None:
    dataset = PackedMemMapDatasetBase(BPE2, KEY)
    expected = VIEWS["slices_bpe2"]
    assert [array.tolist() for array in dataset[0:3][KEY]] == expected["0:3"]
    assert dataset[5:5][KEY] == expected["5:5"]
    assert len(dataset[198:400][KEY]) == expected["198:400_len"]
    assert [array.tolist() for array in dataset[-2:][KEY]] == expected["-2:"]
    assert dataset[-1][KEY].tolist() == expected["int_-1"]
    assert {array.dtype for array in dataset[0:3][KEY]} == {np.dtype(np.int32)}
    with pytest.raises(ValueError, match="step"):
        dataset[0:4:2]
    for outside in (200, -201):
        with pytest.raises(IndexError):
            dataset[outside]


def test_a_base_dataset_needs_its_index() -> None:
    with pytest.raises(ValueError, match="load_index=True"):
        PackedMemMapDatasetBase(BPE2, KEY, load_index=False)


def test_they_are_torch_datasets_that_travel_by_path() -> None:
    dataset = PackedMemMapDatasetContinuous(BPE2, KEY, 32, True)
    assert isinstance(dataset, torch.utils.data.Dataset)
    assert isinstance(dataset, PackedMemMapDatasetBase)
    pickled = pickle.dumps(dataset)
    assert len(pickled) < 2000
    assert np.array_equal(pickle.loads(pickled)[3][KEY], dataset[3][KEY])


@pytest.mark.parametrize("name", ["hdr4_be_t4.packed.bin", "hdr12_be_t2_off12.pbin", "hdr12_le_t2_off0.pbin"])
def test_older_layouts(name: str) -> None:
    path = GOLDEN / "legacy" / name
    source = ps.open(path)
    dataset = PackedMemMapDatasetBase(path, KEY)
    assert [item[KEY].tolist() for item in dataset] == [sample["tokens"].tolist() for sample in source]


def test_damaged_files_are_errors(tmp_path: Path) -> None:
    whole = BPE2.read_bytes()
    (tmp_path / "cut.pbin").write_bytes(whole[:-100])
    with pytest.raises(FormatError):
        PackedMemMapDatasetBase(tmp_path / "cut.pbin", KEY)
    with pytest.raises(NotFound):
        PackedMemMapDatasetBase(tmp_path / "none.pbin", KEY)
    (tmp_path / "killed.pbin").write_bytes(bytes(8) + whole[8:20_000])
    with pytest.raises(FormatError):
        PackedMemMapDatasetContinuous(tmp_path / "killed.pbin", KEY, 32, True)
    # The original reads 49 of its 69 documents from wrong places.
    with pytest.raises(Corrupt, match="repair"):
        PackedMemMapDatasetBase(GOLDEN / "pbin" / "merged.pbin", KEY)


# --- blocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CONTINUOUS, ids=name_of)
def test_continuous_golden(case: dict[str, Any]) -> None:
    dataset = PackedMemMapDatasetContinuous(GOLDEN / case["file"], KEY, case["block_size"], case["reuse_last_target"])
    assert len(dataset) == case["num_samples"]
    assert sha256(dataset[:][KEY]) == case["samples_sha256_i64"]
    assert np.array_equal(dataset[len(dataset) // 2][KEY], dataset[:][KEY][len(dataset) // 2])


def test_continuous_errors(tmp_path: Path) -> None:
    assert {case["error"] for case in VIEWS["continuous_errors"].values()} == {"ValueError", "IndexError"}
    for block_size in (1, 0, 1_000_000):
        with pytest.raises(ValueError, match="token"):
            PackedMemMapDatasetContinuous(BPE2, KEY, block_size, True)
    with pytest.raises(IndexError):
        PackedMemMapDatasetContinuous(BPE2, KEY, 64, True)[277]
    with ps.create(tmp_path / "empty.pbin", format="pbin", token_bytes=2):
        pass
    with pytest.raises(ValueError, match="not enough tokens"):
        PackedMemMapDatasetContinuous(tmp_path / "empty.pbin", KEY, 2, True)


def test_continuous_needs_no_index_but_reads_it_when_asked() -> None:
    merged = GOLDEN / "pbin" / "merged.pbin"
    assert len(PackedMemMapDatasetContinuous(merged, KEY, 64, False)) > 0
    with pytest.raises(Corrupt):
        PackedMemMapDatasetContinuous(merged, KEY, 64, False, load_index=True)


@pytest.mark.parametrize("name", DTYPES)
def test_megatron_blocks_begin_with_documents(name: str) -> None:
    path = GOLDEN / "pbin" / name
    dataset = PackedMemMapDatasetMegatron(path, KEY, block_size=129)
    blocks = ps.MegatronBlocks(129)(ps.open(path))
    assert len(dataset) == len(blocks)
    firsts = {tuple(sample["tokens"][:3].tolist()) for sample in ps.open(path)}
    for number, item in enumerate(dataset):
        assert item[KEY].dtype == DTYPES[name]
        assert np.array_equal(item[KEY], blocks[number]["tokens"])
        assert tuple(item[KEY][:3].tolist()) in firsts


@pytest.mark.parametrize("case", VIEWS["megatron"], ids=name_of)
def test_the_originals_megatron_blocks_golden(case: dict[str, Any]) -> None:
    dataset = PackedMemMapDatasetMegatron(GOLDEN / case["file"], KEY, case["block_size"], exact=True)
    assert len(dataset) == case["num_samples"]
    samples = dataset[:][KEY]
    assert sha256(samples) == case["samples_sha256_i64"]
    assert [len(sample) for sample in samples[:1]] == case["sample_lengths"]
    if case["first"] is not None:
        assert dataset[0][KEY].tolist() == case["first"]
        assert dataset[-len(dataset)][KEY].tolist() == case["first"]


def test_a_block_of_the_original_beyond_the_tokens(tmp_path: Path) -> None:
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=1) as writer:
        writer.write({"tokens": np.arange(20)})
    with pytest.raises(ConfigError, match="beyond"):
        PackedMemMapDatasetMegatron(tmp_path / "a.pbin", KEY, 20, exact=True)[0]


@pytest.mark.parametrize("exact", [False, True])
def test_megatron_blocks_at_the_edges(exact: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As in the original: a block of one token, and one larger than all tokens, which makes no samples."""
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=4) as writer:
        for start in (0, 6, 12, 16):
            writer.write({"tokens": np.arange(start, {0: 6, 6: 12, 12: 16, 16: 20}[start])})
    path = tmp_path / "a.pbin"
    assert len(PackedMemMapDatasetMegatron(path, KEY, 1, exact=exact)) == 4
    none = PackedMemMapDatasetMegatron(path, KEY, 25, exact=exact)
    assert (len(none), list(none[:][KEY])) == (0, [])
    with pytest.raises(IndexError):
        none[0]
    assert "no target" in caplog.text
    with pytest.raises(ValueError, match="target"):
        PackedMemMapDatasetMegatron(path, KEY, 0, exact=exact)


# --- several datasets ------------------------------------------------------------------------------------------------


def test_combined_golden() -> None:
    expected = VIEWS["combined"]
    first = PackedMemMapDatasetContinuous(GOLDEN / "pbin" / "chunk_0_of_3_seed7.pbin", KEY, 32, True)
    assert len(first) == expected["lens"][0]
    second = [{KEY: np.array(expected["at_len_a"])}, *[{KEY: np.zeros(32)}] * 25, {KEY: np.array(expected["last"])}]
    both = CombinedDataset([first, second])
    assert len(both) == expected["len"]
    assert both.cumulative_sizes.tolist() == expected["cumulative"]
    assert both[0][KEY].tolist() == expected["at_0"]
    assert both[expected["lens"][0]][KEY].tolist() == expected["at_len_a"]
    assert both[len(both) - 1][KEY].tolist() == expected["last"]
    with pytest.raises(IndexError):
        both[len(both)]
    # The original takes -1 for the last sample of the first dataset. Here it is what it is everywhere else.
    assert both[-1][KEY].tolist() == expected["last"] != expected["minus_1"]["value"]
    assert both[-len(both)][KEY].tolist() == expected["at_0"]
    assert isinstance(both, torch.utils.data.Dataset)
    assert [item[KEY][0] for item in both][-1] == expected["last"][0]


def test_combined_of_nothing_and_of_empty_ones() -> None:
    assert len(CombinedDataset([])) == 0
    both = CombinedDataset([[], [1, 2], [], [3], []])
    assert list(both) == [1, 2, 3]


# --- the file itself -------------------------------------------------------------------------------------------------


def test_embedded_stream_data() -> None:
    data = EmbeddedStreamData(BPE2)
    raw = BPE2.read_bytes()
    assert data.data_len == int.from_bytes(raw[:8], "little")
    assert data.token_size_in_bytes == 2
    assert bytes(data.data) == raw[12 : 12 + data.data_len]
    assert data.index_base == pickle.loads(raw[12 + data.data_len :])
    assert not data.data.flags.writeable


def test_embedded_stream_data_without_index(tmp_path: Path) -> None:
    data = EmbeddedStreamData(BPE2, load_index=False)
    with pytest.raises(ValueError, match="load_index=True"):
        data.index_base  # noqa: B018
    with pytest.raises(FileNotFoundError):
        EmbeddedStreamData(tmp_path / "none.pbin")
    shutil.copy(BPE2, tmp_path / "cut.pbin")
    with open(tmp_path / "cut.pbin", "r+b") as file:
        file.truncate(1000)
    with pytest.raises(FormatError):
        EmbeddedStreamData(tmp_path / "cut.pbin")
