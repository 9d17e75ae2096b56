"""The compat packages read and write where a relative path led first, also after a change of the working directory."""

from __future__ import annotations

import io
import json
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.compat import energon as en
from penstock.compat import streaming
from penstock.compat.energon.epathlib import EPath
from penstock.compat.modalities import LargeFileLinesReader, PackedMemMapDatasetBase


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory; the working directory is another one."""
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "elsewhere"


def test_streaming(elsewhere: Path) -> None:
    writer = streaming.MDSWriter(out="a", columns={"n": "int"})
    here = Path.cwd()
    os.chdir(elsewhere)
    for n in range(4):
        writer.write({"n": n})
    writer.finish()
    assert list(elsewhere.iterdir()) == []
    assert json.loads((here / "a" / "index.json").read_text())["shards"][0]["samples"] == 4
    os.chdir(here)
    datasets: list[Any] = [
        streaming.StreamingDataset(local="a", batch_size=1),
        streaming.StreamingDataset(streams=[streaming.Stream(local="a")], batch_size=1),
        streaming.LocalDataset("a"),
    ]
    stream = streaming.Stream(local="a")
    os.chdir(elsewhere)
    datasets.append(streaming.StreamingDataset(streams=[stream], batch_size=1))
    for dataset in (*datasets, pickle.loads(pickle.dumps(datasets[2]))):
        assert [int(dataset[at]["n"]) for at in range(4)] == [0, 1, 2, 3]


def test_modalities(elsewhere: Path) -> None:
    with ps.create("a.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
        writer.write({"tokens": np.array([3, 4, 0])})
    Path("a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    Path("a.idx").write_bytes(pickle.dumps([(0, 15), (16, 15)]))
    packed, lines = PackedMemMapDatasetBase("a.pbin", "ids"), LargeFileLinesReader("a.jsonl")
    pickled = pickle.dumps([packed, lines])
    os.chdir(elsewhere)
    for documents, text in ((packed, lines), pickle.loads(pickled)):
        assert documents[0]["ids"].tolist() == [3, 4, 0]
        assert [text[0], text[1]] == ['{"text": "one"}', '{"text": "two"}']


def test_energon(elsewhere: Path) -> None:
    Path("data").mkdir()
    with tarfile.open("data/a.tar", "w") as tar:
        for n in range(3):
            info = tarfile.TarInfo(f"{n}.txt")
            info.size = 1
            tar.addfile(info, io.BytesIO(b"%d" % n))
    ps.prepare("data", split_ratio=[1, 0, 0], sample_type="TextSample", field_map={"text": "txt"})
    Path("mix.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    path: data\n"
    )
    config = en.WorkerConfig(rank=0, world_size=1, num_workers=0)
    given: dict[str, Any] = {"worker_config": config, "batch_size": None}
    datasets = [en.get_val_dataset(path, split_part="train", **given) for path in ("data", "mix.yaml")]
    path, here = EPath("data"), Path.cwd()
    os.chdir(elsewhere)
    for dataset in datasets:
        assert [one.text for one in en.get_loader(dataset)] == ["0", "1", "2"]
    assert str(path) == f"{here}/data"
