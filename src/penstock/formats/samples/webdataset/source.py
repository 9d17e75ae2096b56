"""Read a prepared WebDataset by number, by key, and by the name of a part."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penstock._arrays import as_index, as_indices
from penstock._secrets import logger
from penstock.errors import Corrupt, NotFound, PenstockError
from penstock.formats._sources import StoredSource
from penstock.formats.samples.webdataset.details import read_sample_type
from penstock.formats.samples.webdataset.key_index import KeyPlace
from penstock.formats.samples.webdataset.lookup import Keys, SqliteIndex
from penstock.formats.samples.webdataset.manifest import (
    recorded_as,
    require_as_recorded,
    shards_digest,
    side_path,
)
from penstock.formats.samples.webdataset.members import read_members
from penstock.formats.samples.webdataset.nvmeta import (
    DATASET_YAML,
    INFO_JSON,
    SPLIT_JSON,
    SPLIT_YAML,
    SQLITE,
    Info,
    Splits,
    choose_split,
    meta_path,
    read_info,
    read_splits,
    read_uuid,
    split_shards,
    unmatched_shards,
    unmatched_text,
)
from penstock.formats.samples.webdataset.open_shards import OpenShards
from penstock.formats.samples.webdataset.samples import Parsed, Range, members_between, parse, split_name
from penstock.formats.samples.webdataset.splits import SplitPlaces
from penstock.store.base import Store
from penstock.store.fingerprint import once_a_host, sample_fingerprint
from penstock.store.side_file import recorded_fingerprints
from penstock.types import Batch, Extent, Field, IntArray, MediaMetadata, OpenOptions, Place, Sample, Schema, SourceInfo

RESTORE_KIND = "Webdataset"
_log = logger(__name__)
_STEP = 4096
_MOST_PARTS = 4096
_ADDED = ("__key__", "__restore_key__", "__sources__", "__subflavors__")
"""Fields that the reader adds to the parts of a sample."""


def warn_of_unmatched(names: Sequence[str], path: str) -> None:
    if names:
        _log.warning("%s: %s", path, unmatched_text(names))


def _takes_added_name(parts: Container[str], path: str) -> Corrupt:
    names = ", ".join(name for name in _ADDED if name in parts)
    hint = "Rename this member, and run `penstock prepare` again"
    return Corrupt("a part has a reserved name", path=path, found=names, hint=hint)


def unmatched_exclusions(store: Store, root: str, splits: Splits, info: Info) -> list[str]:
    """Return the entries of `exclude` that match neither a shard nor a sample of any split."""
    found = dict.fromkeys(unmatched_shards(splits, info, root))
    for split in splits.parts if splits.exclude else ():
        shards, left_out = split_shards(info, splits, split, root)
        source = WebdatasetSource(store, root, OpenOptions(split=split), info, split, shards, left_out)
        found |= dict.fromkeys(source.unmatched_exclusions)
    return list(found)


def open_raw(store: Store, path: str, options: OpenOptions, splits: Splits | None = None) -> WebdatasetSource:
    """Open the raw samples of a split; `splits` overrides `split.yaml`."""
    root = path.rstrip("/") or path
    info = read_info(store, root)
    splits = read_splits(store, root) if splits is None else splits
    split = choose_split(splits, options.split, root)
    if split is None:
        shards, left_out = list(info.counts), dict[str, list[str]]()
    else:
        shards, left_out = split_shards(info, splits, split, root)
    warn_of_unmatched(unmatched_shards(splits, info, root), meta_path(root, splits.name or SPLIT_YAML))
    config = splits.name if splits.name not in (None, SPLIT_YAML, SPLIT_JSON) else None
    return WebdatasetSource(store, root, options, info, split, shards, left_out, config)


def raw_details(
    store: Store, root: str, *, split_config: str | None = None, dataset_config: str = DATASET_YAML
) -> dict[str, Any]:
    """Return the details shown by `info`, as plain JSON; splits are opened to count their samples.

    Args:
        store: store of the dataset.
        root: the dataset's folder.
        split_config: file of splits, instead of the first one that exists.
        dataset_config: file with the type of the samples.
    """
    info = read_info(store, root)
    splits = read_splits(store, root) if split_config is None else read_splits(store, root, (split_config,))
    told = {name: _split_details(store, root, info, splits, name) for name in splits.parts}
    total = sum(kept for kept, _ in told.values()) if splits.parts else sum(info.counts.values())
    found: dict[str, Any] = {
        "samples_of_all_splits": f"{total:,}",
        "shards": len(info.counts),
        "shard_files_bytes": sum(store.size(f"{root}/{name}") for name in info.counts),
        "energon_version": info.version or "not recorded",
        "sample_type": read_sample_type(store, meta_path(root, dataset_config)),
        "splits": {name: f"{kept / (total or 1):.1%}, {text}" for name, (kept, text) in told.items()} or "none",
        "exclude": _exclude_text(root, splits, info),
        "index_sqlite": "yes"
        if store.exists(meta_path(root, SQLITE))
        else "no: keys are looked up in index.keys, or by a cached scan",
    }
    members = read_members(store, root)
    if members.ignored_text is not None:
        found["ignored_members"] = members.ignored_text
    if members.num_linked:
        found["linked_parts"] = f"{members.num_linked:,}: links within a shard, which Energon ignores"
    return found


def _split_details(store: Store, root: str, info: Info, splits: Splits, name: str) -> tuple[int, str]:
    """Return the number of samples of a split when it is open, and its description."""
    try:
        shards, left_out = split_shards(info, splits, name, root)
        samples = len(WebdatasetSource(store, root, OpenOptions(split=name), info, name, shards, left_out))
    except PenstockError as error:
        return 0, f"can't be opened: {error.found or error.what}"
    gone = sum(info.counts[one] for one in shards) - samples
    more = f", {gone:,} more excluded in {splits.name or SPLIT_YAML}" if gone else ""
    return samples, f"{samples:,} samples, {len(shards):,} shard{'' if len(shards) == 1 else 's'}{more}"


def _exclude_text(root: str, splits: Splits, info: Info) -> str:
    if not splits.exclude:
        return "nothing"
    unmatched = unmatched_shards(splits, info, root)  # unmatched keys are reported when splits are opened
    return f"{len(splits.exclude)} entries" + (f"; {unmatched_text(unmatched)}" if unmatched else "")


class WebdatasetSource(StoredSource):
    """Raw samples of one split; see `penstock.abc.Source`. Returned by `penstock.open`.

    A sample is `{"__key__", "__restore_key__", "__sources__", "<part>": bytes, …, "__subflavors__"}`; if a part
    repeats, its last value. Lookups by name return the first part of that name, in all splits. `columns=` keeps only
    these fields.
    Memory: that of the open shards.

    Attributes:
        path: the dataset's folder.
        split: the split; None if there are no splits.
    """

    title = "webdataset"
    stated = ("raw", "columns", "follow_links")

    def __init__(
        self,
        store: Store,
        path: str,
        options: OpenOptions,
        info: Info,
        split: str | None,
        shards: Sequence[str],
        left_out: Mapping[str, Sequence[str]],
        split_config: str | None = None,
    ) -> None:
        super().__init__(store, path, options)
        self.path = path
        self.split = split
        self._args = (store, path, options, info, split, shards, left_out, split_config)
        self._split_config = split_config
        self._info = info
        self._names = list(info.counts)
        self._left_out = left_out
        self._shards = OpenShards(store, path, info.counts, options.read, info.file)
        self._chosen = shards
        self._known_places: SplitPlaces | None = None
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._keys = Keys(store, path, info.counts)
        self._first_of: dict[str, int] | None = None
        self._index: SqliteIndex | None = None
        self._finds_parts = False

    def __reduce__(self) -> tuple[object, ...]:
        return (WebdatasetSource, self._args)

    @property
    def schema(self) -> Schema:
        """Fields of every sample, open to parts; with `columns`, only these."""
        if self._options.columns is not None:
            return Schema(tuple(Field(name, "bytes") for name in self._options.columns), open=True)
        return Schema((Field("__key__", "text"),), open=True)

    def proof(self) -> None:
        """Raise `Corrupt` if the shards contradict the side file; see `penstock.formats._proof`."""
        require_as_recorded(self._store, self.path, self._info.counts)

    def _find_fingerprint(self) -> str:
        index = shards_digest(self._info.counts, self._chosen, self._left_out)
        files = [(name, self._shards.path(name)) for name in dict.fromkeys(self._chosen)]

        def find() -> str:
            return sample_fingerprint(self._store, "webdataset", index.encode(), files)

        def recorded() -> str | None:
            known = recorded_fingerprints(self._store, side_path(self.path))
            return known.get(recorded_as(index, read_uuid(self._store, self.path))) if known else None

        return once_a_host(self._store, [meta_path(self.path, INFO_JSON)], f"webdataset {index}", find, recorded)

    def _read_files(self) -> tuple[Store, Iterable[str]]:
        shards = map(self._shards.path, dict.fromkeys(self._chosen))
        return self._store, [meta_path(self.path, INFO_JSON), *shards]

    # --- by number -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._places.size

    def __getitem__(self, index: int, /) -> Sample:
        places = self._places
        place = places.in_split(as_index(index, places.size))
        name, inside = places.locate_one(place)
        return self._sample(parse(self._shards.read_range(name, inside)), name, place)

    def get_samples(self, indices: IntArray, /) -> list[Sample]:
        """Return the samples at `indices` (int64[k]), in that order."""
        parsed, shards, places = self._parse_all(indices)
        return list(map(self._sample, parsed, shards, places))

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the samples at `indices` (int64[k]) as columns; a part that a sample lacks is None in its row."""
        parsed, shards, places = self._parse_all(indices)
        if not parsed:
            return {}
        parts = [one[2] for one in parsed]
        names = list(parts[0])
        if any(one.keys() != parts[0].keys() for one in parts):
            names = list(dict.fromkeys(name for one in parts for name in one))
        path = self.path
        infos = zip(places, shards, parsed, strict=True)
        batch: Batch = {
            "__key__": [one[0] for one in parsed],
            "__restore_key__": [(RESTORE_KIND, place) for place in places],
            "__sources__": [(SourceInfo(path, place, shard, one[1]),) for place, shard, one in infos],
            **{name: [one.get(name) for one in parts] for name in names},
            "__subflavors__": [{} for _ in parsed],
        }
        if len(batch) != len(names) + len(_ADDED):
            raise _takes_added_name(names, self.path)
        columns = self._options.columns
        return batch if columns is None else {name: batch[name] for name in columns if name in batch}

    def _parse_all(self, indices: Sequence[int] | IntArray) -> tuple[list[Parsed], list[str], list[int]]:
        """Return samples, the shard of each, and the place of each in the whole split."""
        places = self._places.all_in_split(as_indices(indices, self._places.size))
        shards, inside = self._places.locate(places)
        return list(map(parse, self._shards.read_ranges(shards, inside))), shards, places.tolist()

    def __iter__(self) -> Iterator[Sample]:
        for start in range(0, len(self), _STEP):
            yield from self.get_samples(np.arange(start, min(len(self), start + _STEP)))

    @property
    def block_starts(self) -> IntArray:
        """First sample of each shard, and `len` at the end: int64[n_shards + 1]."""
        return self._places.block_starts

    @property
    def split_size(self) -> int:
        """Number of samples of the split, including excluded ones."""
        return self._places.split_size

    def kept_before(self, place: int, /) -> int:
        """Return the number of samples before `place` of the whole split that aren't excluded."""
        return self._places.kept_before(place)

    def place_of(self, index: int, /) -> Place:
        place = self._places.in_split(as_index(index, self._places.size))
        name, inside = self._places.locate_one(place)
        start, stop = self._shards.range(name, inside)
        return Place(extents=(Extent(self._shards.path(name), start, stop - start),))

    def parts_of(self, index: int, most: int, /) -> tuple[str, list[tuple[str, Extent]], int, bool]:
        """Return the key of a sample, and its first `most` parts with their places; reads only headers.

        Returns:
            The key; the parts; the number of counted parts, up to 4,096; true if these are all.
        """
        place = self._places.in_split(as_index(index, self._places.size))
        name, inside = self._places.locate_one(place)
        path, (at, stop) = self._shards.path(name), self._shards.range(name, inside)
        key, found, count = "", list[tuple[str, Extent]](), 0
        for member in members_between(self._store, path, at, stop):
            split = split_name(member.name) if member.is_regular else None
            if split is None:
                continue
            if count == _MOST_PARTS:
                return key, found, count, False
            key, count = split[0], count + 1
            if len(found) < most:
                found.append((split[1], Extent(path, member.content_bytes, member.size_bytes)))
        for one in self._shards.members.linked.get(name, {}).get(inside, ()):
            count += 1
            if len(found) < most:
                found.append((one.part, Extent(path, one.content_bytes, one.size_bytes)))
        return key, found, count, True

    # --- by key and name -----------------------------------------------------------------------------------------

    def key_of(self, index: int, /) -> str:
        place = self._places.in_split(as_index(index, self._places.size))
        return self._parsed(*self._places.locate_one(place))[0]

    def index_of(self, key: str, /) -> int:
        """Return the index of the sample with this key.

        Raises:
            NotFound: no sample of the split has it.
            Corrupt: two samples have it.
        """
        found = self._find_sample(key)
        if found is not None:
            if self._first_of is None:
                shards = self._places.shards
                self._first_of = {name: number for number, name in reversed(list(enumerate(shards)))}
            number = self._first_of.get(found[0])
            if number is not None:
                place = int(self._places.starts[number]) + found[1]
                if self._places.is_kept(place):
                    return self._places.kept_before(place)
        raise NotFound(f"no sample with the key {key!r}", path=self.path, hint=f"The split is {self.split}")

    def get(self, name: str, /) -> bytes:
        """Return the stored bytes of one part, by its full name `<key>.<part>`, in all splits; raise `NotFound`."""
        return self.get_with_shard(name)[0]

    def get_with_shard(self, name: str, /) -> tuple[bytes, str]:
        """Return the bytes of one part, and its shard; see `get`."""
        base = name.rfind("/") + 1
        dot = name.find(".", base)
        split = (name[:dot], name[dot + 1 :]) if dot > base else split_name(name)
        if split is None:
            raise self._no_part(name)
        if self._finds_parts and self._index is not None:
            return self._read_part(self._index, name, *split)
        index = self._index_of_keys()
        if index is not None and "sample_parts" in index.tables:
            self._finds_parts = not self._shards.members.linked  # linked parts are in no index
            if self._finds_parts:
                return self._read_part(index, name, *split)
        if index is not None:
            found = self._find_sample(split[0])
            shard, parts = ("", {}) if found is None else (found[0], self._parsed(*found)[2])
        else:
            place = self._keys.find(split[0])
            shard, parts = ("", {}) if place is None else (self._names[place.shard], self._parts_at(place, split[0]))
        if split[1] not in parts:
            raise self._no_part(name)
        return parts[split[1]], shard

    def get_media_metadata(self, name: str, /) -> MediaMetadata:
        """Return the metadata of a part in the media index, by its full name; raise `NotFound`."""
        index = self._opened_index()
        found = None
        if index is not None:
            from penstock.formats.samples.media_index import read_metadata  # slow to import, and rarely needed

            found = read_metadata(index.connection(), name, path=index.path)
        if found is None:
            raise NotFound(
                f"no media metadata for {name!r}",
                path=self.path,
                hint=f"Create it with `penstock prepare-media {self.path}`",
            )
        return found

    # --- properties ----------------------------------------------------------------------------------------------

    def _stated(self) -> dict[str, Any]:
        split = {} if self.split is None else {"split": self.split}
        config = {} if self._split_config is None else {"split_config": self._split_config}
        return {**split, **super()._stated(), **config}

    def details(self) -> dict[str, Any]:
        return raw_details(self._store, self.path, split_config=self._split_config)

    @property
    def ignored(self) -> str | None:
        """Number of members outside samples in all shards, by kind; None if there are none, or it isn't recorded."""
        return self._shards.members.ignored_text

    def shown(self) -> dict[str, Any]:
        samples = None if self._known_places is None else self._known_places.size
        return {"path": self.path, "split": self.split, "shards": len(self._chosen), "samples": samples}

    @property
    def unmatched_exclusions(self) -> list[str]:
        """Samples in the split's exclude list that don't exist, as `<shard>/<key>`."""
        return self._places.unmatched

    # --- inside --------------------------------------------------------------------------------------------------

    @property
    def _places(self) -> SplitPlaces:
        # Two threads may both get here. They find the same samples, and one copy is freed.
        if self._known_places is None:
            places = SplitPlaces(self._chosen, self._info.counts, self._left_out, self._place_in_shard)
            warn_of_unmatched(places.unmatched, meta_path(self.path, self._split_config or SPLIT_YAML))
            self._known_places = places
        return self._known_places

    def _sample(self, parsed: Parsed, shard: str, place: int) -> Sample:
        key, names, parts = parsed
        sample: Sample = {
            "__key__": key,
            "__restore_key__": (RESTORE_KIND, place),
            "__sources__": (SourceInfo(self.path, place, shard, names),),
            **parts,
            "__subflavors__": {},
        }
        if len(sample) != len(parts) + len(_ADDED):
            raise _takes_added_name(parts, self._shards.path(shard))
        columns = self._options.columns
        return sample if columns is None else {name: sample[name] for name in columns if name in sample}

    def _parsed(self, shard: str, place: int) -> Parsed:
        return parse(self._shards.read_range(shard, place))

    def _opened_index(self) -> SqliteIndex | None:
        if self._index is None:
            path = meta_path(self.path, SQLITE)
            if not self._store.exists(path):
                return None
            self._index = SqliteIndex(self._store, path)
        return self._index

    def _read_part(self, index: SqliteIndex, name: str, key: str, part: str) -> tuple[bytes, str]:
        found = index.find_part(key, part)
        if found is None:
            raise self._no_part(name)
        file_id, content_bytes, size_bytes = found
        if not 0 <= file_id < len(self._names):
            raise index.damaged(f"shard number {file_id} of {len(self._names)}")
        shard = self._names[file_id]
        return self._shards.read_content(shard, content_bytes, size_bytes), shard

    def _index_of_keys(self) -> SqliteIndex | None:
        """Return `index.sqlite` if keys are looked up in it; None avoids the download if there is `index.keys`."""
        if not self._store.is_local and self._keys.stored is not None:
            return None
        index = self._opened_index()
        return index if index is not None and "samples" in index.tables else None

    def _find_sample(self, key: str) -> tuple[str, int] | None:
        index = self._index_of_keys()
        if index is None:
            known = self._keys.find(key)
            return None if known is None else (self._names[known.shard], known.place)
        found = index.find_sample(key)
        if found is None:
            return None
        if not 0 <= found[0] < len(self._names) or not 0 <= found[1] < self._info.counts[self._names[found[0]]]:
            raise index.damaged(f"sample {found[1]} of shard number {found[0]}")
        return self._names[found[0]], found[1]

    def _place_in_shard(self, shard: str, key: str) -> int | None:
        """Return the place of an excluded sample in its shard; keys may repeat in other shards."""
        index, number = self._index_of_keys(), self._numbers[shard]
        if index is None:
            return self._keys.find_in(key, number)
        found = index.place_in_shard(key, number)
        return found if found is not None and 0 <= found < self._info.counts[shard] else None

    def _parts_at(self, place: KeyPlace, key: str) -> dict[str, bytes]:
        """Return the parts of a sample at the place from an index of keys, without opening the index of its shard."""
        path = self._shards.path(self._names[place.shard])
        start, stop = place.start_bytes, place.stop_bytes
        data = self._shards.get_ranges(path, [(start, stop)])[0]
        linked = self._shards.linked_contents(self._names[place.shard], place.place)
        found, _, parts = parse(Range(path, memoryview(data), start, start, stop, linked), first=True)
        if found != key:
            what = "the key index doesn't match the shard"
            raise Corrupt(what, path=path, offset_bytes=start, found=f"the key {found!r}", expected=repr(key))
        return parts

    def _no_part(self, name: str) -> NotFound:
        return NotFound(f"no part named {name!r}", path=self.path, hint="Names have the form KEY.PART")
