"""Merge folders of shards into one dataset: by a common index over the shards in place, or by a copy of them."""

from __future__ import annotations

import itertools
import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import penstock
from penstock._secrets import redact
from penstock.codec.hashes import BlockHasher
from penstock.errors import ConfigError, Corrupt, NotFound, Truncated
from penstock.formats.shards.files import Folder
from penstock.formats.shards.find_index import folder_of, numeric_order, read_index, unlisted_shards
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
from penstock.formats.shards.output import open_output
from penstock.formats.shards.side import SIDE_NAME
from penstock.store.base import Store
from penstock.store.exclude_list import require_no_list
from penstock.store.local import output_exists
from penstock.store.outputs import require_file_or_none
from penstock.store.place import resolve, within
from penstock.store.put import put
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
    """Write `out/index.json` over the shards of datasets below `out`, which stay in place.

    The file is that of the original's `merge_index`, but at any nesting and in numeric order: `2` before `10`. An
    existing index with the same content is left unchanged. Memory: the index.

    Args:
        out: folder of the new index.
        parts: folders below it, or their index files, in the desired order; by default all outermost folders with an
            index.
        overwrite: replace an existing index.
        follow_links: read indexes through links that lead out of `out`.
        store: the store of `out`; None to derive it from `out`.

    Returns:
        The number of listed shards.

    Raises:
        NotFound: a part has no index, or nothing below `out` has one.
        ConfigError: a part isn't below `out`, or is listed twice; or an index already exists.
        FormatError: the index of a part is damaged.
    """
    return sum(map(len, merge_parts(out, parts, overwrite=overwrite, follow_links=follow_links, store=store)))


def merge_parts(
    out: str | os.PathLike[str],
    parts: Iterable[str | os.PathLike[str]] | None = None,
    *,
    overwrite: bool = False,
    follow_links: bool = False,
    store: Store | None = None,
) -> list[list[Shard]]:
    found, root = resolve(out)
    store = within(store or found, root := folder_of(root), follow_links=follow_links)
    names = _parts_below(store, root) if parts is None else [_name_below(root, part) for part in parts]
    if not names:
        raise NotFound("no dataset in this folder", path=root, expected=f"{INDEX_NAME} in a subfolder")
    for name in names:
        require_no_list(store, f"{root}/{name}/.penstock", "the merged index would expose its excluded samples")
    shards = [[below(shard, name) for shard in read_index(store, f"{root}/{name}").shards] for name in names]
    if parts is None:
        _require_all_listed(store, root, names)
    data, where = encode_merged(list(itertools.chain.from_iterable(shards))), f"{root}/{INDEX_NAME}"
    try:
        parse_index(data, where)
    except Corrupt as error:
        raise ConfigError("these parts can't be merged", path=root, found=str(error)) from error
    _put(store, where, data, overwrite=overwrite)
    return shards


def _require_all_listed(store: Store, root: str, names: Sequence[str]) -> None:
    """Raise `ConfigError` if a folder has shards that no index lists: the new index would omit them."""
    found = unlisted_shards(store, root, [])
    below_root = [one for one in found if "/" in one[len(root) + 1 :]]
    if below_root:
        more = f" and {len(below_root) - 1:,} more" if len(below_root) > 1 else ""
        hint = "Finish or repair their dataset (`penstock repair`), remove them, or list the parts to merge"
        what = "a shard that no index lists would be missing from the merged index"
        raise ConfigError(what, path=below_root[0] + more, expected=f"only shards of {len(names)} indexes", hint=hint)


def _put(store: Store, where: str, data: bytes, *, overwrite: bool) -> None:
    require_file_or_none(store, where)
    held = store.claim(where)
    try:
        if store.exists(where):
            store.sweep(where)
            there = store.get(where)
            if there == data:
                return
            if not overwrite:
                raise output_exists(where)
            if b'"shards"' not in there:
                raise ConfigError("the existing file is not a shard index", path=where, hint="Choose another folder")
        put(store, where, data, overwrite=overwrite)
    finally:
        held.release()


def _parts_below(store: Store, root: str) -> list[str]:
    """Return the folders below `root` with an index, except those below another one; in numeric order."""
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
        hint = "Parts aren't moved. Put them into the folder of the merged index, or copy them with `penstock merge`"
        raise ConfigError(
            "a part is outside the folder of the merged index", path=path, expected=f"{root}/…", hint=hint
        )
    return name


