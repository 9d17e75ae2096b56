"""Modules of `streaming.base` that programs import; `tests/interop/test_streaming_parts.py` compares what they give."""

from __future__ import annotations

import importlib

import pytest

from penstock.compat.streaming.base import compression, hashing
from penstock.errors import ConfigError, FormatError


@pytest.mark.parametrize("algo", sorted(compression.get_compressions())[::7])
def test_what_is_compressed_comes_back(algo: str) -> None:
    data = bytes(range(256)) * 9
    packed = compression.compress(algo, data)
    assert packed != data
    assert compression.decompress(algo, packed) == data
    assert compression.get_compression_extension(algo) == algo.partition(":")[0]


def test_refusals() -> None:
    for call in (compression.compress, compression.decompress):
        with pytest.raises(ConfigError, match="zstd:99 is not a supported compression algorithm"):
            call("zstd:99", b"")
    with pytest.raises(ConfigError, match="crc32 is not a supported hash algorithm"):
        hashing.get_hash("crc32", b"")
    with pytest.raises(FormatError):
        compression.decompress("gz", b"no gzip")


@pytest.mark.parametrize(
    ("name", "told"), [("CloudDownloader", "remote="), ("S3Downloader", "remote="), ("CloudUploader", "MDSWriter")]
)
def test_storage_says_what_to_use(name: str, told: str) -> None:
    storage = importlib.import_module("penstock.compat.streaming.base.storage")
    with pytest.raises(ImportError, match=told):
        getattr(storage, name)
    with pytest.raises(AttributeError):
        storage.no_such_thing  # noqa: B018
