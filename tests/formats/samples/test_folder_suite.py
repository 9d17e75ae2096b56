"""The folder format keeps the laws of all formats."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import ConfigError
from penstock.store import LocalStore
from penstock.testing import FormatSuite
from penstock.testing.counting import CountingStore
from penstock.testing.strategies import json_values
from penstock.types import Sample

_NAMES = st.text("ab.é -", min_size=1, max_size=6).filter(lambda name: name not in (".", ".."))
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "txt": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    "json": json_values().filter(lambda value: value is not None),  # that is a part which is not there
    "cls": st.integers(-(10**12), 10**12),
    "bin": st.binary(max_size=40),
}


@st.composite
def files(draw: st.DrawFn) -> list[Sample]:
    """Samples of one file each, in the byte order of their names."""
    found: dict[str, Sample] = {}
    for number in range(draw(st.integers(0, 6))):
        stem = draw(_NAMES).replace(".", "")
        part = draw(st.sampled_from(sorted(_VALUES)))
        folder = draw(st.sampled_from(["", "d/", "d/e/", ".hidden/"]))
        key = f"{folder}{stem}{number}.{part}"
        found[key] = {"__key__": key, part: draw(_VALUES[part])}
    return [found[key] for key in sorted(found, key=os.fsencode)]


def _fixed(*samples: tuple[str, str, Any]) -> list[Sample]:
    return [{"__key__": key, part: value} for key, part, value in samples]


class TestFolder(FormatSuite):
    format = "folder"
    samples = files()
    example = _fixed(
        ("a/one.json", "json", {"a": [1, None, "ü"]}),
        ("b.detail.txt", "detail.txt", "line\n"),
        ("noext", "", b"\0\1"),
    )
    other = _fixed(("other.txt", "txt", "x"), ("p/q.bin", "bin", b"12345"))

    def test_sniff_reads_little(self, path: Path) -> None:
        # Each sample is a file: fewer than elsewhere, with names long enough for a long side file.
        many = _fixed(*((f"{'long' * 20}-{number:05d}.bin", "bin", b"x" * 99) for number in range(1200)))
        self.write(path, many)
        assert (path / ".penstock").stat().st_size > 2 * (1 << 16)
        store = CountingStore(LocalStore())
        assert self.the_format.sniff(store, str(path)).matches
        assert store.read_bytes <= 1 << 16

    def test_parts_are_files_of_their_own(self, tmp_path: Path) -> None:
        sample = {"__key__": "d/k", "txt": "t", "json": {"a": 1}, "cls": None}
        self.write(tmp_path / "set", [sample])
        source: Any = self.open(tmp_path / "set")
        assert [one["__key__"] for one in source] == ["d/k.json", "d/k.txt"]
        assert list(itertools.chain.from_iterable(source)) == ["__key__", "json", "__key__", "txt"]

    @pytest.mark.parametrize("format", ["folder", "webdataset"])
    def test_none_is_no_part(self, tmp_path: Path, format: str) -> None:
        with pytest.raises(ConfigError, match='b"null"'), ps.create(tmp_path / "set", format=format) as writer:
            writer.write({"__key__": "a0.json", "json": None})
        assert not (tmp_path / "set").exists()
        with ps.create(tmp_path / "set", format=format) as writer:
            writer.write({"__key__": "a0", "json": b"null"})
        assert [one["json"] for one in ps.open(tmp_path / "set")] == [None]
