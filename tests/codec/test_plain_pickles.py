"""Pickles of plain values: what is read, and that nothing is ever run."""

from __future__ import annotations

import contextlib
import pickle
import pickletools
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from penstock.codec.parts import DecodeOptions, decode_part
from penstock.codec.plain_pickles import decode_plain_pickle
from penstock.errors import Corrupt, FormatError, UnsafeData
from penstock.testing.strategies import for_all

_SINGLE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
_KEYS = st.text() | st.integers(-(1 << 59), 1 << 59) | st.tuples(st.text(), st.booleans())
_VALUES = st.recursive(
    _SINGLE,
    lambda inner: st.lists(inner) | st.dictionaries(_KEYS, inner) | st.lists(inner, max_size=5).map(tuple),
)


def test_what_python_pickles_of_plain_values_comes_back() -> None:
    @for_all(_VALUES, st.sampled_from([4, 5]), examples=150)
    def law(value: Any, protocol: int) -> None:
        found = decode_plain_pickle(pickle.dumps(value, protocol))
        assert found == value
        assert repr(found) == repr(value)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_long_ones_and_those_that_share_their_values(protocol: int) -> None:
    shared = [1, "x"]
    value = {"many": list(range(3000)), "again": [shared, shared], "big": [-(2**2000), "y" * 70_000], 7: ()}
    found = decode_plain_pickle(pickle.dumps(value, protocol))
    assert found == value
    assert found["again"][0] is found["again"][1]


@pytest.mark.parametrize("protocol", [4, 5])
def test_sets(protocol: int) -> None:
    value = [{1, "a", None}, frozenset([(1, "b")]), set[int](), frozenset[int]()]
    found = decode_plain_pickle(pickle.dumps(value, protocol))
    assert found == value
    assert list(map(type, found)) == list(map(type, value))


class Bomb:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("the pickle ran",))


@pytest.mark.parametrize("value", [Bomb(), [{"a": Bomb()}], np.arange(3), np.float64(1), {1: object()}])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_imports_is_refused_by_its_opcode(value: Any, protocol: int) -> None:
    with pytest.raises(UnsafeData, match=r"found the opcode (STACK_)?GLOBAL"):
        decode_plain_pickle(pickle.dumps(value, protocol))
    with pytest.raises(UnsafeData, match=r"a part 'a\.pkl' runs code .* --trust \(trust=True\)"):
        decode_part("a.pkl", pickle.dumps(value, protocol), DecodeOptions())


def test_every_other_opcode_is_refused() -> None:
    known = set(map(ord, "().aeu]}sNhjqrtKMJGXBC")) | {
        *range(0x85, 0x8C),
        0x8C,
        0x8D,
        0x8E,
        0x8F,
        0x90,
        0x91,
        0x94,
        0x95,
        0x96,
    }
    for opcode in pickletools.opcodes:
        if ord(opcode.code) not in known:
            with pytest.raises((UnsafeData, Corrupt)) as caught:
                decode_plain_pickle(b"\x80\x04]" + opcode.code.encode("latin1") + b"\0" * 8 + b".")
            assert "opcode" in str(caught.value), opcode.name


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b".",
        b"]",
        b"]].",
        b"a.",
        b"]a.",
        b"e.",
        b"](K\x01",
        b"K\x01\x86.",
        b"(K\x01(\x85e.",
        b"]K\x01s.",
        b"}(K\x01u.",
        b"}]K\x01s.",
        b"}K\x01\x85\x85K\x01s.",
        b"}G\0\0\0\0\0\0\0\0K\x01s.",
        b"}\x8a\x09\0\0\0\0\0\0\0\0\x01K\x01s.",
        b"h\x07.",
        b"\x8e" + b"\xff" * 8 + b".",
        b"\x96" + b"\xff" * 7 + b"\x0f.",
        b"\x8c\x02\xff\xff.",
        b"N.N",
    ],
)
def test_damaged_ones(body: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_plain_pickle(b"\x80\x04" + body)


def test_any_bytes_are_read_or_refused() -> None:
    @for_all(st.binary(max_size=40), examples=300)
    def law(data: bytes) -> None:
        with contextlib.suppress(FormatError, UnsafeData):
            decode_plain_pickle(b"\x80\x04" + data)


def test_marks_do_not_cost_the_stack_each_time() -> None:
    """A hundred thousand values below, and as many runs of nothing: looking for each mark would take minutes."""
    body = b"K\x01" * 100_000 + b"]" + b"(e" * 100_000 + b"."
    with pytest.raises(Corrupt, match="too many values"):
        decode_plain_pickle(b"\x80\x04" + body)
