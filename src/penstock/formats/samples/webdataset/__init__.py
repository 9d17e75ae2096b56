"""WebDataset: samples in tar shards, with the metadata of Energon next to them.

| path | content |
|---|---|
| `**/*.tar` | shards: consecutive members `<key>.<part>` make one sample; see `samples`, `tar` |
| `<shard>.tar.idx` | offset of each sample; see `shards` |
| `.nv-meta/.info.json`, `.info.yaml` | shards and their numbers of samples; see `nvmeta` |
| `.nv-meta/split.yaml`, `split.json` | splits and their excluded samples |
| `.nv-meta/dataset.yaml` | the type of the samples |
| `.nv-meta/index.sqlite`, `index.uuid` | samples and parts by name, media metadata; see `sqlite_index`, `lookup` |
| `.nv-meta/index.keys` | Penstock's: samples by key, by small reads; see `key_index` |
| `.nv-meta/index.members` | Penstock's: parts that are links, and counts of ignored members; see `members` |
| `.nv-meta/.info.json.penstock` | Penstock's: the distributed job that replaced the previous metadata |

Limits: names up to 1 MiB; shards of any size. Checked against megatron-energon 7.4.1, and against output of 2.3 to 7.3.

Files: `tar` headers · `shards` the table of a shard · `braces`, `splits`, `nvmeta` the lists · `sqlite_index` writes
the index · `lookup` samples by key · `key_index` keys without that index · `open_shards`, `samples`, `source`, `typed`
reading.
"""

from __future__ import annotations

import dataclasses
import os

from penstock.abc import Source
from penstock.errors import ConfigError, Unsupported
from penstock.formats._folders import first_entries
from penstock.formats.samples.webdataset.check import check_webdataset
from penstock.formats.samples.webdataset.manifest import own_files, write_webdataset_manifest
from penstock.formats.samples.webdataset.nvmeta import DATASET_YAML, INFO_JSON, INFO_YAML, SHARD_SUFFIXES, meta_path
from penstock.formats.samples.webdataset.repair import repair_webdataset
from penstock.formats.samples.webdataset.source import open_raw
from penstock.formats.samples.webdataset.writer import create_webdataset, rehearse_webdataset
from penstock.store.base import Store
from penstock.types import OpenOptions, Sample, Sniff, Traits


def open_webdataset(store: Store, path: str, options: OpenOptions) -> Source[Sample]:
    """Open a prepared WebDataset, typed by its `dataset.yaml` or raw; reads only files of `.nv-meta`."""
    if options.raw:
        return open_raw(store, path, options)
    if not store.exists(meta_path(path, DATASET_YAML)):
        if options.decode is not None:
            what = "decode needs a dataset.yaml: without one, samples are stored bytes"
            raise ConfigError(what, path=path, hint=f"`penstock prepare {path}` creates one. Or decode in ps.Crude")
        return open_raw(store, path, options)
    # Slow to import, and rarely needed.
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


class _Webdataset:
    name = "webdataset"
    traits = Traits(
        write=True,
        keys=True,
        splits=True,
        remote=True,
        verify=True,
        repair=True,
        images=True,
        made_by="Megatron-Energon, webdataset",
    )

    def sniff(self, store: Store, path: str, /) -> Sniff:
        """Recognize a folder by the list of shards in `.nv-meta`, or by tars."""
        root = path.rstrip("/") or path
        for name in (INFO_JSON, INFO_YAML):
            if store.exists(meta_path(root, name)):
                return Sniff(True, f"it has Energon's {name}")
        if not store.is_folder(root):
            return Sniff(False, "no folder")
        far = store.first_names(root)
        shown = (name for name in far if not any(piece.startswith(".") for piece in name.split("/")))
        if any(name.endswith(SHARD_SUFFIXES) for name in shown) or (store.is_local and _holds_tars(store, root)):
            return Sniff(True, "a folder of tar shards, not prepared")
        return Sniff(False, f"no {INFO_JSON} from Energon, and no tar shards")

    open = staticmethod(open_webdataset)
    create = staticmethod(create_webdataset)
    own_files = staticmethod(own_files)
    rehearse = staticmethod(rehearse_webdataset)
    check = check_by_tasks = staticmethod(check_webdataset)
    task_depths = share_depths = ("full",)
    repair = staticmethod(repair_webdataset)
    write_manifest = staticmethod(write_webdataset_manifest)


def _holds_tars(store: Store, root: str) -> bool:
    """Return whether tars are among the first files of a folder, apart from folders in it that are datasets."""

    def enters(entry: os.DirEntry[str]) -> bool:
        return not entry.name.startswith(".") and not store.exists(meta_path(entry.path, INFO_JSON))

    return any(one.name.endswith(SHARD_SUFFIXES) and one.is_file() for one in first_entries(root, enters))


FORMAT = _Webdataset()
