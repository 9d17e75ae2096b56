"""Finding samples by key without `index.sqlite`: by `index.keys` beside the data, else by one made once a host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock._digest import digest
from penstock._secrets import logger
from penstock.errors import Corrupt
from penstock.formats.samples.webdataset.key_index import KeyIndex, KeyPlace, KeyRuns, mapped_keys, stored_keys
from penstock.formats.samples.webdataset.shards import ShardTable, scan_shard
from penstock.store.base import Store
from penstock.store.derived import DerivedCache
from penstock.store.fingerprint import files_key, sample_fingerprint

_log = logger()
_VERSION = "webdataset-keys-2"
_AGAIN = "Prepare the dataset again: `penstock prepare`"


class Keys:
    """The keys of a dataset, of all its splits. Thread-safe, picklable. Memory: see `KeyIndex`.

    Args:
        store: where it is.
        root: its folder.
        counts: shard → its samples, in the order of their numbers.
    """

    def __init__(self, store: Store, root: str, counts: Mapping[str, int]) -> None:
        self._store = store
        self._root = root
        self._counts = counts
        self._stored: KeyIndex | None = None
        self._derived: KeyIndex | None = None
        self._looked = False
        self._of_shard: tuple[int, dict[str, int]] = (-1, {})

    def __reduce__(self) -> tuple[object, ...]:
        return (Keys, (self._store, self._root, self._counts))

    @property
    def stored(self) -> KeyIndex | None:
        """The index beside the data, if there is one of these data."""
        if not self._looked:
            # Two threads may both come here: they find the same, and one goes.
            self._stored = stored_keys(self._store, self._root, self._counts)
            self._looked = True
        return self._stored

    def find(self, key: str) -> KeyPlace | None:
        """Where the sample with this key is.

        Raises:
            Corrupt: the key comes in two samples, or the index or a shard is damaged.
        """
        index = self._index()
        found = index.find(key)
        if len(found) > 1:
            raise repeated(key, index.path)
        return found[0] if found else None

    def find_in(self, key: str, shard: int) -> int | None:
        """Place of the first sample with this key in one shard, where keys may repeat in others."""
        index = self.stored or self._derived
        if index is not None:
            return next((one.place for one in index.find(key) if one.shard == shard), None)
        number, places = self._of_shard
        if number != shard:  # one shard at a time is asked about, so no other one is scanned for it
            keys = self._table(list(self._counts)[shard]).keys
            places = {one: place for place, one in reversed(list(enumerate(keys)))}
            self._of_shard = shard, places
        return places.get(key)

    def _index(self) -> KeyIndex:
        if self.stored is not None:
            return self.stored
        if self._derived is None:
            _log.warning("%s: no key index: scanning all shards once and caching the result", self._root)
            data: Any = DerivedCache().fed(self._key(), "uint8", self._feed)
            self._derived = mapped_keys(data, self._root, self._counts)
        return self._derived

    def _key(self) -> str:
        """By what these data are known again: the list of shards, a sample of them, and when the list was written."""
        parts: list[Any] = [_VERSION, list(self._counts.items())]
        files = [(name, f"{self._root}/{name}") for name in self._counts]
        sample = sample_fingerprint(self._store, "webdataset", b"", files)
        return digest(*parts, files_key(sample, self._store, (path for _, path in files)))

    def _feed(self, put: Any) -> None:
        with KeyRuns() as runs:
            for name in self._counts:
                runs.add(self._table(name))
            runs.write(lambda data: put(np.frombuffer(data, np.uint8)), "")

    def _table(self, name: str) -> ShardTable:
        path, count = f"{self._root}/{name}", self._counts[name]
        table = scan_shard(self._store, path)
        if table.num_samples != count:
            raise Corrupt(
                "a shard doesn't match the list of shards", path=path, found=f"{table.num_samples} samples",
                expected=f"{count} samples", hint=_AGAIN,
            )  # fmt: skip
        return table


def repeated(key: str, path: str) -> Corrupt:
    """The error for a key that does not name one sample."""
    return Corrupt(
        f"the key {key!r} is in two samples, so it is ambiguous", path=path,
        hint="Read samples by index, or pack the shards again with unique keys",
    )  # fmt: skip
