"""Exact numbers of repetitions of each source in one pass: 2 is each sample twice, 0.5 is half of them."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from penstock._access import capability
from penstock._arrays import as_index, as_indices
from penstock._kinds import is_finite, is_stream
from penstock.abc import Source, Stream
from penstock.errors import ConfigError
from penstock.mix._branches import Branches
from penstock.mix.auxiliary import AuxStream, MappedStream
from penstock.mix.shares import Weight, exactly, plain_weight
from penstock.node.blocks import Blocks, EvenBlocks, StoredBlocks, blocks_of, even_blocks, joined, preferred_mode
from penstock.node.over import OPEN, Finder, SourceNode
from penstock.order.permutation import MAX_SIZE
from penstock.order.shuffle import Sequential
from penstock.types import Batch, IntArray, Location, Place, Sample, Schema

VERSION = "epochs-1"


class Epochs(SourceNode):
    """Finite source: one pass over several children, each read a given number of times.

    A child of n samples with r repetitions contributes its next `floor(n * r)` samples to each pass, in its own order.
    A stream contributes the permutations of its epochs: a fraction is the start of the next permutation, and the next
    pass continues from there. A source contributes its samples in stored order.

    Samples are ordered child by child. `Shuffle(Epochs(...), seed)` mixes them and reads pass e in its epoch e.
    `Loader(Epochs(...), ..., tail=...)` reads the first pass; `epochs.of_pass(1)` is the next one.

    Args:
        children: name → (source or stream, repetitions). Repetitions are any positive number.
        first_pass: number of this source's first pass.

    Raises:
        ConfigError: `children` is empty, repetitions aren't positive or yield no sample, or a stream has no epochs.

    Attributes:
        counts: name → samples per pass.
        repetitions: repetitions as passed.

    Examples:
        >>> import penstock as ps
        >>> epochs = ps.Epochs({"text": (ps.open("corpus.pbin"), 1), "code": (ps.open("code.pbin"), 2.5)})
        >>> epochs.counts
        {'text': 6, 'code': 10}
        >>> len(epochs)
        16
    """

    kind = "epochs"

    def __init__(
        self, children: Mapping[str, tuple[Source[Any] | Stream[Any], Weight]], *, first_pass: int = 0
    ) -> None:
        if not children:
            raise ConfigError("nothing to read", found="no child", expected="at least one")
        self.repetitions = {name: repetitions for name, (_, repetitions) in children.items()}
        self._children = {name: child for name, (child, _) in children.items()}
        self.counts = {name: _count(name, child, times) for name, (child, times) in children.items()}
        self.first_pass = operator.index(first_pass)
        if self.first_pass < 0:
            raise ConfigError("the pass is out of range", found=first_pass, expected="0 or more")
        if (total := sum(self.counts.values())) > MAX_SIZE:
            raise ConfigError("a pass has too many samples", found=total, expected=f"at most {MAX_SIZE}")
        # Nothing can be read from an empty source: it gets no number.
        self._names = [name for name, count in self.counts.items() if count]
        self._sizes: IntArray = np.array([self.counts[name] for name in self._names], dtype=np.int64)
        self._starts: IntArray = np.append(0, np.cumsum(self._sizes)).astype(np.int64)
        self._branches = Branches([_as_stream(self._children[name]) for name in self._names], self._split)
        # None means that no child uses hints.
        self.prefetch = self._prefetch if self._branches.prefetch is not None else None

    @property
    def schema(self) -> Schema:
        """Fields that the children's samples have in common; token ids in the widest dtype."""
        return self._branches.schema if self._names else OPEN

    def identity(self) -> tuple[Any, ...]:
        own = [[name, count, self._children[name].fingerprint] for name, count in self.counts.items()]
        return ("epochs", VERSION, self.first_pass, own)

    @property
    def preferred_mode(self) -> str:
        """Default mode of `Shuffle`: `"blocks"` if one of the children prefers it."""
        return preferred_mode(*self._children.values())

    @property
    def block_starts(self) -> IntArray:
        """Starts of the children's storage blocks in the first pass, int64[n_blocks + 1]."""
        return self.storage_blocks().starts()

    def storage_blocks(self) -> Blocks:
        """Return the storage blocks; see `penstock.node.blocks`."""
        sizes = zip(self._names, self._sizes.tolist(), strict=True)
        return joined([_blocks(self._children[name], self.first_pass * size, size) for name, size in sizes])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int, /) -> Sample:
        return self._branches.sample(*self._split_one(as_index(index, len(self))))

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the samples at `indices` (int64[k]) as columns, in that order, with one call per child involved."""
        return self.pass_batch(as_indices(indices, len(self)))

    def pass_samples(self, places: IntArray, /) -> list[Any]:
        """Return the samples at `places` (int64[k]), of any passes."""
        return self._branches.resolved_samples(self._branches.resolve(places))

    def pass_batch(self, places: IntArray, /) -> Batch:
        """Return the samples at `places` (int64[k]), of any passes, as columns."""
        return self._branches.batch(places) if len(self) else {}

    def pass_location(self, place: int, /) -> Location:
        """Return the origin of the sample at `place`. Reads only indexes, no data."""
        child, inner = self._split_one(place)
        return self._branches.locate(place, self._names[child], child, inner)

    def place_of(self, index: int, /) -> Place:
        """Return the child's place of the sample."""
        at = self.pass_location(as_index(index, len(self)))
        return Place(at.key, at.documents, at.extents)

    def of_pass(self, number: int) -> Epochs:
        """Return the source that begins with pass `number` of this one."""
        given = {name: (child, self.repetitions[name]) for name, child in self._children.items()}
        return Epochs(given, first_pass=self.first_pass + operator.index(number))

    def get_samples(self, indices: IntArray, /) -> list[Any]:
        """Return the samples at `indices` (int64[k]), in that order."""
        return self.pass_samples(indices)

    def find(self, finder: Finder) -> IntArray:
        return self.find_in_pass(finder, 0)

    def find_in_pass(self, finder: Finder, number: int, /) -> IntArray:
        """Return the samples of one pass that are or contain a document, int64[k], counted from its beginning."""
        found: list[int] = []
        for child, (name, begin) in enumerate(zip(self._names, self._starts.tolist(), strict=False)):
            size = self.counts[name]
            first = (self.first_pass + number) * size
            positions = finder.positions(self._branches.streams[child], first + size)
            found.extend(begin + one - first for one in positions if one >= first)
        return np.array(sorted(found), dtype=np.int64)

    def children(self) -> Mapping[str, Source[Any] | Stream[Any]]:
        """Return the children by name."""
        return self._children

    def recipe(self) -> dict[str, Any]:
        later = {"first_pass": self.first_pass} if self.first_pass else {}
        children = [
            {"name": name, "repetitions": plain_weight(self.repetitions[name]), "of": child.recipe()}
            for name, child in self._children.items()
        ]
        return {"kind": "epochs", "version": VERSION, **later, "children": children}

    def shown(self) -> dict[str, Any]:
        return {"samples": len(self), "first_pass": self.first_pass or None}

    def child_notes(self) -> Mapping[str, str]:
        """Return name → its repetitions and samples per pass."""
        return {name: f"{times} times = {self.counts[name]:,} samples" for name, times in self.repetitions.items()}

    def _prefetch(self, batches: IntArray, /, *, whole: bool = False) -> None:
        """Hint the children which samples of any passes are read next."""
        if (prefetch := self._branches.prefetch) is not None:
            prefetch(self._branches.resolve(batches.reshape(-1)).reshape(batches.shape), whole=whole)

    def _split(self, places: IntArray) -> tuple[NDArray[Any], IntArray]:
        number, within = np.divmod(places, len(self))
        owner = np.searchsorted(self._starts, within, side="right") - 1
        return owner, (number + self.first_pass) * self._sizes[owner] + within - self._starts[owner]

    def _split_one(self, place: int) -> tuple[int, int]:
        number, within = divmod(place, len(self))
        owner = int(np.searchsorted(self._starts, within, side="right")) - 1
        return owner, (number + self.first_pass) * int(self._sizes[owner]) + within - int(self._starts[owner])


