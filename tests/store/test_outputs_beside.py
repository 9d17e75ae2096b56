"""Files beside an output that are somebody else's, and verbs that write beside data."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.check.repairs import write_side_file
from penstock.compat.modalities.commands.data import shuffle_jsonl_data
from penstock.errors import ConfigError, PrepareError
from penstock.prepare.energon.plan import DatasetOptions
from penstock.prepare.energon.run import prepare_webdataset
from penstock.prepare.jsonl_index import build_index
from penstock.prepare.media.run import prepare_media
from penstock.reshape.merge import merge
from penstock.store import LocalStore
from penstock.testing.datasets import files_in


def tokens(path: Path, **options: Any) -> Path:
    known = {} if options.get("format") == "flat-tokens" else {"token_bytes": 2, "eos_id": 0}
    with ps.create(path, **{"format": "pbin", **known, **options}) as writer:
        writer.write({"tokens": np.array([1, 2, 0], np.uint16)})
    return path


def lines(path: Path) -> Path:
    with ps.create(path, format="jsonl") as writer:
        writer.write({"text": "x"})
    return path


def tars(path: Path) -> Path:
    with ps.create(path, format="webdataset") as writer:
        writer.write({"__key__": "a", "txt": "x"})
    return path


@pytest.mark.parametrize("suffix", [".penstock", ".penstock.next"])
def test_a_side_file_is_no_output(tmp_path: Path, suffix: str) -> None:
    made = (lines(tmp_path / "a.jsonl"), tokens(tmp_path / "a.pbin"))
    before = files_in(tmp_path)
    for path in made:
        with pytest.raises(ConfigError, match=r"reserved for side files|replace an input"):
            merge([path], f"{path}{suffix}", overwrite=True)
        with pytest.raises(ConfigError, match="reserved for side files"):
            build_index(made[0], f"{path}{suffix}", overwrite=True)
    assert files_in(tmp_path) == before


OTHERS = [f"out.{end}" for end in ("idx", *(f"{one}.penstock" for one in ("jsonl", "zarr", "pbin")))]
OTHERS += [f"out.{one}.penstock.next" for one in ("jsonl", "zarr", "pbin")]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_files_of_others_beside_an_output_stay(tmp_path: Path, name: str, overwrite: bool) -> None:
    suffix = ".jsonl" if name == "out.idx" else f".{name.split('.')[1]}"
    source = lines(tmp_path / "a.jsonl") if suffix == ".jsonl" else tokens(tmp_path / "a.pbin")
    (tmp_path / name).write_bytes(b"somebody's notes")
    if suffix == ".jsonl" and overwrite:
        (tmp_path / "out.jsonl").write_bytes(b"{}\n")
    before = files_in(tmp_path)
    with pytest.raises(ConfigError):
        merge([source], tmp_path / f"out{suffix}", overwrite=overwrite)
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("format", ["megatron", "pbin", "jsonl", "flat-tokens", "mds", "webdataset"])
def test_outputs_whose_long_names_end_differently_are_two(tmp_path: Path, format: str) -> None:
    outs = [tmp_path / ("é" * 110 + end) for end in ("a", "b")]  # 221 bytes
    held = LocalStore().claim(str(outs[0]))
    make = {"jsonl": lines, "webdataset": tars}.get(format) or (lambda path: tokens(path, format=format))
    if format == "mds":
        with ps.create(outs[1], format="mds", columns={"n": "int"}) as writer:
            writer.write({"n": 1})
    else:
        make(outs[1])
    held.release()
    assert len(ps.open(outs[1])) == 1
    assert not [one for one in files_in(tmp_path) if "staged" in one]


@pytest.mark.parametrize("format", ["megatron", "pbin", "flat-tokens"])
def test_a_name_without_room_for_its_side_files_is_refused_before_work(tmp_path: Path, format: str) -> None:
    with pytest.raises(ConfigError, match="too long, because side files add a suffix"):
        ps.create(tmp_path / ("n" * 250), format=format, **({} if format == "flat-tokens" else {"token_bytes": 2}))
    assert files_in(tmp_path) == {}


def test_modalities_leave_the_index_of_the_input(tmp_path: Path) -> None:
    source = lines(tmp_path / "a.jsonl")
    before = files_in(tmp_path)
    with pytest.raises(ConfigError, match="would replace an input"):
        shuffle_jsonl_data(source, tmp_path / "a.idx", "override", 1)
    assert files_in(tmp_path) == before


BESIDE: dict[str, tuple[Callable[[Path], Path], str, Callable[[Path], object]]] = {
    "index": (lines, "a.idx", lambda path: build_index(path, overwrite=True)),
    "side file": (tokens, "a.pbin", write_side_file),
    "repair": (tokens, "a.pbin", lambda path: ps.repair(path, write=True)),
    "prepare": (
        tars,
        "a",
        lambda path: prepare_webdataset(
            path, split_ratio=(1, 0, 0), dataset=DatasetOptions(sample_type="CrudeWebdataset"), overwrite=True
        ),
    ),
    "prepare-media": (tars, "a", prepare_media),
}


@pytest.mark.parametrize("name", BESIDE)
def test_verbs_that_write_beside_data_wait_for_nobody(tmp_path: Path, name: str) -> None:
    make, claimed, verb = BESIDE[name]
    path = make(tmp_path / {lines: "a.jsonl", tokens: "a.pbin", tars: "a"}[make])
    held = LocalStore().claim(str(tmp_path / claimed))
    before = files_in(tmp_path)
    with pytest.raises(PrepareError, match="another run is writing this output"):
        verb(path)
    assert files_in(tmp_path) == before
    held.release()
    if name != "prepare-media":  # there are no media
        verb(path)
    assert not [one for one in files_in(tmp_path) if "staged" in one]


def test_a_folder_that_takes_no_files_is_named_as_such() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to other users
        os.chmod(folder, 0o555)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                if os.geteuid() == 0:  # root may write anywhere
                    os.setuid(65_534)
                ps.create(f"{folder}/a.jsonl", format="jsonl")
            except PermissionError as error:
                status = 0 if str(error.filename).startswith(folder) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
