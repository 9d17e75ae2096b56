"""Many folders of shards as one dataset: by one index over shards that stay where they are, or by a copy of them."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import penstock
from penstock.abc import Store
from penstock.codec.hashes import BlockHasher
from penstock.errors import ConfigError, Corrupt, NotFound, Truncated
from penstock.formats.shards.files import Folder
from penstock.formats.shards.index_json import (
    INDEX_NAME,
    Layout,
    Shard,
    ShardFile,
    below,
    encode_index,
    encode_merged,
    parse_index,
)
from penstock.formats.shards.names import numeric_order
from penstock.formats.shards.output import Output, open_output
from penstock.formats.shards.side import SIDE_NAME
from penstock.formats.shards.source import folder_of, read_index
from penstock.store._sweep import sweep_output
from penstock.store.local import output_exists
from penstock.store.outputs import claim, require_file_or_none
from penstock.store.put import put
from penstock.store.resolve import resolve, within
from penstock.store.side_file import EDGE_BYTES, edge_binding
from penstock.types import Manifest

_CHUNK_BYTES = 1 << 20


def merge_index(
    out: str | os.PathLike[str],
    parts: Iterable[str | os.PathLike[str]] | None = None,
    *,
    overwrite: bool = False,
    follow_links: bool = False,
    store: Store | None = None,
) -> int:
    """Write `out/index.json` over the shards of datasets below `out`, which stay where they are.

    The file is that of the original's `merge_index`, but at any nesting and in numeric order: `2` before `10`. An index
    that is there already with the same content is left as it is. Memory: the index.

    Args:
        out: folder of the new index.
        parts: folders below it, or their index files, in the order wanted; by default all outermost that have an index.
        overwrite: replace an index that is there.
        follow_links: read indexes through links that lead out of `out`.
        store: where they are; follows from `out` where it is None.

    Returns:
        How many shards it lists.

    Raises:
        NotFound: a part has no index, or nothing below `out` has one.
        ConfigError: a part that is not below `out`, or that is named twice; or an index that is there already.
        FormatError: the index of a part is damaged.
    """
    found, root = resolve(out)
    store = within(store or found, root := folder_of(root), follow_links=follow_links)
    names = _parts_below(store, root) if parts is None else [_name_below(root, part) for part in parts]
    if not names:
        raise NotFound("no dataset below this folder", path=root, expected=f"{INDEX_NAME} in a folder below")
    shards = [below(shard, name) for name in names for shard in read_index(store, f"{root}/{name}").shards]
    data, where = encode_merged(shards), f"{root}/{INDEX_NAME}"
    try:
        parse_index(data, where)
    except Corrupt as error:
        raise ConfigError("these parts can't be merged", path=root, found=str(error)) from error
    _put(store, where, data, overwrite=overwrite)
    return len(shards)


def _put(store: Store, where: str, data: bytes, *, overwrite: bool) -> None:
    """Make the index at `where` hold `data`."""
    require_file_or_none(store, where)
    held = claim(store, where)
    try:
        if store.exists(where):
            sweep_output(store, where)
            there = store.get(where)
            if there == data:
                return
            if not overwrite:
                raise output_exists(where)
            if b'"shards"' not in there:
                raise ConfigError("what stands here is no index of shards", path=where, hint="Name another folder")
        put(store, where, data, overwrite=overwrite)
    finally:
        held.release()


def _parts_below(store: Store, root: str) -> list[str]:
    """Folders below `root` that have an index, but for those below another one; in numeric order."""
    suffix = f"/{INDEX_NAME}"
    names = {file[len(root) + 1 :].removesuffix(suffix) for file in store.list(root) if file.endswith(suffix)}
    names.discard(INDEX_NAME)
    return sorted((name for name in names if not names.intersection(_above(name))), key=numeric_order)


def _above(name: str) -> Iterator[str]:
    while name := posixpath.dirname(name):
        yield name


def _name_below(root: str, part: str | os.PathLike[str]) -> str:
    path = folder_of(resolve(part)[1])
    name = posixpath.relpath(path, root) if "://" not in path else path.removeprefix(f"{root}/")
    if name == "." or name == path or name.split("/")[0] == "..":
        hint = (
            "Parts keep their place: put them below the folder of the merged index, or copy them with `penstock merge`"
        )
        raise ConfigError(
            "a part is not below the folder of the merged index", path=path, expected=f"{root}/…", hint=hint
        )
    return name


# --- copies ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """A dataset to copy.

    Attributes:
        store: where it is.
        path: folder of its index.
    """

    store: Store
    path: str


def common_layout(shards: Sequence[Shard], path: str) -> Layout:
    """The layout of the first shard, where all have the same format, columns, newline and separator.

    Raises:
        ConfigError: some differ, or there is no shard.
    """
    if not shards:
        raise ConfigError("a dataset without shards has no columns", path=path)
    first = shards[0].layout
    for number, shard in enumerate(shards):
        if _columns(shard.layout) != _columns(first):
            raise ConfigError(
                f"the columns of shard {number} are not those of the first one",
                path=path,
                found=", ".join(f"{name}: {one}" for name, one in _columns_shown(shard.layout)),
                expected=", ".join(f"{name}: {one}" for name, one in _columns_shown(first)),
            )
    return first


def copy_shards(
    parts: Sequence[Part],
    store: Store,
    out: str,
    *,
    name: str,
    options: Mapping[str, Any],
    overwrite: bool = False,
) -> Manifest:
    """Write the shards of all parts as one dataset, byte for byte, numbered anew; shards may differ in compression.

    Memory: 1 MiB, the indexes, and 100 bytes a shard.

    Args:
        parts: at least one; all with the same format and columns.
        store: where the output is.
        out: its folder.
        name: of the format.
        options: for the side file.
        overwrite: replace what is there.

    Raises:
        ConfigError: columns that differ, or an output that exists.
        FormatError: an index is damaged, or a file has another size than its index says.
    """
    sources = [(part, read_index(part.store, part.path).shards) for part in parts]
    layouts = [common_layout(shards, part.path) for part, shards in sources if shards]
    for (part, _), layout in zip([one for one in sources if one[1]], layouts, strict=True):
        if _columns(layout) != _columns(layouts[0]):
            found, expected = (dict(_columns_shown(one)) for one in (layout, layouts[0]))
            hint = "Bring them to the same columns first, with `penstock convert`"
            raise ConfigError(
                "datasets of different columns", path=part.path, found=found, expected=expected, hint=hint
            )
    output = open_output(store, out, SIDE_NAME, overwrite=overwrite)
    digests: dict[str, tuple[str, ...]] = {}
    sizes: list[int] = []
    try:
        copied: list[Shard] = []
        for part, shards in sources:
            folder = Folder(part.store, part.path, mapped=False)
            copied += [
                _copy_shard(folder, one, len(copied) + at, output, digests, sizes) for at, one in enumerate(shards)
            ]
        index = encode_index(copied)
        manifest = Manifest(
            format=name,
            num_samples=sum(shard.samples for shard in copied),
            size_bytes=sum(sizes) + len(index),
            block_digests=digests,
            options=dict(options),
            binding=edge_binding(len(index), index[:EDGE_BYTES], index[-EDGE_BYTES:]),
            tool=f"penstock {penstock.__version__}",
        )
        return output.publish(index, copied, manifest)
    except BaseException:
        output.abort()
        raise


def _copy_shard(
    folder: Folder, shard: Shard, number: int, output: Output, digests: dict[str, tuple[str, ...]], sizes: list[int]
) -> Shard:
    """Copy the files of one shard: the compressed ones where they are there, else the raw ones."""
    stem = f"shard.{number:05d}.{shard.layout.format}"
    family = (shard.layout.compression or "").partition(":")[0]
    files: list[ShardFile | None] = []
    for raw, zipped, end in ((shard.raw_data, shard.zip_data, ""), (shard.raw_meta, shard.zip_meta, ".meta")):
        new_raw = raw and ShardFile(f"{stem}{end}", raw.size_bytes, raw.hashes)
        new_zip = zipped and ShardFile(f"{stem}{end}.{family}", zipped.size_bytes, zipped.hashes)
        files += [new_raw, new_zip]
        if raw is None or new_raw is None:
            continue
        file, new = raw, new_raw
        if zipped is not None and new_zip is not None and folder.store.exists(folder.place(zipped)):
            file, new = zipped, new_zip
        digester = BlockHasher()
        output.add(new.basename, _chunks(folder, file, digester))
        digests[new.basename] = digester.finish()
        sizes.append(new.size_bytes)
    return Shard(shard.layout, shard.samples, files[0] or shard.raw_data, *files[1:])


def _chunks(folder: Folder, file: ShardFile, digester: BlockHasher) -> Iterator[bytes]:
    """The bytes of a file, of which the size must be that of its index."""
    path = folder.place(file)
    size_bytes = folder.store.size(path)
    if size_bytes != file.size_bytes:
        found, expected = f"{size_bytes} bytes", f"{file.size_bytes} bytes"
        kind = Truncated if size_bytes < file.size_bytes else Corrupt
        raise kind("the file has another size than its index says", path=path, found=found, expected=expected)
    for start in range(0, size_bytes, _CHUNK_BYTES):
        chunk = folder.store.get(path, start, _CHUNK_BYTES)
        digester.update(chunk)
        yield chunk


def _columns(layout: Layout) -> tuple[Any, ...]:
    columns = (layout.column_names, layout.column_encodings, layout.column_sizes)
    return (layout.format, *columns, layout.newline, layout.separator)


def _columns_shown(layout: Layout) -> list[tuple[str, str]]:
    return [("format", layout.format), *zip(layout.column_names, layout.column_encodings, strict=True)]
