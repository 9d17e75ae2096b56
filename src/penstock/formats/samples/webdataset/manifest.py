"""Side file of a WebDataset, `.penstock` in its folder, and its comparison with the shards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Literal

import penstock
from penstock._digest import digest
from penstock.errors import NotFound
from penstock.formats._manifest import file_digests
from penstock.formats._proof import require_fitting, require_none, require_size
from penstock.formats.samples.webdataset.key_index import KEYS
from penstock.formats.samples.webdataset.nvmeta import (
    DATASET_YAML,
    DONE,
    FOLDER,
    INFO_JSON,
    INFO_YAML,
    MEMBERS,
    SPLIT_JSON,
    SPLIT_YAML,
    SQLITE,
    UUID,
    document,
    meta_path,
    read_info,
    read_splits,
    read_uuid,
    split_shards,
)
from penstock.formats.samples.webdataset.shards import index_path
from penstock.store.base import Readable, Store
from penstock.store.fingerprint import sample_fingerprint
from penstock.store.side_file import REPLACE, Facts, file_binding, fitting_manifest, replace_side_file
from penstock.types import Finding, Manifest, OpenOptions

SIDE_NAME = ".penstock"
_WRITER_OPTIONS = {"maxcount", "maxsize", "pattern"}
_RESTORE_FILE = f"Restore it, or create it with `penstock prepare`; if it was removed on purpose, {REPLACE}"


def side_path(root: str) -> str:
    return f"{root.rstrip('/')}/{SIDE_NAME}"


def dataset_binding(counts: Mapping[str, int], bindings: Sequence[str]) -> str:
    """Return a short digest of the list of shards, and of the bindings of the first and the last one."""
    return digest(list(counts.items()), list(bindings))


def webdataset_facts(store: Store, root: str, counts: Mapping[str, int]) -> Facts:
    """Return the properties to compare with a side file: the list of shards, and the edges of two of them.

    Raises:
        NotFound: one of the two shards doesn't exist.
    """
    names = list(counts)
    bindings = [file_binding(store, f"{root}/{name}") for name in (*names[:1], *names[-1:])]
    return Facts("webdataset", dataset_binding(counts, bindings), num_samples=sum(counts.values()))


def missing_files(store: Store, root: str, manifest: Manifest) -> list[str]:
    """Return the files of `.nv-meta` that are missing although the side file implies them.

    Our writer, which records its options, makes them all; fingerprints of several splits imply a list of these.
    """
    written = manifest.options.keys() >= _WRITER_OPTIONS
    implied = [(SPLIT_YAML, written or len(manifest.fingerprints) > 1), (DATASET_YAML, written), (SQLITE, written)]
    implied.append((UUID, written or bool(manifest.fingerprints)))
    missing = [name for name, is_implied in implied if is_implied and not store.exists(meta_path(root, name))]
    if SPLIT_YAML in missing and store.exists(meta_path(root, SPLIT_JSON)):
        missing.remove(SPLIT_YAML)
    return missing


def require_as_recorded(store: Store, root: str, counts: Mapping[str, int]) -> None:
    """Raise `Corrupt` if the shards, in number, samples or size, aren't those of the dataset's side file.

    So does a lost list of splits, without which all of them would be copied as one, and a lost sample type.
    If some shards aren't on this machine, such as those of other splits, only the local ones are compared.
    """
    facts = partial(webdataset_facts, store, root, counts)
    with contextlib.suppress(NotFound):
        manifest = require_fitting("webdataset", store, root, side_path(root), facts)
        if manifest is not None and manifest.block_digests.keys() == counts.keys():
            require_size("webdataset", store, root, manifest, list(counts))
        lost = [] if manifest is None else missing_files(store, root, manifest)
        require_none(missing_file(root, name) for name in lost if name in (SPLIT_YAML, DATASET_YAML))


def missing_file(root: str, name: str) -> Finding:
    """Return the finding for one of `missing_files`; without `index.sqlite` samples are only found more slowly."""
    severity: Literal["error", "warning"] = "warning" if name == SQLITE else "error"
    what = "a file recorded in the side file is missing"
    return Finding("webdataset.missing-file", severity, meta_path(root, name), None, what, None, _RESTORE_FILE)


def shards_digest(counts: Mapping[str, int], chosen: Sequence[str], left_out: Mapping[str, Sequence[str]]) -> str:
    """Return a digest of the selected data: shards with their counts, and keys of their excluded samples."""
    return digest([[name, counts[name]] for name in chosen], {name: sorted(keys) for name, keys in left_out.items()})


def recorded_as(index: str, uuid: str) -> str:
    """Return the key in a side file of the fingerprint of shards with this digest, valid for one `index.uuid`."""
    return f"{index} {uuid}"


def split_fingerprints(
    files: Readable,
    counts: Mapping[str, int],
    splits: Iterable[tuple[Sequence[str], Mapping[str, Sequence[str]]]],
    uuid: str,
    folder: str = "",
) -> dict[str, str]:
    """Return the fingerprint of all shards, and of each nonempty split, for a side file.

    Args:
        files: the store of the shards, with staged ones by their names.
        counts: number of samples of each shard.
        splits: shards of each split, and the keys of their excluded samples.
        uuid: UUID of the dataset.
        folder: folder of the shards, with `/`.
    """
    found: dict[str, str] = {}
    for chosen, left_out in ((list(counts), {}), *splits):
        index = shards_digest(counts, chosen, left_out)
        name = recorded_as(index, uuid)
        if chosen and name not in found:
            places = [(name, folder + name) for name in dict.fromkeys(chosen)]
            found[name] = sample_fingerprint(files, "webdataset", index.encode(), places)
    return found


def manifest_of_tars(store: Store, root: str) -> Manifest | None:
    return fitting_manifest(
        store, side_path(root), lambda: webdataset_facts(store, root, read_info(store, root).counts)
    )


def own_files(store: Store, root: str) -> list[str]:
    """Return the paths of all files of a prepared dataset; the list of shards last. Raises errors of `read_info`."""
    shards = [name for shard in read_info(store, root).counts for name in (index_path(shard), shard)]
    names = [
        UUID,
        SQLITE,
        KEYS,
        MEMBERS,
        f"{SQLITE}{SIDE_NAME}",
        DONE,
        SPLIT_YAML,
        SPLIT_JSON,
        DATASET_YAML,
        *_code_files(store, root),
    ]
    return [*shards, SIDE_NAME, *(f"{FOLDER}/{name}" for name in (*names, INFO_YAML, INFO_JSON))]


def _code_files(store: Store, root: str) -> list[str]:
    path = meta_path(root, DATASET_YAML)
    found = document(store, path) if store.exists(path) else None
    values = [found.get(name) for name in ("sample_loader", "part_filter")] if isinstance(found, dict) else []
    files = [value.partition(":")[0] for value in values if isinstance(value, str)]
    return [name for name in files if name.endswith(".py") and "/" not in name]


def write_webdataset_manifest(store: Store, path: str, options: OpenOptions, *, replace: bool = False) -> str:
    """Digest all shards of a dataset, and write the side file; return its path.

    Raises:
        FormatError: the dataset isn't prepared; or the existing side file differs, and `replace` is false.
    """
    root = path.rstrip("/") or path
    info, splits = read_info(store, root), read_splits(store, root)
    counts = info.counts
    chosen = [split_shards(info, splits, name, root) for name in splits.parts]
    uuid = read_uuid(store, root) if store.exists(meta_path(root, UUID)) else ""
    manifest = Manifest(
        format="webdataset",
        num_samples=sum(counts.values()),
        size_bytes=sum(store.size(f"{root}/{name}") for name in counts),
        block_digests={name: file_digests(store, f"{root}/{name}") for name in counts},
        binding=webdataset_facts(store, root, counts).binding,
        fingerprints=split_fingerprints(store, counts, chosen, uuid, f"{root}/") if uuid else {},
        tool=f"penstock {penstock.__version__}",
    )
    replace_side_file(store, side_path(root), manifest, replace=replace)
    return side_path(root)
