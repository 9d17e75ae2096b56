"""Groups of shards → one dataset: their files get a second name in it, numbered through, under one index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import penstock
from penstock.formats.shards.index_json import INDEX_NAME, Shard, ShardFile, encode_index
from penstock.formats.shards.side import SIDE_NAME, with_fingerprint
from penstock.formats.shards.source import own_files, read_index
from penstock.store.local import LocalStaged, LocalStore
from penstock.store.outputs import open_folder
from penstock.store.place import Place
from penstock.store.powers import StagedFolder
from penstock.store.put import aborting
from penstock.store.side_file import EDGE_BYTES, edge_binding, encode_manifest, load_manifest
from penstock.types import Manifest


def assemble(
    groups: Sequence[Place],
    target: Place,
    *,
    name: str,
    recorded: Mapping[str, Any],
    overwrite: bool,
) -> Manifest:
    """Make one dataset of finished ones, in their order; they stay as they are.

    No byte is copied where the file system knows second names. Memory: the indexes.

    Args:
        groups: folders of shards, each with its index and side file, on this machine as the target.
        target: the folder of the dataset.
        name: of the format.
        recorded: fields of the side file that tell of the source, such as `eos_id` and `options`.
        overwrite: replace what is there.

    Raises:
        ConfigError: the target exists.
    """
    store = cast(LocalStore, target.store)
    folder = open_folder(store, target.path, partial(own_files, store), overwrite=overwrite, held=(INDEX_NAME,))
    try:
        index = folder.stage(INDEX_NAME)
        hidden = Place(store, cast(LocalStaged, index).hidden_path).folder()
        shards: list[Shard] = []
        digests: dict[str, tuple[str, ...]] = {}
        for number, group in enumerate(groups):
            known = load_manifest(store, group.child(SIDE_NAME).path, to_write=True)
            for shard in read_index(store, group.path).shards:
                if shard.samples or not number:  # the original's empty first shard, in the first group alone
                    moved, names = _renamed(shard, len(shards))
                    for before, after in names.items():
                        if _give(folder, group.child(before), hidden.child(after)):
                            digests[after] = known.block_digests[before] if known is not None else ()
                    shards.append(moved)
        data = encode_index(shards)
        manifest = Manifest(
            format=name,
            num_samples=sum(shard.samples for shard in shards),
            size_bytes=sum(store.size(hidden.child(file).path) for file in digests) + len(data),
            block_digests=digests,
            binding=edge_binding(len(data), data[:EDGE_BYTES], data[-EDGE_BYTES:]),
            tool=f"penstock {penstock.__version__}",
            **recorded,
        )
        manifest = with_fingerprint(manifest, folder, data, shards)
        side = folder.stage(SIDE_NAME)
        for staged, content in ((side, encode_manifest(manifest)), (index, data)):
            staged.write(content)
            staged.commit()
        folder.commit()
    except BaseException:
        folder.abort()
        raise
    return manifest


def _renamed(shard: Shard, number: int) -> tuple[Shard, dict[str, str]]:
    """A shard under another number, and the old and new names of its files."""
    stem = f"shard.{number:05d}.{shard.layout.format}"
    family = (shard.layout.compression or "").partition(":")[0]
    files: list[ShardFile | None] = []
    names: dict[str, str] = {}
    ends = (("", shard.raw_data), (f".{family}", shard.zip_data))
    ends += ((".meta", shard.raw_meta), (f".meta.{family}", shard.zip_meta))
    for end, one in ends:
        files.append(one and ShardFile(f"{stem}{end}", one.size_bytes, one.hashes))
        if one is not None:
            names[one.basename] = f"{stem}{end}"
    return Shard(shard.layout, shard.samples, files[0] or shard.raw_data, *files[1:]), names


def _give(folder: StagedFolder, file: Place, hidden: Place) -> bool:
    """Put a file into the folder; False where there is none, as for the raw one of a compressed shard."""
    if not file.exists():
        return False
    if cast(LocalStore, file.store).link(file.path, hidden.path):
        return True
    with aborting(folder.stage(hidden.name)) as staged:
        staged.append_file(file.path)
        staged.commit()
    return True
