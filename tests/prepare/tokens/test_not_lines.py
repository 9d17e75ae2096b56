"""Inputs of `pack` that hold no lines: the error names what they are, and a command that works."""

from __future__ import annotations

import io
import json
import shlex
import tarfile
from pathlib import Path

import pytest
from tests.internals import main

import penstock as ps
from penstock.errors import ConfigError


@pytest.mark.parametrize("kind", ["mds", "tar", "one tar"])
def test_samples_name_the_conversion(kind: str, bpe2: Path, tmp_path: Path) -> None:
    folder = tmp_path / "samples"
    if kind == "mds":
        with ps.create(folder, format="mds", columns={"txt": "str"}) as writer:
            writer.write({"txt": "hello"})
    else:
        folder.mkdir()
        with tarfile.open(folder / "0.tar", "w") as tar:
            entry = tarfile.TarInfo("a.txt")
            entry.size = 5
            tar.addfile(entry, io.BytesIO(b"hello"))
    with pytest.raises(ConfigError, match="samples can't be packed directly") as raised:
        ps.pack(folder / "0.tar" if kind == "one tar" else folder, tmp_path / "o.pbin", tokenizer=bpe2)
    command = shlex.split(str(raised.value.hint).partition(": ")[2].partition(". ")[0])
    lines = tmp_path / "samples.jsonl"
    if kind != "mds":
        assert "penstock prepare" in str(raised.value.hint)
        with pytest.raises(SystemExit):
            main(["prepare", f"{folder}", "--split-ratio", "1,0,0", "--non-interactive"])
    with pytest.raises(SystemExit) as ended:
        main([f"{lines}" if one == "samples.jsonl" else one for one in command[1:]])
    assert ended.value.code == 0
    assert json.loads(lines.read_text())["txt"] == "hello"


def test_an_empty_dataset_is_called_empty(bpe2: Path, tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps({"_data_files": []}))
    (folder / "dataset_info.json").write_text("{}")
    with pytest.raises(ConfigError, match="the dataset is empty"):
        ps.pack(folder, tmp_path / "o.pbin", tokenizer=bpe2)
