"""Samples of any format as rows for a conversion: stored bytes where a format has them, else Python values."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import xxhash

from penstock._digest import digest
from penstock._resolved import excluded_of
from penstock.abc import Source
from penstock.convert.tables import TABLE, TableOptions, TableRows
from penstock.errors import ConfigError, PenstockError
from penstock.formats import get_format
from penstock.formats._door import open_at
from penstock.formats._excluded import require_list_named
from penstock.formats._kept import excluded_count, excluded_list, kept
from penstock.formats._proof import require_as_recorded
from penstock.formats.samples.folder.files import is_part, list_files, part_of, read_each, sample_of
from penstock.formats.samples.webdataset.shards import key_prefix
from penstock.store.exclude_list import NO_LIST, Entry
from penstock.store.place import Place
from penstock.types import IntArray, OpenOptions, Sample

if TYPE_CHECKING:
    import json

KEY = "__key__"
STORED = ("mds", "webdataset", "folder")
"""Formats whose rows are read as stored bytes."""

_OF_READERS = ("__restore_key__", "__sources__", "__subflavors__")


class Rows(Protocol):
    """Samples by number."""

    @property
    def fingerprint(self) -> str:
        """Of the content."""
        ...

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int, /) -> list[Sample]:
        """The rows `[start, stop)`."""
        ...


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset of rows; picklable, so that each process opens it by itself.

    Attributes:
        place: where it is.
        format: its name; `"table"` for CSV and TSV files.
        options: for opening it.
        table: for reading a text table.
        prefix_keys: put the name of the shard before each key.
        every_file: of a folder, also read the files that tars have no place for; see `FolderRows`.
    """

    place: Place
    format: str
    options: OpenOptions
    table: TableOptions = field(default_factory=TableOptions)
    prefix_keys: bool = False
    every_file: bool = False

    def open(self) -> Source[Sample]:
        """Its source, without what is excluded; raises what the format raises."""
        return kept(self.opened())

    def opened(self) -> Source[Sample]:
        """Its source, in which excluded samples are errors; raises what the format raises."""
        chosen, store, path = get_format(self.format), self.place.store, self.place.path
        source = open_at(chosen, store, path, self.options)
        require_list_named(chosen, store, path, self.options, source)
        return source

    def require_as_recorded(self, source: Source[Sample]) -> None:
        """Raise `Corrupt` if this source, as `opened` returns it, contradicts its side file at first sight."""
        require_as_recorded(get_format(self.format), self.place.store, self.place.path, self.options, source)

    def whole(self) -> Dataset:
        """The same with all that is excluded."""
        return replace(self, options=replace(self.options, excludes=NO_LIST))

    def settled(self, source: Any) -> Dataset:
        """The same, whose other openings go by the exclude list of this one."""
        return replace(self, options=replace(self.options, excludes=excluded_list(source)))

    def rows(self) -> Rows:
        """Its rows; raises what the format raises."""
        if self.format == TABLE:
            return TableRows(self.place, self.table)
        if self.format == "folder":
            return FolderRows(self.place, self.opened(), every_file=self.every_file)
        return SourceRows(self.open(), prefix_keys=self.prefix_keys)


@dataclass(frozen=True, slots=True)
class Opened:
    """A source that is open already; picklable as it is."""

    source: Source[Sample]

    def rows(self) -> Rows:
        """Its rows, but for those that are excluded."""
        return SourceRows(kept(self.source))


class SourceRows:
    """The samples of a source, without what a reader adds to them."""

    def __init__(self, source: Source[Sample], *, prefix_keys: bool = False) -> None:
        self.source = source
        self.excluded = excluded_count(source)
        self._prefix_keys = prefix_keys
        self._many: Any = getattr(source, "get_samples", None)

    @property
    def fingerprint(self) -> str:
        """Of the source, and whether its keys have prefixes."""
        return digest(self.source.fingerprint, "prefix_keys") if self._prefix_keys else self.source.fingerprint

    def __len__(self) -> int:
        return len(self.source)

    def read(self, start: int, stop: int, /) -> list[Sample]:
        """The samples `[start, stop)`."""
        return self.read_at(np.arange(start, stop))

    def read_at(self, indices: IntArray) -> list[Sample]:
        """The samples at int64[n] `indices`."""
        if self._many is not None:
            samples: list[Sample] = self._many(indices)
        else:
            samples = [self.source[index] for index in indices.tolist()]
        for sample in samples:
            if self._prefix_keys:
                sample[KEY] = key_prefix(sample["__sources__"][0].shard_name) + sample[KEY]
            for name in _OF_READERS:
                sample.pop(name, None)
        return samples


