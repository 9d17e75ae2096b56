"""Functions that recipes of the tests name."""

from __future__ import annotations

from typing import Any


def double(sample: Any, **stores: Any) -> dict[str, Any]:
    return {**sample, "stores": sorted(stores)}


def in_pairs(samples: list[Any]) -> list[list[int]]:
    return [[place, place + 1] for place in range(0, len(samples), 2)]


def together(samples: list[Any]) -> dict[str, Any]:
    return {"ids": [sample["id"] for sample in samples]}


def length(sample: Any) -> int:
    return len(sample["text"])


def beside(left: Any, right: Any) -> dict[str, Any]:
    return {"__key__": left["__key__"], "right": right}