def _as_stream(child: Source[Any] | Stream[Any]) -> Stream[Any]:
    return child if is_stream(child) else Sequential(cast(Source[Any], child))


def _count(name: str, child: Any, repetitions: Weight) -> int:
    size = _epoch_size(name, child)
    count = math.floor(size * exactly(f"number of repetitions of {name!r}", repetitions))
    if size and not count:
        raise ConfigError(
            f"{repetitions} of {name!r} is less than one sample",
            found=f"{size} samples",
            expected=f"at least {1 / size:.3g} repetitions",
        )
    return count


def _epoch_size(name: str, child: Any) -> int:
    """Return the size of the child's epoch, through nodes that only change single samples."""
    node: Any = child
    while not is_finite(node):
        size = capability(node, "size")
        if isinstance(size, int):
            return size
        if not isinstance(node, (MappedStream, AuxStream)):
            raise ConfigError(
                f"{name!r} has no epochs",
                found=f"a {type(node).__name__}",
                expected="a source, or a stream over one: Shuffle or Sequential",
            )
        node = node.children()["stream"]
    return len(cast(Source[Any], node))


def _blocks(child: Any, begin: int, count: int) -> Blocks:
    """Return the storage blocks of `count` samples from `begin` on, in a child that is read repeatedly."""
    if is_stream(child):
        return even_blocks(count)
    own, size = blocks_of(child), len(child)
    first, last = begin // size, (begin + count - 1) // size
    whole = joined([own] * (last + 1 - first))
    begin -= first * size
    if isinstance(whole, EvenBlocks) and whole.sizes.all():  # empty blocks are kept, which a cut would drop
        return whole.cut(begin, begin + count)
    starts = whole.starts() - begin
    return StoredBlocks(np.concatenate([[0], starts[(starts > 0) & (starts < count)], [count]]).astype(np.int64))
