"""Fixtures and functions that the tests of MosaicML Streaming import; see `datasets`."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.common.datasets import NumberAndSayDataset, SequenceDataset, write_mds_dataset


@pytest.fixture
def local_remote_dir() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        yield f"{root}/local", f"{root}/remote"


@pytest.fixture
def compressed_local_remote_dir() -> Iterator[tuple[str, str, str]]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        yield f"{root}/compressed", f"{root}/local", f"{root}/remote"


def convert_to_mds(
    *,
    out_root: str,
    dataset_name: str,
    num_samples: int = 117,
    offset: int = 0,
    size_limit: Any = 1 << 8,
    **options: Any,
) -> None:
    of_numbers = dataset_name.lower() == "sequencedataset"
    samples: Any = SequenceDataset(num_samples, offset=offset) if of_numbers else NumberAndSayDataset(num_samples)
    columns = dict(zip(samples.column_names, samples.column_encodings, strict=True))
    write_mds_dataset(out_root, columns, samples, size_limit, **options)


def get_config_in_bytes(
    format: str, size_limit: Any, names: Any, encodings: Any, sizes: Any, compression: Any = None, hashes: Any = None
) -> bytes:
    columns = {"column_names": names, "column_encodings": encodings, "column_sizes": sizes}
    found = {
        "version": 2,
        "format": format,
        "compression": compression,
        "hashes": hashes or [],
        "size_limit": size_limit,
    }
    return json.dumps({**found, **columns}, sort_keys=True).encode()


def copy_all_files(source: str, destination: str) -> None:
    Path(destination).mkdir(exist_ok=True)
    for file in Path(source).iterdir():
        if file.is_file():
            shutil.copy2(file, destination)


def get_free_tcp_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
