"""What writers are given that is no sample and no batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import ConfigError
from penstock.formats import get_format
from penstock.store import LocalStore

WRITTEN: dict[str, dict[str, Any]] = {
    "pbin": {"token_bytes": 2},
    "megatron": {"token_bytes": 2},
    "flat-tokens": {},
    "jsonl": {},
    "mds": {"columns": {"text": "str"}},
    "json-shards": {"columns": {"text": "str"}},
    "csv": {"columns": {"text": "str"}},
    "tsv": {"columns": {"text": "str"}},
    "webdataset": {},
    "folder": {},
}
NOTHING = ([{"text": "a"}], np.arange(3), "text", 7, None)


@pytest.mark.parametrize("nothing", NOTHING, ids=lambda nothing: type(nothing).__name__)
@pytest.mark.parametrize("name", WRITTEN)
def test_what_has_no_fields_is_refused_and_nothing_is_left(name: str, nothing: Any, tmp_path: Path) -> None:
    writer = get_format(name).create(LocalStore(), str(tmp_path / "set"), WRITTEN[name], overwrite=False)
    calls = [writer.write_batch] if name == "jsonl" else [writer.write, writer.write_batch]  # JSON is any value
    for write in calls:
        with pytest.raises(ConfigError, match="must be a mapping"):
            write(nothing)
    writer.abort()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["jsonl", "mds", "csv", "webdataset", "folder"])
def test_columns_of_different_lengths_are_refused_before_the_first_row(name: str, tmp_path: Path) -> None:
    columns = {"columns": {"a": "str", "b": "str"}} if name in ("mds", "csv") else {}
    writer = get_format(name).create(LocalStore(), str(tmp_path / "set"), columns, overwrite=False)
    with pytest.raises(ConfigError, match="different lengths"):
        writer.write_batch({"__key__": ["1", "2"], "a": ["x", "y"], "b": ["x"]})
    writer.abort()


@pytest.mark.parametrize("format", ["pbin", "megatron", "flat-tokens"])
@pytest.mark.parametrize("name", ["out", "out/"])
def test_a_folder_of_token_files_is_made_of_one_dataset(format: str, name: str, tmp_path: Path) -> None:
    given: Any = {"token_bytes": 2, "file_tokens": 100}
    with pytest.raises(ConfigError, match=r"can't create a folder of token files.*convert --file-tokens"):
        penstock.create(f"{tmp_path}/{name}", format=format, **given)
    assert not list(tmp_path.iterdir())
