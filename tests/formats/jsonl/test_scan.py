"""Lines of a range, against the plainest reading of the rules."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import Truncated
from penstock.formats.jsonl import scan
from penstock.formats.jsonl.scan import LineRange, fault_of, scan_lines
from penstock.store.memory import MemoryStore

PIECES = [b"\n", b"\r\n", b"\n\n", b"{}", b'{"a":1}', b"1", b"NaN", b'"x"', b" ", b"[1,\n2]", b"\xff", b"\xe2\x80\xa8"]
DATA = st.one_of(st.binary(max_size=60), st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join))
JSON_BYTES = [
    *(b'{"a": "\\u00e9"}', b"[1, -0.5e3, null]", b'"\xc3\xa9"', b'"\xed\xa0\x80"', b'"\\ud800"', b"\xef\xbb\xbf1"),
    *(b"NaN", b"-Infinity", b"1e400", b"-0", b'{"a":1,"a":2}', b" \t1\r", b'"\x7f"', b"1\x00", b'"\x00"', b'"\x0b"'),
    *(b'"\xff"', b'"\xc0\x80"', b'"\xf4\x90\x80\x80"', b'{"\xff":1}', b"01", b"1.", b".5", b"+1", b"1 2", b"{}{}", b""),
    *(b"[1,]", b"{'a':1}", b"tru", b'"\\x"', b'"\\u12G4"', b"\x0b1", b'{"a" 1}', b'{"a":1,}', b"9" * 5000),
    *(b"9" * 4300, b"9" * 4301, b"1." + b"9" * 5000, b'"' + b"9" * 5000 + b'"', b"[" * 800 + b"]" * 800, b"[" * 10**5),
    *(b'{"a":' * 2000 + b"1" + b"}" * 2000, b"[" * 400 + b"]" * 400),
]  # fmt: skip


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that lines are longer than a block."""
    monkeypatch.setattr(scan, "BLOCK_BYTES", 7)
    monkeypatch.setattr(scan, "_SLICE_BYTES", 8)


def plain_lines(data: bytes) -> list[tuple[int, int]]:
    places, start = [], 0
    for line in data.split(b"\n"):
        places.append((start, len(line)))
        start += len(line) + 1
    return places[:-1] if places[-1][1] == 0 else places


