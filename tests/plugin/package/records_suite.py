"""The laws of formats and writers, held by a format that Penstock does not know of before it is installed."""

from __future__ import annotations

from penstock.testing import FormatSuite
from penstock.testing.strategies import json_samples

EXAMPLE = [{"text": text, "n": n} for n, text in enumerate(["a", "é\n", "c" * 50, ""])]
OTHER = [{"text": "old"}, {"text": "older"}]


class TestRecords(FormatSuite):
    format = "records"
    suffix = ".records"
    samples = json_samples()
    example = EXAMPLE
    other = OTHER
