"""Reading lines: values, columns, batches, places and refusals."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import penstock as ps
from penstock.errors import ConfigError, Corrupt, Truncated, Unsupported
from penstock.formats.jsonl import FORMAT, JsonlSource
from penstock.store.local import LocalStore
from penstock.testing import CountingStore, SourceLaws
from penstock.types import Extent, Field, OpenOptions, Schema

LINES = [
    b'{"text": "\xc3\xa9", "n": 1, "deep": {"a": [1, 2.5]}}',
    b'\xef\xbb\xbf{"text": "bom", "n": 2}',
    b'{"text": "\\ud800", "n": 3, "n": 4}\r',
    b'[1, "two"]',
    b"  7 ",
    b'{"n": NaN}',
    b'{"n": 123456789012345678901234567890, "f": 1e400}',
]


def opened(path: Path, store: Any = None, **options: Any) -> JsonlSource:
    return FORMAT.open(LocalStore() if store is None else store, str(path), OpenOptions(**options))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(LINES))
    return path


class TestForeignFile(SourceLaws):
    @pytest.fixture
    def source(self, path: Path) -> JsonlSource:
        return opened(path)

    @pytest.fixture
    def expected(self) -> list[dict[str, Any]]:
        values = [json.loads(line) for line in LINES]
        return [value if isinstance(value, dict) else {"value": value} for value in values]


class TestRaw(SourceLaws):
    @pytest.fixture
    def source(self, path: Path) -> JsonlSource:
        return opened(path, raw=True, read="pread")

    @pytest.fixture
    def expected(self) -> list[dict[str, Any]]:
        return [{"line": line} for line in LINES]


class TestColumns(SourceLaws):
    @pytest.fixture
    def source(self, path: Path) -> JsonlSource:
        return opened(path, columns=("n", "text"))

    @pytest.fixture
    def expected(self) -> list[dict[str, Any]]:
        samples = [json.loads(line) for line in LINES]
        return [
            {name: sample[name] for name in ("n", "text") if isinstance(sample, dict) and name in sample}
            for sample in samples
        ]


class TestValues:
    def test_through_the_facade(self, path: Path) -> None:
        source = ps.open(path)
        assert len(source) == len(LINES)
        assert source[2] == {"text": "\ud800", "n": 4}
        assert source[3] == {"value": [1, "two"]}
        assert source[4] == {"value": 7}
        assert math.isnan(source[5]["n"])
        assert source[6] == {"n": 123456789012345678901234567890, "f": math.inf}

    def test_a_batch_of_columns(self, path: Path) -> None:
        batch = opened(path).get_batch(np.array([0, 1, 3]))
        assert batch == {
            "text": ["é", "bom", None],
            "n": [1, 2, None],
            "deep": [{"a": [1, 2.5]}, None, None],
            "value": [None, None, [1, "two"]],
        }
        assert opened(path).get_batch([0, 1])["n"].dtype == np.int64

    @pytest.mark.parametrize("read", ["mmap", "pread"])
    def test_a_line_of_20_MB(self, tmp_path: Path, read: str) -> None:
        path = tmp_path / "long.jsonl"
        text = "é" * 10_000_000
        path.write_bytes(b'{"n": 1}\n' + json.dumps({"text": text}, ensure_ascii=False).encode() + b'\n{"n": 3}')
        source = opened(path, read=read)
        assert len(source) == 3
        assert source[1]["text"] == text
        assert source.get_batch([2, 0])["n"].tolist() == [3, 1]


class TestPlaces:
    def test_extents_hold_the_lines(self, path: Path) -> None:
        source, data = opened(path), path.read_bytes()
        for number, line in enumerate(LINES):
            [extent] = source.place_of(number).extents
            assert extent == Extent(str(path), data.index(line), len(line))
        assert source.place_of(-1) == source.place_of(len(LINES) - 1)
        with pytest.raises(IndexError):
            source.place_of(len(LINES))

    def test_schema(self, path: Path) -> None:
        assert opened(path).schema == Schema((), open=True)
        assert opened(path, raw=True).schema == Schema((Field("line", "bytes"),))
        assert opened(path, columns=("n",)).schema == Schema((Field("n", "json"),), open=True)

    def test_recipe_and_summary(self, path: Path) -> None:
        assert opened(path).recipe() == {"kind": "open", "format": "jsonl", "path": str(path)}
        assert opened(path, raw=True, columns=("n",)).recipe()["columns"] == ["n"]
        source = opened(path)
        assert "lines" not in str(source)
        assert len(source) == 7
        assert "lines=7" in str(source)

    def test_the_index_is_part_of_the_fingerprint(self, path: Path) -> None:
        whole = opened(path).fingerprint
        pairs = opened(path)._lines.tolist()  # pyright: ignore[reportPrivateUsage]
        path.with_suffix(".idx").write_bytes(pickle.dumps([tuple(pair) for pair in pairs[:2] + pairs[3:]], 4))
        assert opened(path).fingerprint != whole


class TestRefusals:
    bad: ClassVar = b'{"n": 0}\n{"n": 1}\n{"n": 2}\n'

    def test_no_such_flavor(self, path: Path) -> None:
        with pytest.raises(ConfigError, match="modalities"):
            opened(path, flavor="nosuch")

    def test_a_line_that_turned_bad(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_bytes(self.bad)
        for read in ("mmap", "pread"):
            path.write_bytes(self.bad)
            source = opened(path, read=read)
            assert len(source) == 3
            with path.open("r+b") as file:
                file.seek(10)
                file.write(b"????")
            assert source[0] == {"n": 0}
            with pytest.raises(Corrupt) as caught:
                source[1]
            assert (caught.value.path, caught.value.offset_bytes) == (str(path), 9)
            assert "????" not in str(caught.value)
            with pytest.raises(Corrupt):
                source.get_batch([2, 1])

    @pytest.mark.parametrize("read", ["mmap", "pread"])
    def test_a_file_that_shrank(self, tmp_path: Path, read: str) -> None:
        path = tmp_path / "a.jsonl"
        path.write_bytes(self.bad)
        source = opened(path, read=read)
        assert len(source) == 3
        path.write_bytes(self.bad[:12])
        with pytest.raises(Truncated):
            source[2]

    def test_no_map_where_there_is_none(self, path: Path) -> None:
        with pytest.raises(Unsupported, match="pread"):
            opened(path, CountingStore(LocalStore()), read="mmap")

    def test_a_nest_too_deep(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_bytes(b"1\n" + b"[" * 5000 + b"]" * 5000 + b"\n2\n")
        path.with_suffix(".idx").write_bytes(
            b"\x80\x04\x5d\x94(K\x00K\x01\x86\x94K\x02M\x10\x27\x86\x94M\x13\x27K\x01\x86\x94e."
        )
        source = opened(path)
        assert source[2] == {"value": 2}
        with pytest.raises(Corrupt, match="nested"):
            source[1]


class TestSniff:
    @pytest.mark.parametrize(
        ("name", "data", "matches"),
        [
            ("a.jsonl", b"", True),
            ("a.ndjson", b"\x00", True),
            ("a.txt", b'\n {"a": 1}\r\n{"b": 2}\n', True),
            ("a", b'{"a": 1}', True),
            ("a.json", b'{"a": 1}', False),
            ("a", b"[1, 2]\n", False),
            ("a", b'{"a": 1\n}', False),
            ("a", b'{"a": "' + b"x" * 70_000 + b'"}\n', False),
            ("a", b"plain text\n", False),
            ("a.idx", b"\x80\x04]\x94.", False),
        ],
    )
    def test_sniff(self, tmp_path: Path, name: str, data: bytes, matches: bool) -> None:
        path = tmp_path / name
        path.write_bytes(data)
        assert FORMAT.sniff(LocalStore(), str(path)).matches == matches
