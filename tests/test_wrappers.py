"""Wrappers of sources and streams pass on every optional capability, or the table below says why not.

Wrappers are the subclasses of `Node` with a kind, and the classes of the package with `children()` and `recipe()`,
apart from those without children. Capabilities are the names that the package looks up by `capability`, `getattr`,
`hasattr` or a runtime-checkable Protocol, if one of these classes has them. Expected answers are computed from plain
lists: which sample of which source each sample of a wrapper is.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock._access import keys_of
from penstock._tokens import (
    Hidden,
    borders_around,
    borders_at,
    borders_of,
    document_flags,
    had_eos_borders,
    stored_tokens,
)
from penstock.compat.energon.encoded import Encoded
from penstock.compat.streaming.local import OwnSamples
from penstock.cook import Crude, cook
from penstock.errors import NotFound
from penstock.load.inverse import OneOf, Search
from penstock.mix.streaming import StreamingOrder
from penstock.node.over import HANDED_ON, Node
from penstock.order.compat.seqax import SeqaxParams, SeqaxPass
from penstock.recipe.flavored import Flavored
from penstock.testing import MemorySource, MemoryTokens
from penstock.types import Extent, Location, Place

PACKAGE = Path(ps.__file__).parent

SIZE, BLOCKS, LEFT_OUT = 12, [0, 3, 6, 10, 12], (2, 7)
"""Samples of a source, first samples of its blocks, and places of its split that its own list leaves out."""


class Able(MemorySource):
    """A source with every capability of a source, which notes the hints that it gets."""

    preferred_mode = "blocks"
    path = "data"
    split_size = SIZE + len(LEFT_OUT)

    def __init__(self, name: str, excluded: tuple[int, ...] = (4, 9)) -> None:
        super().__init__([{"__key__": self.key(name, one), "n": one} for one in range(SIZE)])
        self.name = name
        self.excluded_indices = np.array(excluded, np.int64)
        self.costs = np.arange(SIZE) + 1
        self.block_starts = np.array(BLOCKS)
        self.hints: list[tuple[list[int], bool]] = []
        self.parts: list[tuple[int, int]] = []

    @staticmethod
    def key(name: str, index: int) -> str:
        return f"{name}{index:02}"

    def __getitem__(self, index: int) -> Any:
        assert type(index) is int
        return super().__getitem__(index)

    def key_of(self, index: int) -> str:
        assert type(index) is int
        return self.key(self.name, index)

    def index_of(self, key: str) -> int:
        if key not in (keys := [self.key(self.name, one) for one in range(SIZE)]):
            raise NotFound("no such key")
        return keys.index(key)

    def place_of(self, index: int) -> Place:
        return Place(key=self.key_of(index), extents=(Extent(self.name, index, 1),))

    def get(self, name: str) -> bytes:
        if not name.startswith(self.name):
            raise NotFound("no such file")
        return name.encode()

    def get_media_metadata(self, name: str) -> Any:
        return self.get(name).hex()

    def get_with_shard(self, name: str) -> Any:
        return self.get(name), "shard"

    def get_samples(self, indices: Any) -> list[Any]:
        return [self[one] for one in indices.tolist()]

    def prefetch(self, batches: Any, *, whole: bool = False) -> None:
        assert batches.ndim == 2
        self.hints.append((sorted(batches.reshape(-1).tolist()), whole))

    def expect_parts(self, first: Any, stop: Any) -> None:
        self.parts += zip(first.tolist(), stop.tolist(), strict=True)

    def block_files(self, block: int) -> Any:
        return [(f"{self.name}-{block}", block, {})]

    def kept_before(self, place: int) -> int:
        return place - sum(one < place for one in LEFT_OUT)


class AbleStream:
    """A stream with every capability of a stream: position p is sample 5 · p + 1 of `Able`."""

    lanes = 2

    def __init__(self, source: Able, seed: int | None = None) -> None:
        self.source, self.seed = source, seed
        self.schema, self.fingerprint = source.schema, source.fingerprint
        self.lane_hints: list[tuple[list[int], int]] = []

    def index(self, position: int) -> int:
        return (5 * position + 1) % SIZE

    def __getitem__(self, position: int) -> Any:
        return self.source[self.index(position)]

    def get_batch(self, positions: Any) -> Any:
        return self.source.get_batch([self.index(one) for one in positions])

    def locate(self, position: int) -> Location:
        return Location(position, (), position // SIZE, self.index(position), "key", (), (), 77)

    def resolve(self, positions: Any) -> Any:
        return (5 * positions + 1) % SIZE + 1000

    def get_resolved(self, resolved: Any) -> Any:
        return self.source.get_batch(resolved - 1000)

    def get_resolved_samples(self, resolved: Any) -> Any:
        return self.source.get_samples(resolved - 1000)

    def prefetch(self, batches: Any, *, whole: bool = False) -> None:
        self.source.prefetch(batches - 1000, whole=whole)

    def expect_lanes(self, positions: Any, world: int) -> None:
        self.lane_hints.append((positions.tolist(), world))

    def substitute(self, position: int, attempt: int) -> int:
        return position + 2 * (attempt + 1)

    def horizon(self, stop: int) -> Any:
        return {"kind": "able"}, {"source": SIZE}

    def seeded(self, seed: int) -> Any:
        return AbleStream(self.source, seed) if self.seed is None else self

    def children(self) -> Any:
        return {"source": self.source}

    def recipe(self) -> Any:
        return {"kind": "able"}


DOCUMENTS = [[7, 8, 0], [9, 0], [1, 2, 3, 0], [4, 0], [5, 6, 0]]
BORDERS = [0, 3, 5, 9, 11, 14]


class AbleTokens(MemoryTokens):
    """A token source with every capability of a token source; document 3 is excluded."""

    max_token_id = 9
    had_eos_borders = True

    def __init__(self) -> None:
        super().__init__(DOCUMENTS, 0, tokenizer_digest="abc", start_flags=True)
        self.planes = {"weight": ValuePlane()}
        self.excluded_indices = np.array([3])

    def stored_tokens(self) -> Any:
        return self, Hidden(np.array([9]), np.array([11]), np.array([0]))

    def token_extent(self, start: int, stop: int) -> Any:
        return (Extent("tokens", start, stop - start),)

    def gather_flagged(self, starts: Any, length: int, out: Any = None) -> Any:
        return self.gather(starts, length, out), self._gather_starts(starts, length)

    def borders_of(self, first: int, stop: int) -> Any:
        return np.array(BORDERS[first : stop + 1])

    def borders_at(self, indices: Any) -> Any:
        return np.array(BORDERS)[indices], np.array(BORDERS)[indices + 1]

    def borders_around(self, start: int, stop: int) -> Any:
        return 0, np.array(BORDERS)


class ValuePlane:
    """A plane that holds 100 and the number of the token."""

    dtype = np.dtype("int64")

    def read(self, start: int, stop: int) -> Any:
        return np.arange(start, stop) + 100

    def gather(self, starts: Any, length: int) -> Any:
        return starts[:, None] + np.arange(length) + 100


@dataclass
class Case:
    """A wrapper, what it wraps, and where each of its first samples comes from: (number of the child, index in it)."""

    node: Any
    below: list[Any]
    rows: list[tuple[int, int]]

    def index(self, row: int) -> int:
        return self.rows[row][1]


def same(sample: Any) -> Any:
    return sample


def _flat(made: Callable[[Any], Any]) -> Case:
    below = Able("a")
    return Case(made(below), [below], [(0, one) for one in range(SIZE)])


def _concat() -> Case:
    below = [Able("a"), Able("b")]
    return Case(ps.Concat(below), below, [(child, one) for child in (0, 1) for one in range(SIZE)])


def _epochs() -> Case:
    below = Able("a", ())
    return Case(ps.Epochs({"a": (below, 2)}), [below], [(0, one % SIZE) for one in range(2 * SIZE)])


def _take() -> Case:
    below = Able("a")
    return Case(ps.Take(below, 2, 11), [below], [(0, one) for one in range(2, 11)])


def _seqax() -> Case:
    below = Able("a")
    node = SeqaxPass(below, SeqaxParams(4, 2, 1, 2, 3))
    return Case(node, [below], [(0, one) for step in range(node.steps) for one in node.sequences(step).tolist()])


def _groups() -> Case:
    below = Able("a", (0, 1, 5))
    return Case(ps.PackByLength(below, 3, np.full(SIZE, 3), name="x"), [below], [(0, one) for one in range(SIZE)])


SOURCES: dict[str, Callable[[], Case]] = {
    "Flavored": lambda: _flat(lambda below: Flavored(below, {"x": 1})),
    "AuxSource": lambda: _flat(lambda below: ps.WithAux(below, x=Able("x"))),
    "MappedSource": lambda: _flat(lambda below: ps.Map(below, same)),
    "CookedSource": lambda: _flat(lambda below: cook(Crude(below), same)),
    "Crude": lambda: _flat(Crude),
    "OwnSamples": lambda: _flat(
        lambda below: OwnSamples(below, 0, "x", lambda rows: (below[int(row)] for row in rows))
    ),
    "TakenSource": _take,
    "ConcatSource": _concat,
    "Epochs": _epochs,
    "SeqaxPass": _seqax,
    "PackByLength": _groups,
    "JoinedSource": lambda: _flat(lambda below: ps.Join(below, MemoryKeys(), how="skip")),
}


class MemoryKeys(Able):
    """The other member of a join, which takes no part in what is tested."""

    def __init__(self) -> None:
        super().__init__("a", ())


def _ordered(made: Callable[[Any], Any]) -> Case:
    below = Able("a", ())
    return Case(made(below), [below], [(0, one % SIZE) for one in range(40)])


def _stream(made: Callable[[Any], Any], positions: range | list[int] = range(60)) -> Case:
    node = made(AbleStream(Able("a")))
    return Case(node, [next(iter(node.children().values()))], [(0, one) for one in positions])


STREAMS: dict[str, Callable[[], Case]] = {
    "AuxStream": lambda: _stream(lambda below: ps.WithAux(below, x=Able("x"))),
    "MappedStream": lambda: _stream(lambda below: ps.Map(below, same)),
    "CookedStream": lambda: _stream(lambda below: cook(below, same)),
    "Encoded": lambda: _stream(lambda below: Encoded(below, SimpleNamespace(identity=["x"]))),  # type: ignore[arg-type]
    "Skip": lambda: _stream(lambda below: ps.Skip(below, [(4, 8)]), [*range(4), *range(8, 60)]),
    "Stages": lambda: _stream(lambda below: ps.Stages([(20, below), (None, AbleStream(Able("b"), 4))]), range(20)),
    "Blend": lambda: _stream(lambda below: ps.Blend({"a": AbleStream(below.source, 4)}, {"a": 1})),
    "OrderedStream": lambda: _ordered(ps.Sequential),
    "Balance": lambda: _ordered(lambda below: ps.Balance(ps.Sequential(below), 1, steps=1)),
    "StreamingOrder": lambda: _ordered(lambda below: StreamingOrder(below, batch_size=1)),
}


def _tokens(made: Callable[[Any], Any], first: int = 0) -> Case:
    below = AbleTokens()
    return Case(made(below), [below], [(0, one) for one in range(first, len(DOCUMENTS))])


TOKENS: dict[str, Callable[[], Case]] = {
    "TakenTokens": lambda: _tokens(lambda below: ps.Take(below, 1, 5), 1),
    "ConcatTokens": lambda: _tokens(lambda below: ps.Concat([below])),
}

# --- capabilities ------------------------------------------------------------------------------------------------


def check_keys(case: Case) -> None:
    count = min(len(case.node), SIZE)
    keys = [case.below[0].key(case.below[case.rows[row][0]].name, case.index(row)) for row in range(count)]
    assert [case.node.key_of(row) for row in range(count)] == keys
    assert keys_of(case.node, 1, count) == keys[1:]
    assert [case.node.index_of(key) for key in keys] == list(range(count))


def check_files(case: Case) -> None:
    for below in case.below:
        name = f"{below.name}.jpg"
        assert case.node.get(name) == name.encode()
        assert case.node.get_media_metadata(name) == name.encode().hex()
    with pytest.raises(NotFound):
        case.node.get("none.jpg")


def check_shards(case: Case) -> None:
    assert case.node.get_with_shard("a.jpg") == (b"a.jpg", "shard")


def check_places(case: Case) -> None:
    for row, (child, index) in enumerate(case.rows):
        assert case.node.place_of(row).extents[0] == Extent(case.below[child].name, index, 1)


def check_blocks(case: Case) -> None:
    starts = [row for row, (_, index) in enumerate(case.rows) if row == 0 or index in BLOCKS]
    assert case.node.block_starts.tolist() == [*starts, len(case.rows)]


def check_block_files(case: Case) -> None:
    for block, start in enumerate(case.node.block_starts[:-1].tolist()):
        child, index = case.rows[start]
        number = max(number for number, first in enumerate(BLOCKS) if first <= index)
        assert case.node.block_files(block) == [(f"{case.below[child].name}-{number}", number, {})]


def check_costs(case: Case) -> None:
    assert case.node.costs.tolist() == [index + 1 for _, index in case.rows]


def check_excluded(case: Case) -> None:
    gone = [row for row, (child, index) in enumerate(case.rows) if index in case.below[child].excluded_indices]
    assert case.node.excluded_indices.tolist() == gone


def check_mode(case: Case) -> None:
    assert case.node.preferred_mode == "blocks"


def check_path(case: Case) -> None:
    assert case.node.path == "data"


def check_split(case: Case) -> None:
    assert case.node.split_size == SIZE + len(LEFT_OUT)
    assert [case.node.kept_before(place) for place in (2, 3, 7, 8)] == [2, 2, 6, 6]


def check_samples(case: Case) -> None:
    read = case.node.get_samples(np.array([3, 1]))
    wanted = [case.below[0][case.index(row)]["n"] for row in (3, 1)]
    assert [_number(one) for one in read] == wanted


def _number(sample: Any) -> Any:
    found = sample.get("0", sample).get("n")
    return found[0] if isinstance(found, list) else found


def check_hints(case: Case) -> None:
    batches = np.array([[1, 5, 3], [2, 6, 7]])
    is_stream = hasattr(case.node, "resolve")
    resolved = case.node.resolve(batches.reshape(-1)).reshape(2, 3) if is_stream else batches
    case.node.prefetch(resolved, whole=False)
    source = case.below[0].source if isinstance(case.below[0], AbleStream) else case.below[0]
    hinted = sorted(one for indices, _ in source.hints for one in indices)
    rows = [case.index(one) for one in batches.reshape(-1).tolist()]
    wanted = [case.below[0].index(one) for one in rows] if isinstance(case.below[0], AbleStream) else rows
    assert hinted == sorted(wanted)


def check_parts(case: Case) -> None:
    case.node.expect_parts(np.array([1, 4]), np.array([3, 6]))
    assert case.below[0].parts == [(case.index(1), case.index(2) + 1), (case.index(4), case.index(5) + 1)]


def check_lanes(case: Case) -> None:
    case.node.expect_lanes(np.array([1, 3, 5]), 2)
    assert case.below[0].lane_hints == [([case.index(one) for one in (1, 3, 5)], 2)]


def check_resolving(case: Case) -> None:
    read = case.node.get_batch(np.array([9, 2]))["n"] if not isinstance(case.node, Encoded) else None
    if read is not None:
        resolved = case.node.resolve(np.array([9, 2]))
        assert case.node.get_resolved(resolved)["n"].tolist() == read.tolist()
        assert [one["n"] for one in case.node.get_resolved_samples(resolved)] == read.tolist()
        below = case.below[0]
        indices = [case.index(9), case.index(2)]
        assert read.tolist() == [below.index(one) if isinstance(below, AbleStream) else one for one in indices]


def check_substitutes(case: Case) -> None:
    if not isinstance(case.below[0], AbleStream):
        assert case.node.substitute(2, 0) in set(range(SIZE)) - {2}
        return
    other = case.node.substitute(1, 1)
    inner = case.below[0].substitute(case.index(1), 1)
    while inner not in [index for _, index in case.rows]:  # Skip passes over skipped ones
        inner += 2
    assert case.index(other) >= inner
    assert case.index(other) % 2 == inner % 2


def check_locations(case: Case) -> None:
    """What a stream says of a sample, above all that it is a substitute, is not lost."""
    at = case.node.locate(9)
    assert at.position == 9
    if isinstance(case.below[0], AbleStream):
        assert (at.index, at.instead_of) == (case.below[0].index(case.index(9)), 77)


def check_horizon(case: Case) -> None:
    _, reads = case.node.horizon(10)
    assert max(reads.values()) > case.index(9)


def check_seed(case: Case) -> None:
    seeded = case.node.seeded(7)
    children = [one for one in seeded.children().values() if isinstance(one, AbleStream)]
    assert children
    assert children[0].seed is not None


def check_flags(case: Case) -> None:
    first = BORDERS[case.index(0)]
    wanted = [[place + first in BORDERS for place in range(start, start + 4)] for start in (0, 2, 5)]
    assert document_flags(case.node, np.array([0, 2, 5]), 4).tolist() == wanted


def check_hidden(case: Case) -> None:
    tokens, hidden = stored_tokens(case.node)
    first = BORDERS[case.index(0)]
    assert tokens.tokens(0, 3).tolist() == [one for document in DOCUMENTS for one in document][first : first + 3]
    assert (hidden.starts.tolist(), hidden.stops.tolist()) == ([9 - first], [11 - first])


def check_planes(case: Case) -> None:
    plane = case.node.planes["weight"]
    first = BORDERS[case.index(0)] + 100
    assert plane.read(1, 3).tolist() == [first + 1, first + 2]
    assert plane.gather(np.array([2, 0]), 2).tolist() == [[first + 2, first + 3], [first, first + 1]]


def check_token_extents(case: Case) -> None:
    first = BORDERS[case.index(0)]
    assert case.node.token_extent(1, 4) == (Extent("tokens", first + 1, 3),)


def check_borders(case: Case) -> None:
    """Not by attribute: without a shortcut, all `doc_starts` are read, which give the same answer."""
    first = BORDERS[case.index(0)]
    own = [one - first for one in BORDERS[case.index(0) :]]
    assert borders_of(case.node, 1, 3).tolist() == own[1:4]
    assert [ends.tolist() for ends in borders_at(case.node, np.array([0, 2]))] == [[own[0], own[2]], [own[1], own[3]]]
    before, around = borders_around(case.node, own[1], own[2])
    assert set(own[max(before, 1) : 3]) <= set(around.tolist())


def check_tokenizer(case: Case) -> None:
    assert case.node.tokenizer_digest == "abc"


def check_former_borders(case: Case) -> None:
    assert had_eos_borders(case.node) is True


Check = Callable[[Case], None]

OF_SOURCES: dict[str, Check] = {
    **dict.fromkeys(("index_of", "key_of", "key_run"), check_keys),
    **dict.fromkeys(("get", "get_media_metadata"), check_files),
    "get_with_shard": check_shards,
    "place_of": check_places,
    **dict.fromkeys(("block_starts", "storage_blocks"), check_blocks),
    "block_files": check_block_files,
    "costs": check_costs,
    "excluded_indices": check_excluded,
    "preferred_mode": check_mode,
    "path": check_path,
    **dict.fromkeys(("kept_before", "split_size"), check_split),
    "get_samples": check_samples,
    "prefetch": check_hints,
    "expect_parts": check_parts,
}
OF_STREAMS: dict[str, Check] = {
    "prefetch": check_hints,
    "expect_lanes": check_lanes,
    **dict.fromkeys(("resolve", "get_resolved", "get_resolved_samples"), check_resolving),
    "substitute": check_substitutes,
    "locate": check_locations,
    "horizon": check_horizon,
    "seeded": check_seed,
}
OF_TOKENS: dict[str, Check] = {
    "gather_starts": check_flags,
    "stored_tokens": check_hidden,
    "planes": check_planes,
    "token_extent": check_token_extents,
    **dict.fromkeys(("borders_of", "borders_at", "borders_around"), check_borders),
    "tokenizer_digest": check_tokenizer,
    "had_eos_borders": check_former_borders,
    "excluded_indices": check_excluded,
}

CASES = {"source": (SOURCES, OF_SOURCES), "stream": (STREAMS, OF_STREAMS), "tokens": (TOKENS, OF_TOKENS)}

_OWN_ORDER = "samples are in another order than in the source, so its blocks and ranges of indices mean nothing here"
_GROUPS = "a sample is made of several samples of the source"
_OTHER_SPLIT = "counts samples of the whole split; a part or a mix of sources has no split"
_SEVERAL = "several sources; a file or path of one of them wouldn't name a sample of this one"

ABSENT: dict[tuple[str, str], str] = {
    **{(kind, name): _OTHER_SPLIT for kind in ("TakenSource", "ConcatSource", "Epochs", "SeqaxPass", "PackByLength",
       "JoinedSource") for name in ("kept_before", "split_size")},
    **{("Epochs", name): "a sample comes several times in a pass, so its key doesn't name one index; place_of has it"
       for name in ("index_of", "key_of", "key_run")},
    **{("Epochs", name): "later passes may hold other samples, so what is true of an index holds in one pass only"
       for name in ("costs", "block_files", "expect_parts")},
    ("Epochs", "excluded_indices"): "the children are read as streams, which put substitutes in their places",
    **{(kind, name): _SEVERAL for kind in ("Epochs", "JoinedSource", "SeqaxPass", "PackByLength")
       for name in ("get", "get_media_metadata", "get_with_shard", "path")},
    **{("ConcatSource", name): _SEVERAL for name in ("get_with_shard", "path")},
    **{("SeqaxPass", name): _OWN_ORDER for name in ("block_starts", "storage_blocks", "block_files", "expect_parts",
       "preferred_mode", "costs")},
    **{("SeqaxPass", name): "rows of a pass are named by place_of" for name in ("index_of", "key_of", "key_run")},
    **{("PackByLength", name): _GROUPS for name in ("index_of", "key_of", "key_run", "place_of", "block_starts",
       "storage_blocks", "block_files", "expect_parts", "preferred_mode")},
    **{("JoinedSource", name): "a joined sample has parts of several sources" for name in ("block_files", "costs",
       "expect_parts", "storage_blocks")},
    ("StreamingOrder", "substitute"): "the original order reads no other sample for one that can't be read",
    ("StreamingOrder", "horizon"): "a saved run of the original is bound to the whole dataset",
    ("StreamingOrder", "expect_lanes"): "one lane",
    ("Balance", "expect_lanes"): "one lane",
    ("OrderedStream", "horizon"): "an order depends on all of its source",
}  # fmt: skip
"""Capabilities that a wrapper doesn't pass on, each with its reason."""

