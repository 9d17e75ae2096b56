"""Shards, splits and metadata files of a dataset of tars, planned before a shard is opened."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.codec import energon_yaml
from penstock.errors import ConfigError, NotFound
from penstock.formats.samples.webdataset.find import PeekedSample, find_readable_shards, peek
from penstock.formats.samples.webdataset.key_index import KEYS
from penstock.formats.samples.webdataset.nvmeta import (
    DATASET_YAML,
    INFO_JSON,
    INFO_YAML,
    MEMBERS,
    SPLIT_YAML,
    SQLITE,
    UUID,
    encode_splits,
    meta_path,
    read_info,
    read_splits,
    split_shards,
)
from penstock.formats.samples.webdataset.sample_types import TYPES
from penstock.formats.samples.webdataset.splits import Assignment, by_patterns, by_ratio
from penstock.prepare.media.rows import ShardMedia
from penstock.store.fingerprint import FileState, states_of
from penstock.store.object_folder import require_finished
from penstock.store.place import Given, Place, dataset_at

MADE = (SQLITE, KEYS, MEMBERS, UUID, SPLIT_YAML, DATASET_YAML, INFO_YAML, INFO_JSON)
MOST_SHARDS = 10_000
COMPRESSED_HINT = "Unpack it, or skip it with exclude (--exclude)"
_TINY_BYTES = 16 << 20
_MANY_SHARDS = 100
_MODULES = {"VQAOCRSample": "megatron.energon.flavors.vqa_and_ocr"}
_CRUDE = "CrudeWebdataset"


@dataclass(frozen=True, slots=True)
class EnergonPlan:
    """A dataset to be prepared.

    Attributes:
        dataset: its directory.
        shards: their paths in it, in the order of their numbers.
        states: sizes and times of change, or versions, of the shards.
        is_prepared: whether a list of shards exists.
        has_splits, has_dataset: whether a `split.yaml`, a `dataset.yaml` exists.
        warnings: warnings about the shards.
    """

    dataset: Place
    shards: tuple[str, ...]
    states: tuple[FileState, ...]
    is_prepared: bool
    has_splits: bool
    has_dataset: bool
    warnings: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        return self.dataset.path

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(state.size_bytes for state in self.states)

    def meta_file(self, name: str) -> Place:
        return Place(self.dataset.store, meta_path(self.path, name))


@dataclass(frozen=True, slots=True)
class DatasetOptions:
    """Content of `dataset.yaml`; by default the file stays as it is.

    Attributes:
        name: name of the file.
        sample_type: class name of a sample type of Energon, or `CrudeWebdataset`.
        field_map: field → part.
        subflavors: values added to each sample.
        sample_loader: text of a `sample_loader.py`, instead of a field map; an existing file stays.
        value: the whole content, instead of all others.
    """

    name: str = DATASET_YAML
    sample_type: str | None = None
    field_map: Mapping[str, str] | None = None
    subflavors: Mapping[str, Any] | None = None
    sample_loader: str | None = None
    value: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class MetadataOptions:
    split_ratio: Mapping[str, float] | Sequence[float] | str | None
    split_parts: Mapping[str, str] | Sequence[tuple[str, str]] | None
    exclude: str | None
    dataset: DatasetOptions | None
    shuffle_tars: bool
    tar_index_only: bool
    sqlite: bool
    media: ShardMedia | None

    def recorded(self) -> dict[str, Any]:
        """Return the options as plain JSON, by their names on the command line."""
        media = self.media and [self.media.filter.strategy, self.media.filter.patterns, self.media.depth]
        always = {"--no-sqlite": not self.sqlite, "--media-metadata": media}
        if self.tar_index_only:
            return {"--tar-index-only": True, "--overwrite": True, **always}
        options = {
            "--split-ratio": self.split_ratio,
            "--split-parts": self.split_parts,
            "--exclude": self.exclude,
            "--shuffle-tars": self.shuffle_tars,
            "dataset.yaml": self.dataset,
            **always,
        }
        return msgspec.json.decode(msgspec.json.encode(options))


@dataclass(frozen=True, slots=True)
class MetaFiles:
    """Files of `.nv-meta` that a user may edit, name → content, and their splits."""

    files: dict[str, bytes]
    assignment: Assignment | None = None
    warnings: list[str] = field(default_factory=list[str])


def plan_webdataset(path: Given, *, exclude: str | None = None, follow_links: bool = False) -> EnergonPlan:
    """List the shards of a directory without opening them; arguments as of `prepare_webdataset`.

    Raises:
        NotFound: the directory doesn't exist, or contains no shards.
        Unsupported: a shard is compressed.
        ConfigError: `exclude` isn't a regular expression.
    """
    return plan_in(dataset_at(path, follow_links=follow_links).bare(), exclude)


def plan_in(dataset: Place, exclude: str | None = None) -> EnergonPlan:
    store, root = dataset.store, dataset.path
    require_finished(store, meta_path(root, INFO_JSON))
    try:
        left_out = None if exclude is None else re.compile(exclude)
    except re.error as error:
        raise ConfigError("exclude is not a valid regular expression", found=f"{exclude}: {error}") from None
    found = find_readable_shards(store, root, exclude=left_out, hint=COMPRESSED_HINT)
    shards = found.names
    states = tuple(states_of(dataset.child(name) for name in shards))
    exists = {name: store.exists(meta_path(root, name)) for name in (INFO_JSON, INFO_YAML, SPLIT_YAML, DATASET_YAML)}
    return EnergonPlan(
        dataset,
        tuple(shards),
        states,
        exists[INFO_JSON] or exists[INFO_YAML],
        exists[SPLIT_YAML],
        exists[DATASET_YAML],
        (*found.warnings, *_oddities([state.size_bytes for state in states])),
    )


def require_room(folder: Place) -> None:
    """Raise `ConfigError` or `UnsafeData` if anything but files is in the place of the metadata."""
    if not folder.store.stages_folders:
        return  # objects are files
    meta = Place(folder.store, meta_path(folder.path, UUID).rpartition("/")[0])
    if meta.exists() and not meta.is_folder():
        raise ConfigError("a file is in the way of the metadata folder", path=meta.path, hint="Move it away")
    for name in MADE:
        file = Place(folder.store, meta_path(folder.path, name))
        if file.is_folder():
            raise ConfigError("a folder is in the way of a file", path=file.path, hint="Move it away")
        try:
            file.store.get(file.path, 0, 1)  # raises if it can't be read, or is behind a link out of the directory
        except NotFound:
            if file.exists():  # a link that leads nowhere
                raise


def _oddities(sizes: Sequence[int]) -> list[str]:
    count, mean_bytes = len(sizes), sum(sizes) // max(1, len(sizes))
    hint = "merge them (`penstock merge`), because loading is faster with fewer, larger shards"
    found: list[str] = []
    if count > MOST_SHARDS:
        found.append(f"{count:,} shards, more than {MOST_SHARDS:,}: {hint}")
    if count > _MANY_SHARDS and mean_bytes < _TINY_BYTES:
        found.append(f"{count:,} shards of {mean_bytes / (1 << 20):.1f} MiB on average are very small: {hint}")
    return found


def peek_webdataset(
    path: Given,
    shards: Sequence[str] | None = None,
    *,
    samples: int = 2,
    follow_links: bool = False,
) -> list[PeekedSample]:
    """Return the first samples of shards: keys, and the names, sizes and first bytes of their parts.

    Args:
        path: the directory.
        shards: paths of its shards; by default all.
        samples: number of samples.
        follow_links: allow links that lead out of the directory.

    Raises:
        FormatError: a shard is damaged.
    """
    dataset = dataset_at(path, follow_links=follow_links)
    found = find_readable_shards(dataset.store, dataset.path, hint=COMPRESSED_HINT).names if shards is None else shards
    return peek(dataset.store, dataset.path, found, samples)


# --- the files that users edit -----------------------------------------------------------------------------------


def plan_meta(plan: EnergonPlan, metadata: MetadataOptions, *, overwrite: bool) -> MetaFiles:
    """Return the contents of `split.yaml` and `dataset.yaml`.

    Raises:
        ConfigError: options are invalid, or a user's file would be replaced without `overwrite`.
    """
    split_ratio, split_parts = metadata.split_ratio, metadata.split_parts
    if split_ratio is not None and split_parts is not None:
        raise ConfigError(
            "splits can be set by a ratio or by patterns, not both", expected="split_ratio or split_parts"
        )
    files: dict[str, bytes] = {}
    warnings: list[str] = []
    assignment: Assignment | None = None
    if split_ratio is not None:
        assignment = by_ratio(plan.shards, split_ratio, shuffle=metadata.shuffle_tars)
    elif split_parts is not None:
        pairs = list(split_parts.items()) if isinstance(split_parts, Mapping) else list(split_parts)
        assignment = by_patterns(plan.shards, pairs)
    elif not plan.has_splits:
        raise ConfigError("the splits are not specified", path=plan.path, hint="Pass split_ratio or split_parts")
    else:
        _require_known(plan)
    if assignment is not None:
        files[SPLIT_YAML] = encode_splits(assignment.parts)
        warnings += _split_warnings(plan, assignment, by_ratio=split_ratio is not None)
    files |= _dataset_files(plan.dataset, metadata.dataset or DatasetOptions())
    store = plan.dataset.store
    for name, content in files.items():
        path = meta_path(plan.path, name)
        if not overwrite and store.exists(path) and store.get(path) != content:
            raise ConfigError(
                "the file already exists with different content", path=path,
                hint="Pass overwrite (--overwrite) to replace it, or omit the options that write it",
            )  # fmt: skip
    return MetaFiles(files, assignment, warnings)


def _require_known(plan: EnergonPlan) -> None:
    store = plan.dataset.store
    splits = read_splits(store, plan.path)
    if not plan.is_prepared:
        return
    info, existing = read_info(store, plan.path), set(plan.shards)
    for split in splits.parts:
        shards, _ = split_shards(info, splits, split, plan.path)
        gone = next((name for name in shards if name not in existing), None)
        if gone is not None:
            raise ConfigError(
                f"the split {split!r} lists a shard that doesn't exist", path=meta_path(plan.path, SPLIT_YAML),
                found=gone, hint="Fix the list, or pass split_ratio or split_parts to rebuild it",
            )  # fmt: skip


def _split_warnings(plan: EnergonPlan, assignment: Assignment, *, by_ratio: bool) -> list[str]:
    found: list[str] = []
    if assignment.lost:
        names = ", ".join(assignment.lost[:3])
        found.append(
            f"Energon's rounding would leave {len(assignment.lost)} of {len(plan.shards)} shards out of every split "
            f"({names}); Penstock assigns each shard to a split"
        )
    assigned = [name for shards in assignment.parts.values() for name in shards]
    if len(set(assigned)) < len(plan.shards):
        found.append(f"{len(plan.shards) - len(set(assigned))} shards are in no split")
    if len(set(assigned)) < len(assigned):
        found.append(f"{len(assigned) - len(set(assigned))} shards are in several splits")
    empty = [split for split, shards in assignment.parts.items() if not shards and split not in assignment.unasked]
    few = ". Write more shards with `penstock convert … -O maxcount=N`" if by_ratio else ""
    return found + [f"the split {split!r} has no shards{few}" for split in empty]


def _dataset_files(dataset: Place, given: DatasetOptions) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    value = None if given.value is None else dict(given.value)
    if value is None and given.sample_type is not None:
        value = _dataset_value(given)
    if value is None:
        if given.field_map is not None or given.subflavors is not None:
            raise ConfigError("a field map needs a sample type", hint="Pass sample_type (--sample-type)")
        return files
    loader = "sample_loader.py"
    if given.sample_loader is not None and not dataset.store.exists(meta_path(dataset.path, loader)):
        files[loader] = given.sample_loader.encode()
    if not given.name.endswith(".yaml") or "/" in given.name:
        raise ConfigError("not a valid name for a dataset.yaml", found=given.name, expected="a name that ends in .yaml")
    return files | {given.name: energon_yaml.dump(value).encode()}


def _dataset_value(given: DatasetOptions) -> dict[str, Any]:
    name = str(given.sample_type)
    more = {} if given.subflavors is None else {"subflavors": dict(given.subflavors)}
    if name == _CRUDE:
        if given.field_map is not None or given.sample_loader is not None:
            raise ConfigError("crude samples can't have a field map or sample loader", found=name)
        return {"__module__": "megatron.energon", "__class__": _CRUDE, **more}
    kind = {"__module__": _MODULES.get(name, "megatron.energon"), "__class__": name}
    value: dict[str, Any] = {"sample_type": kind}
    if given.field_map is not None:
        needs_field = name not in TYPES or bool(TYPES[name].required)
        if given.sample_loader is not None or (needs_field and not given.field_map):
            raise ConfigError(
                "a sample type needs either a field map or a sample loader", found=f"{dict(given.field_map)}"
            )
        return {**value, "field_map": dict(given.field_map), **more}
    if given.sample_loader is None:
        raise ConfigError(f"the fields of {name} are not specified", hint="Pass field_map (--field-map)")
    loader = {"sample_loader": "sample_loader.py:sample_loader", "part_filter": "sample_loader.py:part_filter"}
    return {**value, **loader, **more}
