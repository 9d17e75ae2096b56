"""Joins of several sources by key: hashes sorted once, rows in the order of the first source.

Keys are compared by xxh3-128. Memory while the rows are computed: about 60 bytes per key of the largest source, and
8 bytes per row and source of the result. Keys are read in runs of 65,536. The result is mapped from disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock._access import excluded_of, keys_of, place_of, prefetch_of, prefetch_parts, samples_of
from penstock._arrays import as_index
from penstock._digest import digest, kept_key
from penstock._kinds import Derived
from penstock._naming import function_name
from penstock.abc import Source, SupportsKeys
from penstock.errors import ConfigError, NotFound
from penstock.node.blocks import blocks_of, preferred_mode
from penstock.node.over import Finder, SourceNode
from penstock.store.derived import DerivedCache
from penstock.types import Field, IntArray, Place, Sample, Schema

VERSION = "join-1"

_RULES = {"error": "error", "skip": "skip", "inner": "skip", "none": "none"}

Joiner = Callable[..., Sample]
"""Samples of the members → the joined sample; positional for a list of sources, by name for a dict."""


def Join(
    *sources: Any,
    how: str | Sequence[str] | Mapping[str, str] = "error",
    joiner: Joiner | None = None,
    name: str | None = None,
    derived: Derived | None = None,
) -> JoinedSource:
    """Join sources by key: one sample for each key, in the order of the first source.

    Without a joiner, samples are `{"__key__": key, member: sample, ...}`. Members are named by the keys of the dict, or
    `"0"`, `"1"`, … Matching rows are computed once and cached by the fingerprints of the members. A join that fails
    caches nothing.

    Args:
        sources: two or more sources with keys: as arguments, as one list, or as one dict of name → source.
        how: what to do with samples of the first source that have no partner in another one: `"error"`, `"skip"` (or
            `"inner"`), or `"none"`, which sets that member to None. One value for all, or one for each further source.
        joiner: pure function that builds the joined sample from the samples of the members.
        name: identifies the joiner in fingerprints; `module:qualname` by default.
        derived: cache for the matching rows; by default the cache folder.

    Raises:
        ConfigError: there are fewer than two sources, one has no keys, a key occurs twice, or a key has no partner.

    Examples:
        >>> import penstock as ps
        >>> with ps.create("labels", format="webdataset") as writer:
        ...     for number in range(4):
        ...         writer.write({"__key__": f"{number:03}", "json": {"label": number % 2}})
        >>> joined = ps.Join({"picture": ps.open("pictures"), "label": ps.open("labels")}, how="skip")
        >>> len(joined)
        4
        >>> joined[3]["picture"]["caption"], joined[3]["label"]["json"]
        ('picture 3', {'label': 1})
    """
    members, named = _members(sources)
    for member, source in members.items():
        if not isinstance(source, SupportsKeys):
            raise ConfigError(
                f"{member!r} can't be joined: its samples have no keys",
                found=f"a {type(source).__name__}",
                expected="a WebDataset, a folder, a JSONL opened with flavor='energon', or parts or a Concat of these",
            )
    rules = _rules(list(members)[1:], how)
    label = _joiner_name(joiner, name)
    return JoinedSource(members, rules, joiner, label, named, DerivedCache() if derived is None else derived)


class JoinedSource(SourceNode):
    """Source of joined samples, as returned by `Join`.

    Memory: row numbers are mapped from disk, 8 bytes per member and row.

    Attributes:
        how: name of each further member → `"error"`, `"skip"` or `"none"`.

    Examples:
        >>> import penstock as ps
        >>> pictures = ps.open("pictures")
        >>> joined = ps.Join(pictures, ps.Take(pictures, 0, 4), how="skip")
        >>> len(joined), joined.key_of(3)
        (4, '003')
    """

    kind, title = "join", "Join"

    def __init__(
        self,
        members: Mapping[str, Source[Any]],
        how: Mapping[str, How],
        joiner: Joiner | None,
        joiner_name: str | None,
        named: bool,
        derived: Derived,
    ) -> None:
        self.how = dict(how)
        self._members = dict(members)
        self._joiner = joiner
        self._joiner_name = joiner_name
        self._named = named
        self._derived = derived
        self._table: NDArray[np.int64] | None = None
        self._rows()
        self.prefetch = self._prefetch if any(map(prefetch_of, self._members.values())) else None

    @property
    def joiner(self) -> Joiner | None:
        """Function that builds a sample from the members' samples; None returns them as a dict."""
        return self._joiner

    @property
    def excluded_indices(self) -> IntArray | None:
        """Samples with an excluded member, int64[k] ascending; None without an exclude list."""
        lists = [excluded_of(member) for member in self._members.values()]
        columns = self._rows().T
        gone = [np.isin(column, found) for column, found in zip(columns, lists, strict=True) if found is not None]
        return np.flatnonzero(np.any(gone, axis=0)) if gone else None

    @property
    def schema(self) -> Schema:
        """One field per member; open if a joiner makes the samples."""
        if self._joiner is not None:
            return Schema((), open=True)
        return Schema((Field("__key__", "text"), *(Field(name, "json") for name in self._members)))

    def identity(self) -> tuple[Any, ...]:
        return ("join", list(self._members), self._joiner_name, self._key())

    @property
    def preferred_mode(self) -> str:
        """Default mode of `Shuffle`: `"blocks"` if one of the members prefers it."""
        return preferred_mode(*self._members.values())

    @property
    def block_starts(self) -> IntArray:
        """Starts of the first member's storage blocks, int64[n_blocks + 1]."""
        first = next(iter(self._members.values()))
        return np.searchsorted(self._rows()[:, 0], blocks_of(first).starts()).astype(np.int64)

    def __len__(self) -> int:
        return len(self._rows())

    def __getitem__(self, index: int, /) -> Sample:
        return self.get_samples(np.array([as_index(index, len(self))]))[0]

    def get_samples(self, indices: IntArray, /) -> list[Sample]:
        """Return the samples at `indices` (int64[k]), in that order."""
        rows = self._rows()[indices]
        columns: list[list[Any]] = []
        for source, places in zip(self._members.values(), rows.T, strict=True):
            there = np.flatnonzero(places >= 0)
            column: list[Any] = [None] * len(places)
            for at, sample in zip(there.tolist(), samples_of(source, places[there]), strict=True):
                column[at] = sample
            columns.append(column)
        return [self._joined(int(row[0]), samples) for row, *samples in zip(rows, *columns, strict=True)]

    def key_of(self, index: int, /) -> str:
        """Return the key of sample `index`."""
        return self._first().key_of(int(self._rows()[as_index(index, len(self)), 0]))

    def index_of(self, key: str, /) -> int:
        """Return the index of the sample with this key, or raise `NotFound`."""
        row = self._first().index_of(key)
        column = self._rows()[:, 0]
        place = int(np.searchsorted(column, row))
        if place == len(column) or column[place] != row:
            raise NotFound(
                f"no joined sample has the key {key!r}", hint="The first source has it, but another one doesn't"
            )
        return place

    def place_of(self, index: int, /) -> Place:
        """Return the key, and the known file ranges of all members present."""
        index = as_index(index, len(self))
        pairs = zip(self._members.values(), self._rows()[index].tolist(), strict=True)
        places = [place_of(source, row) for source, row in pairs if row >= 0]
        extents = [extent for place in places for extent in place.extents or ()]
        return Place(key=self.key_of(index), extents=tuple(extents) or None)

    def children(self) -> Mapping[str, Source[Any]]:
        """Return the members by name."""
        return self._members

    def find(self, finder: Finder) -> IntArray:
        columns = zip(self._members.values(), self._rows().T, strict=True)
        return np.flatnonzero(np.any([np.isin(rows, finder.indices(member)) for member, rows in columns], axis=0))

    def shown(self) -> dict[str, Any]:
        rules = ",".join(dict.fromkeys(self.how.values()))
        return {"samples": len(self), "how": rules, "joiner": self._joiner_name}

    def recipe(self) -> dict[str, Any]:
        """Return members, rules and the joiner's name as plain JSON."""
        members = [
            {"name": name, "how": self.how.get(name), "source": source.recipe()}
            for name, source in self._members.items()
        ]
        own = {"kind": "join", "version": VERSION, "named": self._named, "joiner": self._joiner_name}
        return {**own, "members": members}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}

    def _joined(self, row: int, samples: Sequence[Any]) -> Sample:
        if self._joiner is None:
            return {"__key__": self._first().key_of(row), **dict(zip(self._members, samples, strict=True))}
        if self._named:
            return self._joiner(**dict(zip(self._members, samples, strict=True)))
        return self._joiner(*samples)

    def _prefetch(self, batches: IntArray, /, *, whole: bool = False) -> None:
        members = list(self._members.values())
        rows = self._rows()[batches]  # [n, k, n_members]
        owner = np.where(rows < 0, -1, np.arange(len(members))).reshape(len(batches), -1)
        prefetch_parts(
            lambda member: None if member < 0 else prefetch_of(members[member]), owner, rows.reshape(owner.shape), whole
        )

    def _first(self) -> SupportsKeys:
        return cast(SupportsKeys, next(iter(self._members.values())))

    def _key(self) -> str:
        """Return the cache key of everything that determines the matching rows."""
        prints = [source.fingerprint for source in self._members.values()]
        return digest("join-rows", VERSION, prints, list(self.how.values()))

    def _rows(self) -> NDArray[np.int64]:
        """Return int64[n_rows, n_members]; -1 if a member has no sample."""
        if self._table is None:
            width = len(self._members)
            known = digest(self._key(), [kept_key(source) for source in self._members.values()])
            flat = self._derived.array(f"join-{known}", "int64", self._build)
            # The number of members comes first: an empty file couldn't be mapped.
            self._table = flat[1:].reshape(-1, width)
        return self._table

    def _build(self) -> IntArray:
        rows = join_rows(list(self._members), list(self._members.values()), list(self.how.values()))
        return np.concatenate([[len(self._members)], rows]).astype(np.int64)


