"""A FIFO, a device or a socket in the place of any file: refused by type, and nobody waits for a writer."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import (
    MappedFile,
    TableOptions,
    TableRows,
    load_config,
    main,
    open_descriptor,
    open_regular,
    place_of,
    prepare_webdataset,
    put,
    read_metadataset,
    read_regular,
    read_state,
    require_regular_path,
    require_regular_tree,
)
from tests.internals import read_indices as _read_indices

import penstock as ps
from penstock import merge, pack
from penstock.errors import ConfigError, PenstockError, UnsafeData
from penstock.formats import get_format
from penstock.recipe import open_recipe
from penstock.store import LocalStore
from penstock.types import OpenOptions

TOKENS = {"pbin": "set.pbin", "megatron": "set", "flat-tokens": "set.zarr"}
SAMPLES = {"jsonl": "set.jsonl", "webdataset": "set", "mds": "set", "csv": "set", "json-shards": "set", "folder": "set"}


def make(folder: Path, format: str) -> Path:
    """A dataset of three samples."""
    path = folder / {**TOKENS, **SAMPLES}[format]
    columns = {"columns": {"n": "str"}} if format in ("mds", "csv", "json-shards") else {}
    options: Any = {"eos_id": 0, "token_bytes": 2} if format in TOKENS else columns
    with ps.create(path, format=format, **options) as writer:
        for number in range(3):
            if format in TOKENS:
                writer.write({"tokens": np.array([number + 1, 0])})
            elif format in ("webdataset", "folder"):
                writer.write({"__key__": f"{number}" + ".txt" * (format == "folder"), "txt": b"x"})
            else:
                writer.write({"n": f"{number}"})
    return path


def exercise(format: str, path: Path, options: OpenOptions) -> str:
    """Everything that reads; a typed error is an answer."""
    store, chosen = LocalStore(), get_format(format)
    told: list[str] = []

    def look(what: Callable[[], Any]) -> None:
        try:
            what()
        except PenstockError as error:
            told.append(type(error).__name__)

    def read() -> None:
        source: Any = chosen.open(store, str(path), options)
        source.get_batch([0, len(source) - 1])
        _ = source.fingerprint

    look(lambda: chosen.sniff(store, str(path)))
    look(lambda: list(chosen.check(store, str(path), options, "full")))
    look(read)
    look(lambda: ps.open(path))
    return " ".join(told)


@pytest.mark.parametrize("format", [*TOKENS, *SAMPLES])
@pytest.mark.parametrize("read", ["mmap", "pread"])
def test_pipes_in_the_place_of_each_file(
    format: str, read: Any, tmp_path: Path, confined: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make(tmp_path / "whole", format)
    files = sorted(path for path in whole.parent.rglob("*") if path.is_file())
    assert files
    hostile: list[Path] = []
    for number, file in enumerate(files):
        copy = tmp_path / str(number)
        shutil.copytree(whole.parent, copy)
        target = copy / file.relative_to(whole.parent)
        target.unlink()
        os.mkfifo(target)
        hostile.append(copy / whole.name)

    def look() -> list[str]:
        return [exercise(format, path, OpenOptions(read=read)) for path in hostile]

    told = confined(look)
    assert isinstance(told, list), told
    assert any("UnsafeData" in one for one in told)


def test_pipes_and_devices_as_inputs_by_name(tmp_path: Path, confined: Callable[..., Any]) -> None:
    pipe = tmp_path / "x.jsonl"
    os.mkfifo(pipe)
    readers: dict[str, Callable[[str], Any]] = {
        "get": LocalStore().get,
        "ranges": lambda path: LocalStore().get_ranges(path, [(0, 1)]),
        "mmap": LocalStore().mmap,
        "size": LocalStore().size,
        "mapped": MappedFile,
        "read": read_regular,
        "require": require_regular_path,
        "append": lambda path: LocalStore().stage(str(tmp_path / "out")).append_file(path),
        "state": read_state,
        "indices": lambda path: _read_indices(place_of(path)),
        "table": lambda path: TableRows(place_of(path), TableOptions()),
        "config": load_config,
        "open": lambda path: ps.open(path, format="jsonl"),
        "tokens": lambda path: ps.open(path, format="pbin"),
        "metadataset": lambda path: read_metadataset(path, "train"),
    }

    def look() -> dict[str, str]:
        told: dict[str, str] = {}
        for name, reader in readers.items():
            for path in (str(pipe), "/dev/zero", "/dev/null", "/dev/urandom"):
                if name == "ranges" and path != str(pipe):
                    continue  # bounded by what is asked for; who asks has looked at the size
                try:
                    told[f"{name} {path}"] = repr(reader(path))
                except PenstockError as error:
                    told[f"{name} {path}"] = type(error).__name__
        return told

    told = confined(look)
    assert isinstance(told, dict), told
    assert set(told.values()) == {"UnsafeData"}, told


def test_pipes_as_inputs_of_verbs(tmp_path: Path, confined: Callable[..., Any]) -> None:
    for name in ("x.jsonl", "tokenizer.json", "x.pbin", "recipe.yaml", "x.parquet"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "y.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "tars").mkdir()
    os.mkfifo(tmp_path / "tars" / "a.tar")
    verbs: list[Callable[[], Any]] = [
        lambda: pack(tmp_path / "x.jsonl", tmp_path / "o.pbin", tokenizer=tmp_path / "tokenizer.json"),
        lambda: pack(tmp_path / "y.jsonl", tmp_path / "o.pbin", tokenizer=tmp_path / "tokenizer.json"),
        lambda: merge([tmp_path / "x.pbin"], tmp_path / "o.pbin"),
        lambda: ps.open(tmp_path / "recipe.yaml"),
        lambda: ps.open(tmp_path / "x.parquet"),
        lambda: open_recipe(tmp_path / "recipe.yaml"),
        lambda: prepare_webdataset(tmp_path / "tars"),
    ]

    def look() -> list[Any]:
        told: list[Any] = []
        for verb in verbs:
            try:
                told.append(verb())
            except PenstockError as error:
                told.append(error)
        return told

    told = confined(look)
    assert isinstance(told, list), told
    assert all(isinstance(one, PenstockError) for one in told), told


def test_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("s")
        with pytest.raises(UnsafeData, match="socket"):
            LocalStore().get("s")


def test_a_file_under_a_lease_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Servers of files hold such leases: opening without waiting fails until they give it back.
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    opened: list[int] = []

    class Leased:
        stat = staticmethod(os.stat)

        @staticmethod
        def open(path: Any, flags: int) -> int:
            opened.append(flags)
            if flags & os.O_NONBLOCK:
                raise BlockingIOError
            return os.open(path, flags)

    os.close(open_descriptor(path, Leased))
    assert len(opened) == 2


def test_no_call_more_for_a_sample(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    calls: list[str] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return getattr(os, name)

    LocalStore(Counting()).get_ranges(str(path), [(0, 1), (1, 2)])
    assert calls == ["open", "pread", "pread", "close"]


def test_folders_and_files_are_as_before(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path)
    (tmp_path / "state.json").write_text(json.dumps({"a": 1}))
    assert read_state(str(tmp_path / "state.json")) == {"a": 1}
    with open_regular(tmp_path / "state.json") as file:
        assert not fcntl.fcntl(file, fcntl.F_GETFD) & ~fcntl.FD_CLOEXEC


def test_a_pipe_among_the_files_of_a_library(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "0").write_bytes(b"x")
    (tmp_path / "a" / "gone").symlink_to("nothing")
    require_regular_tree(str(tmp_path))
    outside = tmp_path.with_name(f"{tmp_path.name}-pipe")
    os.mkfifo(outside)
    (tmp_path / "a" / "b" / "1").symlink_to(outside)
    with pytest.raises(UnsafeData, match="a pipe"):
        require_regular_tree(str(tmp_path))


def stand(kind: str, path: Path) -> None:
    """Something that no file may take the place of."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        if os.geteuid():
            pytest.skip("makes a device")
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    else:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(os.path.relpath(path))


