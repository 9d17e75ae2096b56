from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import ConfigError
from penstock.store.derived import DerivedCache
from penstock.testing import MemorySource
from penstock.testing.sources import SourceLaws


def samples(lengths: list[int]) -> MemorySource:
    return MemorySource([{"id": i, "length": length} for i, length in enumerate(lengths)])


def length(sample: dict[str, Any]) -> int:
    return sample["length"]


def joined(group: list[dict[str, Any]]) -> dict[str, Any]:
    return {"ids": tuple(one["id"] for one in group), "length": sum(map(length, group))}


class TestLaws(SourceLaws):
    @pytest.fixture
    def source(self) -> Any:
        return ps.PackByLength(samples([1 + i * 5 % 9 for i in range(40)]), 12, length, joined)

    @pytest.fixture
    def expected(self, source: Any) -> Any:
        return [joined([source.source[i] for i in source.members(group)]) for group in range(len(source))]


@given(st.lists(st.integers(1, 20), max_size=60))
@settings(max_examples=60, deadline=None)
def test_every_sample_is_in_one_group_that_fits(lengths: list[int]) -> None:
    packed = ps.PackByLength(samples(lengths), 20, lengths, joined)
    groups = [packed[i] for i in range(len(packed))]
    assert sorted(i for one in groups for i in one["ids"]) == list(range(len(lengths)))
    assert [one["length"] for one in groups] == packed.costs.tolist()
    assert all(one["length"] <= 20 for one in groups)
    # Two groups that fit into one are never left.
    light = sorted(packed.costs.tolist())[:2]
    assert len(light) < 2 or sum(light) > 20


def test_lengths_from_a_function_are_those_of_an_array(tmp_path: Path) -> None:
    lengths = [1 + i * 5 % 9 for i in range(40)]
    derived = DerivedCache(str(tmp_path))
    plain = ps.PackByLength(samples(lengths), 12, np.array(lengths), joined)
    packed = ps.PackByLength(samples(lengths), 12, length, joined, derived=derived)
    again = ps.PackByLength(samples(lengths), 12, length, joined, derived=derived)
    assert [plain[i] for i in range(len(plain))] == [packed[i] for i in range(len(packed))]
    assert again.costs.tolist() == packed.costs.tolist()
    assert sum(path.is_file() for path in tmp_path.rglob("*")) >= 3
    assert not again.costs.flags.writeable
    assert plain.fingerprint != packed.fingerprint == again.fingerprint == pickle.loads(pickle.dumps(again)).fingerprint
    assert 0.8 < plain.fill <= 1


def test_without_merge_a_group_is_lists_of_fields() -> None:
    packed = ps.PackByLength(samples([6, 6]), 12, [6, 6])
    assert packed[0] == {"id": [0, 1], "length": [6, 6]}


def test_samples_longer_than_the_room() -> None:
    lengths = [3, 30, 4, 31]
    with pytest.raises(ConfigError, match="sample 1 of length 30, and 1 more"):
        len(ps.PackByLength(samples(lengths), 10, lengths, joined))
    alone = ps.PackByLength(samples(lengths), 10, lengths, joined, too_long="alone")
    assert [alone[i]["ids"] for i in range(len(alone))] == [(0, 2), (1,), (3,)]
    dropped = ps.PackByLength(samples(lengths), 10, lengths, joined, too_long="drop")
    assert [dropped[i]["ids"] for i in range(len(dropped))] == [(0, 2)]


def test_arguments() -> None:
    source = samples([1, 2])
    for arguments, said in (
        ((0, [1, 2]), "room is out of range"),
        ((5, [1]), "don't match the source"),
        ((5, [1.0, 2.0]), "don't match the source"),
        ((5, [1, 0]), "0 of sample 1"),
    ):
        with pytest.raises(ConfigError, match=said):
            ps.PackByLength(source, *arguments)  # pyright: ignore
    with pytest.raises(ConfigError, match="unknown too_long"):
        ps.PackByLength(source, 5, [1, 2], too_long="cut")  # pyright: ignore