ELSEWHERE: dict[tuple[str, str], str] = {
    ("OrderedStream", "expect_lanes"): "asks its order for the parts of blocks: tests/order/test_lanes.py",
    ("OrderedStream", "seeded"): "Sequential has no seed: tests/order/test_shuffle.py",
    ("StreamingOrder", "seeded"): "itself, as the original order always has a seed",
    ("Balance", "seeded"): "itself, as streams saved by version 0.2 keep the seed of the balanced order",
    ("PackByLength", "costs"): "lengths of its own groups: tests/pack/test_by_length.py",
}
"""Capabilities that a wrapper has by its own rule."""

OTHERS: dict[str, str] = {
    **dict.fromkeys(("Windows", "MegatronWindows", "PackedWindows", "WholeDocuments", "FillInTheMiddle"),
                    "samples are cut from the run of tokens, not samples of the source; tested in tests/pack"),
    **dict.fromkeys(("PackStream", "Lanes"), "a lane stream has no positions; tested in tests/cook"),
    **dict.fromkeys(("ExcludingSource", "ExcludingTokens", "PlanedTokens"),
                    "one file format's source as it was opened, passed on by lists of names"),
    **dict.fromkeys(("KeptSource", "KeptTokens", "ColumnTokens"), "what verbs read from front to back, or one column"),
}  # fmt: skip
"""Wrappers whose samples aren't samples of what they wrap, or that are part of opening a dataset."""

