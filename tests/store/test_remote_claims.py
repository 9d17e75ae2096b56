"""One writer a file in an object store, from the first byte to the commit."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import PrepareError
from penstock.store._objects import Objects
from penstock.store._remote_output import RemoteClaim
from penstock.store.place import resolve

NAMES = {"pbin": "set.pbin", "jsonl": "set.jsonl", "megatron": "set"}
OPTIONS: dict[str, dict[str, Any]] = {"pbin": {"token_bytes": 2}, "jsonl": {}, "megatron": {"token_bytes": 2}}


@pytest.fixture
def folder(s3_server: str) -> str:
    return f"s3://bucket/{uuid.uuid4()}"


def begun(url: str, format: str, value: int, count: int, **options: Any) -> Any:
    writer = ps.create(url, format=format, **OPTIONS[format], **options)
    for _ in range(count):
        writer.write({"n": value} if format == "jsonl" else {"tokens": [value] * count})
    return writer


def objects(folder: str) -> dict[str, bytes]:
    """All that is there, hidden objects too."""
    store, root = resolve(folder)
    remote: Any = getattr(store, "remote", store)
    keys = Objects(remote.base, remote.options).list(remote.key_of(root), first_only=False)
    return {key.rpartition("/")[2]: bytes(remote.get(f"{remote.base}/{key}")) for key in keys}


def lock_of(format: str) -> str:
    return f".{NAMES[format]}{'.bin' if format == 'megatron' else ''}.lock.staged"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("format", NAMES)
def test_the_second_writer_is_refused_at_once(format: str, overwrite: bool, folder: str) -> None:
    url = f"{folder}/{NAMES[format]}"
    first = begun(url, format, 1, 5, overwrite=overwrite)
    with pytest.raises(PrepareError, match="another run is writing this output"):
        begun(url, format, 2, 9, overwrite=overwrite)
    first.commit()
    assert len(ps.open(url, format=format)) == 5
    assert not [one for one in ps.verify(url, depth="full") if one.severity == "error"]
    assert not [name for name in objects(folder) if name.endswith(".staged")]


@pytest.mark.parametrize("format", NAMES)
def test_who_is_killed_does_not_keep_the_output(format: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{folder}/{NAMES[format]}"
    killed = begun(url, format, 1, 5)
    assert list(objects(folder)) == [lock_of(format)]
    with monkeypatch.context() as patch:
        patch.setattr(RemoteClaim, "_forget", lambda self: None)  # the lock goes with the process, the object stays
        killed.abort()
    assert list(objects(folder)) == [lock_of(format)]
    begun(url, format, 2, 9).commit()
    assert len(ps.open(url, format=format)) == 9
    assert lock_of(format) not in objects(folder)


def test_a_writer_elsewhere_is_named(folder: str) -> None:
    url = f"{folder}/set.pbin"
    store, root = resolve(folder)
    staged = store.stage(f"{root}/{lock_of('pbin')}")
    staged.write(json.dumps({"writer": "a", "host": "elsewhere", "cache": "/cache"}).encode())
    staged.commit()
    with pytest.raises(PrepareError, match="elsewhere, /cache") as caught:
        begun(url, "pbin", 1, 5)
    assert str(caught.value.hint).endswith(f"delete {folder}/.set.pbin.lock.staged")
    staged = store.stage(f"{root}/{lock_of('pbin')}", overwrite=True)
    staged.write(b'{"writer":' * 100_000)
    staged.commit()
    with pytest.raises(PrepareError, match="has an unfinished write of this output"):
        begun(url, "pbin", 1, 5)
    assert list(objects(folder)) == [lock_of("pbin")]


def test_another_cache_folder_of_this_machine_is_asked_for_its_lock(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{folder}/set.pbin"
    first = begun(url, "pbin", 1, 5)
    with monkeypatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(tmp_path / "other"))
        with pytest.raises(PrepareError, match="another machine or cache folder"):
            begun(url, "pbin", 2, 9)
    first.commit()
    assert len(ps.open(url)) == 5