@dataclass(frozen=True, slots=True)
class Selected:
    """Some rows of a dataset; picklable.

    Attributes:
        dataset: of all rows.
        indices: int64[n], rising: those that are read.
    """

    dataset: Dataset | Opened
    indices: IntArray

    def rows(self) -> Rows:
        """These rows; raises what the format raises."""
        return SelectedRows(self.dataset.rows(), self.indices)


class SelectedRows:
    """Some rows by their numbers. Memory: 8 bytes a row."""

    def __init__(self, rows: Rows, indices: IntArray) -> None:
        self.source = getattr(rows, "source", None)
        self.excluded = getattr(rows, "excluded", 0)
        self._rows = rows
        self._indices = indices

    @property
    def fingerprint(self) -> str:
        """Of all rows, and which of them these are."""
        return digest(self._rows.fingerprint, xxhash.xxh3_128_hexdigest(self._indices.tobytes()))

    def __len__(self) -> int:
        return len(self._indices)

    def read(self, start: int, stop: int, /) -> list[Sample]:
        """The rows `[start, stop)` of these."""
        wanted = self._indices[start:stop].tolist()
        if not wanted:
            return []
        read = self._rows.read(wanted[0], wanted[-1] + 1)
        return [read[index - wanted[0]] for index in wanted]


class FolderRows:
    """The files of a folder; those of one name up to its first dot are one row, as in a tar.

    With `every_file`, each file that can't be a part, such as a hidden one, is a row whose key is its name.

    Memory: about 100 bytes a file.
    """

    def __init__(self, place: Place, source: Any, *, every_file: bool = False) -> None:
        self.source = source
        self._store = place.store
        files = list_files(place.store, place.bare().path)
        excluded = excluded_of(source)
        gone = set() if excluded is None else {source.key_of(index) for index in excluded.tolist()}
        names = [name for name in files if every_file or is_part(name)]
        self.left_out = len(source) - len(names)
        self.excluded = len(gone)
        names = [name for name in names if name not in gone]
        # Not adjacent in byte order: a folder "a.d" sorts between the files "a.jpg" and "a.txt".
        groups: dict[tuple[bool, str], list[str]] = {}
        for name in names:
            groups.setdefault((True, sample_of(name)) if is_part(name) else (False, name), []).append(name)
        self._groups = list(groups.values())

    @property
    def fingerprint(self) -> str:
        """Of the folder, and what is left of it."""
        return kept(self.source).fingerprint

    def __len__(self) -> int:
        return len(self._groups)

    def read(self, start: int, stop: int, /) -> list[Sample]:
        """The rows `[start, stop)`: the key, and the bytes of each file."""
        groups = self._groups[start:stop]
        found = iter(read_each(self._store, self.source.get, list(itertools.chain.from_iterable(groups))))
        return [
            {KEY: sample_of(group[0]) if is_part(group[0]) else group[0]}
            | {part_of(name): next(found) for name in group}
            for group in groups
        ]


class MemoryRows:
    """Samples that are here; for one group of an iterable."""

    def __init__(self, samples: list[Sample]) -> None:
        self._samples = samples

    @property
    def fingerprint(self) -> str:
        """None is needed."""
        return ""

    def __len__(self) -> int:
        return len(self._samples)

    def read(self, start: int, stop: int, /) -> list[Sample]:
        """The samples `[start, stop)`."""
        return self._samples[start:stop]


def batches(rows: Rows, start: int, stop: int, step: int) -> Iterator[list[Sample]]:
    """The rows `[start, stop)`, `step` at a time; a table is gone through once."""
    if isinstance(rows, TableRows):
        run = itertools.islice(rows.scan(start), stop - start)
        while found := list(itertools.islice(run, step)):
            yield found
        return
    for at in range(start, stop, step):
        yield rows.read(at, min(stop, at + step))


