"""Packed files obey the laws of all formats and of all token sources."""

from __future__ import annotations

from typing import ClassVar

from penstock.testing.tokens import TokenFormatSuite


class TestPbin(TokenFormatSuite):
    format = "pbin"
    suffix = ".pbin"
    options: ClassVar = {"token_bytes": 2}
    widths: ClassVar = {1: {"token_bytes": 1}, 2: {"token_bytes": 2}, 4: {"token_bytes": 4}}
