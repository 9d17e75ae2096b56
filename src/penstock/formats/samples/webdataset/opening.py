"""Opening a prepared WebDataset: raw, or as its `dataset.yaml` says."""

from __future__ import annotations

import dataclasses

from penstock.abc import Source
from penstock.errors import ConfigError, Unsupported
from penstock.formats.samples.webdataset.nvmeta import DATASET_YAML, meta_path
from penstock.formats.samples.webdataset.source import open_raw
from penstock.store.base import Store
from penstock.types import OpenOptions, Sample


def open_webdataset(store: Store, path: str, options: OpenOptions) -> Source[Sample]:
    """Open a prepared WebDataset; reads what is in `.nv-meta` alone.

    Where it has a `dataset.yaml`, samples are as that says, and with `raw` the stored bytes.

    Raises:
        NotFound: nothing is there.
        Unsupported: it was not prepared, or is no folder of tar shards.
        FormatError: what is in `.nv-meta` contradicts itself.
        ConfigError: no such split.
    """
    if options.raw:
        return open_raw(store, path, options)
    if not store.exists(meta_path(path, DATASET_YAML)):
        if options.decode is not None:
            what = "decode needs a dataset.yaml: without one, samples are stored bytes"
            raise ConfigError(what, path=path, hint=f"`penstock prepare {path}` creates one. Or decode in ps.Crude")
        return open_raw(store, path, options)
    # Slow, and not for all.
    from penstock.formats.samples.webdataset.dataset_yaml import read_dataset_yaml, splits_of, typed_view

    said = read_dataset_yaml(store, path)
    if said.subset is not None:
        hint = "Read it with a `metadataset` node in a recipe, or with get_train_dataset"
        raise Unsupported("dataset.yaml sets the part of the split to read", path=said.path, found="subset", hint=hint)
    if said.split_part is not None and options.split not in (None, said.split_part):
        hint = "Use that split, or remove the key"
        found = f"split_part: {said.split_part}"
        raise Unsupported(
            "dataset.yaml sets a different split", path=said.path, found=found, expected=options.split, hint=hint
        )
    options = dataclasses.replace(options, split=said.split_part or options.split)
    raw = open_raw(store, path, dataclasses.replace(options, columns=None), splits_of(store, path, said))
    return typed_view(raw, store, raw.path, options, found=said)
