"""A dataset as Energon's documentation prints it: shards, a few small files beside them, and no index of any shard."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import boto3
import pytest

from penstock.compat import energon as en
from penstock.testing import FileServer

from .test_paths import KEYS, config, dataset, keys, training

PRINTED = {".nv-meta/dataset.yaml", ".nv-meta/split.yaml", ".nv-meta/.info.yaml"}


@pytest.fixture
def printed(tmp_path: Path) -> dict[str, bytes]:
    """The files as they are printed."""
    path = dataset(tmp_path / "data")
    files = {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()}
    shards = sorted(name for name in files if name.endswith(".tar"))
    counts = "".join(f"  {name}: 10\n" for name in shards)
    files[".nv-meta/.info.yaml"] = f"shard_counts:\n{counts}".encode()
    return {name: data for name, data in files.items() if name in PRINTED or name in shards}


@pytest.fixture(params=["disk", "http", "s3"])
def url(request: pytest.FixtureRequest, printed: dict[str, bytes], tmp_path: Path) -> Iterator[str]:
    """Where they are."""
    if request.param == "disk":
        for name, data in printed.items():
            (tmp_path / "bare" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "bare" / name).write_bytes(data)
        yield str(tmp_path / "bare")
    elif request.param == "http":
        with FileServer({f"bare/{name}": data for name, data in printed.items()}) as server:
            yield f"{server.url}/bare"
    else:
        client: Any = boto3.client("s3", endpoint_url=request.getfixturevalue("s3_server"))
        for name, data in printed.items():
            client.put_object(Bucket="bucket", Key=f"{tmp_path.name}/{name}", Body=data)
        yield f"s3://bucket/{tmp_path.name}"


def test_it_trains_and_goes_on(url: str) -> None:
    loader = en.get_savable_loader(training(url))
    assert sorted(keys(loader, 4)) == KEYS[:20]
    state = loader.save_state_rank()
    after = keys(loader, 4)
    again = en.get_savable_loader(training(url))
    again.restore_state_rank(state)
    assert keys(again, 4) == after


def test_it_validates_over_ranks(url: str) -> None:
    found: list[str] = []
    for rank in range(2):
        data = en.get_val_dataset(url, split_part="val", worker_config=config(rank, 2), batch_size=5)
        found += keys(en.get_loader(data), 9)
    assert sorted(found) == KEYS[20:]


def test_samples_are_made_again(url: str) -> None:
    loader = en.get_savable_loader(training(url))
    batch = next(islice(loader, 1))
    assert loader.restore_sample(batch.__restore_key__).text == batch.text
