"""flat-tokens groups obey the laws of all formats and of all token sources, raw and as compressed shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from penstock.abc import Store
from penstock.testing.strategies import token_samples
from penstock.testing.tokens import DOCUMENTS, OTHER, TokenFormatSuite, as_samples
from penstock.types import Sample

# Several chunk files for a handful of tokens; few where a law writes many samples.
RAW = {"token_bytes": 2, "chunk_tokens": 4, "chunk_starts": 3}
SHARDS = {"token_bytes": 2, "zarr_format": 3, "compressor": "blosc", "chunk_tokens": 3, "shard_tokens": 6}
WIDE = {"token_bytes": 2, "chunk_tokens": 1 << 16, "chunk_starts": 1 << 14}


class FlatTokensLaws(TokenFormatSuite):
    format = "flat-tokens"
    suffix = ".zarr"
    dtype = "uint32"
    id_limits: ClassVar = {4: 1 << 31}
    zero_copy = False
    samples = token_samples(dtype="uint32")
    example = as_samples(DOCUMENTS, "uint32")
    other = as_samples(OTHER, "uint32")

    def write(
        self,
        path: Path,
        samples: Sequence[Sample],
        *,
        overwrite: bool = False,
        store: Store | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        chosen = self.options if options is None else options
        super().write(path, samples, overwrite=overwrite, store=store, options=WIDE if len(samples) > 100 else chosen)


class TestRaw(FlatTokensLaws):
    options: ClassVar = RAW
    widths: ClassVar = {4: RAW}


class TestCompressedShards(FlatTokensLaws):
    options: ClassVar = SHARDS
    widths: ClassVar = {4: SHARDS}

    # The same code writes and publishes both: these take the longest of all.
    test_fault_at_every_operation = None
    test_short_writes = None
    test_sniff_reads_little = None
