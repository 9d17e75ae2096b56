"""Writing groups: splits of one dataset, what is refused, bytes that don't depend on threads, side files, zarr."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import penstock as ps
from penstock.check.repairs import write_side_file
from penstock.errors import ConfigError, PenstockError, TooLarge
from penstock.formats.tokens.flat_tokens import FORMAT, chunk_writer
from penstock.formats.tokens.flat_tokens.encode import COMPRESSIONS, make_layout
from penstock.store import LocalStore
from penstock.store.side_file import load_manifest
from penstock.testing.counting import CountingStore
from penstock.testing.datasets import files_in

from .conftest import DOCUMENTS, checked, documents_of, make, opened

MANY = [np.random.default_rng(n).integers(0, 50_000, n * 7 % 60).tolist() for n in range(200)]
LAYOUTS: list[dict[str, Any]] = [
    *({"compressor": one} for one in (None, *COMPRESSIONS)),
    {"zarr_format": 3},
    {"zarr_format": 3, "compressor": "blosc"},
    {"zarr_format": 3, "compressor": "zstd"},
    {"zarr_format": 3, "chunk_tokens": 100, "shard_tokens": 1000},
    {"zarr_format": 3, "chunk_tokens": 100, "shard_tokens": 1000, "compressor": "blosc-zstd"},
]


@pytest.mark.parametrize("options", LAYOUTS, ids=str)
def test_zarr_opens_what_is_written(tmp_path: Path, options: dict[str, Any]) -> None:
    path = make(tmp_path / "a.zarr", MANY, **({"chunk_tokens": 700, "chunk_starts": 33} | options))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group = zarr.open_group(str(path), mode="r")
        assert sorted(name for name, _ in group.members()) == ["encoded_tokens", "seq_starts"]
    encoded, starts = group["encoded_tokens"][:], group["seq_starts"][:]  # type: ignore[index]
    ids = np.concatenate([np.array(one, np.uint32) for one in MANY])
    lengths = np.array([len(one) for one in MANY])
    assert encoded.dtype == np.uint32
    assert starts.dtype == np.uint64
    assert (encoded >> 1 == ids).all()
    assert starts.tolist() == np.cumsum([0, *lengths]).tolist()
    assert np.flatnonzero(encoded & 1).tolist() == starts[:-1][lengths > 0].tolist()
    assert group.attrs["max_token_id"] == ids.max()
    assert documents_of(opened(path)) == MANY
    assert checked(path) == []


def test_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    with FORMAT.create(LocalStore(), str(path), {}, overwrite=False) as writer:
        writer.write({"tokens": [1, 2]})
    assert sorted(files_in(path)) == [
        *(".zattrs", ".zgroup", "encoded_tokens/.zarray", "encoded_tokens/0", "seq_starts/.zarray", "seq_starts/0")
    ]
    meta = json.loads((path / "encoded_tokens" / ".zarray").read_text())
    assert meta == {
        **{"zarr_format": 2, "chunks": [1 << 20], "dtype": "<u4", "compressor": None, "fill_value": 0, "filters": None},
        **{"order": "C", "shape": [2], "dimension_separator": "."},
    }
    assert (path / "encoded_tokens" / "0").stat().st_size == 4 << 20


@pytest.mark.parametrize("documents", [[], [[]], [[], []], [[5]]])
def test_little_or_nothing(tmp_path: Path, documents: list[list[int]]) -> None:
    path = make(tmp_path / "a.zarr", documents)
    assert documents_of(opened(path)) == documents
    assert opened(path).doc_starts.tolist() == np.cumsum([0, *map(len, documents)]).tolist()
    assert checked(path) == []


def test_bytes_do_not_depend_on_threads_or_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for compressor in ("blosc", "seqax", "zstd"):
        options: dict[str, Any] = {"compressor": compressor, "chunk_tokens": 40_000}
        documents = [np.arange(30_000) % 977, np.arange(500), np.arange(90_000) % 31]
        plain = make(tmp_path / compressor / "a", documents, **options)
        monkeypatch.setattr(chunk_writer, "_THREADS", 1)
        again = tmp_path / compressor / "b"
        run = np.concatenate(documents).astype(np.uint64)
        with FORMAT.create(LocalStore(), str(again), {"chunk_starts": 4} | options, overwrite=False) as writer:
            writer.write_run(run, np.array([len(one) for one in documents]))
        assert files_in(plain) == files_in(again)


def test_few_chunks_are_on_their_way_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_writer, "_IN_FLIGHT_BYTES", 10_000)
    waiting: list[int] = []
    submit = chunk_writer.ChunkWork.submit

    def watched(work: Any, *args: Any) -> None:
        submit(work, *args)
        waiting.append(work._queued_bytes)

    monkeypatch.setattr(chunk_writer.ChunkWork, "submit", watched)
    make(tmp_path / "a", [list(range(20_000))], chunk_tokens=1000)
    assert max(waiting) <= 10_000
    assert len(waiting) > 20


def test_a_failed_chunk_ends_the_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, name: str, meta: Any, items: Any) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(chunk_writer.ChunkWork, "_write_chunk", broken)
    with pytest.raises(OSError, match="no space"):
        make(tmp_path / "x" / "a", MANY)
    assert not (tmp_path / "x").exists()


# --- splits ------------------------------------------------------------------------------------------------------


def test_two_splits_make_one_dataset(tmp_path: Path) -> None:
    path = tmp_path / "set.zarr"
    make(path, MANY, split="train", tokenizer="t1")
    make(path, DOCUMENTS, split="validation", tokenizer="t1")
    assert sorted(os.listdir(path)) == [".zgroup", "train", "validation"]
    assert sorted(os.listdir(tmp_path)) == ["set.zarr", "set.zarr.penstock"]
    assert (documents_of(opened(path)), documents_of(opened(path, split="validation"))) == (MANY, DOCUMENTS)
    whole = load_manifest(LocalStore(), str(path) + ".penstock")
    assert whole is not None
    assert (whole.num_samples, sorted(whole.parts)) == (206, ["train", "validation"])
    for split in ("train", "validation"):
        assert opened(path, split=split).manifest == whole.parts[split]
    assert checked(path) == []
    with pytest.raises(ConfigError, match="exists"):
        make(path, DOCUMENTS, split="train")
    before = files_in(path / "train")
    make(path, [[9]], split="validation", overwrite=True)
    assert files_in(path / "train") == before
    assert documents_of(opened(path, split="validation")) == [[9]]
    assert opened(path, split="train").manifest is not None
    assert checked(path) == []


def test_splits_written_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "set.zarr"
    options = {"chunk_tokens": 4, "chunk_starts": 4}
    with (
        FORMAT.create(LocalStore(), str(path), options | {"split": "train"}, overwrite=False) as train,
        FORMAT.create(LocalStore(), str(path), options | {"split": "validation"}, overwrite=False) as validation,
    ):
        for document in DOCUMENTS:
            train.write({"tokens": document})
            validation.write({"tokens": document})
        assert not path.exists()
    assert sorted(os.listdir(tmp_path)) == ["set.zarr", "set.zarr.penstock"]
    assert sorted(os.listdir(path)) == [".zgroup", "train", "validation"]
    assert checked(path) == []
    assert opened(path, split="validation").manifest is not None


def test_a_group_inside_another_one_keeps_its_side_file_outside(tmp_path: Path) -> None:
    zarr.create_group(str(tmp_path / "all.zarr"), zarr_format=2)
    for name in ("one", "two"):
        make(tmp_path / "all.zarr" / name)
        assert opened(tmp_path / "all.zarr" / name).manifest is not None
    assert sorted(os.listdir(tmp_path)) == ["all.zarr", "all.zarr.penstock"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sorted(dict(zarr.open_group(str(tmp_path / "all.zarr"), mode="r").members())) == ["one", "two"]
    assert checked(tmp_path / "all.zarr" / "two") == []


def test_nothing_of_a_split_is_visible_before_its_commit(tmp_path: Path) -> None:
    path = make(tmp_path / "set.zarr", split="train")
    before = files_in(path)
    writer = FORMAT.create(LocalStore(), str(path), {"split": "validation"}, overwrite=False)
    writer.write({"tokens": [1]})
    assert files_in(path) == before
    writer.abort()
    assert files_in(path) == before
    assert sorted(os.listdir(tmp_path)) == ["set.zarr", "set.zarr.penstock"]


def test_a_split_takes_its_datasets_zarr_version(tmp_path: Path) -> None:
    path = make(tmp_path / "set.zarr", split="train", zarr_format=3)
    make(path, split="validation")
    assert (path / "validation" / "zarr.json").exists()
    assert json.loads((path / "zarr.json").read_text())["node_type"] == "group"
    with pytest.raises(ConfigError, match="a different zarr version"):
        make(path, split="validation", zarr_format=2, overwrite=True)
    assert checked(path) == []


# --- refusals ----------------------------------------------------------------------------------------------------


def test_only_flat_tokens_is_ever_replaced(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "me.jpg").write_bytes(b"mine")
    (tmp_path / "file").write_bytes(b"mine")
    other = zarr.create_group(str(tmp_path / "other.zarr"), zarr_format=2)
    other.create_array("images", shape=(4,), dtype="u1")[:] = 1
    before = files_in(tmp_path)
    for name in ("photos", "file", "other.zarr"):
        for options in ({}, {"split": "train"}):
            for overwrite in (False, True):
                with pytest.raises(ConfigError):
                    FORMAT.create(LocalStore(), str(tmp_path / name), options, overwrite=overwrite)
    assert files_in(tmp_path) == before
    (tmp_path / "empty").mkdir()
    make(tmp_path / "empty")
    assert documents_of(opened(tmp_path / "empty")) == DOCUMENTS


def test_a_single_array_becomes_a_dataset_only_when_asked(tmp_path: Path) -> None:
    path = make(tmp_path / "a.zarr")
    with pytest.raises(ConfigError):
        make(path, split="train")
    make(path, [[4]], split="train", overwrite=True)
    assert sorted(os.listdir(path)) == [".zgroup", "train"]
    make(path, [[5]], overwrite=True)
    assert documents_of(opened(path)) == [[5]]
    assert opened(path).manifest is not None


def test_nothing_is_written_into_a_group_of_its_own(tmp_path: Path) -> None:
    outer = tmp_path / "a.zarr"
    with ps.create(outer, format="flat-tokens", eos_id=0) as writer:
        writer.write({"tokens": np.array([1, 0])})
    side = Path(f"{outer}.penstock")
    before = side.read_bytes()
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match="is inside a flat-tokens group"):
            ps.create(outer / "train", format="flat-tokens", overwrite=overwrite)
    shutil.copytree(outer, tmp_path / "b.zarr")
    shutil.copytree(tmp_path / "b.zarr", outer / "train")  # who writes there without us gets no side file
    with pytest.raises(ConfigError, match="is inside a flat-tokens group"):
        write_side_file(outer / "train")
    assert side.read_bytes() == before
    assert ps.open(outer / "train")[0]["tokens"].tolist() == [1, 0]


def test_consolidated_metadata_refuse_a_new_split(tmp_path: Path) -> None:
    path = make(tmp_path / "a.zarr", split="train")
    (path / ".zmetadata").write_text("{}")
    with pytest.raises(ConfigError, match="consolidated"):
        make(path, split="validation")


@pytest.mark.parametrize(
    "options",
    [
        {"split": "test"},
        {"zarr_format": 4},
        {"compressor": "lzma"},
        {"compressor": "seqax", "zarr_format": 3},
        {"chunk_tokens": 0},
        {"chunk_tokens": 1 << 40},
        {"chunk_starts": 0},
        {"shard_tokens": 100},
        {"zarr_format": 3, "chunk_tokens": 8, "shard_tokens": 20},
        {"token_bytes": 3},
        {"eos_id": -1},
        {"eos_id": 1 << 32},
        {"no_such": 1},
    ],
)
def test_options_that_can_not_be(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        FORMAT.create(LocalStore(), str(tmp_path / "x" / "a.zarr"), options, overwrite=False)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("split", [None, "train"])
def test_a_store_without_folders_gets_the_same_files(tmp_path: Path, split: str | None, zarr_format: int) -> None:
    options = {"split": split, "zarr_format": zarr_format, "chunk_tokens": 4}
    for name, store in (("there.zarr", CountingStore(LocalStore())), ("here.zarr", LocalStore())):
        with FORMAT.create(store, str(tmp_path / name), options, overwrite=False) as writer:
            for _ in range(5):
                writer.write({"tokens": [1, 2, 3]})
    assert files_in(tmp_path / "there.zarr") == files_in(tmp_path / "here.zarr")
    assert (tmp_path / "there.zarr.penstock").read_bytes() == (tmp_path / "here.zarr.penstock").read_bytes()


def test_ids_are_checked_against_the_format_and_the_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    with FORMAT.create(LocalStore(), str(path), {"vocab_size": 100}, overwrite=False) as writer:
        writer.write({"tokens": [99]})
        for wrong in ([100], [1 << 31], [-1]):
            with pytest.raises(TooLarge):
                writer.write({"tokens": wrong})
        with pytest.raises(TooLarge):
            writer.write_part(__file__, 0, np.array([1]), 100)
    assert documents_of(opened(path)) == [[99]]
    top = make(tmp_path / "b.zarr", [[(1 << 31) - 1, 0]])
    assert documents_of(opened(top)) == [[(1 << 31) - 1, 0]]


def test_parts_of_every_width(tmp_path: Path) -> None:
    for width in (1, 2, 4):
        part = tmp_path / f"part{width}"
        part.write_bytes(b"head" + np.array([3, 1, 4, 1, 5], f"<u{width}").tobytes())
        path = tmp_path / f"{width}.zarr"
        with FORMAT.create(LocalStore(), str(path), {"token_bytes": width}, overwrite=False) as writer:
            writer.write_part(str(part), 4, np.array([2, 0, 3]), 5)
            with pytest.raises(PenstockError):
                writer.write_part(str(part), 4, np.array([6]), 5)
        assert documents_of(opened(path)) == [[3, 1], [], [4, 1, 5]]


def test_layouts_have_one_chunk_size_for_everything() -> None:
    layout = make_layout("p", 3, chunk_tokens=8, shard_tokens=64)
    assert (layout.tokens_meta(100).num_files, layout.tokens_meta(100).cells_per_file) == (2, 8)
    assert layout.tokens_meta(0).num_files == 0