def accepts(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def scanned(data: bytes, borders: list[int], *, validate: bool) -> tuple[list[tuple[int, ...]], list[int], int]:
    """Good lines, places of faulty ones, and the number of lines, over ranges between the borders."""
    store = MemoryStore({"f": data})
    good: list[tuple[int, ...]] = []
    faulty: list[int] = []
    count = 0
    cuts = sorted({0, len(data), *(border % (len(data) + 1) for border in borders)})
    for start, stop in itertools.pairwise(cuts):
        lines = scan_lines(LineRange(store, "f", start, stop, len(data), validate))
        good += [tuple(pair) for pair in lines.pairs.tolist()]
        faulty += [fault.offset_bytes for fault in lines.faults]
        assert lines.num_faults == len(lines.faults)
        assert lines.num_lines == len(lines.pairs) + lines.num_faults
        count += lines.num_lines
    return good, faulty, count


@settings(deadline=None, max_examples=150)
@given(data=DATA, borders=st.lists(st.integers(0, 60), max_size=4))
def test_ranges_give_the_lines_of_the_whole(data: bytes, borders: list[int]) -> None:
    good, faulty, count = scanned(data, borders, validate=True)
    places = plain_lines(data)
    assert good == [place for place in places if accepts(data[place[0] : sum(place)])]
    assert sorted([start for start, _ in good] + faulty) == [start for start, _ in places]
    assert count == len(places)
    assert scanned(data, borders, validate=False)[0] == places


@settings(deadline=None, max_examples=100)
@given(data=DATA, borders=st.lists(st.integers(0, 60), max_size=4))
def test_blocks_do_not_matter(data: bytes, borders: list[int]) -> None:
    whole = [scanned(data, borders, validate=validate) for validate in (True, False)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "BLOCK_BYTES", 7)
        patch.setattr(scan, "_SLICE_BYTES", 8)
        assert [scanned(data, borders, validate=validate) for validate in (True, False)] == whole


@pytest.mark.parametrize("line", JSON_BYTES, ids=lambda line: repr(line[:24]))
def test_as_strict_as_python(line: bytes) -> None:
    expected = accepts(line)
    assert (fault_of(line) is None) == expected
    for data in (line + b"\n", b'{"a": 1}\n' + line + b"\n[2]", line + b'\n{"b": "\xc3\xa9"}\n'):
        assert b"\n" not in line
        wanted = [place for place in plain_lines(data) if accepts(data[place[0] : sum(place)])]
        good, faulty, _ = scanned(data, [], validate=True)
        assert good == wanted
        assert len(faulty) == (not expected)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_never_laxer_than_python(data: st.DataObject) -> None:
    line = bytearray(
        data.draw(st.sampled_from([b'{"t": "o\\u00e9", "n": [1, 2.5e3, null]}', b'[1,-0.5,{"a":{}}]', b'"x\\ny"']))
    )
    alphabet = st.sampled_from(
        [b'"', b"\\", b"{", b"]", b",", b":", b"0", b"-", b".", b"e", b"\xc3", b"\x00", b" ", b"\xef\xbb\xbf"]
    )
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(line)))
        line[place : place + data.draw(st.integers(0, 2))] = data.draw(alphabet)
    assert bool(scanned(bytes(line) + b"\n", [], validate=True)[0]) == accepts(bytes(line))


@pytest.mark.usefixtures("small_blocks")
def test_a_line_longer_than_many_blocks() -> None:
    data = b'"' + b"x" * 1000 + b'"\n1\n"' + b"y" * 500 + b'"'
    for validate in (True, False):
        assert scanned(data, [3, 500, 1002, 1003, 1004], validate=validate)[0] == plain_lines(data)


def test_many_short_lines() -> None:
    data = b"1\n" * 300_000 + b"22"
    assert len(scanned(data, [1, 524_288, 1_048_577], validate=False)[0]) == 300_001
    assert np.array_equal(scanned(data, [], validate=True)[0], plain_lines(data))


def test_stops_at_the_first_fault() -> None:
    data = b"1\nx\n" + b"2\n" * 550_000 + b"y\n"
    lines = scan_lines(LineRange(MemoryStore({"f": data}), "f", 0, len(data), len(data), True, True))
    assert [fault.line for fault in lines.faults] == [1]
    assert lines.num_lines < 550_000


def test_counts_all_faults_and_keeps_the_first() -> None:
    data = b"x\n" * 1000
    lines = scan_lines(LineRange(MemoryStore({"f": data}), "f", 0, len(data), len(data)))
    assert (lines.num_faults, len(lines.faults), len(lines.pairs)) == (1000, scan.MOST_FAULTS, 0)


@pytest.mark.parametrize("validate", [True, False])
def test_a_file_that_shrank(validate: bool) -> None:
    with pytest.raises(Truncated) as caught:
        scan_lines(LineRange(MemoryStore({"f": b"1\n2\n"}), "f", 0, 100, 100, validate))
    assert (caught.value.path, caught.value.offset_bytes) == ("f", 4)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "blank"),
        (b"  \r", "blank"),
        (b'{"a": 1', "character 8"),
        (b'"\xff"', "UTF-8, byte 2"),
        (b"[" * 10**5, "nested"),
        (b"9" * 5000, "digits"),
    ],
)
def test_reasons_name_the_place_and_quote_nothing(line: bytes, reason: str) -> None:
    found = fault_of(line)
    assert found is not None
    assert reason in found
    assert len(found) < 100
