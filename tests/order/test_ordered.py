"""Streams over one source: locating, standing in, recipes."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import ConfigError
from penstock.order import Sequential, Shuffle
from penstock.testing.memory import KeyedSource, MemorySource
from penstock.types import Extent, Place


class Placed(KeyedSource):
    def place_of(self, index: int, /) -> Place:
        return Place(extents=(Extent("f", index * 10, 10),))


SAMPLES = [{"n": n} for n in range(20)]


def test_locate_names_epoch_index_key_and_bytes() -> None:
    stream = Shuffle(Placed(SAMPLES, "n"), 3)
    at = stream.locate(47)
    assert (at.position, at.path, at.epoch) == (47, (), 2)
    assert stream[47] == SAMPLES[at.index]
    assert at.key == str(at.index)
    assert at.extents == (Extent("f", at.index * 10, 10),)
    assert at.documents is None


def test_locate_of_a_plain_source() -> None:
    at = Sequential(MemorySource(SAMPLES)).locate(21)
    assert (at.index, at.epoch, at.key, at.extents, at.documents) == (1, 1, None, None, None)


def test_stand_ins_are_all_the_others_of_the_epoch() -> None:
    stream = Shuffle(MemorySource(SAMPLES), 3)
    others = [stream.substitute(25, attempt) for attempt in range(19)]
    assert sorted([25, *others]) == list(range(20, 40))
    assert others != [stream.substitute(26, attempt) for attempt in range(19)]
    with pytest.raises(ConfigError):
        stream.substitute(25, 19)
    with pytest.raises(ConfigError):
        Shuffle(MemorySource(SAMPLES[:1]), 3).substitute(0, 0)


def test_children_and_recipe() -> None:
    source = MemorySource(SAMPLES)
    stream = Shuffle(source, 3, mode="blocks", lanes=2, block_size=5)
    assert stream.children() == {"source": source}
    recipe = stream.recipe()
    assert recipe["source"] == source.recipe()
    assert {key: recipe[key] for key in ("kind", "version", "mode", "seed", "lanes", "open_blocks")} == {
        "kind": "shuffle",
        "version": "blocks-1",
        "mode": "blocks",
        "seed": 3,
        "lanes": 2,
        "open_blocks": 16,
    }


def test_the_fingerprint_shows_once_it_is_known() -> None:
    stream = Sequential(MemorySource(SAMPLES))
    assert "[" not in str(stream)
    assert f"[{stream.fingerprint[:8]}]" in str(stream)


def test_inverse_finds_positions() -> None:
    for stream in (Shuffle(MemorySource(SAMPLES), 3), Sequential(MemorySource(SAMPLES), lanes=3)):
        positions = stream.inverse(np.arange(20), 5)
        assert stream.get_batch(positions)["n"].tolist() == list(range(20))


def test_lanes_of_sequential_walk_parts_of_their_own() -> None:
    stream = Sequential(MemorySource(SAMPLES), lanes=4)
    for lane in range(4):
        walked = stream.get_batch(np.arange(lane, 20, 4))["n"]
        assert walked.tolist() == list(range(lane * 5, lane * 5 + 5))


def test_an_empty_source_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        Sequential(MemorySource([]))
    with pytest.raises(ConfigError, match="lane"):
        Sequential(MemorySource(SAMPLES), lanes=0)