_STORED = "a fact about the stored files, for verbs and the viewer; a wrapper isn't what is stored"
_PROTOCOL = "part of the Source, TokenSource or Stream protocol, or the other name of a child"

NOT_PASSED_ON: dict[str, str] = {
    **dict.fromkeys((
        "by_file", "details", "exclusions", "files", "holds_ids", "holds_marks", "id_column", "is_marked",
        "kept_key", "line_ranges", "listed", "manifest", "max_token_id", "most_tokens", "only_here", "parts_of",
        "proof", "raw", "size_bytes", "split", "stored_source", "text", "token_run",
    ), _STORED),
    **dict.fromkeys((
        "_children", "_files", "batch", "borders", "child_notes", "dtype", "gather", "kind", "outputs",
        "outputs_after", "seed", "size", "source", "stream", "summary", "window",
    ), _PROTOCOL),
    **dict.fromkeys(("find_in_pass", "pass_batch", "pass_location", "pass_samples"),
                    "of Epochs, which Shuffle reads directly"),
    "chosen": "of a part, for a part of the part; a wrapper of a part is a source of its own, counted from its start",
    "derived": "a cache chosen by what is computed",
    "epoch_size": "of StreamingOrder alone, for plans",
    "former_rule": "of windows alone",
    "gather_flagged": "gather and gather_starts in one call; the callers have both as well",
    "origins": "of PackStream alone",
    "state_dict": "of StreamingOrder and loaders",
}  # fmt: skip
"""Names that are looked up, but aren't capabilities of samples, each with its reason."""


