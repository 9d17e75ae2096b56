"""Layouts are told apart from a few bytes, and what is wrong is said."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError, Corrupt, NotFound, Truncated
from penstock.formats._findings import Problem
from penstock.formats.tokens.pbin import FORMAT
from penstock.formats.tokens.pbin.layout import LAYOUTS, Geometry, find_layout
from penstock.store.local import LocalStore
from penstock.store.memory import MemoryStore
from penstock.testing import CountingStore
from penstock.types import OpenOptions

Build = Callable[..., bytes]
Put = Callable[[bytes], str]
DOCS = [[300, 2, 7], [7], [], [65_535, 0, 1, 7], [5, 7]]
NAMES = tuple(LAYOUTS)


def find(data: bytes, name: str | None = None) -> Geometry | Problem:
    return find_layout(MemoryStore({"a": data}), "a", name)


def code(data: bytes) -> str:
    found = find(data)
    assert isinstance(found, Problem), found
    return found.code.removeprefix("pbin.")


def read(path: str, **options: Any) -> list[list[int]]:
    source = FORMAT.open(LocalStore(), path, OpenOptions(**options))
    return [source[index]["tokens"].tolist() for index in range(len(source))]


@pytest.mark.parametrize(
    ("name", "layout"),
    [("hdr4_be_t4.packed.bin", "h4"), ("hdr12_be_t2_off12.pbin", "h12be"), ("hdr12_le_t2_off0.pbin", "h12le")],
)
def test_files_of_old_code(golden: Path, expected: dict[str, Any], name: str, layout: str) -> None:
    path = str(golden / "modalities" / "legacy" / name)
    source = FORMAT.open(LocalStore(), path, OpenOptions())
    assert source.layout == layout
    assert source.dtype.itemsize == expected["legacy"][name]["token_size"]
    assert read(path) == expected["legacy"][name]["docs"]


@pytest.mark.parametrize("layout", NAMES)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_every_layout(packed: Build, put: Put, layout: str, protocol: int) -> None:
    path = put(packed(DOCS, layout, protocol=protocol))
    found = find_layout(LocalStore(), path)
    assert isinstance(found, Geometry)
    assert found.layout.name == layout
    assert read(path) == DOCS
    assert read(path, layout=layout.upper()) == DOCS


def test_offsets_from_one(packed: Build, put: Put) -> None:
    path = put(packed(DOCS, "h4", base=1))
    assert read(path) == DOCS
    assert read(path, layout="h4") == DOCS


@given(
    docs=st.lists(st.lists(st.integers(0, 255), max_size=9), min_size=1, max_size=9).filter(any),
    layout=st.sampled_from(NAMES),
    token_bytes=st.sampled_from([1, 2, 4]),
)
@settings(deadline=None, max_examples=60)
def test_one_layout_fits(packed: Build, docs: list[list[int]], layout: str, token_bytes: int) -> None:
    found = find(packed(docs, layout, token_bytes))
    assert isinstance(found, Geometry)
    assert found.layout.name == layout


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("base", [0, 8])
@pytest.mark.parametrize("tokens", ["little", "big"])
@pytest.mark.parametrize("header", ["little", "big"])
def test_readings_of_the_first_description(put: Put, header: Any, tokens: Any, base: int, width: int) -> None:
    """An 8-byte length and 4-byte tokens, in a byte order and with a first offset that it left open."""
    docs = [[300, 2, 7], [9] * 6, [65_535, 0]]
    data = [b"".join(token.to_bytes(width, tokens) for token in doc) for doc in docs]
    pairs = [(base + sum(map(len, data[:i])), len(one)) for i, one in enumerate(data)]
    whole = b"".join(data)
    path = put(len(whole).to_bytes(8, header) + whole + pickle.dumps(pairs))
    if (header, width) == (tokens, 4):
        assert read(path) == docs
        return
    with pytest.raises(Corrupt) as caught:
        read(path)
    if width == 4:
        assert caught.value.what == "tokens and header have different byte orders"
        name = "h8le" if header == "little" else "h8"
        assert read(path, layout=name)[0][0] == int.from_bytes((300).to_bytes(4, tokens), header)
    else:
        assert "not 4 bytes wide" in str(caught.value)


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("base", [0, 8])
@pytest.mark.parametrize("order", ["little", "big"])
def test_the_sixteen_readings_of_the_eos(put: Put, order: Any, base: int, last: bool, counted: bool) -> None:
    """The EOS id between documents or after each, counted in their lengths or not."""
    docs = [[300, 2, 7], [5], [65_535, 8, 9, 1]]
    ends = [[3], [3], [3] if last else []]
    data, pairs = b"", []
    for doc, end in zip(docs, ends, strict=True):
        pairs.append((base + len(data), 4 * (len(doc) + len(end) * counted)))
        data += b"".join(token.to_bytes(4, order) for token in doc + end)
    path = put(len(data).to_bytes(8, order) + data + pickle.dumps(pairs))
    name = "h8le" if order == "little" else "h8"
    expected = [doc + end for doc, end in zip(docs, ends, strict=True)]
    assert read(path) == read(path, layout=name) == expected
    findings = FORMAT.check(LocalStore(), path, OpenOptions(), "full")
    assert [one.code for one in findings] == ["pbin.old-layout"]


def test_a_hole_of_two_tokens_is_no_reading(put: Put) -> None:
    data = bytes(4 * 8)
    path = put(len(data).to_bytes(8, "little") + data + pickle.dumps([(0, 8), (16, 16)]))
    with pytest.raises(Corrupt, match="no document"):
        read(path)


@pytest.mark.parametrize("layout", NAMES)
def test_no_documents(packed: Build, layout: str) -> None:
    found = find(packed([], layout))
    assert isinstance(found, Geometry)
    assert found.num_tokens == 0


def test_few_small_reads_at_any_size(packed: Build, put: Put) -> None:
    for docs in (DOCS, [[1] * 1000] * 2000):
        store = CountingStore(LocalStore())
        assert isinstance(find_layout(store, put(packed(docs))), Geometry)
        assert store.reads <= 8
        assert store.read_bytes <= 8 * 64


def two_in_one(packed: Build) -> bytes:
    """A file that begins and ends like two layouts: `h12le` with 256 bytes of tokens, `h4` with 65,536."""
    inner = packed([[1] * 128], "h12le", pairs=[(0, 256)])
    outer = packed([[1]], "h4", pairs=[(4, 4 << 12), (4 + (4 << 12), 65_536 - (4 << 12))])[8:]
    return inner + bytes(4 + 65_536 - len(inner)) + outer


def test_two_layouts_fit(packed: Build, put: Put) -> None:
    data = two_in_one(packed)
    assert code(data) == "ambiguous"
    path = put(data)
    with pytest.raises(ConfigError, match="layout=") as caught:
        FORMAT.open(LocalStore(), path, OpenOptions())
    assert "h12le, h4" in str(caught.value)
    first, second = read(path, layout="h4")
    assert first == np.frombuffer(data[4 : 4 + (4 << 12)], ">u4").tolist()
    assert second == [0] * ((65_536 - (4 << 12)) // 4)
    [finding] = [one for one in FORMAT.check(LocalStore(), path, OpenOptions(), "quick") if "ambiguous" in one.code]
    assert (finding.severity, finding.expected) == ("warning", "h4")


def test_unknown_layout(packed: Build) -> None:
    with pytest.raises(ConfigError, match="h12le-abs"):
        find(packed(), "h13")


def test_layout_by_name_needs_no_index(packed: Build, put: Put) -> None:
    path = put(packed()[:-20])
    with pytest.raises(Truncated, match="layout='h12le'"):
        FORMAT.open(LocalStore(), path, OpenOptions())
    source = FORMAT.open(LocalStore(), path, OpenOptions(layout="h12le"))
    assert source.tokens(0, 4).tolist() == [300, 2, 7, 7]
    with pytest.raises((Truncated, Corrupt)):
        len(source)


def test_wrong_first_entry_leaves_tokens_readable(packed: Build, put: Put) -> None:
    path = put(packed(pairs=[(2, 4), (6, 14)]))
    source = FORMAT.open(LocalStore(), path, OpenOptions())
    assert source.tokens(0, 3).tolist() == [300, 2, 7]
    with pytest.raises(Corrupt):
        len(source)


def test_what_is_wrong(packed: Build) -> None:
    whole = packed()
    assert code(b"") == code(whole[:11]) == "header"
    assert code(whole[:12]) == code(whole[:30]) == "truncated"
    assert code(whole[:-1]) == code(whole + b"\0") == "truncated-index"
    assert code(whole[:32]) == "truncated-index"
    assert code(b"\0" * 8 + whole[8:]) == "unfinished"
    assert code(b"\0" * 8 + b"\2\0\0\0") == "unfinished"
    assert code(whole[:8] + b"\3" + whole[9:]) == "token-bytes"
    assert code(b"\x15" + whole[1:]) == "token-bytes"
    assert code(b"\x12" + whole[1:]) == "no-index"
    assert code(b"\xff" * 40) == "header"


@pytest.mark.parametrize("layout", ["h8", "h4", "h12be"])
def test_what_is_wrong_in_old_layouts(packed: Build, layout: str) -> None:
    whole = packed([[1, 2, 3, 40_000]] * 9, layout)
    assert code(whole[:60]) in ("truncated", "header")
    assert code(whole[:-1]) == "truncated-index"


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 2, (1 << 62) + 20, 1 << 40])
def test_absurd_lengths(packed: Build, length: int) -> None:
    found = find(packed(length=length))
    assert isinstance(found, Problem)
    assert found.kind is Truncated
    assert str(length) in str(found.expected)


def test_unfinished_says_so(packed: Build, put: Put) -> None:
    path = put(b"\0" * 8 + b"\2\0\0\0" + b"\1\0" * 500)
    with pytest.raises(Truncated, match="stopped before it finished") as caught:
        FORMAT.open(LocalStore(), path, OpenOptions())
    assert caught.value.offset_bytes == 0
    assert "repair" in str(caught.value)


def test_sniff(packed: Build, put: Put, tmp_path: Path) -> None:
    assert FORMAT.sniff(LocalStore(), put(packed())).matches
    assert FORMAT.sniff(LocalStore(), put(packed()[:-3])).matches  # damaged, but surely one: open says what is wrong
    os.rename(tmp_path / "a.pbin", tmp_path / "a.dat")
    assert not FORMAT.sniff(LocalStore(), str(tmp_path / "a.dat")).matches
    assert not FORMAT.sniff(LocalStore(), str(tmp_path)).matches
    assert FORMAT.sniff(LocalStore(), str(tmp_path / "b.pbin")).why == "no such file"
    with pytest.raises(NotFound):
        FORMAT.open(LocalStore(), str(tmp_path / "b.pbin"), OpenOptions())
