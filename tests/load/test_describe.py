from __future__ import annotations

import json
from typing import Any

import pytest
from tests.internals import describe

from penstock.order import Sequential, Shuffle
from penstock.pack import Chunk
from penstock.testing.memory import MemoryTokens


@pytest.fixture
def tokens() -> MemoryTokens:
    return MemoryTokens([list(range(100))])


def test_a_chain_has_one_child_its_data(tokens: MemoryTokens) -> None:
    found = describe(Shuffle(Chunk(8)(tokens), seed=1), 40)
    assert list(found.children) == ["source"]
    assert "feistel-1" in found.order
    other = describe(Shuffle(Chunk(8)(MemoryTokens([[7] * 100])), seed=1), 40)
    assert (other.order, other.recipe) == (found.order, found.recipe)
    assert other.children != found.children


@pytest.mark.parametrize(
    "build", [lambda c: Shuffle(c, seed=2), lambda c: Sequential(c), lambda c: Shuffle(c, 1, lanes=4)]
)
def test_parameters_above_the_data_are_in_the_recipe(tokens: MemoryTokens, build: Any) -> None:
    chunks = Chunk(8)(tokens)
    assert describe(build(chunks), 40).recipe != describe(Shuffle(chunks, seed=1), 40).recipe
    assert describe(build(chunks), 40).children == describe(Shuffle(chunks, seed=1), 40).children


def test_a_source_alone_is_its_own_child(tokens: MemoryTokens) -> None:
    assert list(describe(tokens, 0).children) == ["source"]


def test_paths_are_in_no_digest(numbers: Any) -> None:
    class Moved(numbers):
        def recipe(self) -> dict[str, Any]:
            return {**super().recipe(), "path": "/scratch/copy"}

    assert describe(Shuffle(numbers(50), 1), 9) == describe(Shuffle(Moved(50), 1), 9)


def test_children_are_named_by_the_branches_above_them(numbers: Any, mixed: Any) -> None:
    web = mixed({"de": Shuffle(numbers(50, "de"), 1), "en": Shuffle(numbers(60, "en"), 1)})
    found = describe(mixed({"books": Shuffle(numbers(70, "books"), 1), "web": web}), 10)
    assert list(found.children) == ["books", "web", "web/de", "web/en"]


def test_each_digest_tells_of_its_own_part_alone(numbers: Any, mixed: Any) -> None:
    def tree(seed: int = 1, books: int = 70, de: int = 50, web_seed: int = 1) -> dict[str, str]:
        web = mixed({"de": Shuffle(numbers(de, "de"), 1), "en": Shuffle(numbers(60, "en"), 1)}, seed=web_seed)
        found = describe(mixed({"books": Shuffle(numbers(books, "books"), 1), "web": web}, seed=seed), 10)
        return {"recipe": found.recipe, **found.children}

    def changed(**parts: int) -> list[str]:
        base, other = tree(), tree(**parts)
        return [name for name in base if base[name] != other[name]]

    assert changed() == []
    assert changed(seed=2) == ["recipe"]
    assert changed(books=71) == ["books"]
    assert changed(de=51) == ["web/de"]
    assert changed(web_seed=2) == ["web"]


def test_a_recipe_without_its_children_is_one_piece(numbers: Any, mixed: Any) -> None:
    class Opaque(mixed):
        def recipe(self) -> dict[str, Any]:
            return {"kind": "opaque"}

    stream = Opaque({"a": Shuffle(numbers(5, "a"), 1), "b": Shuffle(numbers(5, "b"), 1)})
    found = describe(mixed({"x": stream, "y": Shuffle(numbers(6), 1)}), 3)
    assert list(found.children) == ["x", "y"]


def test_a_stream_that_writes_its_childs_recipe_adds_nothing(numbers: Any, mixed: Any) -> None:
    class Plain(mixed):
        def recipe(self) -> dict[str, Any]:
            return self.children()["a"].recipe()

    stream = Shuffle(numbers(5), 1)
    assert describe(Plain({"a": stream}), 3) == describe(stream, 3)


def test_two_thousand_children_are_named(numbers: Any, mixed: Any) -> None:
    stream = mixed({f"{i:04}": Shuffle(numbers(9, str(i)), 1) for i in range(2000)})
    assert len(describe(stream, 3).children) == 2000


def test_what_comes_later_does_not_count(numbers: Any, staged: Any) -> None:
    a, b, c = (Shuffle(numbers(50, name), 1) for name in "abc")
    short, longer = staged((20, a), (None, b)), staged((20, a), (30, c), (None, b))
    for stop in (0, 1, 20):
        assert describe(short, stop) == describe(longer, stop) == describe(staged((25, a), (None, c)), stop)
    assert describe(short, 21) != describe(longer, 21)
    assert describe(short, 21).reads == {"0": 20, "1": 1}


def test_a_stream_that_changes_nothing_yet_leaves_no_trace(numbers: Any, mixed: Any, staged: Any) -> None:
    blend = mixed({"books": Shuffle(numbers(70), 1), "web": Shuffle(numbers(60), 1)})
    wrapped = staged((100, blend), (None, Shuffle(numbers(50), 1)))
    assert describe(wrapped, 100).children == describe(blend, 100).children
    assert describe(wrapped, 100).recipe == describe(blend, 100).recipe


def test_entries_stay_under_their_size(numbers: Any, mixed: Any) -> None:
    names = [
        "a" * 44,
        "a" * 45,
        "a" * 300,
        "ü" * 40,
        'quo"te',
        "tab\t",
        "back\\slash",
        *(f"shard-{i:05}" for i in range(50)),
    ]
    stream = mixed({name: Shuffle(numbers(9, name), 1) for name in names})
    children = describe(mixed({"0" * 30: stream, "x": stream}), 3).children
    assert len(children) == 2 * (len(names) + 1)
    for key, value in children.items():
        assert len(json.dumps({key: value})) <= 64
