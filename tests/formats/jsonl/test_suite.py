"""JSONL files obey the laws of all formats."""

from __future__ import annotations

from typing import ClassVar

from penstock.testing.formats import FormatSuite
from penstock.testing.strategies import json_samples


class TestJsonl(FormatSuite):
    format = "jsonl"
    suffix = ".jsonl"
    samples = json_samples()
    example: ClassVar = [
        {"text": 'a line\u2028of "text"', "n": 1},
        {"text": "", "n": -(1 << 53)},
        {"text": "é\r\n😀", "n": 0},
        {"text": "x" * 300, "n": 7},
    ]
    other: ClassVar = [{"text": "older", "n": 2}, {"text": "lines", "n": 3}]
