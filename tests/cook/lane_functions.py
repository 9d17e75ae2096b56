"""Functions of lane streams that worker processes import."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def first_fit(samples: list[dict[str, Any]], room: int = 12) -> list[list[int]]:
    """Groups of samples whose lengths are at most `room` together."""
    groups: list[list[int]] = []
    left: list[int] = []
    for place, sample in enumerate(samples):
        size = sample["length"]
        for number, free in enumerate(left):
            if size <= free:
                groups[number].append(place)
                left[number] -= size
                break
        else:
            groups.append([place])
            left.append(room - size)
    return groups


def join(group: list[dict[str, Any]]) -> dict[str, Any]:
    return {"ids": [sample["id"] for sample in group], "length": sum(sample["length"] for sample in group)}


def odd(group: list[dict[str, Any]]) -> dict[str, Any] | None:
    return group[0] if group[0]["id"] % 2 else None


def copies(group: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for copy in range(group[0]["id"] % 3):
        yield {"id": group[0]["id"], "copy": copy}


def nothing(group: list[dict[str, Any]]) -> None:
    return None
