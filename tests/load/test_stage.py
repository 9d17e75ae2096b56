"""Staging: the files that a host's ranks will read, copied ahead; afterwards the run fetches nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tests.internals import Flavored, cli, stage

import penstock as ps
from penstock.errors import ConfigError
from penstock.testing import FileServer

ROWS, LANES, BATCH = 1600, 8, 16


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    root = tmp_path_factory.mktemp("stage")
    rng = np.random.default_rng(1)
    for name, options in (("set", {}), ("zipped", {"compression": "zstd"}), ("more", {})):
        with ps.create(
            str(root / name), format="mds", columns={"id": "int", "data": "bytes"}, size_limit=12_000, **options
        ) as writer:
            for number in range(ROWS):
                writer.write({"id": number, "data": rng.bytes(int(rng.integers(200, 400)))})
    with ps.create(str(root / "csv"), format="csv", columns={"id": "int", "text": "str"}, size_limit=4000) as writer:
        for number in range(ROWS):
            writer.write({"id": number, "text": "x" * 50})
    files = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with FileServer(files) as one:
        yield one


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fetched(server: FileServer) -> set[str]:
    return {path for method, path, _ in server.log if method == "GET" and "shard." in path}


@pytest.mark.parametrize("name", ["set", "zipped", "csv"])
def test_afterwards_the_run_fetches_nothing(
    name: str, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[str]] = []
    for host in range(4):
        monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / f"{host}"))
        source = ps.open(f"{server.url}/{name}")
        stream = ps.Shuffle(source, seed=3, mode="blocks", lanes=LANES, open_blocks=2)
        server.log.clear()
        found = stage(stream, hosts=4, host=host, world=8)
        seen.append(fetched(server))
        assert found["files"] == len(seen[-1])
        assert found["fetched_bytes"] == found["bytes"]
        server.log.clear()
        rows: list[int] = []
        for rank in (2 * host, 2 * host + 1):
            loader = ps.Loader(stream, BATCH, rank=rank, world=8, workers=0)
            for _, batch in zip(range(ROWS // BATCH), loader, strict=False):
                rows += batch["id"].tolist()
        assert len(set(rows)) == ROWS // 4
        assert fetched(server) == set()
    files = {path for path in server.files if path.startswith(f"{name}/shard.")}
    assert set.union(*seen) == files
    assert sum(map(len, seen)) <= 1.2 * len(files)  # at the borders of lanes


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "subflavors": lambda source: Flavored(source, {"a": 1}),
    "take": lambda source: ps.Take(source, 0, len(source)),
    "concat": lambda source: ps.Concat([source, source]),
    "map": lambda source: ps.Map(source, dict, "dict"),
}


@pytest.mark.parametrize("wrapper", WRAPPED)
def test_compressed_shards_below_wrappers_are_staged(wrapper: str, server: FileServer) -> None:
    stream = ps.Sequential(WRAPPED[wrapper](ps.open(f"{server.url}/zipped")))
    found = stage(stream, hosts=1, host=0, steps=ROWS // BATCH, global_batch=BATCH)
    files = [path for path in server.files if path.startswith("zipped/shard.")]
    assert found["files"] == len(files)
    assert found["bytes"] == sum(len(server.files[path]) for path in files)


def test_steps_and_blends(server: FileServer) -> None:
    streams = {
        name: ps.Shuffle(ps.open(f"{server.url}/{name}"), seed=1, mode="blocks", lanes=4) for name in ("set", "more")
    }
    blend = ps.Blend(streams, {"set": 3, "more": 1})
    server.log.clear()
    found = stage(ps.Map(blend, dict), hosts=2, host=1, world=4, global_batch=8, steps=10)
    assert found["samples"] == 80
    copied = fetched(server)
    assert 0 < len(copied) == found["files"] < 40
    server.log.clear()
    for rank in (2, 3):
        loader = ps.Loader(blend, 8, rank=rank, world=4, workers=0)
        for _, _batch in zip(range(10), loader, strict=False):
            pass
    assert fetched(server) == set()
    assert stage(blend, hosts=2, host=1, world=4, global_batch=8, steps=10)["fetched_bytes"] == 0


def test_what_is_refused(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = ps.Shuffle(ps.open(f"{server.url}/set"), seed=1, mode="blocks", lanes=4)
    server.log.clear()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"hosts": 2, "host": 2}, "no such host"),
        ({"hosts": 3, "host": 0, "world": 4}, "the hosts don't divide the ranks"),
        ({"hosts": 2, "host": 0, "steps": 3}, "number of samples per step"),
        ({"hosts": 2, "host": 0, "world": 4, "global_batch": 6}, "the ranks don't divide"),
    ]
    for options, what in wrong:
        with pytest.raises(ConfigError, match=what):
            stage(stream, **options)
    monkeypatch.setenv("PENSTOCK_CACHE_BYTES", "20000")
    with pytest.raises(ConfigError, match="the cache is too small") as caught:
        stage(stream, hosts=2, host=0)
    assert "PENSTOCK_CACHE_BYTES" in str(caught.value.hint)
    assert not fetched(server)


def test_local_data_need_nothing(tmp_path: Path) -> None:
    with ps.create(str(tmp_path / "set"), format="mds", columns={"id": "int"}) as writer:
        writer.write({"id": 1})
    assert stage(ps.open(tmp_path / "set"), hosts=1, host=0)["files"] == 0


def run(*arguments: str) -> Any:
    found = CliRunner().invoke(cli, ["stage", *arguments], catch_exceptions=True)
    return found


def test_the_command(server: FileServer, tmp_path: Path) -> None:
    recipe = tmp_path / "run.yaml"
    recipe.write_text(
        f"stream: {{kind: shuffle, seed: 3, lanes: 4, mode: blocks, source: {{path: '{server.url}/set'}}}}\n"
        "batch: {global_batch: 16, world: 4}\n"
    )
    server.log.clear()
    found = run(str(recipe), "--hosts", "2", "--host", "1", "--steps", "20", "--json")
    assert found.exit_code == 0, found.output
    told = json.loads(found.output)
    assert told["world"] == 4
    assert told["files"] == len(fetched(server)) > 0
    again = run(str(recipe), "--hosts", "2", "--host", "1", "--steps", "20")
    assert "0 B downloaded now" in again.output
    assert run(str(recipe), "--hosts", "3", "--host", "0").exit_code != 0


def test_the_command_with_a_dataset(server: FileServer) -> None:
    server.log.clear()
    found = run(f"{server.url}/set", "--hosts", "4", "--host", "0", "--seed", "3", "--lanes", "4", "--json")
    assert found.exit_code == 0, found.output
    count = sum(path.startswith("set/shard.") for path in server.files)
    assert json.loads(found.output)["files"] == len(fetched(server)) < count / 2
    assert run(f"{server.url}/set", "--hosts", "4", "--host", "0", "--lanes", "4").exit_code == 2
    assert run(f"{server.url}/set", "--hosts", "4", "--host", "0", "--mode", "val").exit_code == 2
    assert run(f"{server.url}/set", "--hosts", "4").exit_code == 2
