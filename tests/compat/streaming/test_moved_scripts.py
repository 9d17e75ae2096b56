"""What scripts use of the original besides its datasets: submodules, shards, encodings, kinds of streams, errors."""

# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false, reportArgumentType=false

from __future__ import annotations

import importlib
import json
import os
import pickle
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.codec.fields import _own
from penstock.compat.streaming import (
    MDSWriter,
    Stream,
    StreamingDataset,
    clean_stale_shared_memory,
    merge_index,
    register_encoding,
)
from penstock.compat.streaming.base.format.mds import encodings
from penstock.compat.streaming.base.stream import streams_registry
from penstock.compat.streaming.base.util import (
    bytes_to_int,
    get_list_arg,
    number_abbrev_to_int,
    retry,
    wait_for_file_to_exist,
)
from penstock.compat.streaming.util import remove_stale
from penstock.errors import ConfigError, Corrupt, FormatError, NotFound, Truncated, UnsafeData
from penstock.testing import FileServer


@pytest.fixture
def served(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    with FileServer() as server:
        for name in "ab":
            server.files.update({f"{name}/{file.name}": file.read_bytes() for file in (small / name).iterdir()})
        yield server


# --- submodules ------------------------------------------------------------------------------------------------------

MODULES = {
    "base": "CSVWriter JSONWriter LocalDataset MDSWriter Stream StreamingDataLoader StreamingDataset TSVWriter",
    "base.dataloader": "StreamingDataLoader",
    "base.dataset": "StreamingDataset",
    "base.distributed": "get_local_rank get_local_world_size get_rank get_world_size",
    "base.format": "CSVWriter FileInfo JSONWriter MDSWriter Reader TSVWriter XSVWriter get_index_basename",
    "base.format.index": "get_index_basename",
    "base.format.mds": "MDSWriter",
    "base.format.mds.encodings": "Encoding _encodings get_mds_encoded_size get_mds_encodings is_mds_encoding "
    "is_mds_encoding_safe mds_decode mds_encode",
    "base.format.base.writer": "Writer",
    "base.format.json.writer": "JSONWriter",
    "base.format.mds.writer": "MDSWriter",
    "base.format.xsv.writer": "CSVWriter TSVWriter XSVWriter",
    "base.local": "LocalDataset",
    "base.stream": "Stream streams_registry",
    "base.util": "bytes_to_int clean_stale_shared_memory get_import_exception_message get_list_arg merge_index "
    "number_abbrev_to_int retry wait_for_file_to_exist",
    "base.world": "World",
    "multimodal": "StreamingInsideWebVid StreamingOutsideDTWebVid StreamingOutsideGIWebVid",
    "multimodal.webvid": "StreamingInsideWebVid StreamingOutsideDTWebVid StreamingOutsideGIWebVid",
    "text": "StreamingC4 StreamingEnWiki StreamingPile",
    "text.c4": "StreamingC4",
    "text.enwiki": "StreamingEnWiki",
    "text.pile": "StreamingPile",
    "vision": "StreamingADE20K StreamingCIFAR10 StreamingCOCO StreamingImageNet",
    "vision.ade20k": "StreamingADE20K",
    "vision.base": "StreamingVisionDataset",
    "vision.cifar10": "StreamingCIFAR10",
    "vision.coco": "StreamingCOCO",
    "vision.imagenet": "StreamingImageNet",
}
"""Submodule of the original → its public names."""


@pytest.mark.parametrize("name", MODULES)
def test_names_of_submodules(name: str) -> None:
    module = importlib.import_module(f"penstock.compat.streaming.{name}")
    assert [one for one in MODULES[name].split() if not hasattr(module, one)] == []


def test_modules_are_names_of_the_package() -> None:
    streaming: Any = importlib.import_module("penstock.compat.streaming")
    assert streaming.text.StreamingC4
    assert streaming.base.util.merge_index is merge_index


@pytest.mark.parametrize(
    "used",
    [
        "streaming.base.util.clean_stale_shared_memory",
        "streaming.base.format.mds.encodings.Encoding",
        "streaming.vision.base.StreamingVisionDataset",
        "energon.epathlib.EPath",
        "energon.flavors.webdataset.sample_decoder.SampleDecoder",
        "energon.task_encoder.base.TaskEncoder",
        "energon.wrappers.batch_dataset.BatchDataset",
    ],
)
def test_modules_are_there_without_an_import_of_their_own(used: str) -> None:
    """In a fresh interpreter: whatever imports a module makes it an attribute of its package."""
    peer = used.partition(".")[0]
    code = f"from penstock.compat import {peer}; {used}; assert not hasattr({peer}, 'no_such_name')"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("name", ["streaming.base.spanner", "energon.savable", "modalities.conversion.gpt2"])
def test_modules_that_are_not_here_say_where_to_look(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="no counterpart here"):
        importlib.import_module(f"penstock.compat.{name}")


def test_the_world_of_ranks_and_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.compat.streaming.base.world import World

    for name, value in (("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    world = World.detect()
    assert (world.node, world.num_nodes, world.rank_of_node, world.is_multinode) == (1, 2, 1, True)
    halves = World(2, 4, 3, 17).replicate(2)
    assert (halves.rank, halves.num_ranks, halves.num_nodes, halves.worker, halves.worker_of_rank) == (2, 4, 1, 8, 2)
    assert (World(1, 1, 2, 1).is_leader, halves.copy().to_json()) == (False, halves.to_json())
    with pytest.raises(ValueError, match="divide"):
        world.replicate(3)


def test_errors_are_of_the_types_that_the_original_raises(small: Path, tmp_path: Path) -> None:
    def write(columns: dict[str, str], sample: dict[str, Any]) -> None:
        with MDSWriter(out=str(tmp_path / "out"), columns=columns) as writer:
            writer.write(sample)

    with pytest.raises(KeyError, match="without its column 'a'"):
        write({"a": "int"}, {})
    with pytest.raises(TypeError, match="unknown encoding"):
        write({"a": "nothing"}, {"a": 1})
    with pytest.raises(OverflowError, match="int32"):
        write({"a": "int32"}, {"a": 1 << 40})
    dataset = StreamingDataset(local=str(small / "a"), batch_size=1)
    for place in ("a", 1.0):
        with pytest.raises(ValueError, match="integer"):
            dataset[place]
    with pytest.raises(KeyError, match="not a state"):
        dataset.load_state_dict({"epoch": 0})
    for option in ("shuffle_algo", "partition_algo"):
        options: dict[str, Any] = {option: "nothing"}
        with pytest.raises(KeyError, match=f"unknown {option}"):
            iter(StreamingDataset(local=str(small / "a"), batch_size=1, shuffle=True, **options)).__next__()


def test_converters_without_spark_say_what_to_install() -> None:
    with pytest.raises(ImportError, match="pip install p"):
        importlib.import_module("penstock.compat.streaming.base.converters.dataframe_to_mds")


# --- datasets of the original ----------------------------------------------------------------------------------------


def test_images_with_transforms(tmp_path: Path) -> None:
    from penstock.compat.streaming.vision import StreamingADE20K, StreamingCOCO, StreamingImageNet

    with MDSWriter(columns={"x": "ndarray", "y": "int"}, out=str(tmp_path / "a")) as out:
        for number in range(4):
            out.write({"x": np.full(2, number), "y": number})
    folder = str(tmp_path / "a")
    images = StreamingImageNet(local=folder, batch_size=2, transform=np.sum, target_transform=str)
    assert [images[number] for number in range(4)] == [(2 * number, str(number)) for number in range(4)]
    assert (images.partition_algo, images.shuffle_algo, images.shuffle_block_size) == ("orig", "py1s", 1 << 18)
    assert StreamingImageNet(local=folder, transforms=lambda x, y: (y, int(x[0])))[3] == (3, 3)
    assert StreamingADE20K(local=folder, joint_transform=lambda pair: (int(pair[0][0]), -pair[1]))[2] == (2, -2)
    with pytest.raises(ValueError, match="transforms"):
        StreamingImageNet(local=folder, transforms=max, transform=np.sum)
    with pytest.raises(ImportError, match="transform="):
        StreamingImageNet(local=folder)[0]
    columns = {
        "img": "pil",
        "img_id": "int",
        "htot": "int",
        "wtot": "int",
        "bbox_sizes": "ndarray",
        "bbox_labels": "ndarray",
    }
    image = pytest.importorskip("PIL.Image").new("L", (2, 3))
    with MDSWriter(columns=columns, out=str(tmp_path / "b")) as out:
        ones = np.ones(1, np.float32)
        out.write({"img": image, "img_id": 7, "htot": 3, "wtot": 2, "bbox_sizes": ones, "bbox_labels": ones})
    found = StreamingCOCO(local=str(tmp_path / "b"))[0]
    assert (found[0].mode, found[1], found[2]) == ("RGB", 7, (3, 2))


def test_masked_texts(tmp_path: Path) -> None:
    from penstock.compat.streaming.text import StreamingC4, StreamingEnWiki

    names = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids")
    with MDSWriter(columns=dict.fromkeys(names, "bytes"), out=str(tmp_path / "a")) as out:
        values = ([5, 6, 7], [1, 1, 0], [0, 0, 1], [1], [9])
        out.write({name: np.array(one, np.int32).tobytes() for name, one in zip(names, values, strict=True)})
    found = StreamingEnWiki(local=str(tmp_path / "a"))[0]
    assert {name: one.tolist() for name, one in found.items()} == {
        "input_ids": [5, 6, 7], "token_type_ids": [0, 0, 1], "attention_mask": [1, 1, 0], "labels": [-100, 9, -100],
    }  # fmt: skip
    with pytest.raises(ValueError, match="truncate"):
        StreamingC4(local=str(tmp_path / "a"), tokenizer_name="gpt2", max_seq_len=8, group_method="concat")


def test_videos_beside_the_shards(tmp_path: Path) -> None:
    from penstock.compat.streaming.multimodal import StreamingOutsideGIWebVid

    with MDSWriter(columns={"content_path": "str"}, out=str(tmp_path / "a")) as out:
        for name in ("far.mp4", "near.mp4", "../a/index.json"):
            out.write({"content_path": name})
    for folder, name in (("near", "near.mp4"), ("far", "near.mp4"), ("far", "far.mp4")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_bytes(folder.encode())
    given = {"extra_local": str(tmp_path / "near"), "extra_remote": str(tmp_path / "far")}
    videos = StreamingOutsideGIWebVid(local=str(tmp_path / "a"), **given)
    assert [videos[number]["content"] for number in range(2)] == [b"far", b"near"]
    with pytest.raises(UnsafeData):
        videos[2]
    with pytest.raises(ConfigError, match="one of them"):
        StreamingOutsideGIWebVid(local=str(tmp_path / "a"), extra_local="x")


# --- shards ----------------------------------------------------------------------------------------------------------


def test_shards_and_their_facts(small: Path) -> None:
    dataset = StreamingDataset(streams=[Stream(local=str(small / name)) for name in "ab"])
    counts = [
        shard["samples"] for name in "ab" for shard in json.loads((small / name / "index.json").read_text())["shards"]
    ]
    assert (dataset.num_shards, len(dataset.shards), dataset.samples_per_shard.tolist()) == (
        len(counts),
        len(counts),
        counts,
    )
    assert dataset.shards_per_stream.sum() == len(counts)
    assert dataset.shard_offset_per_stream.tolist() == [0, dataset.shards_per_stream[0]]
    assert dataset.samples_per_stream.tolist() == [60, 40]
    assert dataset.sample_offset_per_stream.tolist() == [0, 60]
    assert dataset.sample_offset_per_shard.tolist() == [sum(counts[:number]) for number in range(len(counts))]
    assert dataset.stream_per_shard.tolist() == [0] * dataset.shards_per_stream[0] + [1] * dataset.shards_per_stream[1]
    assert (dataset.num_streams, dataset.num_samples) == (2, 100)
    shard = dataset.shards[-1]
    assert (shard.samples, shard.size, len(shard), shard[-1], shard.compression) == (
        counts[-1], counts[-1], counts[-1], dataset[-1], None,
    )  # fmt: skip
    assert list(shard) == [shard.get_item(number) for number in range(len(shard))]
    assert (shard.column_names, shard.column_encodings, shard.column_sizes) == (
        ["id", "text"],
        ["int", "str"],
        [8, None],
    )
    file = small / "b" / (shard.raw_data.basename if shard.raw_data else "")
    assert (shard.get_raw_size(), shard.get_max_size(), shard.get_zip_size()) == (*[file.stat().st_size] * 2, None)
    assert [len(one) for one in dataset.shards[1:3]] == counts[1:3]
    total = sum(file.stat().st_size for name in "ab" for file in (small / name).glob("shard.*"))
    assert dataset.cache_usage == total


def test_a_dataset_s_own_files_are_never_evicted(small: Path) -> None:
    dataset = StreamingDataset(local=str(small / "a"), batch_size=4)
    before = {file.name: file.read_bytes() for file in (small / "a").iterdir()}
    for number in range(dataset.num_shards):
        dataset.prepare_shard(number)
        assert dataset.shards[number][0]
        dataset.evict_shard(number)
    dataset.evict_coldest_shard()
    assert {file.name: file.read_bytes() for file in (small / "a").iterdir()} == before
    assert len(list(dataset)) == 60
    with pytest.raises(IndexError):
        dataset.prepare_shard(dataset.num_shards)


def test_copies_of_remote_shards_come_and_go(served: FileServer) -> None:
    dataset = StreamingDataset(remote=f"{served.url}/a", batch_size=4)
    assert dataset.cache_usage == 0
    sizes = [shard.get_raw_size() for shard in dataset.shards]
    for number in (0, 1, 2):
        dataset.prepare_shard(number)
    assert dataset.cache_usage == sum(sizes[:3])
    asked = len(served.log)
    dataset.prepare_shard(1)
    assert dataset.shards[1][0] == dataset[int(dataset.samples_per_shard[0])]
    assert len(served.log) == asked
    dataset.evict_shard(1)
    assert dataset.cache_usage == sizes[0] + sizes[2]
    past = time.time() - 1000
    for record in Path(os.environ["PENSTOCK_CACHE"]).rglob("*.json"):
        os.utime(record)
    kept = dataset._shards._sources[0].folder.store.copied_to(f"{served.url}/a/shard.00002.mds")  # pyright: ignore[reportPrivateUsage]
    os.utime(f"{kept.removesuffix('.copy')}.json", (past, past))
    dataset.evict_coldest_shard()
    assert dataset.cache_usage == sizes[0]
    assert [sample["id"] for sample in dataset] == list(range(60))


def test_what_an_epoch_draws(small: Path) -> None:
    streams = [Stream(local=str(small / "a"), repeat=1.5), Stream(local=str(small / "b"), choose=10)]
    dataset = StreamingDataset(streams=streams, batch_size=1, shuffle=True)
    units, ids = dataset.resample_streams(0)
    assert (units.sum(), len(ids)) == (100, 100)
    assert np.bincount(ids // 60, minlength=2).tolist() == [90, 10]
    assert sorted(ids.tolist()) == sorted(dataset.order().worker_ids(epoch=0, rank=0, worker=0).tolist())
    units, ids = dataset.resample_streams(0, 1)
    assert (len(ids), ids.min() >= 60) == (10, True)
    whole = StreamingDataset(local=str(small / "a")).resample_streams(3)
    assert whole[1].tolist() == list(range(60))
    with pytest.raises(IndexError):
        dataset.resample_streams(0, 2)


# --- encodings -------------------------------------------------------------------------------------------------------


class Complex(encodings.Encoding):
    size = 16

    def encode(self, obj: Any) -> bytes:
        self._validate(obj, complex)
        return np.complex128(obj).tobytes()

    def decode(self, data: bytes) -> Any:
        assert type(data) is bytes
        return complex(np.frombuffer(data, np.complex128)[0])


class Repeated(encodings.Encoding):
    """Text, so many times."""

    def __init__(self, times: int = 1) -> None:
        self.times = times

    @classmethod
    def from_str(cls, text: str) -> Any:
        return cls(int(text))

    def encode(self, obj: Any) -> bytes:
        return obj.encode() * self.times

    def decode(self, data: bytes) -> Any:
        return data[: len(data) // self.times].decode()


@pytest.fixture
def own_encodings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_own, "_own", {})


@pytest.mark.usefixtures("own_encodings")
def test_encodings_of_a_program(tmp_path: Path) -> None:
    encodings._encodings["complex"] = Complex
    register_encoding("repeated", Repeated)
    assert {"complex", "repeated", "ndarray"} <= encodings.get_mds_encodings()
    assert (encodings.get_mds_encoded_size("complex"), encodings._encodings["complex"]) == (16, Complex)
    assert encodings.is_mds_encoding("repeated:3")
    columns = {"c": "complex", "t": "repeated:3", "u": "repeated"}
    with MDSWriter(columns=columns, out=str(tmp_path / "a"), size_limit=300) as out:
        for number in range(9):
            out.write({"c": number * 1j, "t": f"t{number}", "u": "u"})
    entry = json.loads((tmp_path / "a/index.json").read_text())["shards"][0]
    assert (entry["column_encodings"], entry["column_sizes"]) == (
        ["complex", "repeated:3", "repeated"],
        [16, None, None],
    )
    samples = [{"c": number * 1j, "t": f"t{number}", "u": "u"} for number in range(9)]
    assert list(StreamingDataset(local=str(tmp_path / "a"), batch_size=3)) == samples
    source = ps.open(tmp_path / "a")
    assert source.get_batch([2, 3])["c"] == [2j, 3j]
    with pytest.raises(AttributeError), MDSWriter(columns={"c": "complex"}, out=str(tmp_path / "b")) as out:
        out.write({"c": "text"})
    del encodings._encodings["complex"]
    with pytest.raises(FormatError, match="register_encoding"):
        StreamingDataset(local=str(tmp_path / "a"))
    with pytest.raises(KeyError):
        encodings._encodings["complex"]


@pytest.mark.usefixtures("own_encodings")
def test_encodings_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {
        "path": EntryPoint("path", "penstock.compat.streaming.base.format.mds.encodings:_BytesOfPath", _own.GROUP),
        "gone": EntryPoint("gone", "no_such_package:Encoding", _own.GROUP),
    }
    monkeypatch.setattr(_own, "_points", lambda: points)
    monkeypatch.setattr(encodings, "_BytesOfPath", Repeated, raising=False)
    with MDSWriter(columns={"p": "path:2"}, out=str(tmp_path / "a")) as out:
        out.write({"p": "a"})
    assert ps.open(tmp_path / "a")[0] == {"p": "a"}
    with pytest.raises(ConfigError, match="'gone'"):
        MDSWriter(columns={"p": "gone"}, out=str(tmp_path / "b"))


@pytest.mark.usefixtures("own_encodings")
def test_encodings_that_cannot_be(tmp_path: Path) -> None:
    class Failing(Complex):
        def decode(self, data: bytes) -> Any:
            raise RuntimeError("no such thing")

        def encode(self, obj: Any) -> bytes:
            return bytes(obj)

    register_encoding("failing", Failing)
    with MDSWriter(columns={"c": "failing"}, out=str(tmp_path / "a")) as out:
        with pytest.raises(ConfigError, match="the wrong size"):
            out.write({"c": 3})
        out.write({"c": 16})
    with pytest.raises(Corrupt, match="no such thing"):
        StreamingDataset(local=str(tmp_path / "a"))[0]
    with pytest.raises(ConfigError, match="takes no configuration"):
        MDSWriter(columns={"c": "failing:3"}, out=str(tmp_path / "b"))
    for name in ("", "a:b"):
        with pytest.raises(ConfigError, match="colon"):
            register_encoding(name, Complex)
    with pytest.raises(ConfigError, match="is not a class"):
        register_encoding("x", 3)  # pyright: ignore[reportArgumentType]


def test_built_in_encodings_by_class() -> None:
    array = encodings._encodings["ndarray"].from_str("int16:2")
    assert array.decode(array.encode(np.array([1, 2], np.int16))).tolist() == [1, 2]
    assert encodings.mds_decode("json", encodings.mds_encode("json", {"a": 1})) == {"a": 1}
    assert (encodings.is_mds_encoding_safe("pkl"), encodings.is_mds_encoding("integer")) == (False, False)
    assert len(encodings._encodings) == len(set(encodings._encodings)) >= 28


# --- kinds of streams ------------------------------------------------------------------------------------------------


class Kind(Stream):
    def __init__(self, *, lake: str, **options: Any) -> None:
        super().__init__(**options)
        self.lake = lake


def test_kinds_of_streams(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_registry, "_made", dict(streams_registry._made))  # pyright: ignore[reportPrivateUsage]
    streams_registry.register("lake", func=Kind)
    decorated: Any = streams_registry.register("of-lake")(lambda **given: Kind(lake="x", **given))
    dataset = StreamingDataset(
        local=str(small / "a"), stream_name="lake", stream_config={"lake": "tahoe"}, batch_size=4
    )
    assert (type(dataset.streams[0]), dataset.streams[0].lake) == (Kind, "tahoe")  # pyright: ignore[reportAttributeAccessIssue]
    assert len(list(dataset)) == 60
    assert StreamingDataset(local=str(small / "a"), stream_name="of-lake").num_samples == 60
    assert ("lake" in streams_registry, streams_registry.get("of-lake")) == (True, decorated)
    streams_registry.register("number", func=int)
    with pytest.raises(TypeError):
        StreamingDataset(local=str(small / "a"), stream_name="number")
    streams_registry.register("none", func=lambda **given: given)
    with pytest.raises(ConfigError, match="'none' is not a Stream"):
        StreamingDataset(local=str(small / "a"), stream_name="none")
    with pytest.raises(ConfigError, match="given twice"):
        StreamingDataset(local=str(small / "a"), stream_config={"local": "b"})


def test_where_a_remote_stream_would_be(small: Path) -> None:
    stream = Stream(remote=str(small / "a"))
    assert stream.local
    assert not Path(stream.local).exists()
    assert stream.local == Stream(remote=str(small / "a")).local != Stream(remote=str(small / "b")).local
    assert Stream(remote=str(small / "a"), split="train").local.endswith("/train")
    assert Stream(remote=str(small / "a"), local="here").local == "here"
    assert len(StreamingDataset(streams=[stream], batch_size=4)) == 60
    assert not Path(stream.local).exists()


# --- what is refused or warned of, by the original's types -----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind"),
    [("", Truncated), (" \n", Truncated), ('{"shards": [', Truncated), ("{]", Corrupt), ('{"version": 2}', Corrupt)],
)
def test_an_index_that_is_damaged(small: Path, text: str, kind: type[FormatError]) -> None:
    (small / "a" / "index.json").write_text(text)
    with pytest.raises(json.JSONDecodeError, match=r"is empty or corrupted") as caught:
        StreamingDataset(local=str(small / "a"))
    assert isinstance(caught.value, kind)
    assert str(small / "a" / "index.json") in str(caught.value)
    assert type(pickle.loads(pickle.dumps(caught.value))) is type(caught.value)
    with pytest.raises(kind, match=r"index\.json"):
        ps.open(small / "a")


@pytest.mark.parametrize("text", ["", '{"shards": ['])
def test_a_lone_index_that_is_damaged_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(Truncated, match=r"index\.json"):
        ps.open(tmp_path)


def test_no_index(small: Path) -> None:
    (small / "a" / "index.json").unlink()
    with pytest.raises(RuntimeError, match="No `remote` provided, but local file") as caught:
        StreamingDataset(local=str(small / "a"))
    assert isinstance(caught.value, NotFound)
    with pytest.raises(FileNotFoundError, match="No such file or directory") as far:
        StreamingDataset(remote=str(small / "a"), local=str(small / "c"))
    assert not isinstance(far.value, RuntimeError)
    with pytest.raises(FileExistsError):
        Stream()


def test_an_empty_stream_is_named(small: Path, tmp_path: Path) -> None:
    MDSWriter(columns={"id": "int"}, out=str(tmp_path / "none")).finish()
    streams = [Stream(local=str(small / "a")), Stream(local=str(tmp_path / "none"))]
    with pytest.raises(RuntimeError, match="Stream contains no samples: stream 1") as caught:
        StreamingDataset(streams=streams)
    assert str(tmp_path / "none") in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_unsafe_columns_are_refused_at_once(tmp_path: Path) -> None:
    with MDSWriter(columns={"a": "pkl"}, out=str(tmp_path / "a")) as out:
        out.write({"a": 1})
    with pytest.raises(ValueError, match="contains an unsafe type"):
        StreamingDataset(local=str(tmp_path / "a"))
    assert StreamingDataset(local=str(tmp_path / "a"), allow_unsafe_types=True)[0] == {"a": 1}


def test_settings_that_are_warned_of(small: Path) -> None:
    with pytest.warns(UserWarning, match=r"predownload < batch_size \(4 < 8\)"):
        StreamingDataset(local=str(small / "a"), predownload=4, batch_size=8)
    dataset = StreamingDataset(local=str(small / "a"), batch_size=4, shuffle=True, shuffle_block_size=2)
    with pytest.warns(UserWarning, match="Shuffle block size was smaller than shard size"):
        next(iter(dataset))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(StreamingDataset(local=str(small / "a"), batch_size=4, shuffle=True, predownload=4)))


def test_a_stream_too_small_for_batches_ends_the_iteration(small: Path) -> None:
    streams = [Stream(local=str(small / "a"), proportion=1000), Stream(local=str(small / "b"), proportion=1)]
    with pytest.warns(UserWarning, match="Number of samples for stream 1"):
        dataset = StreamingDataset(streams=streams, batch_size=8, batching_method="stratified")
    with pytest.raises(ValueError, match="Number of samples for stream 1"):
        next(iter(dataset))


@pytest.mark.parametrize("limit", [100, "1kb", "0.5kb"])
def test_limits_below_what_can_be_read(small: Path, limit: Any) -> None:
    with pytest.raises(ValueError, match="larger than the cache limit"):
        StreamingDataset(local=str(small / "a"), cache_limit=limit)


def test_limits_below_four_shards(tmp_path: Path) -> None:
    with MDSWriter(columns={"a": "bytes"}, out=str(tmp_path / "a"), size_limit=4000) as out:
        for _ in range(4):
            out.write({"a": bytes(3000)})
    with pytest.raises(ValueError, match=r"is too low. Increase the `cache_limit` to"):
        StreamingDataset(local=str(tmp_path / "a"), cache_limit="5kb")
    StreamingDataset(local=str(tmp_path / "a"), cache_limit="1gb")
    with pytest.raises(ValueError, match="Unsupported"):
        StreamingDataset(local=str(tmp_path / "a"), cache_limit="much")


def test_methods_of_sampling(small: Path) -> None:
    with pytest.raises(ValueError, match="Invalid sampling method"):
        StreamingDataset(local=str(small / "a"), sampling_method="fixedd")


# --- writers and merging ---------------------------------------------------------------------------------------------


def test_no_side_file_where_files_are_compared(tmp_path: Path) -> None:
    for out in (str(tmp_path / "a"), (str(tmp_path / "b"), str(tmp_path / "c"))):
        with MDSWriter(columns={"id": "int"}, out=out, keep_local=True, side_file=False) as writer:
            writer.write({"id": 1})
    assert {tuple(sorted(os.listdir(tmp_path / name))) for name in "abc"} == {("index.json", "shard.00000.mds")}
    assert ps.open(tmp_path / "c")[0] == {"id": 1}
    with pytest.raises(ValueError, match="Invalid Writer argument"):
        MDSWriter(columns={"id": "int"}, out=str(tmp_path / "d"), min_workers=1)


def test_the_configuration_of_a_writer(tmp_path: Path) -> None:
    writer = MDSWriter(columns={"id": "int", "a": "str"}, out=str(tmp_path / "a"), size_limit="1kb", hashes=["sha1"])
    assert writer.get_config() == {
        "version": 2, "format": "mds", "compression": None, "hashes": ["sha1"], "size_limit": 1024,
        "column_names": ["a", "id"], "column_encodings": ["str", "int"], "column_sizes": [None, 8],
    }  # fmt: skip


def test_a_remote_dataset_is_replaced(tmp_path: Path) -> None:
    out = (str(tmp_path / "near"), str(tmp_path / "far"))
    for count in (50, 3):
        with MDSWriter(columns={"id": "int"}, out=out, keep_local=True, exist_ok=True, size_limit=200) as writer:
            for number in range(count):
                writer.write({"id": number})
        assert sorted(os.listdir(out[0])) == sorted(os.listdir(out[1]))
    with MDSWriter(columns={"id": "int"}, out=(str(tmp_path / "none"), out[1]), exist_ok=True) as writer:
        writer.write({"id": 7})
    assert list(ps.open(out[1])) == [{"id": 7}]
    with pytest.raises(ConfigError, match="exist"):
        MDSWriter(columns={"id": "int"}, out=(str(tmp_path / "none"), out[1]))


def parts_of(root: Path, count: int = 2) -> None:
    for number in range(count):
        with MDSWriter(columns={"id": "int"}, out=str(root / str(number))) as writer:
            writer.write({"id": number})


def test_parts_that_are_far_away_alone(tmp_path: Path) -> None:
    parts_of(tmp_path / "far")
    near, far = tmp_path / "near", tmp_path / "far"
    pairs = [(f"{near}/{number}/index.json", f"{far}/{number}/index.json") for number in range(2)]
    merge_index(pairs, (str(near), str(far)), keep_local=True)
    assert [sample["id"] for sample in ps.open(far)] == [0, 1]
    assert (near / "index.json").read_bytes() == (far / "index.json").read_bytes()
    (far / "index.json").unlink()
    (near / "index.json").unlink()
    merge_index(pairs, out=(str(near), str(far)), keep_local=False)
    assert ((far / "index.json").exists(), (near / "index.json").exists()) == (True, False)


def test_parts_that_are_here(tmp_path: Path) -> None:
    parts_of(tmp_path / "near")
    near, far = tmp_path / "near", tmp_path / "far"
    far.mkdir()
    pairs = [(f"{near}/{number}/index.json", f"{far}/{number}/index.json") for number in range(2)]
    merge_index(pairs, (str(near), str(far)))
    assert (near / "index.json").read_bytes() == (far / "index.json").read_bytes()
    (near / "index.json").unlink()
    merge_index([(near, "") for near, _ in pairs], str(near))
    assert len(ps.open(near)) == 2
    with pytest.raises(FileNotFoundError, match="Check data availability"):
        merge_index([(f"{near}/9/index.json", "")], (str(near), str(far)))


# --- helpers ---------------------------------------------------------------------------------------------------------


def test_numbers_in_words() -> None:
    assert [bytes_to_int(one) for one in (5, "5", "5b", "1.5kb", " 2MB ", 35.78)] == [5, 5, 5, 1536, 2 << 20, 35]
    assert [number_abbrev_to_int(one) for one in ("1234", "50K", " 100 k", "1.39b", "3 T", 35.78)] == [
        1234, 50_000, 100_000, 1_390_000_000, 3 * 10**12, 35,
    ]  # fmt: skip
    for function in (bytes_to_int, number_abbrev_to_int):
        for text in ("", "12kbb", "p 64", "79 b    m"):
            with pytest.raises(ValueError, match="Unsupported value/suffix"):
                function(text)
    assert (get_list_arg("a,b"), get_list_arg("")) == (["a", "b"], [])


def test_retries() -> None:
    calls: list[str] = []

    @retry(
        (KeyError, OSError), clean_up_fn=lambda: calls.append("clean"), num_attempts=3, initial_backoff=0, max_jitter=0
    )
    def flaky(word: str, fails: int) -> str:
        calls.append(word)
        if calls.count(word) <= fails:
            raise KeyError(word)
        return word

    assert flaky("a", 2) == "a"
    assert calls == ["a", "clean", "a", "clean", "a"]
    with pytest.raises(KeyError):
        flaky("b", 3)
    assert calls.count("clean") == 5
    plain: Any = retry(lambda: 7)
    assert plain() == 7
    with pytest.raises(ValueError, match="num_attempts"):
        retry(num_attempts=0)


def test_waiting_for_a_file(tmp_path: Path) -> None:
    wait_for_file_to_exist(str(tmp_path), 0, 0, "x")
    with pytest.raises(RuntimeError, match="took too long"):
        wait_for_file_to_exist(str(tmp_path / "none"), 0.001, 0.002, "took too long")


def test_shared_memory_of_killed_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.compat.streaming import util

    monkeypatch.setattr(util, "_FOLDER", str(tmp_path))
    for name in ("000000_resume", "000003_epoch_data", "000001_barrier", "000000_other", "resume"):
        (tmp_path / name).write_bytes(bytes(8))
    alive = "import mmap, sys; f = open(sys.argv[1], 'r+'); m = mmap.mmap(f.fileno(), 8); print(flush=True); input()"
    command = [sys.executable, "-c", alive, str(tmp_path / "000001_barrier")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert remove_stale() == ["000000_resume", "000003_epoch_data"]
        process.communicate()
    clean_stale_shared_memory()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["000000_other", "resume"]