KINDS = ("pipe", "device", "socket")


@pytest.mark.parametrize("kind", KINDS)
def test_no_file_takes_the_place_of_what_is_none(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the store puts files, so that no writer has to remember it."""
    monkeypatch.chdir(tmp_path)
    path, late = tmp_path / "one", tmp_path / "late"
    stand(kind, path)
    before = os.lstat(path)
    with pytest.raises(ConfigError, match="not a regular file"):
        put(LocalStore(), str(path), b"x")
    staged = LocalStore().stage(str(late), overwrite=True)
    stand(kind, late)  # while it is written
    with pytest.raises(ConfigError, match="not a regular file"):
        staged.commit()
    assert os.path.samestat(os.lstat(path), before)
    assert not stat.S_ISREG(os.lstat(late).st_mode)
    assert sorted(os.listdir(tmp_path)) == ["late", "one"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", ["shuffle_jsonl_data", "create_shuffled_jsonl_chunk"])
def test_modalities_commands_leave_a_device(
    tmp_path: Path, kind: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--file_existence_policy override` of a device made a file of it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 3)
    (tmp_path / "list.txt").write_text("a.jsonl\n")
    with pytest.raises(SystemExit):
        main(["modalities", "data", "create_raw_index", "a.jsonl"])
    stand(kind, tmp_path / "out")
    options = {
        "shuffle_jsonl_data": "--input_data_path a.jsonl --output_data_path out --seed 1",
        "create_shuffled_jsonl_chunk": "--input_file_list_path list.txt --input_data_root_path . "
        "--output_chunk_file_path out --chunk_id 0 --num_chunks 1 --global_seed 7",
    }
    with pytest.raises(SystemExit) as ended:
        main(["modalities", "data", command, *options[command].split(), "--file_existence_policy", "override"])
    assert ended.value.code == ConfigError.exit_status
    assert "not a regular file" in capsys.readouterr().err
    assert not stat.S_ISREG(os.lstat("out").st_mode)
