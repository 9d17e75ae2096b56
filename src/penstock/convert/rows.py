"""Samples by number, as rows for a conversion: stored bytes if a format has them, else Python values."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from penstock._access import excluded_of
from penstock._digest import digest
from penstock.abc import Source
from penstock.engine.rows import Rows
from penstock.errors import PenstockError
from penstock.formats._exclusions import excluded_count, kept
from penstock.formats.samples.folder.files import is_part, list_files, part_of, read_each, sample_of
from penstock.formats.samples.webdataset.shards import key_prefix
from penstock.store.place import Place
from penstock.types import IntArray, Sample

if TYPE_CHECKING:
    import json

KEY = "__key__"
STORED = ("mds", "webdataset", "folder")
"""Formats whose rows are read as stored bytes."""

_READER_FIELDS = ("__restore_key__", "__sources__", "__subflavors__")


class SourceRows(Rows):
    """The samples of a source, without fields that readers add."""

    def __init__(self, source: Source[Sample], *, prefix_keys: bool = False) -> None:
        self.source = source
        self.num_excluded = excluded_count(source)
        self._prefix_keys = prefix_keys
        self._many: Any = getattr(source, "get_samples", None)

    @property
    def fingerprint(self) -> str:
        return digest(self.source.fingerprint, "prefix_keys") if self._prefix_keys else self.source.fingerprint

    def __len__(self) -> int:
        return len(self.source)

    def samples(self, start: int, stop: int, /) -> list[Sample]:
        return self.read_at(np.arange(start, stop))

    def read_at(self, indices: IntArray) -> list[Sample]:
        """Return the samples at int64[n] `indices`."""
        if self._many is not None:
            samples: list[Sample] = self._many(indices)
        else:
            samples = [self.source[index] for index in indices.tolist()]
        for sample in samples:
            if self._prefix_keys:
                sample[KEY] = key_prefix(sample["__sources__"][0].shard_name) + sample[KEY]
            for name in _READER_FIELDS:
                sample.pop(name, None)
        return samples


class SelectedRows(Rows):
    """The rows at int64[n] increasing `indices`. Memory: 8 bytes per row."""

    def __init__(self, rows: Rows, indices: IntArray) -> None:
        self.source, self.num_excluded = rows.source, rows.num_excluded
        self._rows = rows
        self._indices = indices

    @property
    def fingerprint(self) -> str:
        return digest(self._rows.fingerprint, xxhash.xxh3_128_hexdigest(self._indices.tobytes()))

    def __len__(self) -> int:
        return len(self._indices)

    def samples(self, start: int, stop: int, /) -> list[Sample]:
        wanted = self._indices[start:stop].tolist()
        if not wanted:
            return []
        read = self._rows.samples(wanted[0], wanted[-1] + 1)
        return [read[index - wanted[0]] for index in wanted]


class FolderRows(Rows):
    """The files of a folder. Files with the same name up to its first dot are one row, as in a tar.

    With `every_file`, each file that can't be a part, such as a hidden one, is a row whose key is its name.

    Memory: about 100 bytes per file.
    """

    def __init__(self, place: Place, source: Any, *, every_file: bool = False) -> None:
        self.source = source
        self._store = place.store
        files = list_files(place.store, place.bare().path)
        excluded = excluded_of(source)
        gone = set() if excluded is None else {source.key_of(index) for index in excluded.tolist()}
        names = [name for name in files if every_file or is_part(name)]
        self.num_ignored = len(source) - len(names)
        self.first_ignored = next((name for name in files if not every_file and not is_part(name)), "")
        self.num_excluded = len(gone)
        # Not adjacent in byte order: a folder "a.d" sorts between the files "a.jpg" and "a.txt".
        groups: dict[tuple[bool, str], list[str]] = {}
        for name in names:
            if name not in gone:
                groups.setdefault((True, sample_of(name)) if is_part(name) else (False, name), []).append(name)
        self._groups = list(groups.values())

    @property
    def fingerprint(self) -> str:
        return kept(self.source).fingerprint

    def __len__(self) -> int:
        return len(self._groups)

    def samples(self, start: int, stop: int, /) -> list[Sample]:
        groups = self._groups[start:stop]
        contents = iter(read_each(self._store, self.source.get, list(itertools.chain.from_iterable(groups))))
        return [
            {KEY: sample_of(group[0]) if is_part(group[0]) else group[0]}
            | {part_of(name): next(contents) for name in group}
            for group in groups
        ]


# --- digests ---------------------------------------------------------------------------------------------------------


def digest_number(format: str, index: int) -> int:
    """Return the number that a row is digested with: 0 in a folder, which is ordered by key."""
    return 0 if format == "folder" else index


def sample_digest(index: int, row: Mapping[str, Any]) -> int:
    """Return a 128-bit digest of a row and its number. The sum over all rows is the digest of a dataset."""
    encode = _json_encoder().encode
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


def shown_digest(total: int) -> str:
    """Return a sum of digests as 32 hex digits."""
    return f"{total % (1 << 128):032x}"


@functools.cache  # a row may have 10^5 columns
def _json_encoder() -> json.JSONEncoder:
    import json

    return json.JSONEncoder(default=_as_list)


def _as_list(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__}")
