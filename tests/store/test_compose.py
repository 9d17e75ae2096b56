"""Objects made of ranges of others inside the store."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError, PenstockError
from penstock.store import compose as module
from penstock.store.compose import LEAST_PART_BYTES, MOST_PARTS, ObjectPart, compose, plan_parts
from penstock.store.local import LocalStore
from penstock.store.place import resolve
from penstock.store.put import put

MIB = 1 << 20


@pytest.fixture
def root(s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return f"s3://bucket/compose/{tmp_path.name}"


def carried_bytes(parts: list[ObjectPart]) -> int:
    return sum(length for part in parts if part.carried for _, _, length in part.extents)


@pytest.mark.parametrize("seed", range(20))
def test_parts_are_the_ranges_in_order_and_of_sizes_that_s3_takes(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice([0, 1, 1000, 4 * MIB, 5 * MIB, 6 * MIB, 300 * MIB, 6 << 30]) for _ in range(12)]
    extents = [(f"p{number}", chance.randrange(9), size) for number, size in enumerate(sizes)]
    planned = plan_parts(extents)
    for part in planned[:-1]:
        size = sum(length for _, _, length in part.extents)
        assert LEAST_PART_BYTES <= size <= 5 << 30
        assert part.carried or len(part.extents) == 1
    flat: list[tuple[str, int, int]] = []
    for path, start, length in (extent for part in planned for extent in part.extents):
        if flat and flat[-1][0] == path and flat[-1][1] + flat[-1][2] == start:
            path, start, length = path, flat[-1][1], flat.pop()[2] + length
        flat.append((path, start, length))
    assert flat == [extent for extent in extents if extent[2]]
    assert all(sum(one[2] for one in part.extents) < 3 * LEAST_PART_BYTES for part in planned if part.carried)


def test_large_ranges_are_not_carried() -> None:
    assert carried_bytes(plan_parts([("a", 0, 64 * MIB), ("b", 0, 64 * MIB)])) == 0
    assert carried_bytes(plan_parts([("head", 0, 8), ("a", 0, 64 * MIB), ("b", 0, 1)])) == 5 * MIB + 1


def test_an_object_of_ranges(root: str) -> None:
    store, _ = resolve(root)
    data = random.Random(1).randbytes(11 * MIB)
    put(store, f"{root}/a b%", data)
    put(store, f"{root}/small", b"head")
    parts = [(f"{root}/small", 0, 4), (f"{root}/a b%", 7, 10 * MIB), (f"{root}/small", 1, 2)]
    assert compose(store, parts, f"{root}/made")
    expected = b"head" + data[7 : 7 + 10 * MIB] + b"ea"
    assert store.get(f"{root}/made") == expected
    with pytest.raises(ConfigError, match="the output exists"):
        compose(store, [(f"{root}/small", 0, 4)], f"{root}/made")
    assert store.get(f"{root}/made", 0, 10) == expected[:10]


def test_what_fails_leaves_nothing(root: str) -> None:
    store, _ = resolve(root)
    put(store, f"{root}/small", b"head")
    for parts in ([(f"{root}/nothing", 0, 6 * MIB)], [(f"{root}/small", 0, 9)], [(f"{root}/nothing", 0, 9)]):
        with pytest.raises(PenstockError):
            compose(store, parts, f"{root}/made")
    assert not store.exists(f"{root}/made")
    client = module._client("bucket")
    assert not [
        one
        for one in client.list_multipart_uploads(Bucket="bucket").get("Uploads", [])
        if one["Key"].startswith(root[12:])
    ]


def test_what_a_store_can_not_do_is_left_to_the_caller(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = resolve(root)
    assert not compose(LocalStore(), [("a", 0, 1)], str(tmp_path / "x"))
    assert not compose(store, [], f"{root}/x")
    many = [("p", 2 * number * 6 * MIB, 6 * MIB) for number in range(MOST_PARTS + 1)]
    assert not compose(store, many, f"{root}/x")

    def missing(*given: Any, **named: Any) -> Any:
        raise module.MissingExtra("boto3 is not installed")

    monkeypatch.setattr(module, "require", missing)
    assert not compose(store, [(f"{root}/a", 0, 1)], f"{root}/x")
