"""CBOR: the examples of RFC 8949, and what is none."""

from __future__ import annotations

import math
from datetime import datetime

import pytest

from penstock.codec.cbor import decode_cbor
from penstock.codec.parts import DecodeOptions, decode_part
from penstock.errors import Corrupt


@pytest.mark.parametrize(
    ("stored", "value"),
    [
        ("00", 0),
        ("17", 23),
        ("1818", 24),
        ("1903e8", 1000),
        ("1bffffffffffffffff", 2**64 - 1),
        ("c249010000000000000000", 2**64),
        ("3bffffffffffffffff", -(2**64)),
        ("c349010000000000000000", -(2**64) - 1),
        ("3903e7", -1000),
        ("f90001", 2.0**-24),
        ("f93e00", 1.5),
        ("fa47c35000", 100000.0),
        ("fb7e37e43c8800759c", 1.0e300),
        ("f9fc00", -math.inf),
        ("f4", False),
        ("f5", True),
        ("f6", None),
        ("f7", None),
        ("4401020304", b"\1\2\3\4"),
        ("62c3bc", "ü"),
        ("80", []),
        ("8301820203820405", [1, [2, 3], [4, 5]]),
        ("a201020304", {1: 2, 3: 4}),
        ("a56161614161626142616361436164614461656145", {"a": "A", "b": "B", "c": "C", "d": "D", "e": "E"}),
        ("5f42010243030405ff", b"\1\2\3\4\5"),
        ("7f657374726561646d696e67ff", "streaming"),
        ("9f018202039f0405ffff", [1, [2, 3], [4, 5]]),
        ("bf6346756ef563416d7421ff", {"Fun": True, "Amt": -2}),
        ("c11a514b67b0", datetime(2013, 3, 21, 20, 4)),
        ("c074323031332d30332d32315432303a30343a30305a", "2013-03-21T20:04:00Z"),
        ("d818456449455446", b"dIETF"),
    ],
)
def test_values(stored: str, value: object) -> None:
    data = bytes.fromhex(stored)
    found = decode_part("detail.cbor", data, DecodeOptions())
    assert (found, type(found)) == (value, type(value))
    for cut in range(len(data)):
        with pytest.raises(ValueError, match="ends early"):
            decode_cbor(data[:cut])


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        (b"", "ends early"),
        (b"\x82\x01", "ends early"),
        (b"\x9b" + b"\xff" * 8, "ends early"),
        (b"\x5b" + b"\xff" * 8, "ends early"),
        (b"\x01\x02", "1 bytes after"),
        (b"\x1c", "a length of type 28"),
        (b"\x1f", "a length of type 31"),
        (b"\xe0", "a simple value of type 0"),
        (b"\xff", "a simple value of type 31"),
        (b"\x5f\x61a\xff", "a string that contains another type"),
        (b"\xbf\x01\xff", "a key without a value"),
        (b"\xa1\x80\x01", "a list as a key"),
        (b"\xc2\x01", "a big number of type int"),
        (b"\xc1\xfb\x7e\x37\xe4\x3c\x88\x00\x75\x9c", "an invalid time"),
        (b"\x61\xff", "utf-8"),
        (b"\x81" * 1000, "more than 100 nested values"),
        (b"\xc2" * 1000, "more than 100 nested values"),
    ],
)
def test_what_is_none(stored: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decode_cbor(stored)
    with pytest.raises(Corrupt, match="a part 'cbor' can't be decoded"):
        decode_part("cbor", stored, DecodeOptions())
