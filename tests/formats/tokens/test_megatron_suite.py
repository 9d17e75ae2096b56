"""Megatron datasets obey the laws of all formats and of all token sources."""

from __future__ import annotations

from typing import ClassVar

from penstock.testing.strategies import token_samples
from penstock.testing.tokens import DOCUMENTS, OTHER, TokenFormatSuite, as_samples


class TestMegatron(TokenFormatSuite):
    format = "megatron"
    options: ClassVar = {"token_bytes": 2}
    widths: ClassVar = {1: {"token_bytes": 1}, 2: {"token_bytes": 2}, 4: {"token_bytes": 4}}
    id_limits: ClassVar = {4: 1 << 31}


class TestInt64(TestMegatron):
    """Ids that are converted, not mapped, and a path that names the index."""

    suffix = ".idx"
    options: ClassVar = {"dtype": "int64", "token_bytes": 2}
    widths: ClassVar = {4: {"dtype": "int64"}}
    id_limits: ClassVar = {}
    dtype = "uint32"
    zero_copy = False
    samples = token_samples(dtype="uint32")
    example = as_samples(DOCUMENTS, "uint32")
    other = as_samples(OTHER, "uint32")

    # The same code writes and publishes both: these take the longest of all.
    test_fault_at_every_operation = None
    test_short_writes = None
