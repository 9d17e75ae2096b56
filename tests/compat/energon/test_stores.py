"""Stores of files are classes, as in Energon: subclassed, asked for by `isinstance`, wrapped in each other."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.compat import energon as en
from penstock.compat.energon.epathlib import EPath
from penstock.errors import ConfigError


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(3):
            member = tarfile.TarInfo(f"k{number}.txt")
            member.size = 2
            tar.addfile(member, io.BytesIO(b"t%d" % number))
    ps.prepare(tmp_path, split_ratio=[1, 0, 0])
    return tmp_path


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "l.jsonl"
    path.write_text('{"a": 0}\n{"a": 1}\n')
    ps.index(path, flavor="energon")
    return path


class Counting(en.WebdatasetFileStore):
    """Says which files were asked for."""

    def __init__(self, path: Any) -> None:
        super().__init__(path)
        self.asked: list[str] = []

    def __getitem__(self, key: str, /) -> Any:
        self.asked.append(key)
        value, info = super().__getitem__(key)
        return value.upper(), info


def test_the_names_are_classes(tars: Path, lines: Path) -> None:
    web, folder, rows = en.WebdatasetFileStore(tars), en.SystemFileStore(tars), en.JsonlFileStore(lines)
    decoded = en.DecodeFileStore(web, decoder=en.SampleDecoder())
    primary = en.PrimaryFileStore(decoded, "k1")
    kinds = (en.WebdatasetFileStore, en.SystemFileStore, en.JsonlFileStore, en.DecodeFileStore, en.PrimaryFileStore)
    for one, own in zip((web, folder, rows, decoded, primary), kinds, strict=True):
        assert isinstance(one, en.FileStore)
        assert [isinstance(one, kind) for kind in kinds] == [kind is own for kind in kinds]
    assert web["k1.txt"][0] == b"t1"
    assert folder.get("a.tar") == (tars / "a.tar").read_bytes()
    assert json.loads(rows.get("1.json")) == {"a": 1}
    assert decoded.get("k1.txt") == primary.get(".txt") == primary.get("k1.txt") == "t1"
    assert {one.get_path() for one in (web, folder, decoded, primary)} == {str(tars)}


@pytest.mark.parametrize("pool", [en.NoCachePool, en.FileStoreCachePool])
def test_what_a_subclass_does_is_done_below_every_wrapper(pool: Any, tars: Path) -> None:
    own = Counting(tars)
    primary = en.PrimaryFileStore(en.DecodeFileStore(own, decoder=en.SampleDecoder()), "k2")
    cache = pool()
    for store, name, value in ((own, "k2.txt", b"T2"), (primary, ".txt", "T2")):
        sample: dict[str, Any] = {}
        lazy = cache.get_lazy(store, name)
        assert isinstance(lazy, en.Lazy)
        assert (lazy.ds, lazy.fname) == (store, name)
        assert lazy.get(sample) == store.get(name) == value
        assert [one.file_names for one in sample["__sources__"]] == [("k2.txt",)]
    cache.close()
    assert own.asked == ["k2.txt"] * 4


def test_files_of_ours_are_fetched_ahead_and_are_the_same(tars: Path) -> None:
    cache = en.FileStoreCachePool()
    primary = en.PrimaryFileStore(en.DecodeFileStore(en.WebdatasetFileStore(tars), decoder=en.SampleDecoder()), "k0")
    lazy = cache.get_lazy(primary, ".txt")
    assert lazy.get() == pickle.loads(pickle.dumps(lazy)).get() == "t0"
    cache.close()


def test_lazy_values(tars: Path) -> None:
    mock = en.MockLazy("a.txt", str.upper)
    kept = en.NoCachePool().to_cache(5, "five")
    assert isinstance(mock, en.Lazy)
    assert isinstance(kept, en.Lazy)
    assert isinstance(en.NoCachePool().get_lazy(en.WebdatasetFileStore(tars), "k0.txt"), en.Lazy)
    assert (mock.get(), mock.fname, kept.get(), kept.fname) == ("A.TXT", "a.txt", 5, "five")


def test_a_store_needs_a_folder() -> None:
    with pytest.raises(ConfigError, match="every file of the machine"):
        en.SystemFileStore()


@pytest.fixture
def config() -> en.WorkerConfig:
    return en.WorkerConfig(rank=0, world_size=1, num_workers=0)


def test_the_files_of_a_dataset_of_a_path(tars: Path, lines: Path, config: en.WorkerConfig) -> None:
    web = en.CrudeWebdataset(tars, worker_config=config).as_file_store()
    rows = en.DefaultCrudeJsonlDatasetFactory(lines, worker_config=config).as_file_store()
    assert isinstance(web, en.WebdatasetFileStore)
    assert isinstance(rows, en.JsonlFileStore)
    assert (web.get("k0.txt"), json.loads(rows.get("0.json"))) == (b"t0", {"a": 0})


# --- dataset.yaml says the split -------------------------------------------------------------------------------------


@pytest.fixture
def two_splits(tmp_path: Path) -> Path:
    for split in ("train", "val"):
        with tarfile.open(tmp_path / f"{split}.tar", "w") as tar:
            member = tarfile.TarInfo(f"{split}.txt")
            tar.addfile(member, io.BytesIO(b""))
    ps.prepare(tmp_path, split_parts={"train": "train.tar", "val": "val.tar"})
    head = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    (tmp_path / ".nv-meta" / "dataset.yaml").write_text(head + "split_part: val\n")
    return tmp_path


@en.stateless
def key(sample: Any) -> Any:
    return {"__key__": sample["__key__"]}


class Keys(en.DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (en.Cooker(key),)


def test_the_split_that_dataset_yaml_says_is_read(two_splits: Path, config: en.WorkerConfig) -> None:
    for asked in ("train", "val"):
        given: Any = {"split_part": asked, "worker_config": config, "batch_size": None, "task_encoder": Keys()}
        assert next(iter(en.get_loader(en.get_train_dataset(two_splits, **given))))["__key__"] == "val"
        assert [one["__key__"] for one in en.get_loader(en.get_val_dataset(two_splits, **given))] == ["val"]
    assert [one["__key__"] for one in ps.open(two_splits)] == [
        one["__key__"] for one in ps.open(two_splits, split="val")
    ]
    with pytest.raises(ps.errors.Unsupported, match="split_part: val"):
        ps.open(two_splits, split="train")


def told(info: en.SourceInfo) -> list[Any]:
    return [type(info.dataset_path).__name__, str(info.dataset_path), info.index, info.shard_name, info.file_names]


def test_files_say_where_they_are_from_as_there(
    tars: Path, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = str(tmp_path)
    assert told(en.SystemFileStore(".")["a.tar"][1]) == ["EPath", path, "a.tar", path, ("a.tar",)]
    store = en.WebdatasetFileStore(".")
    assert told(store["k1.txt"][1]) == ["EPath", path, "k1.txt", "a.tar", ("k1.txt",)]
    decoded = en.DecodeFileStore(store, decoder=en.SampleDecoder())
    assert told(decoded["k1.txt"][1]) == told(store["k1.txt"][1])
    rows = en.JsonlFileStore("l.jsonl")
    assert told(rows["1.json"][1]) == ["str", f"{path}/l.jsonl", 1, "l.jsonl", ("1.json",)]


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_samples_say_where_they_are_from_as_there(tars: Path, lines: Path, kind: str) -> None:
    (tars / "files").mkdir()
    (tars / "files" / "f").write_text("x")
    (tars / "aux.yaml").write_text(AUX)

    def told_by(path: Path) -> list[list[Any]]:
        config = en.WorkerConfig(rank=0, world_size=1, num_workers=1)
        data = en.get_val_dataset(path, worker_config=config, batch_size=None, task_encoder=WithFile())
        with en.get_loader(data, worker_kind=kind) as loader:
            return list(map(told, next(iter(loader)).__sources__))

    own, file = told_by(tars / "aux.yaml")
    assert own == ["EPath", str(tars), 0, "a.tar", ("k0.txt",)]
    assert file == ["EPath", str(tars / "files"), "f", str(tars / "files"), ("f",)]
    assert told_by(lines) == [["str", str(lines), 0, "l.jsonl", ("0.json",)]]
    assert en.load_dataset(tars).path == EPath(tars)


AUX = """
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  val: {path: ., split_part: train, aux: {files: "filesystem://files"}}
"""


@en.stateless
def with_file(sample: Any, files: Any = None) -> Any:
    if files is not None:
        files.get("f", sample)
    return en.TextSample(**en.basic_sample_keys(sample), text="")


class WithFile(en.DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (en.Cooker(with_file),)