@dataclass(frozen=True, slots=True)
class Group:
    """Rows `[start, stop)` of the source; those of an iterable come along."""

    number: int
    start: int
    stop: int
    samples: list[Sample] | None = None

    @property
    def described(self) -> str:
        """What an error calls it."""
        return f"samples {self.start} to {self.stop}"

    @property
    def num_samples(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    def read(self, rows: Rows | None, step: int) -> Iterator[tuple[int, Sample]]:
        """`(number, sample)` of its samples, from `rows` or its own, `step` of them read at a time."""
        first = self.start if self.samples is None else 0
        held = rows if self.samples is None else MemoryRows(self.samples)
        if held is None:
            raise ConfigError("a group without samples", found=self.number)
        found = itertools.chain.from_iterable(batches(held, first, first + self.stop - self.start, step))
        return enumerate(found, self.start)


@dataclass(frozen=True, slots=True)
class Input:
    """What is read: rows with their fingerprint and count, or samples that come once.

    Attributes:
        shown: the source as errors name it.
        dataset: where the rows are; None for an iterable.
        rows: opened; None for an iterable.
        samples: of the iterable, the first ones included.
        excluded: samples that the exclude list of the dataset leaves out.
        inputs: what the side file calls the source, and its digest.
        left_out: what it says of the exclude list.
        carried: entries of excluded samples that are among the rows, by their numbers.
        skipped: samples that lack a column, and aren't among the rows.
        unread: columns of the dataset that are neither read nor written.
    """

    shown: str
    dataset: Dataset | Opened | Selected | None
    rows: Rows | None
    samples: Iterable[Sample] = ()
    excluded: int = 0
    inputs: Mapping[str, str] = field(default_factory=dict[str, str])
    left_out: Mapping[str, Any] = field(default_factory=dict[str, Any])
    carried: Sequence[Entry] = ()
    skipped: int = 0
    unread: Sequence[str] = ()

    @property
    def reads(self) -> list[Place]:
        """The dataset's place; empty for a source that is open already."""
        dataset = self.dataset.dataset if isinstance(self.dataset, Selected) else self.dataset
        return [dataset.place] if isinstance(dataset, Dataset) else []

    def groups(self, group_rows: int) -> Iterator[Group]:
        """The cut: by position alone."""
        if self.rows is not None:
            for number, start in enumerate(range(0, len(self.rows), group_rows)):
                yield Group(number, start, min(len(self.rows), start + group_rows))
            return
        run = iter(self.samples)
        for number in itertools.count():
            found = list(itertools.islice(run, group_rows))
            if not found:
                return
            yield Group(number, number * group_rows, number * group_rows + len(found), found)


def own_copy(value: Any) -> Any:
    """A value that changes no more when whoever made it uses its dicts, lists and buffers again."""
    if isinstance(value, dict):
        return {name: own_copy(one) for name, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [own_copy(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, np.ndarray):
        return value.copy()  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


def sample_digest(index: int, row: Mapping[str, Any]) -> int:
    """128 bits of one row and its number; the sum over all rows is the digest of a dataset, in any order of work."""
    encode = _json_of().encode
    hasher = xxhash.xxh3_128(index.to_bytes(8, "little"))
    for name in sorted(row):
        value = row[name]
        if not isinstance(value, bytes):
            try:
                value = encode(value).encode()
            except (TypeError, ValueError, RecursionError) as error:
                raise PenstockError(f"column {name!r} can't be compared", found=str(error)) from None
        encoded = name.encode("utf-8", "surrogatepass")
        hasher.update(len(encoded).to_bytes(8, "little") + encoded + len(value).to_bytes(8, "little"))
        hasher.update(value)
    return hasher.intdigest()


@functools.cache
def _json_of() -> json.JSONEncoder:
    """Made once: a row may have 10^5 columns."""
    import json

    return json.JSONEncoder(default=_tolist)


def shown_digest(total: int) -> str:
    """32 hex digits."""
    return f"{total % (1 << 128):032x}"


def _tolist(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__}")
