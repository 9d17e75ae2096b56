"""Opcodes of pickled lists of pairs; see `penstock.codec.pickles`."""

from __future__ import annotations

import numpy as np

EMPTY_LIST = b"\x80\x04]\x94."
"""The pickle of `[]`."""

FRAME_BYTES = 1 << 16
MAX = (1 << 63) - 1
PROTO, FRAME, LIST, MEMOIZE, TUPLE2, STOP = 0x80, 0x95, 0x5D, 0x94, 0x86, 0x2E
MARK, APPENDS, APPEND = 0x28, 0x65, 0x61
BININT1, BININT2, BININT, LONG1 = 0x4B, 0x4D, 0x4A, 0x8A
BINPUT, LONG_BINPUT, BINGET, LONG_BINGET = 0x71, 0x72, 0x68, 0x6A

# Kind of a number: 1 to 3 for BININT1, BININT2, BININT, and 3 + n for LONG1 of n bytes; 0 for none of these.
KIND = np.zeros(256, np.int64)
KIND[[BININT1, BININT2, BININT]] = 1, 2, 3
PAYLOAD_BYTES = np.array([0, 1, 2, 4, *range(1, 9)], np.int64)
SKIP_BYTES = np.array([0, 1, 1, 1, *[2] * 8], np.int64)
VALUE_MASK = np.array([(1 << 8 * int(size)) - 1 for size in PAYLOAD_BYTES], np.uint64)
SIGN_BIT = np.array([0, 0, 0, 1 << 31, *[1 << 8 * size - 1 for size in range(1, 9)]], np.uint64)

RUNS_CODE = {
    **{ord("c"): "GLOBAL", 0x93: "STACK_GLOBAL", ord("R"): "REDUCE", ord("b"): "BUILD", ord("i"): "INST"},
    **{ord("o"): "OBJ", 0x81: "NEWOBJ", 0x92: "NEWOBJ_EX", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4"},
    **{ord("P"): "PERSID", ord("Q"): "BINPERSID"},
}
"""Opcodes that import or call something, by name."""
