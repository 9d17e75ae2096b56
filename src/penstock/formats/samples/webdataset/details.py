"""Details of a prepared WebDataset beyond counts: shards, splits, the type of its samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.codec import energon_yaml
from penstock.errors import PenstockError
from penstock.formats.samples.webdataset.members import read_members
from penstock.formats.samples.webdataset.nvmeta import (
    DATASET_YAML,
    SPLIT_YAML,
    SQLITE,
    Info,
    Splits,
    meta_path,
    read_info,
    read_splits,
    split_shards,
    unmatched_shards,
    unmatched_text,
)
from penstock.store.base import Store

SamplesOf = Callable[[Info, str, Sequence[str], Mapping[str, Sequence[str]]], int]
"""Counts of all shards, a split, its shards, and what it leaves out of each → its samples: what is excluded is none."""

_OLD_SUFFIX = "Webdataset"


def dataset_details(
    store: Store,
    root: str,
    samples_of: SamplesOf,
    *,
    split_config: str | None = None,
    dataset_config: str = DATASET_YAML,
) -> dict[str, Any]:
    """What `.nv-meta` says, as plain JSON values: what `info` shows besides.

    Args:
        store: where it is.
        root: the dataset's folder.
        samples_of: how many samples a split has when it is open; see `SamplesOf`.
        split_config: file of splits, instead of the first that is there.
        dataset_config: file that says what samples are.

    Raises:
        FormatError: it can't be read.
    """
    info = read_info(store, root)
    splits = read_splits(store, root) if split_config is None else read_splits(store, root, (split_config,))
    told = {name: _samples(info, splits, name, root, samples_of) for name in splits.parts}
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


def _samples(info: Info, splits: Splits, name: str, root: str, samples_of: SamplesOf) -> tuple[int, str]:
    try:
        shards, left_out = split_shards(info, splits, name, root)
        samples = samples_of(info, name, shards, left_out)
    except PenstockError as error:
        return 0, f"can't be opened: {error.found or error.what}"
    gone = sum(info.counts[one] for one in shards) - samples
    more = f", {gone:,} more excluded in {splits.name or SPLIT_YAML}" if gone else ""
    return samples, f"{samples:,} samples, {len(shards):,} shard{'' if len(shards) == 1 else 's'}{more}"


def _exclude_text(root: str, splits: Splits, info: Info) -> str:
    if not splits.exclude:
        return "nothing"
    unmatched = unmatched_shards(splits, info, root)  # of keys, opening the splits warns
    return f"{len(splits.exclude)} entries" + (f"; {unmatched_text(unmatched)}" if unmatched else "")


def read_field_map(store: Store, root: str) -> dict[str, str]:
    """Return field → stored parts, as the `dataset.yaml` of a folder maps them; empty without a field map."""
    path = meta_path(root, DATASET_YAML)
    try:
        value = energon_yaml.load(store.get(path), path)
    except PenstockError:
        return {}
    fields = value.get("field_map") if isinstance(value, dict) else None
    return {str(field): str(part) for field, part in fields.items()} if isinstance(fields, dict) else {}


def read_sample_type(store: Store, path: str) -> str:
    """The type that a `dataset.yaml` names, without opening anything that it names."""
    if not store.exists(path):
        return f"unknown: no {path.rpartition('/')[2]}"
    try:
        value = energon_yaml.load(store.get(path), path)
    except PenstockError as error:
        return f"can't be read: {error.what}"
    value = value if isinstance(value, dict) else {}
    named = value.get("sample_type")
    name = named.get("__class__") if isinstance(named, dict) else value.get("__class__")
    name = str(name or "unknown")
    if name.endswith(_OLD_SUFFIX) and name != f"Crude{_OLD_SUFFIX}":
        name = f"{name.removesuffix(_OLD_SUFFIX)}Sample"
    fields = value.get("field_map")
    if isinstance(fields, dict):
        name += " of " + ", ".join(f"{field}: {place}" for field, place in fields.items())
    elif value.get("sample_loader"):
        name += f" by {value['sample_loader']}"
    return name