def _members(given: Sequence[Any]) -> tuple[dict[str, Source[Any]], bool]:
    """Return the sources by name, and whether the names were passed."""
    only = given[0] if len(given) == 1 else given
    if isinstance(only, Mapping):
        members, named = dict(cast("Mapping[str, Source[Any]]", only)), True
    elif isinstance(only, (list, tuple)):
        sources = cast("Sequence[Source[Any]]", only)
        members, named = {str(number): source for number, source in enumerate(sources)}, False
    else:
        members, named = dict[str, Source[Any]](), False
    if len(members) < 2:
        raise ConfigError("a join needs several sources", found=f"{len(given)}", expected="two or more")
    return members, named


def _rules(names: Sequence[str], how: Any) -> dict[str, How]:
    if isinstance(how, str):
        given: dict[str, Any] = dict.fromkeys(names, how)
    elif isinstance(how, Mapping):
        given = {name: cast("Mapping[str, str]", how).get(name, "error") for name in names}
        unknown = [name for name in cast("Mapping[str, str]", how) if name not in names]
        if unknown:
            raise ConfigError("unknown source in how=", found=unknown, expected=f"some of {list(names)}")
    else:
        rules = list(how)
        if len(rules) != len(names):
            raise ConfigError(
                "how= needs one rule for each further source", found=rules, expected=f"{len(names)} rules"
            )
        given = dict(zip(names, rules, strict=True))
    wrong = [rule for rule in given.values() if rule not in _RULES]
    if wrong:
        raise ConfigError("unknown rule for rows without a partner", found=repr(wrong[0]), expected="error, skip, none")
    return {name: cast(How, _RULES[rule]) for name, rule in given.items()}