@functools.cache
def nodes() -> frozenset[type[Node]]:
    """Return the subclasses of `Node`; the modules that define them are imported first."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if re.search(r"^    kind\b.* = |^class .*\(.*(Source|Tokens|View)\b", path.read_text(), re.MULTILINE):
            importlib.import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
    return frozenset(_below(Node))


def _below(kind: type[Node]) -> Iterator[type[Node]]:
    for one in kind.__subclasses__():
        yield from (one, *_below(one))


@functools.cache
def classes() -> list[ast.ClassDef]:
    """Return the definition of each source and stream of the package, and of their bases."""
    found: list[ast.ClassDef] = []
    known = {(kind.__module__, kind.__name__) for kind in (Node, *nodes())}
    for path in sorted(PACKAGE.rglob("*.py")):
        text, module = path.read_text(), ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        is_needed = "def recipe(" in text or any(place == module for place, _ in known)
        for node in ast.walk(ast.parse(text if is_needed else "")):
            if isinstance(node, ast.ClassDef) and not _is_protocol(node):
                names = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
                if (module, node.name) in known or ("recipe" in names and ("children" in names or node.bases)):
                    found.append(node)
    return found


def _is_protocol(node: ast.ClassDef) -> bool:
    return any("Protocol" in ast.unparse(base) for base in node.bases)


def _is_leaf(node: ast.ClassDef) -> bool:
    children = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "children"]
    return bool(children) and ast.unparse(children[0].body[-1]) == "return {}"


def looked_up() -> set[str]:
    """The names that the package looks up without knowing whether they exist."""
    found = set(HANDED_ON)
    for text in (path.read_text() for path in PACKAGE.rglob("*.py")):
        is_needed = any(name in text for name in ("getattr", "hasattr", "capability", "runtime_checkable"))
        for node in ast.walk(ast.parse(text if is_needed else "")):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and called in ("getattr", "hasattr", "capability") and len(node.args) > 1:
                name = node.args[1]
                found |= {str(name.value)} if isinstance(name, ast.Constant) else set()
            if isinstance(node, ast.ClassDef) and _is_protocol(node) and "runtime_checkable" in _decorators(node):
                found |= {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
    return found


def _decorators(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(one) for one in node.decorator_list]


def provided() -> set[str]:
    """The attributes of all sources and streams."""
    found: set[str] = set()
    for node in classes():
        found |= {ast.unparse(one.target) for one in node.body if isinstance(one, ast.AnnAssign)}
        for one in ast.walk(node):
            if isinstance(one, ast.FunctionDef):
                found.add(one.name)
            elif isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store) and ast.unparse(one.value) == "self":
                found.add(one.attr)
    return found


def test_every_wrapper_is_covered() -> None:
    bases = {kind.__name__ for kind in nodes() if not hasattr(kind, "kind") or kind.__name__.startswith("_")} | {"Node"}
    leaves = {kind.__name__ for kind in nodes() if kind.children is Node.children}
    wrappers = {node.name for node in classes() if not _is_leaf(node)} - bases - leaves
    covered = {name for cases, _ in CASES.values() for name in cases}
    # A subclass of one that is covered is covered.
    kinds = {kind.__name__ for kind in nodes() if covered & {base.__name__ for base in kind.__mro__[1:]}}
    assert wrappers - covered - OTHERS.keys() - kinds == set(), "give them a case in SOURCES, STREAMS, …"
    assert covered | OTHERS.keys() <= wrappers


def test_every_capability_is_covered() -> None:
    protocol = {"children", "recipe", "fingerprint", "schema", "lanes", "get_batch", "__len__"}
    found = {one for one in looked_up() & provided() if not one.startswith("__")} - protocol
    tested = {name for _, checks in CASES.values() for name in checks}
    assert found - tested - NOT_PASSED_ON.keys() == set(), "give them a check, or a reason in NOT_PASSED_ON"
    assert NOT_PASSED_ON.keys() <= found, "no longer looked up"


PAIRS = [(kind, name, one) for kind, (cases, checks) in CASES.items() for name in cases for one in checks]


@pytest.mark.parametrize(("kind", "name", "capability"), PAIRS, ids=lambda value: str(value))
def test_passed_on(kind: str, name: str, capability: str) -> None:
    cases, checks = CASES[kind]
    case = cases[name]()
    assert type(case.node).__name__ == name
    if (name, capability) in ABSENT:
        assert getattr(case.node, capability, None) is None, f"passed on now: {ABSENT[name, capability]}"
    elif (name, capability) not in ELSEWHERE:
        checks[capability](case)


def test_reasons_are_of_wrappers() -> None:
    assert {(name, one) for _, name, one in PAIRS} >= ABSENT.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize("name", SOURCES)
def test_a_sample_is_found_by_its_index_in_a_child(name: str) -> None:
    case = SOURCES[name]()
    for wanted in (2, 3, 10):
        search = Search(OneOf("", lambda source, wanted=wanted: wanted if source is case.below[0] else None))
        assert search.indices(case.node).tolist() == [
            row for row, place in enumerate(case.rows) if place == (0, wanted)
        ]
