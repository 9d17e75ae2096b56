"""URLs in the place of the paths that Modalities' and Streaming's functions take on this machine only."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.compat import modalities
from penstock.compat.modalities.commands import config, data, instruct, pack
from penstock.compat.streaming import JSONWriter, MDSWriter, Stream, merge_index
from penstock.errors import ConfigError

Call = Callable[[Any], Any]

CALLS: dict[str, Call] = {
    "create_raw_data_index": lambda url: data.create_raw_data_index(url, Path("a.idx")),
    "create_raw_data_index to": lambda url: data.create_raw_data_index(Path("a.jsonl"), url),
    "merge_packed_data_files": lambda url: data.merge_packed_data_files([Path("a.pbin")], url),
    "shuffle_tokenized_data": lambda url: data.shuffle_tokenized_data(Path("a.pbin"), url),
    "shuffle_jsonl_data": lambda url: data.shuffle_jsonl_data(Path("a.jsonl"), url),
    "create_shuffled_dataset_chunk": lambda url: data.create_shuffled_dataset_chunk([Path("a.pbin")], url, 0, 1),
    "create_shuffled_jsonl_dataset_chunk": lambda url: data.create_shuffled_jsonl_dataset_chunk(
        [Path("a.jsonl")], url, 0, 1
    ),
    "read_file_list": lambda url: data.read_file_list(url, Path(), ".pbin"),
    "load_config": config.load_config,
    "create_instruction_tuning_data": instruct.create_instruction_tuning_data,
    "pack settings": lambda url: pack.existing_file({"src_path": str(url)}, "src_path"),
    "LargeFileLinesReader": modalities.LargeFileLinesReader,
    "LargeFileLinesReader index": lambda url: modalities.LargeFileLinesReader("a.jsonl", url),
    "EmbeddedStreamData": modalities.EmbeddedStreamData,
    "PackedMemMapDatasetBase": lambda url: modalities.PackedMemMapDatasetBase(url, "input_ids"),
    "filter_dataset": lambda url: modalities.filter_dataset(url, Path("b.pbin"), bool),
    "filter_dataset to": lambda url: modalities.filter_dataset(Path("a.pbin"), url, bool),
}
LOCALS: dict[str, Call] = {
    "Stream": lambda url: Stream(local=str(url), remote="/nowhere").open(),
    "MDSWriter": lambda url: MDSWriter(out=(str(url), "/nowhere"), keep_local=True, columns={"n": "int"}),
    "JSONWriter": lambda url: JSONWriter(out=(str(url), "/nowhere"), keep_local=True, columns={"n": "int"}),
    "merge_index": lambda url: merge_index((str(url), "/nowhere")),
}


def test_a_file_url_is_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with penstock.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
        writer.write({"tokens": np.array([1, 2, 0], np.uint16)})
    Path("a.jsonl").write_text('{"text": "a"}\n')
    source, lines = f"file://{tmp_path}/a.pbin", f"file://{tmp_path}/a.jsonl"
    modalities.filter_dataset(source, f"file://{tmp_path}/b.pbin", bool)
    modalities.create_filtered_tokenized_dataset(source, lambda number: True, f"file://{tmp_path}/c.pbin")
    anything: Any = data
    anything.create_raw_data_index(lines, f"file://{tmp_path}/d.idx")
    anything.shuffle_jsonl_data(lines, f"file://{tmp_path}/e.jsonl", seed=1)
    anything.shuffle_tokenized_data(source, f"file://{tmp_path}/f.pbin", seed=1)
    anything.merge_packed_data_files([source], f"file://{tmp_path}/g.pbin")
    made = {name for name in os.listdir(tmp_path) if not name.endswith(".penstock")}
    assert made == {"a.jsonl", "a.pbin", "b.pbin", "c.pbin", "d.idx", "e.jsonl", "f.pbin", "g.pbin"}


@pytest.mark.parametrize("url", ["s3://bucket/x", "http://127.0.0.1:9/x", "s4://bucket/x", Path("s3://bucket/x")])
@pytest.mark.parametrize("name", [*CALLS, *LOCALS])
def test_refused(name: str, url: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"must be on this machine|with a missing slash|no store for"):
        (CALLS | LOCALS)[name](url)
    assert os.listdir(tmp_path) == []
