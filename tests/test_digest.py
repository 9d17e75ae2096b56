"""Digests of parameters: pinned, and sensitive to everything."""

from __future__ import annotations

import pytest

from penstock._digest import derive_key, digest


def test_pinned() -> None:
    # Orders, fingerprints and states depend on these values: they never change.
    assert digest() == "7ebb3c7c2a87b1a2f8a7ed729ecb040d"
    assert digest("a", 1, [2.5, None, True], {"k": "é"}) == "118acde7c310600a7abbf291ba1c801d"
    assert derive_key(0) == 0x8C0C3390A5810185
    assert derive_key(7, "shuffle", 3) == 0x9C98DADC0E671DED
    assert derive_key(2**70, "shuffle") == 0x4BA46ACE88434A70


def test_keys_are_sorted_and_types_told_apart() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    values = [None, 0, 0.5, "0", "", [], {}, [0], ["0"], False, "false"]
    assert len({digest(value) for value in values}) == len(values)
    assert digest("a", "b") != digest(["a", "b"])
    assert digest("ab", "") != digest("a", "b")


def test_what_is_not_json_is_refused() -> None:
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON"):
            digest(wrong)
    with pytest.raises(TypeError):
        digest(object())


def test_seeds_are_hashed_with_their_context() -> None:
    keys = {derive_key(seed, "epoch", epoch) for seed in range(-20, 20) for epoch in range(20)}
    assert len(keys) == 800
    assert all(0 <= key < 1 << 64 for key in keys)
    assert derive_key(1, "a", 23) != derive_key(1, "a2", 3)
    assert derive_key(1, 2) != derive_key(1, "2")