def _joiner_name(joiner: Joiner | None, name: str | None) -> str | None:
    if joiner is None or name is not None:
        return name
    return function_name(joiner, "the joiner", "Pass name=, and change it when the joiner's results change")


How: TypeAlias = Literal["error", "skip", "none"]

RUN = 1 << 16
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys of a source, sorted by hash: uint64[n] twice, and the row of each: int64[n]."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    rows: IntArray


def join_rows(names: Sequence[str], sources: Sequence[Any], how: Sequence[How]) -> IntArray:
    """Return int64[n_rows · n_sources]: row by row, the sample of each source; -1 if a source has none.

    Args:
        names: names of the sources, for messages.
        sources: sources with keys; the first determines the order.
        how: for each source except the first, the treatment of rows without a partner in it.

    Raises:
        ConfigError: a key occurs twice in a source, or lacks a required partner.
    """
    first = _hashes(sources[0])
    _sorted_keys(names[0], sources[0], first)
    columns = [np.arange(len(sources[0]), dtype=np.int64)]
    kept = np.ones(len(sources[0]), dtype=np.bool_)
    for name, source, rule in zip(names[1:], sources[1:], how, strict=True):
        found = _look_up(first, _sorted_keys(name, source, _hashes(source)))
        if rule == "error" and (found < 0).any():
            raise _unmatched(names[0], sources[0], name, np.flatnonzero(found < 0))
        if rule == "skip":
            kept &= found >= 0
        columns.append(found)
    return np.stack([column[kept] for column in columns], axis=1).reshape(-1)


