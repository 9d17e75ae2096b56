"""Fingerprints of remote data: of the same value as at home, once a host, and no reason to fetch shards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import CachedStore, RemoteStore

import penstock as ps
from penstock.formats import get_format
from penstock.store import LocalStore
from penstock.testing import FileServer
from penstock.types import OpenOptions

TEXTS = [f"{number:04}" * 50 for number in range(400)]


def write(folder: Path, format: str) -> None:
    if format in ("pbin", "flat-tokens", "megatron"):
        name = folder / ("set.pbin" if format == "pbin" else "set.zarr" if format == "flat-tokens" else "set")
        with (
            ps.create(name, format=format, token_bytes=2)
            if format != "flat-tokens"
            else ps.create(name, format=format, split="train") as writer
        ):
            for number in range(40):
                writer.write({"tokens": np.arange(1000, dtype=np.uint16) + number})
        return
    options: dict[str, Any] = {"columns": {"text": "str"}, "size_limit": 3000}
    if format == "webdataset":
        options = {"maxcount": 20}
    with ps.create(folder / "set", format=format, **options) as writer:
        for number, text in enumerate(TEXTS):
            writer.write({"__key__": f"{number}", "txt": text} if format == "webdataset" else {"text": text})


NAMES = {"pbin": "set.pbin", "flat-tokens": "set.zarr"}
FORMATS = ["mds", "json-shards", "csv", "webdataset", "flat-tokens", "pbin", "megatron"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[FileServer, Path]]]:
    with FileServer() as server:

        def serve(format: str, *, foreign: bool = True) -> tuple[FileServer, Path]:
            folder = tmp_path_factory.mktemp(format)
            write(folder, format)
            for path in folder.rglob("*.penstock"):
                if foreign:  # as another tool makes the data
                    path.unlink()
            files = [path for path in folder.rglob("*") if path.is_file()]
            server.files.clear()
            server.files.update({str(path.relative_to(folder)): path.read_bytes() for path in files})
            server.log.clear()
            return server, folder / NAMES.get(format, "set")

        yield serve


def opened(server: FileServer, format: str, name: str, folder: Path) -> Any:
    store = CachedStore(RemoteStore(server.url), str(folder))
    return get_format(format).open(store, f"{server.url}/{name}", OpenOptions(raw=format == "webdataset"))


@pytest.mark.parametrize("format", FORMATS)
def test_once_a_host_and_as_at_home(format: str, served: Any, tmp_path: Path) -> None:
    server, path = served(format)
    at_home = ps.open(str(path), format=format, **({"raw": True} if format == "webdataset" else {})).fingerprint
    first = opened(server, format, path.name, tmp_path / "one")
    server.log.clear()
    assert first.fingerprint == at_home
    gets = [place for method, _, place in server.log if method == "GET"]
    assert all(place is not None and place[1] - place[0] <= 4 * 8192 for place in gets if place != (0, 0)), gets
    if format == "pbin":  # its ends are read by ranges, which cost as much as so small a file
        return
    copied = [json.loads(one.read_bytes())["url"] for one in (tmp_path / "one" / "remote").glob("*.json")]
    assert not [
        url
        for url in copied
        if not url.endswith((".json", ".zarray", ".zattrs", ".zgroup", ".sqlite", ".idx", ".yaml"))
    ]
    assert not [url for url in copied if "shard." in url]
    for _ in range(2):
        second = opened(server, format, path.name, tmp_path / "one")
        server.log.clear()
        assert second.fingerprint == at_home
        assert len([one for one in server.log if one[0] == "GET"]) <= 3, server.log  # the edges of one file


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("again", [False, True])
def test_our_side_file_says_it_and_no_data_are_fetched(format: str, again: bool, served: Any, tmp_path: Path) -> None:
    server, path = served(format, foreign=False)
    if again:  # what `verify --write-manifest` finds
        side = next(one for one in path.parent.rglob("*.penstock"))
        known = json.loads(side.read_bytes())
        get_format(format).write_manifest(LocalStore(), str(path), OpenOptions(), replace=True)  # type: ignore[attr-defined]
        made = json.loads(side.read_bytes())
        assert (made["fingerprints"], made["parts"].keys()) == (known["fingerprints"], known["parts"].keys())
        assert all(made["parts"][name]["fingerprints"] == one["fingerprints"] for name, one in known["parts"].items())
    at_home = ps.open(str(path), format=format, **({"raw": True} if format == "webdataset" else {})).fingerprint
    first = opened(server, format, path.name, tmp_path / "one")
    server.log.clear()
    assert first.fingerprint == at_home
    got = {name: place for method, name, place in server.log if method == "GET" and ".penstock" not in name}
    if format in ("mds", "json-shards", "csv", "webdataset"):
        assert got.keys() <= {"set/.nv-meta/index.uuid"}, got
    assert all(place[1] - place[0] <= 4096 for place in got.values()), got  # the edges that a side file is held against
    assert len(got) <= 2


def test_a_recorded_fingerprint_counts_for_its_index_alone(served: Any, tmp_path: Path) -> None:
    server, path = served("mds", foreign=False)
    recorded = opened(server, "mds", path.name, tmp_path / "a").fingerprint
    server.files["set/index.json"] = server.files["set/index.json"].replace(b'"shards":', b'"shards" :')
    assert opened(server, "mds", path.name, tmp_path / "b").fingerprint != recorded
    for damaged in (b"", b"{", b'{"fingerprints": 1}', b'{"fingerprints": {"a": "b"}}', b"\xff"):
        server.files["set/.penstock"] = damaged
        assert len(opened(server, "mds", path.name, tmp_path / damaged.hex()).fingerprint) == 32


def test_data_that_are_made_again_have_another(served: Any, tmp_path: Path) -> None:
    server, path = served("mds")
    before = opened(server, "mds", path.name, tmp_path).fingerprint
    index = server.files["set/index.json"]
    server.files["set/index.json"] = index.replace(b'"shards":', b'"shards" :')
    assert opened(server, "mds", path.name, tmp_path).fingerprint != before
