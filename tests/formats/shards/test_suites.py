"""The five shard formats obey the laws of all formats."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st

from penstock.testing.formats import FormatSuite
from penstock.testing.strategies import texts
from penstock.types import Sample

INTS = st.integers(-(1 << 63), (1 << 63) - 1)
ARRAYS = st.lists(st.integers(0, 65_535), min_size=1, max_size=9).map(lambda values: np.array(values, np.uint16))


def rows(**columns: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Sample]]:
    return st.lists(st.fixed_dictionaries(dict(sorted(columns.items()))), max_size=12)


class TestMds(FormatSuite):
    format = "mds"
    findings = "shards"
    options: ClassVar = {
        "columns": {"text": "str", "id": "int", "tokens": "ndarray:uint16", "Z": "bytes", "e": "uint8"},
        "size_limit": 1 << 20,
    }
    samples = rows(text=texts(), id=INTS, tokens=ARRAYS, Z=st.binary(max_size=9), e=st.integers(0, 255).map(np.uint8))
    example: ClassVar = [
        {"Z": b"", "e": np.uint8(7), "id": 1, "text": "one", "tokens": np.array([1, 2], np.uint16)},
        {"Z": b"\0\xff", "e": np.uint8(0), "id": -5, "text": "", "tokens": np.array([65_535], np.uint16)},
        {"Z": b"z" * 40, "e": np.uint8(255), "id": 1 << 62, "text": "é" * 20, "tokens": np.array([3, 4], np.uint16)},
        {"Z": b"4", "e": np.uint8(1), "id": 4, "text": "four\n", "tokens": np.array([5, 6], np.uint16)},
    ]
    other: ClassVar = [
        {"Z": b"o", "e": np.uint8(9), "id": 9, "text": "old", "tokens": np.array([9], np.uint16)},
        {"Z": b"p", "e": np.uint8(8), "id": 8, "text": "older", "tokens": np.array([8, 8, 8], np.uint16)},
    ]


class TestMdsShards(TestMds):
    """Many shards, compressed and hashed."""

    options: ClassVar = {**TestMds.options, "size_limit": 400, "compression": "zstd:1", "hashes": ["sha1", "xxh64"]}
    test_fault_at_every_operation = None
    test_short_writes = None
    test_sniff_reads_little = None  # as many shards as samples


class TestXsv(FormatSuite):
    format = "xsv"
    findings = "shards"
    options: ClassVar = {
        "columns": {"text": "str", "n": "int", "x": "float"},
        "separator": "|",
        "newline": "\r\n",
        "size_limit": 1 << 20,
    }
    samples = rows(
        text=texts().filter(lambda text: not set("|\r\n") & set(text)),
        n=st.integers(-(1 << 80), 1 << 80),
        x=st.floats(),
    )
    example: ClassVar = [
        {"n": 1, "text": 'a "quoted" one', "x": 0.1},
        {"n": -(1 << 70), "text": "", "x": float("nan")},
        {"n": 0, "text": "é😀", "x": float("-inf")},
        {"n": 7, "text": "x" * 300, "x": 1e300},
    ]
    other: ClassVar = [{"n": 2, "text": "older", "x": 1.5}, {"n": 3, "text": "rows", "x": 2.5}]


class TestCsv(TestXsv):
    format = "csv"
    options: ClassVar = {"columns": {"text": "str", "n": "int", "x": "float"}, "size_limit": 90}
    samples = rows(text=texts().filter(lambda text: not set(",\n") & set(text)), n=INTS, x=st.floats())
    test_fault_at_every_operation = None  # the same writer as above
    test_short_writes = None
    test_sniff_reads_little = None


class TestTsv(TestCsv):
    format = "tsv"
    options: ClassVar = {**TestCsv.options, "size_limit": None, "hashes": ["md5"]}
    samples = rows(text=texts().filter(lambda text: not set("\t\n") & set(text)), n=INTS, x=st.floats())
    test_changed_bits_are_found = None
    test_truncation_is_refused_or_found = None


class TestJsonShards(TestCsv):
    format = "json-shards"
    options: ClassVar = {**TestCsv.options, "size_limit": None, "compression": "gz"}
    samples = rows(text=texts(), n=st.integers(-(1 << 80), 1 << 80), x=st.floats())