def _hashes(source: Any) -> NDArray[np.uint64]:
    """Return uint64[n, 2]: high and low half of each key's hash."""
    digests = bytearray()
    for keys in _key_runs(source):
        digests += b"".join(xxhash.xxh3_128_digest(key.encode("utf-8", "surrogatepass")) for key in keys)
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64).reshape(-1, 2)


def _key_runs(source: Any) -> Iterator[Sequence[str]]:
    size = len(source)
    for start in range(0, size, RUN):
        stop = min(start + RUN, size)
        yield keys_of(source, start, stop)


def _sorted_keys(name: str, source: Any, hashes: NDArray[np.uint64]) -> _Keys:
    rows = np.lexsort((hashes[:, 1], hashes[:, 0])).astype(np.int64)
    high, low = hashes[rows, 0], hashes[rows, 1]
    twice = np.flatnonzero((high[1:] == high[:-1]) & (low[1:] == low[:-1]))
    if twice.size:
        places = sorted(rows[twice[0] : twice[0] + 2].tolist())
        raise ConfigError(
            f"a key is repeated in {name!r}, so the join is ambiguous",
            found=f"{source.key_of(places[0])!r} at {places[0]} and {places[1]}, {twice.size:,} in total",
            expected="each key once",
        )
    return _Keys(high, low, rows)


def _look_up(wanted: NDArray[np.uint64], keys: _Keys) -> IntArray:
    """Return int64[k]: the row of each wanted key, -1 if there is none."""
    found = np.full(len(wanted), -1, dtype=np.int64)
    if not keys.rows.size:
        return found
    for start in range(0, len(wanted), RUN):
        high, low = wanted[start : start + RUN, 0], wanted[start : start + RUN, 1]
        at = np.searchsorted(keys.high, high)
        last = np.searchsorted(keys.high, high, side="right")
        part = found[start : start + RUN]
        # Once, except for keys with equal high halves by chance.
        while (open_ := np.flatnonzero((part < 0) & (at < last))).size:
            hit = open_[keys.low[at[open_]] == low[open_]]
            part[hit] = keys.rows[at[hit]]
            at[open_] += 1
    return found


def _unmatched(first: str, source: Any, name: str, rows: IntArray) -> ConfigError:
    some = ", ".join(repr(source.key_of(row)) for row in rows[:_MOST_NAMED].tolist())
    more = ", …" if len(rows) > _MOST_NAMED else ""
    return ConfigError(
        f"{len(rows):,} of {len(source):,} keys of {first!r} are not in {name!r}",
        found=f"{some}{more}",
        hint="To skip these rows: how='skip' (nonmatch: skip in a metadataset). To fill them with None: how='none'",
    )
