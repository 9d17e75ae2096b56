"""Opening of one dataset that a metadataset or a recipe names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.abc import Source
from penstock.errors import ConfigError, NotFound, Unsupported
from penstock.formats import get_format, open_source, sniff
from penstock.formats._excluded import require_no_exclusions
from penstock.formats._exclusions import stored
from penstock.formats._opening import open_at, without_excluded
from penstock.formats.samples.webdataset.dataset_yaml import read_dataset_yaml, splits_of, typed_view
from penstock.formats.samples.webdataset.nvmeta import (
    DATASET_YAML,
    INFO_JSON,
    INFO_YAML,
    meta_path,
    named_splits,
    read_splits,
)
from penstock.formats.samples.webdataset.sample_types import SampleType
from penstock.formats.samples.webdataset.source import open_raw
from penstock.formats.samples.webdataset.typed import TypedSource
from penstock.mix.subset import Chosen, part_of
from penstock.store.place import Place, dataset_at, place_of
from penstock.types import OpenOptions, Sample

JSONL = (".jsonl", ".ndjson")

SampleTypes = Mapping[str, SampleType]
"""`module.Class` → sample type that a YAML file may name."""


def open_leaf(
    path: str,
    split: str | None,
    *,
    dataset_config: str | None = None,
    split_config: str | None = None,
    sample_types: SampleTypes | None = None,
    options: OpenOptions | None = None,
) -> Source[Sample]:
    """Open a WebDataset, or a JSONL file by Energon's rules.

    Args:
        path: directory, file or URL.
        split: split of a WebDataset, unless its `dataset.yaml` has another one, as in Energon; a JSONL file has none.
        dataset_config: file in `.nv-meta` that replaces `dataset.yaml`.
        split_config: file in `.nv-meta` that replaces `split.yaml`.
        sample_types: types that its `dataset.yaml` may name.
        options: all other options of opening.

    Raises:
        NotFound: the dataset, or a file in `.nv-meta`, doesn't exist.
        FormatError: the data has another format, or wasn't prepared.
        ConfigError: the split doesn't exist.
    """
    options = OpenOptions() if options is None else options
    place = dataset_at(path, follow_links=options.follow_links)
    store, root = place.store, place.path
    if path.endswith(JSONL):
        return open_at(get_format("jsonl"), store, root, replace(options, split=None, flavor="energon"))
    options = replace(options, split=split)
    if other := _other_format(place):
        raise Unsupported(
            "not a prepared WebDataset",
            path=path,
            found=other,
            expected="a prepared WebDataset, or a JSONL file",
            hint="A metadataset can only contain these, and folders (filesystem://…) as aux. "
            "Recipes can mix other formats: docs/guide/recipes.md",
        )
    splits = None if split_config is None else named_splits(store, root, split_config)
    if options.raw or not (dataset_config or store.exists(meta_path(root, DATASET_YAML))):
        made = open_raw(store, root, options, splits)
    else:
        name = dataset_config or DATASET_YAML
        said = read_dataset_yaml(store, root, name)
        splits = splits_of(store, root, said) if splits is None else splits
        options = replace(options, split=said.split_part or split)
        raw = open_raw(store, root, replace(options, columns=None), splits)
        given: dict[str, Any] = {"dataset_config": name, "sample_types": sample_types, "found": said}
        made = typed_view(raw, store, raw.path, options, **given)
    chosen = get_format("webdataset")
    if splits is None:
        return without_excluded(chosen, store, root, options, made)
    require_no_exclusions(store, root)
    return made


def said_part(source: Source[Any]) -> Source[Any] | None:
    """Return the part of a dataset that its `dataset.yaml` selects; None if it selects none.

    Raises:
        ConfigError: the part isn't inside the split.
    """
    typed = stored(source)
    said = typed.subset if isinstance(typed, TypedSource) else None
    if said is None:
        return None
    try:
        return part_of(Chosen(source, said.start, said.stop, said.ratio))
    except ConfigError as error:
        error.path = error.path or typed.path
        raise


def open_aux(path: str, is_folder: bool, *, follow_links: bool = False) -> Source[Sample]:
    """Open a store of files by name: a directory or a prepared WebDataset.

    Raises:
        Unsupported: a JSONL file, which contains no files.
        NotFound: the path doesn't exist.
        FormatError: the directory wasn't prepared.
    """
    if is_folder:
        if not place_of(path).is_folder():
            raise NotFound("no such folder", path=path, hint="Check the path")
        return open_source(path, format="folder", raw=True, follow_links=follow_links)
    if path.endswith(JSONL):
        hint = "Use a prepared WebDataset, or a folder of files: filesystem://FOLDER"
        raise Unsupported("a JSONL file can't be an auxiliary dataset: it contains no files", path=path, hint=hint)
    # Files are found in all splits: the split only selects samples.
    place = dataset_at(path, follow_links=follow_links)
    parts = list(read_splits(place.store, place.path).parts)
    split = "train" if "train" in parts or not parts else parts[0]
    return open_leaf(path, split if parts else None, options=OpenOptions(raw=True, follow_links=follow_links))


def is_crude(source: Any) -> bool:
    """Return whether a dataset's samples are parts, to be cooked, rather than of a type."""
    typed = stored(source)
    return not isinstance(typed, TypedSource) or typed.sample_type is None


def format_of(path: str) -> str:
    """Return the sniffed name of the format of the data at `path`."""
    place = place_of(path)
    return sniff(place.store, place.path).name


def _other_format(place: Place) -> str | None:
    """Return the format of the data if it is surely not a WebDataset, prepared or not."""
    store, root = place.store, place.path
    if any(store.exists(meta_path(root, name)) for name in (INFO_JSON, INFO_YAML)) or not store.exists(root):
        return None
    try:
        name = sniff(store, root).name
    except Unsupported:
        return None if store.is_folder(root) else "a file"
    return None if name in ("webdataset", "folder") else f"the format {name!r}"