# --- copies ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """Dataset to copy.

    Attributes:
        store: the store of the dataset.
        path: folder of its index.
    """

    store: Store
    path: str


def common_layout(shards: Sequence[Shard], path: str) -> Layout:
    """Return the layout of the first shard, if all have the same format, columns, newline and separator.

    Raises:
        ConfigError: some shards differ, or there are none.
    """
    if not shards:
        raise ConfigError("a dataset without shards has no columns", path=path)
    first = shards[0].layout
    for number, shard in enumerate(shards):
        if _columns(shard.layout) != _columns(first):
            raise ConfigError(
                f"the columns of shard {number} differ from those of the first shard",
                path=path,
                found=", ".join(f"{name}: {one}" for name, one in _columns_shown(shard.layout)),
                expected=", ".join(f"{name}: {one}" for name, one in _columns_shown(first)),
            )
    return first


@dataclass(frozen=True, slots=True)
class FileCopy:
    """File of a shard, to be copied unchanged.

    Attributes:
        store: the store of the file.
        path: its path.
        size_bytes: its size according to its index.
    """

    store: Store
    path: str
    size_bytes: int

    @property
    def described(self) -> str:
        return f"{redact(self.path)}, {self.size_bytes} bytes"

    def chunks(self, digester: BlockHasher | None = None) -> Iterator[bytes]:
        """Yield its bytes and update `digester`; raise `FormatError` if its size differs from its index."""
        size_bytes = self.store.size(self.path)
        if size_bytes != self.size_bytes:
            found, expected = f"{size_bytes} bytes", f"{self.size_bytes} bytes"
            kind = Truncated if size_bytes < self.size_bytes else Corrupt
            raise kind(
                "the file has a different size than its index records", path=self.path, found=found, expected=expected
            )
        for start in range(0, size_bytes, _CHUNK_BYTES):
            chunk = self.store.get(self.path, start, _CHUNK_BYTES)
            if digester is not None:
                digester.update(chunk)
            yield chunk


def copy_shards(
    parts: Sequence[Part],
    store: Store,
    out: str,
    *,
    name: str,
    options: Mapping[str, Any],
    inputs: Mapping[str, str],
    overwrite: bool = False,
) -> Manifest:
    """Write the shards of all parts as one dataset, byte for byte, with new numbers; compressions may differ.

    Memory: 1 MiB, the indexes, and 100 bytes per shard.

    Args:
        parts: at least one; all with the same format and columns.
        store: the store of the output.
        out: the output folder.
        name: name of the format.
        options: for the side file.
        inputs: for the side file.
        overwrite: replace an existing output.

    Raises:
        ConfigError: columns differ, or the output exists.
        FormatError: an index is damaged, or the size of a file differs from its index.
    """
    copied: list[Shard] = []
    files: dict[str, FileCopy] = {}
    digests: dict[str, tuple[str, ...]] = {}
    for shard, some in numbered_shards(parts):
        copied.append(shard)
        files |= some
    output = open_output(store, out, SIDE_NAME, overwrite=overwrite)
    try:
        for file_name, file in files.items():
            digester = BlockHasher()
            output.add(file_name, file.chunks(digester))
            digests[file_name] = digester.finish()
        index = encode_index(copied)
        manifest = Manifest(
            format=name,
            num_samples=sum(shard.samples for shard in copied),
            size_bytes=sum(file.size_bytes for file in files.values()) + len(index),
            block_digests=digests,
            inputs=inputs,
            options=dict(options),
            binding=edge_binding(len(index), index[:EDGE_BYTES], index[-EDGE_BYTES:]),
            tool=f"penstock {penstock.__version__}",
        )
        return output.publish(index, copied, manifest)
    except BaseException:
        output.abort()
        raise


def numbered_shards(parts: Sequence[Part]) -> Iterator[tuple[Shard, dict[str, FileCopy]]]:
    """Yield the shards of all parts, with new numbers, each with its files by their new names.

    Args:
        parts: at least one; all with the same format and columns.

    Raises:
        ConfigError: columns differ.
        FormatError: an index is damaged.
    """
    sources = [(part, read_index(part.store, part.path).shards) for part in parts]
    _require_same_columns(sources)
    number = 0
    for part, shards in sources:
        folder = Folder(part.store, part.path, mapped=False)
        for shard in shards:
            files: dict[str, FileCopy] = {}
            yield _renamed(folder, shard, number, files), files
            number += 1


def _require_same_columns(sources: Sequence[tuple[Part, Sequence[Shard]]]) -> None:
    filled = [(part, common_layout(shards, part.path)) for part, shards in sources if shards]
    for part, layout in filled:
        if _columns(layout) != _columns(filled[0][1]):
            found, expected = (dict(_columns_shown(one)) for one in (layout, filled[0][1]))
            hint = "Convert them to the same columns first with `penstock convert`"
            raise ConfigError(
                "the datasets have different columns", path=part.path, found=found, expected=expected, hint=hint
            )


def _renamed(folder: Folder, shard: Shard, number: int, copies: dict[str, FileCopy]) -> Shard:
    """Return a shard with a new number; add its files to `copies`: compressed ones if they exist, else raw ones."""
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
        copies[new.basename] = FileCopy(folder.store, folder.place(file), file.size_bytes)
    return Shard(shard.layout, shard.samples, files[0] or shard.raw_data, *files[1:])


def _columns(layout: Layout) -> tuple[Any, ...]:
    columns = (layout.column_names, layout.column_encodings, layout.column_sizes)
    return (layout.format, *columns, layout.newline, layout.separator)


def _columns_shown(layout: Layout) -> list[tuple[str, str]]:
    return [("format", layout.format), *zip(layout.column_names, layout.column_encodings, strict=True)]
